"""The progress store survives crashes, rival processes and damage; the map shows its content."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import pytest

from dlsys import review, start_page
from dlsys_helpers import catalog, json_lines, paths, progress
from dlsys_helpers.stages import SPAN, STAGES

TRAPS = [
    {"id": f"01.{k}", "title": f"Situation {k}", "fault": f"trap <{k}> of `relu`", "symptom": "s",
     "function": f"fn{k}", "points": k, "difficulty": 1, "minutes": 5, "core": k == 1,
     "hints": ["h"]}
    for k in (1, 2, 3)
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("DLSYS_PROGRESS", raising=False)
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    monkeypatch.setattr(paths, "EXERCISES", tmp_path / "exercises")
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "catalog").mkdir()
    monkeypatch.setattr(catalog, "FOLDER", tmp_path / "catalog")
    catalog.path(1).write_text(json.dumps(TRAPS))
    json_lines.notes_given.clear()
    return tmp_path / "my-work"


def states() -> dict:
    return {row.trap.id: row.state for row in start_page.summary()[0].traps}


def test_a_solved_exercise_stays_solved_and_a_stub_counts_as_untouched():
    progress.record("01.1", "wrong", "counts rows")
    progress.record("01.1", "pass")
    progress.record("01.1", "error")
    progress.record("01.2", "wrong", "counts rows")
    progress.record("01.3", "todo")
    assert progress.solved() == {"01.1"}
    assert states() == {"01.1": "solved", "01.2": "tried", "01.3": "untouched"}
    row = start_page.summary()[0]
    assert (row.solved, row.points, row.possible) == (1, 1, 6)
    assert row.traps[1].misconception == "counts rows"


def test_off_keeps_nothing_and_a_folder_is_honoured(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    progress.record("01.1", "pass")
    assert progress.solved() == set()
    assert not folder.exists()
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path / "elsewhere"))
    progress.record("01.1", "pass")
    assert (tmp_path / "elsewhere" / ".progress.jsonl").exists()


WRITER = """
import sys
from dlsys_helpers import progress
print("go", flush=True)
for n in range(int(sys.argv[2])):
    progress.record(f"{sys.argv[1]}.{n}", "pass", "m" * 200)
