"""The grader finds and reads every submission within limits, or refuses it with a reason."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest
from grading_samples import code, notebook, worksheet

from dlsys.grading.books import submissions, submitted_notebook
from dlsys.grading.books.submitted_notebook import Refused
from dlsys.grading.text import cell, clean
from dlsys_helpers import paths

SOLVED = worksheet()


def zipped(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def reason(one: submissions.Submission) -> str:
    with pytest.raises(Refused) as refusal:
        submitted_notebook.parse(one.read())
    return str(refusal.value)


# ---- files that are not notebooks

BAD = {
    "empty": (b"", "is empty"),
    "spaces": (b" \n ", "is empty"),
    "truncated": (SOLVED[:900], "cut off"),
    "no UTF-8": (b'{"a": "\xff\xfe"}', "not UTF-8"),
    "UTF-16": (SOLVED.decode().encode("utf-16"), "not UTF-8"),
    "a list": (b"[1]", "not a notebook"),
    "a number": (b"3", "not a notebook"),
    "nested": (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "nested too deep"),
    "a long number": (b'{"nbformat": ' + b"9" * 10_000 + b"}", "number too long"),
    "old format": (b'{"nbformat": 3, "worksheets": []}', "format 3"),
    "no format": (b"{}", "format None"),
    "cells: 3": (notebook([]).replace(b'"cells": []', b'"cells": 3'), "no list of cells"),
    "a cell that is text": (notebook(["print(1)"]), "no list of cells"),
    "a source that is a number": (notebook([code(3)]), "source is not text"),
    "a source of numbers": (notebook([code([1, 2])]), "source is not text"),
    "2000 cells": (notebook([code("1", id="a")] * 2000), "has 2000 cells"),
    "R": (notebook([code("1")], metadata={"kernelspec": {"language": "R"}}), "a kernel for R"),
    "not of this course": (notebook([code("1")], metadata={}), "not a worksheet of this course"),
    "stage 99": (notebook([code("1")], metadata={"dlsys": {"stage": 99}}), "not a worksheet"),
    "stage true": (notebook([code("1")], metadata={"dlsys": {"stage": True}}), "not a worksheet"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_worksheet_is_refused_with_the_reason(tmp_path, name):
    data, part = BAD[name]
    (tmp_path / "a.ipynb").write_bytes(data)

    (found,) = submissions.find([tmp_path]).submissions

    assert part in reason(found)


def test_a_notebook_of_120_mb_is_refused_unread(tmp_path):
    with open(tmp_path / "a.ipynb", "wb") as file:
        file.truncate(120 * 2**20)

    (found,) = submissions.find([tmp_path]).submissions

    assert reason(found) == ("has 120.0 MiB, expected at most 32.0 MiB. Clear its outputs and "
                             "save it.")


def test_a_worksheet_older_than_the_exercises_gets_a_note():
    here = json.loads((paths.EXERCISES / "01_activations.ipynb").read_text("utf-8"))
    facts = here["metadata"]["dlsys"]
    old = notebook([code("1")], metadata={"dlsys": {**facts, "version": "0" * 8}})
    same = notebook([code("1")], metadata={"dlsys": facts})

    assert facts["version"]
    assert "The exercises have changed since this worksheet was made" in " ".join(
        submitted_notebook.parse(old).notes)
    assert submitted_notebook.parse(same).notes == []


def test_links_pipes_and_folders_named_like_notebooks_are_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(SOLVED)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.ipynb").symlink_to(secret)
    (folder / "loop.ipynb").symlink_to("loop.ipynb")
    os.mkfifo(folder / "pipe.ipynb")

    found = {one.name: one for one in submissions.find([folder]).submissions}

    assert "link" in reason(found["link.ipynb"])
    assert "link" in reason(found["loop.ipynb"])
    assert "regular" in reason(found["pipe.ipynb"])


def test_a_linked_folder_is_never_entered(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.ipynb").write_bytes(SOLVED)
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "way").symlink_to(outside)
    (inside / "a.ipynb").write_bytes(SOLVED)

    found = submissions.find([inside]).submissions

    assert [(one.name, one.problem) for one in found] == [
        ("a.ipynb", ""), ("way", "is a link, expected a file.")]


def test_a_name_that_is_no_utf8_can_be_shown(tmp_path):
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m.ipynb"))).write_bytes(SOLVED)

    (found,) = submissions.find([tmp_path]).submissions

    assert found.name.isprintable()
    assert submitted_notebook.parse(found.read()).stage == 1


# ---- whose it is

LAYOUTS = {
    "canvas": ("curiemarie_LATE_7734_99120_01_activations-2.ipynb",
               ("curiemarie", "7734", "canvas")),
    "canvas in time": ("curiemarie_7734_99120_01_activations.ipynb",
                       ("curiemarie", "7734", "canvas")),
    "moodle": ("Marie Curie_4711_assignsubmission_file_/01_activations.ipynb",
               ("Marie Curie", "4711", "moodle")),
    "moodle, newer": ("Marie Curie_4711_assignsubmission_file/my.ipynb",
                      ("Marie Curie", "4711", "moodle")),
    "nbgrader": ("submitted/marie/stage1/01_activations.ipynb", ("marie", "", "nbgrader")),
    "folders": ("marie/01_activations.ipynb", ("marie", "", "")),
    "files": ("marie.ipynb", ("marie", "", "")),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True])
def test_downloads_say_whose_each_notebook_is(tmp_path, name, packed):
    path, learner = LAYOUTS[name]
    other = path
    for mine, theirs in (("curiemarie", "curie"), ("marie", "ada"), ("Marie", "Ada"),
                         ("7734_99120", "7735_99121"), ("4711", "4712")):
        other = other.replace(mine, theirs)
    root = download(tmp_path, [path, other, "notes.pdf"], packed)

    found = submissions.find([root]).submissions

    assert len(found) == 2
    assert learner in [(one.learner.name, one.learner.id, one.learner.source) for one in found]
    assert all(submitted_notebook.parse(one.read()).stage == 1 for one in found)


def laid_out(root: Path, names: list[str]) -> Path:
    """A folder with these files."""
    for name, data in contents(names).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def contents(names: list[str]) -> dict[str, bytes]:
    """Names that end in .ipynb are solved worksheets."""
    return {name: SOLVED if name.endswith(".ipynb") else b"x" for name in names}


def download(tmp_path: Path, names: list[str], packed: bool) -> Path:
    """These files as a zip, or as a folder."""
    return (zipped(tmp_path / "all.zip", contents(names)) if packed
            else laid_out(tmp_path / "all", names))


NO_NOTEBOOK = {
    "canvas": ["ada_1_10_a.ipynb", "ada_1_11_notes.pdf", "bob_2_12_hw.pdf", "bob_2_13_more.txt",
               "eve_LATE_3_link.html", "fay_4_text.html", "readme.txt"],
    "moodle": ["Ada_1_assignsubmission_file_/a.ipynb", "Bob_2_assignsubmission_file_/x.docx",
               "Eve_3_assignsubmission_onlinetext_/onlinetext.html",
               "Fay_4_assignsubmission_file_hw.pdf", "readme.txt"],
}


@pytest.mark.parametrize("name", NO_NOTEBOOK)
@pytest.mark.parametrize("packed", [False, True])
def test_who_handed_in_no_notebook_is_named(tmp_path, name, packed):
    found = submissions.find([download(tmp_path, NO_NOTEBOOK[name], packed)])

    assert sorted((one.learner.name.lower(), one.problem[:17]) for one in found.submissions) == [
        ("ada", ""), *((who, "is not a notebook") for who in ("bob", "eve", "fay"))]
    assert found.left_out == ["readme.txt"]


def test_nbgraders_folder_may_be_named_itself(tmp_path, monkeypatch):
    """We once dropped its times without a word, so no hand-in was late."""
    place = tmp_path / "submitted/ada/ps1"
    place.mkdir(parents=True)
    (place / "w.ipynb").write_bytes(worksheet())
    (place / "timestamp.txt").write_text("2027-01-15 23:59:00 UTC")
    monkeypatch.chdir(tmp_path / "submitted")
    for path in (tmp_path / "submitted", Path()):
        found = submissions.find([path])
        (one,) = found.submissions
        assert (one.learner.name, one.learner.source) == ("ada", "nbgrader")
        assert (one.assignment, one.handed_in) == ("ps1", "2027-01-15T23:59:00+00:00")
        assert found.left_out == []


# Whose each file is, by (name, id), in the order of the names.
OWNERS = {
    "a file is no Canvas upload because its name looks so": (
        ["lab_01_2024_jones.ipynb", "lab_01_2024_smith.ipynb"],
        [("lab_01_2024_jones", ""), ("lab_01_2024_smith", "")]),
    "nor are those of one number": (
        ["hw_1_1_a.ipynb", "hw_1_2_b.ipynb", "hw_1_3_c.ipynb"],
        [("hw_1_1_a", ""), ("hw_1_2_b", ""), ("hw_1_3_c", "")]),
    "late in a download of Canvas": (
        ["a_LATE_1_10_x.ipynb", "b_2_11_x.ipynb"], [("a", "1"), ("b", "2")]),
    "a flat download of Moodle": (
        ["Jane Doe_2001_assignsubmission_file_01_x.ipynb",
         "Joe Doe_2002_assignsubmission_file_99_assignsubmission_file_x.ipynb"],
        [("Jane Doe", "2001"), ("Joe Doe", "2002")]),
    "one learner of Moodle, who takes another one's name": (
        ["Mal_66_assignsubmission_file_/Bob_77_assignsubmission_file_/a.ipynb",
         "Mal_66_assignsubmission_file_/x.ipynb"], [("Mal", "66"), ("Mal", "66")]),
    "a learner of Canvas who takes another one's name": (
        ["mal_66_900_Bob_77_assignsubmission_file_x.ipynb", "ada_1_901_x.ipynb"],
        [("ada", "1"), ("mal", "66")]),
    "a folder for each, and a wild name in it": (
        ["ada/a.ipynb", "mal/Bob_77_assignsubmission_file_x.ipynb", "zoe/bob_77_1_a.ipynb"],
        [("ada", ""), ("mal", ""), ("zoe", "")]),
    "nbgrader, and a name of Canvas in it": (
        ["submitted/2002/ps1/1001_1001_1_01.ipynb", "submitted/3003/ps1/01.ipynb"],
        [("2002", ""), ("3003", "")]),
    "nbgrader, one learner": (
        ["submitted/2002/ps1/01.ipynb", "submitted/2002/ps1/timestamp.txt"], [("2002", "")]),
    "sections of a class": (
        ["a/ada.ipynb", "a/bob.ipynb", "b/ada.ipynb", "b/eve.ipynb"],
        [("a/ada", ""), ("a/bob", ""), ("b/ada", ""), ("b/eve", "")]),
    "sections with a folder for each": (
        ["a/ada/01_activations.ipynb", "a/bob/01_activations.ipynb", "b/eve/hw.ipynb"],
        [("a/ada", ""), ("a/bob", ""), ("b", "")]),
    "two worksheets of one": (
        ["ada/01_activations.ipynb", "ada/02_backpropagation.ipynb", "bob/s/01_activations.ipynb"],
        [("ada", ""), ("ada", ""), ("bob", "")]),
}


@pytest.mark.parametrize("name", OWNERS)
@pytest.mark.parametrize("packed", [False, True])
def test_only_what_the_lms_or_the_instructor_named_says_whose_it_is(tmp_path, name, packed):
    names, owners = OWNERS[name]
    found = submissions.find([download(tmp_path, names, packed)]).submissions

    assert [(one.learner.name, one.learner.id) for one in found] == owners
    assert [one.late for one in found] == ["LATE" in one.name for one in found]


def test_notebooks_named_one_by_one_belong_to_their_folders(tmp_path):
    root = laid_out(tmp_path, ["ada/01_activations.ipynb", "bob/01_activations.ipynb"])

    found = submissions.find(sorted(root.glob("*/*.ipynb"))).submissions

    assert [(one.name, one.learner.name) for one in found] == [
        ("ada/01_activations.ipynb", "ada"), ("bob/01_activations.ipynb", "bob")]


def test_one_name_in_two_folders_is_two_people(tmp_path):
    root = laid_out(tmp_path, ["a/ada/x.ipynb", "a/bob/x.ipynb", "b/ada/x.ipynb", "b/eve/x.ipynb"])

    found = submissions.find([root / "a", root / "b"]).submissions

    assert [one.learner.name for one in found] == ["a/ada", "bob", "b/ada", "eve"]


def test_thousands_of_notebooks_of_one_learner_are_one_refusal(tmp_path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        for k in range(3000):
            archive.writestr(f"{k}.ipynb", SOLVED)
    root = zipped(tmp_path / "all.zip", {"ada_7_9_work.zip": inner.getvalue(),
                                         "bob_8_10_work.ipynb": SOLVED})

    ada, bob = submissions.find([root]).submissions

    assert reason(ada) == "is one of 3000 notebooks of one learner, expected at most 40."
    assert bob.problem == ""


def test_long_names_that_are_cut_alike_stay_different_people(tmp_path):
    section = "introduction to deep learning systems, section of the winter term, group number one"
    root = laid_out(tmp_path / "in", [f"{section}/{name}/01_activations.ipynb"
                                      for name in ("ada", "bob", "cem")] + ["other/x/y.ipynb"])

    owners = [one.learner for one in submissions.find([root]).submissions]

    assert len(set(owners)) == 4
    assert len({owner.name for owner in owners}) == 4
    assert all(len(owner.name) <= 84 for owner in owners)


def test_many_learners_in_a_section_with_a_long_name_are_all_graded(tmp_path):
    root = laid_out(tmp_path / "in", [f"{'s' * 90}/learner{k}/01_activations.ipynb"
                                      for k in range(45)] + ["t/x/01_activations.ipynb"])

    found = submissions.find([root]).submissions

    assert len(found) == 46
    assert {one.problem for one in found} == {""}


def test_names_that_differ_in_unseen_characters_are_different_people(tmp_path):
    root = laid_out(tmp_path / "in", ["ada.ipynb"] + ["ada" + "\u200b" * k + ".ipynb"
                                                      for k in range(1, 42)] + ["\u200b.ipynb"])

    found = submissions.find([root]).submissions

    assert {one.problem for one in found} == {""}
    assert len({one.learner.name for one in found}) == 43
    assert "(no visible name)" in [one.learner.name for one in found]


def test_a_zip_with_a_huge_list_of_files_is_refused_before_it_is_read(tmp_path, monkeypatch):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        for k in range(6000):
            archive.writestr(f"{k}.ipynb", b"")
    root = zipped(tmp_path / "all.zip", {"ada_7_9_work.zip": inner.getvalue(),
                                         "bob_8_10_work.ipynb": SOLVED})
    read = []
    decode = zipfile.ZipInfo.__init__
    monkeypatch.setattr(zipfile.ZipInfo, "__init__",
                        lambda self, *a, **k: read.append(1) or decode(self, *a, **k))

    ada, bob = submissions.find([root]).submissions

    assert "is a zip whose list of files has 334,890 bytes" in reason(ada)
    assert bob.problem == ""
    assert len(read) < 10


def test_many_zips_in_the_zip_of_a_learner_are_refused(tmp_path):
    root = laid_out(tmp_path / "in", ["bob/01_activations.ipynb"])
    (root / "ada").mkdir()
    zipped(root / "ada" / "work.zip", {f"{k}.zip": b"" for k in range(41)})

    found = submissions.find([root]).submissions

    assert [reason(one) for one in found if one.learner.name == "ada"] == [
        "holds 41 zips, expected at most 40."]


def test_a_large_zip_in_a_folder_is_refused_by_its_size(tmp_path):
    root = laid_out(tmp_path / "in", ["bob/01_activations.ipynb"])
    (root / "ada").mkdir()
    with open(root / "ada" / "work.zip", "wb") as file:
        file.truncate(submissions.LARGEST_NESTED + 1)

    ada, = [one for one in submissions.find([root]).submissions if one.learner.name == "ada"]

    assert reason(ada) == submissions.oversize(submissions.LARGEST_NESTED + 1,
                                               submissions.LARGEST_NESTED)


def test_a_folder_that_cannot_be_read_has_a_row(tmp_path, monkeypatch):
    root = laid_out(tmp_path / "in", ["ada/01_activations.ipynb", "bob/01_activations.ipynb"])
    scan = os.scandir  # root may read any folder, so we fake the refusal

    def refused(path):
        if str(path).endswith("bob"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)
    monkeypatch.setattr(os, "scandir", refused)

    found = submissions.find([root]).submissions

    assert [(one.learner.name, one.problem) for one in found] == [
        ("ada", ""), ("bob", "is a folder that cannot be read.")]


def heap(tmp_path: Path, packed: bool, names: list[str]) -> list[tuple[str, str, str]]:
    """Names, learners and reasons if eve submits all of these and ada her notebook."""
    entries = {"class/ada/x.ipynb": SOLVED, **{f"class/eve/{name}": b"{}" for name in names}}
    if packed:
        path = zipped(tmp_path / "class.zip", entries, zipfile.ZIP_STORED)
    else:
        path = tmp_path / "class"
        for name, data in entries.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
    return [(one.name.removeprefix("class/"), one.learner.name, one.problem)
            for one in submissions.find([path]).submissions]


@pytest.mark.parametrize("packed", [False, True])
def test_a_heap_of_files_of_one_learner_stops_nobody(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(submissions, "MOST_ENTRIES", 30)

    found = heap(tmp_path, packed, ["01_activations.ipynb", *(
        f"venv/{k % 7}/{k}" for k in range(40))])

    assert found == [
        ("eve/venv", "eve", "is a folder of 40 files, more than all others together; expected at "
                            "most 30 in all."),
        ("ada/x.ipynb", "ada", ""), ("eve/01_activations.ipynb", "eve", "")]


def test_too_many_files_of_many_are_refused_together(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_ENTRIES", 30)
    for k in range(31):
        (tmp_path / f"{k}").mkdir()
        (tmp_path / f"{k}" / "x.ipynb").write_bytes(SOLVED)

    with pytest.raises(Refused, match=r"more than 30 files\. Give a smaller"):
        submissions.find([tmp_path])


def test_where_even_the_names_are_too_many_it_says_in_which_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_NAMES", 30)
    with pytest.raises(Refused, match=r"more than 30 files, the last of them in eve/venv\. Give a"):
        heap(tmp_path, False, [f"venv/{k}" for k in range(40)])


@pytest.mark.parametrize("packed", [False, True])
def test_folders_in_folders_in_folders_stop_nobody(tmp_path, packed):
    """Folders nested deeper than Python's stack once ended the command for the whole class."""
    names = ["d/" * k + "x.ipynb" for k in range(450)]
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        found = heap(tmp_path, packed, names)
    finally:
        sys.setrecursionlimit(usual)

    assert ("ada/x.ipynb", "ada", "") in found
    assert any(problem for name, _, problem in found if name.startswith("eve"))
    assert len([name for name, *_ in found if name.startswith("eve")]) <= submissions.DEEPEST + 1


