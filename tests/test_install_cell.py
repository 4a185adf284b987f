"""The first cell of lessons and worksheets: silent if nothing is missing, else one sentence."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from dlsys import arrival, needed
from dlsys_files import locations
from dlsys_helpers.paths import EXERCISES, NOTEBOOKS, ROOT
from tools import core_path, install_cell, stored_outputs, sweep, views

BOOKS = [path for folder in (NOTEBOOKS, EXERCISES) for path in sorted(folder.glob("*.ipynb"))
         if not path.stem.startswith("00")]
NAMES = [f"{path.parent.name}/{path.stem}" for path in BOOKS]
# Imported name -> package, if they differ; torch.onnx imports onnxscript.
PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "IPython": "ipython"}
BROUGHT = {"pillow", "ipython", "safetensors", "scipy", "tokenizers", "triton"}  # by others
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}


def code_of(path: Path) -> list[dict]:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", BOOKS, ids=NAMES)
def test_the_first_code_cell_installs_what_the_notebook_imports(path):
    first, *rest = code_of(path)
    assert install_cell.is_install(first)
    assert not any(map(install_cell.is_install, rest))
    assert FOLDED.items() <= first["metadata"].items()
    assert (first["outputs"], first["execution_count"]) == ([], None)
    nodes = [node for cell in rest for node in ast.walk(ast.parse("".join(cell["source"])))]
    roots = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    roots |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    used = {PACKAGES.get(root, root) for root in (name.partition(".")[0] for name in roots)
            if root not in sys.stdlib_module_names and not root.startswith("dlsys")}
    call = ast.parse("".join(first["source"])).body[-1].value
    version, _, needs = (argument.value for argument in call.args)
    base = {one.name for one in needed.read(needed.project()["dependencies"])}
    assert used - base - BROUGHT <= set(needs.split())
    assert not base & set(needs.split())
    assert version == needed.project()["version"]


def test_what_a_stage_needs_has_a_floor():
    wanted = {name for path in BOOKS for name in ast.parse("".join(
        code_of(path)[0]["source"])).body[-1].value.args[2].value.split()}
    assert {"jax", "onnx", "optuna", "bitsandbytes"} <= wanted
    found = needed.named(sorted(wanted), needed.project())
    assert [one.name for one in found if not one.floor] == []


def test_no_record_and_no_output_rests_on_the_cell(tmp_path):
    """A new version or address changes only this cell in every notebook."""
    path = NOTEBOOKS / "01_activations.ipynb"
    book = json.loads(path.read_text("utf-8"))
    cell = next(cell for cell in book["cells"] if install_cell.is_install(cell))
    cell["source"] = "arrive('9.9.9')"
    other = tmp_path / path.name
    other.write_text(json.dumps(book), "utf-8")
    assert sweep.rests_on(other) == sweep.rests_on(path)
    assert core_path.rests_on(other) == core_path.rests_on(path)
    assert stored_outputs.rests_on(nbformat.read(other, as_version=4)) == stored_outputs.rests_on(
        nbformat.read(path, as_version=4))


# ---- the cell in a Python without the course

PIP = '''"""Stands in for pip: says and does what a test wants."""
import os, shutil, sys
sys.stderr.write(os.environ.get("FAKE_SAYS", ""))
if os.environ.get("FAKE_BRINGS"):
    shutil.copytree(os.environ["FAKE_BRINGS"], os.path.dirname(os.path.dirname(__file__)),
                    dirs_exist_ok=True)
sys.exit(int(os.environ.get("FAKE_FAILS", "0")))
'''
COURSE = {"dlsys/__init__.py": "", "dlsys/arrival.py":
          "def arrive(version, needs, began): print('finished', version, needs, began > 0)"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python that has neither the course nor pip."""
    home = tmp_path_factory.mktemp("bare") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    return home


@pytest.fixture
def elsewhere(bare, tmp_path):
    """Run the cell there; returns what it printed and the last line of its error."""
    site = next(bare.glob("lib*/python3*/site-packages"))
    for old in site.iterdir():
        shutil.rmtree(old)

    def run(pip: bool = True, **env: str) -> tuple[str, str]:
        if pip:
            (site / "pip").mkdir(exist_ok=True)
            (site / "pip/__main__.py").write_text(PIP)
        text = install_cell.CELL.format(version="2.0.0", address=env.pop("ADDRESS", ""),
                                        needs="onnx")
        done = subprocess.run([bare / "bin/python", "-c", text], cwd=tmp_path, env=env, text=True,
                              capture_output=True, check=False)
        return done.stdout.strip(), (done.stderr.strip().splitlines() or [""])[-1]
    run.site = site
    return run


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_it_fetches_the_wheel_and_lets_it_finish(elsewhere, tmp_path):
    brought = str(write(tmp_path / "wheel", COURSE))
    assert elsewhere(ADDRESS="https://example.org/x.whl", FAKE_BRINGS=brought) == (
        "finished 2.0.0 onnx True", "")


