"""Gradebooks keep their columns, languages and separators, and every learner gets their own points.

Moodle's headings and identifiers come from its English and German language packs.
"""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
from test_grading_reports import EVIL, result, sample

from dlsys.grading import cohort
from dlsys.grading.books import given, gradebooks, pages, reports, returns, scoring
from dlsys.grading.books.people import is_called
from dlsys.grading.books.run_folder import RunError
from dlsys.grading.books.scoring import Scoring
from dlsys.grading.options import GradeOptions
from dlsys_helpers import stages


@pytest.fixture
def grades() -> dict[str, Any]:
    return sample()


def rows(text: str, separator: str = ",") -> list[list[str]]:
    return list(csv.reader(io.StringIO(text), delimiter=separator))


CANVAS = ('\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Stage 1 (4711),Stage 2 (4712)\r\n'
          '    Points Possible,,,,,15,10\r\n"Lovelace, Ada",7,s7,ada,A,,3\r\n'
          '"Curie, Marie",99,s99,marie,A,4,\r\n')


def test_a_canvas_gradebook_is_filled_in_and_else_left_as_it_is(tmp_path, grades):
    book = tmp_path / "book.csv"
    book.write_text(CANVAS, encoding="utf-8", newline="")

    made = gradebooks.fill_canvas(scoring.best(grades["results"]), gradebooks.read(book),
                                  ["Stage 1"])

    assert [r["name"] for r in made.absent] == ["bob.ipynb", f"{EVIL}.ipynb"]
    assert made.stray == []
    assert made.text == CANVAS.replace("ada,A,,3", "ada,A,15,3")


MOODLE = ("Identifier,Full name,Email address,Status,Grade,Maximum Grade,Feedback comments\n"
          "Participant 9,Eve,e@x,Submitted,,15.00,\nParticipant 5,Max,m@x,No submission,,15.00,\n")


def test_a_moodle_worksheet_is_filled_in(tmp_path, grades):
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(MOODLE, encoding="utf-8")

    made = gradebooks.fill_moodle(scoring.best(grades["results"]), gradebooks.read(sheet))

    filled = rows(made.text)
    assert [r["name"] for r in made.absent] == ["ada.ipynb", "bob.ipynb"]
    assert filled[1][:6] == ["Participant 9", "Eve", "e@x", "Submitted", "0", "15.00"]
    assert filled[1][6].startswith("01.1: 0/3 (&lt;script&gt;")
    assert filled[2] == ["Participant 5", "Max", "m@x", "No submission", "", "15.00", ""]


@pytest.mark.parametrize(("content", "column", "part"), [
    ("", "Stage 1", "is empty"), (CANVAS, "Stage", "got 2 columns"),
    (CANVAS, "Other", "got 0 columns"), ("a,b\n1,2\n", "a", "that begin with 'ID'")])
def test_a_gradebook_that_does_not_fit_is_named(tmp_path, grades, content, column, part):
    book = tmp_path / "book.csv"
    book.write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=part):
        gradebooks.fill_canvas(scoring.best(grades["results"]), gradebooks.read(book), [column])


@pytest.mark.parametrize("column", [
    "Student", "ID", "SIS User", "Section", "Final Score", "1=Section", "Final"])
def test_a_column_that_is_no_assignments_is_refused(tmp_path, grades, column):
    book = tmp_path / "book.csv"
    book.write_text(CANVAS.replace("(4712)", "(4712),Final Score").replace(
        "15,10", "15,10,(read only)"), encoding="utf-8")
    with pytest.raises(RunError, match=r"book.csv: got the column '.*', which Canvas fills "
                                              r"in itself, expected the column of an "
                                              r"assignment\."):
        gradebooks.fill_canvas(scoring.best(grades["results"]), gradebooks.read(book), [column])
    with pytest.raises(RunError, match="got the column"):  # before the work
        gradebooks.fill_canvas([], gradebooks.read(book), [column])


