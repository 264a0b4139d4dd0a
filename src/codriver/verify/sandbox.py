"""Runs programs that nobody has read: no network, read-only files, limits, and nothing of them left at the end.

sandbox = find_sandbox(minimum="namespaces")
result = sandbox.run("print(6 * 7)", limits=Limits(wall_s=2))      # BoxResult(stdout='42\\n', exit_code=0, ...)
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Literal

from codriver.errors import InputError
from codriver.verify.sandbox_box import Box, BoxResult, Limits
from codriver.verify.sandbox_levels import LEVELS, Interpreter, Level, SandboxError, interpreter_layout, take_user_id

__all__ = ["LEVELS", "Box", "BoxResult", "Level", "Limits", "Minimum", "Sandbox", "SandboxError", "find_sandbox"]

Minimum = Literal["any", "namespaces", "bubblewrap"]
PROBE_LIMITS = Limits(wall_s=20.0, cpu_s=5)
OLDEST_PYTHON = (3, 9)
ABOUT = """import json, site, sys, sysconfig
paths = sysconfig.get_paths()
packages = [*site.getsitepackages(), paths["purelib"], paths["platlib"]]
print(json.dumps([sys.version_info[:2], sys.base_prefix, packages]))"""
PROBE = """import os, socket
problems = []
if os.getuid() == 0: problems.append("runs as root")
if set(os.environ) - {"LC_CTYPE", "PWD"}: problems.append("sees environment variables")
with open("probe", "w") as file: file.write("x")
if ISOLATED:
    for path in (HOME, HERE):
        if os.path.exists(path): problems.append("sees " + path)
    try:
        open("/probe", "w"); problems.append("can write to /")
    except OSError: pass
    for target in ("/usr/lib/probe", "/dev/probe"):
        try:
            open(target, "w"); problems.append("can write to " + target)
        except OSError: pass
    try:
        socket.create_connection(("192.0.2.1", 9), timeout=0.2); problems.append("reached the network")
    except TimeoutError: problems.append("has a way to the network")
    except OSError: pass
print("; ".join(problems) or "well")"""
_lock = threading.Lock()
_found: dict[tuple[str, str], "Sandbox"] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """A way to run programs on this machine, tried out by `find_sandbox`."""

    level: Level
    interpreter: Interpreter
    passed_over: tuple[str, ...]
    """Better levels and interpreters that are not in use, each with the reason."""

    def open(self, program: str, *, limits: Limits | None = None) -> Box:
        """Start a program that is talked with; the file descriptor of its answers is its `sys.argv[1]`.

        Raises SandboxError: the box did not start."""
        return Box(program, level=self.level, interpreter=self.interpreter, limits=limits or Limits())

    def run(self, program: str, *, stdin: bytes = b"", limits: Limits | None = None) -> BoxResult:
        """Run a program to its end. Raises SandboxError: the box did not start."""
        with self.open(program, limits=limits) as box:
            box.send(stdin, last=True)
            box.wait()
            return box.result()

    def describe(self) -> dict[str, str]:
        """For the log and the run folder."""
        return {"isolation": self.level, "python": self.interpreter.path, "passed_over": "; ".join(self.passed_over)}


def find_sandbox(minimum: Minimum | Level = "any", *, python: str = "", only: Level | None = None) -> Sandbox:
    """The best level that works here, tried once per process.

    Args:   minimum: the weakest level that is good enough.
            python:  interpreter of the programs; empty: ours if the box's user can read it, else the system's.
            only:    this level, better or worse ones not.
    Raises: InputError: no level that is good enough works here; says what is there and what to install.
    """
    needed = LEVELS.index("limits" if minimum == "any" else minimum)
    with _lock:
        key = (python, only or "")
        if key not in _found:
            _found[key] = _try_levels(python, (only,) if only else LEVELS[::-1])
    found = _found[key]
    if LEVELS.index(found.level) < needed:
        raise InputError(
            f"isolation: got {found.level} as the best level on this machine, expected at least {minimum}, change: "
            f"install bubblewrap (`apt install bubblewrap`) or allow unprivileged user namespaces, or write "
            f"isolation: any. Tried: {'; '.join(found.passed_over)}"
        )
    return found


def _try_levels(python: str, levels: tuple[Level, ...]) -> Sandbox:
    reasons: list[str] = []
    for level in levels:
        for interpreter in _interpreters(python, reasons if level == levels[0] else []):
            reason = _probe(level, interpreter)
            if not reason:
                return Sandbox(level=level, interpreter=interpreter, passed_over=tuple(reasons))
            reasons.append(f"{level} with {interpreter.path}: {reason}")
    raise InputError(
        f"sandbox: got no level that works ({'; '.join(reasons) or 'no interpreter'}), expected at least rlimits and a "
        f"Python that an ordinary user can read, change: install python3 under /usr/bin, or give the option `python`"
    )


def _probe(level: Level, interpreter: Interpreter) -> str:
    """Empty where a program in a box of this level sees and reaches only what it may."""
    if level != "limits" and sys.platform != "linux":
        return "only on Linux"
    if level == "bubblewrap":
        bwrap = shutil.which("bwrap")
        if not bwrap:
            return "bwrap is not installed"
        help_text = subprocess.run([bwrap, "--help"], capture_output=True, text=True).stdout
        if "--disable-userns" not in help_text or "--size" not in help_text:
            return "bwrap is older than 0.8"
    home, here = os.path.expanduser("~"), os.path.dirname(os.path.abspath(__file__))
    program = PROBE.replace("ISOLATED", str(level != "limits")).replace("HOME", repr(home)).replace("HERE", repr(here))
    try:
        with Box(program, level=level, interpreter=interpreter, limits=PROBE_LIMITS) as box:
            box.wait()
            result = box.result()
    except SandboxError as error:
        return str(error)
    said = result.stdout.strip() or result.stderr.strip().rpartition("\n")[2]
    return "" if said == "well" else said or f"ended with {result.exit_code} {result.limit}"


def _interpreters(python: str, reasons: list[str]) -> list[Interpreter]:
    """Those that the box's user can start, best first."""
    ours = getattr(sys, "_base_executable", sys.executable)
    candidates = [python] if python else [ours, "/usr/bin/python3", "/usr/local/bin/python3", shutil.which("python3")]
    found: dict[str, Interpreter] = {}
    for candidate in candidates:
        path = os.path.realpath(shutil.which(candidate or "") or candidate or "")
        if path in found or not os.path.isfile(path):
            if python:
                reasons.append(f"python: {python!r} is not a file")
            continue
        about = _about(path)
        if isinstance(about, str):
            reasons.append(f"python {path}: {about}")
        else:
            found[path] = about
    return list(found.values())


def _about(path: str) -> Interpreter | str:
    """What the interpreter needs in a box, or why it is of no use; asked as the user that programs run under."""
    user = take_user_id()
    ids = {"user": user.number, "group": user.number, "extra_groups": []} if user else {}
    line = [path, "-I", "-c", ABOUT]
    try:
        done = subprocess.run(line, capture_output=True, text=True, env={}, cwd="/", timeout=60, **ids)  # type: ignore[call-overload]
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be started by the user of the box ({error})"
    finally:
        if user:
            user.give_back()
    if done.returncode:
        return f"cannot be started by the user of the box ({done.stderr.strip()[-200:]})"
    version, prefix, packages = json.loads(done.stdout)
    if tuple(version) < OLDEST_PYTHON:
        return f"is older than {'.'.join(map(str, OLDEST_PYTHON))}"
    return interpreter_layout(path, prefix, tuple(packages))
