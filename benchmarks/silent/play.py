"""Put a case to a baseline, or to an adapter in its own process, and read the answer."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.silent.score import Answer, read
from dlsys_helpers.errors import UserError

SECONDS = 600  # for one case
MESSAGES = 200  # from an adapter, for one case
LONGEST = 1_000_000  # characters of a message
Decide = Callable[[dict[str, Any], Callable[[str], dict]], dict]


class NoAnswerError(Exception):
    """The adapter gave no answer to a case: it ended, was stopped or did not come to one. Other
    than an unreadable answer, this is not kept, so the case is asked again.
    """


class Purse:
    """Sells the measurements of a case's probes by name; each is paid for once."""

    def __init__(self, probes: dict[str, dict[str, float]], prices: dict[str, int]) -> None:
        self.probes, self.prices, self.bought = probes, prices, set()

    @property
    def paid(self) -> int:
        return sum(self.prices[name] for name in self.bought)

    def buy(self, name: Any) -> dict[str, Any]:
        if not isinstance(name, str) or name not in self.probes:
            return {"refused": f"probe: got {str(name)[:40]!r}, expected one of "
                               f"{', '.join(self.probes) or 'none: this form has no probes'}."}
        self.bought.add(name)
        return {"numbers": self.probes[name], "paid": self.paid}


def in_process(decide: Decide, case: dict, probes: dict) -> Answer:
    """The answer of a baseline."""
    purse = Purse(probes, case.get("probes", {}))
    said = decide(case, purse.buy)
    return read(said, purse.paid)


def by_command(command: str, case: dict, probes: dict, seconds: float = SECONDS) -> Answer:
    """The answer of an adapter, which begins in an empty folder. Nothing isolates it.

    Raises UserError if it cannot be started, NoAnswerError if it gives no answer.
    """
    purse, argv = Purse(probes, case.get("probes", {})), words(command)
    with tempfile.TemporaryDirectory(prefix="silent_", ignore_cleanup_errors=True) as folder:
        try:
            process = subprocess.Popen(
                argv, cwd=folder, text=True, encoding="utf-8", errors="replace",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        except (OSError, ValueError) as error:
            raise UserError(f"adapter: {command!r} cannot be started: {error}. Give a command "
                            "such as 'python /home/you/my_adapter.py'.") from None
        late = threading.Event()
        timer = threading.Timer(seconds, lambda: (late.set(), _kill(process)))
        timer.start()
        try:
            said = _talk(process, case, purse)
        except NoAnswerError as error:
            raise NoAnswerError(f"no answer after {seconds:g} s" if late.is_set() else
                                f"{error}{_ended(process)}") from None
        finally:
            timer.cancel()
            _end(process)
    return read(said, purse.paid)


def _kill(process: subprocess.Popen) -> None:
    """Stop an adapter and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen) -> None:
    _kill(process)
    process.wait()
    for end in (process.stdin, process.stdout):
        with contextlib.suppress(BrokenPipeError):
            end.close()


def _ended(process: subprocess.Popen) -> str:
    """How an adapter ended that has closed its output; "" if it has not ended."""
    try:
        code = process.wait(2)
    except subprocess.TimeoutExpired:
        return ""
    return f" (exit code {code})"


def words(command: str) -> list[str]:
    """The command's words, with absolute file names, because it runs in another folder."""
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise UserError(f"adapter: {command!r} is no command: {error}.") from None
    if not found:
        raise UserError("adapter: got an empty command, expected one such as "
                        "'python my_adapter.py'.")
    for word in found:
        if word.endswith(".py") and not Path(word).is_file():
            raise UserError(f"adapter: there is no file {word!r} here ({Path.cwd()}).")
    return [str(Path(word).absolute()) if "." in word and Path(word).is_file() else word
            for word in found]


def _talk(process: subprocess.Popen, case: dict, purse: Purse) -> Any:
    """The last message of an adapter, after its probes; text if it is no JSON. Whether the adapter
    has read the case does not matter.
    """
    _tell(process, case)
    for _ in range(MESSAGES):
        line = process.stdout.readline(LONGEST + 1)
        if not line:
            raise NoAnswerError("the adapter ended without an answer")
        if len(line) > LONGEST:
            raise NoAnswerError(f"a message of more than {LONGEST:,} characters")
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            return line
        if not (isinstance(said, dict) and "probe" in said):
            return said
        _tell(process, purse.buy(said["probe"]))
    raise NoAnswerError(f"{MESSAGES} messages, and none is an answer")


def _tell(process: subprocess.Popen, message: dict) -> None:
    with contextlib.suppress(BrokenPipeError):  # it ended, or closed its input
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