def test_a_folder_around_everything_is_no_learner(tmp_path):
    root = zipped(tmp_path / "x.zip", {"hw1/ada/a.ipynb": SOLVED, "hw1/bob/a.ipynb": SOLVED})

    assert [one.learner.name for one in submissions.find([root]).submissions] == ["ada", "bob"]


def test_the_same_name_twice_stays_two_submissions(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.ipynb").write_bytes(SOLVED)

    found = submissions.find([tmp_path / "x", tmp_path / "y"]).submissions

    assert [one.name for one in found] == ["a.ipynb", "a.ipynb (2)"]


# ---- zips

def test_a_file_that_is_called_like_a_second_one_stays_apart(tmp_path):
    """Two submissions with one name once gave one result twice."""
    for name in ("a b.ipynb", "a\u200bb.ipynb"):
        (tmp_path / name).write_bytes(SOLVED)
    (tmp_path / "a b.ipynb (2)").symlink_to("nothing")

    names = [one.name for one in submissions.find([tmp_path]).submissions]

    assert sorted(names) == ["a b.ipynb", "a b.ipynb (2)", "a b.ipynb (3)"]


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    bomb = zipped(tmp_path / "bomb.zip", {"a.ipynb": b"0" * (200 * 2**20)})

    (found,) = submissions.find([bomb]).submissions

    assert bomb.stat().st_size < 2**20
    assert reason(found) == "has 200.0 MiB, expected at most 32.0 MiB."


def test_outputs_that_repeat_themselves_are_no_bomb(tmp_path):
    flood = notebook([code("1", outputs=[{"output_type": "stream", "text": "x" * (7 * 2**20)}])])

    (found,) = submissions.find([zipped(tmp_path / "x.zip", {"a.ipynb": flood})]).submissions

    assert submitted_notebook.parse(found.read()).stage == 1


def test_two_entries_of_one_name_are_two_submissions(tmp_path):
    other = notebook([code("1")], metadata={"dlsys": {"stage": 2}})
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.ipynb", SOLVED)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.ipynb", other)

    found = submissions.find([tmp_path / "x.zip"]).submissions

    assert [submitted_notebook.parse(one.read()).stage for one in found] == [1, 2]


