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

from dlsys_helpers import gpu, gpu_records
from dlsys_helpers.claims import ClaimFailed
from dlsys_helpers.paths import ROOT
from tools import gpu_evidence, record
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
TABLE = """\
answers = gpu_table(datasheet(speed.device_name), speed.asks(
    "a tiny call: us", 5.0, lambda: speed.value("us", n=64), "4 (A 2020)", below=6))
"""


@pytest.fixture(autouse=True)
def own_records(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_records, "RECORDED", tmp_path / "recorded")
    monkeypatch.setattr(gpu, "_chosen", "auto")
    monkeypatch.setattr(gpu, "unusable", lambda: gpu.NONE)
    monkeypatch.delenv("DLSYS_COMMIT", raising=False)


@pytest.fixture
def cuda(monkeypatch):
    """A machine that seems to have a GPU, as far as the package can see."""
    found = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132,
                            total_memory=int(139.8 * 2**30))
    answers = {"nvidia-smi": "580.1\n580.1", "git": "0123456789ab"}
    monkeypatch.setattr(gpu, "unusable", lambda: "")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpu_records, "_version", lambda _: "3.6.0")
    monkeypatch.setattr(gpu_records, "output", lambda *command, **_: answers.get(
        command[0]) if "status" not in command else None)
    return monkeypatch


def helper(value):
    return value


