"""What a task is: problems by split and number, and the only door to a verdict."""

from collections.abc import Sequence
from typing import Literal, Protocol

from codriver.episode import Episode, Prompt, Verdict

Split = Literal["train", "heldout"]
HELD_OUT_SHARE = 10
"""One problem in this many belongs to the held-out split, decided by a hash of its text."""


class Task(Protocol):
    """A source of problems with a verifier. `docs/tasks.md` walks through writing one."""

    @property
    def name(self) -> str: ...

    def prompts(self, split: Split, *, seed: int, start: int, count: int) -> Sequence[Prompt]:
        """Problems number `start` to `start + count - 1`: a pure function of its arguments, so that a resumed run
        draws what an uninterrupted one would. No problem of `train` is ever in `heldout`."""
        ...

    def solution(self, prompt: Prompt) -> str:
        """A worked solution, as the assistant would write it; empty where the task knows none."""
        ...

    def verify(self, episode: Episode) -> Verdict:
        """Judge a finished episode. Raising means `invalid`: the caller retries once, then masks the episode."""
        ...
