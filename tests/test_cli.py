"""`dlsys` starts, reads and checks worksheets, whatever state they are in."""

import contextlib
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from dlsys import cli, overview, review, work_folder, worksheet_runner, worksheets
from dlsys_files import notebook_reader
from dlsys_helpers import catalog, paths, progress, stages

TRAPS = [
    {"id": f"01.{k}", "title": f"Trap {k}", "fault": f"fault {k}", "symptom": "s",
     "function": f"fn{k}", "points": k, "difficulty": 1, "minutes": 5, "core": False,
     "hints": ["look again"]}
    for k in (1, 2, 3)
]

# Replaces the real checks, which need torch, because we test only the machinery around them.
# Every Python that starts with sitecustomize's folder on its path imports it.
FAKE_CHECKS = '''
import sys, types
acting = types.ModuleType("dlsys_helpers.acting")
acting.learner_frame = lambda error: ""
checking = types.ModuleType("dlsys_checks.checking")
checking.drawn_seeds = lambda: (0, 1, 2)
def run_check(id, fn, seeds):
    assert len(seeds) == 3
    value = fn()
    if value == 1:
        return types.SimpleNamespace(status="pass", message="", misconception="", trap="",
                                     law="", case="")
    return types.SimpleNamespace(status="wrong", message=f"value: got [{value}], expected 1.",
                                 misconception="counts rows", trap=id, law="value",
                                 case="one row")
checking.run_check = run_check
sys.modules[acting.__name__], sys.modules[checking.__name__] = acting, checking
'''


def notebook(*cells: str, **metadata) -> dict:
    """A worksheet with these code cells and a check cell for each of the three exercises."""
    checks = [f'from dlsys_helpers import check\ncheck("01.{k}", fn{k})' for k in (1, 2, 3)]
    return {
        "nbformat": 4, "nbformat_minor": 5,
        "metadata": {"dlsys": {"stage": 1, "view": "exercise", "version": "v1"},
                     "kernelspec": {"name": "python3", "language": "python"}, **metadata},
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": "Words"},
            *({"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None,
               "source": textwrap.dedent(source)} for source in (*cells, *checks)),
        ],
    }


REAL_CATALOG = catalog.FOLDER
ANSWERS = [f"def fn{k}(): return 1" for k in (1, 2, 3)]


