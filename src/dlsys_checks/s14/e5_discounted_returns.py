"""Exercise 14.5, `discounted_returns`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import floats
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("14.5", "discounted_returns", seen=("rewards", "ended", "after", "gamma", "graph"),
              kept=("returns",), says="returns")

ex.promise_table("""
returns | Compute the discounted return of every step, (N, T). A step's return is its reward plus
          gamma times the return of the next step. | returns; type of the; shape of the
episode | The next step counts only if it belongs to the same episode. | case a row with ends; rows
          with different ends; an end in every step; an end in the first step; the example
inputs  | rewards: (N, T), N rows of T steps. ended: (N, T) bool, True at the last step of an
          episode. The row then continues with the next episode. | case one step; as many rows as
          steps; rewards of 0; negative rewards
after   | after: (N,), the value of all that follows the last column. It counts like the return of
          one more step, but only in rows whose last step did not end an episode. | case no end, and
          a value after; an end in the last step; an end in the first step; one step; rows with
          different ends; after with a graph; a value below 0; the example; float32; as many rows as
          steps; gamma of 1; a small gamma
gamma   | gamma: from 0 to 1. | case gamma of 0; gamma of 1; a small gamma
dtype   | rewards and after are both float32 or both float64, and the result has the same dtype. |
          dtype of the
graph   | The result has no graph, even if after has one. | graph of the returns
left    | Inputs are not changed. | numbers changed; cut of
example | Example: rewards [[1., 1., 1., 1.]], ended [[False, True, False, False]], after [8.],
          gamma 0.5 give [[1.5, 1., 3.5, 5.]]. | case the example
