"""The recorded timeline of lesson 15, and how its recorder converts a profiler's events."""

import json
from itertools import pairwise

import pytest

from dlsys_helpers.timelines import PATH, recorded_timeline
from tools import timeline

BARS = recorded_timeline()
CALLS = [[bar for bar in BARS if bar.name == f"all_reduce {k}"] for k in range(4)]


def test_it_says_how_it_came_about_and_is_small():
    made = json.loads(PATH.read_text("utf-8"))["made"]
    assert {"command", "date", "torch", "python", "machine", "backend", "tokens", "kept"} <= {*made}
    assert [sum(of_a_rank) for of_a_rank in made["tokens"]] == [1408, 1408]
    assert PATH.stat().st_size < 10_000


@pytest.mark.parametrize("call", CALLS)
def test_a_collective_has_a_bar_on_each_rank_and_ends_nowhere_before_all_have_called(call):
    assert [(bar.rank, bar.lane) for bar in call] == [(0, "network"), (1, "network")]
    assert max(bar.start for bar in call) < min(bar.end for bar in call)


def test_phases_of_a_rank_take_turns_and_operations_lie_inside_them():
    for rank in (0, 1):
        own = [bar for bar in BARS if bar.rank == rank]
        phases = [bar for bar in own if bar.name.split()[0] not in {"mm", "addmm"}]
        assert [bar.name for bar in phases] == [name for k in range(4) for name in (
            "forward", "backward", f"all_reduce {k}", "update")]
        assert all(one.end <= two.start for one, two in pairwise(phases))
        for bar in own:
            assert any(one.start <= bar.start and bar.end <= one.end for one in phases), bar


def test_events_become_bars_of_their_run_and_other_names_are_left_out():
    step = [("forward", 0, 9), ("aten::mm", 1, 2), ("aten::t", 2, 3), ("gloo:all_reduce", 9, 12)]
    events = [(name, 100 * k + start, 100 * k + end) for k in range(timeline.RUNS * 4)
              for name, start, end in step]
    first, second, *_ = timeline.bars_of(1, events)
    assert first[:3] == [[1, "compute", "forward", 0, 9], [1, "compute", "mm", 1, 2],
                         [1, "network", "all_reduce 0", 9, 12]]
    assert second[-1] == [1, "network", "all_reduce 3", 709, 712]


def test_a_run_begins_at_zero_in_whole_microseconds():
    assert timeline.from_zero([[0, "a", "b", 7400, 9000], [1, "a", "b", 5000, 6600]]) == [
        [0, "a", "b", 2, 4], [1, "a", "b", 0, 2]]
