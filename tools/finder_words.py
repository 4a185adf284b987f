"""The weights of words for causes, by which the symptom finder tells causes apart.

They are trained on book/finder_said.yml, the finder's rows and the catalog's symptoms, and stored
next to the rows by tools.book_finder.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator

import yaml

from dlsys import assignments, find
from dlsys_helpers.paths import ROOT
from tools import fingerprints

SAID = ROOT / "book" / "finder_said.yml"
STRENGTH = 5  # C of the regression
GATHERED = 3  # weight of a phrase from a public thread; an invented one counts 1
GROUP = 0.8  # weight of a group of words; an equally rare word counts 1
LEAST = 9  # the smallest weight that we keep, in tenths
STEPS = 40  # of training; more steps fit these phrases better and others worse


def phrases(rows: list[dict], without: Container[str] = ()) -> Iterator[tuple[str, str, float]]:
    """The training phrases: the text, the cause that it means, and its weight.

    A row's first cause has weight 1, its second 1/2, its third 1/3. without: repositories whose
    gathered phrases are left out.
    """
    told = yaml.safe_load(SAID.read_text("utf-8"))
    for cause, said in {**told["causes"], find.NONE: told["none"]}.items():
        yield from ((phrase, cause, 1) for phrase in said.splitlines())
    for row in rows:
        for place, cause in enumerate(find.causes_of(row), 1):
            yield from ((phrase, cause, 1 / place) for phrase in (row["see"], *row["also"]))
    for trap in assignments.by_number():
        yield from ((part, trap.id, 1) for part in (trap.name, *re.split("[;:]", trap.symptom)))
    for phrase in told["gathered"]:
        if repository(phrase) in without:
            continue
        causes = phrase.get("traps", [phrase.get("cause", find.NONE)])
        yield from ((phrase["said"], cause, GATHERED / len(causes)) for cause in causes)


def repository(phrase: dict) -> str:
    """The repository of a gathered phrase, by which to find its neighbours."""
    return phrase["from"].partition("#")[0].lower()


def read(rows: list[dict], without: Container[str] = ()) -> list[tuple[list[str], str, float]]:
    """The phrases as the finder reads them: tokens and groups, cause, weight."""
    found = ((find.widened(find.plain(said)), cause, much)
             for said, cause, much in phrases(rows, without))
    return [one for one in found if one[0]]


def weights(rows: list[dict], stored: dict) -> dict:
    """The word weights; the stored ones as long as phrases and rules are unchanged."""
    said = read(rows)
    of = fingerprints.fingerprint(json.dumps([said, STRENGTH, GROUP, LEAST, STEPS]))
    return stored if stored.get("of") == of else {"of": of, **trained(said)}


def trained(said: list[tuple[list[str], str, float]]) -> dict:
    """Weights of a softmax over the causes (multinomial logistic regression), for find.likely.

    A phrase is a vector of unit length over its tokens and their groups, each by its inverse
    document frequency, as scikit-learn smooths it, a group's times GROUP. `words`: for each token
    that frequency in hundredths, then pairs: how many causes after the last one, and a weight.
    These and `bias` are in tenths, and weights below LEAST are left out.
    """
    from scipy.sparse import csr_matrix  # seldom needed, and slow to import
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import normalize
    share = Counter(token for tokens, _, _ in said for token in tokens)
    places = {token: place for place, token in enumerate(sorted(share))}
    rarity = {token: round(100 * (GROUP if token[0] == "~" else 1)
                           * (1 + math.log((1 + len(said)) / (1 + share[token]))))
              for token in places}
    cells = [(row, places[token], rarity[token]) for row, (tokens, _, _) in enumerate(said)
             for token in tokens]
    rows, columns, values = zip(*cells, strict=True)
    shape = len(said), len(places)
    vectors = normalize(csr_matrix((values, (rows, columns)), shape, "float32"))
    model = LogisticRegression(C=STRENGTH, max_iter=STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it stops early on purpose
        model.fit(vectors, [cause for _, cause, _ in said],
                  sample_weight=[much for *_, much in said])
    return {"causes": list(model.classes_), "bias": tenths(model.intercept_),
            "words": {token: [rarity[token], *with_gaps(tenths(model.coef_[:, column]))]
                      for token, column in places.items()}}


def tenths(numbers: Iterable[float]) -> list[int]:
    return [round(10 * number) for number in numbers]


def with_gaps(weights: list[int]) -> Iterator[int]:
    """The large weights, each after its distance from the last one, to keep the numbers short."""
    last = 0
    for place, weight in enumerate(weights):
        if abs(weight) >= LEAST:
            yield from (place - last, weight)
            last = place
