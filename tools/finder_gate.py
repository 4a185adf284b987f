"""Fit `gate` in book/finder.yml, which turns the finder's scores into confidence.

Splits the gathered phrases of book/finder_said.yml into folds of whole repositories, and asks each
fold with weights trained on the others. A logistic curve over the evidence of find.belief then says
how often a right cause is among the three likeliest. Takes a minute or two; put the line that it
prints into book/finder.yml:

    .venv/bin/python -m tools.finder_gate
"""

from __future__ import annotations

import math
import zlib

import yaml

from dlsys import find
from tools import finder_words

FOLDS = 4
LEVELS = (0.5, 0.65, 0.8)


def fold(phrase: dict) -> int:
    """The fold of a phrase, the same for all phrases of its repository."""
    return zlib.crc32(finder_words.repository(phrase).encode()) % FOLDS


def evidence(shares: dict[str, float]) -> tuple[float, float]:
    """The evidence of find.belief: the best cause's log share, relative to none's and alone."""
    best = max(share for cause, share in shares.items() if cause != find.NONE)
    alone = math.log(max(best, find.LEAST))
    return alone - math.log(max(shares[find.NONE], find.LEAST)), alone


def asked() -> list[tuple[tuple[float, float], bool, bool]]:
    """For each gathered phrase its evidence, whether it has a cause, and whether we show it."""
    gathered, found = yaml.safe_load(finder_words.SAID.read_text("utf-8"))["gathered"], []
    told = find.stored()
    kept = told["said"]
    for number in range(FOLDS):
        own = [phrase for phrase in gathered if fold(phrase) == number]
        told["said"] = finder_words.trained(finder_words.read(
            find.rows(), {finder_words.repository(phrase) for phrase in own}))
        for phrase in own:
            shares = find.likely(find.plain(phrase["said"]))
            if not shares:
                continue
            causes = sorted(set(shares) - {find.NONE}, key=lambda cause: -shares[cause])
            wanted = {*phrase.get("traps", ()), phrase.get("cause")} - {None}
            found.append((evidence(shares), bool(wanted),
                          not wanted.isdisjoint(causes[:find.MOST])))
    told["said"] = kept
    return found


def fitted(found: list[tuple[tuple[float, float], bool, bool]]) -> tuple[float, float, float]:
    """Bias and two slopes; phrases with and without a cause have the same total weight."""
    from sklearn.linear_model import LogisticRegression
    caused = sum(has for _, has, _ in found)
    less = caused / max(1, len(found) - caused)
    model = LogisticRegression(C=10).fit([seen for seen, *_ in found],
                                         [right for *_, right in found],
                                         sample_weight=[1 if has else less for _, has, _ in found])
    odds, best = model.coef_[0]
    return round(model.intercept_[0], 2), round(odds, 2), round(best, 2)


def main() -> None:
    found = asked()
    bias, odds, best = fitted(found)
    print(f"gate: {{bias: {bias}, odds: {odds}, best: {best}}}")
    for least in LEVELS:
        said = [(has, right) for (one, two), has, right in found
                if 1 / (1 + math.exp(-(bias + odds * one + best * two))) >= least]
        caused = sum(has for _, has, _ in found)
        print(f"at {least}: right {sum(right for _, right in said)} of {caused} with a cause; "
              f"answered wrongly {sum(has and not right for has, right in said)} of these and "
              f"{sum(not has for has, _ in said)} of {len(found) - caused} without")


if __name__ == "__main__":
    main()
