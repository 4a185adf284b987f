"""The cases of a sheet, drawn with a key: nobody who lacks the key can tell what they are.

A case has a complaint, a fault in one of its forms and sizes or none at all, and some harmless
oddities. Both forms of a ticket and a round draw from the same groups of faults, never the same
fault, and have the same number of healthy cases.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from dataclasses import dataclass
from functools import cache

from dlsys_checks.exam import decoys, faults, sheet, variants
from dlsys_checks.exam.complaints import GROUPS
from dlsys_checks.exam.faults import FIRST, SILENT, Fault

HEALTHY = "healthy"  # the name of no fault


@dataclass(frozen=True)
class Drawn:
    """A case: what is planted in it, if anything, its script, and how it begins."""

    fault: Fault | None
    source: str
    seed: int
    group: str
    complaint: str

    @property
    def name(self) -> str:
        """What has to be named: the number of a trap, or HEALTHY."""
        return self.fault.id if self.fault else HEALTHY


LOUD, QUIET = (
    "Log: `loss nan` from the first epoch on, accuracy {accuracy}. It ran last week, on other "
    "images.",
    "The accuracy is {accuracy}. The first customer reports a lower one, on images of her own.")


def case(key: bytes, number: int, ticket: str, place: int) -> Drawn:
    """Case 1 to 5 of a sheet, or a worked one: 0 is loud, -1 is silent.

    Raises CatalogError for a number that no sheet has.
    """
    if place > 0:
        return cases(key, number, ticket)[place - 1]
    fault, text = ((FIRST, LOUD), (SILENT, QUIET))[-place]
    return Drawn(fault, fault.planted(faults.healthy()), 7 - place, "", text)


@cache
def cases(key: bytes, number: int, ticket: str) -> tuple[Drawn, ...]:
    """The five cases of a sheet."""
    sheet.known(number)
    form, turn = sheet.form_and_round(number)
    rng = _rng(key, ticket, turn, "both")
    groups = rng.sample(sorted(GROUPS), sheet.CASES)
    well = rng.choice((1, 1, 2))  # healthy cases
    planned = _planned(rng, groups, well)[form]
    mine = _rng(key, ticket, turn, form)
    mine.shuffle(planned)
    return tuple(_drawn(mine, *one) for one in planned)


def _rng(key: bytes, *parts: object) -> random.Random:
    text = "/".join(map(str, parts)).encode()
    return random.Random(hmac.digest(key, text, hashlib.sha256))


def _planned(rng: random.Random, groups: list[str], well: int) -> dict[str, list]:
    """By form, a group and a fault or HEALTHY for each case; no fault is in both forms."""
    used: set[str] = set()
    found: dict[str, list] = {}
    for form in sheet.FORMS:
        may = [group for group in groups if GROUPS[group].healthy]
        healthy = set(rng.sample(may, well))
        found[form] = []
        for group in groups:
            name = HEALTHY
            if group not in healthy:
                name = rng.choice([id for id in GROUPS[group].faults if id not in used])
                used.add(name)
            found[form].append((group, name))
    return found


def _drawn(rng: random.Random, group: str, name: str) -> Drawn:
    texts = GROUPS[group]
    fault = None if name == HEALTHY else variants.drawn(name, rng)
    plain = faults.healthy()
    part = fault.part if fault else faults.FAULTS[rng.choice(texts.faults)].part
    source = decoys.added(fault.planted(plain) if fault else plain, rng, part)
    return Drawn(fault, source, rng.randrange(10_000), group,
                 rng.choice(texts.texts))
