"""Verifier and teacher in one number: who sets the sign, who sets the size, and what is added on top.

Shape suffixes:  leading shape free; the last axis is time within ONE episode where a mask is asked for.
Alignment:       element t concerns token t, given the tokens before it.
"""

import torch
from torch import Tensor

from codriver.signals._inputs import floored, precise, require_no_gradient, require_same_shape
from codriver.signals.reference import kl_estimate


def distilled_rl_advantage(
    advantage: Tensor, teacher_logp: Tensor, student_logp: Tensor, mask: Tensor, *, bound: float = 3.0
) -> Tensor:
    """Distilled RL: in a successful episode the teacher says which tokens deserve more of the credit.

        rho_t = clip(pi_T / pi_old, 1 / bound, bound),     w_t = rho_t / geomean_t(rho) where A > 0, else 1
        returns w_t A

    The geometric mean of w over the sampled tokens of an episode is 1. Normalised after clipping, so w may leave the
    bounds. Teacher = student, or bound = 1, gives the advantage back unchanged; a group that agrees (A = 0) stays at 0.
    Args:    advantage: [..., T], the outcome's, repeated along the episode.   teacher_logp: constant.
             student_logp: of the same tokens, at sampling or proximal; detached.
             mask: true where the student sampled the token.
    Returns: [..., T], detached, in the unit of the advantage; unchanged outside the mask.
    Raises:  ValueError: shapes differ, the teacher carries gradient, bound < 1.
    Source:  Distilled RL, arXiv 2607.17247 (bound 3).
    >>> A, mask, p = torch.ones(2), torch.tensor([1, 1]), torch.tensor([0.4, 0.4])
    >>> distilled_rl_advantage(A, torch.tensor([0.8, 0.2]).log(), p.log(), mask)   # rho = 2, 1/2
    tensor([2.0000, 0.5000])
    """
    _check("distilled_rl_advantage", advantage, teacher_logp, student_logp)
    require_same_shape("distilled_rl_advantage", advantage=advantage, mask=mask)
    if bound < 1:
        raise ValueError(f"distilled_rl_advantage: the bound must be >= 1, got {bound}")
    limit = torch.tensor(float(bound)).log().item()
    log_rho = (floored(teacher_logp) - floored(student_logp.detach())).clamp(-limit, limit)
    log_rho = log_rho.masked_fill(~mask.bool(), 0.0)
    centre = log_rho.sum(-1, keepdim=True) / mask.bool().sum(-1, keepdim=True).clamp(min=1)
    advantage = precise(advantage.detach())
    return torch.where((advantage > 0) & mask.bool(), advantage * (log_rho - centre).exp(), advantage)


def verifier_signed_advantage(
    advantage: Tensor, teacher_logp: Tensor, student_logp: Tensor, *, clip: float = 0.2
) -> Tensor:
    """RLSD: the verifier sets the sign, the teacher the size.

        returns A clip(exp(sign(A) (log pi_T - log pi_theta)), 1 - clip, 1 + clip)

    A right episode credits the tokens that the teacher likes more; a wrong one blames those that it likes less. The
    sign never changes, so a teacher that saw the answer cannot leak it against the verdict.
    Returns: detached, same shape.
    Raises:  ValueError: shapes differ, the teacher carries gradient, clip outside [0, 1].
    Source:  RLSD, arXiv 2604.03128.
    >>> A = torch.tensor([1.0, -1.0]); q, p = torch.tensor([0.55, 0.55]).log(), torch.tensor([0.5, 0.5]).log()
    >>> verifier_signed_advantage(A, q, p)                                         # 1.1, -1/1.1
    tensor([ 1.1000, -0.9091])
    """
    _check("verifier_signed_advantage", advantage, teacher_logp, student_logp)
    if not 0 <= clip <= 1:
        raise ValueError(f"verifier_signed_advantage: clip must be in [0, 1], got {clip}")
    advantage = precise(advantage.detach())
    gap = floored(teacher_logp) - floored(student_logp.detach())
    return advantage * (advantage.sign() * gap).clamp(max=1.0).exp().clamp(1 - clip, 1 + clip)


