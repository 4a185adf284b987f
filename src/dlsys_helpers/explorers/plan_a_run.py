"""A training run on paper: what each GPU holds under a split, what a step takes, what fits."""

from typing import NamedTuple

import numpy as np

from dlsys_helpers.explorers import Bars, Choice, Columns, Grip, Heatmap, Slider, Ways, explorer

VOCAB, TOKENS, BATCH = 32_000, 4096, 64     # of a sequence; sequences of a step, taken one by one
PEAK, REACH, LATENCY = 989e12, 0.55, 5e-6   # FLOP/s of an H100, what products reach, s a ring step
BOX, FILLED = 8, 0.9                        # GPUs with fast links; usable part of a card
PARTS = ("weights", "gradients", "optimizer", "activations", "logits")
TIMES = ("products", "tensor's calls", "copies' calls", "bubble")
ROWS, TOP = 40, 2                           # cells of a stack; its top, in cards


class Model(NamedTuple):
    """Llama's shape: attention and SwiGLU without biases, two RMSNorms a layer."""

    layers: int
    width: int
    hidden: int
    heads: int


class Split(NamedTuple):
    """Copies, ranks that share each layer, stages; zero 1 or 3 cuts the state over the copies."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0


MODELS = {"1B": Model(22, 2048, 5632, 32), "7B": Model(32, 4096, 11_008, 32),
          "13B": Model(40, 5120, 13_824, 40), "65B": Model(80, 8192, 22_016, 64)}
SPLITS = {"1: copies": lambda n: Split(dp=n), "2: copies, ZeRO-1": lambda n: Split(dp=n, zero=1),
          "3: copies, ZeRO-3": lambda n: Split(dp=n, zero=3),
          "4: tensor by two, copies, ZeRO-1": lambda n: Split(dp=max(1, n // 2), tp=2, zero=1),
          "5: tensor over all": lambda n: Split(tp=n), "6: stages over all": lambda n: Split(pp=n)}
GPUS = (0, 1, 2, 4, 8, 16, 64)
CARDS = (24, 40, 80, 192)


def micro_batches(split):
    """How many micro-batches of one sequence a copy takes per step; ValueError for a bad split."""
    whole = {*split[:3]} <= {*range(1, BATCH + 1)}
    if not whole or BATCH % split.dp or split.zero not in (0, 1, 3):
        raise ValueError(f"split: got {split}, expected dp, tp and pp from 1 to {BATCH}, a dp that "
                         f"divides {BATCH} sequences, and zero 0, 1 or 3.")
    return BATCH // split.dp


def products(model):
    """Weights that are multiplied: of the layers, and of the head."""
    return model.layers * model.width * (4 * model.width + 3 * model.hidden), VOCAB * model.width


def weights(model):
    """All weights: products, the embedding and the norms' gains."""
    return sum(products(model)) + model.width * (VOCAB + 2 * model.layers + 1)


def kept(model):
    """Bytes that a layer keeps per sequence: whole on each tensor rank, and split over them."""
    return (TOKENS * (8 * model.width + 8),
            TOKENS * (8 * model.width + 8 * model.hidden + 4 * model.heads))


def memory(model, split, checkpoint):
    """Bytes by PARTS: an average stage's state, the first's activations, the last's logits."""
    mine = weights(model) / (split.tp * split.pp)
    over = [split.dp if split.zero >= stage else 1 for stage in (3, 3, 1)]
    whole, cut = kept(model)
    layer, inputs = whole + cut / split.tp, 2 * TOKENS * model.width
    held = min(micro_batches(split), split.pp) * model.layers / split.pp
    return [2 * mine / over[0], 2 * mine / over[1], 12 * mine / over[2],
            held * inputs + layer if checkpoint else held * layer, 10 * TOKENS * VOCAB / split.tp]


def a_pass(ranks, size, bandwidth):
    """Seconds of half an all-reduce around a ring; bandwidth in bytes a second, more than 0."""
    if not bandwidth > 0:
        raise ValueError(f"bandwidth: got {bandwidth}, expected more than 0 bytes a second.")
    return (ranks - 1) * (LATENCY + size / ranks / bandwidth)


