"""Read what a reviewer says: a mark, a confidence, a consequence and a repair.

Every reader returns a plain value or raises AnswerError, whose message is one sentence for the
reviewer: what came in, and what was expected.
"""

import math
import re
from functools import cache

from dlsys_diffs import typed
from dlsys_diffs.case_files import CHANGED, OMITTED, Case, Line, cases, diff_of
from dlsys_diffs.repository import files
from dlsys_helpers.errors import UserError

NOTHING = -1  # the consequence or repair of a healthy change
AROUND = 1  # unchanged lines around a repair
SHOWN = 80  # characters of an answer that a message repeats
WORDS = 60  # in a consequence typed as a sentence
ENOUGH = 0.3  # the share of an option's words that a text must name to come close to it
CLEAR, AHEAD = 0.5, 2.0  # a clear share, and its ratio to the next option's
KNOWN = 0.4  # the share of a text's words that must be English words of the field
COMMON = 0.1  # the weight of a word that several options of a case share
STEM = 5  # words with the same first letters count as one word
NO_WORDS = {"the", "and", "its", "that", "with", "are", "for", "not", "one", "than", "any", "more",
            "all", "was", "has", "been", "this", "from", "into", "instead", "other", "which",
            "but", "have", "will", "does", "too", "only", "after", "before"}
# Said to a reader that decides, never of a training run. The exam has the same words.
SCORERS = (r"matcher|grader|instructions?|(?:correct|right) (?:answer|option)|"
           r"the answer is|full (?:points|marks)|give (?:me|full)|accept this|option \d")
ADDRESSES = re.compile(rf"\b(?:ignore|prompt|{SCORERS})\b")


class AnswerError(UserError):
    """An answer cannot be read."""


def shown(text: str) -> str:
    return repr(text.strip()[:SHOWN])


# ---- the mark

def mark(text: str, case: Case) -> str:
    """A mark as "file:line" of the file after the change; "" for none.

    A number alone is a line of the file that the change touches, if it touches only one.
    """
    said = " ".join(text.split()).lower()
    if said in ("none", "nothing"):
        return ""
    found = re.fullmatch(r"(?:missing )?(?:([\w.]+)[: ] ?)?(\d{1,4})", said, re.ASCII)
    if not found:
        raise AnswerError(f"mark: got {shown(text) if said else 'nothing'}, expected a file and "
                          "a line number, such as `loop.py:40`, or `none`.")
    touched = sorted({line.file for line in case.diff})
    if not found[1] and len(touched) > 1:
        raise AnswerError(f"mark: got {shown(text)} without a file, and the change touches "
                          f"{', '.join(touched)}. Name the file, such as {touched[0]}:{said}.")
    file, line = (found[1] or touched[0]).removesuffix(".py") + ".py", int(found[2])
    if file not in case.after:
        raise AnswerError(f"mark: got the file {file!r}, expected one of {', '.join(case.after)}.")
    count = case.after[file].count("\n")
    if not 1 <= line <= count:
        raise AnswerError(f"mark: got line {line} of {file}, expected 1 to {count}.")
    return f"{file}:{line}"


def is_place(mark: str, case: Case) -> bool:
    """Whether a mark is at the fault: on its line, or near the place of a missing one."""
    if not mark:
        return False
    file, _, line = mark.partition(":")
    return any(file == there and abs(int(line) - at) <= near(case) for there, at in case.places)


def near(case: Case) -> int:
    """How many lines a mark may be off: a missing line belongs between two others."""
    return 2 if case.kind == OMITTED else 1


# ---- the confidence

def confidence(text: str) -> int:
    """How sure the reviewer is that the change is faulty, 0 to 100."""
    said = text.strip().removesuffix("%").strip()
    if not (said.isascii() and said.isdigit() and int(said[:4]) <= 100):
        raise AnswerError(f"confidence: got {shown(text) if said else 'nothing'}, expected a whole "
                          "number from 0 (sure that it is healthy) to 100 (sure that it is "
                          "faulty).")
    return int(said)


# ---- the consequence

def words(text: str) -> list[str]:
    """The words of a text that carry meaning, each cut to its first letters."""
    return [word[:STEM] for word in re.findall(r"[a-z]{3,}", text.lower()) if word not in NO_WORDS]


@cache
def weights() -> dict[str, float]:
    """The weight of each word in the consequences: the rarer, the heavier."""
    texts = [set(words(text)) for case in cases().values() for text in case.consequences]
    return {word: math.log(len(texts) / sum(word in text for text in texts))
            for word in set().union(*texts)}


@cache
def field_words() -> set[str]:
    """The words of all cases and of the repository."""
    texts = [*files().values(), *(f"{case.title} {case.text} {' '.join(case.consequences)}"
                                  for case in cases().values())]
    return {word for text in texts for word in words(text)}


