"""The nightly run checks right answers under seeds that no proof has tried."""

from datetime import date

import pytest

from dlsys_checks import registry
from dlsys_helpers import judging
from dlsys_helpers.expect import Broken
from tools import fresh_seeds, proof, solutions

ID = "99.1"
DAY = date(2026, 11, 28)


@pytest.fixture
def toy(monkeypatch):
    """An exercise that refuses the right answer on one seed in four."""
    ex = judging.Exercise(ID, "double")
    ex.cases(lambda g: [("one", {"x": g.initial_seed()})])

    @ex.law
    def law(out, x):
        if x % 4 == 0:
            raise Broken("result", out, 2 * x)
    monkeypatch.setitem(registry.REGISTRY, ID, ex)
    monkeypatch.setattr(solutions, "stages", lambda: ["99"])
    monkeypatch.setattr(solutions, "answers", lambda stage: {ID: ("", "")})
    monkeypatch.setattr(proof, "right_answers", lambda id: {
        proof.WORKED: lambda x: 2 * x, "a sum": lambda x: x + x})


def test_a_day_has_seeds_of_its_own_and_more_of_them_begin_alike():
    first = fresh_seeds.seeds_of(DAY, ID, 5)
    assert first == fresh_seeds.seeds_of(DAY, ID, 50)[:5]
    others = fresh_seeds.seeds_of(DAY, "99.2", 5), fresh_seeds.seeds_of(date(2026, 11, 29), ID, 5)
    assert not {*first} & {*others[0], *others[1]}
    assert all(seed > 20 for seed in first), "a proof tries the seeds from 0 to 19"


def test_each_refusal_is_told_with_answer_seed_and_case(toy):
    found = list(fresh_seeds.refused(ID, [4, 5, 6, 8], others=1))
    assert found == [f"99.1, the worked answer: seed 4, case 'one': {message_of(4)}",
                     f"99.1, a sum: seed 4, case 'one': {message_of(4)}", "", "",
                     f"99.1, the worked answer: seed 8, case 'one': {message_of(8)}"]


def message_of(seed):
    return f"result: got {2 * seed}, expected {2 * seed}."


@pytest.mark.parametrize(("seeds", "status"), [([4, 5], 1), ([5, 6], 0)])
def test_the_rate_is_printed_and_decides_the_status(toy, seeds, status, monkeypatch, capsys):
    monkeypatch.setattr(fresh_seeds, "seeds_of", lambda *_: seeds)
    monkeypatch.setattr("sys.argv", ["fresh_seeds", "99", "--day", "2026-11-28"])
    with pytest.raises(SystemExit) as left:
        fresh_seeds.main()
    assert left.value.code == status
    assert capsys.readouterr().out.endswith(
        f"2026-11-28: {2 * status} of 4 right answers refused\n")
