"""Exercise 09.12, `clip_shards`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer
from dlsys_helpers.lockstep import expect_agreement

# Kept: where the norm is small no shard changes.
ex = exercise("09.12", "clip_shards", seen=("parts", "max_norm", "views"), kept=("shards",),
              says="when the norm is small")

ex.promise_table("""
in place | Clip this rank's shards in place. | shard; other tensors in the list
norm     | Return the whole gradient's norm. | norm on rank; norm returned
shapes   | Args: shards: this rank's parts of the gradients, float32, of any shape; some can have no
           elements, and a rank can have no shards. | case shards without elements; a rank that
           holds none; shards without dimensions; shards that are views
calls    | all_sum(tensor): returns the sum over ranks, a new tensor. All ranks must call it the
           same number of times, in the same order, with the same shapes and dtypes. | what the
           ranks ask for
clip     | If the norm of the whole gradient (all shards of all ranks) is above max_norm > 0, clip
           it to max_norm, up to a relative error of 1e-4. | shard
small    | Otherwise change no shard. | case a norm below the limit; all zeros; a norm just below
           the limit
before   | The sum of all squares fits into float32. Return the norm before clipping. | norm on rank
example  | Example: shards [3.] on this rank and [4.] on another, with max_norm 1, give 5.0, and
           this rank's shard becomes [0.6]. | case the example
