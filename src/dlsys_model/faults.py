"""The faults of the gallery: each a small change of program.py, with the trap that teaches it."""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dlsys_helpers.planting import planted


@dataclass(frozen=True)
class Fault:
    """A fault that can be planted; key: its name in the record. trap: where it is taught.

    name: what is wrong, in a few words. changes: pairs of texts, healthy and faulty. The
    healthy texts repair it.
    """

    key: str
    trap: str
    name: str
    changes: tuple[tuple[str, str], ...]

    def planted(self, source: str) -> str:
        """The source with this fault. Raises ValueError unless each healthy text occurs once."""
        return planted(source, self.changes, self.key)


@cache
def healthy() -> str:
    """The program without a fault, from its first part on."""
    text = Path(__file__).with_name("program.py").read_text("utf-8")
    return text[text.index("# part: text"):]


def program(key: str) -> str:
    """The text of the program with a fault, or of the healthy one for the key "healthy".

    Raises ValueError for an unknown key.
    """
    if key == "healthy":
        return healthy()
    if key not in BY_KEY:
        raise ValueError(f"fault: got {key!r}, expected one of {', '.join(BY_KEY)}.")
    return BY_KEY[key].planted(healthy())


def difference(key: str) -> str:
    """The lines that a fault removes, after "-", and those that it adds, after "+"."""
    found = difflib.unified_diff(healthy().splitlines(), program(key).splitlines(), n=0)
    lines = [line for line in found if line[:2] not in ("--", "++", "@@")]
    code = textwrap.dedent("\n".join(line[1:] for line in lines)).splitlines()
    return "\n".join(f"{line[0]} {text}".rstrip() for line, text in zip(lines, code, strict=True))


LOSS = "F.cross_entropy(logits.flatten(0, 1), labels.flatten())"
BACKWARD = "        loss.backward()\n        total += loss.item()\n"
MEAN = "loss_of(model, inputs, labels) * (labels >= 0).sum() / counted"
CLIP = "        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
STEP = "        optimizer.step()\n        schedule.step()\n"
LEARN = "        loss = learn(model, next(stream), generator)\n"
ZERO = "        optimizer.zero_grad()\n        with torch.no_grad():\n"
NORMS = "        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)\n"
UP = "        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)\n"
ATTENDED = "        x = x + self.drop(self.attend(self.norm1(x), cache))\n"
HIDDEN = "        hidden = self.down(F.gelu(self.up(self.norm2(x))))\n"
ADDED = "        return x + self.drop(hidden)\n"
SDPA = "F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)"
MERGED = "mixed.transpose(1, 2).reshape(b, t, WIDTH)"
LABELS = "labels.masked_fill(labels == PAD, -100)"
PAIR = "inputs, labels = rows[:, :-1], rows[:, 1:]\n"
WARMED = "min(1, (step + 1) / WARM) * "
MADE = "    optimizer, schedule = make_optimizer(model, steps)\n    stream,"
SCORED = "            score = validate(average, chosen)\n            watch.validation(score)\n"
GRAPH = """    with torch.no_grad():
        for part in rows.split(64):
            inputs, labels = inputs_and_labels(part)
            total += loss_of(model, inputs, labels) * len(part) / len(rows)
"""
PRIOR = '        self.register_buffer("prior", torch.zeros(letters))\n'

