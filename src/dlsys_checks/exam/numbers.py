"""What can be looked at, what each look costs, and the range of every number in the healthy script.

The ranges hold for the script on any seed, with room for other processors and other mends.
"""

from typing import NamedTuple


class Look(NamedTuple):
    """A question with a price: which numbers of a probe answer it."""

    probe: str
    names: tuple[str, ...]
    asks: str
    price: int = 2


LOOKS = {
    "loss_curve": Look("loss_curve", ("first loss", "last loss", "accuracy"),
                       "the losses of all steps, and the accuracy at the end", 1),
    "inputs": Look("look_at_batch", ("mean of the inputs", "not a number"),
                   "what the model is given while it learns"),
    "augmentation": Look("look_at_batch", ("darker after brighten",
                                           "same in two calls of brighten"),
                         "what `brighten` does"),
    "labels": Look("look_at_batch", ("same as the label of the nearest picture",),
                   "whether similar images have the same label"),
    "order": Look("look_at_batch", ("pictures in the first batch of epochs 1 and 2",),
                  "whether two epochs begin with the same images"),
    "one_batch": Look("one_batch", ("first loss", "loss after 60 steps"),
                      "whether a fresh model learns one batch by heart"),
    "hidden": Look("one_batch", ("spread of what the new head is given",
                                 "hidden values zero in one of two passes"),
                   "what the last layer of a fresh model is given"),
    "gradients": Look("gradient_report", ("left over from the step before",
                                          "tensors without a gradient"),
                      "which gradients there are before a step"),
    "clip": Look("gradient_report", ("norm that the clip was given", "largest norm at a step"),
                 "the norm before and after the clip"),
    "updates": Look("gradient_report", ("largest update over weights",
                                        "weights that a step leaves as they are"),
                    "how far a step moves the weights"),
    "units": Look("gradient_report", ("hidden units at zero for every picture",),
                  "how many hidden units are never active"),
    "optimizer": Look("trace", ("tensors of the model that the optimizer lacks",
                                "tensors of the optimizer that the model lacks",
                                "decayed tensors of one axis", "decayed tensors of two axes"),
                      "which tensors the optimizer holds, and which it decays"),
    "parameters": Look("trace", ("numbers in the model", "tensors that train sets anew"),
                       "what the model registers"),
    "rates": Look("trace", ("highest rate", "last rate"), "the learning rates that were used"),
    "kept": Look("trace", ("kept tensors that are the model's own", "tensors that are not kept"),
                 "what is kept as the best state"),
    "test_set": Look("evaluation", ("accuracy", "test pictures that train has seen"),
                     "which images the test uses"),
    "test_inputs": Look("evaluation", ("mean of the inputs",
                                       "difference of the inputs in two calls"),
                        "what the model is given in the test"),
    "test_outputs": Look("evaluation", ("modules in train mode",
                                        "difference of the logits in two calls",
                                        "difference of the logits alone and in company"),
                         "whether the model answers the same way twice, and alone"),
    "small_copy": Look("evaluation", ("accuracy of the small copy",
                                      "different weights in a row of the small copy"),
                       "the copy with rounded weights"),
    "two_ranks": Look("two_ranks", ("rows that both ranks read",
                                    "largest difference of the ranks' weights"),
                      "the rows and the weights of two ranks"),
    "rank_norms": Look("two_ranks", ("smallest norm at a rank's step",),
                       "the norm of the gradients with which a rank steps"),
    "blocks": Look("serving", ("free blocks that a request still reads",
                               "blocks that nobody gives back", "blocks that two requests share"),
                   "which blocks of the cache are free, lost or shared"),
    "prefix": Look("serving", ("difference of the logits with shared blocks",),
                   "the logits of a prompt from shared blocks and without them"),
    "drafts": Look("serving", ("difference of the shares of a digit, with a draft",
                               "share of drafts that stand"),
                   "how often each digit is written, with drafts and without"),
    "cache_length": Look("serving", ("places of the cache beyond the digits that stand",),
                         "the length of the cache after a draft"),
    "pairs": Look("preferences", ("last loss of the pairs", "log odds that the pairs have added"),
                  "what `learn_pairs` reaches"),
    "gains": Look("preferences", ("right answers that are pushed down",
                                  "spread of a prompt's gains"),
                  "what `against_others` makes of rewards"),
    "kl": Look("preferences", ("gradient of the price, off that of the KL by",),
               "the gradient of `price`, compared with that of the KL"),
    "ratios": Look("preferences", ("farthest ratio from 1 in the last step on a draw",),
                   "the ratios of `climb`"),
    "halves": Look("parallel", ("gradient of a net in halves, off by",),
                   "the gradients of a layer in halves, compared with one that is whole"),
    "sequence": Look("parallel", ("difference of attention in parts and whole",),
                     "attention over a sequence in parts, compared with a sequence in one piece"),
    "experts": Look("parallel", ("gradient of the router over that of its experts",),
                    "the gradients of router and experts"),
    "plan": Look("parallel", ("planned activations, eight copies over one",
                              "planned state with ZeRO-1, eight copies over one"),
                 "the plan for one GPU and for eight"),
}
READ, SWAP = 3, 2
# For a case: narrow down, look, perhaps look again, and read a part. Less than all that there is,
# so that each look has to be chosen.
BUDGET = 10
MOST_SWAPPED = 8  # functions at a time


