"""Exercise 07.11, `linear_in`."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts, expect_type

ex = exercise("07.11", "linear_in", seen=("kind", "width", "shape", "train"),
              says="values of an image")

ex.promise_table("""
numbers    | Count the inputs that a Linear layer needs after the module features. | values of an
             image
any module | Args: features: any module that maps float32 (N, *shape) to (N, M, ...), with all its
             tensors registered and on the CPU. | case a norm over a single value; a sequence of
             values; a module of its own; flat already; no layer at all; a pooled map; a volume
shape      | shape: the shape of one image, without the batch. | case a tall image; many channels; a
             wide image; the same net, another shape
no number  | Compute no values. Shapes are enough, so a large image costs no more than a small one.
             | values computed; raised RuntimeError
as it is   | The module is unchanged: weights, buffers, modes, gradients and hooks. | changed in
             features
example    | Example: nn.MaxPool2d(2) and shape (3, 5, 8) give 3 x 2 x 4 = 24. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, kind, *shape, train=False):
        return name, {"kind": kind, "width": whole(3, 9), "shape": list(shape), "train": train}
    side = whole(12, 30)
    return [one("a small net", "net", 1, side, side), one("an odd side", "net", 1, 15, 15),
            one("a net in train mode", "norms", 1, side + 1, side + 1, train=True),
            one("a norm over a single value", "single", 1, 8, 8, train=True),
            one("a tall image", "net", 1, 31, 12), one("a wide image", "net", 1, 13, 40),
            one("many channels", "channels", whole(3, 7), 12, 12),
            one("a sequence of values", "sequence", 2, whole(20, 60)),
            one("a module of its own", "own", 1, side, side),
            one("flat already", "flat", 1, side, side), one("a pooled map", "pooled", 1, 40, 40),
            one("no layer at all", "nothing", 1, 5, whole(6, 30)),
            one("a volume", "volume", 2, 6, 7, whole(8, 12)),
            one("a frozen part in a live net", "mixed", 1, side, side, train=True),
            one("the same net, another shape", "net", 1, 20, 21),
            one("an image of a petabyte", "net", 1, 2**24, 2**24),
            ("the example", {"kind": "example", "width": 0, "shape": [3, 5, 8], "train": False})]


