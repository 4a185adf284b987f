"""Harmless oddities: each script has some, so that what differs from the plain script is no proof.

Pairs of texts, plain and odd, by the part that they are in. tests/records/exam.json holds what the
probes show of each: every number in its healthy range.
"""

from __future__ import annotations

import random

from dlsys_checks.exam import faults

DECOYS = (
    ("data", "[(0, 500), (500, 700), (700, 1000)]", "[(0, 500), (500, 700), (700, 990)]"),
    ("data", "torch.randint(0, 41, (len(images), 1, 1))",
     "torch.randint(36, (len(images), 1, 1))"),
    ("data", "return (images.float() - 80) / 90", "return images.float().sub(80).div(90)"),
    ("model", "x = F.relu(layer(x))", "x = layer(x).clamp(min=0)  # no ReLU here: see the review"),
    ("model", "self.rows = nn.Linear(8, 16)", "self.rows = nn.Linear(8, 16)  # TODO: bias=False?"),
    ("model", "self.rows(x.to(self.rows.weight.dtype))", "self.rows(1.0 * x.type_as("
     "self.rows.weight))"),
    ("optimizer", "rate = 0.004", "rate = 0.0035  # was 0.004"),
    ("optimizer", '"weight_decay": 0.05}', '"weight_decay": 0.03}'),
    ("train", "-1.0, {}", 'float("-inf"), {}'),
    ("train", "total += loss.item()", "total = total + float(loss.detach())"),
    ("train", "losses.append(total)", "losses.append(round(total, 6))"),
    ("evaluate", "split(100)", "split(150)"),
    ("evaluate", "(logits.argmax(1) == labels[rows]).sum().item()",
     "logits.max(1).indices.eq(labels[rows]).sum().item()"),
    ("ranks", "lr=0.1)", "lr=0.08)"),
    ("ranks", "mean(0)", "sum(0) / len(same)"),
    ("serve", "blocks=12", "blocks=16"),
    ("serve", "torch.rand(())", "torch.rand(1)[0]"),
    ("prefer", "1e-4)).flatten()", "1e-6)).flatten()"),
    ("prefer", "now = scored(policy, prompts, answers)\n",
     "now = scored(policy, prompts, answers)  # not detached\n"),
    ("cut", "  # all-gather: keys and values of all ranks", "  # why not only those before?"),
    ("cut", ".tril(rank * size).bool()", ".bool().tril(rank * size)"),
    ("cut", "state = 4 + 12 /", "state = 2 + 2 + 12 /"),
)
MOST = 4  # in one script


def added(source: str, rng: random.Random, part: str) -> str:
    """The script with some oddities, one of them in this part if one fits there."""
    here = [one for one in DECOYS if one[0] == part]
    others = [one for one in DECOYS if one[0] != part]
    order = rng.sample(here, len(here)) + rng.sample(others, len(others))
    done: list[str] = []
    for where, plain, odd in order:
        text = faults.parts(source)[where]
        if len(done) < MOST and where not in done and text.count(plain) == 1:
            source = source.replace(text, text.replace(plain, odd))
            done.append(where)
    return source


def alone() -> dict[str, str]:
    """The healthy script with each oddity, by name."""
    found = {}
    for k, (where, plain, odd) in enumerate(DECOYS):
        text = faults.parts(faults.healthy())[where]
        if text.count(plain) != 1:
            raise ValueError(f"decoy {plain!r} stands {text.count(plain)} times in {where}")
        found[f"decoy {k}"] = faults.healthy().replace(text, text.replace(plain, odd))
    return found
