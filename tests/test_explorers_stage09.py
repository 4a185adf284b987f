"""Stage 9's explorers: bytes against closed forms, tapes against real ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from dlsys_helpers.explorers.tape import STRATEGIES, WIDTH, update
from dlsys_helpers.explorers.train_bytes import shares
from dlsys_helpers.ranks import Ranks


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


# ---- the tape ---------------------------------------------------------------------------------
SIZES = [(1, 1), (3, 2)]  # layers, small batches


def one_update(strategy, layers, batches, width):
    """One update by the named strategy, after a first one that lets DDP order its buckets."""
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
