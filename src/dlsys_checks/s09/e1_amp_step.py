"""Exercise 09.1, `amp_step`."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.1", "amp_step", seen=("start", "groups", "optimizer", "scale", "calls"),
              says="got")

HALF = ("float16, clipped", "float16, gradients that need the scale", "an overflow",
        "an overflow with momentum", "both formats in turn", "Adam in float16",
        "a scale that grows", "many small tensors", "old gradients", "NaN left over",
        "a parameter outside the loss")
ex.promise("step", "Take one step of opt under CPU autocast.", says=("change of parameter",))
ex.promise("returns", "Return the gradient's norm.", says=("norm returned",))
ex.promise("once", "loss_of() returns the loss, a float32 scalar. Call it once.",
           says=("calls of loss_of",))
ex.promise("dtype", "Call loss_of() under autocast with dtype.", says=("autocast in call",))
ex.promise("scaler", "With torch.float16, use the scaler and update it once.", cases=HALF)
ex.promise_table("""
bfloat16 | With torch.bfloat16, do not touch the scaler. | case bfloat16, clipped; not clipped;
           bfloat16, small gradients; both formats in turn; three groups; old gradients; NaN left
           over; the example; many small tensors; a parameter outside the loss
old      | Ignore old gradients. | change of parameter; norm returned; scale after
all      | The norm is the global norm over all parameter groups. | case three groups; many small
           tensors; bfloat16, clipped; float16, clipped; Adam in float16; old gradients; NaN left
           over; both formats in turn; a scale that grows; an overflow with momentum; a parameter
           outside the loss
clip     | If the norm is larger than max_norm, clip it to max_norm. | change of parameter
outside  | Parameters that the loss does not use are ignored. | case a parameter outside the loss
overflow | If a float16 gradient overflows, skip the step: the parameters and opt's state do not
           change. | case an overflow; an overflow with momentum
before   | Returns: The norm before clipping, without the scale, as a float. | norm returned
infinite | After an overflow, the norm is inf or nan. | case an overflow; an overflow with momentum
           | norm returned
example  | Example: with gradient (3, 4), max_norm 1 and SGD at a rate of 1, the step is (-0.6,
           -0.8) and the norm is 5.0. | case the example
