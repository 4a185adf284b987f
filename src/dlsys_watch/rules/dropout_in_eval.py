"""F.dropout that does not know the mode."""

import sys
from types import FrameType

from torch import nn

from dlsys_watch.places import HERE
from dlsys_watch.rule import Rule

FRAMES = 12  # how far up a forward method is looked for


class DropoutInEval(Rule):
    id, trap = "dropout-in-eval", "05.3"
    reads = "the mode of a module whose forward method calls F.dropout without `training`"

    def on_dropout(self, name, p, told):
        module = caller() if not told and p > 0 else None
        if module is not None and not module.training:
            self.say(f"F.{name}(p={p}) has no `training=` and drops, although "
                     f"{type(module).__name__} is in eval mode")


def caller() -> nn.Module | None:
    """The module whose method runs: the first `self` on the stack that is one."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES):
        if frame is None:
            break
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and not frame.f_code.co_filename.startswith(HERE):
            return module
        frame = frame.f_back
    return None
