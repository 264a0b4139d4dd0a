"""What each signal contributes per token: objective = sum over signals and tokens of weight x term, minimised.

A term is a loss per token as a function of the live student; its weight is decided in `allocation`. A new signal is
one function in `signals/`, one line in a term here or in `distill_terms`, one key of the recipe and a test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from codriver.models.logprob_head import Value
from codriver.signals.reference import kl_estimate
from codriver.signals.reweight import distilled_rl_advantage, verifier_signed_advantage
from codriver.signals.surrogate import cispo, clipped, clipped_ratio, importance_weight, sequence_ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """The trainable tokens of a micro-batch, one row each, N of them. What a signal did not provide is 0."""

    logp: Tensor
    """log pi_theta; the only one that carries gradient."""
    prox_logp: Tensor
    """log pi_prox: the student before the first optimizer step on this batch. For that step it equals `logp` in value,
    which is why no second forward pass is made for it."""
    behaviour_logp: Tensor
    """log mu, untruncated, of the weights that sampled the token."""
    outcome_advantage: Tensor
    judged: Tensor
    """bool: a teacher scored the token. A log-prob of 0 is no sign of its absence: a sure teacher says 0 too."""
    teacher_logp: Tensor
    teacher_entropy: Tensor
    reference_logp: Tensor
    episode: Tensor
    """int64: number of the token's episode in the micro-batch; tokens of one episode are neighbours, in order."""
    uniform: Tensor
    """In [0, 1): one draw per token, a function of the episode's id and the position, however the batch is cut."""
    over_distributions: Callable[[Value], Tensor]
    """[N] a divergence of student's and teacher's whole distributions at each token; 0 where no teacher judged it."""

    def by_episode(self, x_N: Tensor) -> tuple[Tensor, Tensor]:
        """([E, T], mask): one row per episode, for functions that look along it."""
        counts = torch.bincount(self.episode)
        mask = torch.arange(int(counts.max()), device=x_N.device) < counts[:, None]
        return x_N.new_zeros(mask.shape).masked_scatter(mask, x_N), mask


Term = Callable[[Tokens], Tensor]
"""[N] loss per token, in nats or reward units; not masked, not averaged."""
Correction = Callable[[Tokens], Tensor]
"""[N] a detached factor on every policy-gradient term."""


def no_correction(tokens: Tokens) -> Tensor:
    return torch.ones_like(tokens.prox_logp)


def importance_correction(*, mode: str, low: float, high: float) -> Correction:
    """pi_prox / mu, bounded: for tokens that older weights or a truncated distribution have sampled."""

    def factor(tokens: Tokens) -> Tensor:
        return importance_weight(
            tokens.prox_logp, tokens.behaviour_logp, mode=mode, low=low, high=high, episode=tokens.episode
        )

    return factor


def outcome_term(
    *,
    clip_low: float,
    clip_high: float,
    loss: Literal["clipped", "cispo"] = "clipped",
    ratio: Literal["token", "sequence"] = "token",
    dual_clip: float | None = None,
    reweight: Literal["none", "distilled_rl", "rlsd"] = "none",
    correction: Correction = no_correction,
) -> Term:
    """Policy gradient of the group advantage: GRPO, GSPO (ratio sequence), CISPO; spread by a teacher if reweighted."""

    def term(tokens: Tokens) -> Tensor:
        advantage = _reweighted(tokens, reweight)
        if loss == "cispo":
            value = cispo(tokens.logp, tokens.prox_logp, advantage, high=1 + clip_high)
        elif ratio == "sequence":
            everywhere = torch.ones_like(tokens.logp, dtype=torch.bool)
            whole = sequence_ratio(tokens.logp, tokens.prox_logp, everywhere, episode=tokens.episode)
            value = clipped_ratio(whole, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
        else:
            bounds = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip}
            value = clipped(tokens.logp, tokens.prox_logp, advantage, **bounds)  # type: ignore[arg-type]
        return correction(tokens) * value

    return term


Clipping = Callable[[Tokens], tuple[Tensor, Tensor]]
"""[N] bool, twice: tokens whose ratio a bound stops, the low one and the high one; there the term has no gradient (or,
for CISPO, a bounded weight)."""


def outcome_clipping(
    *,
    clip_low: float,
    clip_high: float,
    loss: Literal["clipped", "cispo"] = "clipped",
    ratio: Literal["token", "sequence"] = "token",
) -> Clipping:
    """Which tokens the bounds of `outcome_term`, with the same settings, stop."""

    @torch.no_grad()
    def stopped(tokens: Tokens) -> tuple[Tensor, Tensor]:
        everywhere = torch.ones_like(tokens.logp, dtype=torch.bool)
        value = (tokens.logp - tokens.prox_logp).exp()
        if ratio == "sequence":
            value = sequence_ratio(tokens.logp, tokens.prox_logp, everywhere, episode=tokens.episode)
        low, high = value < 1 - clip_low, value > 1 + clip_high
        if loss == "cispo":
            return ~everywhere, high
        return low & (tokens.outcome_advantage < 0), high & (tokens.outcome_advantage > 0)

    return stopped


def _reweighted(tokens: Tokens, how: str) -> Tensor:
    advantage = tokens.outcome_advantage
    teacher_logp = torch.where(tokens.judged, tokens.teacher_logp, tokens.prox_logp)
    if how == "rlsd":
        return verifier_signed_advantage(advantage, teacher_logp, tokens.prox_logp)
    if how == "distilled_rl":
        (advantage_ET, mask), (teacher_ET, _), (prox_ET, _) = map(
            tokens.by_episode, (advantage, teacher_logp, tokens.prox_logp)
        )
        return distilled_rl_advantage(advantage_ET, teacher_ET, prox_ET, mask)[mask]
    return advantage


def reference_term(*, estimator: str) -> Term:
    """An estimate of the KL to the reference, back-propagated: k2 has the gradient of KL(student || reference)."""

    def term(tokens: Tokens) -> Tensor:
        return kl_estimate(tokens.logp, tokens.reference_logp, kind=estimator)

    return term


def supervised_term() -> Term:
    """Negative log-likelihood."""

    def term(tokens: Tokens) -> Tensor:
        return -tokens.logp

    return term


def weighted_losses(tokens: Tokens, terms: Mapping[str, Term], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each signal's sum of weight x term over the micro-batch.

    Raises:
        ValueError: a signal was weighed but has no term, or the other way round.
    """
    if terms.keys() != weights.keys():
        names = f"terms {sorted(terms)} and weights {sorted(weights)}"
        raise ValueError(f"weighted_losses: {names} must be the same signals")
    return {signal: (weights[signal] * term(tokens)).sum() for signal, term in terms.items()}
