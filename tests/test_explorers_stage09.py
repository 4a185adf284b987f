"""Stage 9's explorers: loss scale and bytes against closed forms, tapes against real ranks."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from dlsys_helpers.explorers.loss_scale import LARGEST, STEPS, loss_scale, lost, run
from dlsys_helpers.explorers.tape import KINDS, LAYER, MOST, STRATEGIES, WIDTH, tape, update
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
from dlsys_helpers.ranks import Ranks

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


# ---- the tape ---------------------------------------------------------------------------------
SIZES = [(1, 1), (3, 2)]  # layers, small batches


def one_update(strategy, layers, batches, width):
    """One update as the strategy's name says, behind one that lets DDP sort its buckets."""
    net = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
    x = torch.ones(2, width)
    if strategy.startswith("fully_shard"):
        for layer in net if "each" in strategy else ():
            fully_shard(layer, reshard_after_forward="kept" not in strategy)
        net = fully_shard(net)
    else:
        net = DDP(net, bucket_cap_mb=100)
    for turn in range(2):
        dist.barrier()
        for k in range(batches):
            quiet = "no_sync" in strategy and k < batches - 1
            context = net.no_sync() if quiet else contextlib.nullcontext()  # noqa: F821
            if "holds forward" in strategy:
                with context:
                    net(x).sum().backward()
            else:
                loss = (net.module if "past" in strategy and turn else net)(x).sum()
                with context:
                    loss.backward()


@pytest.fixture(scope="module")
def ranks():
    pair = Ranks(2)
    yield pair
    pair.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_tape_is_that_of_two_ranks(ranks, strategy):
    for layers, batches in SIZES:
        ranks.run(one_update, strategy, layers, batches, WIDTH)
        for lines in ranks.tapes:
            calls = [(name, size) for name, size, _ in lines]
            second = calls[len(calls) - calls[::-1].index(("barrier", 1)):]
            real = [call for call in second if call[0] != "broadcast"]  # DDP's order of buckets
            assert real == update(strategy, layers, batches), (strategy, layers, batches)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_curves_and_bars_tell_the_same_bytes(strategy):
    for layers in (1, 6):
        arrays, sentence = tape(strategy=strategy, layers=layers, batches=4)
        calls = update(strategy, layers, 4)
        moved = (sum(size for _, size in calls) + 4) / 1e6  # and the loss
        assert len(calls) + 1 <= MOST
        assert arrays["rank0"][-1] == pytest.approx(moved) == pytest.approx(sum(arrays["kinds"]))
        np.testing.assert_array_equal(arrays["rank0"], arrays["rank1"])
        assert "Both tapes agree." in sentence


def test_ranks_that_run_other_scripts_hang_in_the_call_that_one_never_makes():
    arrays, sentence = tape(strategy="DDP", layers=2, batches=1,
                            script="rank 0 alone reduces its loss")
    assert arrays["rank0"][-1] - arrays["rank1"][-1] == pytest.approx(4e-6)
    assert "2 calls on rank 0, 1 on rank 1" in sentence
    assert sentence.endswith("Rank 0 waits in call 2, which rank 1 never makes: a hang.")


def test_sharding_each_layer_gathers_twice_what_one_piece_does():
    def totals(strategy):
        arrays, _ = tape(strategy=strategy, layers=4, batches=1)
        return dict(zip(KINDS, arrays["kinds"], strict=True))
    whole = 4 * LAYER / 1e6
    assert totals("fully_shard each layer")["all_gather"] == pytest.approx(2 * whole)
    assert totals("fully_shard the root alone")["all_gather"] == pytest.approx(whole)
    assert totals("DDP")["all_reduce"] == pytest.approx(whole + 4e-6)
