"""The record of the sweep: what it depends on, which runs it took, and when it is stale."""

import json
import shutil
from datetime import date, timedelta

import pytest

from dlsys_helpers.paths import ROOT
from tools import fingerprints, records, sweep

LESSONS = sweep.lessons([])
LESSON = LESSONS[0]


def code_of(path):
    return ["".join(cell["source"]) for cell in sweep.code_cells(path)]


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_record_is_fresh_and_every_claim_held(path):
    assert sweep.stale(path) == ""
    entry = sweep.stored(path)
    assert entry["failed"] == []
    assert entry["plan"] == sweep.PLAN
    for name, claim in entry["claims"].items():
        runs = list(sweep.runs(claim["seeds"], claim.get("sets", entry["sets"])))
        assert (name, claim["runs"]) == (name, len(runs))
    assert entry["seeds"] == min(claim["seeds"] for claim in entry["claims"].values())


def test_no_record_without_a_lesson():
    wanted = [sweep.RECORD.path(sweep.key(path)) for path in LESSONS]
    assert sorted(wanted[0].parent.glob("*")) == sorted(wanted)


def edit(path, old, new):
    text = path.read_text("utf-8")
    assert old in text, f"{path.name}: the test no longer finds {old!r}"
    path.write_text(text.replace(old, new, 1), "utf-8")


@pytest.fixture
def src(tmp_path, monkeypatch):
    """A copy of the sources that records depend on; a test may change it."""
    shutil.copytree(ROOT / "src" / "dlsys_helpers", tmp_path / "src" / "dlsys_helpers")
    shutil.copyfile(ROOT / "requirements.lock", tmp_path / "requirements.lock")
    monkeypatch.setattr(fingerprints, "ROOT", tmp_path)
    monkeypatch.setattr(fingerprints, "SRC", tmp_path / "src")
    clear()
    yield tmp_path
    clear()


def clear():
    for cached in (fingerprints.file_of, fingerprints.source, fingerprints.imported_by,
                   fingerprints.module_fingerprint):
        cached.cache_clear()


