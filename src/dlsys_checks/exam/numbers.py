"""The probes, what each costs, and the range of every number that the healthy script shows.

The ranges hold for the script on any seed, with room for other processors and other mends.
"""

PRICES = {"loss_curve": 1, "look_at_batch": 2, "one_batch": 2, "gradient_report": 3, "trace": 3,
          "evaluation": 3, "two_ranks": 3, "serving": 3, "read data": 3, "read model": 3,
          "read optimizer": 3, "read train": 3, "read evaluate": 3, "read ranks": 3,
          "read serve": 3, "preferences": 3, "parallel": 3, "read prefer": 3, "read cut": 3,
          "wrong name": 3, "wrong evidence": 3}
# For a case with one fault, and with two: the loss, a dear probe and a part for each, and one more
# look or wrong name. Not all that there is, so that each look has to be chosen.
BUDGETS = {1: 10, 2: 16}

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


def is_healthy(probe: str, name: str, value: float) -> bool:
    """Whether the healthy script can show this number; NaN is in no range."""
    low, high = HEALTHY[probe][name]
    return low <= value <= high


def ailing(found: dict) -> list[tuple[str, str, float]]:
    """The numbers of some probes, as `look` returns them, that no healthy script shows."""
    return [(probe, name, found[probe][name]) for probe in found for name in HEALTHY[probe]
            if not is_healthy(probe, name, found[probe][name])]


def price(paid: list[str]) -> int:
    """What these probes cost: each one once, what was refused each time. Raises KeyError."""
    looks = {word for word in paid if not word.startswith("wrong")}
    return sum(PRICES[word] for word in [*looks, *(w for w in paid if w.startswith("wrong"))])
