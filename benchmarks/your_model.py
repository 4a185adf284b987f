"""Compare training with the learner's own parts to torch's, side by side, with the memory.

Own parts are the worked answers. Torch's are a plain loop with torch.optim.AdamW and
F.scaled_dot_product_attention, not just the stand-ins, which run in the same framework.
"""

import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import paths
from dlsys_model import text as texts
from dlsys_model.network import Network, Shape
from dlsys_model.part_table import BY_ID
from dlsys_model.parts import Parts, load
from dlsys_model.training import Plan, Training

ROUNDS, STEPS = 8, 5


def own_step(parts: Parts, text: texts.Text):
    """A function that makes one step with these parts."""
    torch.manual_seed(0)
    return Training(Network(Shape(len(text.letters)), parts), text, Plan()).one_step


def torchs_step(text: texts.Text):
    """A function that makes one step of a torch-only loop, on the same rows."""
    torch.manual_seed(0)
    run = Training(Network(Shape(len(text.letters)), Parts()), text, Plan())
    optimizer = torch.optim.AdamW(Parts().decay_groups(run.model, 0.1), lr=1e-3,
                                  betas=(0.9, 0.95))

    def step() -> None:
        x, y = run.batch()
        optimizer.zero_grad()
        F.cross_entropy(run.model.train()(x).flatten(0, 1), y.flatten()).backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        optimizer.step()
        run.step += 1
    return step


def cpu_seconds(step) -> float:
    """CPU seconds of a step, over STEPS of them."""
    began = time.process_time()
    for _ in range(STEPS):
        step()
    return (time.process_time() - began) / STEPS


def rows() -> list[list]:
    """Each way's CPU seconds per step, their ratio to torch's, and the process's memory.

    They take turns, so that other load on the machine affects all alike.
    """
    torch.set_num_threads(1)
    text = texts.prose()
    steps = {"own parts": own_step(load(paths.SOLUTIONS, BY_ID), text),
             "stand-ins": own_step(Parts(), text), "torch alone": torchs_step(text)}
    for step in steps.values():
        step()
    seen = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            seen[name].append(cpu_seconds(step))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB
    return [[name, statistics.median(all_),
             statistics.median(a / b for a, b in zip(all_, seen["torch alone"], strict=True)),
             memory] for name, all_ in seen.items()]
