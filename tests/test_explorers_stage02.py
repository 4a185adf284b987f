"""The scalar graph: its numbers against closed forms, and the view that draws it."""

import math
import re

import pytest

from dlsys_helpers.explorers import Graph, Slider, explorer
from dlsys_helpers.explorers.scalar_graph import INPUTS, LAST, NAMES, scalar_graph

WS = scalar_graph.controls[2].values
X, B, Y = INPUTS["x"], INPUTS["b"], INPUTS["y"]


def by_name(array):
    return dict(zip(NAMES, array.tolist(), strict=True))


def loss(w):
    return (w * X + math.tanh(w * X + B) - Y) ** 2


def slope(w):
    """dL/dw, derived on paper."""
    h = math.tanh(w * X + B)
    return 2 * (w * X + h - Y) * (1 + 1 - h * h) * X


@pytest.mark.parametrize("w", WS)
def test_forward_computes_the_formula(w):
    value = by_name(scalar_graph(step=6, w=w)[0]["value"])
    assert value["a"] == pytest.approx(w * X)
    assert value["h"] == pytest.approx(math.tanh(w * X + B))
    assert value["L"] == pytest.approx(loss(w))


@pytest.mark.parametrize("w", WS)
def test_backward_in_order_finds_the_slopes_derived_on_paper(w):
    grad = by_name(scalar_graph(step=LAST, w=w)[0]["grad"])
    h, e = math.tanh(w * X + B), w * X + math.tanh(w * X + B) - Y
    wanted = {"L": 1, "e": 2 * e, "y": -2 * e, "o": 2 * e, "h": 2 * e, "b": 2 * e * (1 - h * h),
              "a": 2 * e * (2 - h * h), "w": slope(w), "x": slope(w) * w / X}
    assert {name: grad[name] for name in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize("w", WS)
def test_the_hasty_order_loses_what_came_through_tanh_and_only_before_a(w):
    right, hasty = (by_name(scalar_graph(step=LAST, w=w, order=order)[0]["grad"])
                    for order in ("after all its uses", "when first reached"))
    e = w * X + math.tanh(w * X + B) - Y
    assert hasty["w"] == pytest.approx(2 * e * X)  # the direct use alone
    same = set(NAMES) - {"w", "x"}
    assert {n: hasty[n] for n in same} == pytest.approx({n: right[n] for n in same})


def test_the_last_sentence_states_the_slope_found_and_the_true_one():
    for order, found in (("after all its uses", slope(-0.5)), ("when first reached", -6.636)):
        said = scalar_graph(order=order)[1].replace("\N{MINUS SIGN}", "-")
        assert [float(n) for n in re.findall(r"(?:is|truth) (-?[\d.]+\d)", said)] == pytest.approx(
            [found, slope(-0.5)], abs=1e-3)


def test_the_tangent_touches_the_loss_with_the_slope():
    arrays, _ = scalar_graph(w=0.5)
    step = arrays["w_axis"][1] - arrays["w_axis"][0]
    at = abs(arrays["w_axis"] - 0.5).argmin()
    assert arrays["tangent"][at] == pytest.approx(loss(0.5))
    assert (arrays["tangent"][at + 1] - arrays["tangent"][at]) / step == pytest.approx(slope(0.5))
    assert arrays["loss"].tolist() == pytest.approx([loss(w) for w in arrays["w_axis"]])


def test_states_tell_value_part_and_whole():
    def states(step):
        return by_name(scalar_graph(step=step)[0]["state"])
    assert set(states(0)[name] for name in "ashoeL") == {0}
    assert set(states(6).values()) == {1}
    half = states(9)
    assert (half["a"], half["h"], half["s"], half["o"]) == (2, 3, 1, 3)
    assert set(states(LAST).values()) == {3}


def test_one_node_is_at_work_in_every_step_but_the_first():
    at_work = [int(scalar_graph(step=step)[0]["active"].sum()) for step in range(LAST + 1)]
    assert at_work == [0] + [1] * LAST


PAIR = Graph(title="Pair", nodes=[("p", 0, 0), ("q", 0, 1)], edges=[(0, 1)], value="v", grad="g",
             state="s", active="on")


@pytest.mark.parametrize(("state", "grad", "message"), [
    ([0, 4], [0, 0], "states are 0 to 3"), ([0, 1], [0, 0, 0], "2 nodes need as many numbers")])
def test_a_graph_that_cannot_be_drawn_is_refused(state, grad, message):
    @explorer(title="T", controls=[Slider("k", "K", [0, 1], 0)], views=[PAIR])
    def tiny(k):
        return {"v": [1, 2], "g": grad, "s": state, "on": [0, k]}, "Said."
    with pytest.raises(ValueError, match=message):
        tiny()
