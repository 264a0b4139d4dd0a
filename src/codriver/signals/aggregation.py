"""How the losses of single tokens become one number: the weight of each token of an episode, from lengths alone.

Shape suffixes:  E = episodes of the WHOLE batch, of all ranks and micro-batches: the divisor is one number for all.
Use:             `allocation` multiplies by these weights; the loss is then the plain sum of weight x term.
Lengths:         tokens that this signal reaches. An episode of length 0 gets 0 and counts nowhere, so adding episodes
                 without such tokens changes nothing. A batch without any gives 0, not NaN.
"""

import torch
from torch import Tensor


def token_mean_weight(length_E: Tensor) -> Tensor:
    """Every token alike: 1 / sum_e L_e (DAPO).

    >>> token_mean_weight(torch.tensor([1, 3, 0]))
    tensor([0.2500, 0.2500, 0.0000])
    """
    length_E = length_E.float()
    return (length_E > 0) / length_E.sum().clamp(min=1.0)


def sequence_mean_weight(length_E: Tensor) -> Tensor:
    """Every episode alike, by the mean over its tokens: 1 / (N L_e), N = episodes with tokens (GRPO).

    >>> sequence_mean_weight(torch.tensor([1, 4, 0]))
    tensor([0.5000, 0.1250, 0.0000])
    """
    length_E = length_E.float()
    present_E = length_E > 0
    return present_E / (length_E.clamp(min=1.0) * present_E.sum().clamp(min=1))


def constant_weight(length_E: Tensor, *, divisor: float) -> Tensor:
    """Every token alike, whatever the lengths: 1 / (N divisor), N = episodes with tokens (Dr. GRPO).

    The divisor is usually the longest completion allowed. Longer completions make a larger loss.
    Raises ValueError for a divisor <= 0.
    >>> constant_weight(torch.tensor([1, 4, 0]), divisor=10)
    tensor([0.0500, 0.0500, 0.0000])
    """
    if not divisor > 0:
        raise ValueError(f"constant_weight: the divisor must be > 0, got {divisor}")
    present_E = length_E > 0
    return present_E / (torch.as_tensor(float(divisor)) * present_E.sum().clamp(min=1))
