"""A loss scale for low precision: it grows while gradients are finite and halves when not."""

import torch


class Scaler:
    """Scale the loss, unscale the gradients, and say whether the update may be made."""

    def __init__(self, scale: float = 1024.0, patience: int = 20):
        self.scale, self.patience = scale, patience
        self.good = 0

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.scale

    def unscale(self, parameters) -> bool:
        """Divide the gradients by the scale; whether all of them are finite."""
        finite = True
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(self.scale)
                finite = finite and bool(torch.isfinite(parameter.grad).all())
        return finite

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale, self.good = self.scale / 2, 0
            return
        self.good += 1
        if self.good == self.patience:
            self.scale, self.good = self.scale * 2, 0

    def state_dict(self) -> dict:
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict) -> None:
        self.scale, self.good = state["scale"], state["good"]
