"""Learning rate as a pure function of the step."""

import math
from typing import Literal


def learning_rate(
    step: int,
    *,
    peak: float,
    num_steps: int,
    warmup_steps: int,
    schedule: Literal["constant", "cosine"],
    min_frac: float,
) -> float:
    """Linear warm-up (the first step already moves), then constant, or cosine down to `min_frac` of the peak.

    >>> how = dict(peak=1, num_steps=9, warmup_steps=2, schedule="constant", min_frac=0)
    >>> [round(learning_rate(s, **how), 2) for s in (0, 1, 2)]
    [0.33, 0.67, 1]
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return peak
    progress = (step - warmup_steps) / max(num_steps - 1 - warmup_steps, 1)
    return peak * (min_frac + (1 - min_frac) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))