CHANGES = {  # file, old text, new text, the part that a record then names
    "a helper": ("src/dlsys_helpers/train.py", "import torch\n", "import torch as torch\n",
                 ["dlsys_helpers.train"]),
    "a helper of a helper": ("src/dlsys_helpers/paths.py", "import os\n",
                             "import os as os\n", ["dlsys_helpers.paths"]),
    "what shows and keeps": ("src/dlsys_helpers/cards.py", "import html\n",
                             "import html as html\n", []),
    "a pin": ("requirements.lock", f"torch=={fingerprints.pinned()['torch']}", "torch==9.9.9",
              ["torch"]),
    "another pin": ("requirements.lock", "matplotlib==", "matplotlib==1.", []),
    "a helper's prose": ("src/dlsys_helpers/train.py", "from __future__",
                         "# Prose.\n\nfrom __future__", []),
    "a helper that the lesson does not use": (
        "src/dlsys_helpers/expect.py", "import math\n", "import math as math\n", []),
    "an explorer": ("src/dlsys_helpers/explorers/activations.py", "import torch\n",
                    "import torch as torch\n", []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named(name, src):
    file, old, new, parts = CHANGES[name]
    before = sweep.rests_on(LESSON)
    edit(src / file, old, new)
    clear()
    assert fingerprints.changes(before, sweep.rests_on(LESSON)) == parts


def test_a_changed_cell_is_named_and_a_comment_is_not():
    code = code_of(LESSON)
    before = fingerprints.rests_on(code)
    assert fingerprints.changes(before, fingerprints.rests_on([*code, "x = 1"])) == ["code"]
    after = fingerprints.rests_on([code[0] + "\n# Prose.", *code[1:]])
    assert fingerprints.changes(before, after) == []


def test_a_number_that_comes_back_to_a_guess_is_run():
    cell = {"metadata": {"tags": ["measured"]}, "source": ['measured("1.1", x, right=(1, 2))']}
    assert not sweep.names_a_choice(cell)


def test_explorer_rests_on_its_module_and_the_front_end():
    name = "dlsys_helpers.explorers.activations"
    parts = fingerprints.rests_on([f"from {name} import activations\nactivations"])
    assert {name, "dlsys_helpers.explorers._picture", *fingerprints.FRONT_END} <= parts.keys()
    assert "dlsys_helpers.explorers.schedules" not in parts


@pytest.mark.parametrize(("entry", "says"), [
    ({}, "01: not swept yet. Run: make finish LESSON=01"),
    ({"rests_on": {**sweep.rests_on(LESSON), "torch": "1.0"}, "seeds": 50},
     "01: torch changed since it was swept. Run: make finish LESSON=01"),
    ({"rests_on": sweep.rests_on(LESSON), "seeds": 4},
     "01: swept over 4 seeds, expected 5. Run: make sweep LESSON=01 SWEEP_ARGS='--seeds 5'"),
])
def test_a_stale_record_says_what_changed_and_what_to_run(entry, says, monkeypatch, tmp_path):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    if entry:
        sweep.keep(LESSON, entry)
    assert sweep.stale(LESSON) == says


def test_the_plan_is_not_the_full_product():
    plan = list(sweep.runs(7, ["default", "avx2"]))
    native = [(one.seed, one.threads) for one in plan if one.instructions == sweep.NATIVE]
    assert native == [*((s, t) for s in range(5) for t in (1, 2)), (5, 1), (6, 1)]
    assert [one for one in plan if one.instructions != sweep.NATIVE] == [
        sweep.Run(0, 1, "default"), sweep.Run(0, 1, "avx2")]


def test_sets_below_the_native_one():
    assert sweep.smaller_sets("avx512") == ["default", "avx2"]
    assert sweep.smaller_sets("avx2") == ["default"]
    assert sweep.smaller_sets("default") == []
    assert sweep.smaller_sets("sve256") == ["default"]


def test_a_run_takes_its_set_and_goes_on_after_a_claim_that_fails(tmp_path):
    def cell(source, *tags):
        return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}}
    path = tmp_path / "01_small.ipynb"
    cells = [
        cell("SEED, THREADS, DEVICE = 0, 1, 'auto'", "parameters"),
        cell("from dlsys_helpers import claim\nclaim('seed', SEED, below=1)\n"
             "claim('threads', THREADS, expected=1)"),
        {**cell("raise SystemExit('an explorer claims nothing')"),
         "metadata": {"dlsys": {"role": "explore"}}},
        {**cell("raise SystemExit('a question claims nothing')"),
         "metadata": {"dlsys": {"role": "guess"}}},
        {**cell("raise SystemExit('nor does the index of its choice')"),
         "metadata": {"dlsys": {"role": "look"}, "tags": ["measured"]}}]
    path.write_text(json.dumps({"cells": [{"id": f"c{n}", **c} for n, c in enumerate(cells)]}))
    claims = sweep.run(path, sweep.Run(3, 1, "default"))
    assert {name: (c["text"], c["value"], c["holds"]) for name, c in claims.items()} == {
        "c1 1": ("seed", 3, False), "c1 2": ("threads", 1, True)}


def test_a_fresh_lesson_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr(sweep, "stale", lambda path, seeds: "")
    monkeypatch.setattr(sweep, "refuse_other_versions", lambda: None)
    monkeypatch.setattr(sweep, "next_step", lambda path: "")
    monkeypatch.setattr(sweep, "stored", lambda path: {"failed": [], "seeds": 5})
    assert ended(monkeypatch, "1") is None
    assert "fresh, skipped" in capsys.readouterr().out


def ended(monkeypatch, *args):
    """The exit code of `python -m tools.sweep` with these arguments, None for a normal end."""
    monkeypatch.setattr("sys.argv", ["sweep", *args])
    try:
        sweep.main()
    except SystemExit as end:
        return end.code


FIRST = next(name.removeprefix(sweep.CELL) for name in sweep.rests_on(LESSON))
LOSS = f"{FIRST} 1"


def claimed(text, holds):
    return {"text": text, "value": 2.5, "bound": "below 2", "holds": holds}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A sweep of two seeds with one and two threads, into this test's own records."""
    for name, value in {"ROOT": tmp_path, "SEEDS": 2, "native_instructions": lambda: "default",
                        "refuse_other_versions": lambda: None}.items():
        monkeypatch.setattr(sweep, name, value)
    monkeypatch.setattr(records, "FOLDER", tmp_path / "records")
    monkeypatch.setattr(sweep, "run", lambda path, one: {
        LOSS: {**claimed("loss", True), "value": 2.0 + one.seed}})
    monkeypatch.setattr(sweep.proof, "stale", lambda stem, ids: "")
    return monkeypatch


