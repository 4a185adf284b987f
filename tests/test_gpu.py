"""GPU results: measured on a faked CUDA device, recorded, shown elsewhere, refused if damaged."""

from __future__ import annotations

import copy
import json
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dlsys_helpers import gpu
from dlsys_helpers.claims import LOG, ClaimFailed
from dlsys_helpers.paths import ROOT
from tools import record
from tools.run_cells import run_cells

PROVENANCE = {"device": "NVIDIA H200", "sms": 132, "memory_gib": 139.8, "driver": "580.1",
              "cuda": "13.0", "torch": "2.11.0", "triton": "3.6.0", "date": "2026-01-31",
              "commit": "0123456789ab", "dirty": False}
RECORD = {"key": "01/speed", "source": "a" * 64, "columns": ["n", "us"],
          "provenance": PROVENANCE, "rows": [{"n": 64, "us": 5.5}, {"n": 8192, "us": 1400.0}]}
CELL = """\
@gpu_result("01/speed", columns=["n", "us"], uses=[helper])
def speed():
    # a comment inside counts
    return [{"n": 64, "us": helper(5.5)}]
"""


@pytest.fixture(autouse=True)
def own_records(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "RECORDED", tmp_path / "recorded")
    monkeypatch.setattr(gpu, "_chosen", "auto")
    monkeypatch.delenv("DLSYS_RECORD", raising=False)
    monkeypatch.delenv("DLSYS_COMMIT", raising=False)


@pytest.fixture
def cuda(monkeypatch):
    """A machine with a GPU, as far as gpu.py can see."""
    found = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132,
                            total_memory=int(139.8 * 2**30))
    answers = {"nvidia-smi": "580.1\n580.1", "git": "0123456789ab"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpu, "_version", lambda _: "3.6.0")
    monkeypatch.setattr(gpu, "_output", lambda *command: answers.get(
        command[0]) if "status" not in command else None)
    return monkeypatch


