"""An exponential moving average of the model, which is what we evaluate and export."""

import copy

import torch


class Ema:
    """A second model that follows the first; early on it follows faster."""

    def __init__(self, model: torch.nn.Module, decay: float):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model: torch.nn.Module) -> None:
        """Move towards the model: parameters by the decay, buffers at once."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for mine, new in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(new, 1 - decay)
        for mine, new in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(new)

    def state_dict(self) -> dict:
        return {"model": self.model.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.updates = state["updates"]