def seconds(model, split, checkpoint, bandwidth):
    """Seconds of a step, by TIMES."""
    layers, head = products(model)
    square = model.layers * model.width * TOKENS        # a causal product does half of it
    last = model.layers * model.width * model.hidden    # backward does not need it again
    again = 2 * (layers - last) + 2 * square if checkpoint else 0
    work = 6 * (layers + head + square) + again
    small = micro_batches(split)
    computed = work * TOKENS * BATCH / (split.dp * split.tp * split.pp * PEAK * REACH)
    calls = (5 if checkpoint else 4) * 2 * small * model.layers / split.pp
    tensor = calls * a_pass(split.tp, 2 * TOKENS * model.width, bandwidth)
    passes = 3 * small if split.zero == 3 else 2
    copies = passes * a_pass(split.dp, 2 * weights(model) / (split.tp * split.pp), bandwidth)
    return [computed, tensor, copies, (computed + tensor) * (split.pp - 1) / small]


def obstacle(model, split, gpus):
    """Why this split cannot be made, in one sentence that says what could; "" if it can."""
    if split.dp * split.tp != gpus and split.pp == 1:
        return ("A pair of GPUs cuts a layer by two, and one is left over: take an even number of "
                "GPUs, or split 1.")
    if split.tp > BOX:
        return (f"Tensor parallelism needs the fast links inside a box, and {split.tp} GPUs are "
                f"more than a box of {BOX}: take {BOX} or fewer, or split 4.")
    if model.layers % split.pp:
        fine = [n for n in GPUS if n and model.layers % n == 0]
        return (f"{split.pp} stages do not divide {model.layers} layers: "
                f"{', '.join(map(str, fine[:-1]))} or {fine[-1]} would.")
    return ""


def plans(model, gpus, checkpoint, bandwidth):
    """By name of the split, where it can be made: bytes by part, seconds by part."""
    made = {name: make(gpus) for name, make in SPLITS.items()} if gpus else {}
    return {name: (memory(model, split, checkpoint), seconds(model, split, checkpoint, bandwidth))
            for name, split in made.items() if not obstacle(model, split, gpus)}


def fitting(model, gpus, card, bandwidth):
    """What fits a card on so many GPUs, checkpoints or not, fastest first: (s, bytes, in words)."""
    found = ((sum(time), sum(size), f"split {name[0]}{' with checkpoints' * again}")
             for again in (False, True)
             for name, (size, time) in plans(model, gpus, again, bandwidth).items())
    return sorted(plan for plan in found if plan[1] <= FILLED * card * 1e9)


def way_out(model, gpus, card, bandwidth):
    """In words: the fastest plan that fits on so many GPUs, or else on the fewest more."""
    for count in [n for n in GPUS if n >= max(1, gpus)]:
        if fits := fitting(model, count, card, bandwidth):
            _, size, words = fits[0]
            return f"{count} GPU{'s' * (count > 1)}, {words}, would at {gigabytes(size)}"
    return f"none here does, up to {GPUS[-1]} GPUs; a larger card or a smaller model would"


def gigabytes(size):
    """Bytes as GB, in three digits or as whole ones."""
    return f"{size / 1e9:,.0f} GB" if size >= 1e11 else f"{size / 1e9:.3g} GB"


def stacks(found, card):
    """(ROWS, 4 a split) parts from 1 up, 0 where a GPU is free; every fourth column is a gap."""
    shown = np.zeros((ROWS, 4 * len(SPLITS)))
    middles = (np.arange(ROWS) + 0.5) * TOP * card * 1e9 / ROWS
    for place, name in enumerate(SPLITS):
        if name in found:
            tops = np.cumsum(found[name][0])
            part = np.searchsorted(tops, middles, side="right") + 1
            shown[:, 4 * place:4 * place + 3] = np.where(part > len(PARTS), 0, part)[:, None]
    return shown


