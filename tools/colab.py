"""Run lessons in Colab's versions, each from its notebook file alone, in an empty folder.

    python -m tools.colab            the lessons named in LESSONS
    python -m tools.colab 01 14      these

The environment is .colab/, made anew where deploy/colab.txt has changed. The course is not in it:
the first cell of each notebook installs the wheel, and what the stage needs besides. A claim that
does not hold, and a cell that fails, make the run fail.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

from dlsys import needed
from dlsys_helpers.paths import NOTEBOOKS, ROOT

VERSIONS = ROOT / "deploy/colab.txt"
HOME = ROOT / ".colab"
PYTHON = os.environ.get("COLAB_PYTHON", "3.13")  # Colab's own; a path, where uv finds none
LESSONS = ("01", "02", "03", "14")
TIMEOUT = 900  # seconds for one cell: the nightly machine is shared


class InColab(AsyncKernelManager):
    """A kernel of the environment with Colab's versions, whatever kernels are registered here."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(argv=[str(HOME / "bin/python"), "-m", "ipykernel_launcher", "-f",
                                "{connection_file}"], display_name="Colab", language="python")


def set_up() -> None:
    """Make the environment, unless it is there for this list of versions."""
    made = HOME / "made-for"
    if made.is_file() and made.read_bytes() == VERSIONS.read_bytes():
        return
    shutil.rmtree(HOME, ignore_errors=True)
    uv = str(Path(sys.executable).with_name("uv"))
    for command in (["venv", "--quiet", "--seed", "--python", PYTHON, str(HOME)],
                    ["pip", "install", "--quiet", "--python", str(HOME / "bin/python"), "-r",
                     str(VERSIONS)]):
        if subprocess.run([uv, *command], check=False).returncode:
            sys.exit("colab: the environment cannot be made, see above. It takes Python 3.13 (or "
                     "COLAB_PYTHON=/path/to/python3.13), the network and 5 GB.")
    made.write_bytes(VERSIONS.read_bytes())


def wheel(folder: Path) -> Path:
    """The course's wheel, made of this checkout."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
                    "-w", str(folder), str(ROOT)], check=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    return next(folder.glob("*.whl"))


def run(path: Path, folder: Path, course: Path) -> NotebookNode:
    """A lesson's notebook, run in a folder that holds nothing else, without the course."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([str(HOME / "bin/python"), "-m", "pip", "uninstall", "-q", "-y",
                    needed.PACKAGE], check=True, env=env)
    shutil.copy(path, folder)
    book = nbformat.read(folder / path.name, as_version=4)
    client = NotebookClient(book, timeout=TIMEOUT, allow_errors=True,
                            kernel_manager_class=InColab,
                            resources={"metadata": {"path": str(folder)}})
    client.execute(env={**env, "DLSYS_WHEEL": str(course), "DLSYS_PROGRESS": "off",
                        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else it warns of Python 3.13
                        "DLSYS_WORK": str(folder)})
    return book


def claims(book: NotebookNode) -> int:
    """How many claims hold, by the lines that they leave."""
    return sum(o.get("data", {}).get("text/plain", "").startswith("holds: ")
               for cell in book.cells for o in cell.get("outputs", []))


def errors(book: NotebookNode) -> list[str]:
    return [f"{cell.id}: {o.ename}: {o.evalue}" for cell in book.cells
            for o in cell.get("outputs", []) if o.output_type == "error"]


def main() -> None:
    asked = sys.argv[1:] or LESSONS
    set_up()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        course = wheel(Path(scratch))
        for path in [p for p in sorted(NOTEBOOKS.glob("*.ipynb")) if p.stem[:2] in asked]:
            empty, began = Path(scratch, path.stem), time.perf_counter()
            empty.mkdir()
            book = run(path, empty, course)
            held, stored = claims(book), claims(nbformat.read(path, as_version=4))
            first = next((o.get("text", "") for c in book.cells for o in c.get("outputs", [])), "")
            print(f"{path.stem}: {held} of {stored} claims hold, "
                  f"{time.perf_counter() - began:.0f} s. {first.strip()}", *errors(book),
                  sep="\n  ", flush=True)
            failed |= held != stored or bool(errors(book))
    versions = json.loads(subprocess.run(
        [str(HOME / "bin/python"), "-m", "pip", "list", "--format=json"], check=True,
        capture_output=True, text=True).stdout)
    said = {one["name"]: one["version"] for one in versions}
    print(f"With torch {said['torch']}, ipython {said['ipython']}, numpy {said['numpy']}.")
    sys.exit(failed)


if __name__ == "__main__":
    main()
