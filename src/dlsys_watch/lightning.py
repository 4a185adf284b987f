"""The watch in a trainer of Lightning: `Trainer(callbacks=[Watch()])`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from dlsys_watch import Attached

OLD = "pytorch_lightning"   # the same library under its earlier name, whose classes are others
Callback: Any = importlib.import_module(
    OLD if OLD in sys.modules and "lightning" not in sys.modules else "lightning.pytorch").Callback


class Watch(Attached, Callback):
    """Watches from setup to teardown; takes what `watching` takes. `found` holds the findings."""

    def setup(self, trainer, pl_module, stage):
        self.begin()

    def teardown(self, trainer, pl_module, stage):
        self.end()

    def on_exception(self, trainer, pl_module, exception):
        self.end()
