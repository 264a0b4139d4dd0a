"""What the teacher says about the one token that the student sampled, as a policy-gradient advantage.

Shape suffixes:  leading shape free; the last axis of `discounted` and its kin is time within ONE episode.
Alignment:       element t concerns token t, given the tokens before it.  Unit: nats, unless said otherwise.
Gradient:        nothing here carries gradient. The gradient comes from log pi(y_t) in `surrogate`; back-propagating a
                 sampled log-ratio itself has expected gradient 0 (see `legality`).
"""

import math

import torch
from torch import Tensor

from codriver.signals._inputs import floored, precise, require_no_gradient, require_same_shape


def log_ratio_advantage(teacher_logp: Tensor, student_logp: Tensor, *, clip: float | None = None) -> Tensor:
    """The sampled-token signal of on-policy distillation.

        A_t = log pi_T(y_t) - log pi_theta(y_t),    clamped to [-clip, clip] when a clip is given

    Its expectation over y_t ~ pi_theta is -KL(student || teacher); used as an advantage at discount 0 it gives the
    exact gradient of that reverse KL at every visited state. Positive: the teacher likes the token more.
    Args:    teacher_logp: of the sampled tokens; must not carry gradient.
             student_logp: of the same tokens; detached here.
    Returns: A in nats, detached, same shape. A ruled-out token (-inf) counts as -100 nats.
    Raises:  ValueError: shapes differ, the teacher carries gradient, clip <= 0.
    Source:  On-Policy Distillation (Thinking Machines, 2025); MiniLLM, arXiv 2306.08543, section 2.2.
    >>> log_ratio_advantage(torch.tensor([0.5, 0.1]).log(), torch.tensor([0.25, 0.4]).log())    # log 2, -log 4
    tensor([ 0.6931, -1.3863])
    """
    _check_pair("log_ratio_advantage", teacher_logp, student_logp)
    advantage = floored(teacher_logp) - floored(student_logp.detach())
    return advantage if clip is None else bounded_clip(advantage, bound=clip)


def state_baseline_advantage(teacher_logp: Tensor, student_logp: Tensor, state_kl: Tensor) -> Tensor:
    """The sampled log-ratio with the state's own KL as baseline (vOPD).

        A_t = log pi_T(y_t) - log pi_theta(y_t) + KL(pi_theta || pi_T)_t,       E[A_t] = 0 under y_t ~ pi_theta

    A baseline that does not depend on the token leaves the expected gradient unchanged. It lowers the variance in most
    states, not in all.
    Args:    state_kl: reverse KL of the whole state (full, or on a support), nats, >= 0; detached here.
    Returns: A in nats, detached.
    Raises:  ValueError: shapes differ, or the teacher carries gradient.
    Source:  vOPD, arXiv 2605.07865.
    >>> state_baseline_advantage(torch.tensor([0.5]).log(), torch.tensor([0.25]).log(), torch.tensor([0.3069]))
    tensor([1.0000])
    """
    require_same_shape("state_baseline_advantage", teacher_logp=teacher_logp, state_kl=state_kl)
    return log_ratio_advantage(teacher_logp, student_logp) + precise(state_kl.detach())


def extrapolated_advantage(
    teacher_logp: Tensor, student_logp: Tensor, reference_logp: Tensor, *, strength: float
) -> Tensor:
    """The log-ratio to a target beyond the teacher, seen from a reference (G-OPD, ExOPD).

        A_t = strength (log pi_T - log pi_ref) - (log pi_theta - log pi_ref)

    Strength 1 is the plain log-ratio; the optimum is pi_T^strength pi_ref^(1 - strength), normalised.
    Returns: A in nats, detached.
    Raises:  ValueError: shapes differ, the teacher or the reference carries gradient, strength <= 0.
    Source:  G-OPD, arXiv 2602.12125.
    >>> p, q, r = (torch.tensor([x]).log() for x in (0.25, 0.5, 0.25))
    >>> extrapolated_advantage(q, p, r, strength=2.0)                              # 2 log 2 - 0
    tensor([1.3863])
    """
    _check_pair("extrapolated_advantage", teacher_logp, student_logp)
    _check_pair("extrapolated_advantage", reference_logp, student_logp)
    if strength <= 0:
        raise ValueError(f"extrapolated_advantage: strength must be > 0, got {strength}")
    anchor = floored(reference_logp)
    return strength * (floored(teacher_logp) - anchor) - (floored(student_logp.detach()) - anchor)


