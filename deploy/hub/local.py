"""Set up a hub for trying in .venv-hub, and run it: make hub

python -m deploy.hub.local [--port 8000] [--data FOLDER] [--rooms 8 5] [--setup]
"""

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

from dlsys.lab import busy
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import NUMBERS

HOME = ROOT / ".venv-hub"
CONFIG = Path(__file__).with_name("jupyterhub_config.py")
PROXY = "configurable-http-proxy@5.3.0"
PYTHON = HOME / "bin" / "python"


def pins() -> list[str]:
    """What the extra `hub` asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project["optional-dependencies"]["hub"]


def state() -> str:
    return "\n".join([*pins(), PROXY, sysconfig.get_path("purelib")])


def set_up() -> None:
    """Make .venv-hub unless it is there, as asked for: it sees the packages of .venv."""
    ready = HOME / "ready"
    if ready.exists() and ready.read_text() == state():
        return
    if not shutil.which("npm"):
        raise SystemExit("hub: npm: not found. Install Node.js 20 or newer, then run: make hub")
    print(f"hub: setting up {HOME.name}, a minute the first time", flush=True)
    installing([sys.executable, "-m", "venv", "--clear", str(HOME)])
    # A .pth file inside of a folder is read only where the folder is added as a site.
    folder = next(HOME.glob("lib/python*/site-packages"))
    (folder / "course.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    installing([str(PYTHON), "-m", "pip", "install", "-q", "-c", str(ROOT / "requirements.lock"),
                *pins()])
    installing(["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(HOME),
                PROXY])
    ready.write_text(state())


def installing(command: list[str]) -> None:
    """Run a step of the set-up. Raises SystemExit, with its last words, where it fails."""
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise SystemExit(f"hub: {Path(command[0]).name} failed: {last[-1][:200]}. "
                         "It needs the package indexes of Python and npm; run: make hub")


def free_ports(port: int, rooms: int = 0) -> None:
    """Raises SystemExit where a port is taken: of the page, the hub, the proxy itself, a room."""
    if not 1024 <= port <= 65533 - rooms:
        raise SystemExit(f"hub: port: got {port}, expected 1024 to {65533 - rooms}")
    if taken := [p for p in range(port, port + 3 + rooms) if busy(p)]:
        raise SystemExit(f"hub: port {taken[0]} is in use. Run: make hub PORT={port + 10}")


def password() -> str:
    """The password of all learners, from DLSYS_HUB_PASSWORD or drawn anew."""
    chosen = os.environ.get("DLSYS_HUB_PASSWORD") or secrets.token_urlsafe(9)
    if len(chosen) < 8:
        raise SystemExit(f"hub: DLSYS_HUB_PASSWORD: got {len(chosen)} characters, expected 8")
    return chosen


def environment(port: int, data: Path, secret: str, rooms: Sequence[int] = ()) -> dict[str, str]:
    """What jupyterhub_config.py reads."""
    return {**os.environ, "DLSYS_HUB_PORT": str(port), "DLSYS_HUB_DATA": str(data),
            "DLSYS_HUB_PASSWORD": secret, "DLSYS_HUB_ROOMS": " ".join(map(str, rooms))}


def command() -> list[str]:
    return [str(PYTHON), "-m", "jupyterhub", "-f", str(CONFIG)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make hub", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000, help="the page; two more follow it")
    parser.add_argument("--data", type=Path, default=ROOT / "hub-data",
                        help="folder of the learners' work and the hub's database")
    parser.add_argument("--rooms", type=int, nargs="+", default=[], choices=NUMBERS,
                        metavar="STAGE", help="stages for which a class's room is opened")
    parser.add_argument("--setup", action="store_true", help="only set up")
    asked = parser.parse_args()
    set_up()
    if asked.setup:
        return
    rooms = sorted(set(asked.rooms))
    free_ports(asked.port, len(rooms))
    data, secret = asked.data.resolve(), password()
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    print(f"hub: http://127.0.0.1:{asked.port}, any user name, password {secret}", flush=True)
    os.execve(PYTHON, command(), environment(asked.port, data, secret, rooms))


if __name__ == "__main__":
    main()
