"""The programs of two forms, probes and source: the exam's script with a fault, and with decoys.

A decoy writes a line differently but computes the same, so a program that differs from others need
not be faulty. Each program draws eight of them by its name.
"""

from __future__ import annotations

import difflib
import os
import random
from typing import NamedTuple

from dlsys_checks.exam import faults, mends

PUBLIC = "1"
KEY = os.environ.get("SILENT_KEY", PUBLIC)  # a secret key draws a private half
DRAWN = 8  # decoys per program
CONTROLS = 20  # healthy programs that differ only in their decoys
CLEAR, STEP = "            optimizer.zero_grad()\n", "            schedule.step()\n"
DECOYS = (
    ((CLEAR, ""), (STEP, STEP + CLEAR)),
    (("(images.float() - 80) / 90", "images.float().sub(80).div(90)"),),
    (("torch.randint(0, 41, (", "torch.randint(41, ("),),
    (("self.norm(x.flatten(1))", "self.norm(x.reshape(len(x), -1))"),),
    (("x = F.relu(layer(x))", "x = layer(x).relu()"),),
    (("        x = self.drop(x)\n        return self.head(x)",
      "        return self.head(self.drop(x))"),),
    (("if p.ndim < 2}", "if p.dim() <= 1}"),),
    (("rate = 0.004", "rate = 4e-3"),),
    (("nn.init.zeros_(layer.bias)", "nn.init.constant_(layer.bias, 0.0)"),),
    (("total += loss.item()", "total += float(loss.detach())"),),
    (("* len(half) / len(batch)", "* (len(half) / len(batch))"),),
    (("clip_grad_norm_(model.parameters(), 1.0)",
      "clip_grad_norm_(list(model.parameters()), max_norm=1.0)"),),
    (("if score > best:", "if best < score:"),),
    (("{n: t.clone() for n, t in model.state_dict().items()}",
      "copy.deepcopy(model.state_dict())"),),
    (("@torch.no_grad()\ndef evaluate", "@torch.inference_mode()\ndef evaluate"),),
    (("right += (logits.argmax(1) == labels[rows]).sum().item()",
      "right += int((logits.argmax(dim=-1) == labels[rows]).sum())"),),
    (("return right / len(images)", "return right / len(labels)"),),
    (("(p.detach() / step).round() * step", "torch.round(p.detach() / step) * step"),),
    (("            one.zero_grad()\n", "            one.zero_grad(set_to_none=True)\n"),),
    (("rows = batch[rank::ranks]", "rows = batch[torch.arange(rank, len(batch), ranks)]"),),
    (("torch.stack([p.grad for p in same]).mean(0)", "sum(p.grad for p in same) / len(same)"),),
    (("self.free.append(block)", "self.free += [block]"),),
    (("policy.log_softmax(1)[prompts", "F.log_softmax(policy, dim=1)[prompts"),),
    (("gap = groups - groups.mean(0)", "gap = groups - groups.mean(0, keepdim=True)"),),
    (("size = len(x) // ranks", "size = x.shape[0] // ranks"),),
    (("out = torch.zeros_like(x)", "out = x.new_zeros(x.shape)"),))
MAIN = '''

# part: main
if __name__ == "__main__":
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))[:1000]
    images = torch.tensor(data.images)[order].mul(15).to(torch.uint8)
    images[17] = 0  # one page is blank
    labels = torch.tensor(data.target)[order]
    torch.manual_seed(0)
    learn, choose, test = split(images, labels)
    model = Reader(10)
    losses, _ = train(model, learn, choose)
    print(f"loss {losses[-1]:.3f}, accuracy {evaluate(model, *test):.3f}, "
          f"in 8 bits {evaluate(smaller(model), *test):.3f}")
    side_by_side(Reader(10), *learn)
'''


class Program(NamedTuple):
    """name: what it is. plain: the script without decoys, as it is measured. text: with them.
    healthy: the text without its fault, None if it has none. trap: the fault's trap.
    """

    name: str
    plain: str
    text: str
    healthy: str | None = None
    trap: str = ""

    @property
    def files(self) -> dict[str, str]:
        return {"main.py": self.text + MAIN}

    def places(self) -> tuple[list[tuple[str, int]], int]:
        """The lines of the fault, and how far off a mark may be: farther if a line was removed.

        A removed line was before the named one.
        """
        if self.healthy is None:
            return [], 1
        edits = [edit for edit in difflib.SequenceMatcher(
            None, self.healthy.splitlines(), self.text.splitlines(), autojunk=False).get_opcodes()
            if edit[0] != "equal"]
        lines = {line + 1 for *_, low, high in edits for line in range(low, max(high, low + 1))}
        return [("main.py", line) for line in sorted(lines)], 1 + any(e[0] == "delete"
                                                                      for e in edits)


def programs() -> dict[str, Program]:
    """Every fault, healthy programs, and repairs that do not just restore the fault's lines."""
    found = [faulty(fault) for fault in faults.FAULTS.values()]
    found += [healthy(f"healthy {k}", faults.healthy()) for k in range(CONTROLS)]
    found += [healthy(f"mended {k} {id}", mends.mended(id, changes))
              for k, (id, changes) in enumerate(mends.RIGHT)]
    return {one.name: one for one in found}


def faulty(fault: faults.Fault) -> Program:
    """A program with a fault; decoys that touch the fault's lines are left out."""
    text = decoyed(faults.healthy(), fault.id, fault)
    return Program(fault.id, fault.planted(faults.healthy()), fault.planted(text), text, fault.id)


def healthy(name: str, plain: str) -> Program:
    return Program(name, plain, decoyed(plain, name))


def decoyed(text: str, name: str, fault: faults.Fault | None = None) -> str:
    """The text with the decoys that a name draws, such that the fault can still be planted."""
    order = random.Random(f"{KEY} {name}").sample(DECOYS, len(DECOYS))
    drawn = 0
    for changes in order:
        if drawn < DRAWN and fits(changes, text, fault):
            text, drawn = replaced(text, changes), drawn + 1
    return text


def fits(changes: tuple, text: str, fault: faults.Fault | None) -> bool:
    """Whether a decoy can be put into a text without touching what the fault changes."""
    if any(text.count(old) != 1 for old, _ in changes):
        return False
    if fault is None:
        return True
    try:
        return replaced(fault.planted(text), changes) == fault.planted(replaced(text, changes))
    except ValueError:
        return False


def replaced(text: str, changes: tuple) -> str:
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is there {text.count(old)} times")
        text = text.replace(old, new)
    return text
