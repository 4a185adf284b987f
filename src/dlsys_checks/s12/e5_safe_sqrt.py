"""Exercise 12.5, `safe_sqrt`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_like, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.5", "safe_sqrt", seen=("x", "weight", "turned"), says="square roots")

ex.promise_table("""
root       | Compute the square root of x where x > 0. | square roots
zero       | Where x <= 0, return 0. | values where x is 0 or less
any shape  | Args: x: float32 or float64 of any shape. | case a single number; a single negative
             number; a transposed matrix; three axes; double precision; one number in a row; a row
             of one matrix; a column; no numbers
left alone | x is left as it is. | values of x that changed; in-place
dtype      | Returns: A tensor of the same dtype. | dtype of
no slope   | Where x <= 0, the gradient is 0. | gradient where x is 0 or less
slope      | Elsewhere, the square root has its usual gradient. | gradient where x is above 0;
             positions where the gradient is NaN
exact      | No constant is added, so the result is exact even for the smallest x. | case tiny
             numbers; tiny numbers in double precision; the tiniest numbers; the tiniest numbers in
             double precision
nan        | A NaN in x stays a NaN in the result. | positions that are NaN
example    | Example: [4., 0., -1.] gives [2., 0., 0.], with a gradient of [0.25, 0., 0.]. | case
             the example
