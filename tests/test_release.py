"""What a class receives: the folder of a release, and the contents of a wheel."""

import ast
import base64
import datetime
import fnmatch
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

from dlsys import class_wheel, cli, worksheets
from dlsys.grading.books import due
from dlsys_helpers import catalog, paths
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import SPAN
from tools import fingerprints

RECORD = "dlsys_helpers-0.1.0.dist-info/RECORD"
OWN = ("dlsys_checks/kit.py", "dlsys_checks/s01/e1_f.py", "dlsys_checks/questions/q03.py",
       "dlsys_helpers/recorded/03/head.json", "dlsys/course/notebooks/03_losses.ipynb",
       "dlsys_helpers/explorers/_find.py", "dlsys_helpers/explorers/explorer.js",
       "dlsys_model/part_table.py", "dlsys_checks/s02/common.py")
OTHERS = ("dlsys_checks/s02/e2_f.py", "dlsys_checks/s12/e1_f.py",
          "dlsys_checks/questions/q10.py", "dlsys/course/exercises/02_backpropagation.ipynb",
          "dlsys_helpers/recorded/13/cache.json", "dlsys_helpers/explorers/tape.py",
          "dlsys_model/parts.py", "dlsys_model/standins.py", "dlsys_model/recorded/gallery.json",
          "dlsys/course/notebooks/your_model.ipynb", "dlsys_checks/aims.json")
WHEEL = (*OWN, *OTHERS)


@pytest.fixture(scope="module")
def handed(tmp_path_factory):
    """The folder of a release of stages 1 and 3, with a date and a stub of a wheel."""
    out = tmp_path_factory.mktemp("release")
    with zipfile.ZipFile(out / "dlsys_helpers-0.1.0-py3-none-any.whl", "w") as wheel:
        for name in WHEEL:
            wheel.writestr(name, "")
        wheel.writestr(RECORD, "".join(f"{name},sha256=x,0\n" for name in (*WHEEL, RECORD)))
    assert cli.main(["release", "03", "1", "--due", "2027-01-15T23:59+01:00",
                     "--out", str(out / "class"),
                     "--wheel", str(out / "dlsys_helpers-0.1.0-py3-none-any.whl")]) == 0
    return out / "class"


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text("utf-8"))["cells"]


def sources(path: Path) -> str:
    return "\n".join("".join(cell["source"]) for cell in cells(path))


def refusal(capsys, *arguments: object) -> str:
    """The one line on stderr of a release that must be refused."""
    assert cli.main(["release", *map(str, arguments)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


# ---- the folder

def test_a_release_holds_what_a_class_needs_and_nothing_else(handed):
    assert sorted(path.name for path in handed.iterdir()) == [
        "01_activations.ipynb", "01_lesson.ipynb", "03_lesson.ipynb", "03_losses.ipynb",
        "INSTALL.md", "RELEASE.json", "dlsys_helpers-0.1.0-py3-none-any.whl"]
    for path in handed.glob("*.ipynb"):
        nbformat.validate(nbformat.read(path, as_version=4))
        assert not any(cell.get("outputs") for cell in cells(path))


def test_the_wheel_of_a_class_has_no_check_of_another_stage(handed):
    with zipfile.ZipFile(handed / "dlsys_helpers-0.1.0-py3-none-any.whl") as wheel:
        assert wheel.testzip() is None
        assert set(wheel.namelist()) == {*OWN, RECORD}
        listed = [line.partition(",")[0] for line in wheel.read(RECORD).decode().splitlines()]
    assert listed == [*OWN, RECORD]


@pytest.mark.parametrize("stage", range(1, 16))
def test_the_wheel_of_one_stage_has_all_that_its_checks_import(stage):
    """Stage 9's checks import what stage 2's share: without that, the class could check nothing."""
    checks = [f"dlsys_checks.s{stage:02}.{path.stem}"
              for path in (ROOT / f"src/dlsys_checks/s{stage:02}").glob("e*.py")]
    reached = [fingerprints.file_of(module).relative_to(ROOT / "src").as_posix()
               for module in fingerprints.with_imports(checks)]
    assert len(reached) > len(checks) > 0
    assert [path for path in reached if not class_wheel.belongs(path, {stage}, False)] == []


def test_no_worked_answer_is_handed_out(handed):
    """No worksheet contains what follows the docstring in a solution's exercise cell."""
    solution = json.loads((paths.SOLUTIONS / "01_activations.ipynb").read_text("utf-8"))
    bodies = ["".join(cell["source"]).rpartition('"""')[2].strip() for cell in solution["cells"]
              if cell["metadata"]["dlsys"]["role"] == "exercise" and cell["cell_type"] == "code"]
    assert len(bodies) == len(catalog.traps(1))
    assert all(bodies)
    assert not [body for body in bodies if body in sources(handed / "01_activations.ipynb")]


def test_the_worksheet_says_when_it_is_due_and_is_checked_as_ever(handed):
    path = handed / "01_activations.ipynb"
    assert "**Hand in by 2027-01-15, 23:59 (UTC+01:00).**\n\nRun the cells" in sources(path)
    read = worksheets.read(path)
    assert (read.stage, read.notes) == (1, [])
    assert {trap.function for trap in read.exercises} == {t.function for t in catalog.traps(1)}


def test_the_stamp_names_version_and_content(handed, tmp_path):
    stamp = json.loads((handed / "RELEASE.json").read_text("utf-8"))
    assert (stamp["due"], stamp["stages"]) == ("2027-01-15T23:59:00+01:00", [1, 3])
    name = f"{stamp['version']}-{stamp['content']}"
    assert f"Release {name}." in (handed / "INSTALL.md").read_text("utf-8")
    book = json.loads((handed / "03_losses.ipynb").read_text("utf-8"))
    assert book["metadata"]["dlsys"]["release"] == name
    cli.main(["release", "1", "3", "--out", str(tmp_path / "a")])
    cli.main(["release", "1", "--out", str(tmp_path / "b")])
    again, other = (json.loads((tmp_path / x / "RELEASE.json").read_text())["content"]
                    for x in "ab")
    assert again == stamp["content"] != other


def test_install_names_the_wheel_and_the_files(handed):
    text = (handed / "INSTALL.md").read_text("utf-8")
    assert "pip install --force-reinstall --no-deps dlsys_helpers-0.1.0-py3-none-any.whl" in text
    assert all(f"`{path.name}`" in text for path in handed.glob("*.ipynb"))


@pytest.mark.parametrize(("stage", "more"), [(1, "torchvision"), (10, "bitsandbytes peft "
                         "transformers"), (12, "optuna wandb")])
def test_install_names_what_the_notebooks_import(stage, more, tmp_path):
    cli.main(["release", str(stage), "--out", str(tmp_path / "class")])
    line = (tmp_path / "class/INSTALL.md").read_text("utf-8").split("2. `pip install ")[1]
    named = line.partition("`")[0].split()
    books = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "class").glob("*.ipynb")]
    code = [node for book in books for cell in book["cells"] if cell["cell_type"] == "code"
            for node in ast.walk(ast.parse("".join(cell["source"])))]
    roots = {alias.name for node in code if isinstance(node, ast.Import) for alias in node.names}
    roots |= {node.module for node in code if isinstance(node, ast.ImportFrom)}
    other = {root.partition(".")[0] for root in roots} - sys.stdlib_module_names
    assert {{"sklearn": "scikit-learn"}.get(name, name) for name in other} <= {
        *named, "dlsys_helpers", "dlsys",
        "safetensors", "scipy", "tokenizers"}  # transformers and scikit-learn install these
    assert more in " ".join(named)


