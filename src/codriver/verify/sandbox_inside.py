"""What runs first inside a box: it takes the limits on, says `ready`, then runs the program that comes on stdin.

Its text is given to the box's interpreter behind `-c`, so it uses the standard library alone and starts fast. At the
level `namespaces` it also builds the box, because there is no other program at hand that does.
Words of the command line: `cpu=3 memory=... answer=5` and so on; with `bind=/usr/lib ...` it builds the box.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes as long to import as Python to start
    from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048
"""nosuid, nodev, noexec, noatime, nodiratime: a user namespace may not take these off a mount, so they stay on."""
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPABILITY_VERSION_3 = 0x20080522


def main() -> None:
    settings: dict[str, list[str]] = {}
    for word in sys.argv[1:]:
        key, _, value = word.partition("=")
        settings.setdefault(key, []).append(value)
    if sys.platform == "linux" and "bwrap" not in settings:
        _no_new_privileges()
    if "bind" in settings:
        _enter_own_box(settings)
    os.chdir(settings["scratch"][0])
    _take_limits({key: int(values[0]) for key, values in settings.items() if values[0].isdigit()})
    answer = int(settings["answer"][0])
    os.write(answer, b"ready\n")
    size = b""
    while not size.endswith(b"\n"):
        size += os.read(0, 1) or os._exit(125)  # the parent is gone
    source = b""
    while len(source) < int(size):
        source += os.read(0, int(size) - len(source)) or os._exit(125)
    sys.argv = ["program", str(answer)]
    program = {"__name__": "__main__", "__builtins__": __builtins__}
    exec(compile(source.decode("utf-8", "surrogatepass"), "<program>", "exec"), program)


def _take_limits(numbers: dict[str, int]) -> None:
    """Hard limits: an ordinary user cannot raise them again. Memory and CPU are per process, so processes are few."""
    import resource

    def limit(kind: int, value: int, extra: int = 0) -> None:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value + extra if hard == resource.RLIM_INFINITY else value))

    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, numbers["cpu"], 1)  # SIGXCPU first, SIGKILL a second later for programs that ignore it
    limit(resource.RLIMIT_FSIZE, numbers["file"])
    limit(resource.RLIMIT_NOFILE, numbers["files"])
    limit(resource.RLIMIT_AS, numbers["memory"])
    limit(resource.RLIMIT_NPROC, numbers["processes"])


def _no_new_privileges() -> None:
    _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _libc() -> "Any":
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        import ctypes

        sys.stderr.write(f"{what}: {os.strerror(ctypes.get_errno())}\n")
        sys.stderr.flush()
        os._exit(126)


def _enter_own_box(settings: dict[str, list[str]]) -> None:
    """Namespaces of its own for users, files, processes, network and messages; returns in the process of the program.

    Three processes: this one waits outside; number 1 of the new process namespace takes in orphans, and its end kills
    them all; number 2 goes on and runs the program.
    """
    libc, uid, gid = _libc(), os.getuid(), os.getgid()
    spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    _check(libc.unshare(spaces), "unshare")
    for path, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{path}", "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")  # no namespace in the namespace: there the program would be allowed to mount
    _build_root(libc, settings)
    _wait_for_child_and_exit_with_it(None)
    _drop_capabilities(libc)
    libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    answer = int(settings["answer"][0])
    _wait_for_child_and_exit_with_it(answer)


def _wait_for_child_and_exit_with_it(close: "int | None") -> None:
    """Fork; the parent ends as its child ends, the child returns."""
    child = os.fork()
    if child == 0:
        return
    for fd in (0, 1, 2, *(() if close is None else (close,))):
        os.close(fd)  # so that the reader's end of file means: the program ended
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _build_root(libc: "Any", settings: dict[str, list[str]]) -> None:
    """A new root on a tmpfs: read-only, with the interpreter's folders and a scratch folder of limited size."""
    scratch = settings["scratch"][0]

    def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
        result = libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode())
        _check(result, f"mount {source} at {target}")

    root = "/tmp"
    mount("none", "/", "none", MS_REC | MS_PRIVATE)
    sources = {}
    for path in settings["bind"]:
        sources[path] = os.open(path, os.O_PATH)  # some may lie under the folder that is covered next
    mount("box", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path, fd in sources.items():
        target = root + path
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            open(target, "a").close()
        mount(f"/proc/self/fd/{fd}", target, "none", MS_BIND | MS_REC)
        flags = os.statvfs(target).f_flag & KEPT_FLAGS
        mount("none", target, "none", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | flags)
        os.close(fd)
    for path in settings.get("mask", []):
        if os.path.isdir(root + path):
            mount("box", root + path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=755")
    for link in settings.get("link", []):
        path, _, target = link.partition(":")
        os.symlink(target, root + path)
    os.mkdir(root + scratch)
    mount("box", root + scratch, "tmpfs", MS_NOSUID | MS_NODEV, f"size={settings['scratch_bytes'][0]},mode=700")
    os.chdir(root)
    _check(libc.syscall(SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")
    mount("none", "/", "none", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _drop_capabilities(libc: "Any") -> None:
    import ctypes

    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


if __name__ == "__main__":
    main()
