"""The training loop: accumulation, mixed precision, clipping, schedule, average, evaluation."""

import torch
from torch.nn import functional as F

from . import distributed
from .data import Dataset, TrainLoader, eval_batches
from .ema import Ema
from .evaluate import Running, evaluate
from .model import Net, parameter_groups
from .scaler import Scaler
from .schedule import Schedule


class Trainer:
    """One rank's model with all that its training needs."""

    def __init__(self, config, rank: int = 0):
        self.config, self.rank = config, rank
        self.train_set, self.val_set = (Dataset(part, config.seed) for part in ("train", "val"))
        self.loader = TrainLoader(self.train_set, config, rank)
        self.model = Net(config)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.model, config.weight_decay), lr=config.lr, betas=config.betas)
        self.schedule = Schedule(self.optimizer, config)
        self.scaler = Scaler(patience=config.patience)
        self.ema = Ema(self.model, config.ema_decay)
        self.running = Running()
        self.history: list[dict] = []
        self.best: dict = {"accuracy": -1.0, "weights": None}
        self.step = 0
        torch.manual_seed(config.seed)

    # ---- one update

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The training loss of one batch, in float32."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.config.amp):
            logits = self.model(images)
        return F.cross_entropy(logits.float(), labels,
                               label_smoothing=self.config.label_smoothing)

    def backward(self) -> None:
        """Gradients of one update, summed over its batches."""
        self.model.train()
        self.optimizer.zero_grad()
        for _ in range(self.config.accumulate):
            images, labels = self.loader.next()
            loss = self.loss(images, labels) / self.config.accumulate
            self.scaler.scaled(loss).backward()
            self.running.add(loss=loss.item() * self.config.accumulate)

    def unscale(self) -> bool:
        """Unscale and clip the gradients; whether the update may be made."""
        finite = self.scaler.unscale(self.model.parameters())
        if finite:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        return finite

    def apply(self, finite: bool) -> None:
        """Make the update, unless some gradient was not finite."""
        if finite:
            self.optimizer.step()
            self.ema.update(self.model)
        self.scaler.update(finite)
        rate = self.optimizer.param_groups[0]["lr"]
        self.schedule.advance()
        self.history.append({"step": self.step, "lr": rate, **self.running.take()})
        self.step += 1

    # ---- a run

    def after_update(self) -> None:
        """Evaluate the average now and then, and keep the best one."""
        if self.step % self.config.eval_every and self.step < self.config.steps:
            return
        score = evaluate(self.ema.model, eval_batches(self.val_set))
        self.history[-1]["val"] = score
        if score["accuracy"] > self.best["accuracy"]:
            weights = {name: value.clone() for name, value in self.ema.model.state_dict().items()}
            self.best = {"accuracy": score["accuracy"], "weights": weights}


def train(trainers: list[Trainer], until: int | None = None) -> None:
    """Run all ranks in step, up to this update or to the last one."""
    models = [trainer.model for trainer in trainers]
    last = trainers[0].config.steps if until is None else until
    if trainers[0].step == 0:
        distributed.broadcast(models)
    while trainers[0].step < last:
        for trainer in trainers:
            trainer.backward()
        distributed.average_gradients(models)
        finite = distributed.agree([trainer.unscale() for trainer in trainers])
        distributed.average_buffers(models)
        for trainer in trainers:
            trainer.apply(finite)
            trainer.after_update()


def fit(config) -> list[Trainer]:
    """Train from the beginning to the end; returns the ranks' trainers."""
    trainers = [Trainer(config, rank) for rank in range(config.world_size)]
    train(trainers)
    return trainers
