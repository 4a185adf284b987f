"""`dlsys start 1 --update` puts answers into the newest worksheet and loses nothing."""

import json

import nbformat
import pytest

from dlsys import cli, update, work_folder, worksheets
from dlsys_helpers import paths

ANSWER = "    return int((h == 0).all(0).sum())\n"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """The real stage 1, whose worksheet a test may change, and a folder of work."""
    for name, folder in (("EXERCISES", "exercises"), ("MY_WORK", "work")):
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(paths, name, tmp_path / folder)
    shipped = paths.ROOT / "exercises/01_activations.ipynb"
    (paths.EXERCISES / shipped.name).write_bytes(shipped.read_bytes())
    work_folder.start(1)
    return tmp_path


def mine():
    return paths.MY_WORK / "01_activations.ipynb"


def edit(path, change, **facts):
    """Change a notebook's cells, each given with its source as one text."""
    book = json.loads(path.read_text("utf-8"))
    for cell in book["cells"]:
        cell["source"] = "".join(cell["source"])
    book["cells"] = change(book["cells"]) or book["cells"]
    book["metadata"]["dlsys"] |= facts
    path.write_text(json.dumps(book))


def write(id, body):
    """A change: the body of the exercise cell with this id."""
    def change(cells):
        (cell,) = [cell for cell in cells if cell["id"] == id]
        cell["source"] = cell["source"].split("    raise")[0] + body
    return change


def renew(change=lambda cells: None):
    """A newer version of the course."""
    edit(paths.EXERCISES / "01_activations.ipynb", change, version="newer")


