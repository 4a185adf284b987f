"""Training in separate processes: one that is killed in the middle, and two that match one.

Each gets a `Job` made of numbers, texts and lists, so that it can be sent to a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlsys_helpers.ranks import Ranks
from dlsys_model import parts as parts_module
from dlsys_model import text as texts
from dlsys_model.errors import ModelError
from dlsys_model.network import Network, Shape
from dlsys_model.parts import Parts
from dlsys_model.training import Plan, Training, flat

Job = dict[str, Any]  # "parts": from Parts.origin(); "plan", "shape": what differs from defaults


class ProcessFailed(ModelError):
    """The process ended before it was killed. The message holds its last words."""


def job(parts: Parts, plan: dict, shape: dict, p: float) -> Job:
    """A training as numbers and texts, on as many threads as here. p: dropout.

    A different number of threads sums in a different order, so the last bits differ.
    """
    return {"parts": list(parts.origin()), "plan": plan, "shape": shape, "p": p,
            "threads": torch.get_num_threads()}


def begun(job: Job, rank: int = 0, world: int = 1, all_sum=None) -> Training:
    """The training of a job, at its first step, from its plan's seed."""
    parts = parts_module.load(*job["parts"])
    text, plan = texts.prose(parts.class_numbers), Plan(**job["plan"])
    torch.manual_seed(plan.seed)
    model = Network(Shape(len(text.letters), **job["shape"]), parts, job["p"])
    return Training(model, text, plan, rank, world, all_sum)


# ---- killed in the middle

def killed(job: Job, path: Path, step: int) -> int:
    """Train a job in a process that SIGKILL ends two steps after `step`; returns its exit status.

    The checkpoint of `step` is at path. Raises ProcessFailed if the process ended in any other way.
    """
    command = [sys.executable, "-m", __name__, json.dumps(job), str(path), str(step)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode in (0, 1, 2):
        last = done.stderr.strip().split("\n")[-1][:200]
        raise ProcessFailed(f"the process ended with {done.returncode}: {last}")
    return done.returncode


def main() -> None:
    """Train up to a step, save, go on for two steps, and be killed."""
    told, path, step = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(told["threads"])
    run = begun(told)
    for _ in run.run(step, path):
        pass
    run.one_step()
    run.one_step()
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # no such name on Windows


# ---- two processes

def of_two(ranks: Ranks, job: Job, steps: int) -> list[dict]:
    """A job's first steps on two ranks, half of the rows each: losses and weights of each rank."""
    return ranks.run(_steps_of_rank, job, steps)


def _steps_of_rank(job: Job, steps: int) -> dict:  # travels as source, so it imports
    from dlsys_model.apart import steps_here

    return steps_here(job, steps)


def steps_here(job: Job, steps: int) -> dict:
    """What one rank does, within its process group."""
    run = begun(job, dist().get_rank(), dist().get_world_size(), all_sum)
    for _ in range(steps):
        run.one_step()
    return {"losses": run.losses, "weights": weights(run.model)}


def dist():
    """torch.distributed, which is slow to import."""
    import torch.distributed

    return torch.distributed


def all_sum(tensor: Tensor) -> Tensor:
    """The sum over ranks, in a new tensor."""
    total = tensor.clone()
    dist().all_reduce(total)
    return total


def weights(model: nn.Module) -> Tensor:
    """All weights as one vector."""
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def accumulated(ranks: Ranks, job: Job, every: int) -> tuple[list[Tensor], Tensor]:
    """Two updates of `every` batches with DDP on two ranks, and the same in one process.

    Both from `accumulate` parts: the weights of each rank, and those of one process.
    """
    two = ranks.run(_ddp_of_rank, job, every)
    run = begun(job)
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    for group in range(2):
        batches = [_batch(begun_rank, group * every + n) for begun_rank in
                   (begun(job, 0, 2), begun(job, 1, 2)) for n in range(every)]
        run.parts.accum_step(run.flat.train(), optimizer, [flat(*one) for one in batches])
    return two, weights(run.model)


def _ddp_of_rank(job: Job, every: int) -> Tensor:
    from dlsys_model.apart import ddp_here

    return ddp_here(job, every)


def ddp_here(job: Job, every: int) -> Tensor:
    """What one rank does with DDP: two updates of `every` batches."""
    from torch.nn.parallel import DistributedDataParallel

    run = begun(job, dist().get_rank(), dist().get_world_size())
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    batches = [_batch(run, n) for n in range(2 * every)]
    run.parts.ddp_accum(DistributedDataParallel(run.model), optimizer, _row_loss, batches, every)
    return weights(run.model)


def _batch(run: Training, step: int) -> tuple[Tensor, Tensor]:
    run.step = step
    return run.batch()


def _row_loss(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


if __name__ == "__main__":
    main()
