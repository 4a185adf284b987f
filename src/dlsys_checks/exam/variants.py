"""What else a fault can look like: other places and spellings, and sizes drawn from a range.

tests/records/exam.json holds what the probes show of each form, and of both ends of each range.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from dlsys_checks.exam.faults import (
    CLIP,
    DRAWN,
    FAULTS,
    HEAD,
    LOSS,
    STATE,
    SUMMED,
    Fault,
)

Changes = tuple[tuple[str, str], ...]
STEP = "            optimizer.step()\n"
ZERO = "            optimizer.zero_grad()\n"
STEPS = "            schedule.step()\n"


@dataclass(frozen=True)
class Size:
    """A number in the faulty text, and the range that it is drawn from: whole, or by its log."""

    text: str
    low: float
    high: float
    whole: bool = False

    def drawn(self, rng: random.Random) -> str:
        """A number of the range, as it stands in the script."""
        if self.whole:
            return str(rng.randint(int(self.low), int(self.high)))
        return self.written(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))

    def written(self, value: float) -> str:
        """The number with two digits."""
        return str(int(value)) if self.whole else f"{value:.2g}"


SIZES = {
    "04.2": Size("0.4", 0.25, 0.8), "04.5": Size("0.00002", 5e-6, 4e-5),
    "09.1": Size("1024", 256, 8192, whole=True), "01.4": Size("-3.0", -6, -3, whole=True),
    "03.4": Size("0.01", 0.004, 0.012), "11.1": Size("bits=2", 2, 3, whole=True),
    "12.7": Size("roll(1)", 1, 9, whole=True), "07.4": Size("255", 200, 300, whole=True),
    "09.5": Size("seed(0)", 0, 99, whole=True), "12.3": Size("seed(0)", 0, 99, whole=True)}

FORMS: dict[str, tuple[Changes, ...]] = {
    "03.1": (((LOSS, LOSS.replace("logits,", "F.softmax(logits, 1),")),),),
    "02.1": (((ZERO, ""), ("        for batch in torch.randperm",
                           "        optimizer.zero_grad()\n        for batch in torch.randperm")),),
    "03.3": (((CLIP, ""), (STEP, STEP + CLIP)),),
    "07.8": ((("nn.ModuleList([nn.Linear(128, 64), nn.Linear(64, 64)])",
               "(nn.Linear(128, 64), nn.Linear(64, 64))"),),),
    "02.3": ((("self.norm(x.flatten(1))", "self.norm(x.detach().flatten(1))"),),
             (("need_weights=False)[0]", "need_weights=False)[0].detach()"),)),
    "10.1": ((('("rows", "mix", "norm", "layers", "head")',
               '("rows", "attention", "norm", "layers", "head")'),),),
    "04.1": ((("if p.ndim < 2}", 'if n.endswith("bias")}'),),),
    "04.3": (((STEPS, "            if len(losses) % 10 == 9:\n    " + STEPS),),),
    "09.8": (((HEAD, f"{HEAD}    model.bfloat16()\n"),),),
    "06.4": (((STATE, "dict(model.state_dict())"),),
             ((STATE, "{n: t.detach() for n, t in model.state_dict().items()}"),)),
    "10.4": (((STATE, STATE[:-1] + ' if "head" not in n}'),
              ("load_state_dict(kept)", "load_state_dict(kept, strict=False)")),),
    "01.1": ((("    model.eval()\n", "    model.train()\n"),),),
    "06.1": ((("model(scaled(images[rows]))", "model(scaled(brighten(images)[rows]))"),),),
    "06.6": ((("return (images.int() + more).clamp(max=255).to(torch.uint8)",
               "return (images.int() + more).to(torch.uint8)"),),),
    "09.11": ((("        average(copies)\n", "        average(copies[:1])\n"),),),
    "13.1": ((("self.readers[table[-1]] += 1",
               "self.readers[table[-1]] = max(1, self.readers[table[-1]])"),),),
    "13.2": ((("key = tuple(ids[:end])", "key = (end, *ids[end - 4:end])"),),
             (("key = tuple(ids[:end])", "key = str(ids[end - 4:end])"),)),
    "13.6": ((("cache.shape[1] + 1 + good]", "cache.shape[1] + 1 + len(draft)]"),),),
    "14.1": ((("policy.detach().clone(), []", "policy.data, []"),),),
    "15.1": (((SUMMED, "h in hidden:\n        h.backward(sum(one.grad for one in entered) / "
               "len(entered))"),),),
    "15.3": ((("places[rank * size:][:size]", "places[rank:][:size]"),),),
    "15.4": ((("self.router(x).softmax(1).topk(1)", "self.router(x).topk(1)"),
              ("        out = torch.zeros_like(x)\n",
               "        weights = weights.softmax(1)\n        out = torch.zeros_like(x)\n")),),
}


def forms(fault: Fault) -> list[Fault]:
    """The fault in each of its places and spellings, the first of them its own."""
    return [fault, *(replace(fault, changes=changes) for changes in FORMS.get(fault.id, ()))]


def sized(fault: Fault, number: str) -> Fault:
    """The fault with this number in the place of its size."""
    size = SIZES[fault.id]
    text = "".join(c for c in size.text if c in "-.0123456789")
    return replace(fault, changes=tuple(
        (old, new.replace(size.text, size.text.replace(text, number)))
        for old, new in fault.changes))


def drawn(id: str, rng: random.Random) -> Fault:
    """A fault in one of its forms and sizes."""
    fault = rng.choice(forms(FAULTS[id]))
    return sized(fault, SIZES[id].drawn(rng)) if id in SIZES else fault


def every() -> dict[str, Fault]:
    """By name, each form of each fault, and both ends of each range."""
    found = {}
    for fault in DRAWN:
        found |= {f"{fault.id} form {k}": one for k, one in enumerate(forms(fault)) if k}
        if size := SIZES.get(fault.id):
            found |= {f"{fault.id} {end}": sized(fault, size.written(value))
                      for end, value in (("low", size.low), ("high", size.high))}
    return found
