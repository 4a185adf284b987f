"""overrides.csv: points and comments by hand, in every output, and nowhere in the journal."""

from __future__ import annotations

import contextlib

import pytest
from grading_samples import settings
from test_grading_reports import result

from dlsys.grading import cohort
from dlsys.grading.books import gradebooks, overrides, pages, reports, scoring, summary
from dlsys.grading.books.journal import Journal
from dlsys.grading.books.overrides import BadOverride, Override
from dlsys.grading.books.run_folder import JOURNAL, OVERRIDES
from dlsys.grading.books.scoring import Scoring

RUN = {"run": {"begun": "2026-01-01T00:00:00+00:00", "settings": {"key": "00"}}}
HEAD = "learner,exercise,points,comment\n"


def write(folder, text: str):
    folder.mkdir(exist_ok=True)
    (folder / OVERRIDES).write_text(text, "utf-8")
    return overrides.read(folder)


def test_rows_are_read_as_written(tmp_path):
    assert overrides.read(tmp_path) == []
    rows = write(tmp_path, "\ufeff" + HEAD + 'ada,01.3,2.5,"a, b"\n\nbob,,,see me\n')

    assert rows == [Override(2, "ada", "01.3", 2.5, "a, b"), Override(4, "bob", "", None, "see me")]


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_rows_are_read_as_a_spreadsheet_saves_them(tmp_path, separator):
    text = f'{HEAD}ada,1.3,"2,5",sic\nbob,11.2,1,\n'.replace('"2,5"', "2#5").replace(
        ",", separator).replace("2#5", '"2,5"')

    assert write(tmp_path, text) == [
        Override(2, "ada", "01.3", 2.5, "sic"), Override(3, "bob", "11.2", 1, "")]


@pytest.mark.parametrize(("text", "said"), [
    (HEAD + "ada,7.1,2,\n", "row 2: got exercise 7.1, which a spreadsheet makes of 07.1 and of "
     "07.10. Write 07.1 or 07.10, as text."),
    ("name,points\n", "got the columns 'name,points', expected learner,exercise,points,comment"),
    ("", "got the columns '', expected learner"),
    (HEAD + "ada,01.3,2,a,b\n", "row 2: got 5 cells, expected 4. Put a comment with a comma"),
    (HEAD + "ada,01.3,two,\n", "row 2: got points 'two', expected a number or nothing"),
    (HEAD + "ada,,2,\n", "row 2: got points without an exercise"),
])
def test_a_row_that_makes_no_sense_is_named(tmp_path, text, said):
    with pytest.raises(BadOverride, match=said.replace(".", r"\.")):
        write(tmp_path, text)


@pytest.mark.parametrize(("row", "said"), [
    (Override(2, "eve", "01.1", 1, ""), "row 2: got learner 'eve'"),
    (Override(3, "ada", "01.9", 1, ""), "row 3: got exercise '01.9', expected one of 01.1, 01.2"),
    (Override(3, "ada", "02.1", 1, ""), "row 3: got exercise '02.1', expected one that was graded"),
    (Override(4, "ada", "01.1", 99, ""), "row 4: got 99 points, expected 0 to "),
    (Override(4, "ada", "01.1", -1, ""), "row 4: got -1 points, expected 0 to "),
])
def test_a_row_that_fits_nothing_is_named(row, said):
    with pytest.raises(BadOverride, match=said):
        overrides.apply([result("ada", "ppppp")], [row])


@pytest.mark.parametrize("exercise", ["01.2", ""])
def test_a_row_that_two_people_answer_to_is_refused(exercise):
    row = Override(2, "Ada", exercise, None, "see me")
    both = [result("Ada", "pp", "7734", "canvas"), result("Ada", "pp", "7736", "canvas")]

    with pytest.raises(BadOverride, match=r"row 2: 2 people are called 'Ada'; give the number: "
                                          r"7734, 7736$"):
        overrides.apply(both, [row])
    paths = [{**one, "name": f"{k}/ada.ipynb", "learner": {**one["learner"], "id": "", "raw": k}}
             for k, one in zip("ab", both, strict=True)]
    with pytest.raises(BadOverride, match=r"give one of a/ada\.ipynb, b/ada\.ipynb$"):
        overrides.apply(paths, [row])


def test_a_name_in_two_sections_is_refused_with_its_paths():
    both = [result("a/ada", "pp"), result("b/ada", "pp")]

    with pytest.raises(BadOverride, match="row 2: 2 people are called 'ada'; give one of a/ada, "
                                          "b/ada"):
        overrides.apply(both, [Override(2, "ada", "", None, "see me")])
    mine, _ = overrides.apply(both, [Override(2, "a/ada", "", None, "see me")])
    assert mine["notes"] == ["By hand: see me"]
    with pytest.raises(BadOverride, match="got learner 'ada', expected a name"):
        overrides.apply(both[:1], [Override(2, "ada", "", None, "see me")])


