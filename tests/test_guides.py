"""A claim backs every number in a guide; book/guide_claims.yml says which."""

import functools
import re

import nbformat
import pytest
import yaml

from dlsys_helpers.paths import NOTEBOOKS, ROOT
from tools.lessons import NOT_PROSE, NUMBER

BOOK = ROOT / "book"
HELD = yaml.safe_load((BOOK / "guide_claims.yml").read_text("utf-8"))
ENTRIES = [pytest.param(guide, entry, id=f"{guide}-{entry['says'][:40]}")
           for guide, entries in HELD.items() for entry in entries]
# A reference names a stage or a trap; a year says that the line cites a paper.
REFERENCE = re.compile(r"\{ref\}`[^`]*`|\[stage \d+\]\([^)]*\)")
CITED = re.compile(r"\b(19|20)\d\d\b")


def plain(text):
    return " ".join(text.split())


@functools.cache
def guide_text(guide):
    return plain((BOOK / f"{guide}.md").read_text("utf-8"))


@functools.cache
def code_cells(stage):
    [path] = NOTEBOOKS.glob(f"{stage}_*.ipynb")
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


@functools.cache
def claims(stage):
    """Every claim of a stage's notebook as "text: bound", without the measured value."""
    shown = [out.get("data", {}).get("text/plain", "") for c in code_cells(stage)
             for out in c.outputs]
    return {bound_of(text.removeprefix("holds: ")) for text in shown if text.startswith("holds: ")}


def bound_of(line):
    """A claim's line without the measured value: "share: 0.24, below 0.65" has "below 0.65"."""
    text, _, reading = line.rpartition(": ")
    return f"{text}: {reading.rpartition(', ')[2].removeprefix('expected ')}"


@functools.cache
def code(stage):
    return plain("\n".join(c.source for c in code_cells(stage)))


def stages_and_words(entry, key):
    """The values of a key, each as a stage and its words."""
    found = entry.get(key, [])
    return [line.split(" ", 1) for line in ([found] if isinstance(found, str) else found)]


def numbers(text):
    """The numbers in a text that count, with 20 % as 0.2; integers below ten do not count."""
    for digits, percent in NUMBER.findall(text):
        value = float(digits.replace(",", ""))
        if percent or value >= 10 or value != int(value):
            yield value / 100 if percent else value


def values(text):
    """Every number in a claim or in code, also read as a percentage."""
    found = {float(n.replace(",", "")) for n in re.findall(
        r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?", text, re.I)}
    return found | {n / 100 for n in found}


@pytest.mark.parametrize(("guide", "entry"), ENTRIES)
def test_what_a_guide_says_is_held_by_the_lesson(guide, entry):
    assert entry["says"] in guide_text(guide), "the guide no longer says so"
    assert entry.keys() & {"claim", "code", "source"}
    assert [(stage, claim) for stage, claim in stages_and_words(entry, "claim")
            if claim not in claims(stage)] == [], "the lesson no longer claims so"
    assert [(stage, words) for stage, words in stages_and_words(entry, "code")
            if words not in code(stage)] == [], "the lesson's code no longer says so"


@pytest.mark.parametrize(("guide", "entry"), ENTRIES)
def test_its_numbers_are_those_of_the_claim(guide, entry):
    known = set().union(*(values(words) for key in ("claim", "code")
                          for _, words in stages_and_words(entry, key)),
                        values(entry.get("source", "")))
    said = set(numbers(entry["says"]))
    if "claim" not in entry and "code" not in entry:
        return  # the text names its source, a paper or a practice, next to the number
    assert {n for n in said if not any(abs(n - k) <= 1e-9 * max(1, n) for k in known)} == set()


def unclaimed_numbers(guide, text):
    """The numbers in a guide that neither an entry nor a line citing a paper contains."""
    lines = [line for line in text.splitlines() if not CITED.search(line)]
    rest = plain(REFERENCE.sub(" ", "\n".join(lines)))
    for entry in HELD[guide]:
        rest = rest.replace(plain(REFERENCE.sub(" ", entry["says"])), " ")
    return list(numbers(NOT_PROSE.sub(" ", rest)))


@pytest.mark.parametrize("guide", sorted(path.stem for path in BOOK.glob("guide_*.md")))
def test_every_number_of_a_guide_is_held(guide):
    assert unclaimed_numbers(guide, (BOOK / f"{guide}.md").read_text("utf-8")) == []


def test_a_number_that_nobody_holds_is_found():
    assert unclaimed_numbers("guide_loss", "It reads 97 % of the digits.") == [0.97]
    cited = "Cited: He et al. 2015, 97 %.\nTwo layers, 2 steps."
    assert unclaimed_numbers("guide_loss", cited) == []


def test_a_changed_claim_is_noticed():
    stage, claim = stages_and_words(HELD["guide_loss"][2], "claim")[0]
    assert claim in claims(stage)
    assert claim.replace("1208", "1209") not in claims(stage)
