"""A run keeps its gradebooks: --resume without them changes no name, time or point."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from grading_samples import settings, worksheet
from test_grading_reports import result

from dlsys import cli
from dlsys.grading import cohort
from dlsys.grading.books import course_file, given, submissions
from dlsys.grading.books.given import Gradebooks
from dlsys.grading.books.journal import Journal
from dlsys.grading.books.run_folder import GIVEN, RunError
from dlsys.grading.options import GradeOptions

COURSE = 'late = "10%/day"\n[due]\n1 = 2027-01-15T23:59:00+01:00\n'
MOODLE = ("Identifier,Full name,Grade,Maximum Grade,Last modified (submission),Feedback comments\n"
          'Participant 11,Anna M,,15.00,"Saturday, 16 January 2027, 12:20 AM",\n'
          'Participant 12,Bob K,,15.00,"Friday, 15 January 2027, 11:00 AM",\n')
CANVAS = ("Student,ID,Section,Stage 1 (4455)\n    Points Possible,,,15\n"
          '"M, Anna",11,S,\n"K, Bob",12,S,\n')


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that finishes a run of two for an LMS and returns one for further calls."""
    monkeypatch.chdir(tmp_path)
    Path("moodle.csv").write_text(MOODLE)
    Path("canvas.csv").write_text(CANVAS)
    Path("course.toml").write_text(COURSE)

    def begin(source: str):
        for name, id in (("annam", 11), ("bobk", 12)):
            place = {"moodle": f"{name}_{id}_assignsubmission_file_/w.ipynb",
                     "canvas": f"{name}_{id}_9{id}_w.ipynb"}[source]
            Path("in", place).parent.mkdir(parents=True, exist_ok=True)
            Path("in", place).write_bytes(worksheet(f"x = {id}"))
        judged = {key: value for key, value in result("x", "ppppp").items()
                  if key not in ("name", "learner", "sha256")}
        journal = Journal.begin(Path("out"), settings())
        cohort.grade_all(submissions.find([Path("in")]).submissions, journal,
                         lambda jobs: ((job, judged) for job in jobs))
        journal.close()
        return lambda *more: cli.main(["grade", "in", "--out", "out", "--resume", *more])
    return begin


def table() -> dict[str, float]:
    with open("out/grades.csv", encoding="utf-8-sig", newline="") as file:
        return {row["learner"]: float(row["points"]) for row in csv.DictReader(file)}


def cells(name: str, column: str) -> list[str]:
    with open(f"out/{name}", encoding="utf-8-sig", newline="") as file:
        return [row[column] for row in csv.DictReader(file)]


def test_resume_keeps_the_times_and_the_names_of_moodles_sheet(run, capsys):
    again = run("moodle")
    assert again("--moodle", "moodle.csv", "--course", "course.toml") == 0
    assert table() == {"Anna M": 13.5, "Bob K": 15}
    Path("moodle.csv").unlink()
    Path("out/overrides.csv").write_text("learner,exercise,points,comment\nBob K,01.1,0,\n")
    capsys.readouterr()

    assert again() == 0

    less = 15 - float(cells("exercises.csv", "possible")[0])
    assert table() == {"Anna M": 13.5, "Bob K": less}
    assert cells("moodle.csv", "Grade") == ["13.5", f"{less:g}"]
    out = capsys.readouterr().out
    assert f"Given before and used again: {Path('out', GIVEN)}, moodle.csv." in out
    assert "moodle.csv: 2 of 2 learners filled in." in out


def test_resume_fills_the_columns_of_canvas_anew(run):
    again = run("canvas")
    Path("out/overrides.csv").write_text("learner,exercise,points,comment\nBob K,01.1,0,\n")
    assert again("--canvas", "canvas.csv", "Stage 1") == 0
    assert float(cells("canvas.csv", "Stage 1 (4455)")[2]) < 15
    Path("out/overrides.csv").unlink()

    assert again() == 0

    assert cells("canvas.csv", "Stage 1 (4455)") == ["15", "15", "15"]
    assert table() == {"Anna M": 15, "Bob K": 15}
    for path in Path("out", GIVEN).iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_a_gradebook_that_is_given_takes_the_place_of_the_copy(run):
    again = run("moodle")
    again("--moodle", "moodle.csv")
    Path("new.csv").write_text(MOODLE.replace("Anna M", "Anna Maria"))

    again("--moodle", "1=new.csv")
    assert set(table()) == {"Anna Maria", "Bob K"}
    kept = Path("out", GIVEN)
    assert [path.name for path in kept.iterdir()] == ["moodle_01.csv"]
    again("--moodle", "2=moodle.csv")  # of a different stage, so both stay

    assert sorted(path.name for path in Path("out", GIVEN).iterdir()) == [
        "moodle_01.csv", "moodle_02.csv"]


def test_an_option_that_cannot_be_filled_in_leaves_the_copies(run):
    again = run("canvas")
    again("--canvas", "canvas.csv", "Stage 1")
    kept = Path("out", GIVEN)
    before = {path.name: path.read_bytes() for path in kept.iterdir()}

    assert again("--canvas", "canvas.csv", "Stagee {stage}") == 2

    assert {p.name: p.read_bytes() for p in Path("out", GIVEN).iterdir()} == before
    assert again() == 0