@ex.act
def act(fn, kind, width, shape, train):
    class Own(nn.Module):
        """Two branches side by side; remembers how often numbers went through it."""

        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(1, width, 3), nn.Conv2d(1, 2, 3)

        def forward(self, x):
            return torch.cat([self.one(x), self.two(x)], 1)

    def net(channels):
        return nn.Sequential(nn.Conv2d(channels, width, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(width, 7, 2), nn.ReLU())
    features = {
        "net": lambda: net(1), "channels": lambda: net(shape[0]), "own": Own,
        "norms": lambda: nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width),
                                       nn.Dropout(0.5), nn.MaxPool2d(2)),
        "single": lambda: nn.Sequential(nn.Conv2d(1, width, 3), nn.AdaptiveAvgPool2d(1),
                                        nn.BatchNorm2d(width)),
        "mixed": lambda: nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width)),
        "volume": lambda: nn.Conv3d(2, width, 3),
        "sequence": lambda: nn.Sequential(nn.Conv1d(2, width, 4, stride=3), nn.ReLU()),
        "flat": lambda: nn.Sequential(nn.Conv2d(1, width, 5), nn.Flatten()),
        "pooled": lambda: nn.Sequential(nn.Conv2d(1, width, 3), nn.AdaptiveAvgPool2d((3, 2))),
        "nothing": nn.Identity, "example": lambda: nn.MaxPool2d(2)}[kind]().train(train)
    if kind == "mixed":
        features[1].eval().requires_grad_(False)
    for p in features.parameters():
        p.grad = torch.ones_like(p)
    for module in features.modules():
        module.register_forward_pre_hook(lambda *call: None)
        module.register_forward_hook(lambda *call: None)
        module.register_full_backward_hook(lambda *call: None)
    computed = []

    class Watch(torch.overrides.TorchFunctionMode):
        """Counts the numbers that layers compute where there are numbers to compute with."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            layer = getattr(func, "__name__", "") in ("conv2d", "conv1d", "conv3d", "max_pool2d",
                                                      "relu", "adaptive_avg_pool2d", "batch_norm")
            if layer and type(made) is torch.Tensor and made.device.type != "meta":
                computed.append(made.numel())
            return made

    def facts():
        held = [*features.parameters(), *features.buffers()]
        return {"tensors": [id(t) for t in held], "modes": [m.training for m in features.modules()],
                "types": [(t.dtype, t.device, t.requires_grad) for t in held],
                "gradients": [id(p.grad) for p in features.parameters()],
                "hooks": [(len(m._forward_pre_hooks), len(m._forward_hooks), len(m._backward_hooks))
                          for m in features.modules()]}

    state = {name: value.clone() for name, value in features.state_dict().items()}
    before = facts()
    fn(features, (*shape[:-1], shape[-1] + 8))  # an answer keeps nothing of this
    with Watch():
        out = fn(features, tuple(shape))
    if isinstance(out, torch.Tensor) and out.is_meta:
        out = "a tensor without numbers"  # it could not travel
    now, after = features.state_dict(), facts()
    changed = [what for what in before if before[what] != after[what]]
    changed += [n for n, v in state.items() if now[n].device != v.device or not torch.equal(
        now[n].to(v.dtype), v)]
    return {"out": out, "computed": sum(computed), "changed": changed}


def expected(kind, width, shape):
    """Channels times places, by the formula."""
    def side(n, kernel, stride=1):
        return (n - kernel) // stride + 1

    def net(n):
        return side(side(side(n, 3, 2), 2, 2), 2)
    sides = shape[1:]
    return {"net": lambda: 7 * math.prod(map(net, sides)),
            "channels": lambda: 7 * math.prod(map(net, sides)),
            "own": lambda: (width + 2) * math.prod(n - 2 for n in sides),
            "volume": lambda: width * math.prod(n - 2 for n in sides),
            "mixed": lambda: width * math.prod(n - 2 for n in sides),
            "norms": lambda: width * math.prod((n - 2) // 2 for n in sides),
            "single": lambda: width, "sequence": lambda: width * side(sides[0], 4, 3),
            "flat": lambda: width * math.prod(n - 4 for n in sides), "pooled": lambda: width * 6,
            "nothing": lambda: math.prod(shape), "example": lambda: 24}[kind]()


@ex.law
def law(out, kind, width, shape, train):
    expect_parts(out, "out", "computed", "changed")
    expect_type("values of an image", out["out"], int)
    expect_equal("values of an image of shape " + "x".join(map(str, shape)), out["out"],
                 expected(kind, width, shape))
    expect_equal("what changed in features", out["changed"], [], "Work on a copy.")
    expect_equal("values computed by its layers", out["computed"], 0,
                 'Tensors on the device "meta" have a shape but no values.')


# ---- wrong, by name

def ran(features, shape, rows=1, device="meta", change=lambda twin: twin.eval()):
    """What comes out of a copy for so many images."""
    twin = change(copy.deepcopy(features).to(device))
    with torch.no_grad():
        return twin(torch.zeros(rows, *shape, device=device))


ex.wrong("counting the values of the whole batch, not of one image",
         lambda features, shape: ran(features, shape, rows=2).numel(),
         breaks="numbers")
ex.wrong("counting only the last axis of the output",
         lambda features, shape: ran(features, shape).shape[-1], breaks="numbers")
ex.wrong("counting only the channels, without the positions of the map",
         lambda features, shape: ran(features, shape).shape[1], breaks="numbers")
ex.wrong("returning a tensor instead of a number",
         lambda features, shape: torch.tensor(ran(features, shape).numel()),
         says="type of the values", breaks="numbers")


@ex.wrong("running the module layer by layer, as if it were an nn.Sequential", says="not iterable",
          breaks=("any module", "example"))
def layer_by_layer(features, shape):
    h = torch.zeros(1, *shape, device="meta")
    for layer in copy.deepcopy(features).to("meta").eval():
        h = layer(h)
    return h.numel()


@ex.wrong("assuming an output map with three axes", breaks="any module")
def three_axes(features, shape):
    out = ran(features, shape)
    return out.numel() if out.dim() == 4 else out.shape[-1] ** 2


@ex.wrong("assuming square images", breaks="shape")
def square(features, shape):
    if len(shape) == 3 and isinstance(features, nn.Sequential):
        return ran(features, (shape[0], shape[1], shape[1])).numel()
    return ran(features, shape).numel()


@ex.wrong("assuming images with one channel", says="raised RuntimeError", breaks="shape")
def one_channel(features, shape):
    if isinstance(features, nn.Sequential) and len(shape) == 3:
        return ran(features, (1, *shape[1:])).numel()
    return ran(features, shape).numel()


ex.wrong("running the module on a real image of zeros",
         lambda features, shape: ran(features, shape, device="cpu").numel(), breaks="no number")
ex.wrong("running the module on two real images of zeros", breaks="no number",
         fn=lambda features, shape: ran(features, shape, rows=2, device="cpu")[0].numel())


@ex.wrong("moving the module itself to the meta device", breaks="as it is")
def moved(features, shape):
    return features.to("meta").eval()(torch.zeros(1, *shape, device="meta")).numel()


@ex.wrong("moving the module itself to the meta device, in its current mode", breaks="as it is")
def moved_in_its_mode(features, shape):
    with torch.no_grad():
        return features.to("meta")(torch.empty(2, *shape, device="meta")).flatten(1).shape[1]


@ex.wrong("leaving the module in eval mode", breaks="as it is")
def left_in_eval(features, shape):
    features.eval()
    return ran(features, shape).numel()


ex.wrong("running a copy in train mode, which fails with one value per channel",
         lambda features, shape: ran(features, shape, change=lambda twin: twin).numel(),
         says="raised ValueError", breaks="any module")
ex.wrong("running the module itself, in its current mode",
         lambda features, shape: features(torch.zeros(2, *shape)).numel() // 2,
         breaks=("as it is", "no number"))


@ex.wrong("computing the sizes by hand, with pooling that rounds up", breaks="example")
def rounds_up(features, shape):
    if isinstance(features, nn.MaxPool2d):
        return shape[0] * math.prod(math.ceil(n / 2) for n in shape[1:])
    return ran(features, shape).numel()