HEALTHY = {
    "loss_curve": {"first loss": (2.0, 3.3), "last loss": (0.05, 0.6), "accuracy": (0.8, 1)},
    "look_at_batch": {
        "mean of the inputs": (0.05, 0.2), "not a number": (0, 0), "darker after brighten": (0, 0),
        "same in two calls of brighten": (0, 0.1),
        "same as the label of the nearest picture": (0.9, 1),
        "pictures in the first batch of epochs 1 and 2": (0, 8)},
    "one_batch": {
        "first loss": (2.0, 3.3), "loss after 60 steps": (0, 0.1),
        "spread of what the new head is given": (0.04, 0.6),
        "hidden values zero in one of two passes": (0.1, 0.26)},
    "gradient_report": {
        "left over from the step before": (0, 0), "norm that the clip was given": (0.8, 1.9),
        "largest norm at a step": (0, 1.01), "tensors without a gradient": (0, 0),
        "hidden units at zero for every picture": (0, 0.2),
        "largest update over weights": (0.004, 0.04),
        "weights that a step leaves as they are": (0, 0.02)},
    "trace": {
        "numbers in the model": (14500, 14600),
        "tensors of the model that the optimizer lacks": (0, 0),
        "tensors of the optimizer that the model lacks": (0, 0),
        "decayed tensors of one axis": (0, 0), "decayed tensors of two axes": (6, 6),
        "tensors that train sets anew": (2, 2), "highest rate": (0.001, 0.01),
        "last rate": (0, 1e-4), "kept tensors that are the model's own": (0, 0),
        "tensors that are not kept": (0, 0)},
    "evaluation": {
        "accuracy": (0.8, 1), "accuracy of the small copy": (0.8, 1),
        "test pictures that train has seen": (0, 0),
        "different weights in a row of the small copy": (88, 128),
        "modules in train mode": (0, 0), "mean of the inputs": (-0.1, -0.06),
        "difference of the inputs in two calls": (0, 0),
        "difference of the logits in two calls": (0, 1e-5),
        "difference of the logits alone and in company": (0, 1e-4)},
    "two_ranks": {
        "rows that both ranks read": (0, 0),
        "largest difference of the ranks' weights": (0, 1e-6),
        "smallest norm at a rank's step": (0.249, 0.251)},
    "serving": {
        "free blocks that a request still reads": (0, 0),
        "blocks that nobody gives back": (0, 0),
        "blocks that two requests share": (2, 2),
        "difference of the logits with shared blocks": (0, 1e-4),
        "difference of the shares of a digit, with a draft": (0, 0.1),
        "share of drafts that stand": (0.4, 0.6),
        "places of the cache beyond the digits that stand": (0, 0)},
    "preferences": {
        "last loss of the pairs": (0.56, 0.565),
        "log odds that the pairs have added": (2.1, 2.3),
        "right answers that are pushed down": (0, 0),
        "spread of a prompt's gains": (0.99, 1.001),
        "gradient of the price, off that of the KL by": (0, 0.001),
        "farthest ratio from 1 in the last step on a draw": (0.1, 1)},
    "parallel": {
        "gradient of a net in halves, off by": (0, 1e-4),
        "difference of attention in parts and whole": (0, 1e-4),
        "gradient of the router over that of its experts": (0.01, 10),
        "planned activations, eight copies over one": (1, 1),
        "planned state with ZeRO-1, eight copies over one": (0.34, 0.35)},
}


