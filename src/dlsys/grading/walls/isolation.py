"""Isolate the learner's code: namespaces, a read-only view of the files, limits, no privileges.

Linux only, through the C library; no helper program has to be installed. Nothing here is secret:
the learner's process loads this module as well. It needs no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import secrets
import site
import sys
from collections.abc import Iterable
from pathlib import Path

from dlsys.grading.settings import Limits
from dlsys.grading.walls import seccomp

libc = ctypes.CDLL(None, use_errno=True)

NEW_MOUNTS, NEW_CGROUP, NEW_NAMES, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
OWN = NEW_MOUNTS | NEW_CGROUP | NEW_NAMES | NEW_IPC | NEW_NET  # and NEW_PIDS, separately
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18)
DETACH = 2  # umount2
DIE_WITH_PARENT, SET_DUMPABLE, DROP_BOUND, AMBIENT = 1, 4, 24, 47  # prctl
AMBIENT_RAISE = 2
LAST_CAPABILITY = 63  # the highest that a kernel could know
_CAPABILITY_VERSION = 0x20080522
PACKAGES = [Path(__file__).parents[3] / name
            for name in ("dlsys", "dlsys_files", "dlsys_helpers", "dlsys_checks")]
INTERPRETER = os.path.realpath(sys.executable)  # resolved, because links to it are not in the view
VIEW = "/sys"  # where the view is built: every machine has this folder, without Python in it
HOME = "/sandbox"  # the one place where the learner's code can write
HOST = b"sandbox"  # the host name that it sees, which an error's text may show
LEARNER_ID = 1000  # the user id it sees when an ordinary user grades
# User ids that root assigns to sandboxes. By systemd's list, the first are of no user, container or
# service; the others, for a container with fewer ids, are far above its users.
OWN_IDS = range(0x7000_0000, 0x7FF0_0000), range(20_000, 60_000)

# The whole environment of the learner's code. One thread per process: a fork must not
# inherit a thread pool, and a cohort's processes share the machine's cores.
ENVIRONMENT = {
    "HOME": HOME, "TMPDIR": HOME, "MPLCONFIGDIR": HOME, "MPLBACKEND": "Agg", "USER": "learner",
    "LOGNAME": "learner", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1",
    "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2",
    # The heap grows in large steps, which `zygote` gathers in large pages.
    "GLIBC_TUNABLES": "glibc.malloc.top_pad=67108864",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class WallError(OSError):
    """A wall cannot be built here; the text says which."""


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise WallError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags` for new ones. Raises WallError."""
    _check(libc.unshare(flags), "new namespaces")