def run_source(source: str, name: str = "<cell>", **names):
    """Run a cell as a notebook would, with its source in linecache."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names = {"gpu_result": gpu_records.gpu_result, "gpu_table": gpu_records.gpu_table,
             "datasheet": gpu.datasheet, "helper": helper, **names}
    exec(compile(source, name, "exec"), names)
    return names


def speed_of(source: str = CELL, **names):
    return run_source(source, **names)["speed"]


def store(result: gpu_records.GpuResult) -> None:
    """Write a live result as `make record` does."""
    record.write_record({"key": result.key, "source": result.source, "rows": result.rows,
                         "columns": list(result.columns), "provenance": PROVENANCE})


def record_file(text: str | None = None, **changes) -> Path:
    path = gpu_records.record_path("01/speed")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(RECORD | changes) if text is None else text, "utf-8")
    return path


def result(state="recorded", rows=RECORD["rows"], **changes):
    return gpu_records.GpuResult("01/speed", ("n", "us"), state, rows, PROVENANCE, **changes)


# ---- live, recorded, stale, missing

@pytest.mark.usefixtures("cuda")
def test_on_cuda_it_measures_and_writes_nothing():
    speed = speed_of()
    assert (speed.state, speed.rows) == ("live", [{"n": 64, "us": 5.5}])
    assert "Measured now on NVIDIA H200 (132 SMs, 139.8 GiB), driver 580.1," in speed.note()
    assert not gpu_records.RECORDED.exists()


def test_a_record_comes_back_without_cuda_as_it_was_measured(cuda):
    store(live := speed_of())
    cuda.setattr(gpu, "unusable", lambda: gpu.NONE)
    shown = speed_of()
    assert (live.state, shown.state) == ("live", "recorded")
    assert shown.rows == live.rows == [{"n": 64, "us": 5.5}]
    assert "Recorded on NVIDIA H200" in shown.note()
    assert "commit 0123456789ab" in shown.note()


@pytest.mark.usefixtures("cuda")
def test_device_cpu_forces_the_recorded_view():
    store(speed_of())
    gpu.device("cpu")
    assert speed_of().state == "recorded"


@pytest.mark.usefixtures("cuda")
def test_what_a_device_cannot_do_ends_the_measurement_and_keeps_its_rows():
    cell = CELL.replace('return [{"n": 64, "us": helper(5.5)}]',
                        'yield {"n": 64, "us": helper(5.5)}\n    raise error')
    speed = speed_of(cell, error=torch.OutOfMemoryError("CUDA out of memory.\nTried to"))
    assert (speed.rows, speed.trouble) == ([{"n": 64, "us": 5.5}], "CUDA out of memory.")
    assert "It stopped there: CUDA out of memory." in speed.note()
    with pytest.raises(NameError):  # an error in the lesson says nothing about a device
        speed_of(cell, error=NameError("helper"))


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("changed", ["cell", "helper"])
def test_a_changed_source_makes_a_record_stale_and_shows_no_row(changed):
    store(speed_of())
    gpu.device("cpu")
    if changed == "cell":
        speed = speed_of(CELL.replace("5.5", "5.6"))
    else:
        other = run_source("def helper(value):\n    return 2 * value\n", "<other>")["helper"]
        speed = speed_of(helper=other)
    assert (speed.state, speed.rows, speed.device_name) == ("stale", [], None)
    assert "An earlier version of this cell was recorded on NVIDIA H200" in speed.note()


def test_spaces_and_comments_around_a_function_do_not_make_it_stale():
    inside = "class A:\n" + "\n".join("    " + line for line in CELL.split("\n"))
    bare = gpu_records.source_hash([CELL])
    assert gpu_records.source_hash([CELL.replace(":\n", ":   \n") + "\n# afterwards\n"]) == bare
    assert gpu_records.source_hash(["\n".join(inside.split("\n")[1:])]) == bare
    assert gpu_records.source_hash([CELL.replace("inside counts", "has changed")]) != bare
    assert gpu_records.source_hash([CELL.replace('"us"]', '"ms"]')]) != bare


def test_what_keeps_a_device_from_use_stands_in_the_note(monkeypatch):
    assert speed_of().note() == (
        "Not recorded yet: `make record`, in a checkout of the course on a machine with a CUDA "
        "device, adds what your card measures.")
    monkeypatch.setattr(gpu, "unusable", lambda: "this torch holds no code for it.")
    assert speed_of().note().endswith("Here, this torch holds no code for it.")


def test_value_wants_exactly_one_row_and_total_at_least_one():
    assert result().value("us", n=8192) == 1400.0
    assert result().total("us") == 1405.5
    for ask in (result().value, result().total):
        with pytest.raises(LookupError, match=r"got (0 rows|no row)"):
            ask("us", n=7)
    with pytest.raises(LookupError, match="got 2 rows"):
        result().value("us")


def test_rows_are_shown_escaped_and_without_colours():
    rows = [{"n": 64, "us": 5.512}, {"n": 8192, "us": 1400.4}, {"n": 1, "us": "<b>"}]
    page = result(rows=rows)._repr_html_()
    assert all(text in page for text in ("5.51<", "1,400<", "&lt;b&gt;", 'data-state="recorded"'))
    assert "color" not in page.replace("dlsys-gpu", "")
    assert "<table" not in result("missing", rows=[])._repr_html_()


@pytest.mark.usefixtures("cuda")
def test_the_driver_is_known_without_nvidia_smi(cuda, tmp_path):
    cuda.setattr(gpu_records, "output", lambda *_, **__: None)
    cuda.setattr(gpu_records, "DRIVER", tmp_path / "version")
    assert gpu_records.provenance()["driver"] is None
    gpu_records.DRIVER.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    assert gpu_records.provenance()["driver"] == "550.54.15"


def test_kernel_wrappers_count_by_the_function_they_wrap():
    wrapped = SimpleNamespace(fn=SimpleNamespace(fn=helper))  # as autotune around jit
    assert speed_of(helper=wrapped).source == speed_of(helper=helper).source
    with pytest.raises(TypeError, match="expected functions defined in the notebook"):
        run_source(CELL, helper=SimpleNamespace())


# ---- the table

def answers_of(speed, **bounds):
    return gpu_records.gpu_table(gpu.datasheet(speed.device_name), speed.asks(
        "a tiny call: us", 5.0, lambda: speed.value("us", n=64), "4 (A 2020)", **bounds))


def test_without_rows_a_table_predicts_cites_and_asserts_nothing():
    table = answers_of(result("missing", rows=[]), below=6)
    assert table.head() == ["asked", "predicted, NVIDIA H200", "published"]
    assert table.lines() == [["a tiny call: us", "5", "4 (A 2020)"]]
    assert table.notes() == [speed_of().note()]  # one line, and it says how to add a record
    assert "make record" in repr(table)
    assert table._repr_html_().count("make record") == 1


def test_a_column_that_no_question_fills_is_left_out():
    unpublished = gpu_records.Question(result(), "t", 5.0, lambda: 5.5, "", {"below": 6})
    table = gpu_records.gpu_table(gpu.datasheet(None), unpublished)
    assert [*table.head()[2:], *table.lines()[0][2:]] == ["measured", "claim", "5.5", "below 6"]


def test_a_record_is_held_to_its_claims():
    table = answers_of(result(), below=6)
    assert table.lines()[0][3:] == ["5.5", "below 6"]
    assert (len(table.notes()), table.failures("01/speed")) == (1, [])
    assert "All rows of 01/speed" in table._repr_html_()
    with pytest.raises(ClaimFailed, match=r"a tiny call: us: recorded 5\.5, expected below 5"):
        answers_of(result(), below=5)
    with pytest.raises(LookupError):
        answers_of(result(rows=RECORD["rows"][1:]), below=5)


def test_a_claim_that_fails_on_somebodys_card_stops_nothing():
    table = answers_of(result("live"), below=5)
    assert table.lines()[0][3] == "5.5 (does not hold here)"
    assert table.failures("01/speed") == ["a tiny call: us: 5.5 (does not hold here), expected "
                                          "below 5"]
    short = answers_of(result("live", rows=RECORD["rows"][1:], trouble="out of memory"), below=5)
    assert "measured" not in short.head()
    two = gpu_records.gpu_table(short.sheet, *short.questions,
                                gpu_records.Question(result(), "t", 5.0, lambda: 5.5, "",
                                                     {"below": 6}))
    assert [line[3] for line in two.lines()] == ["waits", "5.5"]
    assert two.notes()[-1].startswith("1 of 2 claims wait for a measurement")
    assert short.failures("01/speed") == ["a tiny call: us: no row answers it, expected below 5"]
    assert short.failures("01/other") == []


def test_a_device_without_a_datasheet_is_told_whose_prediction_stands_there():
    other = gpu_records.GpuResult("01/speed", ("n", "us"), "live", RECORD["rows"],
                                  PROVENANCE | {"device": "NVIDIA GeForce RTX 4090"})
    assert ("No datasheet of NVIDIA GeForce RTX 4090 is on file: the predictions are for an "
            "NVIDIA H200.") in answers_of(other, below=6).notes()


# ---- what is refused

@pytest.mark.parametrize("key", ["speed", "1/speed", "01/Speed", "01/../x", "01/a/b", "01/"])
def test_keys_are_checked(key):
    with pytest.raises(gpu_records.RecordError, match="expected \"NN/name\""):
        gpu_records.gpu_result(key, columns=["n"])


def test_the_record_used_here_is_valid():
    assert gpu_evidence.validate_record(copy.deepcopy(RECORD)) is None


@pytest.mark.parametrize("field", gpu_evidence.PROVENANCE)
def test_a_record_without_full_provenance_is_refused(field):
    for value in (None, "", [], "absent"):
        bad = copy.deepcopy(RECORD)
        bad["provenance"][field] = value
        if value == "absent":
            del bad["provenance"][field]
        with pytest.raises(gpu_records.RecordError, match="provenance"):
            gpu_evidence.validate_record(bad)


@pytest.mark.parametrize("changes", [
    {"source": "short"}, {"key": "speed"}, {"columns": []}, {"rows": []}, {"extra": 1},
    {"rows": [{"n": 64, "us": 1.0, "x": 2}]}, {"provenance": {}}, {"rows": [5]},
    {"rows": [{"n": 64}]}, {"rows": [{"us": 1.0, "n": 64}]}, {"rows": None},
    *({"rows": [{"n": 64, "us": v}]} for v in (float("nan"), float("inf"), None,
                                               torch.tensor(1.0))),
    {"provenance": PROVENANCE | {"date": "31.01.2026"}},
    {"provenance": PROVENANCE | {"commit": "main"}}, {"provenance": PROVENANCE | {"sms": -1}}])
def test_an_invalid_record_is_refused(changes):
    with pytest.raises(gpu_records.RecordError):
        gpu_evidence.validate_record(RECORD | changes)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"key": "01/speed"}', "\x00", "3"])
def test_a_damaged_file_is_named_with_its_remedy(text):
    record_file(text)
    with pytest.raises(gpu_records.RecordError,
                       match=r"record 01/speed is damaged.*make record") as caught:
        run_source(CELL)
    assert len(str(caught.value)) < 350


def test_a_record_under_another_name_is_refused():
    record_file(key="02/other")
    with pytest.raises(gpu_records.RecordError, match="its key is 02/other"):
        run_source(CELL)


# ---- what the notebooks declare

def notebook(path: Path, *cells: tuple[str, str]) -> Path:
    path.write_text(json.dumps({"cells": [
        {"cell_type": "code", "metadata": {"dlsys": {"role": role}},
         "source": source.splitlines(keepends=True)} for role, source in cells]}), "utf-8")
    return path


IMPORTS = "from dlsys_helpers import datasheet, gpu_result, gpu_table"
HELPER = "def helper(value):\n    return value\n\n\nother = 1"


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_evidence, "NOTEBOOKS", tmp_path)
    return notebook(tmp_path / "01_activations.ipynb", ("setup", IMPORTS),
                    ("concept", "%magic\nhelper = None"), ("gpu", HELPER),
                    ("gpu", f"import math\n\n\n{CELL}\n\nspeed  # shown"), ("gpu", TABLE))


@pytest.mark.usefixtures("cuda")
def test_evidence_finds_the_same_hash_as_a_run(notebooks):
    assert [entry["state"] for entry in gpu_evidence.evidence()] == ["missing"]
    store(run_cells(notebooks, roles=("setup", "gpu"))["speed"])
    entry, = gpu_evidence.evidence()
    assert entry == {"notebook": "01_activations", "key": "01/speed", "function": "speed",
                     "columns": ["n", "us"], "state": "recorded", "provenance": PROVENANCE}
    notebooks.write_text(notebooks.read_text("utf-8").replace("return value", "return +value"))
    assert [entry["state"] for entry in gpu_evidence.evidence()] == ["stale"]


@pytest.mark.usefixtures("notebooks")
def test_evidence_refuses_what_it_cannot_read(notebooks):
    notebook(notebooks, ("gpu", CELL))
    with pytest.raises(gpu_records.RecordError,
                       match="01_activations, speed: cannot read 'helper'"):
        gpu_evidence.evidence()


@pytest.mark.parametrize(("before", "inside"), [
    ("TOKENS = 8192", "TOKENS"), ("def late(x):\n    return x", "late(1)"),
    ("for way in range(3):\n    pass", "way"), ("SEED, TOKENS = 0, 1", "[TOKENS for _ in ()]")])
def test_a_hash_covers_all_that_a_measurement_uses(notebooks, before, inside):
    cell = CELL.replace("helper(5.5)", f"helper({inside})")
    notebook(notebooks, ("concept", before), ("gpu", HELPER), ("gpu", cell))
    with pytest.raises(gpu_records.RecordError,
                       match=r"speed: uses (TOKENS|late|way), which the rec"):
        gpu_evidence.evidence()
    own = cell.replace("# a comment", "TOKENS = way = late = abs  # a comment")
    notebook(notebooks, ("concept", before), ("gpu", HELPER), ("gpu", own))
    assert len(gpu_evidence.evidence()) == 1


def test_committed_records_are_valid_and_declared(monkeypatch):
    monkeypatch.undo()  # the real notebooks and records
    declared = [entry["key"] for entry in gpu_evidence.evidence()]
    stored = [path.relative_to(gpu_records.RECORDED).with_suffix("").as_posix()
              for path in sorted(gpu_records.RECORDED.rglob("*.json"))]
    for key in stored:
        gpu_evidence.validate_record(gpu_records.load_record(key))
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
                          timeout=120, check=False, cwd=ROOT)


def test_record_refuses_without_cuda_in_one_line():
    done = run_python("-m", "tools.record")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["record: torch sees no CUDA device."]


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
import tools.record
begin(0, 1, "auto")
claim("one", 1, expected=1)
"""
    done = run_python("-c", script)
    assert (done.returncode, done.stdout) == (0, "holds: one: 1\n"), done.stderr


