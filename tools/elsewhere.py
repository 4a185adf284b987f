"""Run lessons with versions other than the locked ones, each from its notebook file alone.

    python -m tools.elsewhere colab             with Colab's versions: all lessons
    python -m tools.elsewhere newest 01 14      with today's newest: these

Each environment has its own folder, .colab/ or .newest/, created again when its list of versions
changes. Colab's list is recorded in deploy/colab.txt. Each call resolves the newest one from the
package's own floors and pip's index. The course is not in the environment: the first cell of each
notebook installs the wheel and whatever else the stage needs. A claim that does not hold or a cell
that fails makes the run fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

from dlsys import needed, work_folder
from dlsys_helpers import catalog
from dlsys_helpers.paths import NOTEBOOKS, ROOT

TIMEOUT = 900  # seconds for one cell: the nightly machine is shared


class Place(NamedTuple):
    """An environment without the course: its name and its Python."""

    name: str
    python: str

    @property
    def home(self) -> Path:
        return ROOT / f".{self.name}"

    @property
    def own_python(self) -> str:
        return str(self.home / "bin/python")


# Colab's own Python, and the newest one; ELSEWHERE_PYTHON is a path, in case uv finds none.
PLACES = {"colab": Place("colab", "3.13"), "newest": Place("newest", "3.14")}


def versions(place: Place, settings: dict[str, str]) -> str:
    """The list of versions in pip's format. Raises SystemExit if it cannot be resolved."""
    if place.name == "colab":
        return (ROOT / "deploy/colab.txt").read_text("utf-8")
    floors = "\n".join(needed.project()["dependencies"])
    done = subprocess.run([_uv(), "pip", "compile", "--quiet", "--no-header", "--no-annotate",
                           "--python", _python(place), "-"], input=floors, text=True,
                          capture_output=True, env=settings, check=False)
    if done.returncode:
        sys.exit(f"newest: the floors of pyproject.toml cannot be resolved.\n{done.stderr}")
    return done.stdout


def set_up(place: Place) -> None:
    """Create the environment, unless it already exists for this list of versions."""
    settings = {**os.environ, **as_pip_is_told()}
    wanted, made = versions(place, settings), place.home / "made-for"
    if made.is_file() and made.read_text("utf-8") == wanted:
        return
    shutil.rmtree(place.home, ignore_errors=True)
    if subprocess.run([_uv(), "venv", "--quiet", "--seed", "--python", _python(place), place.home],
                      env=settings, check=False).returncode or subprocess.run(
            [_uv(), "pip", "install", "--quiet", "--python", place.own_python, "-r", "-"],
            input=wanted, text=True, env=settings, check=False).returncode:
        sys.exit(f"{place.name}: the environment cannot be made, see above. It takes Python "
                 f"{place.python} (or ELSEWHERE_PYTHON=/path/to/python), the network and 5 GB.")
    made.write_text(wanted, "utf-8")


def _uv() -> str:
    return str(Path(sys.executable).with_name("uv"))


def _python(place: Place) -> str:
    return os.environ.get("ELSEWHERE_PYTHON", place.python)


# uv's names for pip's settings; pip separates several files by spaces, uv by commas.
UV_NAMES = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE",
            "find-links": "UV_FIND_LINKS", "constraint": "UV_CONSTRAINT", "proxy": "ALL_PROXY"}


def as_pip_is_told() -> dict[str, str]:
    """pip's settings as variables for uv, which does not read pip's configuration."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, text=True,
                          capture_output=True).stdout
    found = re.findall(r"^[^=]*\.([\w-]+)='(.*)'$", said, re.MULTILINE)
    told = {UV_NAMES[key]: value.replace("\\n", " ") for key, value in found if key in UV_NAMES}
    told["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # like pip, take the best of all indexes
    return {name: value for name, value in told.items() if name not in os.environ}


def wheel(folder: Path) -> Path:
    """The course's wheel, built from this checkout."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
                    "-w", str(folder), str(ROOT)], check=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    return next(folder.glob("*.whl"))


def kernels_of(place: Place) -> type[AsyncKernelManager]:
    """A kernel manager for this environment that ignores the kernels registered here."""
    class Manager(AsyncKernelManager):
        kernel_spec = KernelSpec(
            argv=[place.own_python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name=place.name, language="python")
    return Manager


def run(place: Place, path: Path, folder: Path, course: Path) -> NotebookNode:
    """Run a learner's copy of a lesson in an otherwise empty folder, without the course."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([place.own_python, "-m", "pip", "uninstall", "-qq", "-y",
                    needed.PACKAGE], check=True, env=env)
    stage = work_folder.stage_of(path.stem)
    copy = work_folder.lesson_copy(path.read_bytes(), stage, f"{path.stem}.ipynb")
    book = nbformat.reads(copy.decode(), as_version=4)
    client = NotebookClient(book, timeout=TIMEOUT, allow_errors=True,
                            kernel_manager_class=kernels_of(place),
                            resources={"metadata": {"path": str(folder)}})
    client.execute(env={**env, "DLSYS_WHEEL": str(course), "DLSYS_PROGRESS": "off",
                        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else it warns about Python 3.13
                        "DLSYS_WORK": str(folder)})
    return book


def claims(book: NotebookNode) -> int:
    """How many claims hold, counted from the lines that they print."""
    return sum(o.get("data", {}).get("text/plain", "").startswith("holds: ")
               for cell in book.cells for o in cell.get("outputs", []))


def errors(book: NotebookNode) -> list[str]:
    return [f"{cell.id}: {o.ename}: {o.evalue}" for cell in book.cells
            for o in cell.get("outputs", []) if o.output_type == "error"]


def main() -> None:
    if sys.argv[1:2] not in ([name] for name in PLACES):
        sys.exit(f"elsewhere: got {sys.argv[1:2]}, expected one of {', '.join(PLACES)}.")
    place, asked = PLACES[sys.argv[1]], sys.argv[2:] or [
        stage.stem[:2] for stage in catalog.written()]
    set_up(place)
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        course = wheel(Path(scratch))
        for path in [p for p in sorted(NOTEBOOKS.glob("*.ipynb")) if p.stem[:2] in asked]:
            empty, began = Path(scratch, path.stem), time.perf_counter()
            empty.mkdir()
            book = run(place, path, empty, course)
            held, stored = claims(book), claims(nbformat.read(path, as_version=4))
            first = next((o.get("text", "") for c in book.cells for o in c.get("outputs", [])), "")
            print(f"{path.stem}: {held} of {stored} claims hold, "
                  f"{time.perf_counter() - began:.0f} s. {first.strip()}", *errors(book),
                  sep="\n  ", flush=True)
            failed |= held != stored or bool(errors(book))
    listed = json.loads(subprocess.run(
        [place.own_python, "-m", "pip", "list", "--format=json"], check=True,
        capture_output=True, text=True).stdout)
    said = {one["name"]: one["version"] for one in listed}
    print(f"With torch {said['torch']}, ipython {said['ipython']}, numpy {said['numpy']}.")
    sys.exit(failed)


if __name__ == "__main__":
    main()
