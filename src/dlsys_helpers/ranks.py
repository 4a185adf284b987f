"""Run a function in several processes that talk over gloo: without a port, within a time limit.

    ranks = Ranks(2)
    ranks.run(train, 0.1, uses=(mlp,))     # a list: what train(0.1) returned on each rank
    ranks.tapes                            # what each rank called meanwhile

The processes start once and take one function after the other, each in its own process group.
They hold the reading end of a pipe: when the session that started them ends, however it ends,
they end too.
"""

from __future__ import annotations

import inspect
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import weakref
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dlsys_helpers.errors import OneLine

START_SECONDS = 180  # two imports of torch on a busy machine
JOINS = 3  # on a busy machine gloo sometimes closes a connection before the ranks are connected
# Names that a function sent to the ranks may use without importing them.
PRELUDE = """
import contextlib, copy
import torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.fsdp import fully_shard
from dlsys_helpers.ranks import digest, watch
"""
NAMES = {"allreduce_": "all_reduce", "allgather_": "all_gather", "broadcast_": "broadcast",
         "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}


class RankFailed(OneLine, RuntimeError):
    """A rank failed, or none answered in time."""


class _NotJoined(RankFailed):
    """The ranks did not connect to each other."""


class Ranks:
    """`world` processes, rank 0 first, each with one thread; they start at the first `run`.

    seconds: the limit of one run, start-up not counted. After a failure all processes are
    ended, and the next run starts new ones.
    """

    def __init__(self, world: int = 2, seconds: float = 60) -> None:
        self.world, self.seconds = world, seconds
        self.processes, self.tapes, self._jobs = [], [], 0

    def run(self, fn: Callable, *given: Any, uses: tuple = ()) -> list[Any]:
        """What `fn(*given)` returned on each rank. Raises RankFailed.

        fn and the functions in `uses` travel as source and know the names of PRELUDE and each
        other. given and results: numbers, texts, tensors, lists, tuples and dicts of them.
        """
        source = "\n".join(textwrap.dedent(inspect.getsource(f)) for f in (*uses, fn))
        job = {"source": source, "name": fn.__name__, "given": given, "seconds": self.seconds}
        for left in reversed(range(JOINS)):
            try:
                if not self.processes:
                    self._start()
                return self._ask(job)
            except _NotJoined:  # the function has not started
                self.close()
                if not left:
                    raise
            except BaseException:  # also KeyboardInterrupt: no process is left running
                self.close()
                raise
        raise AssertionError("the loop returns or raises")

    def close(self) -> None:
        """End and reap the processes; harmless where there are none."""
        if self.processes:
            self._end()
            self.processes = []

    def _ask(self, job: dict[str, Any]) -> list[Any]:
        self._jobs += 1
        torch.save(job, self.folder / f"job{self._jobs}")
        for process in self.processes:
            process.stdin.write(b"%d\n" % self._jobs)
            process.stdin.flush()
        return self._answers(f"out{self._jobs}", self.seconds)

    def _start(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.folder = Path(place.name)
        for rank in range(self.world):
            told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.world),
                    "OMP_NUM_THREADS": "1"}
            with open(self.folder / f"stderr_{rank}", "wb") as err:
                self.processes.append(subprocess.Popen(
                    [sys.executable, "-c", "from dlsys_helpers.ranks import serve; serve()",
                     place.name], env=os.environ | told, stdin=subprocess.PIPE,
                    stdout=err, stderr=err, start_new_session=True))
        self._end = weakref.finalize(self, _end, self.processes, place)
        self._answers("ready", START_SECONDS)

    def _answers(self, name: str, seconds: float) -> list[Any]:
        """The ranks' answers, read from the files of this name once all are written."""
        paths = [self.folder / f"{name}_{rank}" for rank in range(self.world)]
        end = time.monotonic() + seconds
        while not all(path.exists() for path in paths) or self._ended():
            if self._ended():
                time.sleep(0.3)  # wait for the others' last words: the first error is the cause
                raise self._failure(paths)
            if time.monotonic() > end:
                raise RankFailed(f"no answer within {seconds:g} s: {self._where()}. Do all ranks "
                                 "make the same calls in the same order?")
            time.sleep(0.005)
        found = [torch.load(path, weights_only=True) for path in paths]
        if any("error" in answer for answer in found):  # reported by a rank that still runs
            raise self._failure(paths)
        self.tapes = self._tapes()
        return [answer["value"] for answer in found]

    def _ended(self) -> bool:
        return any(process.poll() is not None for process in self.processes)

    def _failure(self, paths: list[Path]) -> RankFailed:
        """The error that says which rank died without an answer, or raised first."""
        said = {rank: torch.load(path, weights_only=True) for rank, path in enumerate(paths)
                if path.exists()}
        for rank, process in enumerate(self.processes):
            if rank not in said and process.poll() is not None:
                last = (self.folder / f"stderr_{rank}").read_text("utf-8", "replace").split("\n")
                words = next((f": {line[:150]}" for line in reversed(last) if line.strip()), "")
                how = _how(process.returncode)
                return RankFailed(f"rank {rank} {how} without an answer{words}")
        errors = [(a["at"], rank, a["error"]) for rank, a in said.items() if "error" in a]
        _, rank, error = min(errors)
        joined = self._tape(rank).exists()  # created once a rank has connected to the others
        return (RankFailed if joined else _NotJoined)(f"rank {rank} raised {error}")

    def _tape(self, rank: int) -> Path:
        return self.folder / f"tape{self._jobs}_{rank}"

    def _tapes(self) -> list[list[tuple]]:
        tapes = map(self._tape, range(self.world))
        return [[tuple(json.loads(line)) for line in tape.read_text().splitlines()]
                if tape.exists() else [] for tape in tapes]

    def _where(self) -> str:
        return "; ".join(f"rank {rank}, calls: {len(tape)}"
                         + (f", the last {tape[-1][0]} of {tape[-1][1]} B" if tape else "")
                         for rank, tape in enumerate(self._tapes()))


