"""A law's input may be forged: any form must end in a clear "wrong", and cost little."""

import tracemalloc

import pytest
import torch
from test_checks import fresh, proven

from dlsys_helpers.acting import Foreign
from dlsys_helpers.expect import show
from tools import forging
from tools.forging import HUGE


@pytest.fixture(scope="module")
def complaints(request) -> dict[str, str]:
    """What is wrong with each law; if the record is fresh, only one part is forged."""
    name = "test_no_forged_outcome_passes_or_costs_much"
    asked = {item.callspec.params["id"] for item in request.session.items
             if getattr(item, "originalname", "") == name}
    return forging.complaints({id: 1 if fresh(id) else forging.PARTS for id in asked})


@proven
def test_no_forged_outcome_passes_or_costs_much(complaints, id):
    assert complaints[id] == ""


# ---- values in messages ------------------------------------------------------------------------

@pytest.mark.parametrize("value", [
    None, True, 3, -1.5, "text", "it's", "x" * 61, [], (), {}, [1, 2.5, None], (1,), (1, (2,)),
    {"a": [1, {"b": ()}], "c": "it's"}, list(range(40)), "é" * 60, ["x" * 70], [True, 1e-9],
    {"k" * 80: 1}, [[[["deep"]]]] * 9, (torch.tensor(0.5), 2), ("a", "b" * 57)], ids=repr)
def test_ordinary_values_are_shown_as_python_writes_them(value):
    text = f"{value:.4g}" if type(value) is float else str(value)
    assert show(value) == (text if len(text) <= 60 else text[:57] + "...")


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


ENDLESS = {
    "many tensors": [torch.empty(0)] * 200_000, "a long text": "x" * 10**8,
    "a list of long texts": ["x" * 10**8], "a long dict": dict.fromkeys(map(str, range(10**6)), 0),
    "a deep nest": nested(100_000), "a huge int": 1 << 10**7, "a huge int in a list": [1 << 10**7],
    "a big tensor": torch.zeros(10**7), "a big tensor in a list": [torch.zeros(10**7)],
    "a tensor of any shape": torch.empty(0, HUGE), "an expanded one": torch.zeros(1).expand(HUGE),
    "a sparse one": torch.eye(2).to_sparse(), "a long key": {"x" * 10**8: 0},
    "a long name": Foreign("x" * 10**8), "wide and deep": [[[0] * 10**6] * 10] * 10,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_showing_costs_no_more_than_the_message(name):
    tracemalloc.start()
    text = show(ENDLESS[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(text) <= 80
    assert peak < 50_000
