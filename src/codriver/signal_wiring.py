"""From the recipe's section `signals` to what the loop runs: shares, terms, the scorer, the learner.

`docs/methods.md` lists which paper is which setting; `recipe/signal_settings.py` documents each key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from codriver.allocation import Share
from codriver.episode import Allocated, Update
from codriver.learn.distill_terms import DistillSettings, distill_term
from codriver.learn.learner import AdamSettings, Judge, Learner
from codriver.learn.objective import (
    Clipping,
    Correction,
    Term,
    importance_correction,
    no_correction,
    outcome_clipping,
    outcome_term,
    reference_term,
    supervised_term,
)
from codriver.learn.schedule import learning_rate
from codriver.models.load import Policy
from codriver.observe.run_folder import RunFolder
from codriver.recipe.schema import Recipe
from codriver.scoring import Overlong, Scorer
from codriver.signals.reference import adapted_coefficient
from codriver.teacher_pool import Pool

Learn = Callable[[Sequence[Allocated]], Update]


def signal_shares(recipe: Recipe) -> dict[str, Share]:
    """Signals that are on, with their coefficients."""
    if recipe.kind != "train":
        return {"supervised": Share(coef=1.0)}
    length, signals = recipe.rollout.max_completion_length, recipe.signals
    shares = {
        name: Share(coef=section.coef, aggregation=section.aggregation, constant_length=length)
        for name, section in (
            ("outcome", signals.outcome),
            ("distill", signals.distill),
            ("reference", signals.reference),
        )
    }
    return {name: share for name, share in shares.items() if share.coef > 0}


def signal_terms(recipe: Recipe) -> dict[str, Term]:
    """What each signal that is on contributes per token."""
    outcome, correction = recipe.signals.outcome, signal_correction(recipe)
    terms: dict[str, Term] = {
        "outcome": outcome_term(
            clip_low=outcome.clip_low,
            clip_high=outcome.clip_high,
            loss=outcome.loss,
            ratio=outcome.ratio,
            dual_clip=outcome.dual_clip,
            reweight=outcome.reweight,
            correction=correction,
        ),
        "distill": distill_term(distill_settings(recipe), correction=correction),
        "reference": reference_term(estimator=recipe.signals.reference.estimator),
        "supervised": supervised_term(),
    }
    return {name: terms[name] for name in signal_shares(recipe)}


def signal_clipping(recipe: Recipe) -> Clipping | None:
    """Which tokens the bounds of the outcome's ratio stop; None where there is no outcome."""
    outcome = recipe.signals.outcome
    if "outcome" not in signal_shares(recipe):
        return None
    return outcome_clipping(
        clip_low=outcome.clip_low, clip_high=outcome.clip_high, loss=outcome.loss, ratio=outcome.ratio
    )


def signal_correction(recipe: Recipe) -> Correction:
    importance = recipe.signals.importance
    if importance.mode == "none":
        return no_correction
    return importance_correction(mode=importance.mode, low=importance.low, high=importance.high)


def distill_settings(recipe: Recipe) -> DistillSettings:
    """The section `signals.distill`, with what depends on the rest of the recipe resolved."""
    distill = recipe.signals.distill
    settings = distill.model_dump(exclude={"coef", "aggregation", "gradient", "temperature_squared"})
    factor = recipe.rollout.temperature if distill.temperature_squared else 1.0
    return DistillSettings(**settings, gradient=distill.use, temperature=factor)


def make_scorer(recipe: Recipe, pool: Pool) -> Scorer:
    training, outcome = recipe.kind == "train", recipe.signals.outcome
    overlong = Overlong(
        max_length=recipe.rollout.max_completion_length, buffer=outcome.overlong.buffer, mask=outcome.overlong.mask
    )
    return Scorer(
        outcome=training and outcome.coef > 0,
        scale=outcome.scale,
        baseline=outcome.baseline,
        overlong=overlong if overlong.mask or overlong.buffer else None,
        teachers=pool.teachers,
        reference=pool.reference,
    )


def make_learner(recipe: Recipe, policy: Policy, folder: RunFolder, *, judges: Mapping[str, Judge]) -> Learner:
    optimizer = recipe.optimizer

    def rate(step: int) -> float:
        return learning_rate(
            step,
            peak=optimizer.learning_rate,
            num_steps=recipe.steps,
            warmup_steps=optimizer.warmup_steps,
            schedule=optimizer.schedule,
            min_frac=optimizer.min_lr_frac,
        )

    return Learner(
        policy.model,
        vocab_size=policy.vocab_size,
        terms=signal_terms(recipe),
        learning_rate=rate,
        adam=AdamSettings(
            betas=optimizer.betas, weight_decay=optimizer.weight_decay, max_grad_norm=optimizer.max_grad_norm
        ),
        save_batch=folder.save_failed_batch,
        judges=judges,
        clipping=signal_clipping(recipe),
        num_iterations=optimizer.num_iterations if recipe.kind == "train" else 1,
        micro_batch_tokens=recipe.learner.micro_batch_tokens,
        head_chunk_tokens=recipe.learner.head_chunk_tokens,
        gradient_checkpointing=recipe.learner.gradient_checkpointing,
    )


class Coefficients:
    """The shares of the signals; the reference's may follow a target KL. State: the coefficients."""

    def __init__(self, shares: Mapping[str, Share], *, target_kl: float | None) -> None:
        self._shares, self._target_kl = dict(shares), target_kl

    def shares(self) -> Mapping[str, Share]:
        return self._shares

    def following(self, learn: Learn) -> Learn:
        """`learn`, after which the reference's coefficient moves towards its target."""

        def learned(batch: Sequence[Allocated]) -> Update:
            update = learn(batch)
            self._follow(batch, update)
            return update

        return learned

    def state_dict(self) -> dict[str, float]:
        return {name: share.coef for name, share in self._shares.items()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._shares = {name: replace(share, coef=state[name]) for name, share in self._shares.items()}

    def _follow(self, batch: Sequence[Allocated], update: Update) -> None:
        share = self._shares.get("reference")
        gaps = [
            facts.student_logp - episode.reference_logp
            for episode, facts in zip(batch, update.facts, strict=True)
            if episode.reference_logp is not None
        ]
        if share is None or self._target_kl is None or not gaps:
            return
        observed = max(float(np.concatenate(gaps).mean()), 0.0)
        self._shares["reference"] = replace(
            share, coef=adapted_coefficient(share.coef, observed, target_kl=self._target_kl)
        )
