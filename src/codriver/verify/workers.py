"""Processes that do one job again and again, each request with a wall limit after which the process is killed.

A job is a function `module:name` that takes and gives what JSON can hold. Its process is a fresh interpreter that
imports that module and nothing of the caller's main program, so it never loads torch. Threads may ask at the same time;
waiting for a free process costs nothing of the limit, and an answer that has arrived counts even if the thread that
waits for it was held up until after the limit.
"""

import atexit
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any, Literal

from codriver.errors import CodriverError

START_LIMIT_S = 120.0
"""A process that has not imported its job by then never will; imports are slow on a busy machine."""
MAX_REQUEST = 60_000
"""Bytes of one request: it must fit into a pipe, so that sending never blocks."""
Failure = Literal["time", "memory", "crash", "error"]


class JobFailed(Exception):
    """One request came to nothing; the process has been replaced, and the next request will be answered."""

    def __init__(self, kind: Failure, detail: str) -> None:
        self.kind = kind
        super().__init__(detail)


class NoWorker(CodriverError):
    """A process could not be started at all."""


class WorkerPool:
    """Up to `size` processes, started when they are first needed."""

    def __init__(self, job: str, *, size: int, limit_s: float, memory_mb: int = 1024, max_uses: int = 5000) -> None:
        """`limit_s`: wall seconds of one request. `memory_mb`: address space of one process. `max_uses`: requests after
        which a process is replaced, so that what libraries keep for ever stays small."""
        self.job, self.size, self.limit_s, self.memory_mb, self.max_uses = job, size, limit_s, memory_mb, max_uses
        self._slots = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        _POOLS.add(self)

    def ask(self, request: Any) -> Any:
        """What the job answers. Raises JobFailed, NoWorker."""
        line = json.dumps(request).encode() + b"\n"
        if len(line) > MAX_REQUEST:
            raise ValueError(f"WorkerPool.ask: the request has {len(line)} bytes, expected at most {MAX_REQUEST}")
        with self._slots:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None or not worker.is_alive():
                worker = _Worker(self.job, memory_mb=self.memory_mb, limit_s=self.limit_s)
            is_whole = False
            try:
                reply = worker.ask(line, self.limit_s)
                is_whole = True
            finally:  # whatever went wrong, a process with half an answer in its pipe is not used again
                if is_whole and worker.uses < self.max_uses and "failed" not in reply:
                    with self._lock:
                        self._idle.append(worker)
                else:
                    worker.end()
        if "failed" in reply:
            raise JobFailed(reply["failed"], reply["detail"])
        return reply["answer"]

    def close(self) -> None:
        """Ends the processes that wait; the pool can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()

    def forget(self) -> None:
        """In a forked child: the processes belong to the parent, and locks may be held by threads that are not here."""
        self._slots = threading.BoundedSemaphore(self.size)
        self._lock, self._idle = threading.Lock(), []


class _Worker:
    """One process and the two pipes to it."""

    def __init__(self, job: str, *, memory_mb: int, limit_s: float) -> None:
        self.uses = 0
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._unread = b""
        settings = json.dumps({"job": job, "memory_mb": memory_mb, "limit_s": limit_s})
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        command = [sys.executable, "-W", "ignore", "-m", "codriver.verify.workers", settings]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the run, which then ends its workers itself
                bufsize=0,
            )
        except OSError as error:
            self._errors.close()
            raise NoWorker(f"cannot start a process for {job}: {error}") from error
        try:
            ready = self._read_line(START_LIMIT_S)
        except JobFailed as error:
            self.end()
            raise NoWorker(f"a process for {job} did not start: {error}") from error
        except BaseException:
            self.end()
            raise
        assert ready == {"ready": True}, f"expected ready, got {ready}"

    def is_alive(self) -> bool:
        if self._process.poll() is None:
            return True
        self.end()
        return False

    def ask(self, line: bytes, limit_s: float) -> dict[str, Any]:
        self.uses += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
        except BrokenPipeError as error:
            raise JobFailed("crash", self._last_words()) from error
        return self._read_line(limit_s)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _read_line(self, limit_s: float) -> dict[str, Any]:
        """The next line. The pipe is looked at once more after the limit: a late look is not a late answer."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(handle, select.POLLIN | select.POLLHUP)
        end = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            left = max(end - time.monotonic(), 0.0)
            if not poll.poll(left * 1000):
                raise JobFailed("time", f"no answer within {limit_s:g} s")
            part = os.read(handle, 65536)
            if not part:
                self._process.wait()
                raise JobFailed("crash", self._last_words())
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read()[-400:].decode(errors="replace").strip().splitlines()
        return f"the process ended with code {self._process.poll()}" + (f": {said[-1]}" if said else "")


_POOLS: "weakref.WeakSet[WorkerPool]" = weakref.WeakSet()


def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _forget_all() -> None:
    for pool in list(_POOLS):
        pool.forget()


def _serve(settings: dict[str, Any]) -> None:
    """The process's side: read a line, do the job, write a line, until the asker is gone."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a job that prints does not speak into the protocol
    module, _, name = settings["job"].partition(":")
    job: Callable[[Any], Any] = getattr(import_module(module), name)
    limit = settings["memory_mb"] * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out.write(b'{"ready": true}\n')
    for line in sys.stdin.buffer:
        # A second net, for the case that the asker died and cannot kill this process: the alarm's default is the end.
        signal.setitimer(signal.ITIMER_REAL, 3 * settings["limit_s"] + 5)
        try:
            reply = {"answer": job(json.loads(line))}
        except MemoryError:
            reply = {"failed": "memory", "detail": f"more than {settings['memory_mb']} MB were needed"}
        except Exception as error:  # told to the asker, who decides what it means
            reply = {"failed": "error", "detail": f"{type(error).__name__}: {str(error)[:200]}"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        out.write(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
else:
    atexit.register(_close_all)
    os.register_at_fork(after_in_child=_forget_all)
