"""Divergences on a short list of tokens per position, and how the list is chosen.

Shape suffixes:  V = vocabulary,  K = slots of the list S;  every leading shape is free.  p student, q teacher.
Alignment:       row t scores token t, given the tokens before it.  Unit: nats.
Log-probs:       of the full vocabulary, gathered at the ids (`gather_logp`); never renormalised by the caller.
Empty slot:      id -1, and log-prob -inf on BOTH sides. It adds nothing to any value, mass or gradient. -inf on one
                 side only is a token that this side rules out.
Gradient:        through the student only; a teacher that carries gradient is refused.
"""

import torch
from torch import Tensor

from codriver.signals._inputs import (
    LOGP_FLOOR,
    floored,
    precise,
    require_choice,
    require_no_gradient,
    require_same_shape,
)
from codriver.signals.divergence import check_beta, jensen_shannon_logp

REMAINDERS = ("renormalize", "tail", "generalized", "stop_gradient")
"""What becomes of the tokens that are not on the list. The bare partial sum is not offered: its reverse form can be
negative and its extra gradient (that of P_S) pushes the student's mass off the list."""


def top_k_ids(logits: Tensor, k: int) -> Tensor:
    """The k most likely tokens, most likely first (ties: as torch.topk). int64 [..., k], no gradient.

    Raises:  ValueError: k < 1 or k larger than the vocabulary.
    >>> top_k_ids(torch.tensor([0.1, 3.0, 2.0]), 2)
    tensor([1, 2])
    """
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"top_k_ids: k must be in 1..{logits.shape[-1]} (the vocabulary), got {k}")
    return logits.detach().topk(k, dim=-1).indices


def union_ids(ids: Tensor, other_ids: Tensor) -> Tensor:
    """Both lists as one, of the length of both together; a token that repeats keeps its first slot, the rest become -1.

    Args:    ids, other_ids: int64 [..., K] and [..., L]; they may hold empty slots.   Returns: int64 [..., K + L].
    Raises:  ValueError: leading shapes differ.
    >>> union_ids(torch.tensor([4, 7]), torch.tensor([7, 2]))
    tensor([ 4,  7, -1,  2])
    """
    if ids.shape[:-1] != other_ids.shape[:-1]:
        shapes = f"{tuple(ids.shape)} and {tuple(other_ids.shape)}"
        raise ValueError(f"union_ids: all axes but the last must agree, got {shapes}")
    ordered, slot = torch.cat([ids, other_ids], dim=-1).sort(dim=-1, stable=True)
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    return torch.empty_like(ordered).scatter(-1, slot, ordered.masked_fill(again, -1))


def with_sampled_ids(ids: Tensor, sampled_ids: Tensor) -> Tensor:
    """The list plus the token that was sampled; its extra slot is empty where the token is on the list already.

    Repairs the blind spot of local support matching: mass off the list is seen whenever it is sampled.
    Args:    ids: int64 [..., K].   sampled_ids: int64 [...].   Returns: int64 [..., K + 1].
    >>> with_sampled_ids(torch.tensor([[4, 7], [4, 7]]), torch.tensor([7, 5]))
    tensor([[ 4,  7, -1],
            [ 4,  7,  5]])
    """
    return union_ids(ids, sampled_ids.unsqueeze(-1))


def gather_logp(logp_V: Tensor, ids_K: Tensor) -> Tensor:
    """Log-probs at the ids; -inf at empty slots (id -1), without gradient there. Carries the gradient of `logp_V`.

    >>> gather_logp(torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor([0, -1]))
    tensor([-0.6931,    -inf])
    """
    return logp_V.gather(-1, ids_K.clamp(min=0)).masked_fill(ids_K < 0, float("-inf"))


def support_mass(logp: Tensor) -> Tensor:
    """P_S = sum_S p: how much of a distribution the list holds, in [0, 1] up to rounding. Report it for both sides.

    >>> support_mass(torch.tensor([0.5, 0.25, 0.0]).log())
    tensor(0.7500)
    """
    return precise(logp).exp().sum(-1)