def test_a_zip_with_backslashes_has_folders_all_the_same(tmp_path):
    root = zipped(tmp_path / "x.zip", {"class\\ada\\a.ipynb": SOLVED,
                                       "class\\bob\\a.ipynb": SOLVED})

    assert [one.learner.name for one in submissions.find([root]).submissions] == ["ada", "bob"]


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_unusual_packing_is_refused_unread(tmp_path, method):
    root = zipped(tmp_path / "x.zip", {"a.ipynb": SOLVED}, method)

    (found,) = submissions.find([root]).submissions

    assert reason(found) == f"is packed in an unusual way (method {method}); zip it the usual way."


@pytest.mark.parametrize("whole", [False, True])
def test_a_pipe_named_like_a_zip_stops_nobody(tmp_path, whole):
    os.mkfifo(tmp_path / "hw.zip")

    (found,) = submissions.find([tmp_path / "hw.zip" if whole else tmp_path]).submissions

    assert reason(found) == "is not a regular file."


def test_a_zip_that_lies_about_its_sizes_is_still_capped(tmp_path):
    path = zipped(tmp_path / "liar.zip", {"a.ipynb": os.urandom(9 * 2**20)}, zipfile.ZIP_STORED)
    data = path.read_bytes()
    real, claimed = (9 * 2**20).to_bytes(4, "little"), (100).to_bytes(4, "little")
    path.write_bytes(data.replace(real, claimed))

    (found,) = submissions.find([path]).submissions

    assert reason(found)


