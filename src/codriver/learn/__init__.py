"""One optimizer step on a whole batch of allocated episodes.

Takes:      Allocated episodes and the live student.
Gives:      an Update; new weights; checkpoints.
May import: torch, numpy, safetensors, codriver.episode, codriver.errors, codriver.models, codriver.signals
"""