""")


@ex.cases
def cases(g):
    def one(name, *ranks, limit=0.5, scale=1.0, views=False):
        """limit: a share of the whole norm, so that the clip acts for any draw."""
        parts = [[scale * torch.randn(shape, generator=g) for shape in shapes]
                 for shapes in ranks]
        whole = torch.cat([t.flatten() for part in parts for t in part] + [torch.zeros(1)])
        return name, {"parts": parts, "views": views,
                      "max_norm": float(f"{limit * float(whole.norm()):.4g}") or 1.0}
    few = [(3,), (2, 4), (5,)]
    return [one("two ranks", few, few), one("one rank alone", few),
            one("four ranks", few, [(7,)], [(2, 2), (1,)], few),
            one("one rank with most of the norm", [(40, 40)], [(2,)], limit=0.3),
            one("a norm that only the whole exceeds", few, few, limit=0.95),
            one("a norm just above the limit", few, few, limit=0.998),
            one("a norm below the limit", few, few, limit=1.5),
            one("a norm just below the limit", few, few, limit=1.002),
            one("all zeros", few, few, scale=0.0),
            one("shards without elements", [(3,), (0,)], [(0, 4), (2, 2)]),
            one("a rank that holds none", few, [], few),
            one("shards without dimensions", [(), (2,)], [(), ()]),
            one("shards that are views", [(4, 3), (2, 5)], [(3, 3)], views=True),
            one("a large gradient", few, few, scale=1e6, limit=1e-4),
            one("a small gradient", few, few, scale=1e-5, limit=0.2),
            ("the example", {"parts": [[torch.tensor([3.0])], [torch.tensor([4.0])]],
                             "max_norm": 1.0, "views": False})]


@ex.act
def act(fn, parts, max_norm, views):
    from dlsys_helpers.lockstep import in_lockstep

    def laid_out(t):
        """The same numbers; as a view with gaps where the case asks for one."""
        if not views:
            return t.clone()
        wide = torch.full((t.shape[1], 2 * t.shape[0]), 7.0)
        view = wide[:, ::2].T
        view.copy_(t)
        return view

    def run(rank, all_sum):
        mine = [laid_out(t) for t in parts[rank]]
        held = list(mine)
        places = [t.detach() for t in mine]  # what else looks at the same memory
        norm = fn(mine, max_norm, all_sum)
        others = len(mine) != len(held) or sum(a is not b for a, b in zip(mine, held, strict=False))
        others += sum(not torch.equal(a.nan_to_num(), b.nan_to_num())
                      for a, b in zip(places, held))
        return {"norm": norm, "shards": held, "others": int(others)}

    return in_lockstep(run, range(len(parts)))


@ex.law
def law(out, parts, max_norm, views):
    expect_agreement(out, len(parts))
    whole = torch.cat([t.flatten().double() for part in parts for t in part])
    norm = float(torch.linalg.vector_norm(whole))
    factor = max_norm / norm if norm > max_norm else 1.0
    for rank, (done, part) in enumerate(zip(out["ranks"], parts, strict=True)):
        expect_parts(done, "norm", "shards", "others", what=f"run of rank {rank}")
        expect_equal("other tensors in the list of shards", done["others"], 0,
                     "Change the tensors themselves.")
        expect_length("shards", done["shards"], len(part))
        for got, given in zip(done["shards"], part, strict=True):
            if factor == 1:
                expect_equal(f"shard of rank {rank}, when the norm is small", got, given)
            expect_close(f"shard of rank {rank} after clipping", got,
                         (given.double() * factor).float(), rtol=3e-4)
        expect_close(f"norm on rank {rank}", done["norm"], norm, rtol=1e-4)


@not_an_answer
def clipped(shards, max_norm, all_sum):
    squares = sum((s * s).sum() for s in shards) + torch.zeros(())
    norm = all_sum(squares).sqrt().item()
    if norm > max_norm:
        for s in shards:
            s.mul_(max_norm / norm)
    return norm


# ---- wrong, by name

wrong = ex.edits(clipped)
LOOP = "for s in shards:\n            s.mul_(max_norm / norm)"
wrong("clipping each rank by its own norm", ("clip", "norm"), "all_sum(squares)", "squares")
wrong("clipping by the rank's own norm, but returning the right norm", "clip",
      "max_norm / norm", "min(1.0, max_norm / (squares.sqrt().item() or 1.0))")
wrong("adding up norms, not their squares", ("clip", "norm", "small"),
      "all_sum(squares).sqrt()", "all_sum(squares.sqrt())")
wrong("averaging the squares over the ranks", ("clip", "norm"),
      "all_sum(squares)", "torch.div(*all_sum(torch.stack([squares, torch.ones(())])))")
wrong("forgetting the square root", ("clip", "norm", "small"), ".sqrt()", "", says="")
wrong("scaling small gradients up to the limit", "small", "norm > max_norm", "norm > 0")
wrong("stacking the norms of a rank's shards although a rank can have no shards", "shapes",
      "sum((s * s).sum() for s in shards) + torch.zeros(())",
      "torch.stack([s.norm() for s in shards]).square().sum()", says="raised RuntimeError")
wrong("dividing by the norm of a zero gradient, which gives NaN", "small",
      "norm > max_norm", "norm > max_norm or not norm",
      "s.mul_(max_norm / norm)", "s.mul_(max_norm).div_(norm)")
wrong("clipping already when the norm is a little below the limit", "small",
      "norm > max_norm", "norm > 0.99 * max_norm",
      "max_norm / norm", "max_norm / norm if norm > max_norm else 0.99 * max_norm / norm")
wrong("clipping each tensor on its own", ("clip", "small"),
      "max_norm / norm", "min(1.0, max_norm / max(1e-30, s.norm().item()))")
wrong("clipping the first tensor only", "clip", "in shards:", "in shards[:1]:")
wrong("clamping each value at the limit", ("clip", "small"),
      "norm > max_norm", "True",
      "s.mul_(max_norm / norm)", "s.clamp_(-max_norm / 9, max_norm / 9)")
wrong("clipping correctly, but returning the rank's own norm",
      "norm", "return norm", "return squares.sqrt().item()")
wrong("returning the norm after clipping", "before", "return norm", "return min(norm, max_norm)")
wrong("returning the norm as a tensor", "norm",
      "return norm", "return torch.tensor(norm)", says="type of the norm")
wrong("putting new tensors into the list instead of changing the shards", "in place",
      LOOP, "shards[:] = [s * (max_norm / norm) for s in shards]")
wrong("making a list of scaled copies but not changing the shards themselves", "in place",
      LOOP, "shards = [s * (max_norm / norm) for s in shards]")
wrong("adding an epsilon to a small norm", "clip", "max_norm / norm", "max_norm / (norm + 1e-6)")
wrong("scaling the result of reshape(), which can be a copy", ("in place", "shapes"), "s.mul_",
      "s.reshape(-1).mul_")
wrong("returning early on a rank without shards", ("calls", "shapes"),
      "squares =", "if not shards: return 0.0\n    squares =")
wrong("calling all_sum per tensor, although ranks hold unequal numbers", "calls",
      "all_sum(squares).sqrt().item()", "float(sum(all_sum((s * s).sum()) for s in shards) ** 0.5)")
wrong("leaving out tensors without dimensions", "shapes",
      "squares =", "shards = [s for s in shards if s.dim()]; squares =", says="")
wrong("giving the shards new memory", "in place",
      "s.mul_(max_norm / norm)", "s.data = s.data * (max_norm / norm)")
wrong("not clipping when the norm is just above the limit", "clip",
      "norm > max_norm", "norm > 1.01 * max_norm")
