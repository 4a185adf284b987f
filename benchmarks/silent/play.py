"""Put a case to a baseline, or to an adapter in its own process, and read the answer."""

from __future__ import annotations

import json
import shlex
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
Decide = Callable[[dict[str, Any], Callable[[str], dict]], dict]


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
    """The answer of an adapter, which runs in an empty folder.

    Raises UserError if it cannot be started. If it ends or takes too long, it has no answer.
    """
    purse, said = Purse(probes, case.get("probes", {})), None
    with tempfile.TemporaryDirectory(prefix="silent_") as folder:
        try:
            process = subprocess.Popen(words(command), cwd=folder, text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except (OSError, ValueError) as error:
            raise UserError(f"adapter: {command!r} cannot be started: {error}. Give a command "
                            "such as 'python /home/you/my_adapter.py'.") from None
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            said = _talk(process, case, purse)
        except BrokenPipeError:
            pass  # the adapter ended without reading
        finally:
            timer.cancel()
            process.kill()
            process.communicate()
    return read(said, purse.paid)


def words(command: str) -> list[str]:
    """The command's words, with absolute file names, because it runs in another folder."""
    return [str(Path(word).absolute()) if "." in word and Path(word).is_file() else word
            for word in shlex.split(command)]


def _talk(process: subprocess.Popen, case: dict, purse: Purse) -> Any:
    """The last message of an adapter, after its probes; None if it ends without one."""
    _tell(process, case)
    for _ in range(MESSAGES):
        try:
            said = json.loads(process.stdout.readline())
        except ValueError:
            return None
        if not (isinstance(said, dict) and "probe" in said):
            return said
        _tell(process, purse.buy(said["probe"]))
    return None


def _tell(process: subprocess.Popen, message: dict) -> None:
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
