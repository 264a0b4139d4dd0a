"""Learning on the teacher's own prefixes: which of its rollouts to take, and the loss on it (BRTS).

Shape suffixes:  N = teacher rollouts of one prompt,  L = positions,  K = top-K of the student or of the teacher.
"""

from dataclasses import dataclass

from torch import Tensor

from codriver.signals._inputs import require_same_shape
from codriver.signals.support import truncated_forward_kl


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The teacher rollout to learn from."""

    tier: int
    """1: correct; 2: correct only when the teacher was shown the reference answer; 3: incorrect, but close."""
    index: int
    """Into the plain rollouts for tiers 1 and 3, into the hinted ones for tier 2."""


def position_overlap(student_ids_LK: Tensor, teacher_token_L: Tensor) -> Tensor:
    """The share of positions where the teacher's token is in the student's top-K at the same position.

        mean_t 1[y'_t in TopK(pi_theta(. | x, yhat_<t))]

    The two prefixes differ from the first disagreement on: what is measured then is style and position.
    Args:    student_ids_LK: along the student's rollout.   teacher_token_L: of the teacher's. The longer one is cut.
    Returns: scalar in [0, 1]; 0 when one of them is empty.
    Source:  BRTS, arXiv 2605.09725 (K 16).
    >>> import torch
    >>> position_overlap(torch.tensor([[1, 2], [3, 4]]), torch.tensor([2, 9, 9]))  # yes, no; the third has no partner
    tensor(0.5000)
    """
    length = min(student_ids_LK.shape[0], teacher_token_L.shape[0])
    found_L = (student_ids_LK[:length] == teacher_token_L[:length, None]).any(-1)
    return found_L.float().sum() / max(length, 1)


def select_rollout(
    correct_N: Tensor,
    overlap_N: Tensor,
    *,
    hinted_correct_N: Tensor | None = None,
    hinted_overlap_N: Tensor | None = None,
    take_incorrect: bool = True,
) -> Selection | None:
    """The teacher rollout closest to the student, in three tiers.

        1  the correct ones; else  2  the correct ones that saw the reference answer; else  3  the incorrect ones

    In each tier the largest overlap wins, ties go to the lowest index.
    Args:    correct_N: bool.   overlap_N: `position_overlap` of each.   hinted_*: of re-sampled rollouts, if any.
             take_incorrect: False leaves tier 3 out.
    Returns: a Selection, or None: this prompt has no teacher-context loss.
    Raises:  ValueError: shapes differ, or only one of the two hinted tensors is given.
    Source:  BRTS, arXiv 2605.09725.
    >>> import torch
    >>> select_rollout(torch.tensor([True, False, True]), torch.tensor([0.2, 0.9, 0.6]))
    Selection(tier=1, index=2)
    """
    require_same_shape("select_rollout", correct_N=correct_N, overlap_N=overlap_N)
    if (hinted_correct_N is None) != (hinted_overlap_N is None):
        raise ValueError("select_rollout: give hinted_correct_N and hinted_overlap_N together, got one of them")
    if correct_N.any():
        return Selection(tier=1, index=_closest(correct_N, overlap_N))
    if hinted_correct_N is not None and hinted_overlap_N is not None:
        require_same_shape("select_rollout", hinted_correct_N=hinted_correct_N, hinted_overlap_N=hinted_overlap_N)
        if hinted_correct_N.any():
            return Selection(tier=2, index=_closest(hinted_correct_N, hinted_overlap_N))
    if take_incorrect and correct_N.numel():
        return Selection(tier=3, index=_closest(~correct_N.bool(), overlap_N))
    return None


def teacher_context_loss(student_logp_LK: Tensor, teacher_logp_LK: Tensor) -> Tensor:
    """Forward KL(teacher || student) on the teacher's top-K along a teacher rollout, per position.

        sum_S qbar (log qbar - log p),      qbar = the teacher renormalised on its top-K, p = the student in full

    Args:    student_logp_LK: full-vocabulary log-probs at the teacher's ids, on the teacher's prefix; carries gradient.
             teacher_logp_LK: constant.
    Returns: nats, >= 0. Add it to the on-policy loss with its own coefficient (paper 10, released code 0.05).
    Raises:  ValueError: shapes differ, or the teacher carries gradient.
    Source:  BRTS, arXiv 2605.09725.
    >>> import torch
    >>> teacher_context_loss(torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.25, 0.25]]).log())
    tensor([0.3466])
    """
    return truncated_forward_kl(student_logp_LK, teacher_logp_LK)


def _closest(eligible_N: Tensor, overlap_N: Tensor) -> int:
    best = overlap_N[eligible_N.bool()].max()
    return int((eligible_N.bool() & (overlap_N == best)).nonzero()[0, 0])
