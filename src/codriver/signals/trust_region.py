"""Where student and teacher are too far apart for a log-ratio to teach, and what is done there instead (TrOPD).

Shape suffixes:  leading shape free; element t concerns token t, given the tokens before it.
Trust:           a number in [0, 1] per sampled token. Stochastic form: `trusted` (0 or 1). Expected form: `acceptance`
                 itself, which has the same mean and no extra variance. Every rule below takes either.
"""

import math

import torch
from torch import Tensor

from codriver.signals._inputs import floored, precise, require_no_gradient, require_same_shape


def acceptance(student_logp: Tensor, teacher_logp: Tensor) -> Tensor:
    """The chance that speculative decoding would accept the student's token.

        min(pi_T(y_t) / pi_theta(y_t), 1),      E over y_t ~ pi_theta = sum_v min(p, q) = 1 - TV(p, q)

    Note the order of the arguments: student first. Its product with a positive log p/q is at most 1/e.
    Returns: [...] in [0, 1], detached.
    Raises:  ValueError: shapes differ, or the teacher carries gradient.
    Source:  TrOPD, arXiv 2606.01249.
    >>> acceptance(torch.tensor([0.8, 0.1]).log(), torch.tensor([0.2, 0.3]).log())
    tensor([0.2500, 1.0000])
    """
    require_same_shape("acceptance", student_logp=student_logp, teacher_logp=teacher_logp)
    require_no_gradient("acceptance", teacher_logp=teacher_logp)
    return (floored(teacher_logp) - floored(student_logp.detach())).clamp(max=0.0).exp()


def trusted(acceptance: Tensor, uniform: Tensor) -> Tensor:
    """The stochastic form: 1.0 with probability `acceptance`, else 0.0.

    Args:    uniform: draws from [0, 1), same shape; drawn by the caller, so that the outcome need not depend on how the
             batch is cut over ranks.
    Raises:  ValueError: shapes differ.
    >>> trusted(torch.tensor([0.25, 1.0, 0.0]), torch.tensor([0.3, 0.99, 0.0]))
    tensor([0., 1., 0.])
    """
    require_same_shape("trusted", acceptance=acceptance, uniform=uniform)
    return (uniform < acceptance).to(acceptance.dtype)


def mask_outliers(advantage: Tensor, trust: Tensor) -> Tensor:
    """trust * A: an outlier teaches nothing. A student far from the teacher may starve under this rule. Detached.

    >>> mask_outliers(torch.tensor([-9.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor([-0., 1.])
    """
    require_same_shape("mask_outliers", advantage=advantage, trust=trust)
    return precise(trust.detach()) * precise(advantage.detach())


def clip_outliers(advantage: Tensor, trust: Tensor, *, bound: float) -> Tensor:
    """trust * A + (1 - trust) * clip(A, -bound, bound): an outlier keeps its sign and loses its size. Detached.

    >>> clip_outliers(torch.tensor([-9.0, 3.0]), torch.tensor([0.0, 1.0]), bound=2.0)
    tensor([-2.,  3.])
    """
    require_same_shape("clip_outliers", advantage=advantage, trust=trust)
    if not bound > 0:
        raise ValueError(f"clip_outliers: the bound must be > 0, got {bound}")
    advantage = precise(advantage.detach())
    return trust.detach() * advantage + (1 - trust.detach()) * advantage.clamp(-bound, bound)


def outlier_forward_kl(policy_loss: Tensor, outlier_loss: Tensor, trust: Tensor) -> Tensor:
    """TrOPD: trusted tokens learn from the sampled log-ratio, outliers from the teacher's top-K in full.

        L_t = trust * policy_loss_t + (1 - trust) * outlier_loss_t

    Args:    policy_loss: `surrogate.clipped` (or cispo) of the log-ratio advantage; carries gradient.
             outlier_loss: on the teacher's top-K, back-propagated; carries gradient. The paper's is
             `support.support_cross_entropy` up to a constant; `support_forward_kl` is the other choice.
             trust: `trusted` or `acceptance`; detached here.
    Returns: L_t; minimise it.
    Raises:  ValueError: shapes differ.
    Source:  TrOPD, arXiv 2606.01249 (K 64).
    >>> outlier_forward_kl(torch.tensor([1.0, 1.0]), torch.tensor([3.0, 3.0]), torch.tensor([1.0, 0.25]))
    tensor([1.0000, 2.5000])
    """
    require_same_shape("outlier_forward_kl", policy_loss=policy_loss, outlier_loss=outlier_loss, trust=trust)
    trust = trust.detach()
    # where, not only a product: 0 * inf is NaN, and a trusted token must not inherit that.
    return torch.where(trust > 0, trust * policy_loss, 0.0) + torch.where(trust < 1, (1 - trust) * outlier_loss, 0.0)


def prefix_cap(step: int, *, num_steps: int, max_length: int) -> int:
    """How many teacher tokens may start a completion: max_length at step 0, along a cosine, 0 at the last step.

        floor(max_length * (1 + cos(pi * step / (num_steps - 1))) / 2)

    Raises:  ValueError: num_steps < 1, or step outside 0..num_steps - 1.
    >>> [prefix_cap(step, num_steps=5, max_length=100) for step in range(5)]
    [100, 85, 50, 14, 0]
    """
    if not 0 <= step < num_steps:
        raise ValueError(f"prefix_cap: expected 0 <= step < num_steps, got step {step} of {num_steps}")
    if step == num_steps - 1:
        return 0
    share = (1.0 + math.cos(math.pi * step / (num_steps - 1))) / 2.0
    return math.floor(max_length * share + 1e-9)  # cos(pi / 2) is not exactly 0