def test_a_zip_in_a_zip_is_read_once_and_no_deeper(tmp_path):
    inner, innermost = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(innermost, "w") as archive:
        archive.writestr("deep.ipynb", SOLVED)
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("mine.ipynb", SOLVED)
        archive.writestr("deeper.zip", innermost.getvalue())
    root = zipped(tmp_path / "all.zip", {"ada_7_9_work.zip": inner.getvalue(),
                                         "bob_8_9_work.ipynb": SOLVED})

    found = submissions.find([root]).submissions

    assert [(one.learner.name, one.learner.id, one.name) for one in found] == [
        ("ada", "7", "ada_7_9_work.zip/mine.ipynb"), ("bob", "8", "bob_8_9_work.ipynb")]
    assert [submitted_notebook.parse(one.read()).stage for one in found] == [1, 1]


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 not really", b"<html>"])
def test_a_damaged_zip_is_one_refused_submission(tmp_path, data):
    (tmp_path / "x.zip").write_bytes(data)

    (found,) = submissions.find([tmp_path]).submissions

    assert reason(found) == "is a damaged zip."


def test_links_and_passwords_in_a_zip_are_refused(tmp_path):
    link = zipfile.ZipInfo("link.ipynb")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
        archive.writestr("locked.ipynb", SOLVED)
    data = bytearray((tmp_path / "x.zip").read_bytes())
    at = data.rfind(b"PK\x01\x02")
    data[at + 8] |= 1  # "encrypted", in the directory of the zip
    (tmp_path / "x.zip").write_bytes(data)

    found = {one.name: one for one in submissions.find([tmp_path / "x.zip"]).submissions}

    assert "link" in reason(found["link.ipynb"])
    assert "encrypted" in reason(found["locked.ipynb"])