def set_namespaces(fd: int, flags: int) -> None:
    """Join the namespaces in `flags` of a process (a pidfd) or of a namespace file."""
    _check(libc.setns(fd, flags), "joining namespaces")


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process. Raises WallError."""
    zero = ctypes.c_ulong(0)
    _check(libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")


def _mount(source: str, target: str, kind: str | None = None, flags: int = 0,
           options: str | None = None) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    _check(libc.mount(*encoded, ctypes.c_ulong(flags), options.encode() if options else None),
           f"mounting {target}")


# ---- the view: built once for each zygote

def visible_paths() -> list[str]:
    """Paths that Python needs: itself, its library, installed packages, system libraries."""
    python = [INTERPRETER, f"{sys.prefix}/pyvenv.cfg", f"{sys.base_prefix}/lib"]
    packages = [*site.getsitepackages(), *map(str, PACKAGES)]
    system = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache"]
    # Folders first: a file may be inside one of them.
    found = sorted(dict.fromkeys([*python, *packages, *system]), key=os.path.isfile)
    return [path for path in found if os.path.exists(path)]


def installed() -> bool:
    """Whether our packages are in site-packages, all of which the view shows."""
    return str(PACKAGES[0].parent) in site.getsitepackages()


def masked_paths() -> list[str]:
    """Paths that the view hides: laws, named wrong answers and stand-ins would reveal answers."""
    model = PACKAGES[0].parent / "dlsys_model"  # a checkout does not show it at all
    return [str(PACKAGES[-1]), *([str(model)] if installed() and model.is_dir() else [])]


def build_view(visible: Iterable[str], masked: Iterable[str], root: str = VIEW) -> None:
    """Build a read-only tree of `visible` in the folder `root`, and make it this process's root.

    Only this process's own mounts change, so a kill leaves nothing to clean up. A user who is not
    root first becomes the only user of a new user namespace. Raises WallError.
    """
    if choose_user() is None:
        user, group = os.geteuid(), os.getegid()
        unshare(NEW_USER)
        _map_ids(user, group)
    unshare(NEW_MOUNTS)
    _mount("none", "/", None, RECURSIVE | PRIVATE)
    _mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEV, "mode=755,size=1m")
    for path in visible:
        _bind_into_view(path, root)
    for path in masked:
        _mount("tmpfs", root + path, "tmpfs", READ_ONLY | NO_SUID | NO_DEV, "mode=755,size=4k")
    _devices(root)
    _enter_root(root)
    _mount("tmpfs", HOME, "tmpfs", NO_SUID | NO_DEV | NO_EXEC, "mode=1777,size=32m")


def _map_ids(user: int, group: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{LEARNER_ID} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{LEARNER_ID} {group} 1")


def _bind_into_view(path: str, root: str) -> None:
    target = root + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    elif not os.path.exists(target):  # else a folder around it is in the view already
        os.makedirs(target) if os.path.isdir(path) else Path(target).touch()
        _bind_read_only(path, target, NO_DEV)


def _bind_read_only(source: str, target: str, more: int) -> None:
    _mount(source, target, None, BIND)
    _mount("none", target, None, BIND | REMOUNT | READ_ONLY | NO_SUID | more)


def _devices(root: str) -> None:
    for folder in ("/dev", "/proc", HOME, "/old"):
        os.makedirs(root + folder, exist_ok=True)
    # No /dev/zero: the kernel counts a shared mapping of it for no process.
    for name in ("null", "urandom", "random"):
        Path(f"{root}/dev/{name}").touch()
        # Read-only: reads and writes still work, but mode, owner and times cannot change.
        _bind_read_only(f"/dev/{name}", f"{root}/dev/{name}", NO_EXEC)
    os.symlink(HOME, f"{root}/dev/shm")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    _mount("/proc", f"{root}/proc", None, BIND | RECURSIVE)


def _enter_root(root: str) -> None:
    os.chdir(root)
    pivot_root = 155 if os.uname().machine == "x86_64" else 41
    _check(libc.syscall(pivot_root, b".", b"old"), "new root")
    os.chdir("/")
    _check(libc.umount2(b"/old", DETACH), "leaving the old root")
    os.rmdir("/old")
    _mount("none", "/", None, BIND | REMOUNT | READ_ONLY | NO_SUID | NO_DEV)


def start_inside(*arguments: str) -> None:
    """Replace this process with the view's own Python. Returns only by raising OSError.

    A process reaches the file it runs as /proc/self/exe, and the file's owner may change its mode,
    times and attributes. So the interpreter must be the read-only one inside the view.
    """
    _keep_capabilities()
    os.execve(INTERPRETER, [sys.executable, *arguments], ENVIRONMENT)


def _keep_capabilities() -> None:
    """Keep capabilities across the start of a program; without this only root keeps them."""
    head, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(libc.capget(head, sets), "reading capabilities")
    for permitted, inheritable in ((1, 2), (4, 5)):
        sets[inheritable] = sets[permitted]
    _check(libc.capset(head, sets), "keeping capabilities")
    for capability in range(LAST_CAPABILITY + 1):  # an error for those that it does not have
        libc.prctl(AMBIENT, ctypes.c_ulong(AMBIENT_RAISE), ctypes.c_ulong(capability), 0, 0)


# ---- one submission

def enter_own_namespaces() -> None:
    """Give the init its own namespaces and its own list of processes."""
    unshare(OWN)
    for name_it in (libc.sethostname, libc.setdomainname):  # else the copy keeps the machine's
        _check(name_it(HOST, len(HOST)), "naming the host")
    _mount("none", "/", None, RECURSIVE | PRIVATE)
    # subset=pid: the processes and nothing else about the machine
    _mount("proc", "/proc", "proc", NO_SUID | NO_DEV | NO_EXEC, "subset=pid")
    os.chdir("/")


def mount_new_home(limits: Limits) -> None:
    """Mount a new small disk in place of the one that the last attempt wrote to.

    An attempt must find no file of the attempt before it.
    """
    _check(libc.umount2(HOME.encode(), DETACH), "leaving the old disk")
    _mount("tmpfs", HOME, "tmpfs", NO_SUID | NO_DEV | NO_EXEC,
           f"mode=1777,size={limits.disk},nr_inodes={limits.files}")
    os.chdir(HOME)


def set_limits(limits: Limits) -> None:
    """Put the kernel's limits on this process and on each of its children."""
    with open("/proc/self/statm") as statm:  # what the libraries map does not count
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    cpu = int(limits.seconds * 4) + 1
    for kind, value in (
            (resource.RLIMIT_AS, mapped + limits.memory), (resource.RLIMIT_CPU, cpu),
            (resource.RLIMIT_NPROC, limits.processes), (resource.RLIMIT_FSIZE, limits.disk),
            (resource.RLIMIT_NOFILE, limits.open_files), (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0), (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_SIGPENDING, limits.open_files),  # timers count as well
            (resource.RLIMIT_RTPRIO, 0), (resource.RLIMIT_NICE, 0)):
        resource.setrlimit(kind, (value, value))


