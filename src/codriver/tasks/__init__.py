"""Problems, the turns they allow, and the only door to a verdict.

Takes:      a split, a seed and a step; later a finished episode.
Gives:      Prompts, environments, Verdicts.
May import: numpy, codriver.episode, codriver.errors, codriver.verify
"""