def test_a_path_that_climbs_out_is_only_a_name(tmp_path):
    zipped(tmp_path / "x.zip", {"../../evil.ipynb": SOLVED, "/abs.ipynb": SOLVED})

    found = submissions.find([tmp_path / "x.zip"]).submissions

    assert len(found) == 2
    assert not (tmp_path.parent.parent / "evil.ipynb").exists()


def test_a_zip_without_a_notebook_is_reported(tmp_path):
    (found,) = submissions.find([zipped(tmp_path / "x.zip", {"report.pdf": b"x"})]).submissions

    assert reason(found) == "holds no notebook."


@pytest.mark.parametrize("name", ["gone.ipynb", "notes.txt"])
def test_a_path_of_no_use_is_named(tmp_path, name):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(Refused, match=name):
        submissions.find([tmp_path / name])


# ---- what the grader takes from a notebook

def test_a_path_of_no_use_among_others_stops_nobody(tmp_path):
    (tmp_path / "ada.ipynb").write_bytes(worksheet())
    (tmp_path / "notes.txt").write_text("no notebook", "utf-8")
    (tmp_path / "bob.ipynb").symlink_to("gone")

    found = submissions.find(sorted(tmp_path.iterdir()))

    assert [(one.name, one.problem[:9]) for one in found.submissions] == [
        ("ada.ipynb", ""), ("bob.ipynb", "is a brok")]
    assert found.left_out == ["notes.txt"]
    with pytest.raises(submitted_notebook.Refused, match="typo"):
        submissions.find([tmp_path / "ada.ipynb", tmp_path / "typo.ipynb"])


