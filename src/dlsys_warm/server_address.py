"""The socket address of the fork server for an environment, and how that server is started.

A forked kernel inherits what its server had at import: environment variables that libraries read
only then, resource limits, installed packages. So the socket's name is a hash of these, and each
such environment has its own server, started by the first kernel that finds none.
``DLSYS_WARM_PRELOAD`` names the modules to import, ``DLSYS_WARM_IDLE`` the seconds after which a
server without kernels ends.
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

# Not dlsys_helpers, which reads a learner's folders from the environment at import. Not jax, which
# starts threads at import: no thread survives a fork. Not torchvision, which imports triton, and
# triton reads TRITON_INTERPRET only once.
PRELOAD = ("numpy,torch,matplotlib.pyplot,ipywidgets,anywidget,ipykernel.ipkernel,"
           "ipykernel.kernelapp")
IDLE = "900"
# Variables that the interpreter, the dynamic loader or a library reads once, at start.
READ_AT_START = re.compile(
    r"(ATEN|BLIS|CUBLAS|CUDA|DNNL|GLIBC|GOMP|GOTO|KINETO|KMP|LC|LD|MALLOC|MATPLOTLIB|MKL|MPL|NCCL|"
    r"NUMEXPR|NUMPY|NVIDIA|OMP|ONEDNN|OPENBLAS|PYTHON|PYTORCH|TORCH|TRITON|VECLIB)[A-Z0-9_]*"
    r"|LANG|LANGUAGE|PATH|DLSYS_WARM_(PRELOAD|IDLE)")


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """The server's environment: only the kernel's variables that READ_AT_START names.

    All others, such as a learner's tokens, go with the order, to that one kernel only.
    """
    kept = {name: value for name, value in env.items() if READ_AT_START.fullmatch(name)}
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # as ipykernel sets it
    return {**inline, "DLSYS_WARM_PRELOAD": PRELOAD, "DLSYS_WARM_IDLE": IDLE, **kept}


def name_of(options: Sequence[str], env: Mapping[str, str]) -> str:
    """A hash of everything that a kernel inherits from its server."""
    packages = [Path(path).stat().st_mtime_ns for path in sys.path  # changes with each install
                if path.endswith("site-packages")]
    limits = [resource.getrlimit(number) for name, number in sorted(vars(resource).items())
              if name.startswith("RLIMIT_")]
    facts = [sys.executable, list(options), sorted(settings(env).items()), packages, limits,
             sorted(os.sched_getaffinity(0))]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def folder() -> Path:
    """The folder of this user's sockets. Raises PermissionError if it is another's."""
    path = Path(tempfile.gettempdir()) / f"dlsys-warm-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    facts = path.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077 or path.is_symlink():
        raise PermissionError(f"{path}: not a folder of yours alone. Remove it")
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int | None]:
    """Take an flock on this file; yields its descriptor, or None if another process holds it.

    The server inherits the descriptor and so holds the lock while it lives. When many
    clients come at once, only one starts a server, and none unlinks a living server's socket.
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
        path.unlink(missing_ok=True)  # left by a server that was killed
        listener = socket.socket(socket.AF_UNIX)
        with listener, open(path.with_suffix(".log"), "wb") as log:
            listener.bind(str(path))
            listener.listen(128)
            # Its own session, so that Ctrl-C in the first client's terminal does not reach
            # the server. It forks into the background itself: this call returns at once.
            subprocess.run([sys.executable, *options, "-m", "dlsys_warm.server", str(path),
                            str(listener.fileno()), str(lock)], env=settings(env), cwd="/",
                           pass_fds=[listener.fileno(), lock], start_new_session=True,
                           stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