def test_further_seeds_widen_a_fresh_record(small):
    assert ended(small, "01") is None
    assert sweep.stored(LESSON)["claims"][LOSS]["runs"] == 4
    assert ended(small, "01", "--seeds", "4") is None
    entry = sweep.stored(LESSON)
    assert entry["seeds"] == 4
    assert entry["claims"][LOSS] == {"bound": "below 2", "least": 2, "most": 5, "runs": 6,
                                     "seeds": 4}
    small.setattr(sweep, "native_instructions", lambda: "avx2")  # a different CPU runs more seeds
    ended(small, "01", "--seeds", "5")
    entry = sweep.stored(LESSON)
    assert (entry["claims"][LOSS]["runs"], entry["native"], entry["sets"]) == (
        7, "default, avx2", [])
    ended(small, "01", "--all")
    entry = sweep.stored(LESSON)
    assert (entry["native"], entry["sets"], entry["seeds"]) == ("avx2", ["default"], 2)


def test_a_claim_that_fails_ends_the_sweep_and_is_measured_again(small):
    small.setattr(sweep, "run", lambda path, one: {
        LOSS: {**claimed("loss", one.seed < 3), "value": 2.0 + one.seed}})
    assert ended(small, "01", "--seeds", "4") == (
        "claims that do not hold:\nloss: 5 at seed 3, threads 1, native; expected below 2")
    small.setattr(sweep, "run", lambda path, one: {LOSS: claimed("loss", True)})
    assert ended(small, "01", "--seeds", "5") is None
    assert sweep.stored(LESSON)["claims"][LOSS]["most"] == 2.5


def test_many_seeds_are_recorded_a_few_at_a_time(small):
    """A stopped sweep continues from the last recorded seed."""
    asked = []

    def run(path, one):
        asked.append(one.seed)
        if len(asked) == 7:
            raise KeyboardInterrupt
        return {LOSS: claimed("loss", True)}
    small.setattr(sweep, "run", run)
    with pytest.raises(KeyboardInterrupt):
        ended(small, "01", "--seeds", "6")
    assert sweep.stored(LESSON)["seeds"] == 4
    asked.clear()
    asked += [None] * 8
    assert ended(small, "01", "--seeds", "6") is None
    assert asked[8:] == [4, 5]


PARTS = {"cell a": "1", "cell b": "2", "cell c": "3", "dlsys_helpers.train": "4", "torch": "5"}
KNOWN = {"rests_on": PARTS, "failed": [],
         "claims": {"a 1": {"runs": 57}, "b 1": {"runs": 57}, "b 2": {"runs": 57},
                    "c 1": {"runs": 57}}}


@pytest.mark.parametrize(("now", "kept"), [
    ({}, ["a 1", "b 1", "b 2", "c 1"]),
    ({"cell c": "other"}, ["a 1", "b 1", "b 2"]),
    ({"cell b": "other"}, ["a 1"]),
    ({"cell d": "new", "dlsys_helpers.leaks": "new"}, ["a 1", "b 1", "b 2", "c 1"]),
    ({"torch": "other"}, []),
    ({"dlsys_helpers.train": "other"}, [])])
def test_a_claim_counts_until_a_cell_up_to_its_own_changes(now, kept):
    parts = PARTS | now
    cells = {name: mark for name, mark in parts.items() if name.startswith("cell")}
    assert list(sweep.kept_claims(KNOWN, cells | parts)) == kept
    failed = sweep.kept_claims({**KNOWN, "failed": ["a claim"]}, cells | parts)
    assert list(failed) == (kept if not now else [])  # the sweep continues with more seeds


def test_a_cell_between_others_and_one_in_another_place_end_what_is_kept():
    between = {"cell a": "1", "cell new": "9", **PARTS}
    exchanged = {"cell b": "2", **PARTS}
    assert list(sweep.kept_claims(KNOWN, between)) == ["a 1"]
    assert sweep.kept_claims(KNOWN, exchanged) == {}


def test_what_did_not_change_keeps_its_seeds_and_the_rest_is_swept_at_five(small):
    ended(small, "01", "--seeds", "4")
    new = "a-new-cell 1"
    parts = sweep.rests_on(LESSON) | {"cell a-new-cell": "1"}
    cells = {name: mark for name, mark in parts.items() if name.startswith(sweep.CELL)}
    small.setattr(sweep, "rests_on", lambda path: cells | parts)
    small.setattr(sweep, "run", lambda path, one: {LOSS: claimed("loss", True),
                                                   new: claimed("new", True)})
    assert "a-new-cell changed since it was swept" in sweep.stale(LESSON)
    assert ended(small, "01") is None
    claims = sweep.stored(LESSON)["claims"]
    assert (claims[LOSS]["seeds"], claims[LOSS]["runs"], claims[LOSS]["most"]) == (4, 6, 5)
    assert (claims[new]["seeds"], claims[new]["runs"]) == (2, 4)
    assert sweep.stored(LESSON)["seeds"] == 2
    assert ended(small, "01", "--seeds", "4") is None
    assert {claim["seeds"] for claim in sweep.stored(LESSON)["claims"].values()} == {4}
    assert {claim["runs"] for claim in sweep.stored(LESSON)["claims"].values()} == {6}