def test_one_stray_hand_in_does_not_keep_the_class_from_its_points(tmp_path, grades):
    book, sheet = tmp_path / "book.csv", tmp_path / "sheet.csv"
    book.write_text(CANVAS, encoding="utf-8")
    sheet.write_text(MOODLE, encoding="utf-8")
    alone = scoring.best(grades["results"])
    later = {**result("bob", "pp", "99", "canvas"), "stage": 7}
    canvas = gradebooks.fill_canvas([*alone, later], gradebooks.read(book), ["Stage 1"])
    moodle = gradebooks.fill_moodle([*alone, later], gradebooks.read(sheet))

    assert canvas.text == gradebooks.fill_canvas(alone, gradebooks.read(book), ["Stage 1"]).text
    assert moodle.text == gradebooks.fill_moodle(alone, gradebooks.read(sheet)).text
    assert canvas.stray == moodle.stray == [later]
    told = given.line_about("canvas.csv", [*alone, later], canvas)
    assert f"of {len(alone)} learners filled in." in told
    assert "Not filled in, because they are for a different stage: bob (stage 7)." in told


def test_results_of_two_stages_are_not_mixed_into_one_column(tmp_path, grades):
    book, sheet = tmp_path / "book.csv", tmp_path / "sheet.csv"
    book.write_text(CANVAS, encoding="utf-8")
    sheet.write_text(MOODLE, encoding="utf-8")
    alone = scoring.best(grades["results"])
    both = [*alone, *({**one, "stage": 2} for one in alone)]
    counts = r"no stage has more than half of the hand-ins: stage 1: \d \(.*\); stage 2: \d \(.*\)"
    with pytest.raises(gradebooks.NoStage, match=counts):
        gradebooks.fill_canvas(both, gradebooks.read(book), ["Stage 1"])
    with pytest.raises(gradebooks.NoStage, match=counts):
        gradebooks.fill_moodle(both, gradebooks.read(sheet))


def test_one_column_that_nobody_can_place_leaves_the_others_filled(tmp_path):
    """Canvas's column stays open; Moodle's sheets, which say their stage, are filled in."""
    (tmp_path / "book.csv").write_text(CANVAS, encoding="utf-8")
    (tmp_path / "1.csv").write_text(MOODLE, encoding="utf-8")
    eve = result("eve", "ppppp", "9", "moodle")
    both = [eve, {**result("ada", "ppppp", "7734", "canvas"), "stage": 2}]
    books = given.read(asked(tmp_path, canvas=((tmp_path / "book.csv", "Stage 1"),),
                             moodle=((1, tmp_path / "1.csv"),)))
    lines = []
    (tmp_path / "out").mkdir()

    assert not books.write(both, tmp_path / "out", lines.append)
    assert rows((tmp_path / "out/moodle_01.csv").read_text("utf-8"))[1][4] == "15"
    assert not (tmp_path / "out/canvas.csv").exists()
    (said,) = [line for line in lines if line.startswith("canvas.csv: not filled in")]
    assert said.endswith(f'--resume --canvas {tmp_path / "book.csv"} "1=Stage 1"')
    assert books.write(both, tmp_path / "out", lines.append, asked=[2])


def test_two_people_of_one_id_are_named_not_mixed(tmp_path, grades):
    book = tmp_path / "book.csv"
    book.write_text(CANVAS, encoding="utf-8")
    both = scoring.best([*grades["results"], result("mal", "ppppp", "7", "canvas")])
    made = gradebooks.fill_canvas(both, gradebooks.read(book), ["Stage 1"])

    assert made.text == CANVAS  # neither of the two gets points, but the file is written
    assert [r["name"] for r in made.twins] == ["ada.ipynb", "mal.ipynb"]
    assert "ada.ipynb (7), mal.ipynb (7)" in given.line_about("canvas.csv", both, made)


def test_what_was_asked_for_tells_whose_column_it_is(tmp_path, grades):
    book = tmp_path / "book.csv"
    book.write_text(CANVAS, encoding="utf-8")
    alone = scoring.best(grades["results"])
    both = [*alone, *({**one, "stage": 2} for one in alone)]
    made = gradebooks.fill_canvas(both, gradebooks.read(book), ["Stage 1"], asked=[1])

    assert made.text == gradebooks.fill_canvas(alone, gradebooks.read(book), ["Stage 1"]).text


def test_a_gradebook_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match="No such file"):
        gradebooks.read(tmp_path / "gone.csv")


def filled(tmp_path, content: str, results: list, columns: list[str]) -> str:
    book = tmp_path / "book.csv"
    book.write_text(content, encoding="utf-8", newline="")
    return gradebooks.fill_canvas(scoring.best(results), gradebooks.read(book), columns).text


