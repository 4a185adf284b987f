"""The collective tape: which calls two ranks make in one update, in order, and how many bytes."""

from dlsys_helpers.explorers import Bars, Choice, Lines, Slider, explorer

WIDTH = 256                       # every layer is WIDTH x WIDTH in float32, without a bias
LAYER = 4 * WIDTH * WIDTH         # its bytes
STRATEGIES = ("DDP", "DDP, no_sync holds backward", "DDP, no_sync holds forward",
              "DDP, past the wrapper", "fully_shard each layer",
              "fully_shard each layer, kept whole until backward", "fully_shard the root alone")
SCRIPTS = {"the same on both ranks": False, "rank 0 alone reduces its loss": True}
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
MOST = 80                         # calls that fit into the picture


def batch(strategy, layers, last):
    """The calls of one small batch, (name, bytes): forward first, then backward."""
    whole = layers * LAYER
    if strategy == "fully_shard the root alone":
        return [("all_gather", whole), ("reduce_scatter", whole)]
    if strategy.startswith("fully_shard"):
        gather, scatter = ("all_gather", LAYER), ("reduce_scatter", LAYER)
        if "kept" in strategy:
            return [gather] * layers + [scatter] * layers
        ahead = [gather, scatter] * (layers - 1)  # the next layer is gathered first
        return [gather] * (layers + 1) + ahead + [scatter]
    quiet = "past" in strategy or ("holds forward" in strategy and not last)
    return [] if quiet else [("all_reduce", whole)]


def update(strategy, layers, batches):
    """The calls of one update on `batches` small batches."""
    return [call for k in range(batches)
            for call in batch(strategy, layers, last=k == batches - 1)]


def tapes(strategy, layers, batches, differs):
    """The tape of rank 0 and of rank 1, and whether the ranks hang at its end.

    After the update both meet in an all_reduce of one number, the loss; where the scripts differ
    rank 1 skips it and waits for the next update, which rank 0 never begins.
    """
    calls = update(strategy, layers, batches)
    loss = [("all_reduce", 4)]
    return calls + loss, calls if differs else calls + loss, differs


def so_far(calls):
    """MB moved after each call, from 0 on; the last value extends to the picture's right end."""
    sums = [0.0]
    for _, size in calls:
        sums.append(sums[-1] + size / 1e6)
    return sums + [sums[-1]] * (MOST + 1 - len(sums))


def totals(calls):
    """MB of each kind of call."""
    return [sum(size for name, size in calls if name == kind) / 1e6 for kind in KINDS]


@explorer(
    title="The collective tape of one update, on two ranks",
    controls=[
        Choice("strategy", "Strategy", STRATEGIES, "DDP",
               static=[STRATEGIES[0], STRATEGIES[1], STRATEGIES[4], STRATEGIES[6]]),
        Slider("layers", f"Layers of {WIDTH} x {WIDTH}", [1, 2, 4, 6], 4, static=[1, 4]),
        Slider("batches", "Small batches to an update", [1, 2, 4], 2),
        Choice("script", "The script reduces its loss", SCRIPTS, "the same on both ranks"),
    ],
    views=[
        Lines("calls", {"rank0": "rank 0", "rank1": "rank 1"}, title="Bytes moved so far",
              xlabel="calls on the tape", ylabel="MB", xlim=(0, MOST), ylim=(0, 20), step=True),
        Bars("kinds", list(KINDS), title="An update of rank 0, by kind of call", limit=20,
             unit=" MB"),
    ],
)
def tape(strategy, layers, batches, script):
    """Both tapes of an update, and what they say together."""
    first, second, hangs = tapes(strategy, layers, batches, SCRIPTS[script])
    sums = totals(first)
    end = (f"Rank 0 waits in call {len(first)}, which rank 1 never makes: a hang." if hangs else
           "Both tapes agree.")
    sentence = (f"{strategy}, {layers} layers, {batches} small batches: {len(first)} calls on rank "
                f"0, {len(second)} on rank 1, {sum(sums):.2f} MB. {end}")
    return {"calls": range(MOST + 1), "rank0": so_far(first), "rank1": so_far(second),
            "kinds": sums}, sentence
