"""The notebook reader takes the same from a file for the learner and for the grader."""

import pytest
from grading_samples import code, notebook

from dlsys import worksheets
from dlsys.grading.books import submitted_notebook
from dlsys_files import notebook_file, notebook_reader
from dlsys_files.notebook_reader import Unreadable
from dlsys_helpers.verdicts import STATUSES, Verdict

BAD = {"empty": b"", "cut off": notebook([code("1")])[:-9], "a list": b"[]",
       "no cells": notebook([]), "another format": b'{"nbformat": {"a": [1]}}',
       "another language": notebook([code("1")], metadata={"kernelspec": {"language": "R"}}),
       "of another course": notebook([code("1")], metadata={}),
       "renamed by a variant": notebook([code("1")], metadata={
           "dlsys": {"stage": 1, "view": "exercise", "names": {"01.1": "infer"}}})}


@pytest.mark.parametrize("name", BAD)
def test_learner_and_grader_hear_the_same_reason(name, tmp_path):
    path = tmp_path / "mine.ipynb"
    path.write_bytes(BAD[name])
    with pytest.raises(submitted_notebook.Refused) as refused:
        submitted_notebook.parse(BAD[name])
    with pytest.raises(worksheets.WorksheetError) as advised:
        worksheets.read(path)
    assert f"mine.ipynb: {refused.value} " in str(advised.value)


def test_a_variants_worksheet_is_told_which_version_grades_it():
    """The message names the version, whatever stage `--stage` gives."""
    with pytest.raises(submitted_notebook.Refused, match=r"grade it with version 1\.0\.0"):
        submitted_notebook.parse(BAD["renamed by a variant"], stage=1)


def test_a_notebook_of_ones_own_can_be_run_beside_the_worksheets(tmp_path):
    path = tmp_path / "scratch.ipynb"
    path.write_bytes(BAD["of another course"])
    assert notebook_file.load(path).cells == [(1, "1")]
    with pytest.raises(worksheets.WorksheetError, match="is not a worksheet of this course"):
        worksheets.stage_in(path)


def test_what_is_too_large_is_not_parsed():
    with pytest.raises(Unreadable, match=r"has 32\.0 MiB, expected at most 32\.0 MiB"):
        notebook_reader.parse(b"{" * (notebook_reader.LARGEST + 1))
    with pytest.raises(Unreadable, match=r"has 9\.0 MiB without its pictures, expected at most"):
        notebook_reader.parse(b"{" * 9 * 2**20)


def picture(mib: int) -> dict:
    return {"output_type": "display_data", "metadata": {}, "data": {"image/png": "A" * mib * 2**20}}


def test_pictures_and_widgets_of_20_mb_leave_the_code_as_it_is():
    """A right answer was once refused because of the outputs below it, which are never read."""
    long = "table = '" + "\\u00e4\\\"" * 2000 + "'"
    card = {"output_type": "display_data", "metadata": Verdict("pass", "01.4").facts()}
    cells = [code("check('01.4', f)", outputs=[picture(10), card]),
             code(long, outputs=[picture(5)]), code("x = 1")]
    cells[1]["source"] = [long]
    data = notebook(cells, widgets={"state": {"a": {"x": "w" * 5 * 2**20}}})
    found = notebook_reader.parse(data)

    assert len(data) > 20 * 2**20
    assert [source for _, source in found.cells] == ["check('01.4', f)", long, "x = 1"]
    assert found.shown == {"01.4": "pass"}


@pytest.mark.parametrize("data", [b'"' + b'\\"' * 5 * 2**20, b'"a' * 5 * 2**20, b'\\' * 9 * 2**20],
                         ids=["a text without an end", "many texts", "backslashes"])
def test_a_large_file_of_any_form_takes_seconds(data):
    with pytest.raises(Unreadable):
        notebook_reader.parse(data)


@pytest.mark.parametrize(("start", "kind"), [
    (b"%PDF-1.7\n%\xe2\xe3", "a PDF"), (b"PK\x03\x04\x14\0", "a zip or a document of an office"),
    (b"\x89PNG\r\n\x1a\n", "a picture"), (b"\xff\xd8\xff\xe0", "a picture")])
def test_another_kind_of_file_is_called_what_it_is(start, kind):
    """The learner was once told to save a PDF as UTF-8."""
    with pytest.raises(Unreadable, match=f"^is {kind}.*, not a notebook, whatever its name says"):
        notebook_reader.parse(start + bytes(range(256)))


@pytest.mark.parametrize(("source", "ids"), [
    ("check('01.4', f)", ["01.4"]), ("def f(): pass\n  check( \"01.4\", f)", ["01.4"]),
    ("check('01.1', f)\ncheck('01.2', g)", ["01.1", "01.2"]), ("# check('01.4', f)", []),
    ("recheck('01.4', f)", []), ("check(name, f)", []), ("check('٠١.4', f)", []),
])
def test_a_check_cell_has_a_line_that_checks(source, ids):
    assert notebook_reader.checked_in(source) == ids


def shown(*outputs, source="check('01.4', f)") -> dict:
    return notebook_reader.parse(notebook([code(source, outputs=list(outputs))])).shown


def test_a_stored_verdict_is_read_from_the_data_of_its_output():
    for status in STATUSES:
        card = {"output_type": "display_data", "data": {"text/plain": "any words"},
                "metadata": Verdict(status, "01.4").facts()}
        assert shown(card) == {"01.4": status}
        assert shown(card, {"output_type": "error"}) == {"01.4": "error"}
        assert shown(card, source="f()") == shown(card, source="check('01.5', f)") == {}


@pytest.mark.parametrize("metadata", [3, {"dlsys": []}, {"dlsys": {"id": [], "status": "pass"}},
                                      {"dlsys": {"id": "01.4", "status": {}}}])
def test_strange_outputs_tell_nothing(metadata):
    assert shown({"output_type": "stream", "metadata": metadata}, 3, None) == {}


def test_words_of_an_older_card_tell_nothing():
    old = {"output_type": "display_data", "data": {"text/plain": "Exercise 01.4: passed."}}
    assert shown(old) == {}
