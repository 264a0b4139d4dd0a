"""Environments of many episodes, stepped between the engine's steps so that slow ones overlap with sampling."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from codriver.tasks.protocol import Environment, Observation

Answer = Observation | str
"""What an environment answered, or why it failed."""


class Worlds:
    """One environment per episode, all on one event loop in the caller's thread.

    A step that never waits is done at the next `poll`, in the order of asking: rollouts with such environments repeat
    exactly. A step that must wait should `await` (a process, a socket, `asyncio.to_thread`); one that blocks holds
    everything up.
    """

    def __init__(self, *, timeout_s: float) -> None:
        """Args: timeout_s: wall time of one `start` or `step`; 0: no limit."""
        self._timeout_s = timeout_s or None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._environments: dict[str, Environment] = {}
        self._tasks: dict[str, asyncio.Task[Answer]] = {}

    def __enter__(self) -> "Worlds":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._loop is None:
            return
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.wait(self._tasks.values()))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    @property
    def num_pending(self) -> int:
        """Answers that are asked for and not yet handed out."""
        return len(self._tasks)

    def start(self, name: str, environment: Environment) -> None:
        self._environments[name] = environment
        self._ask(name, self._begin(environment))

    def step(self, name: str, completion: str) -> None:
        self._ask(name, self._environments[name].step(completion))

    def poll(self, *, wait: bool) -> list[tuple[str, Answer]]:
        """The answers that are there, in the order of asking. `wait`: at least one, if any is asked for."""
        if self._loop is None or not self._tasks:
            return []
        when = asyncio.FIRST_COMPLETED if wait else asyncio.ALL_COMPLETED
        self._loop.run_until_complete(asyncio.wait(self._tasks.values(), timeout=None if wait else 0, return_when=when))
        done = [(name, task.result()) for name, task in self._tasks.items() if task.done()]
        for name, _ in done:
            del self._tasks[name]
        return done

    def _ask(self, name: str, work: Coroutine[Any, Any, Observation]) -> None:
        self._loop = self._loop or asyncio.new_event_loop()
        self._tasks[name] = self._loop.create_task(self._answered(work))

    @staticmethod
    async def _begin(environment: Environment) -> Observation:
        await environment.start()
        return Observation()

    async def _answered(self, work: Coroutine[Any, Any, Observation]) -> Answer:
        try:
            found = await asyncio.wait_for(work, self._timeout_s)
        except TimeoutError:
            return f"the environment gave no answer within {self._timeout_s:g} s"
        except Exception as error:  # a user's environment may raise anything; the episode is counted, not the run lost
            return f"{type(error).__name__}: {error}"
        return found if isinstance(found, Observation) else f"the environment answered {found!r}, not an Observation"