# ---- a part of the exercises, and course.toml

CORE_08 = ["08.1", "08.2", "08.4"]  # as the lesson's headings mark them


def test_the_core_path_alone_is_handed_out_and_graded(tmp_path):
    given = ["release", "8", "--due", "2027-01-15T23:59+01:00", "--out", str(tmp_path / "class")]
    assert cli.main([*given, "--core"]) == 0

    read = worksheets.read(tmp_path / "class/08_transformers.ipynb")
    assert [trap.id for trap in read.exercises] == CORE_08
    assert read.notes == []
    assert json.loads((tmp_path / "class/RELEASE.json").read_text())["exercises"] == {"8": CORE_08}
    course = due.read(tmp_path / "course.toml")
    assert course.asked == {8: (*CORE_08,)}
    assert course.due[8].isoformat() == "2027-01-15T23:59:00+01:00"


def test_a_list_of_exercises_keeps_the_whole_lesson(tmp_path):
    out = tmp_path / "class"
    assert cli.main(["release", "8", "--exercises", "8.10, 8.3", "--out", str(out)]) == 0

    read = worksheets.read(out / "08_transformers.ipynb")
    assert [trap.id for trap in read.exercises] == ["08.3", "08.10"]
    lesson = sources(out / "08_lesson.ipynb")
    assert lesson.count("[Open your worksheet](08_transformers.ipynb#cell-id=") == 2
    assert "08.5" in lesson
    assert due.read(tmp_path / "course.toml").due == {}


def test_a_course_keeps_its_lines_and_takes_new_ones(tmp_path, capsys):
    course = tmp_path / "course.toml"
    course.write_text('late = "5%/h"  # ours\n\n[due]\n1 = 2027-01-08T12:00:00+01:00\n')
    more = ["--due", "2027-01-15T23:59+01:00", "--out"]
    assert cli.main(["release", "3", "--core", *more, str(tmp_path / "a")]) == 0

    text = course.read_text()
    assert 'late = "5%/h"  # ours' in text
    assert {n: day.day for n, day in due.read(course).due.items()} == {1: 8, 3: 15}
    said = refusal(capsys, "1", *more, tmp_path / "b")
    assert "course.toml: already has stage 1 under [due]. Nothing was written." in said
    assert course.read_text() == text
    assert not (tmp_path / "b").exists()


def test_a_day_ends_a_minute_before_midnight_here(tmp_path):
    cli.main(["release", "1", "--due", "2027-01-15", "--out", str(tmp_path / "class")])
    here = datetime.datetime(2027, 1, 15, 23, 59).astimezone()

    assert due.read(tmp_path / "course.toml").due == {1: here}


