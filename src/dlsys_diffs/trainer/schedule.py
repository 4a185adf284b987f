"""The learning rate: a linear warm-up, then half a cosine down to zero."""

import math


def lr_at(step: int, config) -> float:
    """The rate of update `step`, counted from 0. The last update has the lowest one."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup + 1) / (config.steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


class Schedule:
    """Sets the optimizer's rate; `advance` is called once for each update."""

    def __init__(self, optimizer, config):
        self.optimizer, self.config = optimizer, config
        self.step = 0
        self.apply()

    def apply(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr_at(self.step, self.config)

    def advance(self) -> None:
        self.step += 1
        self.apply()

    def state_dict(self) -> dict:
        return {"step": self.step}

    def load_state_dict(self, state: dict) -> None:
        self.step = state["step"]
        self.apply()
