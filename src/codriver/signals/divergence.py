"""How far the student's next-token distribution is from a teacher's, over the whole vocabulary.

Shape suffixes:  V = vocabulary; every leading shape is free.  Throughout: p is the student, q the teacher.
Alignment:       row t scores token t, given the tokens before it.  Unit: nats.
Gradient:        through the student only; a teacher that carries gradient is refused.
Precision:       float32 inside (float64 stays float64). A ruled-out token (-inf) counts as e^-100: values and
                 gradients are finite at probability 0 and 1.
Two doors:       functions of logits, and `*_logp` twins for callers that hold log-probabilities already.
Left to others:  masking and averaging (`allocation`).
"""

import math
import warnings

import torch
from torch import Tensor

from codriver.signals._inputs import floored, precise, require_no_gradient, require_same_shape


def log_probs(logits_V: Tensor, *, temperature: float = 1.0) -> Tensor:
    """log softmax(logits / temperature), in float32 at least.  Raises ValueError for temperature <= 0.

    >>> log_probs(torch.tensor([0.0, 0.0]), temperature=0.5)
    tensor([-0.6931, -0.6931])
    """
    if not temperature > 0:
        raise ValueError(f"log_probs: the temperature must be > 0, got {temperature}")
    return (precise(logits_V) / temperature).log_softmax(-1)


def entropy(logits_V: Tensor, *, temperature: float = 1.0) -> Tensor:
    """H(p) = -sum_v p log p in nats, in [0, log V]; carries the gradient of its logits.

    >>> entropy(torch.tensor([3.0, 3.0, float("-inf")]))
    tensor(0.6931)
    """
    logp_V = floored(log_probs(logits_V, temperature=temperature))
    return -(logp_V.exp() * logp_V).sum(-1)


def reverse_kl(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.0,
    teacher_temperature: float | None = None,
    temperature_squared: bool = False,
) -> Tensor:
    """Reverse KL(student || teacher): mode seeking; punishes what the student says and the teacher would not.

        KL_t = sum_v p_v (log p_v - log q_v)
        gradient in the student's logits:  p_v (log p_v - log q_v - KL_t) / temperature

    Args:    student_logits: [..., V], carries gradient.   teacher_logits: same shape, constant.
             temperature: of the sampling distribution; the teacher's is the same unless `teacher_temperature` is given.
             temperature_squared: multiply by the (student) temperature squared, so that the gradient keeps its size
             as the temperature grows (Hinton et al.); off by default.
    Returns: [...] nats, >= 0; 0 only for equal distributions.
    Raises:  ValueError: shapes differ, the teacher carries gradient, a temperature <= 0.
    Source:  MiniLLM, arXiv 2306.08543; T^2: Hinton et al., 1503.02531 section 2.
    >>> p, q = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    >>> reverse_kl(p, q)                                          # 0.5 log 2 + 0.5 log(2/3) = 0.5 log(4/3)
    tensor(0.1438)
    """
    p, q = _pair("reverse_kl", student_logits, teacher_logits, temperature, teacher_temperature)
    return _squared(reverse_kl_logp(p, q), temperature, temperature_squared)


def forward_kl(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.0,
    teacher_temperature: float | None = None,
    temperature_squared: bool = False,
) -> Tensor:
    """Forward KL(teacher || student): mass covering; punishes what the teacher would say and the student does not.

        KL_t = sum_v q_v (log q_v - log p_v),    gradient in the student's logits  (p_v - q_v) / temperature

    Args, Returns, Raises: as `reverse_kl`.   Source: Hinton et al., arXiv 1503.02531.
    >>> p, q = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    >>> forward_kl(p, q)                                          # 0.25 log(1/2) + 0.75 log(3/2)
    tensor(0.1308)
    """
    p, q = _pair("forward_kl", student_logits, teacher_logits, temperature, teacher_temperature)
    return _squared(forward_kl_logp(p, q), temperature, temperature_squared)


def jensen_shannon(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    teacher_temperature: float | None = None,
    temperature_squared: bool = False,
) -> Tensor:
    """Generalised Jensen-Shannon divergence, weighed as in GKD.

        m = beta q + (1 - beta) p,      JSD = beta KL(q || m) + (1 - beta) KL(p || m)

    beta -> 0 behaves like beta * forward KL, beta -> 1 like (1 - beta) * reverse KL: the value VANISHES at both ends
    and does not become either KL. So 0 and 1 are refused, and a beta outside [0.1, 0.9] warns of a weak signal.
    Args, Raises: as `reverse_kl`, and ValueError for a beta outside (0, 1).
    Returns: [...] nats, between 0 and -beta log(beta) - (1 - beta) log(1 - beta) (log 2 at 0.5, where it is symmetric).
    Source:  GKD, arXiv 2306.13649, eq. 1.
    >>> p, q = torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log()
    >>> jensen_shannon(p, q)                                      # disjoint: log 2
    tensor(0.6931)
    """
    p, q = _pair("jensen_shannon", student_logits, teacher_logits, temperature, teacher_temperature)
    return _squared(jensen_shannon_logp(p, q, beta=beta), temperature, temperature_squared)