""")


# Losses are linear in the weights and all numbers small integers times a power of two, so that
# 16 bits hold each gradient exactly and only the learner's own steps round.
@ex.cases
def cases(g):
    whole = integers(g)

    def small_integers(*shape):
        draw = torch.randint(1, 4, shape, generator=g).float()
        return draw * (torch.randint(0, 2, shape, generator=g) * 2 - 1)

    def call(shapes, dtype, size=0, max_norm=0.5, before=()):
        return {"dtype": dtype, "max_norm": max_norm, "before": list(before),
                "x": [small_integers(3, width) for _, width in shapes],
                "c": [small_integers(3, rows) * 2.0**size for rows, _ in shapes]}

    def one(name, *calls, groups=(2,), lr=0.1, scale=10, optimizer="SGD", **options):
        shapes = [(whole(1, 4), whole(1, 5)) for _ in range(sum(groups))]
        made = [call(shapes, *given, **more) for given, more in calls]
        rates = [lr * (1 + float(torch.rand((), generator=g))) for _ in groups]
        return name, {"start": [torch.randn(shape, generator=g) for shape in shapes],
                      "groups": [list(groups), rates], "calls": made,
                      "optimizer": [optimizer, options], "scale": 2.0**scale}

    def bf16(**more):
        return ("bfloat16",), more

    def fp16(**more):
        return ("float16",), more

    def example():
        return {"dtype": "bfloat16", "max_norm": 1.0, "before": [], "c": [torch.ones(1, 1)],
                "x": [torch.tensor([[3.0, 4.0]])]}
    def outside():
        """The second of three parameters is not in the loss, and has an old gradient."""
        old = [3.0, -5.0, 2.0]
        name, inputs = one("a parameter outside the loss", bf16(before=old), fp16(before=old),
                           groups=(2, 1))
        for made in inputs["calls"]:
            made["c"][1] = None
        return name, inputs

    loose, tight = 900.0, 0.1 + float(torch.rand((), generator=g))
    return [one("bfloat16, clipped", bf16(max_norm=tight), bf16(), bf16(max_norm=2e-4)),
            one("float16, clipped", fp16(max_norm=tight), fp16(), fp16(max_norm=2e-4)),
            one("not clipped", bf16(max_norm=loose), bf16(max_norm=loose), lr=0.02),
            one("bfloat16, small gradients", bf16(size=-40, max_norm=loose), lr=2.0**38),
            one("float16, gradients that need the scale", fp16(size=-26, max_norm=loose),
                fp16(size=-26, max_norm=loose), lr=2.0**24, scale=whole(14, 17)),
            one("an overflow", fp16(), lr=0.2, scale=whole(17, 20)),
            one("an overflow with momentum", fp16(size=-4), fp16(size=5), fp16(size=-4),
                fp16(size=-4), scale=13, momentum=0.9),
            one("both formats in turn", bf16(), fp16(), bf16(), fp16(), momentum=0.5),
            one("a scale that grows", *[fp16() for _ in range(whole(4, 7))], scale=whole(3, 6)),
            one("Adam in float16", fp16(max_norm=tight), fp16(), fp16(), optimizer="Adam",
                lr=0.01, scale=whole(5, 8), eps=0.1),
            one("three groups", bf16(max_norm=tight), bf16(), groups=(1, 2, 1)),
            one("many small tensors", bf16(max_norm=tight), fp16(max_norm=tight),
                groups=(whole(9, 15),)),
            one("old gradients", fp16(before=[3.0, -5.0]), bf16(before=[7.0, 2.0])),
            outside(),
            one("NaN left over", fp16(before=[math.nan, 1.0]), bf16(before=[math.inf, math.nan])),
            ("the example", {"start": [torch.zeros(1, 2)], "groups": [[1], [1.0]],
                             "optimizer": ["SGD", {}], "scale": 1024.0, "calls": [example()]})]


@ex.act
def act(fn, start, groups, optimizer, scale, calls):
    weights = [nn.Parameter(w.clone()) for w in start]
    left, parts = list(weights), []
    for count, rate in zip(*groups):
        parts.append({"params": [left.pop(0) for _ in range(count)], "lr": rate})
    opt = getattr(torch.optim, optimizer[0])(parts, lr=1.0, **optimizer[1])
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    out = {"changes": [], "norms": [], "scales": [], "tracked": [], "seen": []}

    def one_call(call):
        seen = []

        def loss_of():
            live = torch.is_autocast_enabled("cpu")
            seen.append(str(torch.get_autocast_dtype("cpu")) if live else "none")
            total = torch.zeros(())
            for w, x, c in zip(weights, call["x"], call["c"]):
                if c is not None:
                    total = total + (F.linear(x, w).float() * c).sum()
            return total

        for w, value in zip(weights, call["before"]):
            w.grad = torch.full_like(w, value)
        before = [w.detach().clone() for w in weights]
        norm = fn(opt, scaler, loss_of, getattr(torch, call["dtype"]), call["max_norm"])
        strange = type(norm) is float and not math.isfinite(norm)
        out["norms"].append("inf or nan" if strange else norm)
        out["changes"].append([w.detach() - old for w, old in zip(weights, before)])
        state = scaler.state_dict()
        out["scales"].append(state["scale"])
        out["tracked"].append(state["_growth_tracker"])
        out["seen"].append(seen)
    for call in calls:
        one_call(call)
    return out


@ex.law
def law(out, start, groups, optimizer, scale, calls):
    expect_parts(out, "changes", "norms", "scales", "tracked", "seen")
    for part in out:
        expect_length(part, out[part], len(calls))
    weights, opt = in_double(start, groups, optimizer)
    tracker = 0
    for k, call in enumerate(calls):
        seen = out["seen"][k]
        expect_length("calls of loss_of", seen, 1)
        expect_equal(f"autocast in call {k}", seen[0], f"torch.{call['dtype']}")
        slopes = [torch.zeros_like(w) if c is None else c.double().T @ x.double()
                  for w, x, c in zip(weights, call["x"], call["c"], strict=True)]
        half = call["dtype"] == "float16"
        largest = max(float(v.abs().max()) for v in (*slopes, *call["c"]) if v is not None)
        over = half and largest * scale > 65504
        norm = math.inf if over else math.sqrt(sum(float((s * s).sum()) for s in slopes))
        share = min(1.0, call["max_norm"] / norm) if norm else 1.0  # small integers can cancel
        moves = stepped(weights, opt, slopes, share, over)
        compare(out, k, moves, norm, weights)
        if half:
            tracker = 0 if over else tracker + 1
            scale = scale / 2 if over else scale
            if tracker == 2:
                scale, tracker = scale * 2, 0
        expect_equal(f"scale after call {k}", out["scales"][k], scale,
                     "Update the scaler once in float16, never in bfloat16.")
        expect_equal(f"scaler's count of good steps after call {k}", out["tracked"][k], tracker,
                     "Update the scaler once in float16, never in bfloat16.")


def compare(out, k, moves, norm, weights):
    """The changes of call k, and the norm returned."""
    got = out["changes"][k]
    expect_length("weights", got, len(moves))
    most = max(float(m.abs().max()) for m in moves)
    for place, (mine, right) in enumerate(zip(got, moves, strict=True)):
        # A weight in float32 cannot show a change finer than its own rounding.
        atol = 1e-4 * most + 3e-7 * float(weights[place].detach().abs().max())
        expect_close(f"change of parameter {place} in call {k}", mine, right.float(), rtol=1e-3,
                     atol=atol, look="Take one step, with unscaled gradients clipped by their "
                                     "norm over all parameters.")
    if norm == math.inf:
        if out["norms"][k] != "inf or nan":
            raise Broken(f"norm returned by call {k}", out["norms"][k], "inf or nan")
    else:
        expect_close(f"norm returned by call {k}", out["norms"][k], norm, rtol=1e-4)


def in_double(start, groups, optimizer):
    """The weights in float64, and their optimizer."""
    weights = [w.double().requires_grad_() for w in start]
    ends = [sum(groups[0][:n + 1]) for n in range(len(groups[0]))]
    parts = [{"params": weights[end - count:end], "lr": rate}
             for end, count, rate in zip(ends, *groups, strict=True)]
    return weights, getattr(torch.optim, optimizer[0])(parts, lr=1.0, **optimizer[1])


def stepped(weights, opt, slopes, share, over):
    """What one step changes; nothing after an overflow."""
    before = [w.detach().clone() for w in weights]
    for w, slope in zip(weights, slopes, strict=True):
        w.grad = slope * share
    if not over:
        opt.step()
    return [w.detach() - old for w, old in zip(weights, before, strict=True)]


def tensors(opt):
    return [p for group in opt.param_groups for p in group["params"]]


def used_ones(opt):
    """Those that have a gradient."""
    return [p for p in tensors(opt) if p.grad is not None]


# ---- wrong, by name

@not_an_answer
def amp(opt, scaler, loss_of, dtype, max_norm, *, clip=nn.utils.clip_grad_norm_):
    half = dtype == torch.float16
    opt.zero_grad()
    with torch.autocast("cpu", dtype, enabled=True):
        loss = loss_of()
    (scaler.scale(loss) if half else loss).backward()
    if half:
        scaler.unscale_(opt)
    norm = float(clip(used_ones(opt), max_norm))
    scaler.step(opt) if half else opt.step()
    for _ in range(1 if half else 0):
        scaler.update()
    return norm


wrong = ex.edits(amp)
FLOAT16 = "dtype == torch.float16"
wrong("using the scaler in bfloat16 as well", "bfloat16",
      FLOAT16, FLOAT16 + " or True", says="count of good steps")
wrong("clipping the gradient while it is still scaled",
      ("step", "returns", "scaler", "all", "clip", "old", "before", "overflow"),
      "half:", "half and False:")
wrong("using the scaler in bfloat16 and clipping while the gradient is still scaled",
      ("step", "returns", "scaler", "bfloat16", "all", "clip", "old", "before", "overflow",
       "example"),
      FLOAT16, FLOAT16 + " or True", "half:", "half and False:")
wrong("using no scaler in float16", ("scaler", "overflow"), FLOAT16, FLOAT16 + " and False")
wrong("forgetting the scaler's update()", "scaler", "1 if", "0 if", says="raised RuntimeError")
wrong("taking a step in spite of the overflow", "overflow",
      "(opt) if half", "(opt) if half and False", says="change of parameter")
wrong("calling opt.step() instead of scaler.step(), with the gradients still scaled", "scaler",
      "half:", "half and False:", "(opt) if half", "(opt) if half and False",
      says="raised AssertionError")


@ex.wrong("returning before update() after an overflow, so that the scale stays too large",
          says="scale after", breaks="scaler")
def home_before_update(opt, scaler, loss_of, dtype, max_norm):
    held = copy.deepcopy(scaler.state_dict())
    norm = amp(opt, scaler, loss_of, dtype, max_norm)
    if not math.isfinite(norm):
        scaler.load_state_dict(held)
    return norm


@ex.wrong("updating the momentum although the step was skipped", says="change of parameter",
          breaks="overflow")
def state_moved(opt, scaler, *given):
    norm = amp(opt, scaler, *given)
    if not math.isfinite(norm):
        for state in opt.state.values():
            if state.get("momentum_buffer") is not None:
                state["momentum_buffer"].mul_(0.9)
    return norm


wrong("leaving out autocast", "dtype", '"cpu", dtype', '"cpu", None', "True", "False")
wrong("always using autocast with bfloat16", "dtype",
      '"cpu", dtype', '"cpu", dtype if torch.bfloat16 == "right" else torch.bfloat16')
ex.wrong("subtracting lr times the gradient, whatever the optimizer does",
         lambda opt, scaler, loss_of, dtype, max_norm: amp(torch.optim.SGD([{"params":
             group["params"], "lr": group["lr"]} for group in opt.param_groups], lr=1.0), scaler,
             loss_of, dtype, max_norm), breaks="step")
wrong("computing the loss twice", "once",
      "half =", 'with torch.autocast("cpu", dtype): loss_of()\n    half =')
wrong("adding to the gradients left over from before the call",
      "old", "opt.zero_grad()", "pass", says="got", trap="02.1")
ex.wrong("not clipping at all", amp, breaks=("step", "clip", "all", "example"),
         clip=lambda params, _: nn.utils.get_total_norm([p.grad for p in params]))


@ex.wrong("clamping each value at max_norm instead of clipping the norm", breaks=("all", "clip"))
def clip_values(*given):
    def cut(params, limit):
        whole = nn.utils.get_total_norm([p.grad for p in params])
        nn.utils.clip_grad_value_(params, limit)
        return whole
    return amp(*given, clip=cut)


@ex.wrong("clipping each parameter by its own norm", breaks=("all", "clip"))
def clip_each(*given):
    def each(params, limit):
        whole = nn.utils.get_total_norm([p.grad for p in params])
        for p in params:
            nn.utils.clip_grad_norm_([p], limit)
        return whole
    return amp(*given, clip=each)


@ex.wrong("clipping each parameter group by its own norm", breaks="all")
def clip_groups(opt, *given):
    def groups(params, limit):
        whole = nn.utils.get_total_norm([p.grad for p in params])
        for group in opt.param_groups:
            nn.utils.clip_grad_norm_(group["params"], limit)
        return whole
    return amp(opt, *given, clip=groups)


wrong("clipping only the first group", "all",
      "(clip", "(nn.utils.clip_grad_norm_", "used_ones(opt)", 'opt.param_groups[0]["params"]')


@ex.wrong("scaling small gradients up to the limit", breaks="clip")
def stretched(*given):
    def stretch(params, limit):
        whole = nn.utils.get_total_norm([p.grad for p in params])
        for p in params:
            p.grad.mul_(limit / whole)
        return whole
    return amp(*given, clip=stretch)


@ex.wrong("returning the norm after clipping", breaks=("before", "example"))
def norm_after(*given):
    norm = amp(*given)
    return min(norm, given[-1]) if math.isfinite(norm) else norm


wrong("returning the norm of the scaled gradient", "returns",
      "half =", f"scale = scaler.get_scale() if {FLOAT16} else 1.0; half =",
      "return norm", "return scale * norm")


@ex.wrong("returning the norm as a tensor", says="type of the norm returned", breaks="before")
def as_tensor(*given):
    norm = amp(*given)
    return torch.tensor(norm) if math.isfinite(norm) else norm


@ex.wrong("returning 0 after an overflow", breaks="infinite")
def zero_returned(*given):
    norm = amp(*given)
    return norm if math.isfinite(norm) else 0.0


@ex.wrong("counting old gradients of parameters outside the loss", breaks="outside")
def old_outside(opt, scaler, loss_of, dtype, max_norm):
    old = {p: p.grad for p in tensors(opt)}

    def clip(params, limit):
        missing = [p for p in old if p.grad is None]
        for p in missing:
            p.grad = old[p]
        return nn.utils.clip_grad_norm_([*params, *missing], limit)
    return amp(opt, scaler, loss_of, dtype, max_norm, clip=clip)


wrong("assuming that each parameter has a gradient", "outside",
      "half =",
      "def clip(params, limit): norm = torch.cat([p.grad.flatten() for p in "
      "tensors(opt)]).norm(); return nn.utils.clip_grad_norm_(params, limit) + 0 * norm\n    "
      "half =", says="has no attribute")
wrong("clearing gradients after the step instead of before it, so that old gradients count", "old",
      "opt.zero_grad()", "pass", "return norm", "opt.zero_grad(); return norm", says="")
wrong("never clipping to a norm below 0.001", "clip",
      "(opt), max_norm", "(opt), max(max_norm, 1e-3)")
