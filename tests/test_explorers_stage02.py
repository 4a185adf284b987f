"""The scalar graph: its numbers against closed forms, and the view that draws it."""

import math

import pytest

from dlsys_helpers.explorers import Graph, Slider, explorer
from dlsys_helpers.explorers.scalar_graph import INPUTS, LAST, NAMES, scalar_graph

WS = scalar_graph.controls[2].values
X, B, Y = INPUTS["x"], INPUTS["b"], INPUTS["y"]


def by_name(array):
    return dict(zip(NAMES, array.tolist(), strict=True))


def slope(w):
    """dL/dw, derived on paper."""
    h = math.tanh(w * X + B)
    return 2 * (w * X + h - Y) * (1 + 1 - h * h) * X


@pytest.mark.parametrize("w", WS)
def test_backward_in_order_finds_the_slopes_derived_on_paper(w):
    grad = by_name(scalar_graph(step=LAST, w=w)[0]["grad"])
    h, e = math.tanh(w * X + B), w * X + math.tanh(w * X + B) - Y
    wanted = {"L": 1, "e": 2 * e, "y": -2 * e, "o": 2 * e, "h": 2 * e, "b": 2 * e * (1 - h * h),
              "a": 2 * e * (2 - h * h), "w": slope(w), "x": slope(w) * w / X}
    assert {name: grad[name] for name in wanted} == pytest.approx(wanted)


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