@pytest.mark.parametrize("columns", [["Stage {stage}"], ["1=Stage 1", "2=Stage 2 (4712)"]])
def test_several_stages_fill_several_columns(tmp_path, columns):
    both = [result("ada", "ppppp", "7", "canvas"),
            {**result("ada", "pp", "7", "canvas"), "stage": 2}]

    assert '"Lovelace, Ada",7,s7,ada,A,15,6\r\n' in filled(tmp_path, CANVAS, both, columns)
    assert '"Lovelace, Ada",7,s7,ada,A,15,' in filled(tmp_path, CANVAS, both, ["1=Stage 1"])


def test_a_column_is_told_from_one_that_begins_alike(tmp_path):
    more = CANVAS.replace("Stage 2 (4712)", "Stage 1 quiz (4712)").replace(
        "Section", "Stage 10 (9)")
    ada = [result("ada", "ppppp", "7", "canvas")]

    assert filled(tmp_path, more, ada, ["Stage 1"]) == more.replace("A,,3", "A,15,3")


GERMAN = ("ID;Vollständiger Name;E-Mail-Adresse;Status;Bewertung;Bestwertung;Bewertung kann "
          "geändert werden;Zuletzt geändert (Abgabe);Zuletzt geändert (Bewertung);Feedback als "
          "Kommentar\nTeilnehmer/in9;Eva Bär;e@x;Zur Bewertung abgegeben;;15,00;Ja;"
          "Samstag, 16. Januar 2027, 08:00;-;\n")


def test_a_german_sheet_keeps_its_separator_and_its_decimal_comma(tmp_path):
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(GERMAN, encoding="utf-8-sig")
    eva = {**result("Eva", "pppwp", "9", "moodle"), "points": 12.5}

    made = gradebooks.fill_moodle([eva], gradebooks.read(sheet))
    text, absent = made.text, made.absent
    people, times = (find(gradebooks.read(sheet))
                     for find in (gradebooks.moodle_names, gradebooks.moodle_times))

    assert absent == []
    assert text.startswith("\ufeffID;")
    line = rows(text, ";")[1]
    assert line[4:9] == ["12,5", "15,00", "Ja", "Samstag, 16. Januar 2027, 08:00", "-"]
    assert line[9].startswith("01.1: 3/3; ")
    assert (people, times) == ({"9": "Eva Bär"}, {"9": "Samstag, 16. Januar 2027, 08:00"})


def asked(tmp_path, **gradebooks: tuple) -> GradeOptions:
    return GradeOptions((tmp_path,), tmp_path / "out", **gradebooks)


def test_each_stage_has_its_sheet_of_moodle(tmp_path):
    for k in (1, 2):
        (tmp_path / f"{k}.csv").write_text(MOODLE, encoding="utf-8")
    both = [result("eve", "ppppp", "9", "moodle"),
            {**result("eve", "pp", "9", "moodle"), "stage": 2}]
    two = asked(tmp_path, moodle=tuple((k, tmp_path / f"{k}.csv") for k in (1, 2)))

    made, _ = given.read(two).fill(both)

    assert [(one.name, rows(one.content)[1][4]) for one in made] == [
        ("moodle_01.csv", "15"), ("moodle_02.csv", "6")]
    with pytest.raises(RunError, match="two sheets for one stage"):
        given.read(asked(tmp_path, moodle=((None, tmp_path / "1.csv"),) * 2))
    with pytest.raises(RunError, match="--canvas: got 2 gradebooks"):
        given.read(asked(tmp_path, canvas=((Path("a.csv"), "x"), (Path("b.csv"), "y"))))


def test_pages_show_the_names_of_the_gradebook_and_by_hand_takes_either(tmp_path, grades):
    book = tmp_path / "book.csv"
    book.write_text(CANVAS, encoding="utf-8", newline="")
    names = given.read(asked(tmp_path, canvas=((book, "Stage 1"),))).names
    judged = grades["results"][:2]

    (ada, _) = scored = scoring.scored(judged, [], Scoring(names=names))

    assert names == {("canvas", "7"): "Ada Lovelace", ("canvas", "99"): "Marie Curie"}
    assert "<h1>Feedback for Ada Lovelace</h1>" in pages.feedback([ada], grades)
    assert scoring.owner(ada) == scoring.owner(judged[0])  # the page keeps its name
    for name in ("ada", "Ada Lovelace", "7"):
        assert is_called(ada, name)
    assert not is_called(scored[1], "Ada Lovelace")


