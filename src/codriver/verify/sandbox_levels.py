"""The levels of isolation and how a process of each is started."""

import itertools
import os
import shutil
import socket
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from codriver.errors import CodriverError

Level = Literal["limits", "namespaces", "bubblewrap"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Weakest first.

limits      rlimits, an empty environment, no new privileges; as root a user id of its own. Network and every file that
            this user id may read stay open. Without root: no other process and no thread.
namespaces  the same, and: no network, a process tree of its own that dies as one, a read-only root that holds the
            interpreter and nothing of the home folder or the repository.
bubblewrap  the same box, built by a program that others have audited.
"""
SCRATCH = "/scratch"
FIRST_UID, NUM_UIDS = 60600, 500
"""User ids that neither login nor systemd hands out."""
_turn = itertools.count()


class SandboxError(CodriverError):
    """The sandbox failed, not the program in it: no verdict can be drawn from this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A Python that programs are run with, and what it needs to see."""

    path: str
    """The file itself, links resolved."""
    binds: tuple[str, ...] = ()
    """Files and folders that are visible in the box, read-only."""
    links: tuple[tuple[str, str], ...] = ()
    """(path, target) of symbolic links in the box, such as /lib -> usr/lib."""
    masks: tuple[str, ...] = ()
    """Folders of installed packages, shown empty: they may hold a data set's answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UserId:
    """A user id that no other box on this machine has now."""

    number: int
    lock: socket.socket
    """An abstract socket bound to the number's name: the kernel frees it when this process dies."""

    def give_back(self) -> None:
        self.lock.close()


def take_user_id() -> UserId | None:
    """None where we are not root: then programs run under our own id. Raises SandboxError: all are taken."""
    if os.getuid() != 0 or sys.platform != "linux":
        return None
    for _ in range(NUM_UIDS):
        number = FIRST_UID + next(_turn) % NUM_UIDS
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0codriver-box-{number}")
        except OSError:
            lock.close()
            continue
        return UserId(number=number, lock=lock)
    raise SandboxError(f"sandbox: all {NUM_UIDS} user ids for boxes are in use; run fewer verifications at once")


def command(
    level: Level, interpreter: Interpreter, words: dict[str, int], *, scratch_bytes: int, scratch: str
) -> list[str]:
    """The command line of a box of this level; the user id is changed by `as_user` in front of it.

    Args: words:   limits and channels for `sandbox_inside`.
          scratch: a folder of this machine, for the level `limits`; the others make one of their own at /scratch.
    """
    python = [interpreter.path, "-I", "-S", "-B", "-c", _inside()]
    inside = [f"{key}={value}" for key, value in words.items()]
    if level == "limits":
        return [*python, *inside, f"scratch={scratch}"]
    inside += [f"scratch={SCRATCH}"]
    if level == "namespaces":
        inside += [f"bind={path}" for path in interpreter.binds] + [f"mask={path}" for path in interpreter.masks]
        inside += [f"link={path}:{target}" for path, target in interpreter.links]
        return [*python, *inside, f"scratch_bytes={scratch_bytes}"]
    box = [shutil.which("bwrap") or "bwrap", "--unshare-user", "--unshare-all", "--disable-userns"]
    box += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    for path in interpreter.binds:
        box += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, path]
    for path in interpreter.masks:
        box += ["--perms", "0555", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
    for path, target in interpreter.links:
        box += ["--symlink", target, path]
    box += ["--perms", "0700", "--size", str(scratch_bytes), "--tmpfs", SCRATCH, "--remount-ro", "/"]
    return [*box, "--", *python, *inside, "bwrap=1"]


def as_user(user: UserId | None) -> list[str]:
    """The front of a command line that changes to the box's user id.

    A program, not `Popen(user=...)`: that would make Python fork this process, page tables and all, instead of vfork.
    """
    if user is None:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SandboxError(
            "sandbox: got no `setpriv`, which is needed as root; install util-linux, or do not run as root"
        )
    return [setpriv, f"--reuid={user.number}", f"--regid={user.number}", "--clear-groups", "--inh-caps=-all", "--"]


def interpreter_layout(path: str, prefix: str, packages: tuple[str, ...]) -> Interpreter:
    """What a Python at `path` with the standard library under `prefix` needs in the box."""
    wanted = ["/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", f"{prefix}/lib", f"{prefix}/lib64"]
    wanted += [path, "/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/null", "/dev/zero", "/dev/urandom"]
    links = tuple((p, os.readlink(p)) for p in dict.fromkeys(wanted) if os.path.islink(p) and p.count("/") == 1)
    binds: list[str] = []
    for folder in dict.fromkeys(wanted):
        is_inside = any(folder.startswith(other + "/") for other in binds)
        if os.path.exists(folder) and folder not in dict(links) and not is_inside:
            binds.append(folder)
    masks = tuple(p for p in dict.fromkeys(packages) if os.path.isdir(p) and any(p.startswith(b + "/") for b in binds))
    return Interpreter(path=path, binds=tuple(binds), links=links, masks=masks)


@lru_cache(maxsize=1)
def _inside() -> str:
    return Path(__file__).with_name("sandbox_inside.py").read_text()