def test_a_gpu_machine_needs_no_installed_package():
    script = """
import sys
sys.path[:] = [path for path in sys.path if not path.endswith("src")]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
import tools.record
print(tools.record.gpu.__file__)
"""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""} | {"PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env,
                          timeout=120, check=False, cwd=ROOT)
    assert done.stdout == f"{ROOT / 'src/dlsys_helpers/gpu.py'}\n", done.stderr


@pytest.fixture
def recorder(notebooks, cuda):
    """tools/record.py, running lessons in this process, where CUDA is faked."""
    cuda.setattr(record, "run", record.write_all)
    return cuda


@pytest.mark.usefixtures("recorder")
def test_record_writes_every_declared_measurement(capsys):
    assert record.main([]) == 0
    assert "recorded  01/speed" in capsys.readouterr().out
    origin = gpu_records.load_record("01/speed")["provenance"]
    assert origin == PROVENANCE | {"torch": str(torch.__version__), "date": origin["date"]}


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize(("old", "new", "why"), [
    ("below=6", "below=5", "a tiny call: us: 5.5 (does not hold here), expected below 5"),
    ("n=64)", "n=65)", "no row answers it"),
    ("return [", "raise RuntimeError('no kernel')\\n    return [", "no kernel")])
def test_record_writes_nothing_that_does_not_bear_its_claims_out(notebooks, capsys, old, new, why):
    text = notebooks.read_text("utf-8")
    notebooks.write_text(text.replace(old, new))
    assert record.main([]) == 1
    said = capsys.readouterr().err
    assert "01/speed is not written." in said
    assert why in said
    assert "failed: 01_activations, 01/speed." in said
    assert not gpu_records.RECORDED.exists()