def run_source(source: str, name: str = "<cell>", **names):
    """Run a cell as a notebook would, with its source in linecache."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names = {"gpu_result": gpu.gpu_result, "helper": helper, **names}
    exec(compile(source, name, "exec"), names)
    return names


def helper(value):
    return value


def record_file(text: str | None = None, **changes) -> Path:
    path = gpu.record_path("01/speed")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(RECORD | changes) if text is None else text, "utf-8")
    return path


# ---- the device

def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.device("auto") == torch.device("cpu")


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(("choice", "kind"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_a_choice_holds_for_later_calls(choice, kind):
    assert gpu.device(choice).type == kind
    assert gpu.device().type == kind


def test_cuda_that_is_absent_is_refused_and_not_remembered(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"no CUDA device.*dlsys doctor"):
        gpu.device("cuda")
    assert gpu.device() == torch.device("cpu")


def test_another_word_is_refused():
    with pytest.raises(ValueError, match=r"got 'gpu', expected"):
        gpu.device("gpu")


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_half_dtype_on_cuda_follows_the_hardware(monkeypatch, native, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: native)
    assert gpu.half_dtype("cuda") == expected
    assert gpu.half_dtype("meta") == torch.bfloat16


# ---- peaks: fp32 = SMs x lanes x 2 x boost clock, memory = bus width x data rate

@pytest.mark.parametrize(("name", "sms", "lanes", "ghz"), [
    ("NVIDIA H200", 132, 128, 1.98), ("NVIDIA H100 80GB HBM3", 132, 128, 1.98),
    ("NVIDIA A100-SXM4-80GB", 108, 64, 1.41), ("NVIDIA L4", 58, 128, 2.04),
    ("NVIDIA L40S", 142, 128, 2.52), ("Tesla T4", 40, 64, 1.59),
    ("Tesla V100-SXM2-16GB", 80, 64, 1.53)])
def test_fp32_peak_is_what_the_lanes_can_do(name, sms, lanes, ghz):
    assert gpu.peak(name).fp32_tflops == pytest.approx(sms * lanes * 2 * ghz / 1e3, rel=0.02)


@pytest.mark.parametrize(("name", "bits", "gbit_per_s"), [
    ("NVIDIA H200", 6144, 6.25), ("NVIDIA H100 80GB HBM3", 5120, 5.23),
    ("NVIDIA A100-SXM4-40GB", 5120, 2.43), ("NVIDIA A100-SXM4-80GB", 5120, 3.19),
    ("NVIDIA L4", 192, 12.5), ("NVIDIA L40S", 384, 18), ("Tesla T4", 256, 10),
    ("NVIDIA A10", 384, 12.5)])
def test_memory_peak_is_bus_width_times_rate(name, bits, gbit_per_s):
    assert gpu.peak(name).memory_gbs == pytest.approx(bits / 8 * gbit_per_s, rel=0.01)


def test_every_peak_is_dense_ordered_and_sourced():
    for name, peak in gpu.PEAKS.items():
        assert peak.name == name
        assert "datasheet" in peak.source
        # Tensor cores give 4 (Ada, Ampere) to 17 (A100, Hopper) times fp32; sparse is twice that.
        assert 3.5 < peak.half_tflops / peak.fp32_tflops < 17


def test_the_ridges_of_an_h200():
    assert gpu.peak("NVIDIA H200").ridge == pytest.approx(206.1, abs=0.1)
    assert gpu.peak("NVIDIA H200").fp32_ridge == pytest.approx(13.96, abs=0.01)


def test_an_unknown_device_has_no_peak():
    with pytest.raises(LookupError, match=r"'NVIDIA RTX 9999', which has no entry") as caught:
        gpu.peak("NVIDIA RTX 9999")
    assert len(str(caught.value)) < 300


# ---- live, recorded, stale, missing

@pytest.mark.usefixtures("cuda")
def test_on_cuda_it_measures_and_writes_nothing_unless_asked():
    result = run_source(CELL)["speed"]
    assert (result.state, result.rows) == ("live", [{"n": 64, "us": 5.5}])
    assert "Measured now on NVIDIA H200 (132 SMs, 139.8 GiB), driver 580.1," in result.note()
    assert not gpu.RECORDED.exists()


def test_a_record_comes_back_without_cuda_as_it_was_measured(cuda):
    cuda.setenv("DLSYS_RECORD", "1")
    live = run_source(CELL)["speed"]
    cuda.setattr(torch.cuda, "is_available", lambda: False)
    shown = run_source(CELL)["speed"]
    assert (live.state, shown.state) == ("live", "recorded")
    assert shown.rows == live.rows == [{"n": 64, "us": 5.5}]
    assert shown.provenance["commit"] == "0123456789ab"
    assert shown.provenance["dirty"] is False
    assert "Recorded on NVIDIA H200" in shown.note()


def test_device_cpu_forces_the_recorded_view(cuda):
    cuda.setenv("DLSYS_RECORD", "1")
    run_source(CELL)
    gpu.device("cpu")
    assert run_source(CELL)["speed"].state == "recorded"


def test_a_commit_from_the_environment_may_be_dirty(cuda):
    cuda.setenv("DLSYS_COMMIT", "fedcba987654-dirty")
    result = run_source(CELL)["speed"]
    assert (result.provenance["commit"], result.provenance["dirty"]) == ("fedcba987654", True)
    assert "commit fedcba987654 with uncommitted changes" in result.note()


def test_an_unknown_commit_is_no_record_but_still_a_result(cuda):
    cuda.setattr(gpu, "_output", lambda *command: "580.1" if command[0] == "nvidia-smi" else None)
    assert run_source(CELL)["speed"].state == "live"
    cuda.setenv("DLSYS_RECORD", "1")
    with pytest.raises(gpu.RecordError, match=r"commit is None.*Set DLSYS_COMMIT"):
        run_source(CELL)
    assert not gpu.RECORDED.exists()


@pytest.mark.parametrize("changed", ["cell", "helper"])
def test_a_changed_source_makes_a_record_stale(cuda, changed):
    cuda.setenv("DLSYS_RECORD", "1")
    run_source(CELL)
    gpu.device("cpu")
    if changed == "cell":
        result = run_source(CELL.replace("5.5", "5.6"))["speed"]
    else:
        other = run_source("def helper(value):\n    return 2 * value\n", "<other>")["helper"]
        result = run_source(CELL, helper=other)["speed"]
    assert result.state == "stale"
    assert result.rows == [{"n": 64, "us": 5.5}]
    assert "earlier version of this cell" in result.note()


def test_a_stale_record_with_other_columns_shows_no_rows():
    record_file()
    result = run_source(CELL.replace('"n", "us"', '"n", "ms"'))["speed"]
    assert (result.state, result.rows) == ("stale", [])
    assert "no row is shown" in result.note()


def test_spaces_and_comments_around_a_function_do_not_make_it_stale():
    inside = "class A:\n" + "\n".join("    " + line for line in CELL.split("\n"))
    bare = gpu.source_hash([CELL])
    assert gpu.source_hash([CELL.replace(":\n", ":   \n") + "\n# afterwards\n"]) == bare
    assert gpu.source_hash(["\n".join(inside.split("\n")[1:])]) == bare
    assert gpu.source_hash([CELL.replace("inside counts", "has changed")]) != bare
    assert gpu.source_hash([CELL.replace('"us"]', '"ms"]')]) != bare


def test_missing_is_said_and_nothing_is_asserted(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run_source(CELL)["speed"]
    before = len(LOG)
    result.claim("it is fast", lambda: result.value("us", n=64), below=1)
    assert (result.state, result.rows, result.device_name) == ("missing", [], None)
    assert "Not asserted, no data yet: it is fast" in capsys.readouterr().out
    assert len(LOG) == before
    assert repr(result) == result.note()
    assert "Not recorded yet" in result._repr_html_()
    assert "<table" not in result._repr_html_()


def test_a_claim_on_shown_rows_is_a_claim():
    record_file()
    result = run_source(CELL)["speed"]
    result.claim("a tiny call", lambda: result.value("us", n=64), expected=5.5)
    assert LOG[-1].holds
    with pytest.raises(ClaimFailed, match="a big call"):
        result.claim("a big call", lambda: result.value("us", n=8192), expected=7)


def test_value_wants_exactly_one_row():
    record_file()
    result = run_source(CELL)["speed"]
    assert result.value("us", n=8192) == 1400.0
    with pytest.raises(LookupError, match="got 0 rows"):
        result.value("us", n=7)
    with pytest.raises(LookupError, match="got 2 rows"):
        result.value("us")


def test_tables_are_aligned_and_escaped_without_colours():
    rows = [{"n": 64, "us": 5.512}, {"n": 8192, "us": 1400.4}, {"n": 1, "us": "<b>"}]
    result = gpu.GpuResult("01/speed", ("n", "us"), "recorded", rows, PROVENANCE)
    assert repr(result).split("\n")[1:] == [
        "   n     us", "  64   5.51", "8192  1,400", "   1    <b>"]
    page = result._repr_html_()
    assert "&lt;b&gt;" in page
    assert 'data-state="recorded"' in page
    assert "color" not in page.replace("dlsys-gpu", "")


def test_kernel_wrappers_count_by_the_function_they_wrap(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wrapped = SimpleNamespace(fn=SimpleNamespace(fn=helper))  # as autotune around jit
    assert gpu._function(wrapped) is helper
    with pytest.raises(TypeError, match="expected functions defined in the notebook"):
        run_source(CELL, helper=SimpleNamespace())


# ---- what is refused

@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("rows", [
    [], None, [{"n": 64}], [{"us": 1.0, "n": 64}], [{"n": 64, "us": float("nan")}],
    [{"n": 64, "us": float("inf")}], [{"n": 64, "us": None}], [{"n": 64, "us": torch.tensor(1.0)}],
    [5]])
def test_rows_of_a_measurement_are_checked(rows):
    source = CELL.replace('[{"n": 64, "us": helper(5.5)}]', "rows")
    with pytest.raises(gpu.RecordError, match="01/speed"):
        run_source(source, rows=rows)


@pytest.mark.parametrize("key", ["speed", "1/speed", "01/Speed", "01/../x", "01/a/b", "01/"])
def test_keys_are_checked(key):
    with pytest.raises(gpu.RecordError, match="expected \"NN/name\""):
        gpu.gpu_result(key, columns=["n"])


def test_the_record_used_here_is_valid():
    assert gpu.validate_record(copy.deepcopy(RECORD)) is None


@pytest.mark.parametrize("field", gpu.PROVENANCE)
def test_a_record_without_full_provenance_is_refused(field):
    for value in (None, "", [], "absent"):
        record = copy.deepcopy(RECORD)
        record["provenance"][field] = value
        if value == "absent":
            del record["provenance"][field]
        with pytest.raises(gpu.RecordError, match="provenance"):
            gpu.validate_record(record)


@pytest.mark.parametrize("changes", [
    {"source": "short"}, {"key": "speed"}, {"columns": []}, {"rows": []}, {"extra": 1},
    {"rows": [{"n": 64, "us": 1.0, "x": 2}]}, {"provenance": {}},
    {"provenance": PROVENANCE | {"date": "31.01.2026"}},
    {"provenance": PROVENANCE | {"commit": "main"}}, {"provenance": PROVENANCE | {"sms": -1}}])
def test_an_invalid_record_is_refused(changes):
    with pytest.raises(gpu.RecordError):
        gpu.validate_record(RECORD | changes)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"key": "01/speed"}', "\x00"])
def test_a_damaged_file_is_named_with_its_remedy(text):
    record_file(text)
    with pytest.raises(gpu.RecordError, match=r"record 01/speed is damaged.*make record") as caught:
        run_source(CELL)
    assert len(str(caught.value)) < 300


def test_a_record_under_another_name_is_refused():
    record_file(key="02/other")
    with pytest.raises(gpu.RecordError, match="got the record of 02/other"):
        run_source(CELL)


# ---- what the notebooks declare

def notebook(path: Path, *cells: tuple[str, str]) -> Path:
    path.write_text(json.dumps({"cells": [
        {"cell_type": "code", "metadata": {"dlsys": {"role": role}},
         "source": source.splitlines(keepends=True)} for role, source in cells]}), "utf-8")
    return path


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "NOTEBOOKS", tmp_path)
    return notebook(tmp_path / "01_activations.ipynb",
                    ("setup", "from dlsys_helpers.gpu import gpu_result"),
                    ("concept", "%magic\nhelper = None"),
                    ("gpu", "def helper(value):\n    return value\n\n\nother = 1"),
                    ("gpu", f"import math\n\n\n{CELL}\n\nspeed  # shown"))


def test_evidence_finds_the_same_hash_as_a_run(notebooks, cuda, capsys):
    cuda.setenv("DLSYS_RECORD", "1")
    assert [entry["state"] for entry in gpu.evidence()] == ["missing"]
    run_cells(notebooks, roles=("setup", "gpu"))
    assert "Measured now on NVIDIA H200" in capsys.readouterr().out
    entry, = gpu.evidence()
    assert entry == {"notebook": "01_activations", "key": "01/speed", "function": "speed",
                     "columns": ["n", "us"], "state": "recorded",
                     "provenance": gpu.load_record("01/speed")["provenance"]}
    notebooks.write_text(notebooks.read_text("utf-8").replace("return value", "return +value"))
    assert [entry["state"] for entry in gpu.evidence()] == ["stale"]


def test_evidence_refuses_what_it_cannot_read(notebooks):
    notebook(notebooks, ("gpu", CELL))
    with pytest.raises(gpu.RecordError, match=r"01_activations, speed: cannot read 'helper'"):
        gpu.evidence()


def test_committed_records_are_valid_and_declared(monkeypatch):
    monkeypatch.undo()  # the real notebooks and records
    declared = [entry["key"] for entry in gpu.evidence()]
    stored = [path.relative_to(gpu.RECORDED).with_suffix("").as_posix()
              for path in sorted(gpu.RECORDED.rglob("*.json"))]
    assert len(declared) == len(set(declared))
    assert set(stored) <= set(declared)


# ---- the runner and make record

def test_run_cells_runs_the_roles_asked_for(tmp_path, capsys):
    path = notebook(tmp_path / "a.ipynb", ("setup", "%matplotlib inline\nx = 2"),
                    ("hook", "x = 99"), ("gpu", "import inspect\ndef f():\n    return x\nf()"),
                    ("gpu", "text = inspect.getsource(f)"))
    names = run_cells(path, roles=("setup", "gpu"))
    assert (names["x"], names["text"]) == (2, "def f():\n    return x\n")
    assert capsys.readouterr().out.splitlines()[1] == "2"
    assert run_cells(path)["x"] == 99


def test_an_error_in_a_cell_points_at_its_line(tmp_path):
    path = notebook(tmp_path / "a.ipynb", ("gpu", "x = 1\nx / 0"))
    with pytest.raises(ZeroDivisionError) as caught:
        run_cells(path)
    assert str(caught.traceback[-1].path) == "<a.ipynb cell 0>"
    assert caught.traceback[-1].lineno + 1 == 2


def run_python(*args: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, env=env,
                          timeout=120, check=False)


def test_record_refuses_without_cuda_in_one_line():
    done = run_python(str(ROOT / "tools" / "record.py"))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "record: no CUDA device is visible to torch. Run this on a machine with one."]


def test_a_gpu_machine_needs_no_jupyter():
    script = """
