"""Grade with several processes or machines, through Dask distributed.

A worker gets a notebook's bytes and gives JSON back. A worker that is lost loses nothing: the
scheduler gives its submission to another one. Only trusted processes are in the cluster; a
learner's code has no network.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

from distributed import Client, KilledWorker, LocalCluster, Security, as_completed
from distributed.client import FutureCancelledError

from dlsys_helpers.grading.cohort import Grader, Job, RunError, Settings, failed, versions

AHEAD = 3  # submissions for each worker that are on their way or waiting there
WORKER_MEMORY = "3GiB"
_one_at_a_time = threading.Lock()


@cache
def _grader(settings: Settings) -> Grader:
    return Grader(settings)


def work(settings: Settings, data: bytes) -> dict[str, Any]:
    """In a worker: the result for one notebook, and with which checks it was made."""
    with _one_at_a_time:
        return {**_grader(settings).grade(data), "checks": versions()["checks"]}


def local(settings: Settings, n_workers: int) -> Any:
    """Workers for `grade_all`: processes on this machine, talking through TLS on loopback.

    Without it, any user of the machine could give them work to do.
    """
    def run(jobs: Iterator[Job]) -> Iterator[tuple[Job, dict]]:
        with LocalCluster(n_workers=n_workers, threads_per_worker=1, security=Security.temporary(),
                          dashboard_address=None, memory_limit=WORKER_MEMORY,
                          silence_logs=logging.CRITICAL) as cluster, Client(cluster) as client:
            yield from spread(client, settings, jobs)
    return run


def remote(settings: Settings, address: str, security: Security | None) -> Any:
    """Workers for `grade_all`: those of the scheduler at `address`. Raises RunError."""
    def run(jobs: Iterator[Job]) -> Iterator[tuple[Job, dict]]:
        try:
            client = Client(address, security=security, timeout="20s")
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"scheduler {address}: no answer ({type(error).__name__}). Start one: "
                           "dask scheduler, then dask worker ADDRESS --nthreads 1") from None
        with client:
            yield from spread(client, settings, jobs)
    return run


def spread(client: Client, settings: Settings, jobs: Iterator[Job]) -> Iterator[
        tuple[Job, dict[str, Any]]]:
    """Keep the workers busy, a few submissions ahead; give each result as it comes."""
    waiting: dict[Any, Job] = {}

    def submit(job: Job) -> Any:
        future = client.submit(work, settings, job.data, pure=False)
        waiting[future] = job
        return future

    ahead = AHEAD * max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    queue = as_completed([submit(job) for job in islice(jobs, ahead)])
    for future in queue:
        yield waiting.pop(future), _result(future)
        for job in islice(jobs, 1):
            queue.add(submit(job))


def _result(future: Any) -> dict[str, Any]:
    error = future.exception()
    if isinstance(error, KilledWorker):
        return failed("its workers were lost several times. Grade again with --resume.")
    if isinstance(error, FutureCancelledError):
        raise RunError("the scheduler is gone. Start it again, then grade with --resume.")
    if error is not None:
        raise error
    result = future.result()
    if result.pop("checks") != versions()["checks"]:
        return failed("a worker has other checks than this machine. Install the same version "
                      "there, then grade again with --resume.")
    return result