# ---- refusals

def test_a_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty" in refusal(capsys, 1, "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert "is not empty" in refusal(capsys, 1, "--out", tmp_path / "notes.txt")


@pytest.mark.parametrize(("arguments", "said"), [
    (("99",), f"expected {SPAN}"),
    (("1", "--due", "15.1.27"), "expected a date such as 2027-01-15"),
    (("1", "--exercises", "2.1"), "expected some of 01.1"),
    (("1", "2", "--exercises", "1.1"), "got none of stage 2"),
    (("1", "--wheel", "nothing.whl"), "make wheel")])
def test_what_is_asked_wrongly_is_said_before_anything_is_made(arguments, said, tmp_path, capsys):
    assert said in refusal(capsys, *arguments, "--out", tmp_path / "class")
    assert not (tmp_path / "class").exists()


# ---- the wheel

@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder that becomes the course's wheel."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", folder],
                   cwd=ROOT, capture_output=True, check=True)
    return folder


def test_a_wheel_brings_every_worksheet_and_lesson_without_outputs(built):
    for folder in (paths.EXERCISES, paths.NOTEBOOKS):
        names = {path.name for path in folder.glob("*.ipynb")}
        brought = built / "dlsys/course" / folder.name
        assert {path.name for path in brought.iterdir()} == names
        for name in names:
            assert not any(cell.get("outputs") for cell in cells(brought / name))
            facts = json.loads((brought / name).read_text("utf-8"))["metadata"]["dlsys"]
            assert facts.get("rests_on", {}).keys() <= {"code"}
    assert (built / "dlsys_helpers/catalog/01.json").exists()
    assert not list(built.rglob("solutions"))
    assert not list(built.rglob("right_answers"))
    assert not list(built.rglob("slides_template"))  # without outputs there are no slides
    assert not (built / "dlsys_checks/exam/mends.py").exists()  # they pass


# Bytes for two stages, without *Your model* and with it. The words about causes take 60,000; the
# lessons' first text, the install cell and the list of units 90,000; the glossary and the aims in a
# grader's report 40,000; the changes of `review-diff` 75,000; the placement and the watch's
# explanations and output for other tools 34,000; the incidents 35,000; what the checks of several
# stages share 7,000; an exam's report by case 5,000.
LIMITS = {False: 1_123_000, True: 1_325_500}


@pytest.fixture(scope="module", params=LIMITS)
def handed_wheel(request, built, tmp_path_factory):
    """The wheel of a class of stages 1 and 3, and whether *Your model* is in it."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(folder / "whole.whl", "w") as wheel:
        for path in sorted(filter(Path.is_file, built.rglob("*"))):
            wheel.write(path, path.relative_to(built))
        wheel.writestr(RECORD, "")
    class_wheel.write(folder / "whole.whl", folder / "part.whl", {1, 3}, request.param)
    return folder / "part.whl", request.param


def test_a_class_is_handed_a_small_wheel_that_pip_accepts(handed_wheel):
    """Pip compares each file with the list."""
    path, model = handed_wheel
    assert path.stat().st_size < LIMITS[model]
    with zipfile.ZipFile(path) as wheel:
        rows = [line.split(",") for line in wheel.read(RECORD).decode().splitlines()]
        assert [name for name, _, _ in rows] == wheel.namelist()
        for name, digest, size in rows[:-1]:
            found = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest())
            assert digest == f"sha256={found.decode().rstrip('=')}"
            assert int(size) == wheel.getinfo(name).file_size


def test_the_wheel_of_a_class_runs_and_says_what_it_lacks(handed_wheel, tmp_path):
    path, model = handed_wheel
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(tmp_path / "installed")
    script = ("from dlsys.cli import main; from dlsys_helpers import catalog;"
              "first, other = catalog.trap('01.1'), catalog.trap('09.2');"
              "print(len(first.hints), other.fault, other.hints);"
              "print([main(words.split()) for words in ('start 3', 'parts', 'start model')])")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, text=True, check=True,
                          capture_output=True, env={**os.environ, "DLSYS_WORK": str(tmp_path),
                                                    "PYTHONPATH": str(tmp_path / "installed")})
    assert f"{len(catalog.trap('01.1').hints)} {catalog.trap('09.2').fault} ()" in done.stdout
    assert f"[0, 0, {0 if model else 2}]" in done.stdout
    assert model or "contains only what was handed out" in done.stderr


# What make wheel puts into dist/. A shell passes every file that a pattern matches.
MADE = ("dist/dlsys_helpers-1.1.0-py3-none-any.whl", "dist/dlsys_watch-1.0.0-py3-none-any.whl")


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))],
                         ids=lambda page: page.name)
def test_a_wheel_on_a_page_is_one_file_to_the_shell(page):
    for pattern in re.findall(r"--wheel +(\S+)", page.read_text("utf-8")):
        assert [name for name in MADE if fnmatch.fnmatch(name, pattern)] == [MADE[0]], pattern