@pytest.mark.parametrize(("env", "said"), [
    ({}, "or choose the kernel of the course's folder"),
    ({"ADDRESS": "x (1).whl", "FAKE_SAYS": "x (1).whl is not a supported wheel on this",
      "FAKE_FAILS": "1"}, "renamed x (1).whl. Name it dlsys_helpers-2.0.0-py3-none-any.whl."),
    ({"DLSYS_WHEEL": "a.whl", "FAKE_SAYS": "ERROR: Wheel 'dlsys-helpers' located at /a.whl is "
      "invalid.", "FAKE_FAILS": "1"}, "a.whl is damaged. Fetch it again, or put the file dlsys_h"),
    ({"DLSYS_WHEEL": "a.whl", "FAKE_SAYS": "error: externally-managed-environment", "FAKE_FAILS":
      "1"}, "belongs to the system. Choose a kernel of your own: python3 -m venv env."),
    ({"DLSYS_WHEEL": "a.whl", "FAKE_SAYS": "requires a different Python: 3.10.2 not in '>=3.11'",
      "FAKE_FAILS": "1"}, "expected 3.11 or newer. Choose another kernel."),
    ({"DLSYS_WHEEL": "a.whl", "FAKE_SAYS": "[Errno 28] No space left on device",
      "FAKE_FAILS": "1"}, "is full. Free 1 GB."),
    ({"DLSYS_WHEEL": "here.whl", "FAKE_SAYS": "looks like a filename, but the file does not exist",
      "FAKE_FAILS": "1"}, "here.whl is not there. Instead, put the file dlsys_helpers-2.0.0-py3"),
    ({"ADDRESS": "https://example.org/x.whl", "FAKE_SAYS": "ProxyError", "FAKE_FAILS": "1"},
     "x.whl cannot be fetched. Connect (behind a proxy, set HTTPS_PROXY), or put"),
    ({"DLSYS_WHEEL": "a.whl", "FAKE_SAYS": "[Errno 30] Read-only file system", "FAKE_FAILS": "2"},
     "cannot be written. Use a Python of your own."),
    ({"DLSYS_WHEEL": "old.whl"}, "old.whl is older than this notebook. Instead, put")])
def test_each_obstacle_is_one_sentence(elsewhere, env, said):
    printed, error = elsewhere(**env)
    assert printed == ""
    assert error.startswith("RuntimeError: The course is not installed in this kernel: ")
    assert said in error
    assert error.endswith("Then run this cell again.")


def test_a_python_without_pip_is_told_how_to_get_it(elsewhere):
    assert "-m ensurepip. Then run" in elsewhere(pip=False, DLSYS_WHEEL="a.whl")[1]


def test_a_wheel_beside_the_notebook_is_taken_and_an_older_course_replaced(elsewhere, tmp_path):
    write(elsewhere.site, {"dlsys/__init__.py": "", "dlsys_helpers/__init__.py": ""})
    (tmp_path / "dlsys_helpers-2.0.0-py3-none-any.whl").touch()
    brought = str(write(tmp_path / "wheel", COURSE))
    assert elsewhere(FAKE_BRINGS=brought)[0] == "finished 2.0.0 onnx True"


# ---- what it calls

@pytest.fixture
def pip(monkeypatch):
    """A pip that installs what it is asked for, or fails; it records its calls."""
    here = {"torch": "2.11.0+cu130", "numpy": "2.1.3", "dlsys-helpers": "2.0.0"}
    fake = SimpleNamespace(calls=[], says="", here=here)

    def run(command, **_):
        fake.calls.append(command)
        if not fake.says:
            here.update({name.partition(">")[0]: "9.0" for name in command if ">=" in name})
        return SimpleNamespace(returncode=bool(fake.says), stderr=fake.says)
    project = {"dependencies": ["torch>=2.11", "numpy>=2.1"],
               "optional-dependencies": {"x": ["onnx>=1.22"]}}
    monkeypatch.setattr(arrival.subprocess, "run", run)
    monkeypatch.setattr(needed, "installed", here.get)
    monkeypatch.setattr(needed, "project", lambda: project)
    monkeypatch.setattr(locations, "is_checkout", lambda: False)
    return fake


def test_where_all_is_there_it_is_silent(pip, capsys):
    pip.here["onnx"] = "1.30"
    arrival.arrive("2.0.0", "onnx")
    arrival.arrive("1.9", "")  # an older notebook
    assert (pip.calls, capsys.readouterr().out) == ([], "")


