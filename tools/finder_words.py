"""How often people use a word for a cause: by these counts the symptom finder tells causes apart.

They are counted over book/finder_said.yml, the finder's rows and the catalog's symptoms, and stored
beside the rows by tools.book_finder.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import yaml

from dlsys import find
from dlsys_helpers import catalog
from dlsys_helpers.paths import ROOT

SAID = ROOT / "book" / "finder_said.yml"
WHOLE = 100  # counts are stored as whole hundredths of a phrase


def phrases(rows: list[dict]) -> Iterator[tuple[str, str, float]]:
    """What somebody may say, the cause that it means, and how much that counts.

    A row's first cause counts whole, its second half, its third a third.
    """
    told = yaml.safe_load(SAID.read_text("utf-8"))
    for cause, said in {**told["causes"], find.NONE: told["none"]}.items():
        yield from ((phrase, cause, 1) for phrase in said.splitlines())
    for row in rows:
        for place, cause in enumerate(find.meant_by(row), 1):
            yield from ((phrase, cause, 1 / place) for phrase in (row["see"], *row["also"]))
    for trap in catalog.traps():
        yield from ((part, trap.id, 1) for part in (trap.name, *re.split("[;:]", trap.symptom)))
    for phrase in told["gathered"]:
        causes = phrase.get("traps", [find.NONE])
        yield from ((phrase["said"], cause, 1 / len(causes)) for cause in causes)


def counts(rows: list[dict]) -> dict:
    """The causes, how often each is meant, and for each word pairs of a cause's place and a count.

    A phrase's words share its weight, so that a long one does not count more than a short one.
    """
    meant, used = Counter(), defaultdict(Counter)
    for phrase, cause, weight in phrases(rows):
        words = dict.fromkeys(find.plain(phrase))
        if words:
            meant[cause] += weight
        for word in words:
            used[word][cause] += weight / math.sqrt(len(words))
    causes = sorted(meant)
    return {"causes": causes, "meant": [round(meant[cause] * WHOLE) for cause in causes],
            "words": {word: [number for place, cause in enumerate(causes) if by[cause]
                             for number in (place, round(by[cause] * WHOLE))]
                      for word, by in sorted(used.items())}}
