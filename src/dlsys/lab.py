"""`dlsys lab`: JupyterLab on the learner's start page, or one line that says why it cannot start.

In a checkout `make lab` sets everything up first and then runs this.
"""

import argparse
import errno
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

from dlsys import windows, work_folder
from dlsys_files import locations
from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import ROOT

PORT = "8888"
EXTENSIONS = Path(__file__).with_name("labextensions")  # how the course's notebooks look and open
START = "import dlsys; from jupyterlab.labapp import main; main()"  # dlsys: for a faster start
MISSING = ("JupyterLab is not installed here. Run: {python} -m pip install jupyterlab (under uvx, "
           "add --with jupyterlab to the command instead). VS Code also opens the notebooks in "
           "{folder}.")


def add_parser(commands) -> None:
    """Add `lab` to the commands of `dlsys`."""
    parser = commands.add_parser("lab", help="JupyterLab on your start page")
    parser.add_argument("--port", default=PORT, help=f"port of JupyterLab (default {PORT})")
    parser.add_argument("options", nargs="*", metavar="OPTION",
                        help="options of JupyterLab, after two dashes: dlsys lab -- --no-browser")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    page = work_folder.start_page()
    if importlib.util.find_spec("jupyterlab") is None:
        raise UserError("lab: " + MISSING.format(python=sys.executable, folder=page.parent))
    line = command(port_number(args.port), args.options, page)
    # JupyterLab's terminals then know `dlsys` and `pytest` without activating anything.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["VIRTUAL_ENV"] = sys.prefix
    os.chdir(_root(page))
    if windows.HERE:  # it has no exec that keeps the terminal
        return subprocess.run(line, check=False).returncode
    sys.stdout.flush()
    os.execv(line[0], line)


def busy(port: int) -> bool:
    """Whether something on this machine already listens on localhost at this port."""
    for family, *_, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Without this, a port closed a minute ago still counts as busy.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False


def port_number(text: str) -> int:
    """The port to listen on. Raises UserError, one line, if it cannot be used."""
    how = "make lab PORT=" if locations.is_checkout() and not windows.HERE else "dlsys lab --port "
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise UserError(f"lab: port: got {text!r}, expected 1 to 65535, as in: {how}8889")
    port = int(text)
    if busy(port):
        other = next(p for p in range(port % 60000 + 1, 65536) if p > 1023 and not busy(p))
        raise UserError(f"lab: port {port} is in use, perhaps by a JupyterLab that you started "
                        f"earlier. Use that one, stop it, or run: {how}{other}")
    return port


def _root(page: Path) -> Path:
    """The folder that JupyterLab shows: the course's own if the learner's work is in it."""
    return ROOT if locations.is_checkout() and page.is_relative_to(ROOT) else page.parent


def command(port: int, options: list[str], page: Path) -> list[str]:
    """The command line of JupyterLab, with the start page open."""
    folder = _root(page)
    as_root = ["--allow-root"] if not windows.HERE and os.geteuid() == 0 else []
    return [sys.executable, "-c", START, *as_root, f"--port={port}",
            "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}",
            f"--LabApp.extra_labextensions_path={EXTENSIONS}",
            f"--LabApp.default_url=/lab/tree/{page.relative_to(folder).as_posix()}", *options]
