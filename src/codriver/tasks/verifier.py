"""The stage `verify`: each episode judged by its own task, within a time, once more if that failed, and counted."""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from codriver.episode import Episode, State, Verdict, Verified
from codriver.errors import CodriverError
from codriver.tasks.protocol import ChecksStates, Task
from codriver.tasks.states import Decode, token_states

ATTEMPTS = 2
"""A verifier that fails is asked once more; then the episode is `invalid`."""

Shape = Callable[[Episode, Verdict], Verdict]
"""Adds the recipe's further reward parts to a verdict."""


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """Judges episodes by their own task; counts what could not be judged."""

    tasks: Callable[[str], Task]
    """The task that an episode's prompt names."""
    max_invalid_frac: float
    timeout_s: float = 0.0
    """Wall time of one verdict, from when its verifier starts; 0: no limit, and no threads."""
    threads: int = 4
    """Verdicts at the same time: for verifiers that wait for a process or a server."""
    decode: Decode | None = None
    """Needed to place the states of a task that checks them; None: states are not asked for."""
    shape: Shape = field(default=lambda episode, verdict: verdict)

    def verify(self, episodes: Sequence[Episode]) -> list[Verified]:
        """Raises CodriverError: more than `max_invalid_frac` of the batch could not be judged."""
        verified = [
            episode.advance(Verified, verdict=verdict, states=states)
            for episode, (verdict, states) in zip(episodes, self._judged(episodes), strict=True)
        ]
        invalid = [v for v in verified if v.verdict.label == "invalid"]
        if len(invalid) > self.max_invalid_frac * len(verified):
            raise CodriverError(
                f"{len(invalid)} of {len(verified)} verdicts are invalid (limit {self.max_invalid_frac:.0%}); "
                f"the first: episode {invalid[0].id}: {invalid[0].verdict.detail}"
            )
        return verified

    def _judged(self, episodes: Sequence[Episode]) -> list["Judged"]:
        if not self.timeout_s:
            return [self._attempts(episode) for episode in episodes]
        pool = _Threads(self._judge, num=min(self.threads, len(episodes)), timeout_s=self.timeout_s)
        answers = pool.answers(episodes)
        again = [i for i, a in enumerate(answers) if isinstance(a, str)]
        for i, answer in zip(again, pool.answers([episodes[i] for i in again]), strict=True):
            answers[i] = answer
        pool.end()
        return [(Verdict.invalid(a), ()) if isinstance(a, str) else a for a in answers]

    def _attempts(self, episode: Episode) -> "Judged":
        why = ""
        for _ in range(ATTEMPTS):
            answer = self._judge(episode)
            if not isinstance(answer, str):
                return answer
            why = answer
        return Verdict.invalid(why), ()

    def _judge(self, episode: Episode) -> "Judged | str":
        """The verdict and the states, or why there is none."""
        if episode.finish == "error":
            return Verdict.invalid(str(episode.facts.get("error", "the engine gave no whole completion"))), ()
        if episode.finish == "cut":
            return Verdict.invalid("the rollout was cut before its end"), ()
        try:
            task = self.tasks(episode.prompt.task)
            verdict = self.shape(episode, task.verify(episode))
            if self.decode is None or not isinstance(task, ChecksStates):
                return verdict, ()
            return verdict, token_states(episode, task.check_states(episode), self.decode)
        except Exception as error:  # a user's verifier may raise anything; it becomes a counted verdict
            return f"{type(error).__name__}: {error}"


Judged = tuple[Verdict, tuple[State, ...]]
Said = Judged | str | float
"""A verdict, why there is none, or the time at which work on it began."""


class _Threads:
    """Daemon threads that judge. One that is over its time is given up and another takes its place."""

    def __init__(self, judge: Callable[[Episode], Judged | str], *, num: int, timeout_s: float) -> None:
        self._judge, self._timeout_s = judge, timeout_s
        self._work: queue.SimpleQueue[tuple[int, Episode] | None] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[tuple[int, Said]] = queue.SimpleQueue()
        self._numbers, self._num = itertools.count(), 0
        for _ in range(num):
            self._add()

    def answers(self, episodes: Sequence[Episode]) -> list[Judged | str]:
        """In the order of the episodes. The clock of each starts when a thread takes it up, not before."""
        asked = [next(self._numbers) for _ in episodes]
        found: dict[int, Judged | str] = {}
        started: dict[int, float] = {}
        for work in zip(asked, episodes, strict=True):
            self._work.put(work)
        while len(found) < len(asked):
            try:
                number, said = self._told.get(timeout=self._patience(started))
            except queue.Empty:
                for number in [n for n, at in started.items() if time.monotonic() - at > self._timeout_s]:
                    del started[number]
                    found[number] = f"no verdict within {self._timeout_s:g} s"
                    self._add()
                continue
            if isinstance(said, float):
                started[number] = said
            elif started.pop(number, None) is not None:  # else it was given up before it was said
                found[number] = said
        return [found[number] for number in asked]

    def end(self) -> None:
        for _ in range(self._num):
            self._work.put(None)

    def _patience(self, started: Mapping[int, float]) -> float:
        soonest = min(started.values(), default=time.monotonic()) + self._timeout_s
        return max(soonest - time.monotonic(), 0.01)

    def _add(self) -> None:
        self._num += 1
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            number, episode = item
            self._told.put((number, time.monotonic()))
            self._told.put((number, self._judge(episode)))
