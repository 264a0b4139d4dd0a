"""What a verdict on the whole episode says: one number per episode, relative to its group.

Shape suffixes:  E = episodes of the batch (all groups, in any order).
Nobody here carries gradient.  Unit: reward units, or standard deviations of reward.
"""

import torch
from torch import Tensor

from codriver.signals._inputs import precise, require_choice, require_same_shape

STD_EPSILON = 1e-6
"""Added to a standard deviation before dividing by it (GRPO)."""

AGREEMENT_TOLERANCE = 1e-6
"""Relative spread below which rewards of a group count as equal: float32 noise of summed parts, not a preference."""


def group_advantage(
    reward_E: Tensor, group_E: Tensor, *, scale: str = "std", baseline: str = "mean", valid: Tensor | None = None
) -> Tensor:
    """How much better an episode did than the other episodes of its prompt.

        A_i = (r_i - b_i) / s,      b_i = mean of the group ("mean") or of its other members ("leave_one_out")
        s   = std of the group + 1e-6 ("std") | 1 ("none", Dr. GRPO) | std of the whole batch + 1e-6 ("batch")

    The std is the unbiased one (n - 1), as in TRL and verl. Groups may have any size and any order. A group that
    agrees, up to float noise, gets exactly 0; so does a group with a single valid member.
    Args:    reward_E: float; constant.   group_E: int64, equal for episodes of one prompt; any values.
             valid: bool [E]; False where the verifier itself failed. Such members get 0 and are in no mean and no std.
    Returns: A_E, no gradient; sums to 0 within a group with baseline "mean".
    Raises:  ValueError: shapes differ, unknown scale or baseline, or a valid reward that is not finite.
    Source:  GRPO, arXiv 2402.03300 section 4.1; Dr. GRPO, 2503.20783; leave-one-out (RLOO), 2402.14740.
    >>> group_advantage(torch.tensor([1.0, 0.0, 0.95, 0.95]), torch.tensor([7, 7, 3, 3]), scale="none")
    tensor([ 0.5000, -0.5000,  0.0000,  0.0000])
    """
    require_same_shape("group_advantage", reward_E=reward_E, group_E=group_E)
    require_choice("group_advantage", "scale", scale, ("std", "none", "batch"))
    require_choice("group_advantage", "baseline", baseline, ("mean", "leave_one_out"))
    valid_E = _validity(reward_E, valid)
    reward_E = precise(reward_E.detach()).masked_fill(~valid_E, 0.0)
    index_E, count_E, agrees_E = _groups(reward_E, group_E, valid_E)
    centred_E = (reward_E - _group_sum(reward_E, index_E) / count_E).masked_fill(~valid_E, 0.0)
    advantage_E = centred_E
    if baseline == "leave_one_out":
        advantage_E = centred_E * count_E / (count_E - 1).clamp(min=1)
    if scale == "std":
        variance_E = _group_sum(centred_E.square(), index_E) / (count_E - 1).clamp(min=1)
        advantage_E = advantage_E / (variance_E.sqrt() + STD_EPSILON)
    elif scale == "batch" and valid_E.sum() > 1:
        advantage_E = advantage_E / (reward_E[valid_E].std() + STD_EPSILON)
    return advantage_E.masked_fill(agrees_E, 0.0)


def overlong_penalty(length_E: Tensor, *, max_length: int, buffer: int) -> Tensor:
    """DAPO's soft punishment of length, to be added to the reward.

        0 for L <= max - buffer;    ((max - buffer) - L) / buffer inside the buffer;    -1 for L > max

    Args:    length_E: number of sampled tokens (not of tool tokens).
    Returns: float32 [E] in [-1, 0].
    Raises:  ValueError: not 0 < buffer <= max_length.
    Source:  DAPO, arXiv 2503.14476, eq. 13 (max 20480, buffer 4096).
    >>> overlong_penalty(torch.tensor([10, 17, 30]), max_length=20, buffer=5)      # 10 free, 2 of 5 used up, beyond
    tensor([ 0.0000, -0.4000, -1.0000])
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"overlong_penalty: expected 0 < buffer <= max_length, got {buffer} and {max_length}")
    return 0.0 - ((length_E.float() - (max_length - buffer)) / buffer).clamp(0.0, 1.0)


def overlong_mask(length_E: Tensor, stopped_E: Tensor, *, max_length: int) -> Tensor:
    """Which episodes keep their outcome signal when truncated ones are to be left out (DAPO's overlong filter).

    Args:    length_E: sampled tokens.   stopped_E: bool, the student ended by itself (end token, task over).
    Returns: bool [E]; False where the limit cut the episode. An episode that stops exactly at the limit is kept.
    Raises:  ValueError: shapes differ.
    >>> overlong_mask(torch.tensor([8, 8, 3]), torch.tensor([True, False, False]), max_length=8)
    tensor([ True, False,  True])
    """
    require_same_shape("overlong_mask", length_E=length_E, stopped_E=stopped_E)
    return stopped_E.bool() | (length_E < max_length)


def _validity(reward_E: Tensor, valid: Tensor | None) -> Tensor:
    valid_E = torch.ones_like(reward_E, dtype=torch.bool) if valid is None else valid.bool()
    require_same_shape("group_advantage", reward_E=reward_E, valid=valid_E)
    broken_E = valid_E & ~torch.isfinite(reward_E)
    if broken_E.any():
        at = broken_E.nonzero().flatten().tolist()
        raise ValueError(f"group_advantage: rewards of valid episodes must be finite, got non-finite ones at {at}")
    return valid_E


def _groups(reward_E: Tensor, group_E: Tensor, valid_E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each episode's group number, the group's number of valid members (at least 1), and whether those agree."""
    index_E = torch.unique(group_E, return_inverse=True)[1]
    count_E = _group_sum(valid_E.to(reward_E.dtype), index_E).clamp(min=1)
    top_E = _group_extreme(reward_E, index_E, valid_E, "amax")
    bottom_E = _group_extreme(reward_E, index_E, valid_E, "amin")
    size_E = torch.maximum(top_E.abs(), bottom_E.abs())
    agrees_E = (top_E - bottom_E <= AGREEMENT_TOLERANCE * size_E) | (count_E <= 1)
    return index_E, count_E, agrees_E


def _group_sum(x_E: Tensor, index_E: Tensor) -> Tensor:
    return torch.zeros_like(x_E).index_add(0, index_E, x_E)[index_E]


def _group_extreme(x_E: Tensor, index_E: Tensor, valid_E: Tensor, reduce: str) -> Tensor:
    start_E = torch.zeros_like(x_E)
    return start_E.scatter_reduce(0, index_E[valid_E], x_E[valid_E], reduce, include_self=False)[index_E]
