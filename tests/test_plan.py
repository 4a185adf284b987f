"""The plans for two hours and for two weeks: what they name exists, and the times add up."""

import re

import pytest

from dlsys import plan, reading_time
from dlsys_helpers import catalog


@pytest.mark.parametrize("found", [plan.newcomer(), plan.practitioner()])
def test_two_hours_hold_what_fits_and_end_with_a_trap(found):
    spent = sum(piece.minutes for piece in found)
    assert 60 <= spent <= 120
    assert found[-1].trap
    assert all(catalog.trap(piece.trap).core for piece in found if piece.trap)


def test_a_newcomer_begins_with_the_ideas_of_stage_1_and_meets_each_trap_after_them():
    found = plan.newcomer()
    assert {piece.stage for piece in found} == {1}
    assert found[0].name.startswith("*One neuron draws a line* to ")


def test_somebody_who_trains_networks_takes_no_stage_twice():
    found = plan.practitioner()
    assert [piece.stage for piece in found] == list(range(1, len(found) + 1))


def test_two_weeks_hold_every_stage_once_in_order_and_no_day_is_much_longer_than_the_mean():
    days = plan.two_weeks()
    assert len(days) == 10
    assert [stage for day in days for stage in day] == catalog.written()
    longest = max(map(plan.whole, days))
    assert longest <= 1.5 * sum(map(plan.whole, days)) / 10
    assert longest <= 7 * 60


def test_the_pieces_of_a_stage_add_up_to_its_core_path():
    """Except for what follows its last trap, each piece is rounded up."""
    for stage in catalog.written()[:3]:
        core = reading_time.times(stage)[0]
        found = [*plan.pieces(stage)]
        assert [piece.trap for piece in found if piece.trap]
        assert len({piece.trap for piece in found if piece.trap}) == len(
            [piece for piece in found if piece.trap])
        assert 0.5 * (core.read + core.solve) < sum(
            piece.minutes for piece in found) <= core.read + core.solve + len(found)


def test_nothing_is_taken_that_ends_in_ideas_without_their_trap():
    ideas, trap = plan.Piece(1, "", "ideas", 30), plan.Piece(1, "01.2", "trap", 30)
    assert plan.fitting([ideas, trap, ideas, trap], 100) == [ideas, trap]
    assert plan.fitting([ideas, trap], 20) == []


def test_notebook_and_page_tell_the_same_plans():
    page = plan.markdown(lambda trap, words: f"[{words}]({trap})")
    shown = plan.plan().data
    for name, lines in plan.sentences(lambda _trap, words: words).items():
        assert f"**{name}**" in page
        assert f"<summary>{name}</summary>" in shown
        assert shown.count("<li>") >= len(lines)
    assert re.search(r"trap \[01\.2 [^]]+\]\(01\.2\) and its exercise: \d+ minutes", page)
    assert "*" not in shown