# ---- feedback for the LMS to hand out

SECOND = f"feedback_canvas_{stages.stage(2).stem}.zip"


def unzipped(data: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_feedback_goes_back_under_the_names_that_each_lms_looks_for(grades):
    ada = {**result("ada", "ppppp", "7734", "canvas"),
           "name": "all/ada_LATE_7734_99120_01_activations-2.ipynb"}
    again = {**result("ada", "pwppp", "7734", "canvas"), "name": "ada_7734_98000_first.ipynb"}
    later = {**result("ada", "pp", "7734", "canvas"), "stage": 2}
    eve = result("Eve_A/B", "pwppp", "4711", "moodle")
    made = returns.archives({**grades, "results": [ada, again, later, eve]}, pages.feedback)

    assert sorted(made) == ["feedback_canvas_01_activations.zip", SECOND,
                            "feedback_moodle_01_activations.zip"]
    (name, page), = unzipped(made["feedback_canvas_01_activations.zip"]).items()
    assert name == "ada_LATE_7734_99120_01_activations-2.html"
    assert "first.ipynb" in page  # both are for stage 1, and no other stage is here
    assert "Stage 2" not in page
    (name, page), = unzipped(made["feedback_moodle_01_activations.zip"]).items()
    assert name == "Eve A B_4711_assignsubmission_file_/feedback_01_activations.html"
    assert "ada" not in page


def test_what_was_refused_goes_back_with_its_reason(grades, tmp_path):
    eve = result("eve", "pwppp", "8", "moodle")
    ada, bob = ({**result(name, "", id, "moodle"), **cohort.refused("is empty.")}
                for name, id in (("ada", "9"), ("bob", "7")))
    (tmp_path / "1.csv").write_text(MOODLE, encoding="utf-8")

    made = returns.archives({**grades, "results": [ada, eve]}, pages.feedback)
    (filled,), _ = given.read(
        asked(tmp_path, moodle=((None, tmp_path / "1.csv"),))).fill([ada, eve])

    (archive,) = made.values()
    assert [name.split("_")[1] for name in unzipped(archive)] == ["9", "8"]
    assert list(returns.archives({**grades, "results": [bob]}, pages.feedback)) == [
        "feedback_moodle_not_graded.zip"]
    told = [row for row in rows(filled.content) if "Not graded: it is empty." in row]
    assert [row[0] for row in told] == ["Participant 9"]
    assert told[0][4] == rows(MOODLE)[1][4]


def test_one_learners_many_refused_files_take_one_row():
    many = [{**result("ada", ""), "name": f"{k}.ipynb", **cohort.refused("is empty.")}
            for k in range(30)]
    graded = result("eve", "ppppp")

    first, other = reports.one_refusal_each([*many, graded])

    assert first["reason"].startswith("is empty. Also not graded: 29 more of the same learner")
    assert other is graded


def test_moodle_finds_the_person_in_the_name_as_its_importer_does():
    """Moodle splits each part of a path at underscores: name, number, kind, plugin, rest."""
    name = returns.moodle_name(result("Ada_von_L", "", "4711", "moodle"), "feedback_01")
    folder, page = name.split("/")
    _, number, kind, plugin, rest = folder.split("_", 4)

    assert (number, kind, plugin, rest) == ("4711", "assignsubmission", "file", "")
    assert page.endswith(".html")


def test_canvas_finds_the_person_in_the_name_as_its_importer_does():
    """Canvas takes the first two numbers between underscores as the person and the upload."""
    given = {**result("ada", "p"), "name": "x/ada_7734_99120_3_work.ipynb"}
    parts = returns.canvas_name(given, "").split("_")

    assert [part for part in parts if part.isdigit()][:2] == ["7734", "99120"]
    assert returns.canvas_name(result("ada", "p"), "") == ""
    out = {**given, "name": "ada_7734_99120_..\\..\\C:x.ipynb"}
    assert returns.canvas_name(out, "") == "ada_7734_99120_.. .. C x.html"
