"""Compare `dlsys grade` with otter-grader and nbgrader on one assignment, in one run.

    python -m benchmarks.grading [N [M]]

N learners; otter-grader, which restarts for each notebook, may get only the first M. Each peer is
installed into its own environment under the cache folder; torch and this package are shared from
the environment that runs the benchmark. All three apply the same checks to the same answers, one
process at a time, and the report compares their points as well. CPU seconds cover the command and
all its children, including start-up.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
from nbformat import v4

from benchmarks.grading import samples
from dlsys.grading import judge
from dlsys_helpers import catalog, paths

PEERS = {"otter": "otter-grader==7.0.0", "nbgrader": "nbgrader==0.9.6"}
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dlsys-benchmarks"
TARGET = paths.ROOT / "benchmarks" / "grading" / "RESULTS.md"
ASSIGNMENT = "stage1"
CLASS = 60  # learners; the default of N
FEW, MANY = 6, 66  # each of six kinds of submissions once, and eleven times
ENVIRONMENT = {"DLSYS_PROGRESS": "off", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def check_code(id: str, function: str) -> str:
    """A peer's test: the check object that the learner and `dlsys grade` use."""
    return f'assert run_check("{id}", {function}, range({judge.SEEDS})).status == "pass"'


def environment(name: str) -> Path:
    """The folder of a peer's own environment, created on first use."""
    folder = CACHE / PEERS[name].replace("==", "-")
    done = folder / "complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", PEERS[name],
                        "ipykernel"], check=True)
        # Its own packages come first; torch and this package come after them on the path.
        packages = next((folder / "lib").glob("python*/site-packages"))
        shared = [sysconfig.get_path("purelib"), str(paths.ROOT / "src")]
        (packages / "zz_shared.pth").write_text("\n".join(shared) + "\n")
        done.touch()
    return folder


def run(command: list[Any], cwd: Path) -> None:
    """Run a command quietly; its own messages are shown only when it fails."""
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"  # a peer calls its own
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True,
                          text=True, env={**os.environ, **ENVIRONMENT, "PATH": path})
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


# ---- the three ways to grade: each returns the points by learner

def grade_here(folder: Path, submitted: Path) -> dict[str, float]:
    """`dlsys grade` with one worker."""
    run([sys.executable, "-m", "dlsys.cli", "grade", submitted, "--out", folder / "out",
         "--workers", "1"], folder)
    grades = json.loads((folder / "out/grades.json").read_text())
    return {r["learner"]["name"]: r["points"] for r in grades["results"]}


def prepare_otter(folder: Path) -> None:
    """Make the autograder's zip, once and uncounted."""
    tests = folder / "tests"
    tests.mkdir()
    for trap in catalog.traps(1):
        body = (f">>> from dlsys_checks.checking import run_check\n"
                f">>> run_check('{trap.id}', {trap.function}, range({judge.SEEDS})).status"
                "\n'pass'")
        name = "q" + trap.id.replace(".", "_")
        test = {"name": name, "points": trap.points, "suites": [
            {"cases": [{"code": body, "hidden": False, "locked": False}], "scored": True,
             "setup": "", "teardown": "", "type": "doctest"}]}
        (tests / f"{name}.py").write_text(f"OK_FORMAT = True\ntest = {test!r}\n")
    run([environment("otter") / "bin/otter", "generate", "-t", "tests", "-o", "autograder.zip",
         "--no-environment"], folder)


def grade_otter(folder: Path, submitted: Path, most: int) -> dict[str, float]:
    """`otter run` on `most` notebooks, one after the other, as its users' loops do."""
    points = {}
    for path in sorted(submitted.glob("*.ipynb"))[:most]:
        out = folder / path.stem
        out.mkdir()
        run([environment("otter") / "bin/otter", "run", "-a", folder / "autograder.zip", "-o", out,
             path], folder)
        results = json.loads((out / "results.json").read_text())
        points[path.stem] = sum(test.get("score", 0) for test in results["tests"])
    return points


def prepare_nbgrader(folder: Path, submitted: Path) -> None:
    """Set up a course with the assignment released and all work handed in; not counted."""
    source = folder / "source" / ASSIGNMENT
    source.mkdir(parents=True)
    nbformat.write(_nbgrader_notebook(samples.answers(0)), source / f"{samples.STEM}.ipynb")
    (folder / "nbgrader_config.py").write_text(
        'c = get_config()\nc.CourseDirectory.course_id = "x"\n')
    run(_nbgrader("generate_assignment", ASSIGNMENT), folder)
    for path in sorted(submitted.glob("*.ipynb")):
        mine = folder / "submitted" / path.stem / ASSIGNMENT
        mine.mkdir(parents=True)
        notebook = _nbgrader_notebook(samples.answers(int(path.stem.removeprefix("learner"))))
        nbformat.write(notebook, mine / f"{samples.STEM}.ipynb")


def _nbgrader_notebook(answers: dict[str, str]) -> nbformat.NotebookNode:
    cells = [v4.new_code_cell(source) for source in samples.setup()]
    for trap in catalog.traps(1):
        test = ("from dlsys_checks.checking import run_check\n"
                + check_code(trap.id, trap.function))
        cells += [v4.new_code_cell(answers[trap.id], metadata=_marks(trap, solution=True)),
                  v4.new_code_cell(test, metadata=_marks(trap, solution=False))]
    for k, cell in enumerate(cells):
        cell["id"] = f"cell{k}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def _marks(trap: dict[str, Any], solution: bool) -> dict[str, Any]:
    marks = {"grade": not solution, "solution": solution, "locked": not solution, "task": False,
             "schema_version": 3, "grade_id": f"{'a' if solution else 't'}{trap.id[3:]}"}
    return {"nbgrader": marks if solution else {**marks, "points": trap.points}}


