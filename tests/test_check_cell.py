"""A check cell in a kernel: what a learner sees, and what a program that runs it sees."""

import json
import os
import queue
import re

import nbformat
import papermill
import pytest
from jupyter_client.manager import start_new_kernel

from dlsys_checks import checking
from dlsys_helpers import acting, cards, catalog, paths
from dlsys_helpers.verdicts import Verdict

SETUP = "import torch\nfrom torch import nn\nfrom dlsys_helpers import check"
WRONG = "def predict(model, x):\n    return model(x)"
ENDLESS = "def predict(model, x):\n    while True:\n        pass"
CHECK = 'from dlsys_helpers import check\ncheck("01.1", predict)'


class Seen:
    """The outputs of one cell: the data of its cards, the lines of its errors."""

    def __init__(self, client, source: str, watched: bool) -> None:
        request = client.execute(source, allow_stdin=watched)
        self.cards, self.errors, idle = [], [], False
        while not idle:
            message = client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            idle = content.get("execution_state") == "idle"
            self.cards += [content["data"]] if message["msg_type"] == "display_data" else []
            self.errors += [content["traceback"]] if message["msg_type"] == "error" else []


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel in a work folder with a lesson; it keeps no progress."""
    work = tmp_path_factory.mktemp("work")
    (work / "01_lesson.ipynb").write_text("{}")
    env = {**os.environ, "DLSYS_PROGRESS": "off", "DLSYS_WORK": str(work)}
    manager, client = start_new_kernel(kernel_name="python3", env=env, cwd=str(work))
    yield lambda source, watched=True: Seen(client, source, watched)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_a_check_before_its_cells_says_which_come_first(kernel):
    kernel("globals().pop('predict', None)")
    assert kernel(CHECK).errors == [[
        "predict is not defined yet. Run the set-up cell at the top, then the cell of your answer, "
        "then this check."]]
    (other,) = kernel("1\nno_such_name").errors
    assert len(other) > 1  # any other missing name keeps its traceback
    assert "NameError" in "".join(other)


def test_a_failure_is_one_card_and_the_next_cell_runs(kernel):
    kernel(f"{SETUP}\n{WRONG}")
    seen = kernel(CHECK)
    assert (len(seen.cards), seen.errors) == (1, [])
    assert "Exercise 01.1: not right yet" in seen.cards[0]["text/plain"]
    assert 'href="01_lesson.ipynb#cell-id=01-1-situation-1"' in seen.cards[0]["text/html"]


def test_where_nobody_looks_the_same_failure_is_an_error(kernel):
    kernel(f"{SETUP}\n{WRONG}")
    ((line,),) = kernel(CHECK, watched=False).errors
    assert line.startswith("exercise 01.1 wrong: ")


def test_papermill_stops_at_a_check_that_fails(monkeypatch):
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    book = nbformat.read(paths.EXERCISES / "01_activations.ipynb", as_version=4)
    with pytest.raises(papermill.PapermillExecutionError, match=r"exercise 01\.2 todo"):
        papermill.execute_notebook(book, None, kernel_name="python3", progress_bar=False,
                                   request_save_on_cell_execute=False)


def test_an_answer_without_end_is_stopped_and_the_case_is_named(kernel):
    kernel(f"{SETUP}\n{ENDLESS}")
    (card,) = kernel(CHECK.replace("predict)", "predict, seconds=0.5)")).cards
    assert re.search(r'ran longer than 0.5 s on the case ".+"; is there a loop that never ends\? '
                     r"\(line \d: ", card["text/plain"])


def test_a_check_that_is_interrupted_ends_in_one_line_with_the_place(kernel):
    stops = "import os, signal\ndef predict(model, x):\n    os.kill(os.getpid(), signal.SIGINT)"
    kernel(f"{SETUP}\n{stops}\n    while True: pass")
    ((line,),) = kernel(CHECK).errors
    assert re.fullmatch(r"exercise 01\.1: you stopped its check in line \d: .+", line)


@pytest.mark.parametrize(("call", "says"), [
    ('check("1.1", predict)', "got '1.1', which is the id of no exercise"),
    ("check(01.1, predict)", "got 1.1, expected the id of an exercise as a text in quotes"),
    ('check(predict, "01.1")', "got the id second, expected it first"),
    ('check("1.1", "predict")', "got '1.1', which is the id of no exercise"),
])
def test_a_bad_call_is_one_line_that_says_how_to_write_it(kernel, call, says):
    kernel(f"{SETUP}\n{WRONG}")
    (lines,) = kernel(call).errors
    (line,) = lines
    assert says in line
    assert line.endswith('Write: check("01.1", predict)')


def test_quotes_and_brackets_around_the_function_are_named():
    assert "without quotes" in checking.run_check("01.1", "predict").message
    assert "without brackets" in checking.run_check("01.1", 3.0).message


def test_the_next_answer_has_the_whole_time_again():
    case = acting.Case("any", {})
    slow = acting.run_act(acting.call_function, _endless, case, 0.1)
    assert (slow.kind, slow.error) == ("late", "ran longer than 0.1 s")
    assert acting.run_act(acting.call_function, lambda: 3, case, 0.1).value == 3


def _endless() -> None:
    while True:
        try:
            queue.Queue().get_nowait()
        except Exception:  # as an answer may well do
            continue


@pytest.mark.parametrize(("text", "html"), [
    ("`not loss <= 4 * best` holds; `loss > 4 * best` does not",
     "<code>not loss &lt;= 4 * best</code> holds; <code>loss &gt; 4 * best</code> does not"),
    ("*all* rows, 2 * 3 * 4, a*b*c", "<em>all</em> rows, 2 * 3 * 4, a*b*c"),
    ("`*` and *one* `*`", "<code>*</code> and <em>one</em> <code>*</code>"),
])
def test_stars_of_code_and_of_products_stay(text, html):
    assert cards.inline(text) == html


def test_every_star_of_a_hint_reaches_the_worksheet():
    for trap in catalog.traps():
        (path,) = paths.EXERCISES.glob(f"{trap.id[:2]}_*.ipynb")
        cell = next(cell for cell in json.loads(path.read_text("utf-8"))["cells"]
                    if cell["id"] == f"{trap.id.replace('.', '-')}-hint-1")
        shown = "".join(cell["source"])
        stars = sum(code.count("*") for hint in trap.hints for code in re.findall("`(.+?)`", hint))
        assert shown.count("*") == stars


def test_without_a_lesson_of_ones_own_the_trap_is_named_without_a_link(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(paths, "MY_WORK", tmp_path)
    monkeypatch.setattr(cards, "emit", lambda *what: shown.extend(what))
    cards.show_verdict(Verdict("wrong", "01.1", "got 1.", trap="01.1"), catalog.trap("01.1"))
    page, text = shown[:2]
    assert "See trap 01.1: " in page
    assert "<a " not in page
    assert "See trap 01.1: " in text