def test_moodles_number_of_each_stage_is_one_person():
    first, second = result("Ada", "pp", "11", "moodle"), result("Ada", "pp", "21", "moodle")
    row = Override(2, "Ada", "", None, "see me")

    changed = overrides.apply([first, {**second, "stage": 2}], [row])

    assert [one["notes"] for one in changed] == [["By hand: see me"]] * 2
    with pytest.raises(BadOverride, match="2 people are called"):
        overrides.apply([first, second], [row])
    bad = {**second, "stage": None, "status": "refused", "notes": []}  # no notebook of any stage
    assert overrides.apply([first, bad], [row])[0]["notes"] == ["By hand: see me"]


def test_canvas_people_are_those_of_their_numbers_whatever_their_names():
    both = [result("Ada", "pp", "7734", "canvas"), result("Ada King", "pp", "7734", "canvas")]
    changed = overrides.apply(both, [Override(2, "7734", "", None, "see me")])
    assert [one["notes"] for one in changed] == [["By hand: see me"]] * 2


def test_a_file_of_two_folders_is_nobodys_alone():
    both = [{**result("secA/ada", "pp"), "name": "ada.ipynb"},
            {**result("secB/ada", "pp"), "name": "ada.ipynb (2)"}]
    with pytest.raises(BadOverride, match=r"2 submissions are called 'ada\.ipynb'; give the lea"):
        overrides.apply(both, [Override(2, "ada.ipynb", "", None, "see me")])


def test_a_decimal_comma_without_quotes_is_refused(tmp_path):
    (tmp_path / OVERRIDES).write_text("learner,exercise,points,comment\nada,01.3,2,5\n")
    with pytest.raises(BadOverride, match=r"row 2: .* looks like 2,5\. Write 2\.5, or a comment"):
        overrides.read(tmp_path)


def test_points_and_comments_reach_every_output_and_the_judged_ones_stay():
    ada, bob = result("ada", "pwppp", "7", "canvas"), result("bob", "ppppp")
    rows = [Override(2, "7", "01.2", 1, "right idea"), Override(3, "bob", "", None, "see me")]
    mine, other = overrides.apply([ada, bob], rows)

    assert ada["exercises"][1]["points"] == 0
    assert (mine["points"], other["points"]) == (ada["points"] + 1, bob["points"])
    assert mine["exercises"][1]["by_hand"] == "By hand, 1 instead of 0: right idea"
    assert other["notes"] == ["By hand: see me"]
    assert (mine["notes"], mine["remarks"]) == ([], ["01.2 by hand, 1 instead of 0: right idea"])
    assert gradebooks.canvas([mine], "x")[1][-1] == ada["points"] + 1
    assert gradebooks.summary(mine).count("right idea") == 1
    assert "; 01.2: 1/3 (got 1, expected 2 By hand, 1 instead of 0: right idea); 01.3: " in (
        gradebooks.summary(mine))
    assert "see me" in gradebooks.summary(other)
    assert reports.nbgrader([mine])[1][-2] == mine["points"]
    assert "see me" in reports.rows_as_csv(reports.table([other], RUN["run"]))
    assert "see me" in pages.overview({**RUN, "results": [other]})
    assert pages.feedback([mine], RUN).count("right idea") == 1


def test_points_by_hand_open_a_hand_in_that_was_refused():
    """Only points for an exercise do; a row for the whole hand-in is a note and grades nothing."""
    closed = {**result("ada", "", "9", "moodle"), **cohort.refused("stops in the middle.")}
    (opened,) = overrides.apply([closed], [Override(2, "ada", "01.2", 2, "from paper")])
    (noted,) = overrides.apply([closed], [Override(2, "ada", "", None, "see me")])

    assert (closed["status"], noted["status"], opened["status"]) == ("refused",) * 2 + ("graded",)
    assert (opened["stage"], opened["points"], opened["possible"]) == (1, 2, 15)
    assert scoring.best([opened]) == [opened]
    assert "Not graded by the program: it stops in the middle." in pages.feedback([opened], RUN)
    assert gradebooks.summary(noted) == "Not graded: it stops in the middle. By hand: see me"
    assert "Sandbox: none: the points are by hand." in "\n".join(summary.about([opened]))
    with pytest.raises(BadOverride, match="expected one that was graded"):
        overrides.apply([closed], [Override(2, "ada", "01.99", 2, "")])


def test_the_journal_keeps_what_was_judged(tmp_path):
    out = tmp_path / "out"
    with contextlib.closing(Journal.begin(out, settings())) as journal:
        journal.add(judged := result("ada", "pwppp"))
        write(out, HEAD + "ada,01.2,1,\n")
        first = cohort.finish(journal, [judged], Scoring())["results"][0]["points"]
        (out / OVERRIDES).unlink()
        after = cohort.finish(journal, [judged], Scoring())["results"][0]["points"]
    assert (first, after) == (judged["points"] + 1, judged["points"])
    assert "by hand" not in (out / JOURNAL).read_text()
