"""What each signal contributes per token: objective = sum over signals and tokens of weight x term, minimised.

A term is a loss per token as a function of the live student; its weight is decided in `allocation`. A new signal is
one function here, one in `signals/`, one section of the recipe and a test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from codriver.signals.reference import kl_estimate
from codriver.signals.sampled import log_ratio_advantage
from codriver.signals.surrogate import clipped


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """The trainable tokens of a micro-batch, one row each, N of them. What a signal did not provide is 0."""

    logp: Tensor
    """log pi_theta; the only one that carries gradient."""
    prox_logp: Tensor
    """log pi_prox: the student at the start of this optimizer step. Equal to `logp` in value when a batch gets one
    step, which is why no second forward pass is made for it."""
    behaviour_logp: Tensor
    """log mu, untruncated, of the weights that sampled the token."""
    outcome_advantage: Tensor
    teacher_logp: Tensor
    reference_logp: Tensor


Term = Callable[[Tokens], Tensor]
"""[N] loss per token, in nats or reward units; not masked, not averaged."""


def outcome_term(*, clip_low: float, clip_high: float) -> Term:
    """Clipped policy-gradient surrogate of the group advantage (GRPO)."""

    def term(tokens: Tokens) -> Tensor:
        advantage = tokens.outcome_advantage
        return clipped(tokens.logp, tokens.prox_logp, advantage, clip_low=clip_low, clip_high=clip_high)

    return term


def distill_sampled_term(*, clip: float | None) -> Term:
    """Policy gradient with advantage log pi_T - log pi_theta: its expected gradient is that of KL(student || teacher).

    The log-ratio is taken against the live student, so a stale rollout is judged as the student stands now.
    """

    def term(tokens: Tokens) -> Tensor:
        advantage = log_ratio_advantage(tokens.teacher_logp, tokens.logp, clip=clip)
        ratio = (tokens.logp - tokens.prox_logp).exp()  # 1 in value; carries the gradient of log pi_theta
        return -advantage * ratio

    return term


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
        raise ValueError(
            f"weighted_losses: terms {sorted(terms)} and weights {sorted(weights)} must be the same signals"
        )
    return {signal: (weights[signal] * term(tokens)).sum() for signal, term in terms.items()}