# What a look prints for a number: where it was taken. The probes' own names often say what is
# wrong, so that a marked line could be handed in as the name of the fault.
PRINTED = {
    "darker after brighten": "share of values that fall",
    "same in two calls of brighten": "agreement of two calls",
    "same as the label of the nearest picture": "agreement with the nearest image",
    "pictures in the first batch of epochs 1 and 2": "images in both first batches",
    "left over from the step before": "norm before the forward pass",
    "tensors without a gradient": "tensors at None after the backward pass",
    "weights that a step leaves as they are": "share of values equal before and after",
    "hidden units at zero for every picture": "share without any output",
    "tensors of the model that the optimizer lacks": "the model's, not held here",
    "tensors of the optimizer that the model lacks": "held here, not the model's",
    "decayed tensors of one axis": "tensors of one axis, weight_decay",
    "decayed tensors of two axes": "tensors of two axes, weight_decay",
    "highest rate": "maximum",
    "last rate": "at the end",
    "kept tensors that are the model's own": "tensors in shared memory",
    "tensors that are not kept": "model minus kept, tensors",
    "modules in train mode": "modules whose flag is set",
    "difference of the inputs in two calls": "difference of two calls",
    "difference of the logits in two calls": "difference of two passes",
    "difference of the logits alone and in company": "difference of one image and many",
    "different weights in a row of the small copy": "distinct values in a row",
    "rows that both ranks read": "rows in common",
    "largest difference of the ranks' weights": "largest difference of two tensors",
    "smallest norm at a rank's step": "smallest norm",
    "free blocks that a request still reads": "both free and in a table",
    "blocks that nobody gives back": "neither free nor in a table",
    "blocks that two requests share": "in two tables",
    "right answers that are pushed down": "right answers below zero",
    "gradient of the price, off that of the KL by": "relative difference",
    "farthest ratio from 1 in the last step on a draw": "largest distance from 1",
    "gradient of the router over that of its experts": "first gradient over the second",
    "planned activations, eight copies over one": "activations, eight over one",
    "planned state with ZeRO-1, eight copies over one": "state with ZeRO-1, eight over one",
}


def printed(name: str) -> str:
    """What a look prints for a number."""
    return PRINTED.get(name, name)


def number(look: str, text: str) -> str:
    """The number of a look that a text means: as printed, or the probe's name; "" if none."""
    return next((name for name in LOOKS[look].names if text in (name, printed(name))), "")


def is_healthy(probe: str, name: str, value: float) -> bool:
    """Whether the healthy script can show this number; NaN is in no range."""
    low, high = HEALTHY[probe][name]
    return low <= value <= high


def ailing(found: dict) -> list[tuple[str, str, float]]:
    """The numbers of some probes, as `look` returns them, that no healthy script shows."""
    return [(probe, name, found[probe][name]) for probe in found for name in HEALTHY[probe]
            if not is_healthy(probe, name, found[probe][name])]


def price(paid) -> int:
    """What these words of the record cost, each one once. Raises KeyError for another word."""
    return sum(price_of(word) for word in set(paid))


def price_of(word: str) -> int:
    """The price of a look, of `read PART` or of `swap FUNCTIONS`. Raises KeyError."""
    kind, _, rest = word.partition(" ")
    return {"read": READ, "swap": SWAP}[kind] if rest else LOOKS[word].price