"""


def start_writer(folder, name: str, count: int) -> subprocess.Popen:
    env = {**os.environ, "DLSYS_PROGRESS": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", WRITER, name, str(count)], env=env,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "go\n"
    return process


def test_two_notebooks_at_once_lose_no_line(folder):
    writers = [start_writer(folder, name, 500) for name in "ab"]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    found = [entry["id"] for entry in progress.entries()]
    assert sorted(found) == sorted(f"{name}.{n}" for name in "ab" for n in range(500))
    assert [i for i in found if i[0] == "a"] == [f"a.{n}" for n in range(500)]


def test_a_killed_writer_leaves_whole_lines_and_no_lock(folder):
    for round_ in range(6):
        writer = start_writer(folder, str(round_), 10**6)
        time.sleep(0.005 * round_)
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=10)
    data = (folder / ".progress.jsonl").read_bytes()
    assert all(json.loads(line)["status"] == "pass" for line in data.splitlines())
    assert data.endswith(b"\n")
    progress.record("01.1", "pass")  # would wait forever if a dead process held the lock
    assert "01.1" in progress.solved()


@pytest.mark.parametrize("damage", [
    b'{"id": "01.2", "sta', b"\x00\x00\x00\n", b"\xff\xfe bad\n", b"[1]\n", b"[" * 9000 + b"\n",
    b'{"id": 1, "status": "pass"}\n', b'{"id": "01.2"}\n',
])
def test_damage_is_set_aside_and_good_lines_stay(folder, damage, capsys):
    progress.record("01.1", "pass")
    path = folder / ".progress.jsonl"
    before = path.read_bytes() + damage
    path.write_bytes(before)
    progress.record("01.3", "pass")
    assert progress.solved() == {"01.1", "01.3"}
    aside = folder / ".progress.damaged-1.jsonl"
    assert aside.read_bytes().startswith(before)
    note = capsys.readouterr().err
    assert "1 unreadable line(s)" in note
    assert aside.name in note
    assert progress.solved() == {"01.1", "01.3"}
    assert capsys.readouterr().err == ""


def test_a_second_damage_gets_a_name_of_its_own(folder):
    for number in (1, 2):
        progress.record("01.1", "pass")
        with open(folder / ".progress.jsonl", "ab") as file:
            file.write(b"junk %d\n" % number)
        progress.entries()
    assert (folder / ".progress.damaged-1.jsonl").read_bytes().endswith(b"junk 1\n")
    assert (folder / ".progress.damaged-2.jsonl").read_bytes().endswith(b"junk 2\n")


def test_a_full_disk_is_a_note_said_once_and_costs_nothing(folder, monkeypatch, capsys):
    progress.record("01.1", "pass")
    before = (folder / ".progress.jsonl").read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    progress.record("01.2", "pass")
    progress.record("01.2", "pass")
    assert (folder / ".progress.jsonl").read_bytes() == before
    assert capsys.readouterr().err.count(os.strerror(errno.ENOSPC)) == 1


def test_a_folder_that_is_a_file_is_a_note(folder, capsys):
    folder.write_text("in the way")
    progress.record("01.1", "pass")
    assert progress.solved() == set()
    assert "not saved" in capsys.readouterr().err
    assert folder.read_text() == "in the way"


def test_damage_in_a_folder_that_cannot_be_written_is_a_note(folder, monkeypatch, capsys):
    progress.record("01.1", "pass")
    with open(folder / ".progress.jsonl", "ab") as file:
        file.write(b"junk\n")

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(json_lines, "_write_new", refuse)
    assert progress.solved() == {"01.1"}
    assert "could not be mended" in capsys.readouterr().err


class Links(HTMLParser):
    """All link targets and the number of open tags without an end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.links += [value for name, value in attrs if name == "href"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_map_shows_the_stages_their_states_and_links(folder):
    progress.record("01.1", "pass")
    progress.record("01.2", "wrong")
    text = start_page.map_html()
    assert text.count("<small>Stage ") == len(STAGES)
    assert text.count("· coming") == len(STAGES) - 1
    assert "1 of 3 solved · 1 of 6 points" in text
    assert [text.count(f'aria-label="{s}"') for s in ("solved", "tried", "untouched")] == [1] * 3
    assert "01.1 Trap &lt;1&gt; of <code>relu</code></li>" in text
    assert "<summary>2 off the core path, 0 solved</summary>" in text
    assert "Core path: about 0 minutes to read, 5 for the exercises. All: 0 minutes" in text
    page = Links(text)
    assert (page.links, page.open) == ([], [])
    assert "dlsys start 1" in text
    (folder / "01_activations.ipynb").write_text("{}")
    assert Links(start_page.map_html()).links == ["my-work/01_activations.ipynb"]


def test_a_line_of_the_map_holds_guess_and_review(folder):
    progress.record_guess("01.1", 3, sure=True, right=False)
    progress.record_guess("01.2", "all", sure=False, right=True)
    progress.record_guess("01.3", "all", sure=True)
    review.record(review.Item(catalog.trap("01.1"), review.NEW, due=False), False, review.now())
    text = start_page.map_html()
    assert "<br><small>guess wrong, sure · review wrong</small></li>" in text
    assert "<br><small>guess right, not sure</small></li>" in text
    assert "<br><small>guess not measured yet, sure</small></li>" in text


def test_links_of_the_map_hold_in_the_folder_of_the_copies(folder, monkeypatch):
    folder.mkdir()
    (folder / "01_lesson.ipynb").write_text("{}")
    (folder / "01_activations.ipynb").write_text("{}")
    monkeypatch.chdir(folder)
    text = start_page.map_html()
    assert Links(text).links == ["01_lesson.ipynb", "01_activations.ipynb"]
    assert "dlsys start" not in text


def ship(folder):
    """A worksheet whose every byte counts, and the smallest lesson."""
    for name, text in (("exercises", "shipped"),
                       ("notebooks", '{"metadata": {"dlsys": {}}, "cells": []}')):
        (folder / name).mkdir()
        (folder / name / "01_activations.ipynb").write_text(text)


def test_the_next_step_begins_the_first_lesson_and_makes_the_copies_that_it_links(folder, tmp_path):
    ship(tmp_path)
    text = start_page.next_step_html()
    assert Links(text).links == ["my-work/01_lesson.ipynb", "my-work/01_activations.ipynb"]
    assert "Start lesson 1</a>" in text
    assert (folder / "01_lesson.ipynb").exists()
    (folder / "01_activations.ipynb").write_text("mine")
    assert "Start lesson 1</a>" in start_page.next_step_html(), "opened, and nothing done yet"
    assert (folder / "01_activations.ipynb").read_text() == "mine"


def test_the_next_step_goes_on_with_the_first_open_exercise_of_the_core_path(folder, tmp_path):
    ship(tmp_path)
    progress.record("01.2", "pass")
    text = start_page.next_step_html()
    assert "Continue with 01.1</a>" in text
    assert Links(text).links[0] == "my-work/01_lesson.ipynb", "not guessed yet: the lesson"
    progress.record_guess("01.1", 3, sure=True, right=False)
    assert Links(start_page.next_step_html()).links[0] == "my-work/01_activations.ipynb"
    progress.record("01.1", "pass")
    assert "Continue with 01.3</a>" in start_page.next_step_html()
    progress.record("01.3", "pass")
    assert "You have solved every exercise" in start_page.next_step_html()


def test_the_next_step_says_what_is_in_its_way(folder, tmp_path):
    ship(tmp_path)
    folder.write_text("in the way")
    assert "cannot write" in start_page.next_step_html()


def test_where_nobody_sees_it_the_start_page_makes_no_copies(folder, tmp_path):
    ship(tmp_path)
    assert "dlsys start 1" in start_page.next_step().data
    assert not folder.exists()


def test_a_card_has_a_button_that_becomes_links(folder, tmp_path):
    ship(tmp_path)
    boxes = start_page.progress_map().children
    assert len(boxes) == len(STAGES) + 1
    card, button = boxes[0].children
    assert button.description == "Start lesson 1"
    assert "dlsys start" not in html_of(card)
    button.click()
    shown = html_of(boxes[0].children[1])
    assert Links(shown).links == ["my-work/01_lesson.ipynb", "my-work/01_activations.ipynb"]
    [again] = [box for box in start_page.progress_map().children[:1]]
    assert "Continue your worksheet" in html_of(again), "begun: the card itself has the links"


def html_of(output):
    return output.outputs[0]["data"]["text/html"]


def test_the_menu_copies_a_stage_and_links_it(folder, tmp_path):
    ship(tmp_path)
    box = start_page.start_menu()
    menu, core, button = box.children[0].children
    assert not core.value
    assert menu.options == (("1. Perceptron, MLP and activations", 1),)
    button.click()
    assert (folder / "01_activations.ipynb").read_text() == "shipped"
    (folder / "01_activations.ipynb").write_text("mine")
    answer = start_page.started_html(1)
    assert "nothing was overwritten" in answer
    assert Links(answer).links == ["my-work/01_lesson.ipynb", "my-work/01_activations.ipynb"]
    assert (folder / "01_activations.ipynb").read_text() == "mine"


def test_the_start_button_says_what_went_wrong(folder, tmp_path):
    assert "no worksheet yet" in start_page.started_html(2)
    ship(tmp_path)
    folder.write_text("in the way")
    assert "cannot write" in start_page.started_html(1)


@pytest.mark.parametrize(("text", "shown"), [
    ("the mask is missing", "The mask is missing"),
    ("fine-tuning: forgotten", "Fine-tuning: forgotten"),
    ("channels_last: moved", "channels_last: moved"), ("view(-1, 10) mixes", "view(-1, 10) mixes"),
    ("nn.Linear first", "nn.Linear first"), ("GPU is idle", "GPU is idle"), ("", "")])
def test_a_name_of_code_keeps_its_small_letter(text, shown):
    assert catalog.sentence_case(text) == shown


def test_the_catalog_says_what_it_knows():
    assert catalog.trap("01.2").points == 2
    assert catalog.traps(2) == []
    assert [stage.number for stage in catalog.written()] == [1]
    with pytest.raises(catalog.CatalogError, match=r"got '01.9', known ids 01.1, 01.2, 01.3"):
        catalog.trap("01.9")
    with pytest.raises(ValueError, match=f"expected {SPAN}"):
        catalog.traps(len(STAGES) + 1)


@pytest.mark.parametrize(("text", "says"), [(None, "not found"), ("{", "cannot be read"),
                                            ("[{}]", "cannot be read"), ("3", "cannot be read")])
def test_a_missing_or_broken_catalog_says_what_to_do(tmp_path, monkeypatch, text, says):
    monkeypatch.setattr(catalog, "FOLDER", tmp_path / "broken")
    if text is not None:
        catalog.FOLDER.mkdir()
        catalog.path(1).write_text(text)
    with pytest.raises(catalog.CatalogError, match=says) as caught:
        catalog.traps()
    assert "make build" in str(caught.value)
