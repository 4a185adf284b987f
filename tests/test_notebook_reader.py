"""One reader of notebook files: what it takes from them, the same for learner and grader."""

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
    """Whatever stage the grader is told to take it for."""
    with pytest.raises(submitted_notebook.Refused, match=r"grade it with version 1\.0\.0"):
        submitted_notebook.parse(BAD["renamed by a variant"], stage=1)


def test_a_notebook_of_ones_own_can_be_run_beside_the_worksheets(tmp_path):
    path = tmp_path / "scratch.ipynb"
    path.write_bytes(BAD["of another course"])
    assert notebook_file.load(path).cells == [(1, "1")]
    with pytest.raises(worksheets.WorksheetError, match="is not a worksheet of this course"):
        worksheets.stage_in(path)


def test_what_is_too_large_is_not_parsed():
    with pytest.raises(Unreadable, match=r"has 8\.0 MiB, expected at most 8\.0 MiB"):
        notebook_reader.parse(b"{" * (notebook_reader.LARGEST + 1))


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
