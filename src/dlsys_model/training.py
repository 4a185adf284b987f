"""The training, put together from parts: rows, rate, loss, step, log, checkpoint and resume.

The same plan, parts and seed give the same weights, to the bit, whether a run was stopped and
resumed or not.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dlsys_model.errors import ModelError, not_written
from dlsys_model.network import Network
from dlsys_model.parts import PartBroke, Parts
from dlsys_model.text import Text, rows

BETAS, EPS, MAX_NORM = (0.9, 0.95), 1e-8, 1.0
EPOCHS = 1000  # more than a run has: neighbouring seeds share no order


class CheckpointError(ModelError):
    """A checkpoint cannot be written or read. The message says what to do."""


class TrainingError(ModelError):
    """A training cannot begin or go on. The message says what to do."""


class Plan(NamedTuple):
    """How to train.

    rows: per step, on all ranks together. peak, floor: rates; warm: warm-up steps. every:
    steps between two entries of the log. patience: entries without progress that end the run,
    0 for none. rule: "adam" or "lion". dtype: of autocast. by_hand: the loss's gradient without
    autograd. parts_of: how many pieces a step's rows come in. average: decay of the averaged
    weights, 0 for none.
    """

    steps: int = 1000
    rows: int = 8
    peak: float = 3e-3
    floor: float = 3e-4
    warm: int = 20
    decay: float = 0.1
    seed: int = 0
    every: int = 50
    patience: int = 0
    rule: str = "adam"
    dtype: torch.dtype = torch.float32
    by_hand: bool = False
    parts_of: int = 1
    average: float = 0.0


class ByHand(torch.optim.Optimizer):
    """An optimizer whose update is one function of (w, grad, state, group), both (N,) float32."""

    def __init__(self, groups: list[dict], update: Callable, lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        self.update = update

    @torch.no_grad()
    def step(self) -> None:
        """Update each weight that has a gradient, in place."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight.view(-1), weight.grad.reshape(-1), self.state[weight],
                                group)


class Flat(nn.Module):
    """A model as one of rows: letters (N, 1) to logits (N, V), each `length` of them a text row."""

    def __init__(self, model: nn.Module, length: int) -> None:
        super().__init__()
        self.model, self.length = model, length

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.view(-1, self.length)).flatten(0, 1)