def choose_user() -> int | None:
    """Choose a user id for this zygote's sandboxes; None if this user may not choose one.

    The id is random. The kernel counts processes by user, so two graders that do not know of each
    other, in two containers for example, must not choose the same one.
    """
    if os.geteuid() != 0:
        return None
    for ids in OWN_IDS:
        if all(_mapped(ids, kind) for kind in ("uid", "gid")):
            return secrets.choice(ids)
    return None


def _mapped(ids: range, kind: str) -> bool:
    lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
    known = [range(int(first), int(first) + int(count))
             for first, _, count in (line.split() for line in lines)]
    return any(ids[0] in one and ids[-1] in one for one in known)


def give_up_privileges(user: int | None) -> None:
    """Become `user`, drop every capability for good, and filter system calls. Raises OSError."""
    for capability in range(LAST_CAPABILITY + 1):  # an error beyond the kernel's last one
        libc.prctl(DROP_BOUND, ctypes.c_ulong(capability), 0, 0, 0)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(libc.capset(head, (ctypes.c_uint32 * 6)()), "dropping capabilities")
    seccomp.install(libc)


# ---- where the walls cannot be built

def remedy() -> str:
    """Advice for a machine where the walls cannot be built, from its kernel's settings."""
    if sys.platform != "linux":
        return "Grade on Linux: in a virtual machine, a container or WSL 2."
    if command := forbidding_setting():
        return f"Allow user namespaces: {command}"
    return ("In a container, allow namespaces: docker run --security-opt seccomp=unconfined "
            "--security-opt systempaths=unconfined --cap-add SYS_ADMIN. Elsewhere, grade as root.")


def forbidding_setting() -> str | None:
    """The command that lets ordinary users make user namespaces; None if they may already."""
    for name, bad, command in (
            ("kernel/unprivileged_userns_clone", "0",
             "sudo sysctl kernel.unprivileged_userns_clone=1"),
            ("kernel/apparmor_restrict_unprivileged_userns", "1",
             "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
            ("user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=10000")):
        with contextlib.suppress(OSError):
            if Path("/proc/sys", name).read_text().strip() == bad:
                return command
    return None