""")


@ex.cases
def cases(g):
    def one(name, x, turned=False):
        return name, {"x": x, "weight": torch.randn(x.shape, generator=g, dtype=x.dtype) + 3,
                      "turned": turned}

    def mixed(*shape, dtype=torch.float32):
        x = 3 * torch.randn(shape, generator=g, dtype=dtype)
        x.view(-1)[::3] = 0
        return x
    tiny = 10 ** -(20 + 15 * torch.rand(6, generator=g, dtype=torch.float64))
    holes = mixed(7)
    holes[torch.randint(1, 3, (), generator=g)] = torch.nan
    return [one("a few numbers", mixed(9)),
            one("nothing above 0", torch.tensor([0.0, -1.0, 0.0, -0.0])),
            one("only numbers above 0", torch.rand(5, generator=g) + 0.1),
            one("minus zero", torch.tensor([-0.0, 2.0])),
            one("a single number", 1 + 4 * torch.rand((), generator=g)),
            one("a single negative number", -1 - torch.rand((), generator=g)),
            one("a transposed matrix", mixed(4, 5), turned=True), one("three axes", mixed(2, 3, 2)),
            one("double precision", mixed(8, dtype=torch.float64)),
            one("tiny numbers", tiny.float()),
            one("tiny numbers in double precision", tiny ** 3),
            one("the tiniest numbers", (tiny * 1e-20 / tiny.max()).float() * 1e-20),
            one("the tiniest numbers in double precision", tiny / tiny.max() * 1e-310),
            one("one number in a row", 1 + torch.rand(1, generator=g)),
            one("a row of one matrix", 1 + torch.rand(1, 1, 4, generator=g)),
            one("a column", mixed(3, 1)), one("no numbers", torch.zeros(0, 3)),
            one("infinities", torch.tensor([torch.inf, 1.0, -torch.inf])),
            one("a NaN among the numbers", holes),
            one("the example", torch.tensor([4.0, 0.0, -1.0]))]


@ex.act
def act(fn, x, weight, turned):
    plain = x.clone()
    fn(plain.T if turned else plain)
    fn(torch.full((2, 3), -1.0))  # an answer keeps nothing of this
    leaf = x.clone().requires_grad_()
    out = fn(leaf.T if turned else leaf)
    shown = out.T if turned else out
    if shown.requires_grad:
        (shown * weight).sum().backward()
    changed = ~((plain == x) | (plain.isnan() & x.isnan()))
    return {"out": shown, "grad": torch.zeros_like(x) if leaf.grad is None else leaf.grad,
            "changed": int(changed.sum())}


@ex.law
def law(out, x, weight, turned):
    expect_parts(out, "out", "grad", "changed")
    expect_like("square roots", out["out"], x)
    expect_like("gradient where x is above 0", out["grad"], x)
    made, grad = out["out"].flatten(), out["grad"].flatten()
    x, weight = x.flatten(), weight.flatten()
    expect_equal("positions that are NaN", made.isnan().tolist(), x.isnan().tolist(),
                 "The result is NaN only where x is NaN.")
    above, below = x > 0, x <= 0
    exact = x[above].double() ** 0.5
    expect_close("square roots", made[above], exact.to(x.dtype), rtol=1e-5, atol=0.0)
    expect_equal("values where x is 0 or less", made[below] + 0.0, torch.zeros_like(x[below]))
    expect_close("gradient where x is above 0", grad[above],
                 (weight[above].double() / 2 / exact).to(x.dtype), rtol=1e-5, atol=0.0)
    expect_equal("gradient where x is 0 or less", grad[below] + 0.0, torch.zeros_like(x[below]),
                 "Pass only numbers above 0 to the root.")
    expect_equal("positions where the gradient is NaN", grad.isnan().tolist(),
                 x.isnan().tolist(), "Where x is NaN, so is the gradient of the root.")
    expect_equal("values of x that changed", out["changed"], 0)


# ---- wrong, by name

def shifted(x, small, zero=False):
    """The root of x and a small constant; zero: and 0 where x is 0 or less."""
    root = (x.clamp(min=0) + small).sqrt()
    return torch.where(x <= 0, 0, root) if zero else root


ex.wrong("using where() only after the root, with the condition x <= 0",
         lambda x: torch.where(x <= 0, 0, x.sqrt()),
         breaks="no slope")
ex.wrong("using where() only after the root, with the condition x > 0",
         lambda x: torch.where(x > 0, x.sqrt(), 0), breaks=("no slope", "nan"))


ex.wrong("multiplying the root by a mask, where NaN times 0 is NaN", lambda x: (x > 0) * x.sqrt(),
         says="positions that are NaN", breaks=("root", "no slope", "nan"))


@not_an_answer
def mended(x):
    out = x <= 0
    found = torch.where(out, 0, torch.where(out, 1, x).sqrt())
    return found


wrong = ex.edits(mended)
wrong("treating a NaN like a number that is 0 or less", "nan",
      "out =",
      "above = x > 0; return torch.where(above, torch.where(above, x, 1).sqrt(), 0); out =")
ex.wrong("taking the root of the larger of x and 0",
         lambda x: torch.maximum(x, torch.zeros_like(x)).sqrt(), breaks="no slope")
wrong("returning a NaN that no longer depends on x", "slope",
      "out =",
      "above = x > 0; root = torch.where(above, torch.where(above, x, 1).sqrt(), 0); return "
      "torch.where(x.isnan(), torch.nan, root); out =")
ex.wrong("taking the maximum of x, which may be empty",
         lambda x: mended(x) if x.max() > 0 else x * 0.0 + mended(x), says="raised RuntimeError",
         breaks="any shape")
ex.wrong("clamping x to at least a small constant", lambda x: x.clamp(min=1e-12).sqrt(),
         breaks=("zero", "exact"))
for small in ("1e-6", "1e-8", "1e-10", "1e-12"):
    ex.wrong(f"adding {small} under the root", shifted, breaks=("zero", "exact", "slope", "root"),
             small=float(small))
    ex.wrong(f"adding {small} under the root, and setting 0 where x is 0 or less", shifted,
             breaks=("exact", "slope", "root"), small=float(small), zero=True)


wrong("returning a root that is a thousandth too large",
      "root", "return found", "return found + 0.001 * found.detach()")
wrong("treating small positive numbers as 0", "exact", "x <= 0", "x <= 1e-8")
wrong("treating subnormal numbers as 0", "exact",
      "x <= 0", "x < torch.finfo(x.dtype).tiny")
wrong("dropping dimensions of size 1", "any shape",
      "return found", "return found.squeeze()", says="shape of the square roots")
wrong("returning 1 where x is 0 or less", "zero", "out, 0", "out, 1")
ex.wrong("applying nan_to_num to the root", lambda x: x.sqrt().nan_to_num(posinf=torch.inf),
         breaks=("no slope", "nan", "root"))
wrong("detaching x", "slope", "out =", "x = x.detach(); out =")
ex.wrong("taking the absolute value under the root",
         lambda x: torch.where(x == 0, 0, torch.where(x == 0, 1, x).abs().sqrt()),
         breaks=("zero", "no slope"))
wrong("returning float32, whatever the dtype of x is", "dtype", "out =", "x = x.float(); out =")
wrong("taking the cube root", ("root", "slope"),
      "torch.where(out, 1, x).sqrt()", "torch.where(out, 1, x) ** (1 / 3)")
ex.wrong("assuming that x has at least one axis",
         lambda x: torch.stack([mended(row) for row in x]) if len(x) else x.clone(),
         says="0-d tensor", breaks="any shape")
wrong("writing zeros into x", "left alone",
      "out =", "with torch.no_grad(): x[x < 0] = 0\n    out =")