def cross_entropy(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.0,
    teacher_temperature: float | None = None,
) -> Tensor:
    """Cross-entropy to the teacher: -sum_v q_v log p_v = forward KL + H(q). Same gradient as `forward_kl`.

    Args, Raises: as `reverse_kl`.   Returns: [...] nats, >= H(q).
    >>> cross_entropy(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log())         # log 2
    tensor(0.6931)
    """
    p, q = _pair("cross_entropy", student_logits, teacher_logits, temperature, teacher_temperature)
    return -(floored(q).exp() * floored(p)).sum(-1)


def skewed_reverse_kl(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    skew: float = 0.1,
    temperature: float = 1.0,
    teacher_temperature: float | None = None,
) -> Tensor:
    """Reverse KL to a teacher mixed with the student: KL(p || skew p + (1 - skew) q), gradient through both p.

    Bounded by -log(skew) where the plain KL is not; skew -> 0 gives `reverse_kl`.
    Args, Raises: as `reverse_kl`, and ValueError for a skew outside (0, 1).
    Source:  DistiLLM, arXiv 2402.03898.
    >>> p, q = torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log()
    >>> skewed_reverse_kl(p, q)                                   # -log 0.1
    tensor(2.3026)
    """
    p, q = _pair("skewed_reverse_kl", student_logits, teacher_logits, temperature, teacher_temperature)
    return _kl(p, _mixture("skewed_reverse_kl", p, q, skew))


def skewed_forward_kl(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    skew: float = 0.1,
    temperature: float = 1.0,
    teacher_temperature: float | None = None,
) -> Tensor:
    """Forward KL to a student mixed with the teacher: KL(q || skew q + (1 - skew) p). Bounded by -log(skew).

    Args, Raises: as `skewed_reverse_kl`.   Source: DistiLLM, arXiv 2402.03898.
    >>> p, q = torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log()
    >>> skewed_forward_kl(p, q)                                   # -log 0.1
    tensor(2.3026)
    """
    p, q = _pair("skewed_forward_kl", student_logits, teacher_logits, temperature, teacher_temperature)
    return _kl(q, _mixture("skewed_forward_kl", q, p, skew))


def reverse_kl_logp(student_logp_V: Tensor, teacher_logp_V: Tensor) -> Tensor:
    """`reverse_kl` of log-probabilities (the temperature is in them).

    >>> reverse_kl_logp(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log())
    tensor(0.1438)
    """
    _check("reverse_kl", student_logp_V, teacher_logp_V)
    return _kl(student_logp_V, teacher_logp_V)


def forward_kl_logp(student_logp_V: Tensor, teacher_logp_V: Tensor) -> Tensor:
    """`forward_kl` of log-probabilities.

    >>> forward_kl_logp(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log())
    tensor(0.1308)
    """
    _check("forward_kl", student_logp_V, teacher_logp_V)
    return _kl(teacher_logp_V, student_logp_V)


def jensen_shannon_logp(student_logp_V: Tensor, teacher_logp_V: Tensor, *, beta: float = 0.5) -> Tensor:
    """`jensen_shannon` of log-probabilities; also exact on buckets that sum to less than 1 (see `support`).

    >>> jensen_shannon_logp(torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log())
    tensor(0.6931)
    """
    _check("jensen_shannon", student_logp_V, teacher_logp_V)
    check_beta("jensen_shannon", beta)
    p, q = floored(student_logp_V), floored(teacher_logp_V)
    m = torch.logaddexp(q + math.log(beta), p + math.log1p(-beta))
    return beta * _kl(q, m) + (1 - beta) * _kl(p, m)


def check_beta(caller: str, beta: float) -> None:
    """Refuse a beta outside (0, 1); warn outside [0.1, 0.9], where the divergence fades instead of becoming a KL."""
    if not 0 < beta < 1:
        raise ValueError(
            f"{caller}: beta must be inside (0, 1), got {beta}. The generalised JSD vanishes at both ends: "
            "use the forward KL in place of beta 0 and the reverse KL in place of beta 1"
        )
    if not 0.1 - 1e-9 <= beta <= 0.9 + 1e-9:  # 1 - 0.9 is 0.09999999999999998
        warnings.warn(
            f"{caller}: beta {beta} is outside [0.1, 0.9]; the value and its gradient shrink like min(beta, 1 - beta)",
            stacklevel=3,
        )


def _kl(logp_V: Tensor, other_logp_V: Tensor) -> Tensor:
    p, q = floored(logp_V), floored(other_logp_V)
    return (p.exp() * (p - q)).sum(-1)


def _check(caller: str, student: Tensor, teacher: Tensor) -> None:
    require_same_shape(caller, student=student, teacher=teacher)
    require_no_gradient(caller, teacher=teacher)


def _pair(
    caller: str, student_logits: Tensor, teacher_logits: Tensor, temperature: float, teacher_temperature: float | None
) -> tuple[Tensor, Tensor]:
    _check(caller, student_logits, teacher_logits)
    other = temperature if teacher_temperature is None else teacher_temperature
    return log_probs(student_logits, temperature=temperature), log_probs(teacher_logits, temperature=other)


def _squared(divergence: Tensor, temperature: float, temperature_squared: bool) -> Tensor:
    return divergence * temperature**2 if temperature_squared else divergence


def _mixture(caller: str, logp_V: Tensor, other_logp_V: Tensor, share: float) -> Tensor:
    """log(share * first + (1 - share) * second)."""
    if not 0 < share < 1:
        raise ValueError(f"{caller}: skew must be inside (0, 1), got {share}")
    return torch.logaddexp(floored(logp_V) + math.log(share), floored(other_logp_V) + math.log1p(-share))
