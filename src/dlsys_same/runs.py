"""Run the programs of a pair, each in its own process, and read what they recorded."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from dlsys_same.compare import Result, compare, epsilon
from dlsys_same.pairs import Pair, SameError, words

HOOK = Path(__file__).parent / "hook"
LAST = 12       # lines shown of a program that failed


def run(command: str, pair: Pair, after: int = 0, rounding: float = 0.0) -> list[dict]:
    """The records of all ranks of one run.

    Raises SameError if the program fails, takes too long, or makes no step.
    """
    with tempfile.TemporaryDirectory(prefix="dlsys_same_") as folder:
        asked = {"folder": folder, "steps": pair.steps, "after": after, "rounding": rounding,
                 "whole": pair.whole}
        path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")]))
        env = {"PYTHONHASHSEED": "0", **os.environ, "DLSYS_SAME": json.dumps(asked),
               "PYTHONPATH": path}
        told, status = finished(words(command), env, pair)
        files = sorted(Path(folder).glob("rank*.pt"), key=lambda f: int(f.stem[4:]))
        records = [torch.load(file) for file in files]
    if status and not records:
        raise SameError(f"`{command}` ended with status {status} before a model was "
                        f"called:\n{told}")
    if not records:
        raise SameError(f"`{command}` ended without calling a model: no tensor was recorded. Give "
                        "a program that trains, or that evaluates.")
    if status and records[0]["done"] < after + pair.steps:
        raise SameError(f"`{command}` ended with status {status} after {records[0]['done']} "
                        f"optimizer steps:\n{told}")
    return records


def finished(command: list[str], env: dict, pair: Pair) -> tuple[str, int]:
    """The last lines that a program printed, and its exit status."""
    try:
        process = subprocess.Popen(command, env=env, cwd=pair.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   start_new_session=True)
    except OSError as error:
        raise SameError(f"{command[0]} cannot be run: {error.strerror}. Give the file of a script, "
                        "or a command that your shell finds.") from None
    try:
        printed, _ = process.communicate(timeout=pair.limit)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise SameError(f"`{shlex.join(command)}` took longer than {pair.limit:g} s. Ask for fewer "
                        "steps with --steps, or for more time with --limit.") from None
    lines = printed.decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-LAST:]), process.returncode


def same_pair(pair: Pair, say: Callable[[str], None] = print) -> Result:
    """Run both programs, and the first one again with weights changed by rounding, and compare."""
    steps = "to its end" if pair.whole else f"up to optimizer step {pair.steps}"
    say(f"run 1 of 3: the first program, {steps}")
    first = run(pair.first, pair, pair.after)
    say(f"run 2 of 3: the second program, {steps}")
    second = run(pair.second, pair)
    say("run 3 of 3: the first program, its weights changed by rounding")
    return compare(first, second, run(pair.first, pair, pair.after, epsilon(first + second)))
