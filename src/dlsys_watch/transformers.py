"""The watch in a trainer of transformers or TRL: `Trainer(callbacks=[Watch()])`.

It begins when it is made, as a trainer makes its optimizer before it calls anybody.
"""

from __future__ import annotations

import importlib
from typing import Any

from dlsys_watch import Attached

TrainerCallback: Any = importlib.import_module("transformers").TrainerCallback


class Watch(Attached, TrainerCallback):
    """Watches until training ends; takes what `watching` takes. `found` holds the findings."""

    def __init__(self, **asked):
        super().__init__(**asked)
        self.begin()

    def on_train_begin(self, args, state, control, **kwargs):
        self.begin()

    def on_train_end(self, args, state, control, **kwargs):
        self.end()
