"""Processes that talk over gloo: what they return, and what is left when a rank fails."""

import calendar
import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from dlsys_helpers.ranks import RankFailed, Ranks, digest, watch


def twice(x):
    return 2 * x


def summed(x):
    total = twice(x + dist.get_rank())
    dist.all_reduce(total)
    return {"rank": dist.get_rank(), "world": dist.get_world_size(), "total": total}


def one_step():
    torch.manual_seed(0)
    model = DDP(nn.Linear(3, 2))
    watch(model)
    model(torch.ones(1, 3)).sum().backward()
    return digest(model)


def raises():
    if dist.get_rank() == 1:
        raise ValueError("no such digit")
    dist.barrier()


def dies():
    import os
    import signal
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hangs():
    import time
    time.sleep(1000)


def never_joins():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3))
    dist.barrier()


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def ranks():
    pair = Ranks(2, seconds=60)
    yield pair
    pair.close()


def test_results_tapes_and_one_start_for_two_runs(ranks):
    found = ranks.run(summed, torch.ones(2), uses=(twice,))
    assert [(f["rank"], f["world"], f["total"].tolist()) for f in found] == [
        (0, 2, [6.0, 6.0]), (1, 2, [6.0, 6.0])]
    assert ranks.tapes == [[("all_reduce", 8, "")]] * 2
    pids = [process.pid for process in ranks.processes]
    first, second = ranks.run(one_step)
    assert first == second
    assert ranks.tapes[0] == ranks.tapes[1]
    assert ranks.tapes[0][-1] == ("all_reduce", 4 * (3 * 2 + 2), first)
    assert pids == [process.pid for process in ranks.processes]
    ranks.close()
    assert not any(map(running, pids))
    ranks.close()


class Strangers(Ranks):
    """Ranks that fail to meet in their first `starts` starts: the named interface is missing."""

    def __init__(self, starts, monkeypatch):
        super().__init__(2, seconds=60)
        self.starts, self.environment = starts, monkeypatch

    def _start(self):
        with self.environment.context() as now:
            if self.starts:
                now.setenv("GLOO_SOCKET_IFNAME", "none0")
            super()._start()
        self.starts -= 1


def test_ranks_that_did_not_meet_start_once_more(monkeypatch):
    pair = Strangers(1, monkeypatch)
    assert pair.run(calendar.isleap, 2026) == [False, False]
    assert pair.starts == -1
    pair.close()


@pytest.mark.nightly  # three starts
def test_ranks_that_never_meet_say_why_and_leave_no_process(monkeypatch):
    pair = Strangers(9, monkeypatch)
    with pytest.raises(RankFailed, match=r"^rank \d raised RuntimeError: .*none0"):
        pair.run(calendar.isleap, 2026)
    assert (pair.starts, pair.processes) == (6, [])


@pytest.mark.parametrize(("fn", "seconds", "said"), [
    (raises, 60, "rank 1 raised ValueError: no such digit (in raises)"),
    (dies, 60, "rank 1 died by SIGKILL without an answer"),
    pytest.param(hangs, 1, "no answer within 1 s: rank 0, calls: 0; rank 1, calls: 0. Do all ranks "
                 "make the same calls in the same order?", marks=pytest.mark.nightly),
    (never_joins, 2, "no answer within 2 s: rank 0, calls: 1, the last all_reduce of 12 B; rank 1, "
                     "calls: 1, the last barrier of 1 B. Do all ranks make the same calls in the "
                     "same order?"),
], ids=["raises", "dies", "hangs", "never joins"])
def test_a_failure_is_one_line_and_leaves_no_process(ranks, fn, seconds, said):
    ranks.run(calendar.isleap, 2026)  # starts the processes
    pids, ranks.seconds = [process.pid for process in ranks.processes], seconds
    with pytest.raises(RankFailed) as failed:
        ranks.run(fn)
    assert str(failed.value) == said
    assert failed.value._render_traceback_() == [said]
    assert not any(map(running, pids))
    assert ranks.processes == []


SESSION = """
import calendar, os
from dlsys_helpers.ranks import Ranks
ranks = Ranks(2, seconds=200)  # on a machine that is busy
ranks.run(calendar.isleap, 2026)
print(*(process.pid for process in ranks.processes), flush=True)
os._exit(1)
"""


def test_ranks_end_when_their_session_is_killed():
    """They read a pipe that the session holds open."""
    done = subprocess.run([sys.executable, "-c", SESSION], capture_output=True, text=True,
                          timeout=240, check=False)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    for _ in range(200):
        if not any(map(running, pids)):
            break
        time.sleep(0.05)
    assert not any(map(running, pids))


def test_a_function_that_is_not_plain_is_refused_before_anything_starts(ranks):
    with pytest.raises(TypeError, match="module, class, method, function"):
        ranks.run("train")
    assert ranks.processes == []
