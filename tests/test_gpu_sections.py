"""Rehearse the GPU section of every lesson on a CPU, so that it has no slips on a device."""

from __future__ import annotations

import json
import math
import re

import pytest

import dlsys_helpers
from dlsys_helpers import gpu_records
from dlsys_helpers.paths import NOTEBOOKS, lessons
from tests.rehearsal import ORIGIN, stage
from tools import gpu_evidence
from tools.nightly import mark_nightly
from tools.run_cells import run_cells

DECLARED = gpu_evidence.evidence()
STEMS = sorted({entry["notebook"] for entry in DECLARED})
MOST_CELLS = 10


# One from each third of the course.
SOME = {"01_activations", "08_transformers", "13_serving"}


@pytest.fixture(scope="module", params=mark_nightly(STEMS, SOME.__contains__))
def rehearsed(request, tmp_path_factory):
    """What the set-up and the GPU section of one lesson define, on a made-up device."""
    with stage(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_records, "RECORDED", tmp_path_factory.mktemp("recorded"))
        dlsys_helpers.__dict__.pop("operations", None)  # a lesson imports it again
        names = run_cells(NOTEBOOKS / f"{request.param}.ipynb", roles=("setup", "gpu"))
        dlsys_helpers.__dict__.pop("operations", None)
    return request.param, names


def results(names):
    return {v.key: v for v in names.values() if isinstance(v, gpu_records.GpuResult)}


def test_every_measurement_runs_to_its_end_and_could_be_recorded(rehearsed):
    stem, names = rehearsed
    found = results(names)
    assert sorted(found) == sorted(e["key"] for e in DECLARED if e["notebook"] == stem)
    for key, result in found.items():
        assert result.trouble == ""
        record = {"key": key, "source": result.source, "columns": [*result.columns],
                  "provenance": {**ORIGIN, "commit": "0000000", "dirty": False},
                  "rows": result.rows}
        gpu_evidence.validate_record(json.loads(json.dumps(record)))


def test_every_measurement_answers_a_question_and_every_question_is_answered(rehearsed):
    _, names = rehearsed
    table, = (v for v in names.values() if isinstance(v, gpu_records.GpuTable))
    assert {question.result.key for question in table.questions} == {*results(names)}
    assert all(math.isfinite(answer.number) for answer in table.answers)
    assert all(question.predicted != "" for question in table.questions)
    assert "wait" not in " ".join(table.notes())


def gpu_cells(stem):
    cells = json.loads((NOTEBOOKS / f"{stem}.ipynb").read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["metadata"].get("dlsys", {}).get("role") == "gpu"]


@pytest.mark.parametrize("stem", STEMS)
def test_a_gpu_section_is_short_and_says_once_what_is_missing(stem):
    cells = gpu_cells(stem)
    assert len(cells) <= MOST_CELLS
    shown = json.dumps([cell.get("outputs") for cell in cells])
    missing = [e for e in DECLARED if e["notebook"] == stem and e["state"] == "missing"]
    # Each output occurs twice, as text and as HTML.
    assert shown.count("Not recorded yet") == (2 if missing else 0)


@pytest.mark.parametrize("path", lessons(), ids=lambda p: p.stem)
def test_lessons_profile_all_that_torch_can_see(path):
    """After a first profile without CUDA, no later one sees the GPU, even in a GPU section."""
    code = "\n".join(line for line in path.read_text("utf-8").splitlines()
                     if not line.startswith("#"))
    seeing = re.findall(r"\bprofile\(\s*activities=supported_activities\(\)", code)
    assert len(seeing) == code.count("profile(")
    assert "ProfilerActivity" not in code