def test_code_keeps_its_number_and_other_cells_do_not_count():
    cells = [{"cell_type": "markdown", "source": "text"}, code("a = 1"), code(["b = ", "2"])]

    assert submitted_notebook.parse(notebook(cells)).cells == [(1, "a = 1"), (2, "b = 2")]


def test_duplicate_ids_are_noted_and_graded():
    parsed = submitted_notebook.parse(notebook([code("a = 1", id="x"), code("b = 2", id="x")]))

    assert len(parsed.cells) == 2
    assert "same id" in parsed.remarks[0]


def test_the_instructor_can_say_the_stage():
    data = notebook([code("1")], metadata={"dlsys": {"stage": 2}})

    parsed = submitted_notebook.parse(data, stage=1)

    assert parsed.stage == 1
    assert parsed.remarks == ["It says stage 2; graded as stage 1."]


def test_code_that_reads_its_callers_is_named_to_the_instructor():
    cells = [code("import sys\nheld = sys._getframe(1).f_locals"), code("torch.stack([x])")]

    parsed = submitted_notebook.parse(notebook(cells))

    assert parsed.notes == []
    assert parsed.remarks == [
        "Its code reads its callers or the memory (_getframe, f_locals), where an answer may be "
        "looked up. Read it before you count its points."]


def test_a_stage_of_thousands_of_digits_is_told_in_some():
    data = notebook([code("1")], metadata={"dlsys": {"stage": 10**4000}})

    (remark,) = submitted_notebook.parse(data, stage=1).remarks

    assert remark == f"It says stage 1{'0' * 16}...; graded as stage 1."


