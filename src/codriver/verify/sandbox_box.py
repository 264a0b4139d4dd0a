"""One box: a Python program in a process of its own, its limits, its channels and its end."""

import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from codriver.verify.sandbox_levels import Interpreter, Level, SandboxError, as_user, command, take_user_id

Hit = Literal["", "wall", "cpu", "memory", "output", "killed"]
START_S = 60.0
"""Time to get a box ready. Not the program's own time: a busy machine is no reason for a wrong verdict."""
POLL_S = 0.1
CHUNK = 65536
MB = 1 << 20
KEPT_CHARACTERS = 4000
"""Of stdout and stderr in a result, each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a program may use. Memory and CPU time are counted by the kernel for each process alone."""

    wall_s: float = 6.0
    """Seconds from the program's start, waiting included; time in which we ourselves were held up is not counted."""
    cpu_s: int = 3
    """Seconds of CPU time, per process; the start of the interpreter is part of it."""
    memory_mb: int = 512
    """Address space, per process."""
    processes: int = 8
    """Processes and threads, the program's own included; none but its own at the level `limits` without root."""
    open_files: int = 64
    file_mb: int = 8
    """Size of one file; the scratch folder holds four times as much (at the level `limits` it has no bound)."""
    output_kb: int = 1024
    """What a program may write to stdout, stderr and its answers, each; one that writes more is ended."""

    def __post_init__(self) -> None:
        smallest = {"wall_s": 0.05, "cpu_s": 1, "memory_mb": 64, "processes": 1, "open_files": 16, "file_mb": 0}
        for key, least in (smallest | {"output_kb": 1}).items():
            if not least <= getattr(self, key) < 10**6:
                got = getattr(self, key)
                raise ValueError(f"{key}: got {got}, expected {least} to 1000000, change: write {least} or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxResult:
    """How a program ended."""

    stdout: str
    """The first characters; undecodable bytes are shown as U+FFFD."""
    stderr: str
    """The last characters: that is where Python writes the error."""
    exit_code: int | None
    """None: it was ended by us. Above 128: by the signal of that number less 128."""
    limit: Hit
    """Which limit ended it: wall, cpu, output; memory: it died of a MemoryError; killed: by the kernel, for memory or
    for CPU time beyond a limit that it ignored. Empty: none."""
    seconds: float
    """From the program's start to its end."""


class Box:
    """A running program. Use as a context manager: leaving it kills all that is left of the program.

    with sandbox.open(program) as box:
        box.send(b"question\\n")
        line = box.answer()
    """

    def __init__(self, program: str, *, level: Level, interpreter: Interpreter, limits: Limits) -> None:
        self.limit: Hit = ""
        self._limits, self._level = limits, level
        self._scratch, self._closed = "", False
        self._to_send, self._is_last = bytearray(), False
        self._output = {"stdout": bytearray(), "stderr": bytearray(), "answer": bytearray()}
        self._count = dict.fromkeys(self._output, 0)
        self._selector = selectors.DefaultSelector()
        self._pidfd, self._has_ended = -1, False
        self._user = take_user_id()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start(interpreter)
            self._left_s = START_S
            if self.answer() != b"ready":
                self._kill()
                self._drain()
                raise SandboxError(f"sandbox: a box of the level {level} did not start: {self._why_not()}")
        except BaseException:
            self.close()
            raise
        self._left_s, self._started = limits.wall_s, time.monotonic()
        self._count["answer"] = 0
        source = program.encode("utf-8", "surrogatepass")
        self.send(f"{len(source)}\n".encode() + source)

    def _start(self, interpreter: Interpreter) -> None:
        limits = self._limits
        if self._level == "limits":
            self._scratch = tempfile.mkdtemp(prefix="codriver-box-")
            if self._user:
                os.chown(self._scratch, self._user.number, self._user.number)
        read, write = os.pipe()
        words = {"cpu": limits.cpu_s, "memory": limits.memory_mb * MB, "file": limits.file_mb * MB}
        words |= {"files": limits.open_files, "processes": limits.processes, "answer": write}
        if self._level == "limits" and not self._user:
            words["processes"] = 0  # a daemon that leaves the process group could not be found again
        line = command(
            self._level, interpreter, words, scratch_bytes=4 * limits.file_mb * MB or 4096, scratch=self._scratch
        )
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                [*as_user(self._user), *line],
                stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0,
                pass_fds=(write,), env={}, cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            os.close(read)
            raise SandboxError(f"sandbox: a process could not be started: {error}") from error
        finally:
            os.close(write)
        assert self._process.stdout and self._process.stderr and self._process.stdin
        self._answers = os.fdopen(read, "rb", buffering=0)
        for name, file in (
            ("stdout", self._process.stdout),
            ("stderr", self._process.stderr),
            ("answer", self._answers),
        ):
            os.set_blocking(file.fileno(), False)
            self._selector.register(file, selectors.EVENT_READ, name)
        os.set_blocking(self._process.stdin.fileno(), False)
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self._process.pid)
            self._selector.register(self._pidfd, selectors.EVENT_READ, "end")

    def send(self, data: bytes, *, last: bool = False) -> None:
        """Put data on the program's stdin, as it takes it. last: stdin ends behind it."""
        stdin = self._process.stdin if self._process else None
        if stdin is None or stdin.closed:
            return
        self._to_send += data
        self._is_last = self._is_last or last
        if stdin not in self._selector.get_map():
            self._selector.register(stdin, selectors.EVENT_WRITE, "stdin")
        self._write()

    def answer(self) -> bytes | None:
        """The next line that the program writes to its answer channel; None: it ended, or a limit ended it."""
        buffer = self._output["answer"]
        self._pump(until=lambda: b"\n" in buffer or self._answers.closed)
        if b"\n" not in buffer:
            self._drain()
        line, newline, rest = bytes(buffer).partition(b"\n")
        buffer[:] = rest
        return line if newline or line else None

    def wait(self) -> None:
        """Until the program's own end, or that of a limit."""
        self._pump(until=lambda: False)
        self._drain()

    def result(self) -> BoxResult:
        """How it ended; ends it if it has not."""
        self.close()
        code = self._process.returncode if self._process else None
        if code is not None and code < 0:
            code = 128 - code
        if self._was_killed:
            code = None
        stderr = self._output["stderr"].decode("utf-8", "replace")
        return BoxResult(
            stdout=self._output["stdout"].decode("utf-8", "replace")[:KEPT_CHARACTERS],
            stderr=stderr[-KEPT_CHARACTERS:],
            exit_code=code,
            limit=self.limit or _limit_of(code, stderr),
            seconds=self._seconds,
        )

    def close(self) -> None:
        """Kill what is left of the program, its children and daemons too; called twice it does nothing more."""
        if self._closed:
            return
        self._closed = True
        self._seconds = time.monotonic() - getattr(self, "_started", time.monotonic())
        self._was_killed = False
        if self._process:
            self._was_killed = not self._has_ended and self._process.poll() is None
            self._kill()
            self._process.wait()
            for file in (self._process.stdin, self._process.stdout, self._process.stderr):
                if file:
                    file.close()
            self._answers.close()
        self._selector.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        if self._user:
            self._user.give_back()
        if self._scratch:
            _remove(self._scratch)

    def __enter__(self) -> "Box":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _kill(self) -> None:
        """With a process namespace, the end of its first process is the end of all; else the user id finds them."""
        if self._process is None:
            return
        if self._process.returncode is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended on its own
        if self._level == "limits" and self._user:
            everything = [*as_user(self._user), "/bin/sh", "-c", "kill -KILL -1"]
            subprocess.run(everything, env={}, stdin=subprocess.DEVNULL, capture_output=True)

    def _pump(self, *, until: Callable[[], bool]) -> None:
        """Move data until `until()`, the program's end or a limit."""
        while not self._has_ended and not self.limit and not self._closed and not until():
            timeout = max(0.0, min(POLL_S, self._left_s))
            before = time.monotonic()
            events = self._selector.select(timeout)
            # Not more than was asked for: if this process was held up, the program is not to blame.
            self._left_s -= min(time.monotonic() - before, timeout)
            for key, _ in events:
                if key.data == "end":
                    self._has_ended = True
                elif key.data == "stdin":
                    self._write()
                else:
                    self._read(key.data)
            if not events and self._left_s <= 0:
                self.limit = "wall"
            if self._pidfd < 0 and self._process and self._process.poll() is not None:
                self._has_ended = True

    def _read(self, name: str) -> bool:
        """Whether there was anything."""
        assert self._process
        file = {"stdout": self._process.stdout, "stderr": self._process.stderr, "answer": self._answers}[name]
        if file is None or file.closed:
            return False
        try:
            data = os.read(file.fileno(), CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(file)
            file.close()
            return False
        self._count[name] += len(data)
        self._output[name] += data
        if self._count[name] > self._limits.output_kb * 1024:
            self.limit = self.limit or "output"
        return True

    def _drain(self) -> None:
        """What is in the pipes now: with the program's end, or at a limit, the last of its output is still there."""
        for name in self._output:
            while self._read(name) and self.limit != "output":
                pass

    def _write(self) -> None:
        stdin = self._process and self._process.stdin
        if not stdin or stdin.closed:
            return
        try:
            if self._to_send:
                del self._to_send[: os.write(stdin.fileno(), self._to_send[:CHUNK])]
        except BlockingIOError:
            return
        except OSError:
            self._to_send.clear()  # nobody reads any more
        if not self._to_send:
            self._selector.unregister(stdin)
            if self._is_last:
                stdin.close()

    def _why_not(self) -> str:
        text = self._output["stderr"].decode("utf-8", "replace").strip()
        return text.splitlines()[-1][:400] if text else f"no answer within {START_S:.0f} s"


def _limit_of(code: int | None, stderr: str) -> Hit:
    if code == 128 + signal.SIGXCPU:
        return "cpu"
    if code == 128 + signal.SIGKILL:
        return "killed"
    return "memory" if code == 1 and stderr.rstrip().rpartition("\n")[2].startswith("MemoryError") else ""


def _remove(folder: str) -> None:
    """By `rm`: folders nested ten thousand deep are no problem to it, and it follows no link."""
    rm = shutil.which("rm") or "rm"
    for line in ([rm, "-rf", "--", folder], ["chmod", "-R", "u+rwX", folder], [rm, "-rf", "--", folder]):
        if os.path.lexists(folder):
            subprocess.run(line, capture_output=True)
