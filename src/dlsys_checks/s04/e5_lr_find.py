"""Exercise 04.5, `lr_find`."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import nn

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.5", "lr_find", seen=("sweeps",), says="batches drawn")

TIMES = 4
ENDS = ("a sweep that runs away", f"just over {TIMES} times the lowest",
        f"exactly {TIMES} times the lowest", f"over {TIMES} times the lowest, below the first",
        f"over {TIMES} times the lowest, slowly", "an infinite loss", "two models in turn",
        "losses in the millions")
ex.promise_table("""
answer    | Return a tenth of the rate at which a range test has its lowest loss. | suggested rate
one batch | loss_of: loss_of(model) draws a batch and returns its scalar loss, above 0. Call it once
            per step. | weights at draw; batches drawn
SGD       | Run plain SGD for steps k = 0 ... steps - 1. | weights at draw
left over | Args: model: may hold gradients from before, which do not count. | case a gradient left
            over; a sweep that runs away; two models in turn
rates     | The rate of step k is low * (high / low)**(k / (steps - 1)). | weights at draw;
            suggested rate
two steps | steps: 2 or more. | case two steps
before    | Then make the update. | weights at draw; suggested rate; batches drawn
first     | The first of several equal losses counts. | case two equal lowest losses
NaN       | Stop at a loss that is NaN. | case a NaN
""")
ex.promise("times", f"Also stop at a loss of more than {TIMES} times the lowest so far.",
           cases=ENDS)
ex.promise("as before", "Afterwards, the model's state_dict() is as before.",
           says=("entries of state_dict",))
ex.promise("objects", "The parameters are the same objects.", says=("different objects",))
ex.promise("example", "Example: if step 2 of 5, from 1e-4 to 1, has the lowest loss, return "
                      "0.01 / 10 = 0.001.",
           cases=("the example",))

# Numbers in the parameters of each kind of model, and those that no loss reaches.
SIZES = {"linear": 9, "norm": 19, "own": 13}
IDLE = {"own": slice(8, 13)}


@ex.cases
def cases(g):
    between = floats(g)
    whole = integers(g)

    def sweep(script=None, kind="linear", steps=0, low=None, span=None, left=0.0):
        """One range test: its loss pulls each weight to a goal; a script overrides its value."""
        n, steps = SIZES[kind], len(script or ()) or steps or whole(25, 40)
        low = low or 10 ** between(-5, -2)
        high = low * (span or 10 ** between(1.5, 3))
        pull = (0.3 + 1.2 * torch.rand(steps, n, generator=g)) / high
        pull[:, IDLE.get(kind, slice(0))] = 0.0
        return {"kind": kind, "start": torch.randn(n, generator=g) * 2,
                "pull": pull if script else pull * between(15, 30),
                "goal": torch.randn(n, generator=g) + 0.2 * torch.randn(steps, n, generator=g),
                "script": script and torch.tensor(script), "low": low, "high": high,
                "left": left}

    def valley(steps=0, at=None, bottom=None):
        """Losses that fall to a bottom and rise again, by less than a factor of 3."""
        steps = steps or whole(8, 16)
        at = whole(2, steps - 3) if at is None else at
        bottom = bottom or 2 ** between(-3, 3)
        return [bottom * (1 + 1.5 * abs(k - at) / steps + 0.05 * between(0, 1) * (k != at))
                for k in range(steps)]

    def after(start, *rest):
        """A valley whose bottom is a power of two, then losses in multiples of that."""
        bottom = 2.0 ** whole(-6, 7)
        return valley(start, start - 2, bottom) + [bottom * share for share in rest]

    slow = [4.0 * 0.6**k for k in range(whole(4, 7))]
    slow += [slow[-1] * v for v in (0.475 * TIMES, 0.9 * TIMES, 1.5 * TIMES, 1.75 * TIMES, 0.5)]
    deep = [9.0 / 5**k for k in range(3)]
    deep += [deep[-1] * v for v in (TIMES / 2, 1.125 * TIMES, 0.5, 0.4)]
    tie = valley(whole(9, 15), whole(2, 5))
    tie[-2] = min(tie)
    low = 1e-4
    scripts = {
        "lowest in the middle": valley(), "lowest at the start": valley(at=0),
        "lowest at the end": (lambda n: valley(n, n - 1))(whole(7, 12)),
        "two equal lowest losses": tie, "a NaN": after(whole(5, 9), math.nan, 0.5, 0.25),
        "an infinite loss": after(whole(5, 9), math.inf, 0.5, 0.25),
        f"exactly {TIMES} times the lowest": after(whole(5, 9), TIMES, TIMES - 0.5, 0.5, 0.75),
        f"just over {TIMES} times the lowest": after(whole(5, 9), TIMES + 2e-6, 0.5, 0.75),
        f"over {TIMES} times the lowest, below the first": deep,
        f"over {TIMES} times the lowest, slowly": slow}
    made = [(name, {"sweeps": [sweep(script)]}) for name, script in scripts.items()]
    return [*made, ("a sweep that runs away", {"sweeps": [sweep()]}),
            ("two steps", {"sweeps": [sweep([2.0, 1.0][::whole(0, 2) * 2 - 1])]}),
            ("tiny rates", {"sweeps": [sweep(valley(), low=between(1, 9) * 1e-12)]}),
            ("a gradient left over", {"sweeps": [sweep(valley(), left=between(50, 100))]}),
            ("losses in the millions", {"sweeps": [sweep(valley(bottom=2.0 ** whole(20, 30)))]}),
            ("a narrow range", {"sweeps": [sweep(valley(), span=between(1.5, 2))]}),
            ("nested, with batch norm", {"sweeps": [sweep(valley(), kind="norm")]}),
            ("a module of its own", {"sweeps": [sweep(valley(), kind="own")]}),
            ("two models in turn", {"sweeps": [sweep(valley()), sweep(kind="own"),
                                               sweep(valley(), kind="norm")]}),
            ("the example", {"sweeps": [sweep([3.0, 2.5, 1.0, 1.5, 2.0], low=low, span=1 / low)]})]


@ex.act
def act(fn, sweeps):
    class Own(nn.Module):  # one weight is shared; a bias is idle and a layer frozen
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
            self.second.weight = self.first.weight
            self.rest = nn.Linear(2, 1).requires_grad_(False)
            self.register_buffer("batches", torch.zeros(2))

        def forward(self, x):
            self.batches += 1
            return self.rest(self.second(self.first(x) * self.scale))

    def build(kind):
        if kind == "norm":
            return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()),
                                 nn.Linear(3, 1))
        return Own() if kind == "own" else nn.Linear(2, 3)

    def flat(model):
        return torch.cat([p.reshape(-1) for p in model.parameters()])

    def run(kind, start, pull, goal, script, low, high, left):
        model, path, draws, steps = build(kind), [], 0, len(pull)
        for p in model.parameters() if left else ():
            p.grad = torch.full_like(p, left)
        nn.utils.vector_to_parameters(start, model.parameters())
        before, held = copy.deepcopy(model.state_dict()), list(model.parameters())

        def loss_of(m):
            nonlocal draws
            k, now = min(draws, steps - 1), flat(m)
            path.append(now.detach().clone())
            draws += 1
            m(torch.linspace(-1, 1, 8).reshape(4, 2) * (k + 1))  # buffers move, if there are any
            loss = 0.5 * (pull[k] * (now - goal[k]) ** 2).sum()
            return loss if script is None else script[k] + (loss - loss.detach())
        rate = fn(model, loss_of, steps, low, high)
        rate = float(rate) if isinstance(rate, float) else rate  # a float64 of numpy is a float
        state, mine = model.state_dict(), list(model.parameters())
        changed = [key for key, value in before.items() if not torch.equal(value, state[key])]
        return {"rate": rate, "draws": draws, "changed": changed,
                "path": torch.stack(path[:steps]) if path else start.new_zeros(0, len(start)),
                "other": sum(a is not b for a, b in zip(held, mine))}
    return [run(**sweep) for sweep in sweeps]


def expected(start, pull, goal, script, low, high, **_):
    """Rates, losses and weights of the test in float64; the gradient is written out."""
    rates = [low * math.exp(math.log(high / low) * k / (len(pull) - 1)) for k in range(len(pull))]
    w, losses, path = start.double(), [], []
    for k, (a, to) in enumerate(zip(pull.double(), goal.double(), strict=True)):
        path.append(w)
        loss = 0.5 * (a * (w - to) ** 2).sum() if script is None else script[k]
        losses.append(float(loss))
        if not losses[-1] <= TIMES * min(losses):
            break
        w = w - rates[k] * a * (w - to)
    return rates, losses, torch.stack(path).float()


@ex.law
def law(out, sweeps):
    expect_length("range tests", out, len(sweeps))
    for one, sweep in zip(out, sweeps, strict=True):
        judge(one, sweep)


def judge(one, sweep):
    """What is owed after one range test."""
    expect_parts(one, "rate", "draws", "path", "changed", "other")
    rates, losses, path = expected(**sweep)
    expect_path(one["path"], path)
    # Counted beside the learner's code: the rate alone does not show where the test ended.
    expect_equal("batches drawn", one["draws"], len(losses),
                 f"The test ends at a NaN or at more than {TIMES} times the lowest loss.")
    best = losses.index(min(v for v in losses if v == v))
    expect_close("suggested rate", one["rate"], rates[best] / 10,
                 look="The answer is a tenth of the rate at the lowest loss.")
    expect_like("weights at draw", one["path"], path)
    expect_equal("entries of state_dict() that changed", one["changed"], [],
                 "Keep a copy of the state and load it back.")
    expect_equal("parameters that are different objects now", one["other"], 0,
                 "Write into the parameters; do not replace them.")


def expect_path(got, wanted):
    """Compare the weights that each batch saw, as far as both go."""
    expect_like("weights at the draws", got[:0] if type(got) is torch.Tensor and got.ndim else got,
                wanted[:0])
    for k, (mine, right) in enumerate(zip(got, wanted, strict=False)):
        expect_close(f"weights at draw {k + 1}", mine, right, rtol=0.0,
                     atol=3e-5 * float(wanted[:k + 1].abs().max()),
                     look="Run plain SGD with one step per batch, at the rate of that step.")


# ---- wrong, by name

def lowest(losses):
    return losses.index(min(v for v in losses if v == v))


def lowest_of(losses):
    return min((v for v in losses if v == v), default=math.inf)


@not_an_answer
def find(model, loss_of, steps, low, high):
    saved = copy.deepcopy(model.state_dict())
    opt = torch.optim.SGD(model.parameters(), lr=low)
    rates, losses = [low * (high / low) ** (k / (steps - 1)) for k in range(steps)], []
    for rate in rates:
        opt.param_groups[0]["lr"] = rate
        loss = loss_of(model)
        if not loss.item() <= TIMES * min(losses, default=math.inf):
            break
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    model.load_state_dict(saved)
    out = rates[lowest(losses)] / 10 if losses else low / 10
    return out


def steepest(losses):
    """Where the loss falls most in one step."""
    falls = [b - a for a, b in zip(losses, losses[1:], strict=False)] or [0.0]
    return falls.index(min(falls))


def steepest_on_average(losses):
    """Where it falls most, by the two steps around."""
    return int(np.gradient(losses).argmin()) if len(losses) > 1 else 0


def smoothed(losses):
    """Running means of the losses, corrected for their start."""
    mean, means = 0.0, []
    for k, loss in enumerate(losses, 1):
        mean = 0.98 * mean + 0.02 * loss
        means.append(mean / (1 - 0.98**k))
    return means


wrong = ex.edits(find)
PLACE, TENTH, START = "lowest(losses)", "rates[lowest(losses)] / 10", "saved ="
ENDS, LOAD_STATE_DICT = "not loss.item() <= TIMES * min(losses, default=math.inf)", (
    "model.load_state_dict(saved)")
wrong("returning the rate at the lowest loss, not a tenth of it",
      "answer", TENTH, "rates[lowest(losses)]")
wrong("returning a tenth of the last rate", "answer", PLACE, "len(losses) - 1")
wrong("returning the rate at which the loss falls most in one step",
      "answer", TENTH, "rates[steepest(losses)]")
wrong("returning a tenth of the rate at which np.gradient finds the steepest fall", "answer",
      PLACE, "steepest_on_average(losses)", says="suggested rate")
wrong("smoothing the losses before looking for the lowest", "answer",
      PLACE, "lowest(smoothed(losses))", says="suggested rate")
wrong("drawing a second batch for each step", "one batch",
      "loss = loss_of(model)", "loss = loss_of(model); loss_of(model)")
wrong("using SGD with momentum", "SGD", "lr=low", "lr=low, momentum=0.9")
wrong("using Adam instead of SGD", "SGD", "optim.SGD", "optim.Adam")
wrong("never clearing the gradients", ("SGD", "left over"),
      "opt.zero_grad()", "pass")
wrong("clearing gradients after the step instead of before it", "left over",
      "opt.zero_grad()", "pass", "opt.step()", "opt.step(); opt.zero_grad()",
      says="weights at draw")
wrong("adding an amount to the rate instead of multiplying the rate by a factor", "rates",
      "low * (high / low) ** (k / (steps - 1))", "low + (high - low) * k / (steps - 1)")
wrong("using k / steps as the exponent, which never reaches the last rate", "rates", "steps - 1",
      "steps")
wrong("starting at low * factor instead of at low", "rates", "low) ** (k", "low) ** (k + 1")
wrong("taking at least three steps", "two steps", START, f"steps = max(3, steps); {START}")
wrong("pairing each loss with the previous step's rate", "before",
      PLACE, "max(0, lowest(losses) - 1)")
wrong("recording a loss drawn after the step instead of before it", "before",
      ENDS, "False", "losses.append", "loss = loss_of(model)\n        "
      f"if {ENDS}: break\n        losses.append")
wrong("taking the last of several equal losses", "first",
      PLACE, "max(k for k, loss in enumerate(losses) if loss == losses[lowest(losses)])",
      says="suggested rate")
wrong(f"testing loss > {TIMES} * best, which is false for NaN", "NaN",
      ENDS, "loss.item() > TIMES * lowest_of(losses)", says="batches drawn")
wrong("starting with a number such as 1000 as the lowest loss", "times",
      "min(losses, default=math.inf)", "min([1000.0, *losses])", says="")
wrong("stopping early only at a NaN", "times", ENDS, "loss.isnan()")
wrong(f"stopping even at exactly {TIMES} times the lowest loss", "times",
      ENDS, ENDS.replace("<=", "<"), says="batches drawn")
wrong(f"stopping at more than {TIMES} times the first loss", "times",
      "min(losses, default=math.inf)", "(losses or [math.inf])[0]", says="batches drawn")
wrong(f"stopping at more than {TIMES} times the previous loss", "times",
      "min(losses, default=math.inf)", "(losses or [math.inf])[-1]", says="batches drawn")
wrong("not restoring the weights that the test has changed", "as before",
      LOAD_STATE_DICT, "pass", says="Keep a copy")
wrong("restoring only the parameters, not the buffers", "as before",
      "saved =", "own_saved = [p.detach().clone() for p in model.parameters()]; saved =",
      LOAD_STATE_DICT, "pass", "return out",
      "with torch.no_grad():\n        for p, old in zip(model.parameters(), own_saved, "
      "strict=True): p.copy_(old)\n    return out", says="Keep a copy")
wrong("replacing the parameters with new ones", "objects",
      "saved =", "own_saved = copy.deepcopy(model.state_dict()); saved =", LOAD_STATE_DICT, "pass",
      "return out",
      "model.load_state_dict({k: v.clone() for k, v in own_saved.items()}, assign=True); return "
      "out")
