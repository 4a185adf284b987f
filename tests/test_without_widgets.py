"""A lesson on a machine without anywidget or ipywidgets: pictures, one sentence, no error."""

import subprocess
import sys

import pytest

SHOWN = """
import sys
sys.modules[{name!r}] = None
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
shell.user_ns["display"] = display
from dlsys_helpers import cards
cards.watched = lambda: {watched}
with capture_output() as seen:
    result = shell.run_cell({cell!r})
    result.raise_error()
    if result.result is not None:
        display(result.result)
for output in seen.outputs:
    for kind, data in output.data.items():
        print(kind, str(data)[:300].replace(chr(10), " "))
"""
EXPLORER = ("from dlsys_helpers.explorers.attention_mask import attention_mask\n"
            "display(attention_mask)")
GUESS = "from dlsys_helpers import guess\nguess('08.1', 'How much is it?', unit='%')"


def shown(name, cell, watched=True):
    done = subprocess.run([sys.executable, "-c", SHOWN.format(
        name=name, cell=cell, watched=watched)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-800:]
    return done.stdout


@pytest.mark.parametrize("name", ["anywidget", "ipywidgets"])
@pytest.mark.parametrize(("cell", "still"), [
    (EXPLORER, "image/png"), (GUESS, "Your guess: How much is it?")])
def test_a_missing_widget_library_stops_no_cell_and_is_said_once(name, cell, still):
    told = shown(name, cell)
    assert still in told
    assert told.count(f"need {name}, which is not installed") == 1


def test_where_nobody_watches_the_picture_stands_alone():
    told = shown("anywidget", EXPLORER, watched=False)
    assert "image/png" in told
    assert "text/html" not in told


@pytest.mark.parametrize(("menu", "command"), [
    ("start_menu", "dlsys start 1"), ("review_menu", "dlsys review"),
    ("model_menu", "your_model.ipynb")])
def test_the_start_page_names_the_command_that_does_the_same(menu, command, tmp_path, monkeypatch):
    monkeypatch.setenv("DLSYS_WORK", str(tmp_path))
    told = shown("ipywidgets", f"from dlsys.start_page import {menu}\n{menu}()")
    assert command in told
    assert "Traceback" not in told


def test_a_question_of_the_models_quiz_says_what_it_needs():
    asks = "from dlsys_model import quiz\nquiz.ask(1)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.modules['ipywidgets'] = None\n{asks}"],
        capture_output=True, text=True, check=True)
    assert "need ipywidgets" in done.stdout