def discounted(advantage: Tensor, mask: Tensor, *, discount: float, length_normalised: bool = False) -> Tensor:
    """Reward-to-go along the sampled tokens of one episode.

        R_t = sum_{s >= t} discount^(s - t) A_s,     over sampled tokens only; divided by sum_{s >= t} discount^(s - t)
                                                     when length-normalised

    Discount 0 is the identity on sampled tokens, 1 (not normalised) gives the gradient of the sequence reverse KL.
    Tokens outside the mask (prompt, tool output, padding) add nothing, get 0, and do not age the discount: a tool reply
    of any length between two sampled tokens counts as one step.
    Args:    advantage: [..., T].   mask: [..., T], true where the student sampled the token.
    Returns: [..., T], detached, in the unit of the advantage.
    Raises:  ValueError: shapes differ, or the discount is outside [0, 1].
    Source:  MiniLLM, arXiv 2306.08543, section 2.2 (length normalisation).
    >>> A, mask = torch.tensor([1.0, 9.0, 2.0, 4.0]), torch.tensor([1, 0, 1, 1])
    >>> discounted(A, mask, discount=0.5)                                          # 1 + 2/2 + 4/4, -, 2 + 4/2, 4
    tensor([3., 0., 4., 4.])
    >>> discounted(A, mask, discount=1.0, length_normalised=True)                  # 7/3, -, 6/2, 4
    tensor([2.3333, 0.0000, 3.0000, 4.0000])
    """
    mask = _check_discounted("discounted", advantage, mask, discount)
    total = _reward_to_go(precise(advantage.detach()), mask, discount)
    if length_normalised:
        total = total / _reward_to_go(torch.ones_like(total), mask, discount).clamp(min=1.0)
    return total.masked_fill(~mask, 0.0)


def long_part(advantage: Tensor, mask: Tensor, *, discount: float = 1.0, length_normalised: bool = True) -> Tensor:
    """What later tokens say about this one: MiniLLM's long part. Its single-step part is the exact `reverse_kl`.

        R_t = discount * sum_{s > t} discount^(s - t - 1) A_s;  length-normalised: the mean of A_s, so weighted

    `long_part` as advantage (not normalised, discount 1) plus the back-propagated full `reverse_kl` of each state has,
    in expectation, the gradient of the sequence reverse KL, without the sampling noise of the current token.
    Args, Raises: as `discounted`.   Returns: [..., T], detached; 0 at the last sampled token.
    Source:  MiniLLM, arXiv 2306.08543, section 2.2 (single-step decomposition).
    >>> long_part(torch.tensor([1.0, 9.0, 2.0, 4.0]), torch.tensor([1, 0, 1, 1]))  # (2 + 4)/2, -, 4, nothing follows
    tensor([3., 0., 4., 0.])
    """
    mask = _check_discounted("long_part", advantage, mask, discount)
    later = _shifted_left(_reward_to_go(precise(advantage.detach()), mask, discount), 1, 0.0)
    if length_normalised:
        later = later / _shifted_left(_reward_to_go(torch.ones_like(later), mask, discount), 1, 0.0).clamp(min=1.0)
    else:
        later = discount * later
    return later.masked_fill(~mask, 0.0)


def mixture_weight(teacher_logp: Tensor, student_logp: Tensor, *, teacher_share: float) -> Tensor:
    """Importance weight of a token that was sampled from a mixture of teacher and student (MiniLLM).

        w_t = pi_theta / (share pi_T + (1 - share) pi_theta)

    Of the current token only, so exact for one step and biased over several. Share 0 gives 1.
    Returns: w in [0, 1 / (1 - share)], detached.
    Raises:  ValueError: shapes differ, the teacher carries gradient, share outside [0, 1).
    Source:  MiniLLM, arXiv 2306.08543, section 2.2 (share 0.2).
    >>> mixture_weight(torch.tensor([0.6]).log(), torch.tensor([0.1]).log(), teacher_share=0.2)    # .1 / (.12 + .08)
    tensor([0.5000])
    """
    _check_pair("mixture_weight", teacher_logp, student_logp)
    if not 0 <= teacher_share < 1:
        raise ValueError(f"mixture_weight: teacher_share must be in [0, 1), got {teacher_share}")
    ahead = (floored(teacher_logp) - floored(student_logp.detach())).clamp(max=80.0)  # e^80 still fits float32
    return 1.0 / (teacher_share * ahead.exp() + (1.0 - teacher_share))


