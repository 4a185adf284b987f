"""A restart restores Adam's step count but leaves its running means at zero."""

import copy

import torch
from torch import Tensor, nn

from tools.incident_runs import small

RATE = 0.01
ROWS = 128
STOP, END = 400, 640  # the checkpoint, and the last update
EVERY = 10  # updates between two validations
JUMP = 20  # updates between the restart and the measurement of the jump
STATE = ("exp_avg", "exp_avg_sq")


class Run:
    """A model, its optimizer and its batches."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        text = small.prose()
        self.rows, self.targets = small.rows_of(text.train)
        self.valid = [part[::20] for part in small.rows_of(text.valid)]
        self.model = small.Small(len(text.letters), width=64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        draw = torch.Generator().manual_seed(seed)
        self.order = torch.randint(len(self.rows), (END + 20, ROWS), generator=draw)

    def update(self, number: int) -> tuple[float, float, float]:
        """Loss before an update, norm of its gradient, and norm of the update."""
        which = self.order[number]
        self.optimizer.zero_grad()
        loss = small.loss_of(self.model, self.rows[which], self.targets[which])
        loss.backward()
        gradient = small.norm(p.grad for p in self.model.parameters())
        before = [p.detach().clone() for p in self.model.parameters()]
        self.optimizer.step()
        moved = small.norm(p - old for p, old in zip(self.model.parameters(), before, strict=True))
        return loss.item(), gradient, moved

    @torch.no_grad()
    def score(self) -> float:
        """The validation loss."""
        return small.loss_of(self.model, *self.valid).item()

    def train(self, start: int, end: int, shift: int = 0) -> list[float]:
        """The validation loss after every EVERY updates. shift: how many batches to skip."""
        scores = []
        for number in range(start, end):
            self.update(number + shift)
            if number % EVERY == EVERY - 1:
                scores.append(self.score())
        return scores


def checkpoint(run: Run) -> dict:
    return copy.deepcopy({"model": run.model.state_dict(),
                          "optimizer": run.optimizer.state_dict()})


def resumed(seed: int, file: dict, whole: bool) -> Run:
    """A new process from a checkpoint.

    If not `whole`, Adam's means stay zero: a fresh optimizer has no tensors to load them into.
    """
    run = Run(seed)
    run.model.load_state_dict(file["model"])
    run.optimizer.load_state_dict(copy.deepcopy(file["optimizer"]))
    if not whole:
        for state in run.optimizer.state.values():
            for name in STATE:
                state[name].zero_()
    return run


def size(model: nn.Module, optimizer: torch.optim.Optimizer, name: str) -> float:
    return small.norm(optimizer.state[p][name] for p in model.parameters())


def measure(seed: int) -> dict:
    run = Run(seed)
    before = run.train(0, STOP)
    file = checkpoint(run)
    in_memory = {name: size(run.model, run.optimizer, name) for name in STATE}
    broken, whole = resumed(seed, file, False), resumed(seed, file, True)
    loaded = {name: size(broken.model, broken.optimizer, name) for name in STATE}
    for one, other in zip(broken.model.state_dict().values(), file["model"].values(), strict=True):
        assert torch.equal(one, other)  # as a probe reports
    straight_first, broken_first = run.update(STOP), broken.update(STOP)
    straight = run.train(STOP + 1, END)
    after = broken.train(STOP + 1, END)
    repaired = whole.train(STOP, STOP + JUMP)
    again = resumed(seed, file, False).train(STOP, STOP + JUMP)
    skipped = resumed(seed, file, False).train(STOP, STOP + JUMP, shift=20)
    slow = resumed(seed, file, False)
    for group in slow.optimizer.param_groups:
        group["lr"] = RATE / 2
    halved = slow.train(STOP, STOP + JUMP)
    last = before[-1]
    back = next((n for n, score in enumerate(after, 1) if score <= last), len(after))
    x = [float(EVERY * n) for n in range(1, 1 + END // EVERY)]
    first = 20  # the first point of the curve
    return {
        "numbers": {
            "before": last, "healthy": straight[1] - last, "fault": after[1] - last,
            "repaired": repaired[-1] - last, "after": after[1], "straight": straight[1],
            "again": again[-1], "skipped": skipped[-1], "halved": halved[-1],
            "back": float(back * EVERY), "lost_hours": float(back * 64),
            "lost_dollars": back * 64 * 2.5, "rate": RATE,
            "loss_straight": straight_first[0], "loss_resumed": broken_first[0],
            "gradient_straight": straight_first[1], "gradient_resumed": broken_first[1],
            "update_straight": straight_first[2], "update_resumed": broken_first[2],
            "update_ratio": broken_first[2] / straight_first[2],
            "mean_memory": in_memory["exp_avg"], "square_memory": in_memory["exp_avg_sq"],
            "mean_loaded": loaded["exp_avg"], "square_loaded": loaded["exp_avg_sq"],
            "step_loaded": float(file["optimizer"]["state"][0]["step"]),
            **{f"batch{n}": fingerprint(run.order[STOP - 2 + n]) for n in range(5)}},
        "curves": {"loss": {"x": x[first:], "validation loss": (before + after)[first:]}}}


def fingerprint(which: Tensor) -> float:
    """A number by which you can see that two batches are the same."""
    return float((which * torch.arange(1, len(which) + 1)).sum() % 1_000_003)