FAULTS = (
    Fault("eval", "01.1", "eval() is never called: dropout stays on in validation and in use",
          (("    model.eval()\n    total = 0.0\n", "    total = 0.0\n"),
           ("return average.eval()", "return average"), ("return model.eval()", "return model"))),
    Fault("sigmoid", "01.3", "a sigmoid between the two layers",
          ((HIDDEN, HIDDEN.replace("F.gelu", "torch.sigmoid")),)),
    Fault("dead", "01.4", "biases of -5: the units of the two layers are dead",
          ((UP, UP + "        nn.init.constant_(self.up.bias, -5.0)\n"),)),
    Fault("zero_grad", "02.1", "zero_grad is missing",
          ((ZERO, "        with torch.no_grad():\n"),)),
    Fault("ones", "02.2", "backward on a vector of ones: the sum of all losses, not their mean",
          (("        loss = " + MEAN + "\n" + BACKWARD,
            "        logits = model(inputs).flatten(0, 1)\n"
            '        loss = F.cross_entropy(logits, labels.flatten(), reduction="none")\n'
            "        loss.backward(torch.ones_like(loss))\n"
            "        total += loss.sum().item() / counted.item()\n"),)),
    Fault("data", "02.3", "the residual stream is cut by .data",
          ((ATTENDED, ATTENDED.replace("x = x +", "x = x.data +")),)),
    Fault("added", "02.4", "the losses of the parts are added up, not weighed",
          ((MEAN, "loss_of(model, inputs, labels)"),)),
    Fault("graph", "02.5", "validation without no_grad, its losses summed with their graphs",
          ((GRAPH, "".join(line[4:] for line in GRAPH.splitlines(True)[1:])),)),
    Fault("softmax", "03.1", "softmax before cross_entropy",
          ((LOSS, LOSS.replace("logits.", "logits.softmax(-1).")),)),
    Fault("regression", "03.2", "letters as numbers to be hit: squared error of their mean",
          ((f"    return {LOSS}\n",
            "    numbers = torch.arange(logits.shape[-1]).float()\n"
            "    error = logits.softmax(-1) @ numbers - labels\n"
            "    return error[labels >= 0].square().mean()\n"),)),
    Fault("late_clip", "03.3", "gradients are clipped after the step",
          ((CLIP + STEP, STEP + CLIP),)),
    Fault("early_clip", "03.3", "gradients are clipped before backward fills them",
          ((LEARN + CLIP, CLIP + LEARN),)),
    Fault("tiny", "03.4", "weights begin a hundred times too small",
          (("std=0.06", "std=0.0006"),)),
    Fault("huge", "05.4", "weights begin ten times too large",
          (("std=0.06", "std=0.6"),)),
    Fault("decay", "04.1", "gains of norms and biases are decayed, too",
          (('"weight_decay": 0.0}', '"weight_decay": 0.1}'),)),
    Fault("sgd_rate", "04.2", "Adam runs at a rate of SGD, 0.1",
          (("RATE, WARM = 3e-3, 30", "RATE, WARM = 0.1, 30"),)),
    Fault("rate_10", "04.5", "a rate ten times too high",
          (("RATE, WARM = 3e-3, 30", "RATE, WARM = 3e-2, 30"),)),
    Fault("rate_100", "04.5", "a rate a hundred times too low",
          (("RATE, WARM = 3e-3, 30", "RATE, WARM = 3e-5, 30"),)),
    Fault("seldom", "04.3", "schedule.step() once in each validation, not in each step",
          ((STEP, "        optimizer.step()\n"),
           (SCORED, "            schedule.step()\n" + SCORED))),
    Fault("default", "04.4", "weight_decay left out: AdamW decays by 0.01",
          ((', "weight_decay": 0.0}', "}"), (', "weight_decay": 0.1}', "}"))),
    Fault("floor", "04.6", "max() as a floor: half of the rate is kept",
          (("(0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)",
            "max(0.5, (1 + math.cos(math.pi * done)) / 2)"),)),
    Fault("no_warm", "05.2", "no warm-up", ((WARMED, ""),)),
    Fault("post_norm", "05.2", "post-norm at full rate from the first step",
          ((ATTENDED, "        x = self.norm1(x + self.drop(self.attend(x, cache)))\n"),
           (HIDDEN, "        hidden = self.down(F.gelu(self.up(x)))\n"),
           (ADDED, "        return self.norm2(x + self.drop(hidden))\n"), (WARMED, ""))),
    Fault("batch_norm", "05.1", "BatchNorm in place of LayerNorm",
          (("class Block(nn.Module):",
            "class Norm(nn.BatchNorm1d):\n    def forward(self, x):\n"
            "        return super().forward(x.flatten(0, 1)).view_as(x)\n\n\n"
            "class Block(nn.Module):"),
           (NORMS, NORMS.replace("nn.LayerNorm", "Norm")))),
    Fault("f_dropout", "05.3", "F.dropout stays on in eval mode",
          ((ADDED, "        return x + F.dropout(hidden, 0.1)\n"),)),
    Fault("buffers", "05.5", "the averaged model keeps the buffers it was made with",
          (("    model.prior.copy_(frequencies(learned, letters))\n"
            "    average = copy.deepcopy(model)\n",
            "    average = copy.deepcopy(model)\n"
            "    model.prior.copy_(frequencies(learned, letters))\n"),
           ("                held.copy_(buffer)\n", "                pass\n"))),
    Fault("slow_mean", "05.5", "the average moves so slowly that it holds the random start",
          (("mean.lerp_(p, 0.05)", "mean.lerp_(p, 0.0005)"),)),
    Fault("augmented", "06.1", "validation on rows with wrong letters in them",
          ((GRAPH, GRAPH.replace("(part)\n", "(part)\n            inputs = noisy(inputs, "
                                 "len(model.prior), torch.Generator())\n")),)),
    Fault("stopping", "06.3", "early stopping watches the training loss",
          ((SCORED, "            watch.validation(validate(average, chosen))\n"
                    "            score = loss\n"),)),
    Fault("reference", "06.4", "the best weights are kept without a copy",
          (("{n: t.clone() for n, t in average.state_dict().items()}",
            "average.state_dict()"),)),
    Fault("overlap", "06.7", "the rows of validation are learned from, too",
          (("rows[block > 1]", "rows[block != 1]"),)),
    Fault("lower", "07.4", "in use all letters are small",
          (("    return smaller(model),",
            "    tested = split(rows_of(text.lower(), numbers))[2]\n    return smaller(model),"),)),
    Fault("list", "07.8", "the blocks stand in a Python list",
          (("nn.ModuleList([Block() for _ in range(LAYERS)])",
            "[Block() for _ in range(LAYERS)]"),)),
    Fault("reshape", "07.9", "heads are not transposed back before reshape",
          ((MERGED, "mixed.reshape(b, t, WIDTH)"),)),
    Fault("new_head", "07.10", "the head is replaced after the optimizer was made",
          ((MADE, "    optimizer, schedule = make_optimizer(model, steps)\n"
                  "    model.head = nn.Linear(WIDTH, letters, bias=False)\n    stream,"),)),
    Fault("mask", "08.1", "the causal mask is missing",
          ((SDPA, SDPA.replace("t > 1", "False")),)),
    Fault("padding", "08.2", "in use the rows are padded in front, and padding is attended to",
          (("    return torch.cat([model(inputs[:, t:t + 1], caches) "
            "for t in range(inputs.shape[1])], 1)\n",
            "    inputs = F.pad(inputs, (16, 0), value=PAD)\n"
            "    return torch.cat([model(inputs[:, t:t + 1], caches) "
            "for t in range(inputs.shape[1])], 1)[:, 16:]\n"),)),
    Fault("scores", "08.4", "attention by hand writes all its scores to memory",
          ((SDPA, "torch.ones(t, k.shape[2]).triu(1 + seen).bool()\n"
                  "        mixed = (q @ k.mT / 12 ** 0.5).masked_fill(mixed, -math.inf)"
                  ".softmax(-1) @ v"),)),
    Fault("attention_dropout", "08.9", "attention drops scores in eval mode, too",
          ((SDPA, SDPA.replace("is_causal", "dropout_p=0.1, is_causal")),)),
    Fault("causal_cache", "08.10", "is_causal=True hides the cache from a new letter",
          ((SDPA, SDPA.replace("t > 1", "True")),)),
    Fault("no_place", "08.10", "with a cache each letter is turned as if it were the first",
          (('seen = cache["k"].shape[2] if cache else 0', "seen = 0"),)),
    Fault("off_by_one", "08.10", "with a cache each place is one too high",
          (('seen = cache["k"].shape[2] if cache', 'seen = cache["k"].shape[2] + 1 if cache'),)),
    Fault("batch_first", "08.11", "attention runs over the rows of the batch",
          (("permute(2, 0, 3, 1, 4)", "permute(2, 1, 3, 0, 4)"),
           (MERGED, "mixed.permute(2, 0, 1, 3).reshape(b, t, WIDTH)"))),
    Fault("scale", "09.1", "a loss scale stays in the gradients",
          ((BACKWARD, BACKWARD.replace("loss.backward", "(1024 * loss).backward")),)),
    Fault("pieces", "09.2", "each part counts alike, however many labels it has",
          ((MEAN, "loss_of(model, inputs, labels) / RANKS"),)),
    Fault("epochs", "09.5", "every epoch has the same order",
          (("manual_seed(seed + epoch)", "manual_seed(seed)"),)),
    Fault("twentieth", "09.5", "only the first twentieth of the rows is ever drawn",
          (("batches(learned, 1000 * seed)",
            "batches(learned[:len(learned) // 20], 1000 * seed)"),)),
    Fault("same_rows", "09.5", "both ranks read the same rows",
          (("batch[rank::RANKS]", "batch[0::RANKS]"),)),
    Fault("bfloat16", "09.8", "weights and average in bfloat16 lose small updates",
          (("    model = Network(letters)\n", "    model = Network(letters).bfloat16()\n"),
           ("    model, average = Network(letters), Network(letters)\n",
            "    model, average = Network(letters).bfloat16(), Network(letters).bfloat16()\n"),
           ("    logits = model(inputs)\n", "    logits = model(inputs).float()\n"),
           ("return average.eval()", "return average.float().eval()"))),
    Fault("one_rank", "09.11", "the gradient of the second rank never arrives",
          ((BACKWARD, BACKWARD.replace("loss.", "if rank == 0:\n            loss.", 1)),)),
    Fault("shards", "09.12", "each half of the weights is clipped by its own norm",
          ((CLIP, "        for half in range(2):\n"
                  "            norm = nn.utils.clip_grad_norm_(list(model.parameters())[half::2], "
                  "1.0)\n"),)),
    Fault("plain", "09.14", "the letters' frequencies are a plain attribute: not saved",
          ((PRIOR, "        self.prior = torch.zeros(letters)\n"),)),
    Fault("names", "10.1", "three of four names of layers for the adapter match nothing",
          (('("qkv", "out", "up", "down")', '("qkv", "o_proj", "up_proj", "down_proj")'),)),
    Fault("twice", "10.2", "the adapter is merged and still runs beside its layer",
          (("                    layer.layer)\n    return model.eval()",
            "                    layer)\n    return model.eval()"),)),
    Fault("not_loaded", "10.5", "the trained adapter is not merged: the plain layers answer",
          (("            layer.layer.weight += 2 * layer.b @ layer.a\n", ""),)),
    Fault("no_end", "10.6", "the END of a sentence does not count in the loss",
          ((LABELS, "labels.masked_fill(labels <= END, -100)"),)),
    Fault("padding_counts", "10.6", "padding counts in the loss",
          ((LABELS, "labels"),)),
    Fault("two_bits", "11.1", "2 bits on a symmetric grid",
          (("def smaller(model, bits=4", "def smaller(model, bits=2"),)),
    Fault("one_scale", "11.1", "one scale for a whole matrix of 4 bits",
          (("grouped = p.reshape(-1, group)", "grouped = p.reshape(1, -1)"),)),
    Fault("frozen", "12.2", "the embedding gets no gradient",
          (("        x = self.emb(inputs)\n", "        x = self.emb(inputs).detach()\n"),)),
    Fault("same_noise", "12.3", "the noise is drawn with one seed in each step",
          (("noisy(inputs, len(model.prior), generator)",
            "noisy(inputs, len(model.prior), generator.manual_seed(0))"),)),
    Fault("next_row", "12.7", "the labels are those of the next row",
          ((LABELS, LABELS + ".roll(1, 0)"),)),
    Fault("not_shifted", "12.7", "the labels are the inputs: not shifted",
          ((PAIR, PAIR.replace("rows[:, 1:]", "rows[:, :-1]")),)),
    Fault("shifted_twice", "12.7", "the labels are shifted twice",
          ((PAIR, PAIR.replace("rows[:, :-1], rows[:, 1:]", "rows[:, :-2], rows[:, 2:]")),)),
    Fault("noisy_labels", "12.7", "the noise is in the labels, too",
          (("inputs_and_labels(batch[rank::RANKS])\n",
            "inputs_and_labels(noisy(batch[rank::RANKS], len(model.prior), generator))\n"),
           ("        inputs = noisy(inputs, len(model.prior), generator)\n", ""))),
    Fault("no_state", "12.8", "resumed without the optimizer's state",
          (('    optimizer.load_state_dict(held["optimizer"])\n', ""),)),
    Fault("no_schedule", "12.8", "resumed without the schedule's state",
          (('    schedule.load_state_dict(held["schedule"])\n', ""),)),
    Fault("smoothing", "12.11", "label smoothing over a class that is masked with -inf",
          (("    logits = model(inputs)\n",
            "    logits = model(inputs)\n    logits[..., PAD] = -math.inf\n"),
           (LOSS, LOSS.replace("flatten())", "flatten(), label_smoothing=0.1)")))),
)
BY_KEY = {fault.key: fault for fault in FAULTS}