def test_only_what_is_absent_is_installed_and_one_line_says_so(pip, capsys):
    arrival.arrive("2.0.0", "onnx")
    [command] = pip.calls
    assert [word for word in command if ">=" in word] == ["onnx>=1.22"]
    assert command[command.index("-c") + 1].endswith("installed.txt")
    assert "--no-compile" in command  # without it, pip compiles for longer than it installs
    out = capsys.readouterr().out
    said = re.sub(r"in \d+ s", "in 0 s", out)  # a slow disk takes some
    assert said == "Installed in 0 s: onnx 9.0. torch 2.11.0+cu130 is unchanged.\n"


@pytest.mark.parametrize(("here", "needs", "asked"), [
    ("0.10.0", "peft", ["torchao>=0.18"]), ("0.18.0", "peft", []), (None, "peft", []),
    ("0.10.0", "torchao", ["torchao>=0.18"]), ("0.10.0", "", [])])
def test_an_old_torchao_is_replaced_where_a_stage_cannot_run_with_it(pip, capsys, here, needs,
                                                                     asked):
    """Colab has one, and peft raises an ImportError when it sees it."""
    pip.here.update({"peft": "0.20", **({"torchao": here} if here else {})})
    arrival.arrive("2.0.0", needs)
    assert [word for command in pip.calls for word in command if ">=" in word] == asked
    assert "torchao 0.10.0 is older" not in capsys.readouterr().out


def test_torch_is_left_to_the_reader(pip):
    del pip.here["torch"]
    with pytest.raises(arrival.CannotInstall, match="pip install torch torchvision"):
        arrival.arrive("2.0.0")
    assert pip.calls == []


def test_an_older_course_is_refused(pip):
    with pytest.raises(arrival.CannotInstall, match=r"to version 2\.1 .* 2\.0\.0 is installed"):
        arrival.arrive("2.1")


def test_without_a_network_the_rest_of_the_notebook_runs(pip, capsys):
    pip.says = "NewConnectionError: no route"
    arrival.arrive("2.0.0", "onnx")
    out = capsys.readouterr().out
    assert out.startswith("A part of this notebook will not run. onnx: cannot be fetched")
    del pip.here["numpy"]
    with pytest.raises(arrival.CannotInstall, match="numpy: cannot be fetched"):
        arrival.arrive("2.0.0", "")


WIDGETS = """
import importlib.machinery, sys
found = importlib.machinery.PathFinder.find_spec
hidden = {"anywidget"}
importlib.machinery.PathFinder.find_spec = lambda name, *more: (
    None if name in hidden else found(name, *more))
from dlsys import arrival
if %s:
    hidden.clear()
arrival.find_new_packages()
import anywidget
print(getattr(anywidget, "__file__", None) is not None)
"""


@pytest.mark.parametrize("arrives", [True, False])
def test_explorers_work_after_the_cell_without_a_restart(arrives):
    """If the course is imported without anywidget, it puts a stand-in in its place."""
    done = subprocess.run([sys.executable, "-c", WIDGETS % arrives], capture_output=True,
                          text=True, check=True)
    assert done.stdout.strip() == str(arrives)


@pytest.mark.parametrize(("said", "told"), [
    ("/usr/bin/python3: No module named pip", "has no pip. Run in a terminal"),
    ("OSError: [Errno 13] Permission denied: '/usr/lib'", "cannot be written"),
    ("error: externally-managed-environment\n\nhint: See PEP 668", "belongs to the system"),
    ("Failed to connect to 127.0.0.1", "package index does not answer"),
    ("ERROR: first\nERROR: ResolutionImpossible", "It said: ERROR: ResolutionImpossible")])
def test_pip_is_put_into_words(said, told):
    assert told in arrival.explain(said, "onnx")


def test_a_version_that_is_too_old_is_named(pip, capsys):
    pip.here["numpy"] = "1.26"
    arrival.arrive("2.0.0")
    assert ("numpy 1.26 is older than 2.1, the oldest version that was tested"
            in capsys.readouterr().out)


def test_the_address_is_that_of_a_release(monkeypatch, tmp_path):
    assert install_cell.address() == ""  # while the course has no public home
    (tmp_path / "book").mkdir()
    (tmp_path / "book/_config.yml").write_text("repository: {url: https://github.com/a/b/}")
    monkeypatch.setattr(install_cell, "ROOT", tmp_path)
    version = needed.project()["version"]
    assert install_cell.address() == (f"https://github.com/a/b/releases/download/v{version}/"
                                      f"dlsys_helpers-{version}-py3-none-any.whl")


def test_a_notebook_without_code_gets_no_cell():
    assert views.with_install([]) == []


def test_the_checkout_itself_needs_nothing():
    """In a fresh clone after `make lab`, the cell of each stage finds nothing missing."""
    done = subprocess.run([sys.executable, "-c", install_cell.text(["import jax, onnx, optuna"])],
                          cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
