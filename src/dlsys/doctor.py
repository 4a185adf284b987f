"""`dlsys doctor`: what the installation looks like and, for each trouble, what to do."""

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dlsys import needed, windows, work_folder, worksheets
from dlsys.needed import Needed, installed
from dlsys_files import locations, notebook_file
from dlsys_helpers import catalog, paths, progress
from dlsys_helpers.errors import UserError

OK, WARN, FAIL = "OK", "WARN", "FAIL"
LOCKED = "pip install -r requirements.lock"  # what make does; Windows has no make
SETUP = f"Run: {LOCKED}" if windows.HERE else "Run: make lab"
LEAST_DISK, GOOD_DISK = 0.5, 3.0  # GB: enough for worksheets and plots; enough for a rebuild
TORCH_SECONDS = 180
_TORCH = """
import json, torch
from dlsys_helpers import gpu
reason = gpu.unusable()
cuda = not reason
print(json.dumps({
    "version": torch.__version__, "built": torch.version.cuda, "cuda": cuda,
    "reason": "" if reason == gpu.NONE else reason,
    "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda
    else [],
    "gb": torch.cuda.get_device_properties(0).total_memory / 1e9 if cuda else 0,
    "sum": float((torch.ones(3, device=gpu.device()) * 2).sum())}))
"""


class Finding(NamedTuple):
    """One line of the report: OK, WARN or FAIL, what was found, what to do (or nothing)."""

    state: str
    text: str
    remedy: str = ""


def findings() -> Iterator[Finding]:
    """All findings, each as soon as it is known; for a wheel, what it needs to check answers."""
    here = (python, packages, lock, lab, kernel, disk, my_work, progress_file, torch, generated,
            my_worksheets, my_lessons, browser)
    alone = (python, few_packages, my_work, progress_file, torch, my_worksheets, my_lessons)
    for examine in (*(here if locations.is_checkout() else alone), on_windows):
        yield from examine()


def python() -> Iterator[Finding]:
    """The version that runs, against what pyproject asks for."""
    wanted = needed.project()["requires-python"].removeprefix(">=")
    here = f"Python {platform.python_version()} at {sys.prefix}"
    if sys.version_info[:2] < tuple(int(part) for part in wanted.split(".")):
        yield Finding(FAIL, f"{here}, expected {wanted} or newer.",
                      f"Install Python {wanted}, remove .venv, then create it again. {SETUP}")
    else:
        yield Finding(OK, here)


# Extra of pyproject.toml -> who uses its packages, what for, how make gets them, and how to grade
# missing ones: `make lab` leaves out what no lesson needs.
EXTRAS = {
    "jax": ("stages 2 and 9", "stages 2 and 9", "make lab", WARN),
    "grade": ("the grader", "dlsys grade", "make setup", OK),
    "language": ("stages 8 to 10", "the stages on language models", "make lab", WARN),
    "compress": ("stage 11", "stage 11", "make lab", WARN),
    "track": ("stage 12", "stage 12", "make lab", WARN),
    "dev": ("contributors", "tests, book and slides", "make setup", OK),
}


def packages() -> Iterator[Finding]:
    """Which packages are missing, and which versions are untested."""
    project = needed.project()
    yield from compare("packages", project["dependencies"], FAIL, SETUP)
    extras = project["optional-dependencies"]
    for extra, (whose, needed_for, make, missing_is) in EXTRAS.items():
        yield from compare(f"packages of {whose}", extras[extra], missing_is,
                            f"Needed for {needed_for} only: {LOCKED if windows.HERE else make}")


# What a worksheet and the command need if the wheel was installed without its dependencies.
FEW = ("ipykernel", "matplotlib", "numpy", "rich", "torch")


def few_packages() -> Iterator[Finding]:
    """What an installed wheel needs; missing packages that only some lessons use share one line."""
    project = needed.project()
    base = needed.read(project["dependencies"])
    few = [one.line for one in base if one.name in FEW]
    missing = [one.name for one in base if one.name in FEW and not one.here]
    yield from compare("packages", few, FAIL, f"Run: pip install {' '.join(missing)}")
    some = base + needed.read([line for extra in ("jax", "language", "compress", "track")
                               for line in project["optional-dependencies"].get(extra, [])])
    others = [one.name for one in some if one.name not in FEW and not one.here]
    if others:
        yield Finding(OK, f"not installed: {', '.join(sorted(others))}. The first cell of a "
                          "notebook installs those that it needs")


