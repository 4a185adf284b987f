"""Record the timeline for lesson 15: two ranks, four steps, batches of uneven length.

    .venv/bin/python -m tools.timeline

It takes half a minute and writes src/dlsys_helpers/two_ranks.json. The lesson reads the file and
measures no time itself. On a busy machine take the quietest of several sessions: if a rank does not
run as soon as its data arrives, transfers look long.
"""

import json
import platform
from datetime import date
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function

from dlsys_helpers.timelines import PATH

TOKENS = ((768, 64, 512, 64), (64, 512, 64, 768))  # in each rank's batches; the totals are equal
RUNS = 60  # repetitions of the four steps in a session; we keep the shortest
KEPT = {"forward", "backward", "update", "aten::addmm", "aten::mm"}


def train(model, opt, tokens):
    """Make a step for each number of tokens, with gradients averaged over the ranks."""
    params = list(model.parameters())
    for n in tokens:
        x = torch.randn(n, 256)
        with record_function("forward"):
            loss = F.mse_loss(model(x), x)
        with record_function("backward"):
            opt.zero_grad()
            loss.backward()
            flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat)
        with record_function("update"):
            for p, grad in zip(params, flat.split([p.numel() for p in params]), strict=True):
                p.grad.copy_(grad.view_as(p) / dist.get_world_size())
            opt.step()


def rank_of(rank, folder):
    """Run all steps of one rank, and write their events as (name, start, end) in ns."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=len(TOKENS))
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
                            for _ in range(2)])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, opt, (64, 1024, 64))  # warm up, because the first steps are slower
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        train(model, opt, RUNS * TOKENS[rank])
    begin = seen.profiler.kineto_results.trace_start_ns()  # one clock for both processes
    events = [(e.name, *(begin + int(1000 * t) for t in (e.time_range.start, e.time_range.end)))
              for e in seen.events()]
    Path(folder, f"{rank}.json").write_text(json.dumps(events), "utf-8")
    dist.destroy_process_group()


def bars_of(rank, events):
    """A rank's events that we keep, a list for each run: [rank, lane, name, start, end]."""
    steps = len(TOKENS[rank])
    runs, step = [[] for _ in range(RUNS)], -1
    for name, start, end in sorted(events, key=lambda e: (e[1], -e[2])):
        step += name == "forward"
        if name == "gloo:all_reduce":
            bar = ["network", f"all_reduce {step % steps}"]
        elif name in KEPT:
            bar = ["compute", name.removeprefix("aten::")]
        else:
            continue
        runs[step // steps].append([rank, *bar, start, end])
    return runs


def from_zero(rows):
    """The same bars, in whole us since the first start."""
    first = min(start for *_, start, _ in rows)
    return [[*who, round((start - first) / 1000), round((end - first) / 1000)]
            for *who, start, end in rows]


def length(rows):
    return max(end for *_, end in rows)


def main():
    with TemporaryDirectory() as folder:
        mp.spawn(rank_of, (folder,), len(TOKENS))
        found = [json.loads(Path(folder, f"{rank}.json").read_text("utf-8"))
                 for rank in range(len(TOKENS))]
    ranks = [bars_of(rank, events) for rank, events in enumerate(found)]
    runs = sorted((from_zero([*chain(*bars)]) for bars in zip(*ranks, strict=True)), key=length)
    best = runs[0]  # the run that other processes disturbed least
    made = {"command": "python -m tools.timeline", "date": f"{date.today()}",
            "torch": torch.__version__, "python": platform.python_version(),
            "machine": f"{platform.system()}, {platform.machine()}", "backend": "gloo",
            "threads": 1, "tokens": TOKENS, "unit": "us", "kept": f"the shortest of {RUNS} runs"}
    lines = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in best)
    PATH.write_text(f'{{"made": {json.dumps(made)},\n "events": [\n{lines}]}}\n', "utf-8")
    print(f"{PATH.name}: {len(best)} events; ms of all runs: "
          f"{', '.join(f'{length(run) / 1000:.0f}' for run in runs)}")


if __name__ == "__main__":
    main()