def _how(code: int) -> str:
    return f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _end(processes: list[subprocess.Popen], place: tempfile.TemporaryDirectory) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        process.stdin.close()
    place.cleanup()


# ---- in a rank's process

class _Tape(TorchDispatchMode):
    """Records each collective before it runs: name, bytes, digest of the watched model."""

    model = None

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func.name().partition("::")[2].split(".")[0]
            moved = max(map(_bytes, args))
            seen = "" if _Tape.model is None else digest(_Tape.model)
            print(json.dumps([NAMES.get(name, name), moved, seen]), file=self.file)
        return func(*args, **(kwargs or {}))


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0


def watch(model: torch.nn.Module) -> None:
    """From now on, record the digest of this model's parameters on the tape at each call."""
    _Tape.model = model


def digest(model: torch.nn.Module) -> str:
    """Eight characters that change with any bit of the parameters."""
    code = 0
    for parameter in model.parameters():
        # As bytes: numpy has no bfloat16.
        code = zlib.crc32(parameter.detach().reshape(-1).view(torch.uint8).numpy(), code)
    return f"{code:08x}"


def serve() -> None:
    """A rank's main loop: take a job and answer it, until the pipe is closed."""
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    space: dict[str, Any] = {}
    torch.set_num_threads(1)
    exec(PRELUDE, space)
    with _Tape(Path(os.devnull)):
        torch.ones(1)  # the first call under a tape imports a second's worth of modules
    jobs: queue.Queue = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    _answer(folder / f"ready_{rank}", {"value": 0})
    while True:
        number = jobs.get()
        try:
            value = _work(folder, number, rank, dict(space))
        except BaseException as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            _answer(folder / f"out{number}_{rank}",
                    {"error": said + _line(error), "at": time.time()})
            os._exit(1)
        _answer(folder / f"out{number}_{rank}", {"value": value})


def _line(error: BaseException) -> str:
    """The innermost line of the sent function, or "" if the error is not in it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == "<rank>"]
    return f" (in {frames[-1].name})" if frames else ""


def _listen(jobs: queue.Queue) -> None:
    for line in sys.stdin:
        jobs.put(int(line))
    os._exit(0)  # the session is gone, whatever this rank is doing


def _work(folder: Path, number: int, rank: str, space: dict[str, Any]) -> Any:
    import torch.distributed as dist
    job = torch.load(folder / f"job{number}", weights_only=True)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{number}", rank=int(rank),
                            world_size=int(os.environ["WORLD_SIZE"]),
                            timeout=timedelta(seconds=job["seconds"] + 5))
    _Tape.model = None
    with _Tape(folder / f"tape{number}_{rank}"):
        exec(compile(job["source"], "<rank>", "exec"), space)
        value = space[job["name"]](*job["given"])
    dist.destroy_process_group()
    return value


def _answer(path: Path, answer: dict[str, Any]) -> None:
    """Write under another name first, so that a file is complete as soon as it is visible."""
    half = path.with_suffix(".half")
    torch.save(answer, half)
    half.rename(path)
