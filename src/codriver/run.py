"""What the loop needs, already built. `assemble` makes one from a recipe; tests make one from plain functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from codriver.episode import Allocated, Episode, Scored, Update, Verified


@dataclass(frozen=True)
class Stop:
    """Why a run ended."""

    reason: str
    by_rule: bool = False
    """True when a stopping rule of the recipe ended the run before its last step (exit code 3)."""


class Publish(Protocol):
    def __call__(self, *, version: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Run:
    """The stages of one training run, as functions from one record type to the next."""

    next_step: int
    """First step to do: 0, or the step after the checkpoint that was resumed."""
    num_steps: int
    collect: Callable[[int], Sequence[Episode]]
    verify: Callable[[Sequence[Episode]], Sequence[Verified]]
    score: Callable[[Sequence[Verified]], Sequence[Scored]]
    allocate: Callable[[Sequence[Scored]], Sequence[Allocated]]
    learn: Callable[[Sequence[Allocated]], Update]
    observe: Callable[[int, Sequence[Allocated], Update], Stop | None]
    publish: Publish
