"""Measuring helpers against sizes and counts worked out by hand."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dlsys_helpers import measure

# ---- FLOPs: a product (m, k) @ (k, n) takes m n k multiplies and as many adds

@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_matrix_product_takes_2_m_n_k(device):
    a, b = torch.ones(3, 5, device=device), torch.ones(5, 7, device=device)
    assert measure.flops(lambda: a @ b) == 2 * 3 * 5 * 7


def test_a_linear_layer_counts_its_product_and_not_its_bias():
    layer, x = nn.Linear(64, 32), torch.ones(8, 64)
    assert measure.flops(lambda: layer(x)) == 2 * 8 * 64 * 32


def test_a_convolution_counts_every_tap():
    image, taps = torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3)
    assert measure.flops(lambda: F.conv2d(image, taps)) == 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)


def test_backward_doubles_the_forward_and_elementwise_counts_nothing():
    w, x = torch.ones(5, 7, requires_grad=True), torch.ones(3, 5, requires_grad=True)
    assert measure.flops(lambda: (x @ w).sum().backward()) == 3 * (2 * 3 * 5 * 7)
    assert measure.flops(lambda: F.gelu(x)) == 0


# ---- bytes that autograd keeps

def test_a_linear_layer_keeps_its_input_only():
    layer, x = nn.Linear(64, 32), torch.ones(8, 64)
    assert measure.saved_bytes(lambda: layer(x), layer.parameters()) == 8 * 64 * 4


def test_without_params_the_weight_is_counted_too():
    layer, x = nn.Linear(64, 32), torch.ones(8, 64, requires_grad=True)
    assert measure.saved_bytes(lambda: layer(x)) == (8 * 64 + 64 * 32) * 4


def test_a_storage_is_counted_once():
    x = torch.ones(8, 64, requires_grad=True)
    assert measure.saved_bytes(lambda: (x * x, x.view(64, 8).exp())) == 2 * 8 * 64 * 4


def test_no_grad_and_bfloat16():
    layer, x = nn.Linear(64, 32).bfloat16(), torch.ones(8, 64).bfloat16()
    assert measure.saved_bytes(lambda: layer(x), layer.parameters()) == 8 * 64 * 2
    with torch.no_grad():
        assert measure.saved_bytes(lambda: layer(x), layer.parameters()) == 0


def test_storages_freed_during_the_call_still_count():
    x = torch.ones(1000, requires_grad=True)

    def twice_and_forget():
        for _ in range(5):
            x.exp()
    assert measure.saved_bytes(twice_and_forget) == 5 * 4000


def test_checkpointing_keeps_the_block_inputs():
    net = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)])

    def forward():
        h = torch.ones(4, 16, requires_grad=True) * 1
        for block in net:
            h = checkpoint(block, h, use_reentrant=False)
        return h
    plain = measure.saved_bytes(lambda: net(torch.ones(4, 16)), net.parameters())
    kept = measure.saved_bytes(forward, net.parameters())
    assert plain == 4 * (4 * 16 * 4)  # the input and three outputs of tanh, shared with Linear
    assert kept == 3 * (4 * 16 * 4)


def test_meta_tensors_have_no_storage_to_count():
    x = torch.ones(4, device="meta", requires_grad=True)
    with pytest.raises(ValueError, match="got meta tensors"):
        measure.saved_bytes(lambda: x.exp())


# ---- orders, bytes written, bytes at the peak

def test_cost_counts_results_and_leaves_views_aside():
    x = torch.empty(1024, device="meta")
    assert measure.cost(lambda: x.exp().view(32, 32).T) == (1, 4096, 4096)
    assert measure.cost(lambda: x.exp().sin().cos()) == (3, 3 * 4096, 2 * 4096)
    assert measure.cost(lambda: [x.exp(), x.sin(), x.cos()]) == (3, 3 * 4096, 3 * 4096)


def test_cost_rounds_as_the_allocator_does_and_forgets_what_was_there():
    x = torch.empty(3)
    assert measure.cost(lambda: x.exp()) == (1, 12, 512)
    assert measure.cost(lambda: x.add_(1)) == (1, 12, 0)
    assert measure.cost(lambda: torch._foreach_add_([x, x.clone()], 1)) == (2, 36, 512)


def test_cost_of_a_backward_pass_follows_the_graph():
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.ReLU())][:-1])
    net, one = net.to("meta"), 128 * 64 * 4
    x = torch.empty(128, 64, device="meta")
    assert measure.cost(lambda: net(x)).peak == 6 * one
    with torch.no_grad():
        assert measure.cost(lambda: net(x)).peak == 2 * one


# ---- torch's operations

def test_operations_count_what_was_asked_for():
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    found = measure.operations(lambda: F.gelu(layer(x)), calls=3)
    assert (found["aten::addmm"], found["aten::gelu"]) == ((3, 0.0), (3, 0.0))


class Profile:
    """A profile with made-up events."""

    def __init__(self, *events):
        self.events, self.activities = events, None

    def __call__(self, activities):
        self.activities = activities
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def key_averages(self):
        return [SimpleNamespace(key=key, count=2, self_device_time_total=us)
                for key, us in self.events]


def test_on_cuda_only_operations_that_ran_a_kernel_count_and_no_annotation(monkeypatch):
    seen = Profile(("aten::mm", 5), ("aten::t", 0), ("Optimizer.step#AdamW.step", 5),
                   ("void at::native::kernel", 5))
    monkeypatch.setattr(measure, "profile", seen)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert measure.operations(lambda: None, device="cuda") == {"aten::mm": (2, 5.0)}
    assert seen.activities == measure.supported_activities()


def test_a_profiler_that_may_not_see_kernels_says_so(monkeypatch):
    monkeypatch.setattr(measure, "profile", Profile(("aten::mm", 0)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with pytest.raises(RuntimeError, match=r"saw no kernel\. CUPTI"):
        measure.operations(lambda: None, device="cuda")


def test_peak_bytes_are_beyond_what_was_there(monkeypatch):
    log = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: log.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 350)
    assert measure.peak_bytes(lambda: log.append("call")) == 250
    assert log == ["reset", "call"]


# ---- time, with a clock that we turn ourselves

def test_cpu_seconds_are_quartiles_of_each_call(monkeypatch):
    spans = [4.0, 8.0, 12.0, 16.0, 20.0]  # of 4 calls each
    ticks = itertools.chain.from_iterable((100.0, 100.0 + span) for span in spans)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    calls = []
    timing = measure.seconds(lambda: calls.append(1), repeats=5, calls=4, warmup=2)
    assert timing == (3.0, 2.0, 4.0)
    assert len(calls) == 2 + 5 * 4


def test_calls_that_are_compared_take_turns(monkeypatch):
    spans = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0]  # a device that slows down
    ticks = itertools.chain.from_iterable((0.0, span) for span in spans)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    calls = []
    one, other = measure.seconds_in_turns([lambda: calls.append(1), lambda: calls.append(2)], 3,
                                          warmup=1)
    assert calls == [1, 2] + [1, 2] * 3
    assert (one, other) == ((2.0, 1.5, 2.5), (20.0, 15.0, 25.0))


def test_cuda_seconds_come_from_synchronised_events(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("event")

        def elapsed_time(self, stop):
            assert log[-1] == "synchronize"
            assert isinstance(stop, Event)
            return 6.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    timing = measure.seconds(lambda: log.append("call"), 2, "cuda", calls=3, warmup=1)
    assert timing == pytest.approx((0.002, 0.002, 0.002))
    sample = ["event", "call", "call", "call", "event"]
    assert log == ["call", "synchronize", *sample, *sample, "synchronize"]


@pytest.mark.parametrize("wrong", [{"repeats": 1}, {"calls": 0}, {"warmup": -1}])
def test_seconds_refuses_too_few(wrong):
    with pytest.raises(ValueError, match="expected at least 2, 1 and 0"):
        measure.seconds(lambda: None, **wrong)