def compare(what: str, requirements: list[str], missing_is: str, remedy: str):
    """Findings on installed packages; `missing_is` grades a missing package."""
    asked, tested = needed.read(requirements), needed.locked()
    missing = [one.name for one in asked if not one.here]
    untried = [_tried(one, tested) for one in asked if one.untried(tested.get(one.name))]
    if missing:
        how = "not installed:" if missing_is == OK else "missing"
        yield Finding(missing_is, f"{what}: {how} {', '.join(missing)}.", remedy)
    if untried:
        yield Finding(WARN, f"{what}: everything may work, but these versions are untested: "
                      f"{', '.join(untried)}.", f"If a cell fails, install a tested version. "
                      f"{SETUP if locations.is_checkout() else ''}".strip())
    if not missing and not untried:
        yield Finding(OK, f"{what}: all {len(asked)} are installed, in tested versions")


def _tried(one: Needed, tested: dict[str, str]) -> str:
    """A package at an untested version, and the range of the tested ones."""
    last = f" to {tested[one.name]}" if one.name in tested else " or newer"
    return f"{one.name} {one.here} (tested: {one.floor}{last})"


def lock() -> Iterator[Finding]:
    """The lock file has what pyproject asks for."""
    if not (paths.ROOT / "requirements.lock").exists():
        yield Finding(WARN, "requirements.lock: missing.", "Run: git checkout requirements.lock")
        return
    locked = needed.locked()
    apart = [one.name for one in needed.read(needed.project()["dependencies"])
             if Needed(one.name, one.floor, locked.get(one.name, "0")).too_old]
    if apart:
        yield Finding(WARN, f"requirements.lock disagrees with pyproject on {', '.join(apart)}.",
                      "Run: git pull")
    else:
        yield Finding(OK, f"requirements.lock: {len(locked)} packages, agrees with pyproject")


def lab() -> Iterator[Finding]:
    """The `jupyter-lab` program of this environment is there."""
    folder = Path(sys.prefix) / ("Scripts" if windows.HERE else "bin")
    if shutil.which("jupyter-lab", path=str(folder)):
        yield Finding(OK, f"JupyterLab {installed('jupyterlab')}")
    else:
        yield Finding(FAIL, f"JupyterLab: no jupyter-lab in {folder}.", SETUP)


def kernel() -> Iterator[Finding]:
    """The kernel named python3 runs this Python; an old one in the home folder may shadow it."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        program = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        yield Finding(FAIL, "Jupyter kernel python3: missing.", SETUP)
        return
    if Path(program).name == program or Path(program).parent == Path(sys.executable).parent:
        yield Finding(OK, "Jupyter kernel python3 runs this Python")
    else:
        yield Finding(WARN, f"Jupyter kernel python3 runs {program}, not {sys.executable}.",
                      "Run: " + subprocess.list2cmdline([
                          sys.executable, "-m", "ipykernel", "install", "--sys-prefix"]))


def disk() -> Iterator[Finding]:
    """Free space on the project's disk."""
    free = shutil.disk_usage(paths.ROOT).free / 1e9
    state = FAIL if free < LEAST_DISK else WARN if free < GOOD_DISK else OK
    remedy = "" if state == OK else "Free some space, for example with: pip cache purge"
    yield Finding(state, f"disk: {free:.1f} GB free", remedy)


def my_work() -> Iterator[Finding]:
    """A file can be made in my-work/ (or the folder can be)."""
    folder = paths.MY_WORK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        how = "" if windows.HERE else f": chmod u+rwx {folder.name}"
        yield Finding(FAIL, f"{folder.name}: cannot be written ({error.strerror}).",
                      f"Make it writable{how}, or set DLSYS_WORK to a folder of yours.")
    else:
        yield Finding(OK, f"{folder.name}: writable")


def progress_file() -> Iterator[Finding]:
    """The progress store can be read; names damaged parts that were set aside."""
    path = progress.store()
    if path is None:
        yield Finding(WARN, "progress: not kept, because DLSYS_PROGRESS is off.",
                      "Unset DLSYS_PROGRESS")
        return
    count = len(progress.solved())
    aside = sorted(p.name for p in path.parent.glob(f"{path.stem}.damaged-*"))
    if aside:
        yield Finding(WARN, f"progress: {count} solved; a damaged file was set aside as "
                      f"{', '.join(aside)[:80]}.", "Nothing is lost; delete it when you like.")
    else:
        yield Finding(OK, f"progress: {count} solved")


