"""One load of a warp: which sectors of memory and which banks of shared memory it touches."""

import torch

from dlsys_helpers.explorers import Bars, Choice, Heatmap, Slider, explorer

WARP, SECTOR, BANKS, WORD = 32, 32, 32, 4  # threads, bytes, banks, bytes
ROW = 256                                  # numbers in a row of the matrix, without padding
BLOCKS = {"32 across": 32, "16 across, 2 down": 16, "8 across, 4 down": 8, "32 down": 1}


def words(block, stride, padding, base):
    """The word (32,) that each thread of the warp reads from a matrix of 32-bit numbers.

    Threads run across first; a step across is `stride` words, a step down a row with its padding.
    """
    thread = torch.arange(WARP)
    across = BLOCKS[block]
    return base + stride * (thread % across) + (ROW + padding) * (thread // across)


def sectors_of(word):
    """For each thread (32,), which of the touched sectors is its own, counted from 0."""
    return (word * WORD // SECTOR).unique(return_inverse=True)[1]


def words_by_bank(word):
    """How many different words (32,) each bank is asked for."""
    return torch.bincount(word.unique() % BANKS, minlength=BANKS)


@explorer(
    title="One load of a warp: sectors and banks",
    controls=[
        Choice("block", "The 32 threads stand", BLOCKS, "32 across"),
        Slider("stride", "Numbers from thread to thread", [1, 2, 4, 8], 1),
        Slider("padding", "Numbers of padding after each row", [0, 1, 4, 8], 0),
        Slider("base", "First number", [0, 1, 4], 0),
    ],
    views=[
        Heatmap("sector", title="Device memory: sector of each thread",
                xlabel="thread, 8 a row", ylabel="row of threads", vmin=0, vmax=1,
                label="from the first sector, 0, to the last, 1"),
        Heatmap("bank", title="Shared memory: words of each bank",
                xlabel="bank, 8 a row", ylabel="row of banks", vmin=0, vmax=6,
                label="log2(words) + 1; 0 for none"),
        Bars("counts", ["sectors moved", "sectors at least", "turns of the banks"],
             title="What one load costs", limit=WARP),
    ],
)
def warp_addresses(block, stride, padding, base):
    """Sectors that a load from device memory moves, and turns that one from shared memory takes."""
    word = words(block, stride, padding, base)
    sector, bank = sectors_of(word), words_by_bank(word)
    moved, turns = int(sector.max()) + 1, int(bank.max())
    used = 100 * WARP * WORD / (moved * SECTOR)
    sentence = (f"Threads {block}, stride {stride}, padding {padding}, from number {base} on: "
                f"{moved} sector{'s' * (moved > 1)}, of which {used:.0f} % are used. In shared "
                f"memory the same words take {turns} turn{'s' * (turns > 1)}.")
    # 4 sectors of 32, or 1 word of 32, would look like none on one scale for all settings.
    share, doubled = sector / max(1, moved - 1), torch.where(bank > 0, bank.log2() + 1, 0.0)
    return {"sector": share.view(4, 8), "bank": doubled.view(4, 8),
            "counts": [moved, WARP * WORD // SECTOR, turns]}, sentence
