"""Which problems a step draws: a pure function of the seed and the step, so that a resumed run continues exactly."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from codriver.episode import Prompt
from codriver.tasks.protocol import Task


@dataclass(frozen=True, kw_only=True)
class Part:
    """One task of the mix."""

    name: str
    """Unique in the mix; every prompt, metric and record carries it."""
    task: Task
    share: float
    teacher: str
    """Name of the teacher that judges its episodes; empty for none."""

    def own(self, prompt: Prompt) -> Prompt:
        return replace(prompt, task=self.name, teacher=self.teacher)


def draw_prompts(parts: Sequence[Part], *, seed: int, step: int, count: int) -> list[Prompt]:
    """`count` training prompts, each with the name of its task and teacher, tasks interleaved by share.

    Shares are met over the run, not only on average: task k has had floor(share_k x prompts so far + offset) prompts.
    """
    total = sum(part.share for part in parts)
    bounds = np.cumsum([part.share / total for part in parts])
    bounds[-1] = 1.0
    drawn: list[Prompt] = []
    counts = [_drawn_before(bounds, step * count, k) for k in range(len(parts))]
    for position in range(step * count, (step + 1) * count):
        k = _turn(bounds, position)
        prompt = parts[k].task.prompts("train", seed=seed, start=counts[k], count=1)[0]
        counts[k] += 1
        drawn.append(parts[k].own(prompt))
    return drawn


def _turn(bounds: np.ndarray, position: int) -> int:
    """The golden-ratio sequence fills [0, 1) evenly, so every window of prompts holds the tasks by their shares."""
    return int(np.searchsorted(bounds, (position * 0.6180339887498949) % 1.0, side="right").clip(max=len(bounds) - 1))


def _drawn_before(bounds: np.ndarray, position: int, k: int) -> int:
    if len(bounds) == 1:
        return position
    spots = (np.arange(position) * 0.6180339887498949) % 1.0
    return int((np.searchsorted(bounds, spots, side="right").clip(max=len(bounds) - 1) == k).sum())
