"""Start JupyterLab on the learner's start page, or say in one line why it cannot start.

python -m tools.lab PORT [option of JupyterLab ...]
"""

import errno
import os
import socket
import sys
from pathlib import Path

from dlsys import work_folder
from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import ROOT


def busy(port: int) -> bool:
    """Whether something on this machine already listens on localhost at this port."""
    for family, *_, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Else a port that was left a minute ago still counts as busy.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False


def port_number(text: str) -> int:
    """The port to listen on. Raises SystemExit, one line, for one that cannot be had."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise SystemExit(f"lab: PORT: got {text!r}, expected 1 to 65535, as in: make lab PORT=8889")
    port = int(text)
    if busy(port):
        other = next(p for p in range(port % 60000 + 1, 65536) if p > 1023 and not busy(p))
        raise SystemExit(f"lab: port {port} is in use, perhaps by an earlier make lab. "
                         f"Use that one, stop it, or run: make lab PORT={other}")
    return port


EXTENSIONS = Path(__file__).with_name("labextensions")  # how the course's notebooks look and open
START = "import dlsys; from jupyterlab.labapp import main; main()"  # dlsys: for a faster start


def command(port: int, options: list[str], page: Path) -> list[str]:
    """The command line of JupyterLab: the start page open, the project as root if it holds it."""
    folder = ROOT if page.is_relative_to(ROOT) else page.parent
    root = ["--allow-root"] if os.geteuid() == 0 else []
    return [sys.executable, "-c", START, *root, f"--port={port}",
            "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}",
            f"--LabApp.extra_labextensions_path={EXTENSIONS}",
            f"--LabApp.default_url=/lab/tree/{page.relative_to(folder)}", *options]


def main() -> None:
    port = port_number(sys.argv[1])
    try:
        line = command(port, sys.argv[2:], work_folder.start_page())
    except UserError as error:
        raise SystemExit(f"lab: {error}") from None
    # JupyterLab's terminals then know `dlsys` and `pytest` without activating anything.
    os.environ["PATH"] = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    os.environ["VIRTUAL_ENV"] = sys.prefix
    os.chdir(ROOT)
    os.execv(line[0], line)


if __name__ == "__main__":
    main()