def consequence(text: str, case: Case, numbered: list[int]) -> int:
    """A consequence as its place in the case, NOTHING for none.

    numbered: the places in the order in which they are shown, from 1. A sentence counts as
    the one consequence that it clearly names; if it is not clear, the reviewer is asked which one
    is meant.
    """
    said = text.strip()
    if said.isascii() and said.isdigit():
        return _numbered(said, numbered, "consequence")
    if not said:
        raise AnswerError("consequence: got nothing, expected a number or a sentence in English.")
    _refuse(said)
    named = set(words(said))
    own = [set(words(option)) for option in case.consequences]
    common = {word for word in set().union(*own) if sum(word in part for part in own) > 1}
    scores = sorted(((_share(part, named, common), place)
                     for place, part in enumerate(own)), reverse=True)
    (best, place), (second, _) = scores[0], scores[1]
    if best < ENOUGH:
        raise AnswerError(f"consequence: {shown(said)} fits none of the consequences here. Say it "
                          "in other words, or choose a number.")
    if best < CLEAR or best < AHEAD * second:
        likely = sorted(1 + numbered.index(other) for score, other in scores
                        if score >= ENOUGH or AHEAD * score > best)
        if len(likely) == 1:
            raise AnswerError(f"consequence: {shown(said)} is closest to {likely[0]}, but not "
                              f"clearly. If you mean that one, answer {likely[0]}.")
        raise AnswerError(f"consequence: {shown(said)} could mean {_listed(likely)}. Answer "
                          "with the number that you mean.")
    return place


def _refuse(said: str) -> None:
    """Refuse a text that is not a sentence about a training run."""
    if ADDRESSES.search(said.lower()):
        raise AnswerError(f"consequence: {shown(said)} addresses a scorer, but words are only "
                          "compared. Say what happens to the run.")
    if len(said.split()) > WORDS:
        raise AnswerError(f"consequence: got {len(said.split())} words, expected one sentence of "
                          f"at most {WORDS}.")
    found = words(said)
    if not found or sum(word in field_words() for word in found) < KNOWN * len(found):
        raise AnswerError(f"consequence: {shown(said)} has no words that we know. Write in "
                          "English, or choose a number.")


def _share(own: set[str], named: set[str], common: set[str]) -> float:
    """The share of an option's words that a text names; words of several options count little."""
    much = {word: weights()[word] * (COMMON if word in common else 1) for word in own}
    return sum(much[word] for word in own & named) / sum(much.values())


def _numbered(said: str, numbered: list[int], what: str) -> int:
    number = int(said[:4])
    if not 0 <= number <= len(numbered):
        raise AnswerError(f"{what}: got {shown(said)}, expected 0 to {len(numbered)}.")
    return numbered[number - 1] if number else NOTHING


# ---- the repair

def repair(text: str, case: Case, numbered: list[int]) -> int:
    """A repair as its place in the case, NOTHING for leaving the change as it is.

    Code counts as the repair that it equals, in any spelling, see `typed`; the old lines count as
    typed.BACK.
    """
    said = text.strip()
    if said.isascii() and said.isdigit():
        return _numbered(said, numbered, "repair")
    if not said:
        raise AnswerError("repair: got nothing, expected a number or the line as it should be.")
    found = typed.repairs_of(text, case)
    if not found:
        raise AnswerError(f"repair: {shown(said)} is none of the repairs that we ran for this "
                          "change. Write it differently, with `;` between lines that belong to "
                          "different places, or choose a number.")
    if len(found) > 1:
        places = _listed(sorted(1 + numbered.index(place) for place in found))
        raise AnswerError(f"repair: {shown(said)} is {places}, depending on where you put it. "
                          "Choose a number.")
    return found.pop()


def is_repair(repair: int, case: Case) -> bool:
    """Whether this repairs a faulty change. Old lines do if a changed line is at fault.

    If a line is missing, restoring the old lines would undo the purpose of the change.
    """
    return repair == 0 or (repair == typed.BACK and case.kind == CHANGED)


def _listed(numbers: list[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"


def repair_diff(case: Case, place: int) -> list[Line]:
    """A repair as a diff of the files after the change, with a line around each."""
    repaired = case.repaired(place)
    return [line for file in dict.fromkeys(edit.file for edit in case.repairs[place])
            for line in diff_of(file, case.after[file], repaired[file], AROUND)]


def repair_lines(case: Case, place: int) -> list[str]:
    """A repair as it is shown in a terminal."""
    return [numbered(line) for line in repair_diff(case, place)]


def numbered(line: Line) -> str:
    """A line of a diff with its number in the new file; a removed one has none."""
    if line.sign == "@":
        return line.text
    return f"{'' if line.sign == '-' else line.at:>4} {line.sign} {line.text}"