def overlap(ids: Tensor, other_ids: Tensor) -> Tensor:
    """The share of the first list's tokens that are on the other one, in [0, 1]; empty slots do not count.

    >>> overlap(torch.tensor([4, 7, 9, -1]), torch.tensor([7, 9, 1, -1]))          # 7 and 9 of three
    tensor(0.6667)
    """
    found = (ids.unsqueeze(-1) == other_ids.unsqueeze(-2)).any(-1) & (ids >= 0)
    return found.sum(-1) / (ids >= 0).sum(-1).clamp(min=1)


def support_reverse_kl(student_logp: Tensor, teacher_logp: Tensor, *, remainder: str = "tail") -> Tensor:
    """Reverse KL(student || teacher) on a list of tokens, with a stated treatment of all others.

        renormalize    sum_S pbar log(pbar / qbar),  pbar = p / P_S    local matching; blind to mass off the list
        tail           the list plus one bucket 1 - P_S against 1 - Q_S      never above the full KL
        generalized    sum_S p log(p / q) - p + q                            >= 0; gradient sum_S log(p / q) dp
        stop_gradient  sum_S p sg(log(p / q))                                same gradient; the value can be negative

    All four are the full reverse KL when the list is the vocabulary; `renormalize` is 0 for a list of one token.
    Args:    student_logp: [..., K], carries gradient.   teacher_logp: [..., K], constant.
    Returns: [...] nats.
    Raises:  ValueError: shapes differ, the teacher carries gradient, an unknown remainder.
    Source:  renormalize: arXiv 2603.25562; tail: SDPO, 2601.20802; generalized: MOPD, 2606.30406 eq. 5.
    >>> p, q = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.25]).log()   # tails 0.25 and 0.5
    >>> support_reverse_kl(p, q)                          # 0.5 log 2 + 0 + 0.25 log 0.5 = 0.25 log 2
    tensor(0.1733)
    >>> support_reverse_kl(p, q, remainder="renormalize")            # 2/3 log(4/3) + 1/3 log(2/3)
    tensor(0.0566)
    >>> support_reverse_kl(p, q, remainder="generalized")            # 0.5 log 2 - 0.75 + 0.5
    tensor(0.0966)
    """
    _check("support_reverse_kl", student_logp, teacher_logp, remainder)
    p, q = _treated(student_logp, teacher_logp, remainder)
    return (p.exp() * (p - q)).sum(-1) + _completion(p, q, remainder)


def support_forward_kl(student_logp: Tensor, teacher_logp: Tensor, *, remainder: str = "tail") -> Tensor:
    """Forward KL(teacher || student) on a list of tokens, with a stated treatment of all others.

        renormalize    sum_S qbar log(qbar / pbar)
        tail           the list plus one bucket 1 - Q_S against 1 - P_S       never above the full KL
        generalized    sum_S q log(q / p) - q + p                            >= 0; gradient sum_S (1 - q / p) dp
        stop_gradient  sum_S q log(q / p) + P_S - sg(P_S)                    same gradient; the value can be negative

    Args, Returns, Raises, Source: as `support_reverse_kl`.
    >>> p, q = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.25]).log()   # tails 0.25 and 0.5
    >>> support_forward_kl(p, q)                          # 0.25 log 0.5 + 0 + 0.5 log 2 = 0.25 log 2
    tensor(0.1733)
    """
    _check("support_forward_kl", student_logp, teacher_logp, remainder)
    p, q = _treated(student_logp, teacher_logp, remainder)
    value = (q.exp() * (q - p)).sum(-1)
    # In both directions the bare sum lacks the same thing: the gradient of -P_S (reverse) or of +P_S (forward).
    return value - _completion(p, q, remainder)


def support_jensen_shannon(
    student_logp: Tensor, teacher_logp: Tensor, *, beta: float = 0.5, remainder: str = "tail"
) -> Tensor:
    """Generalised Jensen-Shannon divergence (see `divergence.jensen_shannon`) on a list of tokens.

        m = beta q + (1 - beta) p,      beta sum q log(q / m) + (1 - beta) sum p log(p / m)

    over the renormalised list, or the list and its tail bucket. Here the bare sum needs no completion, since
    -beta q - (1 - beta) p + m = 0: `generalized` and `stop_gradient` are that same sum.
    Args, Returns, Raises: as `support_reverse_kl`, and ValueError for a beta outside (0, 1).
    >>> p, q = torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 0.5]).log()      # tails 0 and 0.5: disjoint
    >>> support_jensen_shannon(p, q)
    tensor(0.6931)
    """
    _check("support_jensen_shannon", student_logp, teacher_logp, remainder)
    check_beta("support_jensen_shannon", beta)
    return jensen_shannon_logp(*_treated(student_logp, teacher_logp, remainder), beta=beta)


