"""The course's notebooks in JupyterLab: roles, the start page that runs, the next question."""

import nbformat
import pytest
from browser import KERNEL_IS_IDLE, lab_command, offline_page, running_lab

from dlsys_helpers.paths import NOTEBOOKS

BOOK = "window.jupyterapp.shell.currentWidget.content"
OUTPUTS = f"{BOOK}.widgets.map((cell) => cell.model.outputs?.toJSON().length ?? 0)"


def open_alone(page, lab, notebook):
    """Open a notebook in a new workspace, where no other test left a tab."""
    page.goto(f"{lab.url}/lab/workspaces/{notebook.partition('.')[0]}/tree/{notebook}"
              f"?token={lab.token}")
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    page.wait_for_function(f"{BOOK}.node.classList.contains('dlsys-notebook')")


def cell(source, role, *tags, text=False):
    made = (nbformat.v4.new_markdown_cell if text else nbformat.v4.new_code_cell)(source)
    made.metadata = {"dlsys": {"role": role}, "tags": list(tags)}
    return made


def write(path, *cells):
    book = nbformat.v4.new_notebook(cells=list(cells), metadata={
        "dlsys": {"view": "lesson", "stage": 1},
        "kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(book, path)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    start = nbformat.read(NOTEBOOKS / "00_start_here.ipynb", as_version=4)
    nbformat.write(start, folder / "00_start_here.ipynb")
    write(folder / "foreign.ipynb", cell("# Start", "start", text=True),
          cell("print('ran')", "start"))
    write(folder / "lesson.ipynb", cell("# 1. A lesson\n\n" + "word " * 99, "hook", text=True),
          cell("print('setup')", "setup"), cell("### The code", "step", text=True),
          cell("print('broken')", "break"), cell("print('asked')", "guess", "guess"),
          cell("print('answer')", "look"), cell("print('other')", "guess", "guess"))
    with running_lab(folder, tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def page(browser, lab):
    opened = offline_page(browser, viewport={"width": 1600, "height": 900})
    yield opened
    opened.close()


def test_the_start_page_runs_when_it_opens(page, lab):
    open_alone(page, lab, "00_start_here.ipynb")
    page.wait_for_function(f"{OUTPUTS}.filter(Boolean).length >= 3", timeout=60_000)
    page.wait_for_function(f"{BOOK}.activeCellIndex === 0")
    shown = page.evaluate(f"{BOOK}.widgets.map((cell) => cell.model.executionCount ?? 0)")
    assert len([count for count in shown if count]) >= 3


@pytest.mark.nightly
def test_a_page_that_only_says_it_is_the_start_page_runs_nothing(page, lab):
    open_alone(page, lab, "foreign.ipynb")
    page.wait_for_timeout(1000)
    assert page.evaluate(OUTPUTS) == [0, 0]


def test_cells_carry_their_roles_and_text_has_a_readable_width(page, lab):
    open_alone(page, lab, "lesson.ipynb")
    roles = page.evaluate(f"{BOOK}.widgets.map((cell) => [...cell.node.classList]"
                          ".filter((name) => name.startsWith('dlsys-')).join(' '))")
    assert roles == ["dlsys-hook", "dlsys-setup", "dlsys-step dlsys-break", "dlsys-break",
                     "dlsys-guess", "dlsys-look", "dlsys-guess"]
    text = page.locator(".jp-MarkdownOutput p").first
    assert text.bounding_box()["width"] <= 44 * 16
    heading = page.get_by_role("heading", name="The code")
    assert heading.evaluate("(node) => getComputedStyle(node).color") == "rgb(217, 45, 32)"


def test_g_runs_up_to_the_next_question_and_no_further(page, lab):
    open_alone(page, lab, "lesson.ipynb")
    lab_command(page, "notebook:enter-command-mode")
    page.evaluate(f"{BOOK}.activate()")
    page.keyboard.press("g")
    page.wait_for_function(f"{OUTPUTS}[4] === 1", timeout=60_000)
    page.wait_for_function(f"{BOOK}.activeCellIndex === 4")
    assert page.evaluate(OUTPUTS) == [0, 1, 0, 1, 1, 0, 0]


@pytest.mark.nightly
def test_a_cell_that_fails_stops_the_way_to_the_next_question(page, lab):
    write(lab.folder / "failing.ipynb", cell("1 / 0", "setup"), cell("print(1)", "break"),
          cell("print(2)", "guess", "guess"))
    open_alone(page, lab, "failing.ipynb")
    lab_command(page, "dlsys:next-question")
    assert page.evaluate(OUTPUTS) == [1, 0, 0]