def _nbgrader(*arguments: str) -> list[Any]:
    return [environment("nbgrader") / "bin/nbgrader", *arguments]


def grade_nbgrader(folder: Path, _: Path) -> dict[str, float]:
    """`nbgrader autograde` for the whole class."""
    run(_nbgrader("autograde", ASSIGNMENT), folder)
    run(_nbgrader("export", "--to", "grades.csv"), folder)
    with open(folder / "grades.csv", newline="") as file:
        return {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}


# ---- measuring

def measured(grade: Callable[[Path, Path], dict[str, float]], folder: Path,
             submitted: Path) -> dict[str, Any]:
    """Points, CPU seconds and elapsed seconds of one way to grade the whole class."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    points = grade(folder, submitted)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"points": points, "cpu": cpu, "seconds": time.perf_counter() - started}


def own_compute(n: int) -> float:
    """CPU seconds of the learners' own code per submission: cells and calls, no grader."""
    script = ("import sys, time, torch, torch._dynamo\nfrom benchmarks.grading import own\n"
              f"print(own.seconds({n}))")
    done = subprocess.run([sys.executable, "-c", script], cwd=paths.ROOT, capture_output=True,
                          text=True, check=True, env={**os.environ, **ENVIRONMENT})
    return float(done.stdout) / n


def main() -> None:
    n, most = (*map(int, sys.argv[1:]), *(CLASS, CLASS)[len(sys.argv) - 1:])
    own = own_compute(n)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        submitted = work / "submitted"
        samples.write(submitted, n)
        folders = {key: work / key for key in ("dlsys", "otter", "nbgrader")}
        for folder in folders.values():
            folder.mkdir()
        prepare_otter(folders["otter"])
        prepare_nbgrader(folders["nbgrader"], submitted)
        found = {"dlsys grade": measured(grade_here, folders["dlsys"], submitted),
                 "otter-grader": measured(partial(grade_otter, most=most), folders["otter"],
                                          submitted),
                 "nbgrader": measured(grade_nbgrader, folders["nbgrader"], submitted)}
        few, many = (_alone(work, size) for size in (FEW, MANY))
    TARGET.write_text(report(n, own, found, few, many), encoding="utf-8")
    print(TARGET.read_text(encoding="utf-8"))


def _alone(work: Path, n: int) -> dict[str, Any]:
    """`dlsys grade` over n submissions; comparing two sizes gives the cost of one more."""
    folder = work / f"alone{n}"
    samples.write(folder / "submitted", n)
    return measured(grade_here, folder, folder / "submitted")


def report(n: int, own: float, found: dict[str, dict], few: dict[str, Any],
           many: dict[str, Any]) -> str:
    """The page: rates, ratios, and whether the points agree.

    Ratios are per submission: its share of the whole command.
    """
    here = each(found["dlsys grade"])
    steady, steady_cpu = ((many[key] - few[key]) / (MANY - FEW) for key in ("seconds", "cpu"))
    start = few["seconds"] - FEW * steady
    lines = ["# The grader against its peers\n",
             f"{n} submissions of stage 1's worksheet, five exercises, one process at a time, on "
             f"{os.cpu_count()} cores ({platform.machine()}), Python "
             f"{platform.python_version()}, torch {importlib.metadata.version('torch')}; "
             f"{time.strftime('%Y-%m-%d')}. Load at the end of the run: "
             f"{os.getloadavg()[0]:.1f}. The learners' own code takes {own:.3f} CPU s for each "
             "submission. The ratios compare the times per submission, with the command's "
             "start included. A peer with fewer submissions in the last column graded only the "
             "first ones.\n",
             "| | CPU s each | times the CPU | submissions/min | times slower | points as dlsys |",
             "|---|---|---|---|---|---|"]
    for name, facts in found.items():
        one, points = each(facts), facts["points"]
        same = sum(found["dlsys grade"]["points"].get(k) == v for k, v in points.items())
        lines.append(f"| {name} | {one['cpu']:.2f} | {one['cpu'] / here['cpu']:.1f} | "
                     f"{60 / one['seconds']:.1f} | {one['seconds'] / here['seconds']:.1f} | "
                     f"{same} of {len(points)} |")
    lines.append(f"| dlsys grade, without its start | {steady_cpu:.2f} | "
                 f"{steady_cpu / here['cpu']:.1f} | {60 / steady:.0f} | | |\n")
    for name in ("otter-grader", "nbgrader"):
        one = each(found[name])
        whole, whole_cpu = (one[key] / here[key] for key in ("seconds", "cpu"))
        further = one["cpu"] / steady_cpu
        lines.append(f"- {name}: {whole_cpu:.0f} times the CPU time of `dlsys grade` for the whole "
                     f"class and {whole:.0f} times its elapsed time, with the start included "
                     "(aim: at "
                     f"least 20); {further:.0f} times the CPU time for each further submission.")
    lines.append(f"- Above the learners' own code: {steady_cpu - own:.3f} CPU s for each "
                 "submission (aim: at most 0.15).")
    lines.append(f"- The start, paid once for each run and worker: {start:.1f} s.")
    return "\n".join(lines) + "\n"


def each(facts: dict[str, Any]) -> dict[str, float]:
    """CPU and elapsed seconds per graded submission."""
    return {key: facts[key] / len(facts["points"]) for key in ("cpu", "seconds")}


if __name__ == "__main__":
    main()
