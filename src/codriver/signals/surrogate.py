"""From a fixed advantage to a per-token loss, and the weights that correct for who sampled the token.

Three policies are kept apart: theta (live; carries gradient), prox (the student when the optimizer step began) and
behaviour (the weights, and the engine, that sampled). The ratio is theta / prox, the importance weight
prox / behaviour: each gap is corrected once. Never use an importance weight together with a
ratio against the behaviour policy.
Shape suffixes:  leading shape free; the last axis of sequence forms is time within ONE episode, or of several
                 packed ones when `episode` is given.
Returns:         losses to minimise, per token, not masked and not averaged.
"""

import math

import torch
from torch import Tensor

from codriver.signals._inputs import (
    bounded_exp,
    floored,
    precise,
    require_choice,
    require_no_gradient,
    require_same_shape,
)

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask")


def clipped(
    logp: Tensor,
    prox_logp: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's clipped surrogate as a per-token loss, with separate clips and an optional dual clip.

        r = exp(log pi_theta - log pi_prox),    L = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
        dual clip c, where A < 0 only:          L = min(L, -c A)

    At r = 1 the gradient is -A d log pi_theta. No gradient where clipping makes the token's gain as large as allowed.
    Args:    logp: of the sampled tokens, float; carries gradient.   prox_logp, advantage: constants.
    Returns: L in the unit of A; minimise it. Finite for any log-ratio (|log r| beyond 20 counts as 20, gradient 0).
    Raises:  ValueError: shapes differ, a constant carries gradient, a clip < 0 or clip_low > 1, dual_clip <= 1.
    Source:  PPO, arXiv 1707.06347 eq. 7; DAPO (clips 0.2, 0.28), 2503.14476; dual clip, 1912.09729 eq. 5 (c = 3).
    >>> logp = torch.tensor([1.5, 0.5, 1.1]).log(); one = torch.zeros(3); A = torch.tensor([1.0, -1.0, 2.0])
    >>> clipped(logp, one, A)                      # -min(1.5, 1.2), -min(-0.5, -0.8), -min(2.2, 2.4)
    tensor([-1.2000,  0.8000, -2.2000])
    """
    require_same_shape("clipped", logp=logp, prox_logp=prox_logp)
    require_no_gradient("clipped", prox_logp=prox_logp)
    ratio = bounded_exp(floored(logp) - floored(prox_logp))
    return clipped_ratio(ratio, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def clipped_ratio(
    ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """`clipped` on a ratio that is already there: with `sequence_ratio` it is GSPO (clips 3e-4 and 4e-4).

    Args:    ratio: >= 0, carries gradient.   advantage: constant.   Returns, Raises: as `clipped`.
    >>> clipped_ratio(torch.tensor([5.0]), torch.tensor([-1.0]), clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    tensor([3.])
    """
    require_same_shape("clipped", ratio=ratio, advantage=advantage)
    require_no_gradient("clipped", advantage=advantage)
    if not (0 <= clip_low <= 1 and clip_high >= 0):
        raise ValueError(f"clipped: expected 0 <= clip_low <= 1 and clip_high >= 0, got {clip_low} and {clip_high}")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"clipped: dual_clip must be > 1, got {dual_clip}")
    advantage = precise(advantage)
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    if dual_clip is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)


def sequence_ratio(logp: Tensor, prox_logp: Tensor, mask: Tensor, *, episode: Tensor | None = None) -> Tensor:
    """GSPO's ratio of whole sequences, in its per-token form.

        s = exp(mean_t (log pi_theta - log pi_prox)),     returned at t:  sg(s) * pi_theta(y_t) / sg(pi_theta(y_t))

    Every token of an episode has the value s; the gradient at t goes through its own log pi_theta(y_t). Averaged
    over the episode's tokens this is the gradient of s.
    Args:    logp: carries gradient.   prox_logp: constant.   mask: true where the student sampled the token.
             episode: int ids of the same shape when several episodes are packed along the last axis.
    Returns: ratio > 0, finite; tokens outside the mask get 1 and no gradient.
    Raises:  ValueError: shapes differ, or prox_logp carries gradient.
    Source:  GSPO, arXiv 2507.18071, eq. 7 and 14.
    >>> sequence_ratio(torch.tensor([4.0, 1.0, 9.0]).log(), torch.zeros(3), torch.tensor([1, 1, 0]))   # sqrt(4 * 1)
    tensor([2., 2., 1.])
    """
    require_same_shape("sequence_ratio", logp=logp, prox_logp=prox_logp, mask=mask)
    require_no_gradient("sequence_ratio", prox_logp=prox_logp)
    logp, mask = floored(logp), mask.bool()
    log_ratio = _episode_sum(logp.detach() - floored(prox_logp), mask, episode, mean=True)
    return torch.where(mask, bounded_exp(log_ratio) * (logp - logp.detach()).exp(), 1.0)


def cispo(logp: Tensor, prox_logp: Tensor, advantage: Tensor, *, low: float = 0.0, high: float = 5.0) -> Tensor:
    """A policy gradient weighted by a bounded, detached ratio: unlike `clipped`, no token loses its gradient.

        L = -sg(clip(r, low, high)) A log pi_theta(y_t),      r = pi_theta / pi_prox

    `low` and `high` bound the ratio itself (not 1 + epsilon). At r = 1 it is REINFORCE.
    Args:    logp: carries gradient.   prox_logp, advantage: constants.
    Returns: L; minimise it. Only its gradient has a meaning.
    Raises:  ValueError: shapes differ, prox_logp or advantage carries gradient, not 0 <= low <= high.
    Source:  CISPO, arXiv 2506.13585 eq. 4; bound 5 from ScaleRL, 2510.13786.
    >>> cispo(torch.tensor([0.5]).log(), torch.tensor([0.05]).log(), torch.tensor([1.0]))       # r = 10 -> 5 log 2
    tensor([3.4657])
    """
    require_same_shape("cispo", logp=logp, prox_logp=prox_logp, advantage=advantage)
    require_no_gradient("cispo", prox_logp=prox_logp, advantage=advantage)
    _check_bounds("cispo", low, high)
    logp = floored(logp)
    weight = bounded_exp(logp.detach() - floored(prox_logp)).clamp(low, high)
    return -weight * precise(advantage) * logp


def importance_weight(
    prox_logp: Tensor,
    behaviour_logp: Tensor,
    *,
    mode: str = "token_truncate",
    low: float = 0.0,
    high: float = 2.0,
    mask: Tensor | None = None,
    episode: Tensor | None = None,
) -> Tensor:
    """The weight that corrects a token for having been sampled by another policy, or engine, than the proximal one.

        rho_t = pi_prox(y_t) / pi_behaviour(y_t)
        token_truncate     clip(rho_t, low, high)                   TIS; with high = inf unbiased for one token
        token_mask         rho_t where low <= rho_t <= high, else 0            MIS, IcePop
        sequence_truncate  clip(prod_t rho_t, low, high), the same for all tokens; the unbiased one for high = inf
        sequence_mask      prod_t rho_t where within the bounds, else 0
        geometric_mask     1 where low <= (prod_t rho_t)^(1/n) <= high, else 0: rejects, does not reweight

    Args:    mask: true where the student sampled the token (all, if None); only these enter sequence products.
             episode: int ids of the same shape when several episodes are packed along the last axis.
    Returns: weight >= 0, always detached. A weight of 0 does not leave the denominator (that is `allocation`'s).
             Outside `mask`: 1 in token modes if 1 is in bounds, the episode's weight in sequence modes.
    Raises:  ValueError: shapes differ, an unknown mode, not 0 <= low <= high.
    Source:  decoupled PPO, arXiv 2110.00641. Usual bounds: TIS 2; IcePop .5..5; sequence 2..10; geometric .999..1.001.
    >>> prox, behaviour = torch.tensor([0.6, 0.3]).log(), torch.tensor([0.2, 0.3]).log()        # rho = 3, 1
    >>> importance_weight(prox, behaviour, mode="token_truncate", high=2.0)
    tensor([2., 1.])
    >>> importance_weight(prox, behaviour, mode="token_mask", low=0.5, high=2.0)
    tensor([0., 1.])
    """
    require_choice("importance_weight", "mode", mode, MODES)
    _check_bounds("importance_weight", low, high)
    sampled = torch.ones_like(prox_logp, dtype=torch.bool) if mask is None else mask.bool()
    require_same_shape("importance_weight", prox_logp=prox_logp, behaviour_logp=behaviour_logp, mask=sampled)
    log_rho = (floored(prox_logp) - floored(behaviour_logp)).detach().masked_fill(~sampled, 0.0)
    if not mode.startswith("token"):
        log_rho = _episode_sum(log_rho, sampled, episode, mean=mode == "geometric_mask")
    rho = bounded_exp(log_rho)
    if mode.endswith("truncate"):
        return rho.clamp(low, high)
    log_low, log_high = (math.log(bound) if bound > 0 else -math.inf for bound in (low, high))
    inside = (log_rho >= log_low) & (log_rho <= log_high)  # compared as logs: rho itself is bounded by e^20
    return inside.to(rho.dtype) if mode == "geometric_mask" else rho * inside


def _episode_sum(x: Tensor, mask: Tensor, episode: Tensor | None, *, mean: bool) -> Tensor:
    """The sum (or mean) of x over the sampled tokens of each token's episode, at every token."""
    x, counted = x.masked_fill(~mask, 0.0), mask.to(x.dtype)
    if episode is None:
        total, count = x.sum(-1, keepdim=True), counted.sum(-1, keepdim=True)
    else:
        require_same_shape("episode ids", logp=x, episode=episode)
        index = torch.unique(episode, return_inverse=True)[1].flatten()
        zeros = x.new_zeros(int(index.max()) + 1 if index.numel() else 0)
        total = zeros.index_add(0, index, x.flatten())[index].view_as(x)
        count = zeros.index_add(0, index, counted.flatten())[index].view_as(x)
    return (total / count.clamp(min=1.0) if mean else total).expand_as(x)


def _check_bounds(caller: str, low: float, high: float) -> None:
    if not 0 <= low <= high:
        raise ValueError(f"{caller}: expected 0 <= low <= high, got {low} and {high}")