def support_cross_entropy(student_logp: Tensor, teacher_logp: Tensor) -> Tensor:
    """-sum_S q log p: the part of the cross-entropy to the teacher that the list holds. A loss, not a divergence.

    Gradient in the student's logits: Q_S p - q on the list, Q_S p off it; it sums to 0 for every list.
    Args, Raises: as `support_reverse_kl`.   Returns: [...] nats, >= 0.
    >>> p, q = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.25]).log()
    >>> support_cross_entropy(p, q)                                    # .25 log 2 + .25 log 4
    tensor(0.5199)
    """
    _check("support_cross_entropy", student_logp, teacher_logp, "tail")
    return -(floored(teacher_logp).exp() * floored(student_logp)).sum(-1)


def truncated_forward_kl(student_logp: Tensor, teacher_logp: Tensor) -> Tensor:
    """Forward KL of the teacher cut to the list and renormalised, against the student's full distribution.

        sum_S qbar (log qbar - log p) = KL(qbar || pbar) - log P_S,      qbar = q / Q_S

    Unlike `renormalize` it sees student mass off the list. Gradient in the student's logits: p - qbar.
    Args, Raises: as `support_reverse_kl`.   Returns: [...] nats, >= 0.
    >>> p, q = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.25]).log()
    >>> truncated_forward_kl(p, q)                                     # 0.5 (log .5 - log .5) + 0.5 (log .5 - log .25)
    tensor(0.3466)
    """
    _check("truncated_forward_kl", student_logp, teacher_logp, "renormalize")
    qbar = _treated(student_logp, teacher_logp, "renormalize")[1]
    return (qbar.exp() * (qbar - floored(student_logp))).sum(-1)


def _treated(student_logp: Tensor, teacher_logp: Tensor, remainder: str) -> tuple[Tensor, Tensor]:
    if remainder == "tail":
        return _with_tail(student_logp), _with_tail(teacher_logp)
    if remainder == "renormalize":
        empty = torch.isneginf(student_logp) & torch.isneginf(teacher_logp)
        return _renormalised(student_logp, empty), _renormalised(teacher_logp, empty)
    return floored(student_logp), floored(teacher_logp)


def _with_tail(logp: Tensor) -> Tensor:
    logp = floored(logp)
    # Rounding can make sum_S p reach 1, whose tail is log 0 with a NaN gradient; closer to 1 the tail is noise.
    inside = logp.logsumexp(-1, keepdim=True).clamp(max=-1e-12 if logp.dtype == torch.float64 else -1e-6)
    return torch.cat([logp, torch.log(-torch.expm1(inside))], dim=-1)


def _renormalised(logp: Tensor, empty: Tensor) -> Tensor:
    # An empty slot must not take part even if every real slot is at the floor.
    logp = floored(logp)
    total = logp.masked_fill(empty, float("-inf")).logsumexp(-1, keepdim=True)
    return (logp - total).masked_fill(empty, LOGP_FLOOR)


def _completion(p: Tensor, q: Tensor, remainder: str) -> Tensor:
    """Q_S - P_S, or only its gradient, to be added to a reverse bare sum and subtracted from a forward one."""
    missing = q.exp().sum(-1) - p.exp().sum(-1)
    if remainder == "generalized":
        return missing
    if remainder == "stop_gradient":
        return missing - missing.detach()
    return torch.zeros_like(missing)


def _check(caller: str, student_logp: Tensor, teacher_logp: Tensor, remainder: str) -> None:
    require_same_shape(caller, student_logp=student_logp, teacher_logp=teacher_logp)
    require_no_gradient(caller, teacher_logp=teacher_logp)
    require_choice(caller, "remainder", remainder, REMAINDERS)
