"""Stage 9's explorer of tapes: each strategy's calls against those that two ranks really make."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from dlsys_helpers.explorers.tape import KINDS, LAYER, MOST, STRATEGIES, WIDTH, tape, update
from dlsys_helpers.ranks import Ranks

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
