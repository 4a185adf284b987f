"""A learner on native Windows, as far as Linux can show it.

tests/windows/sitecustomize.py hides POSIX-only features from the course's modules and adds a
stand-in for msvcrt. It cannot show what Windows does with paths and processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlsys_helpers
from dlsys import doctor, grading, start_page, windows, work_folder, worksheet_runner
from dlsys_helpers import catalog, json_lines, paths, progress

POSIX_GONE = Path(__file__).with_name("windows")
SESSION = """
import json, sys
from dlsys import cli
for command in json.loads(sys.argv[1]):
    print("$", *command)
    print("=", cli.main(command))
"""
ANSWERS = {
    # A right answer that prints a character which a Windows process cannot output.
    "def dead_units": "print('\\u2713')\ndef dead_units(h):\n    if h.isnan().any():\n"
                      "        raise ValueError('a NaN')\n    return int((h == 0).all(0).sum())",
    "def to_probs": "def to_probs(logits, kind):\n    return logits.sigmoid()",
}


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Start Python as on Windows: returns its Popen, with pipes in the western European encoding.

    If our code opens a file in the locale's encoding, that is an error.
    """
    monkeypatch.delenv("DLSYS_PROGRESS", raising=False)
    here = {"PYTHONPATH": str(POSIX_GONE), "PYTHONIOENCODING": "cp1252",
            "PYTHONWARNDEFAULTENCODING": "1", "DLSYS_WORK": str(tmp_path / "Jane Doe")}

    def start(script: str, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", script, *arguments], encoding="cp1252",
                                env=os.environ | here, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
    return start


def output_of(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    return out


def test_the_learners_whole_way(python, tmp_path):
    mine = tmp_path / "Jane Doe/01_activations.ipynb"
    out = output_of(python(SESSION, json.dumps([["start", "1"], ["start", "12"], ["exam", "a"]])))
    assert "(dlsys lab)" in out
    assert "Note: 12.8 cannot be checked on Windows itself" in out
    assert "make" not in out
    write_answers(mine)
    out = output_of(python(SESSION, json.dumps([["check", "1"], ["progress"], ["review"],
                                           ["start", "1", "--update"]])))
    assert "3 of 15 points, on the core path 3 of 13." in " ".join(out.split())
    assert "Code cell" not in out
    assert f"1 of {len(catalog.traps())} exercises solved" in out
    assert "Next: trap 01." in out
    assert "up to date" in out
    kept = [json.loads(line) for line in (mine.parent / ".progress.jsonl").read_bytes().split(b"\n")
            if line]
    assert {(entry["id"], entry["status"]) for entry in kept} == {
        ("01.1", "todo"), ("01.2", "wrong"), ("01.3", "todo"), ("01.4", "pass"), ("01.5", "todo")}


def write_answers(worksheet: Path) -> None:
    book = json.loads(worksheet.read_bytes())
    for cell in book["cells"]:
        for head, answer in ANSWERS.items():
            if cell["cell_type"] == "code" and "".join(cell["source"]).startswith(head):
                cell["source"] = answer
    worksheet.write_text(json.dumps(book), "utf-8", newline="\r\n")


def test_an_exam_sheet_is_opened_and_paid_for(python, tmp_path):
    script = ("import warnings\nwith warnings.catch_warnings(action='ignore'): import torch\n"
              "from dlsys import exam; exam.sit(80).case(0).read('data'); exam.sit(80).case(1)")
    out = output_of(python(script))
    assert "def " in out
    assert "Paid 3, budget 10: read data." in out
    assert len((tmp_path / "Jane Doe/.exam-key").read_bytes()) == 64
    assert b'"paid": "read data"' in (tmp_path / "Jane Doe/.exam.jsonl").read_bytes()


WRITER = """
import sys
from dlsys_helpers import json_lines, progress
assert "msvcrt" in vars(json_lines)
print("go", flush=True)
for n in range(30):
    progress.record(f"{sys.argv[1]}.{n}", "pass", "m" * 200)
"""


def test_two_notebooks_at_once_lose_no_line(python, tmp_path, monkeypatch):
    """Here each appends at the end of file that it saw, so only the lock keeps them apart."""
    for writer in [python(WRITER, name) for name in "ab"]:
        assert output_of(writer) == "go\n"
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "Jane Doe")
    found = [entry["id"] for entry in progress.entries()]
    assert sorted(found) == sorted(f"{name}.{n}" for name in "ab" for n in range(30))


@pytest.mark.parametrize("script", [
    "from dlsys import cli; sys.exit(cli.main(['grade', '--help']))",
    "from dlsys import cli; sys.exit(cli.main(['term', 'week1']))"])
def test_the_grader_is_refused_in_one_line(python, script):
    out, err = python(f"import sys; {script}").communicate(timeout=60)
    assert out == ""
    assert err.removeprefix("dlsys: ") == f"{grading.ON_WINDOWS}\n"


# ---- without another process

@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(windows, "HERE", True)


def test_what_cannot_be_checked_is_refused_before_it_is_judged(here, monkeypatch):
    monkeypatch.setitem(vars(dlsys_helpers), "check", None)
    windows.guard()
    for arguments, options in ((("12.8", print), {}), ((), {"id": "12.8", "fn": print})):
        with pytest.raises(windows.NotHere, match=r"12\.8 cannot be checked.*WSL") as refused:
            dlsys_helpers.check(*arguments, **options)
        assert refused.value._render_traceback_() == [str(refused.value)]
    verdict = worksheet_runner.verdict_on_last(None, "12.8", "save_checkpoint", print, print)
    assert (verdict["status"], verdict["message"]) == ("error", windows.cannot_check("12.8"))
    assert windows.cannot_check(["12.8"]) == windows.cannot_check("12.7") == ""
    assert windows.left_out(1) == []


def test_elsewhere_all_can_be_checked():
    assert windows.cannot_check("12.8") == ""
    assert windows.left_out(12) == list(doctor.on_windows()) == []


def test_the_start_page_and_doctor_say_it(here, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    monkeypatch.chdir(tmp_path)
    assert "12.8 cannot be checked" in start_page.started_html(12)
    assert "cannot be checked" not in start_page.started_html(1)
    assert "12.8 cannot be checked" in list(doctor.on_windows())[-1].text
    assert work_folder.open_lab() == "dlsys lab"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert next(doctor.lab()).text.endswith(f"{tmp_path / 'Scripts'}.")


def test_what_a_worksheet_has_begun_ends_with_it(monkeypatch):
    """Windows has no groups of processes to kill; taskkill ends the whole tree."""
    begun, run = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE), []
    monkeypatch.delattr(os, "killpg")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: run.append(command))
    worksheet_runner.end_tree(begun)
    begun.stdin.close()
    assert begun.returncode
    assert run == [["taskkill", "/F", "/T", "/PID", str(begun.pid)]]


def test_a_file_that_another_notebook_reads_is_replaced_a_little_later(tmp_path, monkeypatch):
    replace, pauses = os.replace, []

    def busy(source, target):
        if len(pauses) < 2:
            raise PermissionError(13, "Permission denied")
        replace(source, target)
    monkeypatch.setattr(os, "replace", busy)
    monkeypatch.setattr(json_lines.time, "sleep", pauses.append)
    json_lines._replace(tmp_path / "a.jsonl", [{"id": "01.1"}])
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"id": "01.1"}\n'
    assert pauses == sorted(pauses)
