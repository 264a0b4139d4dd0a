"""The distill signal's term, put together from pure functions of `signals/` as the recipe asks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from codriver.learn.objective import Correction, Term, Tokens, no_correction
from codriver.models.logprob_head import Value
from codriver.signals import divergence as full
from codriver.signals import support
from codriver.signals.reference import kl_estimate
from codriver.signals.reweight import entropy_aware_loss, prefix_weight
from codriver.signals.sampled import (
    bounded_clip,
    bounded_floor,
    bounded_log,
    bounded_power,
    discounted,
    log_ratio_advantage,
    state_baseline_advantage,
)
from codriver.signals.trust_region import acceptance, clip_outliers, mask_outliers, outlier_forward_kl, trusted


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillSettings:
    """As `signals.distill` of the recipe, which documents each."""

    form: Literal["sampled", "full", "top_k"] = "sampled"
    divergence: str = "reverse"
    gradient: Literal["policy", "direct"] = "policy"
    estimator: str = "k1"
    jsd_beta: float = 0.5
    skew: float = 0.1
    temperature: float = 1.0
    """Factor temperature squared of form full; 1.0: none."""
    top_k: int = 64
    support: str = "teacher"
    with_sampled: bool = False
    remainder: str = "tail"
    bound: str = "none"
    bound_power: float = 0.5
    bound_floor: float = 0.1
    clip: float | None = None
    discount: float = 0.0
    length_normalised: bool = False
    baseline: str = "none"
    outlier: str = "none"
    trust: str = "expected"
    outlier_bound: float = 2.0
    prefix_strength: float = 0.0
    entropy_threshold: float | None = None


def distill_term(settings: DistillSettings, *, correction: Correction = no_correction) -> Term:
    """The loss per token of one form of distillation."""
    s = settings
    if s.form == "full":
        value = full_divergence(s)
        return lambda tokens: s.temperature**2 * tokens.over_distributions(value)
    if s.form == "top_k":
        value = list_divergence(s)
        return lambda tokens: tokens.over_distributions(value)
    if s.gradient == "direct":
        return lambda tokens: kl_estimate(tokens.logp, tokens.teacher_logp, kind=s.estimator)
    return partial(_sampled_loss, s, correction)


def _sampled_loss(s: DistillSettings, correction: Correction, tokens: Tokens) -> Tensor:
    """Policy gradient with the log-ratio to the live student as advantage: a stale rollout is judged as of now."""
    advantage = _sampled_advantage(s, tokens)
    ratio = (tokens.logp - tokens.prox_logp).clamp(-20, 20).exp()  # carries the gradient of log pi_theta
    loss = -correction(tokens) * advantage * ratio
    if s.outlier == "forward_kl":
        wide = tokens.over_distributions(_top_k_forward(s))
        loss = outlier_forward_kl(loss, wide, _trust(s, tokens))
    if s.entropy_threshold is not None:
        wide = tokens.over_distributions(_top_k_forward(s))
        loss = entropy_aware_loss(loss, wide, tokens.teacher_entropy, threshold=s.entropy_threshold)
    return loss


def _sampled_advantage(s: DistillSettings, tokens: Tokens) -> Tensor:
    if s.bound == "power":
        advantage = bounded_power(tokens.teacher_logp, tokens.logp.detach(), power=s.bound_power)
    elif s.baseline == "state":
        with torch.no_grad():
            state_kl = tokens.over_distributions(_reverse)
        advantage = state_baseline_advantage(tokens.teacher_logp, tokens.logp, state_kl)
    else:
        advantage = log_ratio_advantage(tokens.teacher_logp, tokens.logp)
    if s.bound == "log":
        advantage = bounded_log(advantage)
    elif s.bound == "floor":
        advantage = bounded_floor(advantage, mixing=s.bound_floor)
    if s.clip is not None:
        advantage = bounded_clip(advantage, bound=s.clip)
    if s.outlier == "mask":
        advantage = mask_outliers(advantage, _trust(s, tokens))
    elif s.outlier == "clip":
        advantage = clip_outliers(advantage, _trust(s, tokens), bound=s.outlier_bound)
    if s.discount > 0 or s.prefix_strength > 0:
        advantage_ET, mask = tokens.by_episode(advantage)
        weight_ET = prefix_weight(advantage_ET, mask, strength=s.prefix_strength) if s.prefix_strength else None
        if s.discount > 0:
            advantage_ET = discounted(advantage_ET, mask, discount=s.discount, length_normalised=s.length_normalised)
        advantage = (advantage_ET if weight_ET is None else advantage_ET * weight_ET)[mask]
    return advantage


def _trust(s: DistillSettings, tokens: Tokens) -> Tensor:
    chance = acceptance(tokens.logp, tokens.teacher_logp)
    return trusted(chance, tokens.uniform) if s.trust == "stochastic" else chance


def _reverse(student_logp: Tensor, teacher_logp: Tensor, ids: Tensor) -> Tensor:
    return full.reverse_kl_logp(student_logp, teacher_logp)


def full_divergence(s: DistillSettings) -> Value:
    """A divergence over the whole vocabulary. Log-probs are logits with normaliser 0: `signals` takes them as is."""
    pairs: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "reverse": full.reverse_kl_logp,
        "forward": full.forward_kl_logp,
        "jensen_shannon": partial(full.jensen_shannon_logp, beta=s.jsd_beta),
        "skewed_reverse": partial(full.skewed_reverse_kl, skew=s.skew),
        "skewed_forward": partial(full.skewed_forward_kl, skew=s.skew),
        "cross_entropy": full.cross_entropy,
    }
    pair = pairs[s.divergence]
    return lambda student_logp, teacher_logp, ids: pair(student_logp, teacher_logp)


def list_divergence(s: DistillSettings) -> Value:
    """A divergence on a list of tokens per position."""
    pairs: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "reverse": partial(support.support_reverse_kl, remainder=s.remainder),
        "forward": partial(support.support_forward_kl, remainder=s.remainder),
        "jensen_shannon": partial(support.support_jensen_shannon, beta=s.jsd_beta, remainder=s.remainder),
    }
    pair = pairs[s.divergence]

    def value(student_logp: Tensor, teacher_logp: Tensor, ids: Tensor) -> Tensor:
        chosen = _list_of(s, student_logp, teacher_logp, ids)
        return pair(support.gather_logp(student_logp, chosen), support.gather_logp(teacher_logp, chosen))

    return value


def _list_of(s: DistillSettings, student_logp: Tensor, teacher_logp: Tensor, ids: Tensor) -> Tensor:
    if s.support == "student":
        chosen = support.top_k_ids(student_logp, s.top_k)
    else:
        chosen = support.top_k_ids(teacher_logp, s.top_k)
        if s.support == "union":
            chosen = support.union_ids(chosen, support.top_k_ids(student_logp, s.top_k))
    return support.with_sampled_ids(chosen, ids) if s.with_sampled else chosen


def _top_k_forward(s: DistillSettings) -> Value:
    def value(student_logp: Tensor, teacher_logp: Tensor, ids: Tensor) -> Tensor:
        chosen = support.top_k_ids(teacher_logp, min(s.top_k, teacher_logp.shape[-1]))
        return support.support_forward_kl(
            support.gather_logp(student_logp, chosen), support.gather_logp(teacher_logp, chosen)
        )

    return value
