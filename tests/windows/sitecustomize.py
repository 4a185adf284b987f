"""Python as the course meets it on Windows: what only POSIX has is not there, msvcrt is.

Every Python that starts with this folder on its path imports this file. Only modules of the course
are kept from things: other packages have ways of their own on Windows, which are not tested here.
"""

import builtins
import errno
import fcntl
import os
import select
import signal
import sys
import time
import types
import warnings

GONE = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
GONE_FROM = {
    "os": """fork forkpty pread pwrite getuid geteuid getgid getegid setuid setgid setgroups
        setresuid setresgid killpg setsid getpgid setpgid getpgrp getsid wait wait3 wait4 waitid
        WNOHANG O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_CLOEXEC sched_getaffinity uname mkfifo mknod
        chown lchown fchown nice getloadavg register_at_fork sysconf statvfs memfd_create pidfd_open
        posix_spawn""",
    "signal": """SIGALRM SIGKILL SIGHUP SIGCHLD SIGUSR1 SIGUSR2 SIGXFSZ SIGXCPU SIGPIPE SIGSTOP
        SIGCONT alarm pause setitimer getitimer ITIMER_REAL pthread_sigmask pthread_kill sigwait
        siginterrupt""",
    "select": "poll epoll",
}


class Module(types.ModuleType):
    """A module without some of its names, and with others."""

    def __init__(self, real, **own):
        super().__init__(real.__name__)
        gone = set(GONE_FROM[real.__name__].split()) - own.keys()
        self.__dict__.update(own, _real=real, _gone=gone)

    def __getattr__(self, name):
        if name in self._gone:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._real, name)

    def __setattr__(self, name, value):
        setattr(self._real, name, value)


def opened(path, flags, *rest, **options):
    """Without O_APPEND: writes that do not meet each other at a file's end are POSIX's alone."""
    return os.open(path, flags & ~os.O_APPEND, *rest, **options)


def written(fd, data):
    """With time for another process to come between."""
    time.sleep(0.001)
    return os.write(fd, data)


def of_sockets(*watched):
    """Windows watches nothing else."""
    if any(isinstance(one, int) for many in watched[:3] for one in many):
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
    return select.select(*watched)


def locking(fd, mode, _bytes):
    """A lock that keeps every other handle out; LK_LOCK asks ten times, with a second between."""
    if mode == msvcrt.LK_UNLCK:
        return fcntl.flock(fd, fcntl.LOCK_UN)
    for _ in range(10):
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(1)
    raise OSError(errno.EDEADLK, os.strerror(errno.EDEADLK))


msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_UNLCK, msvcrt.LK_LOCK, msvcrt.locking = 0, 1, locking
INSTEAD = {"msvcrt": msvcrt, "signal": Module(signal), "select": Module(select, select=of_sockets),
           "os": Module(os, name="nt", open=opened, write=written)}
everywhere = builtins.__import__


def as_on_windows(name, globals=None, locals=None, fromlist=(), level=0):
    if level == 0 and "/src/dlsys" in str((globals or {}).get("__file__")):
        if name in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in INSTEAD:
            return INSTEAD[name]
    return everywhere(name, globals, locals, fromlist, level)


builtins.__import__ = as_on_windows
if sys.flags.warn_default_encoding:
    warnings.filterwarnings("error", category=EncodingWarning, module="dlsys")
