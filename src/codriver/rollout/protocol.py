"""What an engine is: something that samples tokens for requests, many at once, and says from which weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from codriver.episode import FinishReason, Float, Int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy (log-probs are then of temperature 1)."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    """1.0 is off."""
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    """0.0 is off: drop tokens below `min_p` times the most likely token's probability."""
    stop_ids: tuple[int, ...] = ()
    """The sampled stop id is part of the completion, and trained on."""
    stop_strings: tuple[str, ...] = ()
    """The tokens that completed the string are part of the completion too."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"Sampling: max_tokens must be at least 1, got {self.max_tokens}")
        if self.temperature < 0:
            raise ValueError(f"Sampling: temperature must be at least 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"Sampling: top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"Sampling: top_k must be at least 0 (0 is off), got {self.top_k}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"Sampling: min_p must be in [0, 1), got {self.min_p}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One completion to sample. Requests with the same `prompt_ids` share the computation of their prompt."""

    id: str
    prompt_ids: Int
    """[P] P >= 1."""
    sampling: Sampling
    seed: int
    """Decides the tokens together with the prompt and the weights, whatever else is in the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What the engine sampled for one request; n tokens, at least one unless `finish` is `error` or `context`."""

    id: str
    token_ids: Int
    logp: Float
    """[n] nats: log-prob of each token under the distribution it was drawn from (temperature and truncation)."""
    kept_logp: Float
    """[n] nats: log of the mass kept by top-k/top-p/min-p; 0 when they are off."""
    version: Int
    """[n] version of the weights that sampled each token."""
    finish: FinishReason
    stop_string: str = ""
    """The stop string that ended it, if one did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """One unfinished completion, as a monitor sees it."""

    id: str
    prompt_ids: Int
    token_ids: Int
    """[n] all tokens so far."""
    num_new: int
    """How many of them are new since the monitor's last call."""


Monitor = Callable[[Sequence[Live]], Mapping[str, int]]
"""Called every few tokens; returns, for each completion to stop now, how many of its tokens to keep (finish `cut`)."""


class Engine(Protocol):
    """Continuous: requests may be added at any time, and each completion is handed out as soon as it ends."""

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        ...

    @property
    def num_pending(self) -> int:
        """Requests submitted and not yet handed out."""
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises InputError for a prompt that leaves no room to sample."""
        ...

    def step(self) -> list[Completion]:
        """Sample at least one token for the live completions; give those that ended."""
        ...

    def publish(self, version: int) -> None:
        """From the next token on, sample from the student's current weights, known as `version`."""
        ...