import sys

class Absent:
    names = {"IPython", "ipywidgets", "anywidget", "nbformat", "nbclient", "jupyter_client"}

    def find_spec(self, name, *_):
        if name.split(".")[0] in self.names:
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
from dlsys_helpers import begin, claim, flops, gpu_result, seconds, show
begin(0, 1, "auto")
claim("one", 1, expected=1)
"""
    done = run_python("-c", script)
    assert (done.returncode, done.stdout) == (0, "holds: one: 1\n"), done.stderr


@pytest.fixture
def recorder(notebooks, cuda):
    """tools/record.py, running lessons in this process, where CUDA is faked."""
    def run_here(stem, commit):
        cuda.setenv("DLSYS_RECORD", "1")
        cuda.setenv("DLSYS_COMMIT", commit)
        run_cells(notebooks.with_name(f"{stem}.ipynb"), roles=("setup", "gpu"))
        return 0
    cuda.setattr(record, "record", run_here)
    return cuda


@pytest.mark.usefixtures("recorder")
def test_record_writes_every_declared_measurement(capsys):
    assert record.main() == 0
    assert "recorded  01/speed" in capsys.readouterr().out
    assert gpu.load_record("01/speed")["provenance"] == PROVENANCE | {
        "torch": str(torch.__version__), "date": gpu.load_record("01/speed")["provenance"]["date"]}


def test_record_names_what_failed(recorder, capsys):
    recorder.setattr(record, "record", lambda *_: 1)
    assert record.main() == 1
    assert capsys.readouterr().err.startswith("record: failed: 01_activations, 01/speed.")


def test_record_wants_a_commit(recorder, capsys):
    recorder.setattr(gpu, "commit_here", lambda: None)
    assert record.main() == 1
    assert "Set DLSYS_COMMIT" in capsys.readouterr().err


def test_records_themselves_do_not_make_a_checkout_dirty(tmp_path, monkeypatch):
    def git(*args):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], check=True,
                       cwd=tmp_path, capture_output=True)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    assert gpu.commit_here() is None
    git("init")
    git("commit", "--allow-empty", "-m", "first")
    clean = gpu.commit_here()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    record_file()
    assert gpu.commit_here() == clean
    (tmp_path / "lesson.py").write_text("changed")
    assert gpu.commit_here() == f"{clean}-dirty"
