"""What happens around the loop's stages: seconds, metrics, evaluations, token records, checkpoints, the stamp of new
weights. Nothing here changes what is trained."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from codriver.episode import Allocated, Update
from codriver.errors import CodriverError
from codriver.evaluate import Evaluator
from codriver.learn.checkpoint import write_checkpoint
from codriver.models.load import Policy, save_policy
from codriver.observe.metrics import Metrics, step_metrics
from codriver.observe.run_folder import RunFolder
from codriver.observe.token_records import write_records
from codriver.rollout.protocol import Engine
from codriver.run import Stop

P = ParamSpec("P")
R = TypeVar("R")


class Interrupted(CodriverError):
    """Ctrl-C: a checkpoint was written at the end of the step."""

    exit_code = 130


class Progress(Protocol):
    """What a progress bar hears."""

    def __call__(self, step: int, metrics: Mapping[str, float], /) -> None: ...


class Timer:
    """Seconds of each stage since the last `take`; wraps stages from outside."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, name: str, stage: Callable[P, R]) -> Callable[P, R]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            start = time.perf_counter()
            try:
                return stage(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

        return timed

    def take(self) -> Metrics:
        taken = {f"time/{name}": seconds for name, seconds in self.seconds.items()}
        self.seconds = {}
        return taken


@dataclass(kw_only=True)
class Observer:
    """Logs each step, evaluates when due, keeps token records."""

    folder: RunFolder
    evaluator: Evaluator
    evaluate_every: int
    evaluate_prompts: int
    final_prompts: int
    records_every: int
    records_max_episodes: int
    num_steps: int
    timer: Timer
    progress: Progress
    last: Metrics = field(default_factory=dict)

    def before(self) -> None:
        """The starting point of the curves: an evaluation of the untouched student."""
        if self.evaluate_every:
            self._evaluate(0, self.evaluate_prompts, final=False)

    def observe(self, step: int, batch: Sequence[Allocated], update: Update) -> Stop | None:
        metrics = step_metrics(batch, update)
        if self.records_every and step % self.records_every == 0:
            write_records(
                self.folder.path, step, batch, update, max_episodes=self.records_max_episodes, learner_version=step
            )
        taken = self.timer.take()
        learned = max(sum(taken.values()), 1e-9)
        metrics |= taken | {"throughput/trained_tokens_per_s": update.num_tokens / learned}
        self.folder.log(step, metrics, row="training")
        self.last |= metrics
        is_last = step + 1 == self.num_steps
        if self.evaluate_every and (step + 1) % self.evaluate_every == 0 and not is_last:
            self._evaluate(step + 1, self.evaluate_prompts, final=False)
        self.progress(step, self.last)
        return None

    def after(self, next_step: int) -> Metrics:
        """The final evaluation."""
        return self._evaluate(next_step, self.final_prompts, final=True)

    def _evaluate(self, step: int, num_prompts: int, *, final: bool) -> Metrics:
        start = time.perf_counter()
        metrics = self.evaluator.evaluate(num_prompts, final=final)
        metrics["time/evaluate"] = time.perf_counter() - start
        self.folder.log(step, metrics, row="final" if final else "evaluation")
        self.last |= metrics
        return metrics


@dataclass(kw_only=True)
class Publisher:
    """Stamps the new weights, writes a checkpoint when due, and stops here on Ctrl-C: the only place between steps."""

    engine: Engine
    folder: RunFolder
    policy: Policy
    state: Callable[[], Mapping[str, Any]]
    every: int
    keep: int
    num_steps: int
    timer: Timer
    interrupted: Callable[[], bool]

    def publish(self, *, version: int) -> None:
        self.engine.publish(version)
        stopping = self.interrupted() and version < self.num_steps
        if version == self.num_steps or stopping or (self.every and version % self.every == 0):
            self.timer.wrap("checkpoint", self._checkpoint)(version)
        if stopping:
            self.folder.event("interrupted", next_step=version)
            raise Interrupted(f"interrupted after step {version - 1}; go on with the same command and --resume")

    def _checkpoint(self, version: int) -> None:
        def save(folder: Path) -> None:
            save_policy(self.policy, folder)

        write_checkpoint(
            self.folder.path / "checkpoints", next_step=version, save_model=save, state=self.state(), keep=self.keep
        )
        self.folder.event("checkpoint", next_step=version)