def percent(found, split, which):
    """Parts of the bytes (0) or the seconds (1) of a split, in percent; zeros if it is not made."""
    if split not in found:
        return np.zeros((len(PARTS), len(TIMES))[which])
    return 100 * np.array(found[split][which]) / sum(found[split][which])


def verdict(model, gpus, card, split, found, bandwidth):
    """What the setting comes to, in a sentence or two."""
    if not gpus:
        return (f"0 GPUs hold nothing, and the state alone is {gigabytes(16 * weights(model))}: "
                f"{way_out(model, 0, card, bandwidth)}.")
    if split not in found:
        return obstacle(model, SPLITS[split](gpus), gpus)
    size, time = (sum(part) for part in found[split])
    if size > FILLED * card * 1e9:
        most = PARTS[int(np.argmax(found[split][0]))]
        return (f"{gigabytes(size)} do not fit into {card} less a tenth (the largest: {most}); "
                f"{way_out(model, gpus, card, bandwidth)}.")
    useful = seconds(model, SPLITS[split](gpus), False, bandwidth)[0] * REACH
    best, _, words = fitting(model, gpus, card, bandwidth)[0]
    faster = f"{words} takes {best:.3g} s" if best < 0.999 * time else "nothing here is faster"
    return (f"{gigabytes(size)} fit into {card} less a tenth, a step takes {time:.3g} s at MFU "
            f"{useful / time:.2f}; {faster}.")


@explorer(
    title="Plan a run: what fits, what waits",
    controls=[
        Choice("model", "Model", MODELS, "7B"),
        Slider("gpus", "GPUs", GPUS, 8, static=(0, 1, 2, 8, 64)),
        Slider("card", "Memory of a GPU, GB", CARDS, 80, static=(24, 40, 80)),
        Choice("split", "Split", SPLITS, "1: copies"),
        Choice("checkpoint", "Activations", {"kept": False, "checkpoints": True}, "kept"),
        Slider("bandwidth", "GB/s between GPUs", (10, 50, 400), 400, static=(10, 400)),
    ],
    views=[
        Heatmap("stacks", title="Memory of a GPU, in cards", xlabel="split",
                ylabel="cards", vmin=0, vmax=len(PARTS), xlim=(0.5, 6.5),
                ylim=(0, TOP), label="part", ways=Ways({"nine tenths": ("ends", "height")}, "last"),
                grips=[Grip("split", x=lambda name: int(name[0]))]),
        Columns("number", {"fits": "fits", "large": "too large"},
                title="Seconds of a step on H100s",
                xlabel="split", ylabel="seconds", mark="at",
                grips=[Grip("split", x=lambda name: int(name[0]))]),
        Bars("parts", [f"{n} {part}" for n, part in enumerate(PARTS, 1)],
             title="What a GPU holds", limit=100, unit=" %"),
        Bars("shares", TIMES, title="What the chosen step waits for", limit=100, unit=" %"),
    ],
)
def plan_a_run(model, gpus, card, split, checkpoint, bandwidth):
    """Stacks of all splits against the card, their seconds, and the parts of the chosen step."""
    again = checkpoint == "checkpoints"
    shape, rate = MODELS[model], bandwidth * 1e9
    found = plans(shape, gpus, again, rate)
    times = [sum(found[name][1]) if name in found else 0 for name in SPLITS]
    fit = [name in found and sum(found[name][0]) <= FILLED * card * 1e9
           for name in SPLITS]
    named = (f"{model}, {gpus} GPU{'s' * (gpus != 1)}, split {split[0]} ({split[3:]})"
             f"{', checkpoints' * again}: ")
    return {"stacks": stacks(found, card), "last": [1],
            "ends": [0.5, 6.5], "height": [FILLED, FILLED], "at": [int(split[0])],
            "number": range(1, 7), "fits": np.where(fit, times, 0),
            "large": np.where(fit, 0, times), "parts": percent(found, split, 0),
            "shares": percent(found, split, 1)}, (
        named + verdict(shape, gpus, card, split, found, rate))
