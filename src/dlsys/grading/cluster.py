"""Grade with several processes or machines, through Dask distributed.

A worker receives a notebook's bytes and returns JSON. If a worker is lost, the scheduler gives its
submission to a different one. Only trusted processes are in the cluster: a learner's code has no
network.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import cache
from itertools import islice
from multiprocessing import resource_tracker
from typing import Any

import dask
from distributed import Client, KilledWorker, LocalCluster, Security, as_completed
from distributed.client import FutureCancelledError
from distributed.comm.core import CommClosedError

from dlsys.grading.books.journal import versions
from dlsys.grading.books.run_folder import RunError
from dlsys.grading.cohort import Grader, Job, Workers, failed
from dlsys.grading.options import TlsFiles
from dlsys.grading.settings import Settings

AHEAD = 3  # submissions for each worker, in transit or waiting there
WORKER_MEMORY = "3GiB"
ANY_PORT = "127.0.0.1:0"  # without it Dask listens at 8787, which other programs use
WAIT_SECONDS = 60  # for the first worker of a cluster
RESTART_SECONDS = 10  # for a worker to restart
# Dask serves no pages about the cluster: any user of the machine could read them. A submission that
# has ended two workers is not given to a third.
_CONFIG: dict[str, Any] = {
    "distributed.scheduler.http.routes": [], "distributed.worker.http.routes": [],
    "distributed.scheduler.allowed-failures": 1}
_one_at_a_time = threading.Lock()


@cache
def _grader(settings: Settings) -> Grader:
    return Grader(settings)


def work(settings: Settings, data: bytes, draw: int, is_parts: bool) -> dict[str, Any]:
    """The result for one notebook, made in a worker, with the digest of that worker's checks."""
    with _one_at_a_time:
        return {**_grader(settings).grade(data, draw, is_parts), "checks": versions()["checks"]}


def local(settings: Settings, n_workers: int) -> Workers:
    """Workers for `grade_all`: processes on this machine, talking through TLS on loopback.

    Without TLS, any user of the machine could send jobs to the workers.
    """
    def run(jobs: Iterator[Job]) -> Iterator[tuple[Job, dict]]:
        with (tempfile.TemporaryDirectory(prefix="dlsys-grade-", ignore_cleanup_errors=True) as dir,
              dask.config.set({"temporary-directory": dir, **_CONFIG})):
            with _deaf_to_ctrl_c():
                cluster = LocalCluster(
                    n_workers=n_workers, threads_per_worker=1, security=Security.temporary(),
                    dashboard_address=ANY_PORT, memory_limit=WORKER_MEMORY, local_directory=dir,
                    silence_logs=logging.CRITICAL)
            with cluster, Client(cluster) as client:
                yield from spread(client, settings, jobs)
                wait_for_restarts(client, n_workers)
    return run


def wait_for_restarts(client: Client, n_workers: int) -> None:
    """Wait for restarting workers, because Dask fails to close one that has no process."""
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(n_workers, timeout=RESTART_SECONDS)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Start processes and threads that never see a Ctrl-C: only this process ends them."""
    resource_tracker.ensure_running()  # if it started later, it would lift the block again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def remote(settings: Settings, address: str, tls: TlsFiles) -> Workers:
    """The workers of the Dask scheduler at `address`, for `grade_all`. Raises RunError."""
    security = _security(address, tls)

    def run(jobs: Iterator[Job]) -> Iterator[tuple[Job, dict]]:
        try:
            client = Client(address, security=security, timeout="20s")
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"scheduler {address}: no answer ({type(error).__name__}). Start one: "
                           "dask scheduler, then dask worker ADDRESS --nthreads 1") from None
        with client:
            try:
                client.wait_for_workers(1, timeout=WAIT_SECONDS)
            except TimeoutError:
                raise RunError(f"scheduler {address}: has no worker, after {WAIT_SECONDS} s. Start "
                               "one: dask worker ADDRESS --nthreads 1") from None
            yield from spread(client, settings, jobs)
    return run


def _security(address: str, tls: TlsFiles) -> Security | None:
    if not address.startswith("tls://"):
        return None
    if not (tls.ca and tls.cert and tls.key):
        raise RunError(f"{address}: give --tls-ca, --tls-cert and --tls-key.")
    return Security(tls_ca_file=str(tls.ca), tls_client_cert=str(tls.cert),
                    tls_client_key=str(tls.key), require_encryption=True)


def spread(client: Client, settings: Settings, jobs: Iterator[Job]) -> Iterator[
        tuple[Job, dict[str, Any]]]:
    """Keep the workers busy, a few submissions ahead; yield each result as it arrives.

    A submission that was lost with its worker may only have been waiting there when another one
    ended the worker. So it is graded again at the end, alone.
    """
    waiting: dict[Any, Job] = {}
    lost: list[Job] = []

    def submit(job: Job) -> Any:
        future = client.submit(work, settings, job.data, job.draw, job.submission.is_parts,
                               pure=False)
        waiting[future] = job
        return future

    ahead = AHEAD * max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    queue = as_completed([submit(job) for job in islice(jobs, ahead)])
    for future in queue:
        job = waiting.pop(future)
        try:
            result = result_of(future)
        except KilledWorker:
            lost.append(job)
        else:
            yield job, result
        for job in islice(jobs, 1):
            queue.add(submit(job))
    for job in lost:
        try:
            result = result_of(submit(job))
        except KilledWorker:
            result = failed("the process that graded it was killed each time (out of memory?). "
                            "Look at it by hand; --resume tries it again.")
        yield job, result


def result_of(future: Any) -> dict[str, Any]:
    """The result that a worker sent. Raises KilledWorker; RunError if the scheduler is gone."""
    try:
        result = future.result()
    except (FutureCancelledError, CancelledError, CommClosedError):
        raise RunError("the scheduler is gone. Start it again, then grade with --resume.") from None
    if result.pop("checks") != versions()["checks"]:
        return failed("a worker has different checks from this machine. Install the same version "
                      "there, then grade again with --resume.")
    return result