def torch() -> Iterator[Finding]:
    """Torch imports and computes, in a separate process: a broken one may crash."""
    try:
        run = subprocess.run([sys.executable, "-c", _TORCH], capture_output=True, encoding="utf-8",
                             errors="replace", timeout=TORCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield Finding(FAIL, f"torch: did not import within {TORCH_SECONDS} s.",
                      "Is the disk slow or the GPU driver stuck? Try: nvidia-smi")
        return
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
        yield Finding(FAIL, f"torch: does not work: {last[:160]}", SETUP)
        return
    facts = json.loads(run.stdout.splitlines()[-1])
    yield Finding(OK, f"torch {facts['version']}")
    yield gpu(facts, shutil.which("nvidia-smi") is not None)


def gpu(facts: dict, has_driver: bool) -> Finding:
    """What the GPU sections will do: run, or show their records."""
    if facts["cuda"]:
        return Finding(OK, f"GPU: {', '.join(facts['gpus'])}, {facts['gb']:.0f} GB, CUDA "
                       f"{facts['built']}; GPU sections run live")
    if facts["reason"]:
        return Finding(WARN, f"GPU: {facts['reason']}", "GPU sections show recorded measurements.")
    if has_driver:
        return Finding(WARN, f"GPU: a driver is installed, but torch (CUDA {facts['built']}) "
                       "finds no GPU.", "Try nvidia-smi; the driver may be too old for this torch.")
    return Finding(OK, "GPU: none; GPU sections show recorded measurements")


def generated() -> Iterator[Finding]:
    """Every lesson has its notebook, worksheet and entry in the catalog."""
    lessons = [path.stem for path in paths.lessons()]
    wanted = [folder / f"{stem}.ipynb" for stem in lessons
              for folder in (paths.NOTEBOOKS, paths.EXERCISES) if _expected(folder, stem)]
    wanted += [catalog.path(int(stem[:2])) for stem in lessons if not stem.startswith("00_")]
    missing = [f"{path.parent.name}/{path.name}" for path in wanted if not path.exists()]
    if missing:
        yield Finding(WARN, f"generated files: missing {', '.join(missing)[:120]}.",
                      "Run: git pull (a contributor runs: make build)")
    else:
        yield Finding(OK, f"generated files: all present, {len(lessons)} lessons")


def _expected(folder: Path, stem: str) -> bool:
    """The start page (00) has no worksheet."""
    return folder == paths.NOTEBOOKS or not stem.startswith("00_")


def my_worksheets() -> Iterator[Finding]:
    """Each worksheet in my-work/ can be read and is up to date."""
    for path in notebook_file.in_folder(paths.MY_WORK):
        try:
            notes = worksheets.read(path).notes
        except UserError as error:
            yield Finding(WARN, str(error))
            continue
        yield from (Finding(WARN, note) for note in notes)
        if not notes:
            yield Finding(OK, f"worksheet {path.name}: readable, up to date")


def my_lessons() -> Iterator[Finding]:
    """Each lesson in my-work/ can be read and has the same code as the course's lesson."""
    for stage in catalog.written():
        path = paths.lesson_copy(stage.number)
        try:
            older = path.exists() and work_folder.is_older(path, stage)
        except UserError as error:
            yield Finding(WARN, str(error))
            continue
        if older:
            yield Finding(WARN, f"{path.name} is older than the lesson, which has changed since.",
                          f"For a fresh one next to it: dlsys start {stage.number} --copy")


def browser() -> Iterator[Finding]:
    """A Chromium for the browser tests; learners do not need it."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    yield Finding(OK, f"browser for tests: {found or 'none found, browser tests are skipped'}")


def on_windows() -> Iterator[Finding]:
    """What Windows itself cannot do, and what does it instead."""
    if not windows.HERE:
        return
    yield Finding(WARN, "Windows: in a notebook, no timer stops an answer that never ends, and "
                  "grading does not work here.", "Interrupt the kernel, or use dlsys check, which "
                  "stops it. Grade in WSL 2 or on Linux.")
    for id in windows.LEFT_OUT:
        yield Finding(WARN, f"exercise {windows.cannot_check(id)}")