def test_a_run_without_gradebooks_keeps_none_of_a_run_before(tmp_path):
    folder = tmp_path / GIVEN
    folder.mkdir()
    for name in ("canvas.csv", "columns.json", "moodle_01.csv", "mine.txt"):
        (folder / name).write_text("x")

    Gradebooks().keep(tmp_path)

    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_a_filled_gradebook_that_is_left_behind_is_named(run, capsys):
    again = run("canvas")
    again("--canvas", "canvas.csv", "Stage 1")
    for path in Path("out", GIVEN).iterdir():
        path.unlink()
    capsys.readouterr()

    again()

    assert ("Not filled in this time, so grades.csv may differ: canvas.csv. Give "
            "--canvas or --moodle, or remove it.") in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", "[]", "[1]"])
def test_a_damaged_copy_is_named(run, capsys, content):
    again = run("canvas")
    again("--canvas", "canvas.csv", "Stage 1")
    columns = Path("out", GIVEN, given.COLUMNS)
    columns.unlink()
    if content:
        columns.write_text(content)
    capsys.readouterr()

    assert again() == 2
    assert "got no list of columns. Give the gradebook again: --canvas" in capsys.readouterr().err
    assert again("--canvas", "canvas.csv", "Stage 1") == 0


# ---- a course.toml that the command line does not name

ASKED = COURSE + '[asked]\n1 = ["01.1", "01.2"]\n'


def looked_for(*paths: str, **more) -> tuple[GradeOptions, list[str]]:
    return course_file.looked_for(GradeOptions(tuple(map(Path, paths)), **more))


@pytest.fixture
def places(tmp_path, monkeypatch) -> Path:
    """An empty folder to call from, next to one with a class's hand-ins and a course."""
    for name in ("here", "class/in/ada", "out"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "class/course.toml").write_text(ASKED)
    (tmp_path / "class/in/course.toml").write_text("[due]\n")  # came with a hand-in
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_the_course_next_to_the_submissions_counts_and_is_named(places):
    """Learners who did all that was asked for once got 11 of 35 points without a warning."""
    found, (line,) = looked_for("../class/in")

    assert found.course.samefile(places / "class/course.toml")
    assert "class/course.toml counts, because no other file was named (stage 1: 01.1, 01.2)" in line
    assert line.endswith("To grade without it: --no-course")
    assert looked_for("../class/in/ada/w.ipynb")[0].course is None
    assert looked_for("../class/in", course_wanted=False)[0].course is None
    assert looked_for("../class/in", course=Path("mine.toml"))[0].course == Path("mine.toml")


def test_the_course_of_this_folder_counts_and_never_one_that_was_handed_in(places, monkeypatch):
    (places / "here/course.toml").write_text(ASKED)
    assert looked_for("../class/in/ada/w.ipynb")[0].course.samefile("course.toml")
    assert looked_for("../class/in")[0].course is not None  # the two files agree
    (places / "here/course.toml").write_text(COURSE)
    with pytest.raises(RunError, match=r"found two course.toml .*Say --course .*or --no-course"):
        looked_for("../class/in")
    monkeypatch.chdir(places / "class/in")
    assert looked_for(".")[0].course.samefile(places / "class/course.toml")


@pytest.mark.parametrize("name", ["my_parts.py", "w.ipynb", "my_parts-1.py"])
def test_a_course_next_to_a_file_that_is_named_itself_is_its_learners(tmp_path, monkeypatch, name):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "course.toml").write_text('late = "0%/day"\n')
    (tmp_path / "ada" / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    assert course_file.candidates([Path("ada", name)]) == []


def test_a_run_that_goes_on_keeps_its_course(places):
    out = {"out": places / "out", "resume": True}
    assert looked_for("../class/in", **out) == (GradeOptions((Path("../class/in"),), **out), [])
    (places / "out/course.toml").write_text(ASKED)
    assert looked_for("../class/in", **out)[0].course.samefile(places / "class/course.toml")
    (places / "class/course.toml").write_text(COURSE)
    found, (line,) = looked_for("../class/in", **out)
    assert found.course is None
    assert "differs from it. To use that one: --course" in line


def test_no_course_takes_back_what_was_taken_off(run):
    again = run("moodle")
    assert again("--moodle", "moodle.csv", "--course", "course.toml") == 0
    assert table() == {"Anna M": 13.5, "Bob K": 15}
    assert again("--no-course") == 0
    assert table() == {"Anna M": 15, "Bob K": 15}
    assert again() == 0
    assert table() == {"Anna M": 15, "Bob K": 15}


def test_a_comment_written_later_next_to_the_course_is_found(run):
    """We once looked only in the run's folder, where only the next call would copy it."""
    again = run("moodle")
    Path("comments.csv").write_text("name,comment\nsign,The sign is a slip.\n")
    Path("out/overrides.csv").write_text("learner,exercise,points,comment\nannam,01.1,2,@sign\n")

    assert again("--course", "course.toml") == 0
    assert "The sign is a slip." in Path("out/grades.csv").read_text("utf-8")