@pytest.mark.parametrize("view", ["lesson", "solution"])
def test_the_courses_own_notebooks_never_count(view):
    data = notebook([code("1")], metadata={"dlsys": {"stage": 1, "view": view}})

    with pytest.raises(submitted_notebook.Refused, match=f"own {view} notebook, not the worksheet"):
        submitted_notebook.parse(data, stage=1)


def test_an_exercise_may_ask_for_a_class():
    assert submitted_notebook.defines("class  F:\n  def g(self", "F")
    assert not submitted_notebook.defines("classF = 1; classes = F\nclass Fs:", "F")


def test_a_megabyte_of_empty_lines_takes_no_time():
    assert not submitted_notebook.defines("\n" * 10**6, "f")
    assert submitted_notebook.defines("\n" * 10**6 + "  async  def f(x):", "f")


def test_without_metadata_the_checks_say_the_stage():
    data = notebook([code('check("01.4", mine)')], metadata={})

    assert submitted_notebook.parse(data).stage == 1
    assert json.loads(data)["metadata"] == {}


# ---- text

@pytest.mark.parametrize(("text", "shown"), [
    ("\x1b[31mred\x1b[0m", "[31mred [0m"), ("a\x00b\nc", "a b c"), ("abc\u202ecba", "abc cba"),
    ("\ud800x", "x"), ("a\u200bb", "a b"), ("é 学", "é 学"), ("x" * 400, "x" * 297 + "..."),
    ("ada\ufe0f", "ada"), ("\u3164ada\u115f", "ada"), ("e\u0301", "é"),
])
def test_clean_text_holds_nothing_that_a_screen_acts_on(text, shown):
    assert clean(text) == shown


