"""Sampling: prompts in, episodes out.

Takes:      Prompts with their tasks' environments, and an engine that samples tokens.
Gives:      Episodes, with the log-prob and policy version of every sampled token.
May import: torch, transformers, numpy, codriver.episode, codriver.errors, codriver.tasks, codriver.models
"""
