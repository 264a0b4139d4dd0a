"""The held-out pass: problems that no training stage draws, sampled from the current weights, judged by their task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from codriver.collecting import Conversation
from codriver.observe.metrics import Metrics, pass_at_k
from codriver.rollout.play import Draw, play
from codriver.rollout.protocol import Engine, Sampling
from codriver.tasks.protocol import Task
from codriver.tasks.verifier import Verifier


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    name: str
    """The middle part of its metrics' names."""
    task: Task


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """The same problems with the same seeds every time, so that two evaluations differ by the weights alone."""

    engine: Engine
    sets: Sequence[EvaluationSet]
    """The stage's own tasks: evaluated every time."""
    final_sets: Sequence[EvaluationSet]
    """Evaluated at the end as well."""
    sampling: Sampling
    conversation: Conversation
    samples: int
    seed: int
    verifier: Verifier
    """Asked about each set's own task."""

    def evaluate(self, num_prompts: int, *, final: bool) -> Metrics:
        """`eval/<set>/accuracy` (mean over problems and samples), its standard error over problems, pass@k, length."""
        metrics: Metrics = {}
        for chosen in [*self.sets, *(self.final_sets if final else ())]:
            metrics |= {f"eval/{chosen.name}/{k}": v for k, v in self._one(chosen, num_prompts).items()}
        return metrics

    def _one(self, chosen: EvaluationSet, num_prompts: int) -> Metrics:
        prompts = chosen.task.prompts("heldout", seed=self.seed, start=0, count=num_prompts)
        draws = [
            Draw(
                prompt=replace(prompt, task=chosen.name),
                group=f"eval/{chosen.name}/{number}",
                samples=self.samples,
                seed=int(np.random.SeedSequence([self.seed, number, 1]).generate_state(1)[0]),
            )
            for number, prompt in enumerate(prompts)
        ]
        talk = self.conversation
        turns = talk.turns(lambda name: chosen.task)
        episodes = play(self.engine, draws, sampling=self.sampling, render=talk.render, decode=talk.decode, turns=turns)
        verified = replace(self.verifier, tasks=lambda name: chosen.task).verify(episodes)
        labels: dict[str, list[bool]] = {}
        for v in verified:
            if v.verdict.label != "invalid":
                labels.setdefault(v.group, []).append(v.verdict.label == "correct")
        rates = [float(np.mean(group)) for group in labels.values()]
        metrics = {
            "accuracy": float(np.mean(rates)),
            "accuracy_se": float(np.std(rates) / max(len(rates), 1) ** 0.5),
            "mean_length": float(np.mean([v.num_sampled for v in verified])),
            "clipped_ratio": float(np.mean([v.finish in ("length", "context") for v in verified])),
            "num_prompts": float(len(rates)),
        }
        for k in sorted({2**i for i in range(10) if 1 < 2**i < self.samples} | {self.samples} - {1}):
            enough = [g for g in labels.values() if len(g) >= k]
            metrics[f"pass_at_{k}"] = float(np.mean([pass_at_k(len(g), sum(g), k) for g in enough]))
        return metrics
