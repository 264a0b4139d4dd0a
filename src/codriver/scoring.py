"""What every signal says about every token, as numbers fixed at score time; `learn` evaluates terms against them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from codriver.episode import Float, Scored, TeacherView, Verified
from codriver.errors import CodriverError
from codriver.signals.outcome import group_advantage, overlong_penalty
from codriver.teachers.protocol import Teacher

MAX_TEACHER_FAILED_FRAC = 0.2
"""A teacher that fails on a larger share of its episodes stops the run: the rest would be another experiment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlong:
    """DAPO's treatment of completions at or near their length limit."""

    max_length: int
    buffer: int
    """The reward falls by up to 1 over the last `buffer` tokens; 0: no penalty."""
    mask: bool
    """Completions that hit the limit carry no outcome signal."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Outcome advantages, teacher views and reference log-probs of a batch; each only if a signal uses it."""

    outcome: bool
    scale: Literal["std", "none", "batch"] = "std"
    baseline: Literal["mean", "leave_one_out"] = "mean"
    overlong: Overlong | None = None
    """None: a completion at its length limit is judged like any other."""
    teachers: Mapping[str, Teacher]
    """Empty when no distill signal is on: then no teacher is asked."""
    reference: Teacher | None

    def score(self, verified: Sequence[Verified]) -> list[Scored]:
        advantages, reasons = self._outcomes(verified)
        views, missing = self._teacher_views(verified)
        references = self._references(verified)
        return [
            episode.advance(
                Scored,
                outcome_advantage=advantages[i],
                outcome_reason=reasons[i],
                teacher=views[i],
                teacher_reason=missing[i],
                reference_logp=references[i],
            )
            for i, episode in enumerate(verified)
        ]

    def _outcomes(self, verified: Sequence[Verified]) -> tuple[list[float], list[str]]:
        if not self.outcome:
            return [0.0] * len(verified), ["not_asked"] * len(verified)
        absent = [self._absent(v) for v in verified]
        valid = [not why for why in absent]
        rewards = [v.verdict.reward + self._penalty(v) if ok else 0.0 for v, ok in zip(verified, valid, strict=True)]
        numbers: dict[str, int] = {}
        groups = [numbers.setdefault(v.group, len(numbers)) for v in verified]
        advantage_E = group_advantage(
            torch.tensor(rewards, dtype=torch.float64),
            torch.tensor(groups),
            scale=self.scale,
            baseline=self.baseline,
            valid=torch.tensor(valid),
        )
        seen: dict[int, set[float]] = {}
        for group, reward, ok in zip(groups, rewards, valid, strict=True):
            if ok:
                seen.setdefault(group, set()).add(reward)
        reasons = [
            why or ("group_agrees" if len(seen[group]) == 1 else "") for group, why in zip(groups, absent, strict=True)
        ]
        return [0.0 if why else a for a, why in zip(advantage_E.tolist(), reasons, strict=True)], reasons

    def _absent(self, episode: Verified) -> str:
        if episode.verdict.label == "invalid":
            return "invalid"
        hit_limit = episode.finish in ("length", "context")
        return "overlong" if self.overlong and self.overlong.mask and hit_limit else ""

    def _penalty(self, episode: Verified) -> float:
        if self.overlong is None or not self.overlong.buffer:
            return 0.0
        length = torch.tensor([episode.num_sampled])
        return float(overlong_penalty(length, max_length=self.overlong.max_length, buffer=self.overlong.buffer))

    def _teacher_views(self, verified: Sequence[Verified]) -> tuple[list[TeacherView | None], list[str]]:
        views: list[TeacherView | None] = [None] * len(verified)
        reasons = ["no_teacher" if self.teachers else "not_asked"] * len(verified)
        for name, teacher in self.teachers.items():
            mine = [i for i, v in enumerate(verified) if v.prompt.teacher == name]
            answers = teacher.score([verified[i] for i in mine])
            failures = [a for a in answers if isinstance(a, str)]
            if len(failures) > MAX_TEACHER_FAILED_FRAC * max(len(mine), 1):
                raise CodriverError(
                    f"teacher {name} failed on {len(failures)} of {len(mine)} episodes "
                    f"(limit {MAX_TEACHER_FAILED_FRAC:.0%}); the first reason: {failures[0]}"
                )
            for i, answer in zip(mine, answers, strict=True):
                views[i], reasons[i] = (None, "teacher_failed") if isinstance(answer, str) else (answer, "")
        return views, reasons

    def _references(self, verified: Sequence[Verified]) -> list[Float | None]:
        if self.reference is None:
            return [None] * len(verified)
        answers = self.reference.score(verified)
        bad = [(v.id, a) for v, a in zip(verified, answers, strict=True) if isinstance(a, str)]
        if bad:
            raise CodriverError(f"the reference could not score episode {bad[0][0]}: {bad[0][1]}")
        return [np.asarray(a.logp) for a in answers if isinstance(a, TeacherView)]
