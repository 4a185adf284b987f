"""Which warm server a kernel belongs to, where that one listens, and how it is started.

A forked kernel has what its server had at import: the values of variables that libraries read only
then, limits, packages. So there is a server for each set of them, and a kernel gets the one of its
own set or, where there is none yet, starts it. ``DLSYS_WARM_PRELOAD`` names the modules to import,
``DLSYS_WARM_IDLE`` the seconds after which a server without kernels ends.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Neither dlsys_helpers, which reads a learner's folders from the environment as it is imported,
# nor what starts threads at import, such as jax: those would not live on in a fork.
PRELOAD = ("numpy,torch,torchvision,matplotlib.pyplot,ipywidgets,anywidget,"
           "ipykernel.ipkernel,ipykernel.kernelapp")
IDLE = "900"
# Read by the interpreter, the loader or a library once, as it starts.
READ_AT_START = re.compile(
    r"(ATEN|BLIS|CUBLAS|CUDA|DNNL|GLIBC|GOMP|GOTO|KINETO|KMP|LC|LD|MALLOC|MATPLOTLIB|MKL|MPL|NCCL|"
    r"NUMEXPR|NUMPY|NVIDIA|OMP|ONEDNN|OPENBLAS|PYTHON|PYTORCH|TORCH|TRITON|VECLIB)[A-Z0-9_]*"
    r"|LANG|LANGUAGE|PATH|DLSYS_WARM_(PRELOAD|IDLE)")


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """What a server's environment holds: of the kernel's, no more than is read at the start.

    So a server keeps no token of the learner who happened to come first.
    """
    kept = {name: value for name, value in env.items() if READ_AT_START.fullmatch(name)}
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # as ipykernel sets it
    return {**inline, "DLSYS_WARM_PRELOAD": PRELOAD, "DLSYS_WARM_IDLE": IDLE, **kept}


def name_of(options: Sequence[str], env: Mapping[str, str]) -> str:
    """A short name for all that a kernel takes over from its server."""
    packages = [Path(path).stat().st_mtime_ns for path in sys.path  # others after each install
                if path.endswith("site-packages")]
    limits = [resource.getrlimit(number) for name, number in sorted(vars(resource).items())
              if name.startswith("RLIMIT_")]
    facts = [sys.executable, list(options), sorted(settings(env).items()), packages, limits,
             sorted(os.sched_getaffinity(0))]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def folder() -> Path:
    """The folder of this user's sockets. Raises PermissionError where it is another's."""
    path = Path(tempfile.gettempdir()) / f"dlsys-warm-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    facts = path.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077 or path.is_symlink():
        raise PermissionError(f"{path}: not a folder of yours alone. Remove it")
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int | None]:
    """An open file with this lock on it, or None where another process holds the lock.

    A server inherits the file from who started it, and so holds the lock for as long as it lives:
    of many that come at once one starts it, and no socket of a living server is taken away.
    """
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file.fileno()


def start(path: Path, options: Sequence[str], env: Mapping[str, str]) -> None:
    """Start the server that listens at path, unless another process does so."""
    with locked(path.with_suffix(".lock")) as lock:
        if lock is None:
            return
        path.unlink(missing_ok=True)  # of a server that was killed
        listener = socket.socket(socket.AF_UNIX)
        with listener, open(path.with_suffix(".log"), "wb") as log:
            listener.bind(str(path))
            listener.listen(128)
            # In a session of its own: a Ctrl-C for whoever came first is not for the server. That
            # goes into the background by itself, so nothing is left to wait for here.
            subprocess.run([sys.executable, *options, "-m", "dlsys_warm.server", str(path),
                            str(listener.fileno()), str(lock)], env=settings(env), cwd="/",
                           pass_fds=[listener.fileno(), lock], start_new_session=True,
                           stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
