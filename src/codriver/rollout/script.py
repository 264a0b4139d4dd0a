"""An episode while it is written, turn by turn: the student's tokens and, between them, the environment's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codriver.episode import Author, Episode, FinishReason, Float, Int, Message, Prompt
from codriver.rollout.protocol import Completion, Request, Sampling
from codriver.rollout.worlds import Answer
from codriver.tasks.protocol import Environment

Render = Callable[[Prompt], Int]
"""A prompt's ids, ready for the assistant to write."""
Reply = Callable[[Prompt, Sequence[Message], bool], Int]
"""(prompt, messages, is_ended) -> the ids between a completion and the next one: what closes the assistant's turn (not
where a stop token has: is_ended), the messages, and what asks for the next completion."""
Decode = Callable[[Int, str], str]
"""Text of sampled ids, without special tokens and without the stop string given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """What episodes of several turns need beyond sampling."""

    environment: Callable[[Prompt], Environment | None]
    """A new world for one episode; None: a single completion."""
    reply: Reply
    max_length: int
    """Tokens of an episode, prompt and observations included; one that leaves no room to sample ends as `context`."""
    timeout_s: float = 0.0
    """Wall time of one answer of an environment; 0: no limit."""


class Script:
    """An episode while it is written: by the engine and its environment, or by a data set and its environment."""

    def __init__(self, name: str, prompt: Prompt, group: str, prompt_ids: Int, seed: Sequence[int] = ()) -> None:
        self.id, self.prompt, self.group, self.seed = name, prompt, group, list(seed)
        self.has_world = False
        self.finish: FinishReason = "error"
        self.completions: list[str] = []
        self.observations: list[tuple[Message, ...]] = []
        self.facts: dict[str, Any] = {}
        self._columns: list[tuple[Int, Int, Float, Float, Int]] = []
        self.length, self._is_ended = 0, True
        self._given(prompt_ids)

    def request(self, sampling: Sampling) -> Request:
        """The next turn. A single turn's seed does not depend on there being turns at all."""
        turn = len(self.completions)
        seed = np.random.SeedSequence([*self.seed, *([turn] if turn else [])]).generate_state(1, np.uint64)[0]
        return Request(id=self.id, prompt_ids=self.token_ids(), sampling=sampling, seed=int(seed))

    def take(self, completion: Completion, text: str) -> None:
        turn = len(self.completions)
        sampled = len(completion.token_ids)
        self._columns.append(
            (
                completion.token_ids.astype(np.int64),
                np.full(sampled, turn, np.int64),
                completion.logp.astype(np.float32),
                completion.kept_logp.astype(np.float32),
                completion.version.astype(np.int64),
            )
        )
        self.length += sampled
        self.completions.append(text)
        self.finish = completion.finish
        self._is_ended = completion.finish == "stop" and not completion.stop_string

    def goes_on(self, answer: Answer, turns: Turns) -> bool:
        """Take the environment's answer; whether the student writes another completion."""
        if isinstance(answer, str):
            self.finish = "error"
            self.facts["error"] = answer
            return False
        self.facts |= answer.facts
        if not self.completions:
            return True  # the world has started
        if answer.done:
            self.finish = "environment"
            return False
        ids = turns.reply(self.prompt, answer.messages, self._is_ended)
        if self.length + len(ids) >= turns.max_length:
            self.finish = "context"
            return False
        self.observations.append(answer.messages)
        self._given(ids)
        return True

    def token_ids(self) -> Int:
        return np.concatenate([ids for ids, *_ in self._columns])

    def episode(self, temperature: float = 1.0, *, author: Author = "student", whole_text: bool = False) -> Episode:
        """Args: temperature: 0 is greedy, whose log-probs are of temperature 1."""
        ids, turn, logp, kept_logp, version = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        trainable = np.arange(len(ids)) >= 1 if whole_text else turn >= 0
        return Episode(
            id=self.id,
            prompt=self.prompt,
            group=self.group,
            author=author,
            token_ids=ids,
            trainable=trainable,
            behaviour_logp=logp,
            kept_logp=kept_logp,
            policy_version=version,
            turn=np.where(trainable, np.maximum(turn, 0), -1),
            completions=tuple(self.completions),
            finish=self.finish,
            observations=tuple(self.observations),
            facts=self.facts,
            temperature=temperature or 1.0,
        )

    def _given(self, ids: Int) -> None:
        """Tokens that nobody is trained on: the prompt, an observation."""
        n = len(ids)
        zeros, no_turn = np.zeros(n, np.float32), np.full(n, -1, np.int64)
        self._columns.append((np.asarray(ids, np.int64), no_turn, zeros, zeros, no_turn))
        self.length += n
