"""Stage 9's explorers against closed forms: the loss scale, and bytes on each GPU."""

import itertools
import math

import pytest
import torch
from torch import nn

from dlsys_helpers.explorers.loss_scale import LARGEST, STEPS, loss_scale, lost, run
from dlsys_helpers.explorers.train_bytes import (
    CARD,
    GPUS,
    LAYOUTS,
    SPLITS,
    fewest,
    gigabytes,
    shares,
    train_bytes,
)

# ---- the loss scale ---------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "largest"), [*itertools.product((8, 16, 24), (-8, 0, 8))])
def test_the_scale_is_halved_until_the_largest_gradient_fits(start, largest):
    scales, skipped = run(start, 1000, largest)
    over = max(0, start + largest - 15)  # 2 ** 15 fits, 2 ** 16 does not
    assert skipped == [True] * over + [False] * (STEPS - over)
    assert scales[-1] == 2.0 ** (start - over)


@pytest.mark.parametrize("interval", [5, 20])
def test_a_scale_that_fits_doubles_until_it_does_not(interval):
    scales, skipped = run(4, interval, 0)
    for k, gone in enumerate(skipped):
        assert gone == (scales[k] > LARGEST)
    assert scales[interval - 1] == 2**4
    assert scales[interval] == 2**5
    most = max(scales)
    assert most <= 2**16


def test_the_share_lost_is_that_below_half_the_smallest_number():
    smallest = 2.0**-24
    for largest, scale in ((0, 1.0), (-8, 1.0), (-8, 2.0**16)):
        span = max(0.0, 40 - math.log2(2.0**largest * scale / (smallest / 2)))
        assert lost(scale, largest) == pytest.approx(span / 40, abs=0.02)


def test_the_sentence_counts_the_steps_that_are_lost():
    _, sentence = loss_scale(start=24, largest=4, interval=1000)
    assert sentence.startswith("13 of 120 steps are skipped, 13 of them at the start.")


# ---- bytes on each GPU ------------------------------------------------------------------------
@pytest.mark.parametrize(("layout", "dtype", "master"), [
    ("float32 or autocast", torch.float32, False), ("all in bfloat16", torch.bfloat16, False),
    ("16 bits with masters", torch.bfloat16, True)])
def test_one_gpu_holds_what_a_step_of_adamw_leaves(layout, dtype, master):
    model = nn.Linear(30, 20).to(dtype)
    held = [p.detach().float() if master else p for p in model.parameters()]
    opt = torch.optim.AdamW(held)
    model(torch.ones(2, 30, dtype=dtype)).sum().backward()
    for p, h in zip(model.parameters(), held, strict=True):
        h.grad = p.grad.to(h.dtype)
    opt.step()
    moments = [v for state in opt.state.values() for k, v in state.items() if k != "step"]
    parts = [model.parameters(), (p.grad for p in model.parameters()), held if master else [],
             moments]
    assert shares(layout, "nothing", 8) == [sum(t.nbytes for t in part) / 620 for part in parts]


def test_what_is_split_is_whole_on_all_gpus_together():
    for layout, split, gpus in itertools.product(LAYOUTS, SPLITS, GPUS):
        whole = LAYOUTS[layout]
        for part, share in enumerate(shares(layout, split, gpus)):
            assert share * (gpus if part in SPLITS[split] else 1) == whole[part]


def test_the_numbers_of_the_lesson():
    assert gigabytes(7, "16 bits with masters", "masters and moments", 8) == 38.5
    assert gigabytes(7, "16 bits with masters", "weights too", 8) == 14
    assert fewest(7, "16 bits with masters", "nothing") is None
    assert gigabytes(7, "16 bits with masters", "weights too", 2) < CARD
    assert fewest(7, "16 bits with masters", "weights too") == 2


def test_the_sentence_says_what_each_gpu_holds():
    _, sentence = train_bytes(billions=7, layout="16 bits with masters",
                                 split="weights too", gpus=8)
    assert "14 GB on each of 8 GPUs; 2 GPUs of 80 GB are the fewest" in sentence
