"""Inside a program that is compared: record it from the moment it imports torch."""

from __future__ import annotations

import atexit
import json
import os
import random
import sys

from dlsys_watch.session import WhenTorchComes


class Beginning:
    """What `WhenTorchComes` calls once torch is imported."""

    def __init__(self, asked: dict):
        self.asked = asked

    def attach(self) -> None:
        import numpy as np
        import torch

        from dlsys_same.recorder import Recorder

        # A program that sets no seed would draw different numbers in each run.
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        recorder = Recorder(self.asked["steps"], self.asked["after"], self.asked["rounding"])
        recorder.enough = lambda: leave(recorder, self.asked)
        try:
            recorder.attach()
        except Exception as error:
            raise SystemExit(f"dlsys same: this torch {torch.__version__} cannot be recorded "
                             f"({type(error).__name__}: {error}).") from error
        atexit.register(recorder.save, file_of(self.asked["folder"]))


def file_of(folder: str) -> str:
    """The record of this process: one for each rank."""
    return os.path.join(folder, f"rank{int(os.environ.get('RANK') or 0)}.pt")


def leave(recorder, asked: dict) -> None:
    """End the program once everything asked for is recorded.

    None of the program's own closing code runs, so it writes no checkpoint and starts no
    evaluation. With `whole` the program continues to its own end.
    """
    if asked["whole"]:
        return
    recorder.save(file_of(asked["folder"]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def begin() -> None:
    sys.meta_path.insert(0, WhenTorchComes(Beginning(json.loads(os.environ["DLSYS_SAME"]))))
