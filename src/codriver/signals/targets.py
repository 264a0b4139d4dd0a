"""Target distributions made of several: mixtures of teachers, a softened teacher, a teacher seen beyond the reference.

Shape suffixes:  V = vocabulary, leading shape free.  All log-probs in nats; results are constants (no gradient).
Use a target as the teacher of any divergence.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from codriver.signals._inputs import floored, require_no_gradient, require_same_shape


def geometric_mean_logp(teacher_logps: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """log of prod_i q_i^{w_i} / Z: where sum_i w_i reverse KL(p || q_i) is smallest.

    So several teachers on ONE prompt act as this ensemble; that is not routing.
    Raises:  ValueError: lengths or shapes differ, weights not >= 0 with sum 1, a teacher that carries gradient.
    >>> a, b = torch.tensor([0.8, 0.2]).log(), torch.tensor([0.2, 0.8]).log()
    >>> geometric_mean_logp([a, b], [0.5, 0.5]).exp()
    tensor([0.5000, 0.5000])
    """
    _check_teachers("geometric_mean_logp", teacher_logps, weights)
    pairs = zip(teacher_logps, weights, strict=True)
    return torch.stack([w * floored(q) for q, w in pairs]).sum(0).log_softmax(-1)


def arithmetic_mean_logp(teacher_logps: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """log of sum_i w_i q_i: where sum_i w_i forward KL(q_i || p) is smallest.

    Raises:  as `geometric_mean_logp`.
    >>> a, b = torch.tensor([0.8, 0.2]).log(), torch.tensor([0.4, 0.6]).log()
    >>> arithmetic_mean_logp([a, b], [0.5, 0.5]).exp()
    tensor([0.6000, 0.4000])
    """
    _check_teachers("arithmetic_mean_logp", teacher_logps, weights)
    pairs = zip(teacher_logps, weights, strict=True)
    return torch.stack([floored(q) + math.log(max(w, 1e-300)) for q, w in pairs]).logsumexp(0)


def veto_logp(student_logp_V: Tensor, teacher_logp_V: Tensor, *, power: float) -> Tensor:
    """log of q p^power / Z: the teacher, weighed by what the student finds possible; nearer than the teacher itself.

    Args:    student_logp_V: detached here.
    Raises:  ValueError: shapes differ, the teacher carries gradient, power < 0.
    Source:  Veto, arXiv 2601.07155.
    >>> veto_logp(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.2, 0.8]).log(), power=1.0).exp()
    tensor([0.2000, 0.8000])
    """
    require_same_shape("veto_logp", student_logp_V=student_logp_V, teacher_logp_V=teacher_logp_V)
    require_no_gradient("veto_logp", teacher_logp_V=teacher_logp_V)
    if power < 0:
        raise ValueError(f"veto_logp: the power must be >= 0, got {power}")
    return (floored(teacher_logp_V) + power * floored(student_logp_V.detach())).log_softmax(-1)


def extrapolated_logp(teacher_logp_V: Tensor, reference_logp_V: Tensor, *, strength: float) -> Tensor:
    """log of q^strength ref^(1 - strength) / Z: beyond the teacher for strength > 1, the teacher at 1 (G-OPD, ExOPD).

    Raises:  ValueError: shapes differ, an input carries gradient, strength <= 0.   Source: arXiv 2602.12125.
    >>> q, ref = torch.tensor([0.6, 0.4]).log(), torch.tensor([0.5, 0.5]).log()
    >>> extrapolated_logp(q, ref, strength=2.0).exp()                              # .36 : .16
    tensor([0.6923, 0.3077])
    """
    require_same_shape("extrapolated_logp", teacher_logp_V=teacher_logp_V, reference_logp_V=reference_logp_V)
    require_no_gradient("extrapolated_logp", teacher_logp_V=teacher_logp_V, reference_logp_V=reference_logp_V)
    if strength <= 0:
        raise ValueError(f"extrapolated_logp: strength must be > 0, got {strength}")
    return (strength * floored(teacher_logp_V) + (1.0 - strength) * floored(reference_logp_V)).log_softmax(-1)


def _check_teachers(caller: str, teacher_logps: Sequence[Tensor], weights: Sequence[float]) -> None:
    if len(teacher_logps) != len(weights) or not weights:
        raise ValueError(f"{caller}: one weight per teacher, got {len(teacher_logps)} teachers, {len(weights)} weights")
    if min(weights) < 0 or abs(sum(weights) - 1.0) > 1e-6:
        raise ValueError(f"{caller}: weights must be >= 0 and sum to 1, got {list(weights)}")
    named = {f"teacher_{i}": q for i, q in enumerate(teacher_logps)}
    require_same_shape(caller, **named)
    require_no_gradient(caller, **named)