@pytest.mark.parametrize(("value", "written"), [
    ("=HYPERLINK(1)", "'=HYPERLINK(1)"), ("+1", "'+1"), ("-x", "'-x"), ("@SUM", "'@SUM"),
    ("  =1", "'  =1"), ("plain", "plain"), (3, 3), (-3, -3), ("a;b; c", "a;b; c"),
    ("＝1", "'＝1"), ("a;＠1", "a;'＠1"), ("a;=1+1;x", "a;'=1+1;x"),
    ('a; "@SUM(1)', """a; "'@SUM(1)"""),
])
def test_no_cell_of_a_csv_is_a_formula(value, written):
    assert cell(value) == written


def test_what_the_run_itself_wrote_below_the_folder_is_not_handed_in(tmp_path):
    (tmp_path / "ada.ipynb").write_bytes(SOLVED)
    (tmp_path / "grades").mkdir()
    zipped(tmp_path / "grades/feedback_canvas_01_activations.zip", {"ada.html": b"x"})
    (tmp_path / "grades/overview.csv").write_text("x")

    found = submissions.find([tmp_path], tmp_path / "grades")

    assert [one.name for one in found.submissions] == ["ada.ipynb"]
    assert found.left_out == []


def test_people_who_are_marked_blindly_go_by_their_number(tmp_path):
    """Moodle calls everybody Participant, in German Teilnehmer/in, with different numbers."""
    for who in ("Participant_31", "Participant_32", "Teilnehmer_in_33", "Ada_von_L_34"):
        (tmp_path / f"{who}_assignsubmission_file_").mkdir()
        (tmp_path / f"{who}_assignsubmission_file_" / "work.ipynb").write_bytes(worksheet())
    found = submissions.find([tmp_path]).submissions

    assert sorted((one.learner.name, one.learner.id) for one in found) == [
        ("Ada von L", "34"), ("Participant 31", "31"), ("Participant 32", "32"),
        ("Teilnehmer in 33", "33")]