def kdrl_loss(policy_loss: Tensor, logp: Tensor, teacher_logp: Tensor, *, coefficient: float) -> Tensor:
    """KDRL: the RL loss plus a back-propagated k2 to the teacher, whose gradient is that of the reverse KL.

        L_t = policy_loss_t + coefficient * (log pi_theta - log pi_T)^2 / 2

    Not k1 (no gradient in expectation) and not k3 (that of the forward KL).
    Args:    logp: carries gradient.   teacher_logp: constant.   Raises: as `reference.kl_estimate`, coefficient < 0.
    Source:  KDRL, arXiv 2506.02208 (coefficient 2e-3, or `annealed_coefficient`).
    >>> kdrl_loss(torch.tensor([1.0]), torch.tensor([-1.0]), torch.tensor([-3.0]), coefficient=0.5)    # 1 + .5 * 4 / 2
    tensor([2.])
    """
    require_same_shape("kdrl_loss", policy_loss=policy_loss, logp=logp)
    if coefficient < 0:
        raise ValueError(f"kdrl_loss: the coefficient must be >= 0, got {coefficient}")
    return policy_loss + coefficient * kl_estimate(logp, teacher_logp, kind="k2")


def annealed_coefficient(step: int, *, start: float = 5e-3, end: float = 1e-3, decrement: float = 5e-5) -> float:
    """KDRL's schedule: max(end, start - decrement * step).  Raises ValueError for step < 0 or end > start.

    >>> [round(annealed_coefficient(step), 6) for step in (0, 40, 80, 500)]
    [0.005, 0.003, 0.001, 0.001]
    """
    if step < 0 or end > start:
        raise ValueError(f"annealed_coefficient: expected step >= 0 and end <= start, got {step}, {start}, {end}")
    return max(end, start - decrement * step)


def prefix_weight(advantage: Tensor, mask: Tensor, *, strength: float = 0.5) -> Tensor:
    """IW-OPD: tokens that come after much disagreement count less; the first sampled token counts 1 + strength.

        w_t = 1 + strength (1 - sum_{s < t} |A_s| / sum_s |A_s|)      over the sampled tokens of the episode

    Returns: [..., T] in [1, 1 + strength], detached; 1 outside the mask, 1 + strength when every A is 0.
    Raises:  ValueError: shapes differ, strength < 0.
    Source:  IW-OPD, arXiv 2606.22600, Algorithm 1 (0.5). Our reading: the prefix excludes token t itself.
    >>> prefix_weight(torch.tensor([-1.0, 5.0, 3.0]), torch.tensor([1, 0, 1]))     # nothing before; 1 of 4 before
    tensor([1.5000, 1.0000, 1.3750])
    """
    require_same_shape("prefix_weight", advantage=advantage, mask=mask)
    if strength < 0:
        raise ValueError(f"prefix_weight: the strength must be >= 0, got {strength}")
    size = precise(advantage.detach()).abs().masked_fill(~mask.bool(), 0.0)
    total = size.sum(-1, keepdim=True)
    share = (size.cumsum(-1) - size) / total.clamp(min=torch.finfo(size.dtype).tiny)
    return (1.0 + strength * (1.0 - share.clamp(0.0, 1.0))).masked_fill(~mask.bool(), 1.0)


def entropy_aware_loss(
    policy_loss: Tensor,
    forward_kl: Tensor,
    teacher_entropy: Tensor,
    *,
    threshold: float = 0.8,
    coefficient: float = 1.0,
) -> Tensor:
    """EOPD: where the teacher is unsure, ADD a forward KL, so that the student keeps its alternatives.

        L_t = policy_loss_t + coefficient * 1[H(pi_T)_t > threshold] * forward_kl_t

    Args:    policy_loss, forward_kl (a top-16 one of `support`): carry gradient.   teacher_entropy: nats, constant.
    Returns: L_t; minimise it. The policy term stays everywhere: it is an addition, not a switch.
    Raises:  ValueError: shapes differ, the entropy carries gradient, coefficient < 0.
    Source:  EOPD, arXiv 2603.07079 (threshold 0.8 nats, coefficient 1).
    >>> entropy_aware_loss(torch.ones(2), torch.full((2,), 3.0), torch.tensor([0.5, 1.0]))
    tensor([1., 4.])
    """
    shapes = {"policy_loss": policy_loss, "forward_kl": forward_kl, "teacher_entropy": teacher_entropy}
    require_same_shape("entropy_aware_loss", **shapes)
    require_no_gradient("entropy_aware_loss", teacher_entropy=teacher_entropy)
    if coefficient < 0:
        raise ValueError(f"entropy_aware_loss: the coefficient must be >= 0, got {coefficient}")
    return policy_loss + coefficient * torch.where(teacher_entropy > threshold, forward_kl, 0.0)


def _check(caller: str, advantage: Tensor, teacher_logp: Tensor, student_logp: Tensor) -> None:
    require_same_shape(caller, advantage=advantage, teacher_logp=teacher_logp, student_logp=student_logp)
    require_no_gradient(caller, teacher_logp=teacher_logp)
