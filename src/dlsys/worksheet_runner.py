"""Run a worksheet's cells and checks in a separate process, for `dlsys check`.

One bad cell or answer costs only itself. An error is reported and the next cell runs. A cell
that never ends, or that ends the process, cannot be handled from inside, so the parent starts the
process again without it. This guards against mistakes, not against malice; grading/ does that.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from dlsys import assignments, windows
from dlsys.check_stub import CheckStub
from dlsys.worksheets import Worksheet, WorksheetError
from dlsys_helpers.verdicts import Verdict

START_SECONDS = 180  # importing torch from a cold disk is slow, and is not the learner's doing


@dataclass
class Report:
    """``verdicts``: exercise id to the verdict on it.

    ``cell_errors``: number among the code cells to one line about what stopped it.
    ``left_out``: numbers of the cells that cannot be run in one process with the others.
    """

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    cell_errors: dict[int, str] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)


# ---- the parent: trusts nothing to end

def run(worksheet: Worksheet, limit: float) -> Report:
    """Run the learner's cells, then every check; ``limit`` seconds for each of them.

    Raises WorksheetError when Python itself does not start.
    """
    report = Report()
    while fault := _attempt(worksheet, report, limit):
        kind, key, what = fault
        if kind == "cell":
            report.cell_errors[key] = f"{what}; it was left out"
            report.left_out.add(key)
        elif kind == "check":
            report.verdicts[key] = Verdict("error", key, what)
        else:
            raise WorksheetError(f"Python {what} before the first cell. Run: dlsys doctor")
    return report


def _attempt(worksheet: Worksheet, report: Report, limit: float) -> tuple | None:
    """Run what is left in one process. None if it finished, else the fault: (kind, key, what)."""
    cells = [cell for cell in worksheet.cells if cell[0] not in report.left_out]
    checks = [(e.id, e.function) for e in worksheet.exercises
              if e.id not in report.verdicts]
    job = {"cells": cells, "checks": checks}
    at = ("start", None)
    with _child(job, worksheet) as events:
        for event in read_events(events, limit):
            match event:
                case {"end": True}:
                    return None
                case {"fault": what}:
                    return (*at, what)
                case {"begin": kind, "key": key}:
                    at = (kind, key)
                case {"cell": number, "error": error}:
                    report.cell_errors[number] = error
                case {"check": id, "verdict": verdict}:
                    report.verdicts[id] = Verdict(id=id, **verdict)
    return (*at, "ended")


@contextlib.contextmanager
def _child(job: dict, worksheet: Worksheet) -> Iterator[queue.SimpleQueue]:
    """Start the child; yields a queue of its lines. On exit, kills it with all it has started."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], cwd=worksheet.path.absolute().parent,
        # UTF-8, as in a notebook: on Windows a file or a pipe has another encoding.
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    heard: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=queue_lines, args=(process.stdout, heard), daemon=True).start()
    try:
        with contextlib.suppress(OSError):  # it died at once: the queue then ends
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        yield heard
    finally:
        end_tree(process)
        with contextlib.suppress(OSError):
            process.stdin.close()


def queue_lines(events: IO[bytes], heard: queue.SimpleQueue) -> None:
    """The reader thread: put each line into the queue, and None at the end of the stream."""
    with events:
        for line in events:
            heard.put(line)
    heard.put(None)


def end_tree(process: subprocess.Popen) -> None:
    """End the process, and what it has begun."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(PermissionError):  # macOS, of a group that has ended
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        with contextlib.suppress(OSError):
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)],
                           capture_output=True, check=False)
    process.kill()
    process.wait()


def read_events(heard: queue.SimpleQueue, limit: float) -> Iterator[dict]:
    """The child's events; a last {"fault": ...} when one is late or the child is gone."""
    patience = START_SECONDS
    deadline = time.monotonic() + patience
    while True:
        try:
            line = _wait(heard, deadline)
        except queue.Empty:
            late = (f"ran longer than {patience:g} s; is there a loop that never ends? On a busy "
                    f"machine, give it more time: --limit {4 * patience:g}")
            yield {"fault": late}
            return
        if line is None or not line.endswith(b"\n"):
            yield {"fault": "ended the Python process"}
            return
        if line.startswith(b"{"):  # else what a start-up file of this Python printed
            yield json.loads(line)
            patience = limit
            deadline = time.monotonic() + patience


def _wait(heard: queue.SimpleQueue, deadline: float) -> bytes | None:
    """The next line, in short waits: on Windows Ctrl-C stops none. Raises queue.Empty."""
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            return heard.get(timeout=min(left, 0.5))
    return heard.get_nowait()


# ---- the child: runs the learner's code

def child() -> None:
    """Read the job, run it, report each step as a line of JSON."""
    job_pipe, events = _own_pipes()
    job = json.loads(job_pipe.readline())
    # Exit when the pipe closes: the parent has ended, however it ended.
    threading.Thread(target=lambda: job_pipe.read() or os._exit(1), daemon=True).start()

    def tell(**event) -> None:
        events.write(json.dumps(event) + "\n")

    import dlsys_helpers
    from dlsys_checks import checking  # slow, so before the first cell's time begins

    checked: dict[str, Any] = {}
    told = CheckStub()
    told.tell = checked.__setitem__
    checking.check = dlsys_helpers.check = told
    shell = _shell()
    for number, source in job["cells"]:
        tell(begin="cell", key=number)
        if error := _cell_error(shell, source):
            tell(cell=number, error=error)
    for id, function in job["checks"]:
        tell(begin="check", key=id)
        named = shell.user_ns.get(function)
        verdict = verdict_on_last(checking, id, function, checked.get(id, named), named)
        tell(check=id, verdict=verdict)
    tell(end=True)
    os._exit(0)  # a learner's thread that never ends must not keep us


def _own_pipes() -> tuple[IO[str], IO[str]]:
    """Duplicate stdin and stdout for the protocol, then point both at /dev/null for the cells."""
    sys.stdout.flush()
    pipes = (os.fdopen(os.dup(0), encoding="utf-8"),
             os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8"))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    pipes[1].write("\n")  # ends what a start-up file may have printed
    return pipes


def _shell():
    """IPython without a terminal: magics, display and top-level await work as in a notebook."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        def enable_gui(self, gui=None) -> None:
            """Nothing to enable: `%matplotlib inline` asks for it, and figures go nowhere."""

    return Shell.instance(config=Config({"HistoryManager": {"enabled": False}}))


def _cell_error(shell, source: str) -> str | None:
    """What stopped the cell, in one line, or None."""
    from dlsys_helpers.acting import learner_frame

    result = shell.run_cell(source)
    error = result.error_before_exec or result.error_in_exec
    if error is None:
        return None
    text = " ".join(str(error).split())[:200]
    where = f" ({frame})" if (frame := learner_frame(error)) else ""
    return f"{type(error).__name__}: {text}{where}"


def verdict_on_last(checking, id: str, function: str, checked: Any, named: Any) -> dict:
    """The verdict on the function checked last; if it fails, the one with the name may pass."""
    if why := windows.cannot_check(id):
        return {"status": "error", "message": why}
    if checked is None:
        return {"status": "missing",
                "message": f"{function} is not defined after all cells have run."}
    seeds = checking.drawn_seeds()
    run_check = assignments.checks(id).run_check
    verdict = run_check(id, checked, seeds)
    if verdict.status != "pass" and named is not None and named is not checked:
        other = run_check(id, named, seeds)
        verdict = other if other.status == "pass" else verdict
    told = ("status", "message", "misconception", "trap", "law", "case")
    return {key: getattr(verdict, key) for key in told}


if __name__ == "__main__":
    child()
