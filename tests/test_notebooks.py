"""The shipped notebooks, run as their users run them: papermill, another seed."""

import ast
import base64
import io
import json
from functools import cache

import nbformat
import papermill
import pytest
from matplotlib import pyplot as plt
from nbformat import NotebookNode

from dlsys_helpers import catalog
from dlsys_helpers.paths import NOTEBOOKS, ROOT, SOLUTIONS
from tools import core_path, install_cell, sweep
from tools.lessons import PARAMETERS
from tools.nightly import trusted

LESSONS = sorted(path for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")
                 if not path.stem.startswith("00"))
QUICK = "02_backpropagation"  # its first trap takes a second
NAMES = [path.stem for path in LESSONS]
STORED = sorted([*LESSONS, *SOLUTIONS.glob("*.ipynb")])


@cache
def stored(path):
    """A stored notebook, cached because it is a megabyte; no test may change it."""
    return nbformat.read(path, as_version=4)


def cells_of(path, kind="code"):
    return [c for c in stored(path).cells if c.cell_type == kind]


def run_lesson(book, **parameters):
    """Run a notebook through papermill; an undeclared parameter is an error, not a warning."""
    declared = papermill.inspect_notebook(book)
    unknown = parameters.keys() - declared.keys()
    if unknown:
        raise ValueError(f"got parameter {', '.join(sorted(unknown))}, expected one of "
                         f"{', '.join(declared)}.")
    return core_path.execute(book, **parameters)


def first_claim(cells):
    """The number of the cell with the first trap's first claim."""
    return next(n for n, c in enumerate(cells)
                if c.metadata.dlsys.role == "look" and "claim(" in c.source)


def head(path):
    """The lesson up to its first trap's claim, without explorers."""
    book = stored(path)
    upto = book.cells[:first_claim(book.cells) + 1]
    return NotebookNode(book | {"cells": [c for c in upto if c.metadata.dlsys.role != "explore"]})


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_broken_code_shows_nothing_above_its_question(path):
    broken = [cell for cell in cells_of(path) if cell.metadata["dlsys"]["role"] == "break"]
    assert broken
    assert [cell.id for cell in broken if cell.outputs] == []


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_lesson_holds_at_another_seed_and_thread_count(path):
    """Every claim raises when it does not hold, so the run itself is the assertion.

    A fresh record of the sweep covers this seed and thread count for the whole lesson, and nbval
    runs the whole lesson at the stored seed. It remains to show that papermill finds the
    parameters, which all lessons declare alike, and that they reach the cells. The first trap of a
    quick lesson shows that. Without a fresh record a lesson runs to its end.
    """
    assert sweep.SEEDS > 3
    assert 2 in sweep.THREADS
    fresh = trusted(sweep.stale(path) == "")
    if fresh and path.stem != QUICK:
        return
    book = head(path) if fresh else nbformat.read(path, as_version=4)
    done = run_lesson(book, SEED=3, THREADS=2, DEVICE="cpu")
    failed = [o for c in done.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert not failed
    assert all(c.execution_count for c in done.cells if c.cell_type == "code")
    [injected] = [c for c in done.cells if "injected-parameters" in c.metadata.tags]
    assert "SEED = 3" in injected.source


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_the_head_of_a_lesson_hands_the_parameters_on(path):
    install, *sources = [c.source for c in head(path).cells if c.cell_type == "code"]
    assert install.endswith('")')  # a call, see test_install_cell
    assert "SEED = 0" in sources[0]
    assert any("begin(SEED, THREADS, DEVICE)" in source for source in sources)


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_the_head_of_a_lesson_holds_a_trap_and_its_claims(path):
    code = [c for c in head(path).cells if c.cell_type == "code"]
    assert code[-1].metadata.dlsys.trap == catalog.traps(int(path.stem[:2]))[0].id
    assert "claim(" in code[-1].source
    assert not [c for c in code if "explorers." in c.source]


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_the_core_path_ran_alone_as_it_stands(path):
    """Test it as `dlsys start --core` writes it. nbval runs the notebook with all traps."""
    stage = int(path.stem[:2])
    assert core_path.traps(core_path.core(path)) == {
        trap.id for trap in catalog.traps(stage) if trap.core}
    assert core_path.stale(path) == ""
    assert bool(core_path.RECORD.entry(path.stem)) == core_path.is_short(path)


@pytest.mark.nightly  # the test above only asks for a fresh record
@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_a_core_path_runs_alone(path):
    done = core_path.run(path)
    code = [c for c in done.cells if c.cell_type == "code"]
    assert len(code) > 20
    assert all(c.execution_count for c in code)


def test_a_core_path_that_needs_another_trap_fails(tmp_path):
    book = core_path.core(LESSONS[1])
    first = next(n for n, c in enumerate(book.cells) if c.metadata.dlsys.role == "setup"
                 and "import" in c.source)
    book.cells = book.cells[:first + 1]
    book.cells[-1].source = "a_name_of_another_trap"
    nbformat.write(book, tmp_path / "05_short.ipynb")
    with pytest.raises(papermill.PapermillExecutionError, match="a_name_of_another_trap"):
        core_path.run(tmp_path / "05_short.ipynb")


def test_undeclared_parameter_is_an_error():
    with pytest.raises(ValueError, match="SEEED"):
        run_lesson(nbformat.read(LESSONS[0], as_version=4), SEEED=1)


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_each_declared_parameter_is_used(path):
    declared = set(papermill.inspect_notebook(str(path)))
    others = [c for c in cells_of(path) if "parameters" not in c.metadata.tags]
    used = {n.id for c in others for n in ast.walk(ast.parse(c.source))
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert declared == set(PARAMETERS)
    assert declared <= used


@pytest.mark.parametrize("path", STORED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_stored_notebook_is_clean(path):
    """Numbered 1 to n, no errors, no stderr, no widget view without a kernel, no machine path.

    The cell that installs the course has no number, as it does nothing where notebooks are built.
    """
    cells = [cell for cell in cells_of(path) if not install_cell.is_install(cell)]
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    texts = [json.dumps([o for o in c.outputs if "image/png" not in o.get("data", {})])
             for c in cells]
    # Wherever the notebook was built: a path on another machine has the same folders.
    strange = ("widget-view", str(ROOT), "/book/_build/", "/site-packages/")
    assert not [text for text in texts if any(part in text for part in strange)]
    # A cell may catch a warning to show it.
    assert not [c.source for c, text in zip(cells, texts, strict=True)
                if "Warning" in text and "catch_warnings(record=True)" not in c.source]


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_every_figure_has_alt_text(path):
    for cell in cells_of(path):
        for out in cell.outputs:
            if "image/png" in out.get("data", {}) and cell.metadata.dlsys.role != "explore":
                assert out.metadata["image/png"]["alt"].strip(), cell.id


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_nothing_in_a_figure_is_cut_off(path):
    """A title or a label that does not fit has ink at the edge."""
    pictures = [(cell.id, plt.imread(io.BytesIO(base64.b64decode(out.data["image/png"]))))
                for cell in cells_of(path) for out in cell.outputs
                if "image/png" in out.get("data", {})]
    assert pictures
    for name, pixels in pictures:
        ink = pixels[..., 3].copy()
        ink[2:-2, 2:-2] = 0
        assert ink.max() < 0.1, name