@pytest.fixture(autouse=True)
def course(tmp_path, monkeypatch):
    """A small course in a separate folder."""
    for name in ("exercises", "notebooks", "my-work", "fake", "catalog"):
        (tmp_path / name).mkdir()
    (tmp_path / "exercises/01_activations.ipynb").write_text(json.dumps(notebook(*ANSWERS)))
    (tmp_path / "notebooks/01_activations.ipynb").write_text(json.dumps(notebook("1")))
    (tmp_path / "fake/sitecustomize.py").write_text(FAKE_CHECKS)
    monkeypatch.setattr(catalog, "FOLDER", tmp_path / "catalog")
    catalog.path(1).write_text(json.dumps(TRAPS))
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    monkeypatch.setattr(paths, "EXERCISES", tmp_path / "exercises")
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.delenv("DLSYS_PROGRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(folder, *cells: str, name: str = "mine.ipynb", **metadata):
    path = folder / "my-work" / name
    path.write_text(json.dumps(notebook(*cells, **metadata)))
    return path


# ---- dlsys start

def test_start_copies_and_says_what_to_open(course, capsys):
    assert cli.main(["start", "1"]) == 0
    copy = course / "my-work/01_activations.ipynb"
    assert copy.read_bytes() == (course / "exercises/01_activations.ipynb").read_bytes()
    said = capsys.readouterr().out
    assert "Open my-work/01_lesson.ipynb" in said
    assert (course / "my-work/01_lesson.ipynb").exists()
    assert "dlsys check 1" in said


def test_start_never_overwrites_and_offers_a_copy(course, capsys):
    copy = course / "my-work/01_activations.ipynb"
    copy.write_text("my answers")
    assert cli.main(["start", "01"]) == 0
    assert "dlsys start 01 --copy" in capsys.readouterr().out
    assert cli.main(["start", "01", "--copy"]) == 0
    assert cli.main(["start", "01", "--copy"]) == 0
    assert copy.read_text() == "my answers"
    names = sorted(path.name for path in (course / "my-work").iterdir())
    assert names == ["01_activations.ipynb", "01_activations_2.ipynb", "01_activations_3.ipynb",
                     "01_lesson.ipynb", "01_lesson_2.ipynb", "01_lesson_3.ipynb"]


def test_start_leaves_a_dangling_link_alone(course):
    link = course / "my-work/01_activations.ipynb"
    link.symlink_to(course / "nowhere")
    assert work_folder.start(1)[:2] == (link, False)
    assert not (course / "nowhere").exists()


def test_ten_starts_at_once_make_one_worksheet(course):
    made, gate = [], threading.Barrier(10, timeout=60)

    def start():
        gate.wait()
        made.append(work_folder.start(1).created)
    threads = [threading.Thread(target=start) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 9 + [True]
    assert sorted(p.name for p in (course / "my-work").iterdir()) == [
        "01_activations.ipynb", "01_lesson.ipynb"]


def test_a_full_disk_leaves_no_half_worksheet(course, monkeypatch, capsys):
    def full(_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "fsync", full)
    assert cli.main(["start", "1"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list((course / "my-work").iterdir()) == []


@pytest.mark.parametrize("args", [
    [], ["start", "--copy"], ["start", "99"], ["start", "two"], ["start", "2"], ["start", "1", "2"],
    ["nonsense"], ["check"], ["check", "no.ipynb"], ["check", "x.ipynb", "--limit", "0"],
    ["check", "x.ipynb", "--limit", "soon"],
])
def test_bad_input_gets_one_line_and_exit_code_2(args, capsys):
    try:
        code = cli.main(args)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    if not args:
        assert (code, err) == (0, "")
        assert "start" in out
        return
    assert code == 2
    assert err.count("\n") == 1
    assert err.startswith("dlsys")
    assert len(err) < 300


def test_light_commands_import_nothing_heavy():
    script = ("import sys; from dlsys import cli, nbval_points; cli.parser();"
              "print(sorted({'torch', 'numpy', 'nbformat', 'IPython', 'rich'} & set(sys.modules)))")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env,
                         check=True)
    assert run.stdout == "[]\n"


# ---- reading worksheets in any state

def as_json(**changes) -> bytes:
    return json.dumps({**notebook(*ANSWERS), **changes}).encode()


WHOLE = json.dumps(notebook(*ANSWERS), indent=1).encode()
BROKEN = {
    "empty": (b" \n", "is empty"),
    "truncated": (WHOLE[:-40], "stops in the middle"),
    "truncated early": (WHOLE[:90], "stops in the middle"),
    "damaged": (WHOLE.replace(b'"cells": [', b'"cells": {['), "is damaged at line"),
    "conflict": (b'{\n<<<<<<< HEAD\n"a": 1\n=======\n}', "git conflict marks"),
    "python file": (b"def fn1(): return 1\n", "is not a notebook"),
    "utf-16": (WHOLE.decode().encode("utf-16"), "is not UTF-8"),
    "latin-1": (WHOLE + "é".encode("latin-1"), "is not UTF-8"),
    "a list": (b"[]", "is JSON but not a notebook (got a list)"),
    "deep": (b"[" * 100_000, "nested too deep"),
    "years old": (b'{"nbformat": 3, "worksheets": []}', "has notebook format 3, expected 4"),
    "from the future": (as_json(nbformat=5), "has notebook format 5, expected 4"),
    "no version": (b'{"cells": []}', "has notebook format None"),
    "no cells": (as_json(cells=[]), "has no cells at all"),
    "cells of another kind": (as_json(cells={"a": 1}), "has no list of cells"),
    "cells of text": (as_json(cells=["a"]), "has no list of cells"),
    "another kernel": (as_json(metadata={"kernelspec": {"name": "ir", "language": "R"}}),
                       "kernel for R"),
    "another language": (as_json(metadata={"language_info": {"name": "julia"}}),
                         "kernel for julia"),
    "the lesson": (as_json(metadata={"dlsys": {"stage": 1, "view": "lesson"}}), "is a lesson"),
    "a stranger": (as_json(metadata={}, cells=[{"cell_type": "code", "source": "1"}]),
                   "is not a worksheet of this course"),
    "a stage that does not exist": (as_json(metadata={"dlsys": {"stage": 99}}),
                                    "is not a worksheet of this course"),
    "a stage of text": (as_json(metadata={"dlsys": {"stage": "one"}}),
                        "is not a worksheet of this course"),
    "a stage not written": (as_json(metadata={"dlsys": {"stage": 7}}), "has no exercises here"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_unreadable_worksheet_gets_a_clear_message_and_stays(course, case, capsys):
    data, says = BROKEN[case]
    path = course / "my-work" / "01_activations.ipynb"
    path.write_bytes(data)
    assert cli.main(["check", str(path)]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.startswith("dlsys: my-work/01_activations.ipynb: ")
    assert err.count("\n") == 1
    assert len(err) < 300
    assert path.read_bytes() == data


def test_a_stage_without_a_worksheet_is_told_its_own_command(course):
    with pytest.raises(worksheets.WorksheetError, match=r"no such file.*with: dlsys start 5"):
        worksheets.read(course / "my-work" / "05_normalization.ipynb")


def test_what_is_no_file_gets_a_clear_message(course):
    saved(course, *ANSWERS, name="01_activations.ipynb")
    with pytest.raises(worksheets.WorksheetError, match=r"is a folder.*holds: 01_activations"):
        worksheets.read(course / "my-work")
    with pytest.raises(worksheets.WorksheetError, match=r"no such file.*holds: 01_activations"):
        worksheets.read(course / "my-work" / ("x" * 200))
    os.mkfifo(course / "pipe")
    with pytest.raises(worksheets.WorksheetError, match="is not a file"):
        worksheets.read(course / "pipe")


def test_a_huge_worksheet_is_not_read(course):
    path = course / "my-work/huge.ipynb"
    with open(path, "wb") as file:
        file.truncate(notebook_reader.LARGEST + 2**20)
    with pytest.raises(worksheets.WorksheetError, match=r"has 33.0 MiB.*Clear Outputs"):
        worksheets.read(path)


def test_a_renamed_worksheet_is_known_by_its_metadata(course):
    path = saved(course, *ANSWERS, name="07_final (1).ipynb")
    read = worksheets.read(path)
    assert (read.stage, read.notes) == (1, [])
    assert [e.function for e in read.exercises] == ["fn1", "fn2", "fn3"]
    assert [source for _, source in read.cells][:3] == ANSWERS


def test_without_metadata_the_checks_tell_the_stage(course):
    path = course / "my-work/stripped.ipynb"
    path.write_bytes(b"\xef\xbb\xbf" + as_json(metadata={}))
    assert worksheets.read(path).stage == 1


def test_sources_as_lists_of_lines_are_read(course):
    made = notebook(*ANSWERS)
    for cell in made["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
    (course / "my-work/lines.ipynb").write_text(json.dumps(made))
    assert [s for _, s in worksheets.read(course / "my-work/lines.ipynb").cells][:3] == ANSWERS


def test_missing_and_strange_checks_are_notes(course):
    made = notebook(*ANSWERS)
    made["cells"][-1]["source"] = 'check("01.9", fn9)'
    (course / "my-work/odd.ipynb").write_text(json.dumps(made))
    read = worksheets.read(course / "my-work/odd.ipynb")
    assert "No check cell for 01.3" in read.notes[0]
    assert "01.9: not an exercise of stage 1" in read.notes[1]
    assert [e.id for e in read.exercises] == ["01.1", "01.2", "01.3"]


def test_an_older_worksheet_is_a_note_not_an_error(course):
    path = saved(course, *ANSWERS, dlsys={"stage": 1, "version": "v0"})
    assert "is older than the exercises" in worksheets.read(path).notes[0]


# ---- dlsys check

def check(path, *options: str) -> int:
    return cli.main(["check", str(path), *options])


def test_all_passing_exits_0_and_records_progress(course, capsys):
    assert check(saved(course, *ANSWERS)) == 0
    assert "6 of 6 points." in capsys.readouterr().out
    assert progress.solved() == {"01.1", "01.2", "01.3"}


@pytest.mark.parametrize(("asked", "place"), [
    ("1", "."), ("01", "elsewhere"), ("01_activations.ipynb", "my-work"),
    ("my-work/01_activations.ipynb", "my-work"), ("my-work/01_activations.ipynb", "elsewhere"),
    ("01_activations.ipynb", "elsewhere"),
])
def test_a_worksheet_is_found_from_every_folder(course, monkeypatch, asked, place):
    path = saved(course, *ANSWERS, name="01_activations.ipynb")
    (course / "elsewhere").mkdir()
    monkeypatch.chdir(course / place)
    assert worksheets.find(asked).resolve() == path


def test_a_name_that_is_nowhere_stays_as_it_was_asked_for(course):
    saved(course, *ANSWERS, name="01_activations.ipynb")
    for asked in ("other/01_activations.ipynb", "99", "x" * 300, "mine.ipynb"):
        assert str(worksheets.find(asked)) == asked


HOSTILE = "\x1b[31m\x9b1mred\u202e\n.ipynb"  # colours, a second way to colour, reversed text


@pytest.mark.parametrize("arguments", [
    ["check", HOSTILE], ["start", HOSTILE], ["answer", HOSTILE], ["check", "1", HOSTILE],
])
def test_no_error_sends_a_control_sequence_to_the_terminal(course, capsys, arguments):
    with contextlib.suppress(SystemExit):  # argparse refuses by exiting
        assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.removesuffix("\n").isprintable()


def test_no_report_sends_a_control_sequence_to_the_terminal(course, capsys):
    path = saved(course, *ANSWERS, "raise ValueError('\\x1b[31m\\x9b1m')", name=HOSTILE)
    made = json.loads(path.read_text())
    made["metadata"]["dlsys"]["version"] = "old"
    path.write_text(json.dumps(made))
    for options in ([], ["--json"]):
        check(path, *options)
        said = capsys.readouterr().out
        assert "[31m" in said
        assert said.replace("\n", "").isprintable()


def test_json_holds_verdict_law_message_and_the_next_hint(course, capsys):
    path = saved(course, ANSWERS[0], "def fn2(): return 7")
    traps = [trap | {"hints": ["first", "second"]} for trap in TRAPS]
    catalog.path(1).write_text(json.dumps(traps))
    for hint in ("first", "second", "second"):
        catalog.all_stages.cache_clear()
        assert check(path, "--json") == 1
        told = json.loads(capsys.readouterr().out)
        assert [row["verdict"] for row in told["exercises"]] == ["pass", "wrong", "missing"]
        assert [row["hint"] for row in told["exercises"]] == [None, hint, "first"]
    assert (told["points"], told["possible"], told["stage"]) == (1, 6, 1)
    row = told["exercises"][1]
    assert (row["law"], row["case"], row["read"]) == ("value", "one row", "01.2")
    assert row["message"] == "value: got [7], expected 1."
    assert row["mistake"] == "counts rows"
    assert (row["name"], row["title"], row["core"]) == ("Fault 2", "Trap 2", False)


def test_each_verdict_is_shown_with_the_mistake_named(course, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = saved(course, ANSWERS[0], "def fn2(): return 7")
    assert check(path) == 1
    said = capsys.readouterr().out
    assert 'value: got [7], expected 1. The case: "one row". See trap 01.2.' in said
    assert "fn3 is not defined after all cells have run." in said
    assert "1 of 6 points." in said
    assert [(e["id"], e["misconception"]) for e in progress.entries()] == [
        ("01.1", ""), ("01.2", "counts rows")]


def test_an_answer_written_into_its_check_cell_counts(course, capsys):
    path = saved(course, *ANSWERS[:2])
    made = json.loads(path.read_text())
    made["cells"][-1]["source"] = f"{ANSWERS[2]}\n{made['cells'][-1]['source']}"
    path.write_text(json.dumps(made))
    assert check(path) == 0
    assert "6 of 6 points." in capsys.readouterr().out


def test_the_function_that_the_check_cell_names_counts_and_so_does_a_later_one(course, capsys):
    call = "from dlsys_helpers import check\ncheck('01.{k}', {fn})"
    path = saved(course, "def mine(): return 1", ANSWERS[1], "def fn3(): return 7")
    made = json.loads(path.read_text())
    made["cells"][-3]["source"] = call.format(k=1, fn="mine")
    made["cells"][-2]["source"] = call.format(k=2, fn="lambda: 1")
    made["cells"].append({**made["cells"][-1], "source": ANSWERS[2]})
    path.write_text(json.dumps(made))
    assert check(path) == 0
    assert "6 of 6 points." in capsys.readouterr().out


def test_a_bad_cell_costs_only_itself(course, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = saved(course, "x = [1]\n%matplotlib inline",
                 # Drop what a library prints past Python; above all, it must not pass for a report.
                 "import os\nos.write(1, b'\\n{\"end\": true}\\n')", "raise ValueError('[red]no')",
                 "def broken(:", "input()", ANSWERS[0], ANSWERS[1],
                 "assert x == [1]\ndef fn3(): return len(x)")
    assert check(path) == 0
    said = capsys.readouterr().out
    assert "Code cell 3: ValueError: [red]no" in said
    assert "Code cell 4: SyntaxError" in said
    assert "Code cell 5: " in said
    assert "Code cell 1" not in said
    assert "Code cell 2" not in said
    assert "6 of 6 points." in said


def test_endless_loops_and_sudden_ends_cost_only_themselves(course, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = saved(course, "while True: pass", "import os; os._exit(0)", ANSWERS[0],
                 "def fn2():\n    while True: pass", "def fn3():\n    os._exit(7)")
    assert check(path, "--limit", "2") == 1
    said = capsys.readouterr().out
    assert "Code cell 1: ran longer than 2 s; is there a loop that never ends?" in said
    assert "Code cell 2: ended the Python process; it was left out" in said
    assert "1 of 6 points." in said
    entries = [(e["id"], e["status"]) for e in progress.entries()]
    assert sorted(entries) == [("01.1", "pass"), ("01.2", "error"), ("01.3", "error")]


def test_cells_run_in_the_folder_of_the_notebook(course):
    (course / "my-work/data.txt").write_text("1")
    path = saved(course, "v = int(open('data.txt').read())",
                 *(f"def fn{k}(): return v" for k in (1, 2, 3)))
    assert check(path) == 0


def test_ctrl_c_ends_cleanly_and_leaves_no_process(course):
    path = saved(course, "import os\nopen('pid', 'w').write(str(os.getpid()) + '!')",
                 "while True: pass")
    script = ("import sys; from dlsys import cli; from dlsys_helpers import catalog;"
              "from pathlib import Path;"
              f"catalog.FOLDER = Path({str(catalog.FOLDER)!r}); sys.exit(cli.main(sys.argv[1:]))")
    process = subprocess.Popen([sys.executable, "-c", script, "check", str(path)],
                               stderr=subprocess.PIPE, text=True)
    try:
        pid = pid_from(course, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "\nStopped. Nothing was changed.\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_the_child_ends_when_its_parent_is_killed(course):
    path = saved(course, "import os\nopen('pid', 'w').write(str(os.getpid()) + '!')",
                 "while True: pass")
    script = ("import sys; from dlsys import cli; from dlsys_helpers import catalog;"
              "from pathlib import Path;"
              f"catalog.FOLDER = Path({str(catalog.FOLDER)!r}); cli.main(sys.argv[1:])")
    process = subprocess.Popen([sys.executable, "-c", script, "check", str(path)])
    try:
        pid = pid_from(course, process)
    finally:
        process.kill()
    process.wait(timeout=120)
    assert wait_until(lambda: not alive(int(pid)))


def wait_until(holds, tries: int = 400) -> bool:
    """Poll until it holds, for about 20 s at most; the speed does not change the result."""
    pause = threading.Event()
    return any(holds() or pause.wait(0.05) for _ in range(tries))


def pid_from(course, process: subprocess.Popen) -> str:
    """Wait until the worksheet has written its pid and a final "!", while `process` runs."""
    path = course / "my-work/pid"
    assert wait_until(lambda: process.poll() is not None
                      or (path.exists() and path.read_text().endswith("!")))
    assert process.poll() is None, "dlsys check has ended"
    return path.read_text().removesuffix("!")


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_python_that_does_not_start_is_said(course, capsys):
    (course / "fake/sitecustomize.py").write_text("import os; os._exit(3)")
    assert check(saved(course, *ANSWERS)) == 2
    assert "before the first cell. Run: dlsys doctor" in capsys.readouterr().err


def test_a_late_event_is_a_fault_and_a_closed_pipe_too():
    read_end, write_end = os.pipe()
    heard = queue.SimpleQueue()
    listener = threading.Thread(target=worksheet_runner.queue_lines,
                                args=(os.fdopen(read_end, "rb"), heard), daemon=True)
    listener.start()
    os.write(write_end, b'said at the start\n{"begin": "cell", "key": 1}\n{"begin": "ce')
    events = worksheet_runner.read_events(heard, 0.05)
    assert next(events) == {"begin": "cell", "key": 1}
    assert "longer than 0.05 s" in next(events)["fault"]
    os.close(write_end)
    listener.join()
    assert next(worksheet_runner.read_events(heard, 1))["fault"] == "ended the Python process"


def test_the_worked_answers_pass_the_real_checks(capsys, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(catalog, "FOLDER", REAL_CATALOG)
    assert check(paths.SOLUTIONS / "01_activations.ipynb") == 0
    possible = sum(trap.points for trap in catalog.traps(1))
    assert f"{possible} of {possible} points" in capsys.readouterr().out


# ---- dlsys progress

def test_progress_shows_every_stage_and_trap(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    progress.record("01.1", "pass")
    progress.record("01.2", "wrong", "counts rows")
    progress.record_guess("01.1", 3, sure=True, right=False)
    progress.record_guess("01.2", "all", sure=False)
    for trap, right in (("01.1", True), ("01.1", False), ("01.2", True)):
        review.record(review.Item(catalog.trap(trap), review.NEW, due=False), right, review.now())
    assert cli.main(["progress"]) == 0
    said = capsys.readouterr().out
    rows = {line.split()[0]: " ".join(line.split()) for line in said.splitlines() if line.strip()}
    assert rows["01.1"] == "01.1 Fault 1 ✗ sure ● solved ✗ 1/1"
    assert rows["01.2"] == "01.2 Fault 2 ? not sure ◐ tried ✓ 0/2"
    assert "01.3" not in rows
    assert "1 more, not started" in said
    assert "coming" not in said
    assert f"{len(stages.STAGES) - 1} of {len(stages.STAGES)} stages are not started" in said
    assert cli.main(["progress", "--all"]) == 0
    said = capsys.readouterr().out
    rows = {line.split()[0]: " ".join(line.split()) for line in said.splitlines() if line.strip()}
    assert rows["01.3"] == "01.3 Trap 3 ○ untouched 0/3"  # naming its fault would answer the guess
    assert "\n         counts rows" in said
    assert said.count("coming") == len(stages.STAGES) - 1
    assert "1 of 3 exercises solved, 1 of 6 points." in said


def test_on_the_first_day_progress_is_three_lines(capsys):
    assert cli.main(["progress"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert said[-1] == "Next: dlsys start 1"


# ---- dlsys without arguments, and unknown commands

def test_alone_it_shows_the_next_step_and_every_command_with_an_example(course, capsys):
    assert cli.main([]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[1] == "Next: dlsys start 1"
    shown = set(re.findall(r"dlsys ([\w-]+)", said))
    assert shown >= set(cli.parser().commands)
    assert max(map(len, said.splitlines())) < 100
    saved(course, *ANSWERS, name="01_activations.ipynb")
    progress.record("01.1", "pass")
    cli.main([])
    assert "Next: exercise 01.2 in my-work/01_activations.ipynb" in capsys.readouterr().out
    for id in ("01.2", "01.3"):
        progress.record(id, "pass")
    cli.main([])
    assert "You have solved every exercise. Next: dlsys exam b" in capsys.readouterr().out


def test_each_example_is_one_that_the_parser_takes():
    """The examples are only parsed, not run. `watch` has its own parser."""
    for typed, _ in (row for rows in overview.GROUPS.values() for row in rows):
        words = shlex.split(typed)[1:]
        assert words[0] == "watch" or cli.parser().parse_args(words)


@pytest.mark.parametrize(("typed", "meant"), [
    ("strat", "start"), ("chek", "check"), ("Progress", "progress"), ("exma", "exam")])
def test_a_typo_is_told_what_was_meant(typed, meant, capsys):
    assert cli.main([typed, "1"]) == 2
    assert f"no command '{typed}', did you mean {meant}?" in capsys.readouterr().err


def test_what_is_near_to_nothing_gets_no_guess(capsys):
    assert cli.main(["xyzzy"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_a_verdict_is_a_paragraph_as_wide_as_the_terminal(course, capsys, monkeypatch):
    path = saved(course, ANSWERS[0], "def fn2(): return 'a word ' * 12")
    for columns in (60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        check(path)
        lines = capsys.readouterr().out.splitlines()
        at = next(n for n, line in enumerate(lines) if line.startswith("01.2"))
        assert len(lines[at]) < 60
        paragraph = lines[at + 1:lines.index("", at)]
        assert all(line.startswith("  ") for line in paragraph)
        assert max(map(len, paragraph)) in range(columns - 12, columns)


def test_python_m_dlsys_is_the_command():
    done = subprocess.run([sys.executable, "-m", "dlsys", "strat"], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dlsys: no command 'strat', did you mean start?")


def test_an_exam_is_named_by_its_form(course, capsys):
    assert cli.main(["check", "exam-a"]) == 2
    assert "exam-a: no sheet of this form in my-work" in capsys.readouterr().err
    for number, name in enumerate(("23_exam_a.ipynb", "24_exam_a.ipynb", "53_exam_b.ipynb")):
        path = saved(course, *ANSWERS, name=name)
        os.utime(path, (number, number))
    assert worksheets.find("exam-a").name == "24_exam_a.ipynb"
    assert worksheets.find("Exam-B").name == "53_exam_b.ipynb"


def test_progress_says_when_it_is_off(capsys, monkeypatch):
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    assert cli.main(["progress"]) == 0
    assert "DLSYS_PROGRESS is off" in capsys.readouterr().out