def code(path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    return [cell.source for cell in book.cells if cell.cell_type == "code"]


def retitle(cells):
    (cell,) = [cell for cell in cells if cell["id"] == "01-4-exercise-1"]
    cell["source"] = cell["source"].replace("Count the units", "Count all units")


def test_an_answer_is_carried_over_and_the_file_is_kept_to_the_byte(course, capsys):
    edit(mine(), write("01-4-exercise-1", ANSWER))
    before = mine().read_bytes()
    renew()
    assert cli.main(["start", "1", "--update"]) == 0
    said = capsys.readouterr().out
    assert "01.4: your answer is carried over." in said
    (kept,) = (paths.MY_WORK / "kept").iterdir()
    assert kept.read_bytes() == before
    assert f"kept/{kept.name}" in said
    assert [source for source in code(mine()) if source.endswith(ANSWER)]
    assert worksheets.read(mine()).notes == []
    assert cli.main(["start", "1", "--update"]) == 0
    assert "is up to date" in capsys.readouterr().out
    assert len(list((paths.MY_WORK / "kept").iterdir())) == 1


def test_where_the_text_has_changed_both_are_there_and_the_answer_counts(course):
    edit(mine(), write("01-4-exercise-1", ANSWER))
    renew(retitle)
    assert update.update(1).lines == [
        "01.4: its text has changed; your answer is below the new text. Compare them."]
    found = [source for source in code(mine()) if "def dead_units" in source]
    assert ["Count all units" in source for source in found] == [True, False]
    assert found[1].endswith(ANSWER)


def test_an_exercise_that_asks_for_another_function_keeps_the_old_answer_beside_it(course):
    def another(cells):
        (cell,) = [cell for cell in cells if cell["id"] == "01-4-exercise-1"]
        cell["source"] = cell["source"].replace("def dead_units(", "def silent_units(")
    edit(mine(), write("01-4-exercise-1", ANSWER))
    renew(another)
    assert update.update(1).lines == [
        "01.4: asks for silent_units now; your earlier answer is below the new text."]
    found = [source for source in code(mine()) if "_units(h: torch.Tensor)" in source]
    assert ["NotImplementedError" in source for source in found] == [True, False]
    assert found[1].startswith("# Your answer to what this exercise asked for before.\ndef dead")
    assert found[1].endswith(ANSWER)


def test_half_an_answer_is_one_too_and_a_stub_is_none(course):
    half = "    dead = h == 0\n    raise NotImplementedError('exercise 01.4 is not written yet')\n"
    edit(mine(), write("01-4-exercise-1", half))
    renew()
    assert [line[:5] for line in update.update(1).lines] == ["01.4:"]


def test_the_stub_of_a_class_is_no_answer_and_a_method_more_is_one():
    stub = ('class Blocks:\n    """Text."""\n\n    def __init__(self, n):\n'
            '        raise NotImplementedError("exercise 13.1 is not written yet")\n')
    assert update.is_unwritten(stub)
    assert not update.is_unwritten(stub + "\n    def left(self):\n        return 0\n")


def test_cells_and_imports_of_ones_own_come_along(course):
    def own(cells):
        setup = next(cell for cell in cells if cell["id"] == "stage-setup-2")
        setup["source"] += ("\nimport itertools\nfrom collections import (\n    Counter,\n"
                            "    deque)\nif True:\n    import string\n")
        at = [cell["id"] for cell in cells].index("01-3-hint-1") + 1
        return [*cells[:at], {"cell_type": "markdown", "id": "x1", "metadata": {},
                              "source": "My thought"}, *cells[at:]]
    edit(mine(), own)
    renew()
    update.update(1)
    ids = [cell.id for cell in nbformat.read(mine(), as_version=4).cells]
    assert ids[ids.index("x1") - 1] == "01-3-hint-1"
    assert ("# From your set-up cell.\nimport itertools\nfrom collections import Counter, deque\n"
            "if True:\n    import string") in code(mine())


def test_an_import_keeps_the_condition_around_it():
    source = ("try:\n    import cupy\nexcept ImportError:\n    cupy = None\n"
              "def f():\n    import math")
    assert update.import_lines(source) == [source.partition("\ndef")[0]]


def test_the_imports_of_a_cell_that_is_no_python_are_those_of_a_line():
    broken = "import os\nfrom a import (\n    b,\nimport numpy as np\nx = ("
    assert update.import_lines(broken) == ["import os", "import numpy as np"]


def test_a_cell_above_the_course_s_first_stays_there(course):
    edit(mine(), lambda cells: [{"cell_type": "code", "id": "x1", "metadata": {}, "outputs": [],
                                 "execution_count": 1, "source": "TOP = 1"}, *cells])
    renew()
    update.update(1)
    first = nbformat.read(mine(), as_version=4).cells[0]
    assert (first.id, first.source, first.execution_count) == ("x1", "TOP = 1", None)


def test_an_exercise_that_the_course_dropped_leaves_its_answer(course):
    edit(mine(), write("01-5-exercise-1", "    return x\n"))
    renew(lambda cells: [cell for cell in cells if not cell["id"].startswith("01-5")])
    assert "01.5: is no longer in the course" in update.update(1).lines[0]
    assert "def soft_threshold" in code(mine())[-1]


def test_answers_are_found_by_name_where_a_tool_dropped_the_marks(course):
    def bare(cells):
        write("01-4-exercise-1", ANSWER)(cells)
        return [{**cell, "id": f"c{n}", "metadata": {}} for n, cell in enumerate(cells)]
    edit(mine(), bare)
    renew()
    assert update.update(1).lines == ["01.4: your answer is carried over."]


def test_line_ends_of_windows_change_nothing(course):
    def carriage(cells):
        write("01-4-exercise-1", ANSWER)(cells)
        for cell in cells:
            cell["source"] = cell["source"].replace("\n", "\r\n")
    edit(mine(), carriage)
    mine().write_bytes(mine().read_bytes().replace(b"\n", b"\r\n"))
    assert worksheets.read(mine()).notes == []
    renew()
    assert update.update(1).lines == ["01.4: your answer is carried over."]


def test_a_release_keeps_its_date(course):
    cli.main(["release", "1", "--due", "2027-01-15", "--out", str(course / "class")])
    mine().write_bytes((course / "class/01_activations.ipynb").read_bytes())
    renew()
    update.update(1)
    assert "Hand in by 2027-01-15" in nbformat.read(mine(), as_version=4).cells[0].source


def test_the_lesson_is_renewed_too_and_kept(course, monkeypatch):
    monkeypatch.setattr(work_folder, "is_older", lambda path, stage: True)
    lesson = paths.MY_WORK / "01_lesson.ipynb"
    before = lesson.read_bytes() + b" \n"
    lesson.write_bytes(before)
    assert "yours is kept as kept/01_lesson_" in update.update(1).lines[0]
    (kept,) = (paths.MY_WORK / "kept").iterdir()
    assert kept.read_bytes() == before


def test_the_lesson_of_a_release_keeps_its_stamp_and_shows_no_more_than_it_did(course, monkeypatch):
    cli.main(["release", "1", "--out", str(course / "class")])
    lesson = paths.MY_WORK / "01_lesson.ipynb"
    lesson.write_bytes((course / "class/01_lesson.ipynb").read_bytes())
    monkeypatch.setattr(work_folder, "is_older", lambda path, stage: True)
    update.update(1)
    book = nbformat.read(lesson, as_version=4)
    assert book.metadata["dlsys"]["release"].startswith("1.")
    assert [cell.id for cell in book.cells if cell.get("outputs")] == []


@pytest.mark.parametrize(("prepare", "said"), [
    (lambda: mine().unlink(), "no such worksheet"),
    (lambda: mine().write_text("{"), "stops in the middle"),
    (lambda: edit(mine(), lambda cells: None, stage=2), "holds stage 2, expected 1")])
def test_what_cannot_be_renewed_is_said_and_left_alone(course, capsys, prepare, said):
    prepare()
    renew()
    files = {path.name: path.read_bytes() for path in paths.MY_WORK.iterdir()}
    assert cli.main(["start", "1", "--update"]) == 2
    err = capsys.readouterr().err
    assert (said in err, err.count("\n")) == (True, 1)
    assert {path.name: path.read_bytes() for path in paths.MY_WORK.iterdir()} == files


def test_check_offers_the_newer_version(course):
    renew()
    (note,) = worksheets.read(mine()).notes
    assert "dlsys start 1 --update" in note


def test_a_second_file_of_a_day_takes_the_next_name(course):
    for version in ("n1", "n2"):
        edit(mine(), lambda cells: None, version="old")
        edit(paths.EXERCISES / "01_activations.ipynb", lambda cells: None, version=version)
        update.update(1)
    names = sorted(path.stem for path in (paths.MY_WORK / "kept").iterdir())
    assert len(names) == 2
    assert names[1] == f"{names[0]}_2"


def test_what_cannot_be_replaced_stays_and_leaves_nothing_half_done(course, monkeypatch, capsys):
    edit(mine(), write("01-4-exercise-1", ANSWER))
    renew()
    before = mine().read_bytes()

    def held(*_):
        raise PermissionError(13, "held by another program")
    monkeypatch.setattr(update.os, "replace", held)

    assert cli.main(["start", "1", "--update"]) == 2

    assert "cannot be replaced" in capsys.readouterr().err
    assert mine().read_bytes() == before
    assert {path.suffix for path in paths.MY_WORK.iterdir() if path.is_file()} == {".ipynb"}