def test_record_wants_a_commit(recorder, capsys):
    recorder.setattr(record, "commit_here", lambda: None)
    assert record.main([]) == 1
    assert "Set DLSYS_COMMIT" in capsys.readouterr().err


def test_record_wants_its_provenance_before_it_measures(recorder):
    recorder.setattr(gpu_records, "_driver", lambda: None)
    recorder.setattr(record, "run", lambda *_: pytest.fail("measured"))
    with pytest.raises(gpu_records.RecordError, match=r"driver is None.*nvidia-smi nor /proc"):
        record.main([])


def test_a_commit_from_the_environment_may_be_dirty(recorder):
    recorder.setenv("DLSYS_COMMIT", "fedcba987654-dirty")
    assert record.main([]) == 0
    origin = gpu_records.load_record("01/speed")["provenance"]
    assert (origin["commit"], origin["dirty"]) == ("fedcba987654", True)
    assert "commit fedcba987654 with uncommitted changes" in gpu_records.describe(origin)


def test_records_themselves_do_not_make_a_checkout_dirty(tmp_path, monkeypatch):
    def git(*args):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], check=True,
                       cwd=tmp_path, capture_output=True)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    assert record.commit_here() is None
    git("init")
    git("commit", "--allow-empty", "-m", "first")
    clean = record.commit_here()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    record_file()
    assert record.commit_here() == clean
    (tmp_path / "lesson.py").write_text("changed")
    assert record.commit_here() == f"{clean}-dirty"