def test_a_cell_that_fails_at_one_seed_is_told_and_the_others_run(tmp_path, monkeypatch):
    def run(path, one):
        if one.seed == 3:
            raise SystemExit(f"{path.stem}, {one}: a cell failed.")
        return {LOSS: claimed("loss", True)}
    monkeypatch.setattr(sweep, "run", run)
    monkeypatch.setattr(sweep, "native_instructions", lambda: "default")
    entry = sweep.sweep(LESSON, 5, {})
    assert entry["failed"] == [f"01_activations, seed 3, threads {n}, native: a cell failed."
                               for n in (1, 2)]
    assert entry["claims"][LOSS]["runs"] == 8


@pytest.mark.parametrize(("missing", "says"), [
    ("", "Next: make test"), ("01_activations: not proven", "01_activations: not proven")])
def test_a_sweep_counts_its_runs_and_says_what_comes_next(missing, says, tmp_path, monkeypatch,
                                                          capsys):
    monkeypatch.setattr(records, "FOLDER", tmp_path / "records")
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    monkeypatch.setattr(sweep, "native_instructions", lambda: "default")
    monkeypatch.setattr(sweep, "refuse_other_versions", lambda: None)
    monkeypatch.setattr(sweep, "run", lambda path, one: {LOSS: claimed("loss", True)})
    monkeypatch.setattr(sweep.proof, "stale", lambda stem, ids: missing)
    assert ended(monkeypatch, "01") is None
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "01_activations: 1 of 10, seed 0, threads 1, native"
    assert lines[-2:] == [
        "01_activations: 1 claims over 5 seeds, recorded in records/sweep/01.json", says]


def test_a_draft_runs_once_with_another_seed_and_leaves_no_record(tmp_path, monkeypatch, capsys):
    asked = []
    claims = {"a 1": claimed("loss", True), "a 2": claimed("share", True)}
    monkeypatch.setattr(sweep, "DRAFTS", tmp_path)
    monkeypatch.setattr(records, "FOLDER", tmp_path / "records")
    monkeypatch.setattr(sweep, "run", lambda path, one: asked.append((path, one)) or claims)
    (tmp_path / LESSON.name).write_text("{}", "utf-8")
    assert ended(monkeypatch, "01", "--draft") is None
    assert asked == [(tmp_path / LESSON.name, sweep.Run(3, 1, sweep.NATIVE))]
    assert "all 2 claims of the draft hold at seed 3, threads 1" in capsys.readouterr().out
    claims["a 2"] = claimed("share", False)
    assert ended(monkeypatch, "01", "--draft") == (
        "claims that do not hold:\nshare: 2.5 at seed 3, threads 1, native; expected below 2")
    assert not records.FOLDER.exists()


def test_a_draft_that_is_not_there_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    monkeypatch.setattr(sweep, "DRAFTS", tmp_path / "drafts")
    assert ended(monkeypatch, "01", "--draft") == (
        "drafts/01_activations.ipynb: not there. Run: make build LESSON=01 DRAFT=1")
    assert ended(monkeypatch, "--draft") == 2


def test_an_unknown_lesson_is_refused():
    with pytest.raises(SystemExit, match="got 99, expected one of 01"):
        sweep.lessons(["99"])


def test_five_nights_sweep_every_lesson_once():
    day = date(2026, 11, 30)
    shares = [sweep.drawn_for(LESSONS, day + timedelta(night), 5) for night in range(5)]
    assert sorted(path for share in shares for path in share) == sorted(LESSONS)
    assert {len(share) for share in shares} == {3, 4}
    assert sweep.drawn_for(LESSONS, day, 1) == LESSONS


def test_no_nights_are_refused(monkeypatch):
    assert ended(monkeypatch, "--nights", "0") == 2


def test_other_versions_than_the_pinned_are_refused(monkeypatch):
    monkeypatch.setattr(fingerprints, "pinned", lambda: {"torch": "9.9.9"})
    with pytest.raises(SystemExit, match=r"expected 9\.9\.9 as pinned"):
        sweep.refuse_other_versions()
