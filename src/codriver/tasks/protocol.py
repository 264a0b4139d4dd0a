"""What a task is: problems by split and number, environments of many turns, and the only door to a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from codriver.episode import Episode, Message, Prompt, StateCheck, Verdict

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What an environment answers to one completion."""

    messages: tuple[Message, ...] = ()
    """The turns that the student sees next (roles `user` or `tool`); not sampled, never trained on."""
    done: bool = False
    """True: the episode is over, and `messages` are not shown to anyone."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What only the environment knows, for `verify`; kept in `Episode.facts`, later answers over earlier ones."""


class Environment(Protocol):
    """One episode's world. Single use: there is no reset, a new episode starts a new one."""

    async def start(self) -> None:
        """Get ready. Slow ones (a container, a browser) overlap with each other and with sampling."""
        ...

    async def step(self, completion: str) -> Observation:
        """Answer the student's completion (text without special tokens and without the stop string)."""
        ...


@runtime_checkable
class HasEnvironment(Protocol):
    """A task of several turns."""

    def environment(self, prompt: Prompt) -> Environment:
        """A new world for one episode of this prompt; cheap, `start` does the work."""
        ...


@runtime_checkable
class WritesTurns(Protocol):
    """A task of several turns that can show how it is done: its cold start."""

    def solution_turns(self, prompt: Prompt) -> Sequence[str]:
        """The completions of a worked episode, one a turn; the environment answers in between."""
        ...


@runtime_checkable
class ChecksStates(Protocol):
    """A task that can judge intermediate states."""

    def check_states(self, episode: Episode) -> Sequence[StateCheck]:
        """Each state the episode went through, in order. A pure function of the episode."""
        ...


@runtime_checkable
class GivesHints(Protocol):
    """A task that can tell a hinted teacher something of this very episode."""

    def hint(self, episode: Episode) -> str:
        """Privileged text for the teacher alone; empty: none."""
        ...


@runtime_checkable
class TypedAnswers(Protocol):
    """A task whose problem can be made from a typed gold answer, for `codriver tasks verify`."""

    def prompt_of(self, gold: str) -> Prompt:
        """The prompt whose reference is `gold`. Raises ValueError: it is none."""
        ...
