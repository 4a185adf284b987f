"""The faults: each a small change of the script, with the numbers that show it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dlsys_helpers.planting import planted

PARTS = ("data", "model", "optimizer", "train", "evaluate", "ranks", "serve", "prefer",
         "cut")


@dataclass(frozen=True)
class Fault:
    """A planted fault; its id is that of the trap that it comes from.

    part: where it stands. changes: pairs of texts, healthy and faulty. shows: the numbers that tell
    it from the others: (probe, number, lowest, highest).
    """

    id: str
    name: str
    part: str
    changes: tuple[tuple[str, str], ...]
    shows: tuple[tuple[str, str, float, float], ...]

    def planted(self, source: str) -> str:
        """The source with this fault. Raises ValueError if a line of it is not there once."""
        return planted(source, self.changes, self.id)


@cache
def healthy() -> str:
    """The script without a fault, from its first part on."""
    text = Path(__file__).with_name("script.py").read_text("utf-8")
    return text[text.index("# part: data"):]


def parts(source: str) -> dict[str, str]:
    """The text of each part by its name; together they are the script."""
    pieces = source.split("# part: ")[1:]
    return {piece.partition("\n")[0]: f"# part: {piece}" for piece in pieces}


def part_of(source: str, name: str) -> str:
    """One part of a script, without the line that begins it."""
    return parts(source)[name].partition("\n")[2].strip() + "\n"


LOSS = "loss = F.cross_entropy(logits, labels[half]) * len(half) / len(batch)"
CLIP = "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
SUMMED = ("h in hidden:\n        h.backward(torch.stack([one.grad for one in entered]).sum(0))"
          "  # all-reduce")
HEAD = "    model.head = nn.Linear(64, int(labels.max()) + 1)\n"
MADE = "    optimizer, schedule = make_optimizer(model, epochs * len(images) // size)\n"
INPUT = "logits = model(scaled(images[rows]))"
STATE = "{n: t.clone() for n, t in model.state_dict().items()}"
ORDER = "torch.randperm(len(images)).split(size):\n            optimizer"
CLIP_RANK = "            nn.utils.clip_grad_norm_(one.parameters(), 0.25)\n"

# A draw couples those whose probes cost nearly the same: one in form A, the other in form B.
DRAWN = (
    Fault("03.1", "softmax before the loss", "train",
          ((LOSS, LOSS.replace("logits,", "logits.softmax(1),")),),
          (("one_batch", "loss after 60 steps", 1.4, 1.8),)),
    Fault("12.7", "labels that belong to other images", "data",
          (("    return [(images[a:b]", "    labels = labels.roll(1)\n    return [(images[a:b]"),),
          (("look_at_batch", "same as the label of the nearest picture", 0.0, 0.4),)),
    Fault("02.4", "losses of half batches added up instead of averaged", "train",
          ((" * len(half) / len(batch)", ""),),
          (("gradient_report", "norm that the clip was given", 2.2, 4.0),
           ("loss_curve", "first loss", 4.1, 6.5), ("one_batch", "first loss", 4.1, 6.5))),
    Fault("09.1", "a loss scale that is never removed from the gradients", "train",
          (("loss.backward()", "(1024 * loss).backward()"),),
          (("gradient_report", "norm that the clip was given", 200, 20000),)),
    Fault("02.1", "gradients of earlier steps that are never cleared", "train",
          (("            optimizer.zero_grad()\n", ""),),
          (("gradient_report", "left over from the step before", 0.5, 2.0),)),
    Fault("03.3", "gradients clipped at the wrong time", "train",
          ((CLIP, ""), ("            total = 0.0\n", f"            total = 0.0\n{CLIP}")),
          (("gradient_report", "largest norm at a step", 1.2, 20.0),
           ("gradient_report", "norm that the clip was given", 0.0, 0.0))),
    Fault("07.8", "layers that the model does not register", "model",
          (("nn.ModuleList([nn.Linear(128, 64), nn.Linear(64, 64)])",
            "[nn.Linear(128, 64), nn.Linear(64, 64)]"),),
          (("trace", "numbers in the model", 1000, 5000),)),
    Fault("02.3", "a graph that is cut in the forward pass", "model",
          (("self.norm(x.flatten(1))", "self.norm(x.data.flatten(1))"),),
          (("gradient_report", "tensors without a gradient", 4, 8),)),
    Fault("07.10", "an optimizer made before the head was replaced", "train",
          ((HEAD + MADE, MADE + HEAD),),
          (("trace", "tensors of the optimizer that the model lacks", 1, 4),)),
    Fault("10.1", "a list of names that leaves layers out of training", "optimizer",
          (('("rows", "mix", "norm", "layers", "head")',
            '("rows", "attn", "norm", "layers", "classifier")'),),
          (("trace", "tensors of the model that the optimizer lacks", 4, 8),)),
    Fault("04.2", "a learning rate that is too high", "optimizer",
          (("rate = 0.004", "rate = 0.4"),),
          (("trace", "highest rate", 0.1, 1.0),
           ("gradient_report", "largest update over weights", 0.06, 10.0))),
    Fault("04.5", "a learning rate that is too low", "optimizer",
          (("rate = 0.004", "rate = 0.00002"),),
          (("trace", "highest rate", 1e-6, 1e-4),
           ("gradient_report", "largest update over weights", 1e-6, 1e-3))),
    Fault("04.3", "a schedule that steps once an epoch", "train",
          (("            schedule.step()\n", ""),
           ("        score = ", "        schedule.step()\n        score = ")),
          (("trace", "last rate", 2e-4, 3e-3), ("trace", "highest rate", 3e-4, 9.9e-4))),
    Fault("04.1", "weight decay on the gain of the norm", "optimizer",
          (("if p.ndim < 2}", 'if "bias" in n or "BatchNorm" in n}'),),
          (("trace", "decayed tensors of one axis", 1, 1),)),
    Fault("01.4", "dead units", "model",
          (("nn.init.zeros_(layer.bias)", "nn.init.constant_(layer.bias, -3.0)"),),
          (("gradient_report", "hidden units at zero for every picture", 0.6, 1.0),)),
    Fault("03.4", "initial weights that are too small", "model",
          (('nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")',
            "nn.init.normal_(layer.weight, std=0.01)"),),
          (("one_batch", "spread of what the new head is given", 1e-4, 0.02),)),
    Fault("01.1", "a test in train mode", "evaluate",
          (("    model.eval()\n", ""),),
          (("evaluation", "modules in train mode", 1, 20),)),
    Fault("05.3", "dropout written as a function", "model",
          (("x = self.drop(x)", "x = F.dropout(x, 0.1)"),),
          (("evaluation", "difference of the logits in two calls", 0.05, 5.0),)),
    Fault("08.11", "attention across the batch", "model",
          ((", batch_first=True", ""),),
          (("evaluation", "difference of the logits alone and in company", 0.05, 10.0),)),
    Fault("06.1", "a test on augmented images", "evaluate",
          ((INPUT, INPUT.replace("images[rows]", "brighten(images[rows])")),),
          (("evaluation", "difference of the inputs in two calls", 0.03, 1.0),)),
    Fault("07.4", "a test with another normalization than the training", "evaluate",
          ((INPUT, "logits = model(images[rows].float() / 255)"),),
          (("evaluation", "mean of the inputs", 0.2, 0.4),)),
    Fault("06.6", "bytes that overflow in the augmentation", "data",
          (("return (images.int() + more).clamp(max=255).to(torch.uint8)",
            "return images + more.to(torch.uint8)"),),
          (("look_at_batch", "darker after brighten", 0.02, 0.3),)),
    Fault("09.5", "the same order in every epoch", "train",
          ((ORDER, ORDER.replace("(images)", "(images), generator=torch.Generator()"
                                 ".manual_seed(0)")),),
          (("look_at_batch", "pictures in the first batch of epochs 1 and 2", 20, 25),)),
    Fault("12.3", "an augmentation that draws the same noise at every call", "data",
          (("(len(images), 1, 1))",
            "(len(images), 1, 1), generator=torch.Generator().manual_seed(0))"),),
          (("look_at_batch", "same in two calls of brighten", 0.9, 1.0),)),
    Fault("06.4", "a best state that is not copied", "train",
          ((STATE, "model.state_dict()"),),
          (("trace", "kept tensors that are the model's own", 10, 25),)),
    Fault("10.4", "a kept state without the head", "train",
          ((STATE, STATE[:-1] + ' if not n.startswith("head")}'),
           ("load_state_dict(kept)", "load_state_dict(kept, strict=False)")),
          (("trace", "tensors that are not kept", 2, 2),)),
    Fault("09.8", "weights in bfloat16 alone", "train",
          ((HEAD, f"{HEAD}    model.to(torch.bfloat16)\n"),),
          (("gradient_report", "weights that a step leaves as they are", 0.1, 0.8),)),
    Fault("11.1", "quantization with too few bits", "evaluate",
          (("bits=8", "bits=2"),),
          (("evaluation", "different weights in a row of the small copy", 2, 8),)),
    Fault("09.11", "gradients that are not averaged across ranks", "ranks",
          (("        average(copies)\n", ""),),
          (("two_ranks", "largest difference of the ranks' weights", 1e-3, 1.0),)),
    Fault("09.12", "each rank clips its own gradient before the average", "ranks",
          (("        average(copies)\n        for one, sgd in zip(copies, optimizers):\n",
            "        for one in copies:\n"),
           (CLIP_RANK, f"{CLIP_RANK}        average(copies)\n"
                       "        for sgd in optimizers:\n")),
          (("two_ranks", "smallest norm at a rank's step", 0.1, 0.244),)),
    Fault("13.1", "a shared cache block that is freed while it is read", "serve",
          (("self.readers[table[-1]] += 1", "self.readers[table[-1]] = 1"),),
          (("serving", "free blocks that a request still reads", 2, 2),)),
    Fault("13.2", "a cache key without the whole prefix", "serve",
          (("key = tuple(ids[:end])", "key = tuple(ids[end - 4:end])"),),
          (("serving", "difference of the logits with shared blocks", 0.01, 1.0),)),
    Fault("13.5", "a rejected draft replaced by a draw from the whole target", "serve",
          (("    rest = (p[good] - q[good]).clamp(min=0) if good < len(draft) else p[good]\n", ""),
           ("torch.multinomial(rest, 1)", "torch.multinomial(p[good], 1)")),
          (("serving", "difference of the shares of a digit, with a draft", 0.15, 0.35),)),
    Fault("13.6", "rejected drafts that stay in the cache", "serve",
          (("    grown = grown[:, :cache.shape[1] + 1 + good]\n", ""),),
          (("serving", "places of the cache beyond the digits that stand", 3, 3),)),
    Fault("14.1", "a reference that is the policy itself", "prefer",
          (("policy.detach().clone(), []", "policy.detach(), []"),),
          (("preferences", "last loss of the pairs", 0.69, 0.696),
           ("preferences", "log odds that the pairs have added", 10.0, 20.0))),
    Fault("14.2", "rewards grouped across prompts", "prefer",
          (("rewards.view(-1, prompts)\n", "rewards.view(prompts, -1)\n"),
           ("groups.mean(0)", "groups.mean(1, keepdim=True)"),
           ("groups.std(0)", "groups.std(1, keepdim=True)")),
          (("preferences", "right answers that are pushed down", 0.1, 0.8),
           ("preferences", "spread of a prompt's gains", 0.0, 0.2))),
    Fault("14.3", "a KL penalty whose mean gradient is zero", "prefer",
          (("return (now - then) ** 2 / 2", "return now - then"),),
          (("preferences", "gradient of the price, off that of the KL by", 0.99, 1.01),)),
    Fault("14.4", "old log-probabilities that are recomputed at each step", "prefer",
          (("    drawn, ratios = scored(policy, prompts, answers).detach(), []\n",
            "    ratios = []\n"),
           ("        ratio = ", "        drawn = now.detach()\n        ratio = ")),
          (("preferences", "farthest ratio from 1 in the last step on a draw", 0.0, 0.0),)),
    Fault("15.1", "a split layer whose input's gradients are not summed", "cut",
          ((SUMMED, "h, one in zip(hidden, entered):\n        h.backward(one.grad)"),),
          (("parallel", "gradient of a net in halves, off by", 0.2, 2.0),)),
    Fault("15.3", "positions that start at zero on every rank", "cut",
          (("places[rank * size:][:size]", "places[:size]"),),
          (("parallel", "difference of attention in parts and whole", 0.5, 20.0),)),
    Fault("15.4", "a top-1 weight that is always one, so that the router does not learn", "cut",
          ((".topk(1)\n", ".topk(1)\n        weights = weights / weights.sum(1, keepdim=True)\n"),),
          (("parallel", "gradient of the router over that of its experts", 0.0, 1e-4),)),
    Fault("15.8", "a plan that divides activations by the number of copies", "cut",
          (("weights * state + kept)", "weights * state + kept / copies)"),),
          (("parallel", "planned activations, eight copies over one", 0.12, 0.13),)),
)
# The worked cases, a loud one and a silent one: in no draw.
FIRST = Fault("12.1", "a blank image divided by its standard deviation of zero", "data",
              (("return (images.float() - 80) / 90",
                "x = images.float()\n    return (x - x.mean((1, 2), keepdim=True)) / "
                "x.std((1, 2), keepdim=True)"),),
              (("look_at_batch", "not a number", 1e-4, 0.1),))
SILENT = Fault("06.7", "a test on images of the training set", "data",
               (("(700, 1000)]", "(400, 700)]"),),
               (("evaluation", "test pictures that train has seen", 0.1, 1.0),))
WORKED = (FIRST, SILENT)
FAULTS = {fault.id: fault for fault in (*DRAWN, *WORKED)}
