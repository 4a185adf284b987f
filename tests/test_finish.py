"""make finish: it skips fresh steps and continues a stopped one."""

import pytest

from dlsys_helpers import paths
from tools import build, finish, lessons, records, rows, sweep
from tools.rows import Row

[LESSON] = [path for path in paths.lessons() if path.stem == "01_activations"]


@pytest.fixture
def source():
    return lessons.Source(LESSON)


@pytest.fixture
def done(monkeypatch):
    """The steps that run, in order; they build nothing, and all of them are still to do."""
    ran = []

    def step(name):
        return lambda *_: ran.append(name) or []
    for name in ("built", "ran_alone", "proved", "scored", "swept"):
        monkeypatch.setattr(finish, name, step(name))
    for name in ("lacks_core", "lacks_sweep"):
        monkeypatch.setattr(finish, name, lambda _: True)
    monkeypatch.setattr(finish, "unproven", lambda _: ["01.5"])
    monkeypatch.setattr(finish.finder_record, "stale", lambda: ["rows changed"])
    return ran


def test_what_is_left_is_said_and_done_in_order(source, done, capsys):
    assert finish.finish(source) == []
    assert done == ["built", "ran_alone", "proved", "swept", "scored"]
    said = capsys.readouterr().out
    assert "left     core path, proofs, sweep over five seeds, the finder's score" in said


def test_what_is_fresh_is_skipped(source, done, monkeypatch):
    monkeypatch.setattr(finish, "lacks_core", lambda _: False)
    monkeypatch.setattr(finish, "unproven", lambda _: [])
    monkeypatch.setattr(finish.finder_record, "stale", list)
    finish.finish(source)
    assert done == ["built", "swept"]


def test_the_first_step_that_objects_is_the_last(source, done, monkeypatch):
    monkeypatch.setattr(finish, "proved", lambda *_: [Row("x.py:1", "not proven")])
    assert finish.finish(source) == [Row("x.py:1", "not proven")]
    assert done == ["built", "ran_alone"]


def test_a_cell_that_fails_is_the_row_of_a_build(source, monkeypatch):
    def failed(_):
        raise build.CellFailed("notebooks/01.ipynb, cell 01-1-look-1, line 1, `x`: E: x")
    monkeypatch.setattr(build, "write_lessons", failed)
    [row] = finish.finish(source)
    assert row.place.startswith("lessons/01_activations.py:")


@pytest.fixture
def swept(tmp_path, monkeypatch, source):
    """The seeds asked of a sweep that runs nothing and has its own records."""
    asked = []

    def fake(path, seeds, known):
        asked.append(seeds)
        if seeds == fake.stops_at:
            raise KeyboardInterrupt
        return {"seeds": seeds, "failed": list(fake.failed), "claims": {},
                "rests_on": sweep.rests_on(path)}
    fake.stops_at, fake.failed = 0, []
    monkeypatch.setattr(sweep, "sweep", fake)
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    fake.asked = asked
    return fake


def test_a_sweep_that_was_stopped_goes_on_with_the_next_seed(source, swept):
    notebook = finish.notebook_of(source)
    assert finish.lacks_sweep(notebook)
    swept.stops_at = 3
    with pytest.raises(KeyboardInterrupt):
        finish.swept(rows.screen(), source)
    assert sweep.stored(notebook)["seeds"] == 2
    assert finish.lacks_sweep(notebook)
    swept.stops_at = 0
    assert finish.swept(rows.screen(), source) == []
    assert swept.asked == [1, 2, 3, 3, 4, 5]
    assert not finish.lacks_sweep(notebook)


def test_a_claim_that_does_not_hold_stops_the_sweep_which_then_begins_anew(source, swept):
    swept.failed = ["a claim: 3 at seed 0, threads 1, native; expected 2"]
    [row] = finish.swept(rows.screen(), source)
    assert "a claim: 3 at seed 0" in row.says
    assert finish.lacks_sweep(finish.notebook_of(source))
    swept.failed = []
    assert finish.swept(rows.screen(), source) == []
    assert swept.asked == [1, 1, 2, 3, 4, 5]


def test_a_command_that_fails_says_why_and_one_that_works_nothing():
    assert finish.command("tools.core_path", "99") == []
    assert finish.command("tools.no_such_module")[-1].endswith("tools.no_such_module")


def test_the_last_line_is_the_next_command(done, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["finish", "1"])
    monkeypatch.setattr(finish, "changed", lambda: " M lessons/01_activations.py")
    finish.main()
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [" M lessons/01_activations.py", "Next: make test"]


def test_a_call_that_is_stopped_says_how_to_go_on(done, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(finish, "swept", stop)
    monkeypatch.setattr("sys.argv", ["finish", "1"])
    with pytest.raises(SystemExit, match="130"):
        finish.main()
    said = capsys.readouterr().out
    assert said.endswith("What was recorded stays. Next: make finish LESSON=01\n")


def test_a_lesson_that_breaks_a_rule_is_not_built(done, monkeypatch, capsys):
    def refused(path):
        raise lessons.RuleBroken("lessons/x.py, cell y: it is wrong. Mend it.", "lessons/x.py:5")
    monkeypatch.setattr(lessons, "read", refused)
    monkeypatch.setattr("sys.argv", ["finish", "1"])
    with pytest.raises(SystemExit, match="1"):
        finish.main()
    assert "lessons/x.py:5" in capsys.readouterr().out
    assert done == []