def flat(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and labels (B, T) in the form that `Flat` takes: (B T, 1) and (B T,)."""
    return x.reshape(-1, 1), y.reshape(-1)


class Training:
    """One run: the model and its optimizer, the step it has reached, and its log.

    losses: of each step. events: what `rows_to_log` takes. rank, world, all_sum: of a run on
    several ranks, all_sum(tensor) being the sum over them.
    """

    def __init__(self, model: Network, text: Text, plan: Plan, rank: int = 0, world: int = 1,
                 all_sum: Callable[[Tensor], Tensor] | None = None) -> None:
        if plan.steps <= plan.warm:
            raise TrainingError(f"plan: got {plan.steps} steps with {plan.warm} of warm-up, "
                                "expected more steps than that.")
        ways = {"ranks": bool(all_sum), "dtype": plan.dtype != torch.float32,
                "parts_of": plan.parts_of > 1, "by_hand": plan.by_hand}
        if sum(ways.values()) > 1:
            asked = " and ".join(name for name, is_asked in ways.items() if is_asked)
            raise TrainingError(f"plan: got {asked}, expected one of them: each is a step of its "
                                "own.")
        self.model, self.text, self.plan, self.parts = model, text, plan, model.parts
        self.rank, self.world, self.all_sum = rank, world, all_sum
        groups = self.parts.decay_groups(model, plan.decay)
        self.optimizer = ByHand(groups, partial(_update, self.parts, plan.rule), plan.peak)
        self.scaler = torch.amp.GradScaler("cpu", enabled=plan.dtype == torch.float16)
        self.averaged = copy.deepcopy(model) if plan.average else None
        self.flat = Flat(model, model.shape.length)
        self.step, self.losses, self.events, self.norm = 0, [], [], math.nan
        self._order = (-1, [])
        self._meter = self.parts.make_meter()
        if plan.parts_of > 1:  # the part makes the step itself, so a hook clips
            self.optimizer.register_step_pre_hook(self._clip)

    # ---- data

    def batch(self) -> tuple[Tensor, Tensor]:
        """This rank's rows of this step and the letters after them, each (B, T) int64.

        Each epoch goes through all rows once, in its own order and cut at its own positions.
        """
        length, share = self.model.shape.length, self.plan.rows // self.world
        count = (len(self.text.train) - 1 - length) // length
        if count < self.plan.rows:
            raise TrainingError(f"text: holds {count} rows of {length}, expected "
                                f"{self.plan.rows} or more. Take fewer rows a step, or a longer "
                                "text.")
        epoch, place = divmod(self.step, count // self.plan.rows)
        seed = EPOCHS * self.plan.seed
        if self._order[0] != epoch:
            self._order = (epoch, self.parts.epoch_indices(
                count, self.world, self.rank, epoch, seed, False))
        chosen = torch.tensor(self._order[1][place * share:(place + 1) * share])
        shift = torch.randint(length, (), generator=torch.Generator().manual_seed(
            seed + epoch)).item()
        x, y = rows(self.text.train[shift:], length)
        return x[chosen], y[chosen]

    def validation(self, most: int = 16) -> list[tuple[Tensor, Tensor]]:
        """Up to `most` rows of the validation text, one a batch, as `Flat` takes them."""
        x, y = rows(self.text.valid, self.model.shape.length)
        chosen = torch.linspace(0, len(x) - 1, min(most, len(x))).long()
        return [flat(x[one], y[one]) for one in chosen]

    # ---- steps

    def run(self, until: int | None = None, save: Path | None = None) -> Iterator[dict]:
        """Train up to step `until`, or to the plan's end; yields each entry of the log.

        save: where a checkpoint is written at each entry, with the log next to it. Raises
        PartBroke, TrainingError and CheckpointError; the run can then go on from its step.
        """
        last = min(self.plan.steps, until or self.plan.steps)
        while self.step < last:
            self.one_step()
            if self.step % self.plan.every == 0 or self.step == self.plan.steps:
                yield self._enter(save)
                if self._ended():
                    return

    def one_step(self) -> float:
        """One update; returns the loss before it, over the rows of all ranks."""
        self.model.train()
        rate = self.parts.warmup_cosine(self.step, self.plan.warm, self.plan.steps,
                                        self.plan.peak, self.plan.floor)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        x, y = self.batch()
        loss = self._finite(self._how()(x, y))
        if self.averaged is not None:
            self.parts.ema_update(self.averaged, self.model, self.plan.average)
        self.step += 1
        self.losses.append(loss)
        self._meter[0](torch.tensor(loss), x.numel())
        return loss

    def _how(self) -> Callable[[Tensor, Tensor], float]:
        """The function that makes a step under this plan."""
        if self.all_sum:
            return self._step_of_ranks
        if self.plan.dtype != torch.float32:
            return self._step_in_half
        if self.plan.parts_of > 1:
            return self._step_in_pieces
        return self._step_by_hand if self.plan.by_hand else self._step

    def _finite(self, loss: Tensor | float) -> Tensor | float:
        """The loss if it is finite; tested before the weights move if the step allows it."""
        value = loss.item() if isinstance(loss, Tensor) else loss
        if not math.isfinite(value):
            raise TrainingError(f"step {self.step}: the loss is {value}. Lower the peak of the "
                                "rate, and look with first_nan_module.")
        return loss

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.parts.class_loss(self.model(x).flatten(0, 1), y.flatten())

    def _step(self, x: Tensor, y: Tensor) -> float:
        loss = self._finite(self._loss(x, y))
        self.norm, _ = self.parts.clipped_step(self.optimizer, loss, 1.0, MAX_NORM)
        return loss.item()

    def _step_by_hand(self, x: Tensor, y: Tensor) -> float:
        """The gradient of the logits comes from the part; autograd does the rest."""
        logits = self.model(x).flatten(0, 1)
        loss, grad = self.parts.ce_from_logits(logits.detach(), y.flatten())
        self._finite(loss)
        self.norm, _ = self.parts.clipped_step(self.optimizer, (logits * grad).sum(), 1.0,
                                               MAX_NORM)
        return loss.item()

    def _step_in_half(self, x: Tensor, y: Tensor) -> float:
        seen = []

        def loss_of() -> Tensor:
            seen.append(self._finite(self._loss(x, y).float()))
            return seen[-1]

        self.norm = self.parts.amp_step(self.optimizer, self.scaler, loss_of, self.plan.dtype,
                                        MAX_NORM)
        return seen[-1].item()

    def _step_in_pieces(self, x: Tensor, y: Tensor) -> float:
        pieces = zip(x.chunk(self.plan.parts_of), y.chunk(self.plan.parts_of), strict=True)
        return self.parts.accum_step(self.flat, self.optimizer, [flat(*one) for one in pieces])

    def _clip(self, *_: object) -> None:
        weights = [weight for weight in self.model.parameters() if weight.grad is not None]
        self.norm = nn.utils.clip_grad_norm_(weights, MAX_NORM).item()

    def _step_of_ranks(self, x: Tensor, y: Tensor) -> float:
        def losses_of(batch: tuple[Tensor, Tensor]) -> Tensor:
            logits = self.model(batch[0]).flatten(0, 1)
            return nn.functional.cross_entropy(logits, batch[1].flatten(), reduction="none")

        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        loss = self.parts.average_grads(losses_of, weights, (x, y), self.all_sum)
        self.norm = nn.utils.clip_grad_norm_(weights, MAX_NORM).item()
        self.optimizer.step()
        return loss

    # ---- log

    def _enter(self, save: Path | None) -> dict:
        valid, right = self.parts.evaluate(self.flat, self.validation())
        values = {"loss": self._meter[1](), "valid": valid, "right": right, "norm": self.norm}
        self._meter = self.parts.make_meter()
        self.events.append(("step", self.step, values))
        if save:
            self.save(save)
        return {"step": self.step, **values}

    def log(self) -> list[dict]:
        """The entries of the log in order, in a resumed run each step once."""
        return self.parts.rows_to_log(self.events)[0]

    def _ended(self) -> bool:
        """Whether the validation loss has not fallen for too long."""
        if not self.plan.patience:
            return False
        valid = [row["valid"] for row in self.log()]
        stop, _ = self.parts.stop_and_best([*valid, math.inf], self.plan.patience, 0.0)
        return stop < len(valid)

    # ---- checkpoint

    def _facts(self) -> dict:
        plan = {key: value if isinstance(value, int | float) else str(value)
                for key, value in self.plan._asdict().items() if key not in ("every", "patience")}
        return {"step": self.step, **plan, **self.model.shape._asdict()}

    def _kept(self) -> dict:
        kept = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        return kept | ({"averaged": self.averaged} if self.averaged is not None else {})

    def save(self, path: Path) -> None:
        """Write the log and a checkpoint next to it. Raises CheckpointError and keeps the last one.

        After a kill between the two, the log is ahead; a resumed run logs those steps again.
        """
        path = Path(path)
        try:
            _keep_log(path, self.events)
            self.parts.save_checkpoint(str(path), self._kept(), self._facts())
        except (OSError, RuntimeError, PartBroke) as error:
            cause = error.__cause__ if isinstance(error, PartBroke) else error
            if not isinstance(cause, OSError | RuntimeError):
                raise
            for half in (Path(f"{path}.part"), Path(f"{path}.log.part")):
                half.unlink(missing_ok=True)  # a half-written file takes up space
            former = "The former one is whole." if path.exists() else "There was none before it."
            raise CheckpointError(
                f"{path.name}: the checkpoint of step {self.step} cannot be written "
                f"({not_written(cause)}). {former} Free some space, then go on: the model is in "
                "memory.") from None

    def resume(self, path: Path) -> None:
        """Go on where a checkpoint was written, to the bit. Raises CheckpointError."""
        path = Path(path)
        try:
            found = torch.load(path)
            facts, states = found["facts"], found["parts"]
        except FileNotFoundError:
            raise CheckpointError(f"{path.name}: no such checkpoint. Train from the start, with "
                                  "save=.") from None
        except Exception as error:
            raise CheckpointError(f"{path.name}: is no whole checkpoint ({type(error).__name__}). "
                                  "Delete it and train from the start.") from None
        mine = self._facts()
        if other := [key for key in mine if key != "step" and facts.get(key) != mine[key]]:
            raise CheckpointError(f"{path.name}: has {other[0]} {facts.get(other[0])}, expected "
                                  f"{mine[other[0]]}. Resume with the plan and the shape it was "
                                  "made with.")
        for name, part in self._kept().items():
            part.load_state_dict(states[name])
        torch.set_rng_state(found["rng"])
        self.step = facts["step"]
        self.events = [tuple(json.loads(line)) for line in _lines(_log(path))]
        self._meter = self.parts.make_meter()


def _update(parts: Parts, rule: str, w: Tensor, grad: Tensor, state: dict, group: dict) -> None:
    """One weight's update; Lion takes a tenth of Adam's rate, and ten times its decay."""
    if rule == "lion":
        parts.lion_step(w, grad, state, group["lr"] / 10, (0.9, 0.99), 10 * group["weight_decay"])
    else:
        parts.adam_step(w, grad, state, group["lr"], BETAS, EPS, group["weight_decay"])


def _keep_log(path: Path, events: list[tuple]) -> None:
    """Write the log next to a checkpoint, whole or not at all."""
    fresh = path.with_name(f"{path.name}.log.part")
    fresh.write_text("".join(json.dumps(event) + "\n" for event in events))
    os.replace(fresh, _log(path))


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}.log")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
