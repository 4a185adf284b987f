"""`dlsys doctor` finds each problem and says how to fix it."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dlsys import cli, doctor, needed, terminal
from dlsys_helpers import catalog, paths
from dlsys_helpers.errors import UserError

PYPROJECT = """
[project]
requires-python = "{python}"
dependencies = ["pytest>={pytest}", "no-such-package>=1.0"]
[project.optional-dependencies]
dev = ["ruff[x]>=0"]
grade = ["no-such-grader>=0"]
jax = ["no-such-jax>=0"]
language = ["peft>=0"]
compress = ["onnx>=0"]
track = ["wandb>=0"]
"""
GPU = {"cuda": True, "reason": "", "built": "13.0", "gpus": ["H200"], "gb": 140.2}


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    for name, folder in (("NOTEBOOKS", "notebooks"), ("EXERCISES", "exercises"),
                         ("MY_WORK", "my-work")):
        monkeypatch.setattr(paths, name, tmp_path / folder)
    monkeypatch.setattr(catalog, "FOLDER", tmp_path / "catalog")
    monkeypatch.delenv("DLSYS_PROGRESS", raising=False)
    write_pyproject(tmp_path)
    return tmp_path


def write_pyproject(folder, python=">=3.11", version=pytest.__version__) -> None:
    (folder / "pyproject.toml").write_text(PYPROJECT.format(python=python, pytest=version))


def only(findings) -> doctor.Finding:
    (finding,) = findings
    return finding


def test_python_that_is_too_old_is_a_fail(project):
    assert only(doctor.python()).state == doctor.OK
    write_pyproject(project, python=">=3.99")
    found = only(doctor.python())
    assert (found.state, "3.99 or newer" in found.text) == (doctor.FAIL, True)
    assert "make lab" in found.remedy


def lock_with(project, **versions) -> None:
    (project / "requirements.lock").write_text("".join(
        f"{name.replace('_', '-')}=={version} ; x\n" for name, version in versions.items()))


def test_what_is_missing_and_what_nobody_tried_are_told_apart(project, monkeypatch):
    (project / "exercises").mkdir()
    lock_with(project, pytest="0.2")
    write_pyproject(project, version="0.1")
    missing, untried, *extras = doctor.packages()
    assert (missing.state, missing.text) == ("FAIL", "packages: missing no-such-package.")
    assert untried.state == "WARN"
    assert (f"these versions are untested: pytest {pytest.__version__} (tested: 0.1 to 0.2)"
            in untried.text)
    assert "pip install" not in untried.remedy
    assert [found.state for found in extras] == ["WARN", "OK", "OK", "OK", "OK", "OK"]
    assert [name in found.text for name, found in zip(
        ("no-such-jax", "no-such-grader"), extras, strict=False)] == [True, True]


@pytest.mark.parametrize(("here", "tried"), [
    ("2.10", False), ("2.11", True), ("2.11.0+cu130", True), ("2.14.1+cpu", True), ("2.15", False)])
def test_a_version_between_floor_and_lock_was_tried(project, monkeypatch, here, tried):
    (project / "exercises").mkdir()
    lock_with(project, torch="2.14.1")
    monkeypatch.setattr(needed, "installed", lambda _: here)
    found = only(doctor.compare("packages", ["torch>=2.11"], "FAIL", ""))
    assert (found.state == "OK", "in tested versions" in found.text) == (tried, tried)


def test_the_lock_is_compared_with_the_floors(project):
    (project / "exercises").mkdir()
    assert "missing" in only(doctor.lock()).text
    lines = f"pytest=={pytest.__version__} \\\n    --hash=sha256:0\nNo_Such.Package==1.0\n"
    (project / "requirements.lock").write_text(lines)
    assert only(doctor.lock()).text == "requirements.lock: 2 packages, agrees with pyproject"
    (project / "requirements.lock").write_text(lines.replace("1.0", "0.9"))
    assert "disagrees with pyproject on no-such-package" in only(doctor.lock()).text


def test_jupyterlab_and_its_kernel(monkeypatch, tmp_path):
    assert only(doctor.lab()).state == "OK"
    assert only(doctor.kernel()).state == "OK"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert (only(doctor.lab()).state, only(doctor.lab()).remedy) == ("FAIL", "Run: make lab")


def test_a_kernel_of_another_python_is_a_warning(monkeypatch, tmp_path):
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    spec = {"argv": ["/old/bin/python", "-m", "ipykernel"], "display_name": "old"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    found = only(doctor.kernel())
    assert (found.state, "runs /old/bin/python" in found.text) == ("WARN", True)


@pytest.mark.parametrize(("free", "state"), [(0.1, "FAIL"), (1, "WARN"), (50, "OK")])
def test_disk(monkeypatch, free, state):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free * 1e9))
    found = only(doctor.disk())
    assert (found.state, bool(found.remedy)) == (state, state != "OK")


def test_my_work_that_cannot_be_written_is_a_fail():
    assert only(doctor.my_work()).state == "OK"
    assert list(paths.MY_WORK.iterdir()) == []
    paths.MY_WORK.rmdir()
    paths.MY_WORK.write_text("in the way")
    assert only(doctor.my_work()).state == "FAIL"


def test_progress_off_and_set_aside(monkeypatch):
    paths.MY_WORK.mkdir()
    (paths.MY_WORK / ".progress.damaged-1.jsonl").write_text("junk")
    found = only(doctor.progress_file())
    assert (found.state, ".progress.damaged-1.jsonl" in found.text) == ("WARN", True)
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    assert only(doctor.progress_file()).state == "WARN"


def torch_answers(monkeypatch, **run) -> list[doctor.Finding]:
    answer = SimpleNamespace(**{"returncode": 0, "stdout": "", "stderr": "", **run})
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: answer)
    return list(doctor.torch())


def test_a_torch_that_does_not_import_is_a_fail(monkeypatch):
    (found,) = torch_answers(monkeypatch, returncode=1, stderr="Traceback\nOSError: no libcudart\n")
    assert (found.state, "OSError: no libcudart" in found.text) == ("FAIL", True)
    (found,) = torch_answers(monkeypatch, returncode=-11)
    assert "exit status -11" in found.text


def test_a_torch_that_hangs_is_a_fail(monkeypatch):
    def hang(command, **_):
        raise subprocess.TimeoutExpired(command, 1)
    monkeypatch.setattr(doctor.subprocess, "run", hang)
    assert only(doctor.torch()).state == "FAIL"


def test_the_gpu_is_described():
    live = doctor.gpu(GPU, True)
    assert live == ("OK", "GPU: H200, 140 GB, CUDA 13.0; GPU sections run live", "")
    lost = doctor.gpu({**GPU, "cuda": False}, True)
    assert (lost.state, "nvidia-smi" in lost.remedy) == ("WARN", True)
    assert doctor.gpu({**GPU, "cuda": False}, False).state == "OK"
    old = doctor.gpu({**GPU, "cuda": False, "reason": "this torch holds no code for it."}, True)
    assert old[:2] == ("WARN", "GPU: this torch holds no code for it.")


def test_missing_generated_files_are_named(project):
    (project / "lessons").mkdir()
    for stem in ("00_start_here", "01_activations"):
        (project / "lessons" / f"{stem}.py").write_text("")
    for name in ("notebooks/00_start_here", "notebooks/01_activations", "exercises/01_activations"):
        found = only(doctor.generated())
        assert f"{name}.ipynb" in found.text
        (project / f"{name}.ipynb").parent.mkdir(exist_ok=True)
        (project / f"{name}.ipynb").write_text("{}")
    assert "catalog/01.json" in only(doctor.generated()).text
    catalog.FOLDER.mkdir()
    catalog.path(1).write_text("[]")
    assert only(doctor.generated()) == ("OK", "generated files: all present, 2 lessons", "")


def test_a_damaged_worksheet_is_a_warning():
    paths.MY_WORK.mkdir()
    (paths.MY_WORK / "01.ipynb").write_text("{")
    found = only(doctor.my_worksheets())
    assert (found.state, "stops in the middle" in found.text) == ("WARN", True)


@pytest.mark.parametrize(("states", "code"), [(["OK", "WARN"], 0), (["OK", "FAIL", "OK"], 1)])
def test_the_exit_code_tells_a_fail(monkeypatch, capsys, states, code):
    lines = [doctor.Finding(state, f"thing [{n}]", "do this") for n, state in enumerate(states)]
    monkeypatch.setattr(doctor, "findings", lambda: iter(lines))
    assert cli.main(["doctor"]) == code
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "OK    thing [0]"
    assert said[1] == "      do this"


def test_without_rich_the_findings_are_plain_and_a_table_says_what_is_missing(monkeypatch, capsys):
    for name in ("rich.console", "rich.text", "rich.table"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(doctor, "findings", lambda: iter([doctor.Finding("FAIL", "no rich")]))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().out == "FAIL  no rich\n"
    with pytest.raises(UserError, match="pip install rich"):
        terminal.new_table("a")