""")


@ex.cases
def cases(g):
    between = floats(g)

    def one(name, ends, *, gamma=None, sign=1, graph=False, dtype=torch.float64):
        ended = torch.tensor([[c == "x" for c in row] for row in ends.split()])
        rewards = 0.5 + torch.rand(ended.shape, generator=g, dtype=torch.float64)
        after = 3 + 4 * torch.rand(len(ended), generator=g, dtype=torch.float64)
        return name, {"rewards": (sign * rewards).to(dtype), "ended": ended,
                      "after": (sign * after).to(dtype), "graph": graph,
                      "gamma": between(0.6, 0.95) if gamma is None else gamma}

    below = one("a value below 0", "..x.. .....")
    below[1]["after"] *= -1
    zeros = one("rewards of 0", "..x..x. .......")
    zeros[1]["rewards"][:, ::2] = 0.0
    mixed = one("negative rewards", "..x..x. x......")
    mixed[1]["rewards"][:, ::2] *= -1
    return [one("a row with ends", "..x...x.x"),
            one("rows with different ends", "..x...x. .x....x. ........ .....x.x"),
            one("no end, and a value after", "...... ......"),
            one("an end in the last step", "..x..x .....x ......"),
            one("an end in every step", "xxxx xxxx"),
            one("an end in the first step", "x..... ......"),
            one("one step", ". x ."), one("as many rows as steps", "..x. .... x..x .x.."),
            one("gamma of 0", "..x.. .....", gamma=0.0),
            one("gamma of 1", "..x.. .....", gamma=1.0),
            one("a small gamma", "..x.. .....", gamma=between(0.05, 0.2)),
            below, zeros, mixed, one("after with a graph", "..x.. .....", graph=True),
            one("float32", "..x...x. ........", dtype=torch.float32),
            ("the example", {"rewards": torch.ones(1, 4),
                             "ended": torch.tensor([[False, True, False, False]]),
                             "after": torch.tensor([8.0]), "gamma": 0.5, "graph": False})]


@ex.act
def act(fn, rewards, ended, after, gamma, graph):
    weight = torch.ones((), dtype=after.dtype, requires_grad=True)
    given = (rewards.clone(), ended.clone(), after * weight if graph else after.clone())
    kept = [t.detach().clone() for t in given]
    out = fn(*given, gamma)
    changed = sum(int((a.detach() != b).sum()) for a, b in zip(given, kept, strict=True))
    has_graph = isinstance(out, torch.Tensor) and out.requires_grad
    return {"returns": out.detach() if has_graph else out, "graph": has_graph, "moved": changed,
            "cut": "after" if given[2].requires_grad != graph else "none"}


@ex.law
def law(out, rewards, ended, after, gamma, graph):
    expect_parts(out, "returns", "graph", "moved", "cut")
    expect_equal("numbers changed in the inputs", out["moved"], 0, "Work on copies.")
    expect_equal("graph of the inputs: cut of", out["cut"], "none",
                 "detach() returns a new tensor; detach_() detaches the caller's own.")
    n, steps = rewards.shape
    expected = torch.zeros(n, steps, dtype=torch.float64)
    for i in range(n):
        for t in range(steps):
            last = next((k for k in range(t, steps) if ended[i, k]), None)
            end = steps - 1 if last is None else last
            terms = [gamma ** (k - t) * float(rewards[i, k]) for k in range(t, end + 1)]
            if last is None:
                terms.append(gamma ** (steps - t) * float(after[i]))
            expected[i, t] = sum(terms)
    low = rewards.dtype == torch.float32
    size = float(rewards.abs().sum(1).max() + after.abs().max())
    expect_close("returns", out["returns"], expected.to(rewards.dtype), rtol=0.0,
                 atol=size * (1e-5 if low else 1e-10))
    expect_equal("graph of the returns", out["graph"], False, "after is a number here: detach it.")


# ---- wrong, by name

@not_an_answer
def made(rewards, ended, after, gamma):
    out, later = torch.empty_like(rewards), after.detach()
    for t in reversed(range(rewards.shape[1])):
        later = rewards[:, t] + gamma * later * ~ended[:, t]
        out[:, t] = later
    return out


wrong = ex.edits(made)
MASK, START = " * ~ended[:, t]", "after.detach()"
SUM = f"rewards[:, t] + gamma * later{MASK}"
# https://github.com/bentrevett/pytorch-rl/issues/1
wrong("carrying the return across the end of an episode",
      ("episode", "inputs", "after", "gamma", "example"), MASK, "")
# https://github.com/EdanToledo/Stoix/issues/142
wrong("using the next step's end flag", ("episode", "inputs", "after", "gamma", "example"),
      MASK, " * ~ended[:, min(t + 1, rewards.shape[1] - 1)]")
wrong("using the previous step's end flag", ("episode", "inputs", "after", "gamma", "example"),
      MASK, " * ~ended[:, max(t - 1, 0)]")
wrong("carrying the return only across the ends of episodes",
      ("returns", "episode", "inputs", "after", "gamma",
                                               "example"), "~ended", "ended")
wrong("dropping the reward of an episode's last step",
      ("episode", "inputs", "after", "gamma", "example"), SUM,
      "(rewards[:, t] + gamma * later) * ~ended[:, t]")
wrong("stopping the sum in every row where an episode ends in any row",
      ("episode", "inputs", "after", "gamma"),
      MASK, " * ~ended[:, t].any()")
wrong("leaving out the value after the last column", ("after", "inputs", "gamma", "example"), START,
      "torch.zeros_like(after)")
wrong("adding the value after the last column even if the last step ended an episode",
      ("episode", "after", "inputs"), SUM,
      "rewards[:, t] + gamma * later * (~ended[:, t] | (t == rewards.shape[1] - 1))")
wrong("adding the value after the last column without discounting it",
      ("after", "inputs", "gamma", "example"), START,
      "after.detach() / max(gamma, 1e-9)")
wrong("discounting the value after the last column twice",
      ("after", "inputs", "gamma", "example"), START,
      "after.detach() * gamma")
wrong("taking the value after the last column as the return of the last step",
      ("episode", "after", "inputs", "gamma", "example"), SUM,
      "after.detach() if t == rewards.shape[1] - 1 else " + SUM)
wrong("using no discount", ("returns", "gamma", "example"), "gamma * later", "later")
wrong("discounting the step's own reward", ("returns", "gamma", "example"), SUM,
      "gamma * (rewards[:, t] + later * ~ended[:, t])")
wrong("discounting the step's reward instead of the return that follows",
      ("returns", "gamma", "example"), SUM,
      "gamma * rewards[:, t] + later * ~ended[:, t]")
wrong("always discounting by 0.99", ("returns", "gamma", "example"),
      "gamma * later", "0.99 * later")
wrong("adding only the next step's reward instead of its return", ("returns", "gamma", "example"),
      "out[:, t] = later",
      "out[:, t] = later; later = rewards[:, t]")
wrong("going through the steps from the first to the last", ("returns", "inputs", "example"),
      "reversed(range(rewards.shape[1]))", "range(rewards.shape[1])")
wrong("normalizing the returns", ("returns", "inputs", "example"), "return out",
      "return (out - out.mean()) / (out.std(correction=0) + 1e-8)")
wrong("treating a reward of 0 as an end", "inputs", MASK,
      " * (~ended[:, t] & (rewards[:, t] != 0))")
wrong("treating a negative reward as an end", "inputs", MASK,
      " * (~ended[:, t] & (rewards[:, t] >= 0))")
wrong("raising negative values after the last column to 0",
      "after", START, "after.detach().clamp(min=0)")
wrong("always computing in float32", "dtype", "return out", "return out.float()",
      says="dtype of the")
wrong("always computing in float64", "dtype", "return out", "return out.double()",
      says="dtype of the")
wrong("returning a list of rows", "returns", "return out", "return out.tolist()",
      says="type of the")
wrong("returning the transposed result, (T, N)",
      "returns", "return out", "return out.T", says="shape of the")
wrong("keeping the graph of the value after the last column in the returns",
      "graph", "torch.empty_like(rewards), after.detach()",
      "torch.zeros_like(rewards), after", "out[:, t] = later",
      "out = out.clone(); out[:, t] = later", says="graph of the returns")
wrong("writing the returns into rewards", "left", "torch.empty_like(rewards)", "rewards")
wrong("detaching the argument after in place, with detach_()",
      "left", START, "after.detach_()", says="cut of")
wrong("overwriting the argument after with 0 where the last step ended an episode",
      "left", "return out",
      "after.data.mul_(~ended[:, -1]); return out")
