"""Transformers models: made, loaded, saved, and asked for log-probs. The only room that shifts logits against tokens.

Takes:      a model name or folder; token ids.
Gives:      a Policy; log-probs, entropies and hidden states of chosen positions.
May import: torch, transformers, tokenizers, safetensors, numpy, peft, codriver.errors
"""