def bounded_clip(advantage: Tensor, *, bound: float) -> Tensor:
    """A clamped to [-bound, bound].  Raises ValueError for bound <= 0. Detached.

    >>> bounded_clip(torch.tensor([-9.0, 2.0]), bound=5.0)
    tensor([-5.,  2.])
    """
    if not bound > 0:
        raise ValueError(f"bounded_clip: the bound must be > 0, got {bound}")
    return precise(advantage.detach()).clamp(-bound, bound)


def bounded_log(advantage: Tensor) -> Tensor:
    """sign(A) log(1 + |A|): keeps order and sign, is A near 0, grows slowly. Detached.  Source: arXiv 2607.13399.

    >>> bounded_log(torch.tensor([-(torch.e - 1), 0.0]))
    tensor([-1.,  0.])
    """
    advantage = precise(advantage.detach())
    return advantage.sign() * advantage.abs().log1p()


def bounded_power(teacher_logp: Tensor, student_logp: Tensor, *, power: float) -> Tensor:
    """A difference of powers of probabilities instead of a log-ratio: bounded for every token (PowerOPD).

        A_t = pi_T^power - pi_theta^power  in [-1, 1],      A_t / power -> log pi_T - log pi_theta  for power -> 0

    Returns: A without unit, detached.   Raises: ValueError: shapes differ, the teacher carries gradient, power <= 0.
    Source:  PowerOPD, arXiv 2606.17199.
    >>> bounded_power(torch.tensor([0.25]).log(), torch.tensor([0.0]).log(), power=0.5)
    tensor([0.5000])
    """
    _check_pair("bounded_power", teacher_logp, student_logp)
    if not power > 0:
        raise ValueError(f"bounded_power: the power must be > 0, got {power}")
    return (power * floored(teacher_logp)).exp() - (power * floored(student_logp.detach())).exp()


def bounded_floor(advantage: Tensor, *, mixing: float) -> Tensor:
    """The log-ratio bounded from below only: max(A, log(mixing / (1 - mixing))).

    Mixing 0.17 gives a floor of -1.59 nats: a token the teacher rules out pushes no harder than that.
    Returns: nats, detached.   Raises: ValueError: mixing outside (0, 1).   Source: REOPOLD, arXiv 2603.11137.
    >>> bounded_floor(torch.tensor([-30.0, 3.0]), mixing=0.2)                      # log(0.2 / 0.8) = -log 4
    tensor([-1.3863,  3.0000])
    """
    if not 0 < mixing < 1:
        raise ValueError(f"bounded_floor: mixing must be in (0, 1), got {mixing}")
    return precise(advantage.detach()).clamp(min=math.log(mixing / (1.0 - mixing)))


def _reward_to_go(x: Tensor, mask: Tensor, discount: float) -> Tensor:
    # R_t = x_t + g_t R_{t+1} by doubling: log2(T) tensor steps in place of T; a token outside the mask passes R on.
    total = x.masked_fill(~mask, 0.0)
    factor = torch.full_like(total, discount).masked_fill(~mask, 1.0)
    step = 1
    while step < x.shape[-1]:
        total = total + factor * _shifted_left(total, step, 0.0)
        factor = factor * _shifted_left(factor, step, 1.0)
        step *= 2
    return total


def _shifted_left(x: Tensor, step: int, fill: float) -> Tensor:
    return torch.cat([x[..., step:], torch.full_like(x[..., :step], fill)], dim=-1)


def _check_pair(caller: str, teacher_logp: Tensor, student_logp: Tensor) -> None:
    require_same_shape(caller, teacher_logp=teacher_logp, student_logp=student_logp)
    require_no_gradient(caller, teacher_logp=teacher_logp)


def _check_discounted(caller: str, advantage: Tensor, mask: Tensor, discount: float) -> Tensor:
    require_same_shape(caller, advantage=advantage, mask=mask)
    if not 0 <= discount <= 1:
        raise ValueError(f"{caller}: the discount must be in [0, 1], got {discount}")
    return mask.bool()
