"""Stage 12's explorer against what can be told without running it: where a NaN goes."""

import pytest
import torch

from dlsys_helpers.explorers.nan_hunt import (
    BACKWARD,
    BAD,
    FAULTS,
    FORWARD,
    LAYERS,
    LOSS,
    ROWS,
    chain,
    nan_hunt,
)

PLACES = range(1, LAYERS + 1)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", PLACES)
def test_a_nan_of_the_forward_pass_stays_in_its_rows_and_spoils_each_gradient(place, bad):
    found, text = nan_hunt(fault=FORWARD, place=place, bad=bad)
    reached = [100 * bad / ROWS if layer >= place else 0 for layer in PLACES]
    assert found["values"].tolist() == pytest.approx(reached)
    assert found["gradients"].tolist() == [100] * LAYERS
    assert f"name layer {place};" in text
    assert "LogsumexpBackward" in text  # the last operation of the loss whose gradient is one


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", PLACES)
def test_a_nan_of_the_backward_pass_is_seen_by_no_value_and_goes_to_the_front(place, bad):
    found, text = nan_hunt(fault=BACKWARD, place=place, bad=bad)
    assert found["values"].tolist() == [0] * LAYERS
    assert found["gradients"].tolist() == [100 if layer <= place else 0 for layer in PLACES]
    assert "name no layer" in text
    assert "SqrtBackward" in text


@pytest.mark.parametrize("place", PLACES)
def test_a_nan_added_to_the_loss_reaches_nothing(place):
    found, text = nan_hunt(fault=LOSS, place=place, bad=1)
    assert found["values"].tolist() == found["gradients"].tolist() == [0] * LAYERS
    assert text == "Hooks on the way forward name no layer; anomaly mode names nothing."


@pytest.mark.parametrize("fault", FAULTS)
def test_the_generator_stays_and_the_weights_are_the_same_each_time(fault):
    before = torch.get_rng_state()
    one, two = chain(fault, 3, 1), chain(fault, 3, 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))
