"""Instruments for a run of the gallery's program: what they read, and how a run is recorded.

Only `seconds` depends on the clock, and it is only for information.
"""

from __future__ import annotations

import copy
import hashlib
import lzma
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from dlsys_model import faults

STEPS, WINDOW, EVERY = 600, 20, 50  # steps of a run; of a mean; between two readings
LETTERS = 150_000  # of the text
PROMPT = "The loss "
ATEN = torch.ops.aten
# FLOPs of the CPU's attention kernel; torch's counter knows those of CUDA.
ATTENTION = {
    ATEN._scaled_dot_product_flash_attention_for_cpu:
        lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward:
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)}


_LAST = {}  # the last training: its text with its seed, the model, the curves, the generator


class Stopped(Exception):
    """A run that ends early; the text says why."""


class Memory:
    """Bytes that autograd holds for the backward pass: each storage once, the most so far."""

    def __init__(self):
        self.held, self.now, self.most = Counter(), 0, 0
        self.hooks = saved_tensors_hooks(lambda t: Held(self, t), lambda held: held.tensor)

    def take(self, storage: int, size: int) -> None:
        self.now += 0 if self.held[storage] else size
        self.held[storage] += 1
        self.most = max(self.most, self.now)

    def release(self, storage: int, size: int) -> None:
        self.held[storage] -= 1
        self.now -= 0 if self.held[storage] else size


class Held:
    """A tensor kept for backward, counted in a Memory for as long as the graph keeps it."""

    def __init__(self, memory: Memory, tensor: torch.Tensor):
        storage = tensor.untyped_storage()
        # Detached: a node that keeps its own output would keep itself alive.
        self.tensor, self.memory = tensor.detach(), memory
        self.place = storage.data_ptr(), storage.nbytes()
        memory.take(*self.place)

    def __del__(self):
        self.memory.release(*self.place)


class Watch:
    """The object that the program calls: keeps a run's readings and ends it after `last` steps.

    loss, norm: one number a step. validation: the program's own. moved, ratio, work, memory:
    one each EVERY steps: thousands of weights that the step changed; the change's norm over the
    weights'; MFLOP of the step; kilobytes of gradients, optimizer and what autograd held at most.
    """

    def __init__(self, last: int):
        self.last, self.memory = last, Memory()
        self.curves = {name: [] for name in
                       ("loss", "validation", "norm", "moved", "ratio", "work", "memory")}
        self._before, self._counter = [], None

    def step(self, model, optimizer, loss, norm) -> None:
        """Called after an update. Raises Stopped if the loss is not finite, and at the end."""
        self.curves["loss"].append(loss)
        self.curves["norm"].append(norm)
        step = len(self.curves["loss"])
        if self._counter:
            self._read(model, optimizer)
        if (step + 1) % EVERY == 0:
            self._before = [p.detach().clone() for p in model.parameters()]
            self._counter = FlopCounterMode(display=False, custom_mapping=ATTENTION)
            self._counter.__enter__()
        if loss != loss or abs(loss) == float("inf"):
            raise Stopped(f"the loss is {loss} at step {step}")
        if step == self.last < STEPS:
            raise Stopped("")

    def validation(self, value: float) -> None:
        self.curves["validation"].append(value)

    def _read(self, model, optimizer) -> None:
        self._counter.__exit__(None, None, None)
        pairs = list(zip(self._before, model.parameters(), strict=True))
        moved = sum((old != new).sum().item() for old, new in pairs)
        change, size = (sum(t.float().square().sum() for t in tensors).sqrt().item()
                        for tensors in ([new.detach() - old for old, new in pairs],
                                        [old for old, _ in pairs]))
        state = [t for held in optimizer.state.values() for t in held.values() if t.ndim]
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        held = sum(t.nbytes for t in (*state, *grads)) + self.memory.most
        self.memory.most = self.memory.now
        read = {"moved": moved / 1e3, "ratio": change / size, "memory": held / 1e3,
                "work": self._counter.get_total_flops() / 1e6}
        for name, value in read.items():
            self.curves[name].append(value)
        self._counter = None

    def close(self) -> None:
        """End a count that a stopped run left open."""
        if self._counter:
            self._counter.__exit__(None, None, None)


def text() -> str:
    """The text that all runs train on: the first part of the course's frozen prose."""
    whole = lzma.decompress(Path(__file__).with_name("prose.txt.xz").read_bytes())
    return whole[:LETTERS].decode("ascii")


def digest(key: str) -> str:
    """The digest of a run's program and text; a record with another one is stale."""
    return hashlib.sha256((faults.program(key) + text()).encode()).hexdigest()[:12]


def run(key: str, seed: int, last: int = STEPS) -> dict:
    """Run the program with a fault ("healthy" for none) and read all instruments.

    last: stop after this many steps; nothing is delivered then. Returns curves (lists of numbers),
    `ended` ("" for a whole run, else what stopped it), numbers of what is delivered, a sample.
    """
    watch, names = Watch(last), {}
    source = faults.program(key)
    exec(compile(source, f"<gallery: {key}>", "exec"), names)
    if last == STEPS:
        names["train"] = _once(names["train"], (source.partition("# part: use")[0], seed), watch)
    began, threads = time.process_time(), torch.get_num_threads()
    torch.set_num_threads(1)
    found = {"digest": digest(key), "ended": "", "delivered": None, "adapted": None,
             "sample": ""}
    try:
        with watch.memory.hooks, torch.random.fork_rng([]):
            found |= delivered(names, names["main"](text(), STEPS, seed, watch))
    except Stopped as why:
        found["ended"] = str(why)
    except Exception as error:  # the program's own, which is its symptom
        found["ended"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        watch.close()
        torch.set_num_threads(threads)
    return found | {"curves": condensed(watch.curves),
                    "seconds": round(time.process_time() - began, 1)}


def _once(train: Callable, text: tuple, watch: Watch) -> Callable:
    """`train`, or its earlier result for the same text: some faults change only what follows."""
    def trained(*args):
        if text not in _LAST:
            model = train(*args)
            _LAST.clear()
            _LAST[text] = model, watch.curves, torch.get_rng_state()
        model, watch.curves, state = copy.deepcopy(_LAST[text])
        torch.set_rng_state(state)
        return model
    return trained


def delivered(names: dict, made: tuple) -> dict:
    """Loss of both models letter by letter, nats; and what the first one writes."""
    model, loud, tested, loud_tested, numbers = made
    with torch.no_grad():
        losses = [loss_in_use(names, one, rows) for one, rows in
                  ((model, tested), (loud, loud_tested))]
    return {"delivered": significant(losses[0]), "adapted": significant(losses[1]),
            "sample": names["write"](model, PROMPT, numbers, 0)}


def loss_in_use(names: dict, model, rows: torch.Tensor) -> float:
    """The mean loss of the letters of rows and of their END, each predicted from the cache."""
    inputs, labels = rows[:, :-1], rows[:, 1:]
    logits = names["logits_by_letter"](model, inputs).float()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0).item()


def condensed(curves: dict) -> dict:
    """The curves with four digits; loss and norm as means of WINDOW steps."""
    short = {name: [sum(values[i:i + WINDOW]) / len(values[i:i + WINDOW])
                    for i in range(0, len(values), WINDOW)]
             for name, values in curves.items() if name in ("loss", "norm")}
    return {name: [significant(v) for v in short.get(name, values)]
            for name, values in curves.items()}


def significant(value: float, digits: int = 4) -> float | None:
    """The number with `digits` digits; None if it is not finite."""
    return float(f"{value:.{digits}g}") if abs(value) < float("inf") else None
