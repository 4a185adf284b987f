"""What `make test` leaves to `make nightly`: fresh outputs, and the tests marked `nightly`."""

import json
import shutil
from datetime import date, timedelta
from types import SimpleNamespace

import nbformat
import pytest

from dlsys_helpers.paths import NOTEBOOKS, ROOT, SOLUTIONS
from tools import fingerprints, nightly, stored_outputs

pytest_plugins = ["pytester"]

# ---- notebooks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two notebooks with fresh outputs, as if the course had no others."""
    for name in ("01_activations", "03_losses"):
        book = nbformat.read(SOLUTIONS / f"{name}.ipynb", as_version=4)
        book.metadata["dlsys"]["rests_on"] = stored_outputs.rests_on(book)
        nbformat.write(book, tmp_path / f"{name}.ipynb")
    monkeypatch.setattr(nightly, "NOTEBOOKS", tmp_path)
    monkeypatch.delenv("DLSYS_NIGHTLY", raising=False)
    nightly.to_run.cache_clear()
    yield tmp_path
    nightly.to_run.cache_clear()


def runs(folder) -> dict[str, str]:
    """The notebooks that a run in this folder executes, by name, each with the reason."""
    config = SimpleNamespace(args=["."], invocation_params=SimpleNamespace(dir=folder))
    chosen = nightly.notebooks_to_run(config)
    assert [path for path in folder.glob("*.ipynb")
            if nightly.pytest_ignore_collect(path, config)] == [
        path for path in folder.glob("*.ipynb") if str(path) not in chosen]
    return {path.rpartition("/")[2]: why for path, why in chosen.items()}


def test_of_fresh_outputs_one_a_day_is_run_each_in_its_turn(folder):
    assert list(runs(folder).values()) == [f"drawn for {date.today()}"]
    fresh = sorted(folder.glob("*.ipynb"))
    assert {nightly.drawn_for(fresh, date.today() + timedelta(days)) for days in (0, 1)} == {*fresh}


def test_a_notebook_with_other_code_is_run_besides(folder):
    path = folder / "03_losses.ipynb"
    book = json.loads(path.read_text("utf-8"))
    code = next(cell for cell in book["cells"] if cell["cell_type"] == "code")
    code["source"] = [*code["source"], "\nx = 1"]
    path.write_text(json.dumps(book), "utf-8")
    assert runs(folder) == {"01_activations.ipynb": f"drawn for {date.today()}",
                            "03_losses.ipynb": "code"}


PINNED = fingerprints.pinned()


@pytest.mark.parametrize(("name", "other", "why"), [
    ("module_fingerprint", lambda module: "other", "dlsys_checks.cases"),
    ("pinned", lambda: PINNED | {"torch": "0.1"}, "torch")])
def test_all_are_run_after_a_change_of_a_helper_or_a_package(folder, monkeypatch, name, other,
                                                             why):
    monkeypatch.setattr(fingerprints, name, other)
    assert len(runs(folder)) == 2
    assert [reason for reason in runs(folder).values() if why not in reason] == []


def test_a_notebook_without_a_record_is_run(folder):
    shutil.copy(NOTEBOOKS / "00_start_here.ipynb", folder)
    assert runs(folder)["00_start_here.ipynb"] == "no record"


def test_the_night_leaves_out_no_notebook_and_believes_nothing(folder, monkeypatch):
    path = folder / "03_losses.ipynb"
    assert nightly.trusted(True)
    assert not nightly.trusted(False)
    monkeypatch.setenv("DLSYS_NIGHTLY", "1")
    assert nightly.pytest_ignore_collect(path, SimpleNamespace(args=["."])) is None
    assert not nightly.trusted(True)


# ---- tests

FILE = """
import pytest
from tools.nightly import mark_nightly

@pytest.mark.parametrize("number", mark_nightly(range(4), lambda number: number == 2))
def test_number(number):
    pass
"""


@pytest.mark.parametrize(("args", "night", "ran"), [
    (["."], "", 1), (["."], "1", 4), (["test_numbers.py::test_number"], "", 4),
    ([".", "-n", "2"], "", 1)])
def test_a_run_leaves_out_what_is_marked_unless_its_file_is_named(pytester, monkeypatch, args,
                                                                  night, ran):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("DLSYS_NIGHTLY", night)
    pytester.makeini("[pytest]\nmarkers = nightly")
    pytester.makepyfile(test_numbers=FILE)
    done = pytester.runpytest_subprocess("-p", "tools.nightly", *args)
    done.assert_outcomes(passed=ran, deselected=0 if "-n" in args else 4 - ran)
    if "-n" in args:
        done.stdout.fnmatch_lines(["3 tests left to make nightly"])
