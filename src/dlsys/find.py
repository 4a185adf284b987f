"""`dlsys find "loss stuck at 2.303"`: the rows of the book's symptom finder, in the terminal.

Rows, rules (spellings, words to ignore, weights) and what words say about causes are in
symptoms.json, which `make build` writes. The page's book/assets/finder/finder.js scores by the
same rules, function by function, and the tests put the same questions to both.
"""

import functools
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dlsys_helpers import catalog

STORED = Path(__file__).with_name("symptoms.json")
MOST = 3  # rows that are printed, and causes
NAMED, LETTERS = 10, 40  # words that no row has: how many are named, and how much of each
DIGITS = 9  # of a score, so that Python and JavaScript order equal rows alike
NONE = ""  # the cause of what no row is about
TENTHS = 10  # the weights of words are stored as whole tenths
LEAST = 1e-9  # of a share, so that its logarithm is finite
WORD = re.compile(r"[0-9]+(?:\.[0-9]+)?(?: ?%)?|[a-z][a-z0-9]*")
# What is removed from a text: addresses, tags of a page (but not <pad> or <unk>), and entities.
MARKUP = re.compile(r"https?://[^ \t\r\n<>]+|&(?:lt|gt|amp|quot|nbsp|#[0-9]+);"
                    r"|</?(?:a|b|i|p|em|li|ul|ol|br|hr|td|tr|th|h[1-6]|div|pre|img|sub|sup|code|span"
                    r"|html|body|head|table|style|script|strong|details|summary|blockquote)"
                    r"(?:[ \t\r\n][^<>]*)?/?>")
NO_TRAP = "no trap shows it"
HEADINGS = {"very likely": "Very likely one of these causes:",
            "likely": "Likely one of these causes:",
            "possible": "Possibly one of these causes, but just as possibly none of ours:",
            "": "The nearest of our causes, none of them likely:"}  # by how sure the finder is
UNSURE = "possible"  # the least of these words; such an answer also says how to search
NONE_OF_OURS = "None of our causes fits what you see."
SEARCH = "How to search for it:"
ENGLISH = "The finder reads English: what you see, the message of an error, or a number."


class Answer(NamedTuple):
    """Rows and causes, both best first, and how much to trust them."""

    hits: list[dict]
    causes: list[str]  # at most MOST: traps by number, sentences without a trap, or a row's sign
    sure: str  # how sure it is that one of the causes is right, in words; "" if none of ours is
    missing: list[str]  # the words of the question that no row has
    skipped: int = 0  # words of a long text that were not read

    @property
    def fits(self) -> bool:
        """Whether the finder answers; if not, it says that none of its causes fits."""
        return self.sure != ""


class IndexedRow(NamedTuple):
    """A row as it is compared: its phrases, and the tokens of each place."""

    row: dict
    phrases: list[list[str]]  # the sign, then its other words
    places: list[tuple[float, list[str]]]  # how much a place counts, its tokens


class Index(NamedTuple):
    """All rows, read once, with how much each token says about a cause."""

    rows: list[IndexedRow]
    weights: dict[str, float]  # of each token of a sign, its other words or its causes
    all: list[str]  # every token of any row
    lengths: list[list[float]]  # of each phrase of each row


@functools.cache
def stored() -> dict:
    """Rules and rows as they were built."""
    return json.loads(STORED.read_text("utf-8"))


def rules() -> dict:
    return stored()["rules"]


def stem(word: str, endings: list[str]) -> str:
    """A word without its ending, with one spelling for -ise and -ize."""
    word = re.sub(r"is(?=ation|e|ing)", "iz", word)
    for end in endings:
        if word.endswith(end) and len(word) - len(end) >= 3:
            return word[:-len(end)]
    return word


def number(said: str) -> list[str]:
    """A number without needless zeros, and what it may mean: "2.302585" is the loss of guessing."""
    value, percent = float(said.rstrip("% ")), "%" if said.endswith("%") else ""
    plain = f"{value:.4f}".rstrip("0").rstrip(".") + percent
    near = rules()["near"]
    return [plain] + [name for name, level in rules()["levels"]
                      if "." in said and not percent and abs(value - level) <= near]


def tokens(text: str) -> Iterator[tuple[str, str]]:
    """The tokens of a text, one for all spellings of a word, each with the text's own words."""
    said = WORD.findall(MARKUP.sub(" ", text.lower()))
    stems = [stem(word, rules()["endings"]) for word in said]
    at = 0
    while at < len(said):
        for length in range(rules()["longest"], 0, -1):
            token = rules()["same"].get(" ".join(stems[at:at + length]))
            if token and at + length <= len(said):
                yield token, " ".join(said[at:at + length])
                break
        else:
            length = 1
            if said[at][0].isdigit():
                yield from ((token, said[at]) for token in number(said[at]))
            elif stems[at] not in rules()["idle"]:
                yield stems[at], said[at]
        at += length


def excerpt(words: list) -> list:
    """The words that the finder reads of a long text such as a pasted log: its two ends."""
    half = rules()["ends"]
    return words if len(words) <= 2 * half else [*words[:half], *words[-half:]]


def plain(text: str) -> list[str]:
    return [token for token, _ in tokens(text)]


@functools.cache
def synonyms() -> dict[str, list[str]]:
    """The groups of words that are close to each other in this field, by each of their tokens."""
    groups: dict[str, list[str]] = {}
    for group in rules()["like"]:
        for token in group.split():
            groups.setdefault(token, []).append(f"~{group.partition(' ')[0]}")
    return groups


def widened(said: list[str]) -> list[str]:
    """Each token once, then their groups: "dies" speaks for a cause as "killed" and "abort" do."""
    groups = (group for token in said for group in synonyms().get(token, ()))
    return [*dict.fromkeys([*said, *groups])]


def alike(asked: str, word: str) -> float:
    """How well a word matches an asked token: 1 if equal, less if one begins with the other."""
    if asked == word:
        return 1
    goes_on = len(asked) >= 4 and word.startswith(asked)
    begins = len(word) >= 4 and asked.startswith(word) and len(asked) - len(word) <= 3
    return rules()["weights"]["start"] if goes_on or begins else 0


def read(row: dict) -> IndexedRow:
    weights, places = rules()["weights"], words_of(row)
    phrases = [plain(places["see"]), *map(plain, places["also"])]
    return IndexedRow(row, phrases, [(weights["see"], phrases[0]),
                               (weights["also"], [token for one in phrases[1:] for token in one]),
                               (weights["name"], plain(places["name"])),
                               (weights["rest"], plain(places["rest"]))])


def index(rows: list[dict]) -> Index:
    """Read all rows; the fewer of them have a token as sign, word or cause, the more it says."""
    all_read = [*map(read, rows)]
    shares = Counter(token for row in all_read
                     for token in {token for _, words in row.places[:3] for token in words})
    weights = {token: says_much(len(all_read), share) for token, share in shares.items()}
    lengths = [[math.hypot(*(weights[token] for token in set(phrase))) for phrase in row.phrases]
               for row in all_read]
    return Index(all_read, weights, sorted(words_in(all_read)), lengths)


def words_in(rows: Iterable[IndexedRow]) -> set[str]:
    return {token for row in rows for _, words in row.places for token in words}


def says_much(rows: int, share: int) -> float:
    return math.log(1 + rows / (1 + share))


def weigh(known: Index, near: dict[str, float]) -> float:
    """How much an asked token says; near: the tokens of all rows that are like it."""
    share = sum(any(word in near for _, words in row.places[:3] for word in words)
                for row in known.rows)
    return says_much(len(known.rows), share)


def coverage(near: dict[str, float], row: IndexedRow) -> float:
    """How much of a token's weight a row has, at the place where it counts most.

    near: the tokens of all rows that are like the asked one, and how much.
    """
    return max((weight * near[word] for weight, words in row.places for word in words
                if word in near), default=0)


def closest(asked: dict[str, float], nears: dict[str, dict], row: IndexedRow,
            lengths: list[float]) -> float:
    """How similar the closest phrase is to the asked words: 1 if no word is left over."""
    length = math.hypot(*asked.values())
    most = 0.0
    for phrase, whole in zip(row.phrases, lengths, strict=True):
        shared = sum(weight ** 2 * max((nears[token].get(word, 0) for word in phrase), default=0)
                     for token, weight in asked.items())
        if shared:
            most = max(most, shared / (length * whole))
    return most


def together(said: list[str], row: IndexedRow) -> list[str]:
    """The asked tokens that have the same neighbour in a phrase of the row."""
    pairs = {pair for phrase in row.phrases for pair in itertools.pairwise(phrase)}
    return [token for pair in itertools.pairwise(said) if pair in pairs for token in pair]


def quoted(said: list[str], row: IndexedRow) -> bool:
    """Whether both share four consecutive tokens, as when somebody pastes a whole message."""
    texts = [f" {' '.join(words)} " for words in row.phrases]
    runs = [f" {' '.join(said[i:i + 4])} " for i in range(len(said) - 3)]
    return any(run in text for run in runs for text in texts)


def likely(said: list[str]) -> dict[str, float]:
    """The probability that these tokens mean each cause, or NONE if nothing fits.

    A softmax of weighted words, see tools/finder_words.py; the tokens and their groups form a
    vector of unit length, so that a long question is no surer than a short one. Empty if no
    word is known.
    """
    told = stored()["said"]
    words = [told["words"][token] for token in widened(said) if token in told["words"]]
    if not words:
        return {}
    length = math.hypot(*(rare for rare, *_ in words))
    logits = [bias / TENTHS for bias in told["bias"]]
    for rare, *pairs in words:
        places = itertools.accumulate(pairs[::2])
        for place, weight in zip(places, pairs[1::2], strict=True):
            logits[place] += weight / TENTHS * rare / length
    most = max(logits)
    shares = [math.exp(logit - most) for logit in logits]
    every = sum(shares)
    return {cause: round(share / every, DIGITS)
            for cause, share in zip(told["causes"], shares, strict=True)}


def causes_of(row: dict) -> list[str]:
    """The causes that a row is a sign of, most frequent first; a row without causes is its own."""
    return [cause.get("trap") or cause["says"] for cause in row["causes"]] or [row["see"]]


def likelihood(row: dict, causes: dict[str, float]) -> float:
    """How likely a row is meant: by its likeliest cause, which counts less if it is named late."""
    fall = rules()["weights"]["fall"]
    return max(causes.get(cause, 0) * fall ** place
               for place, cause in enumerate(causes_of(row)))


class Asked(NamedTuple):
    """A question as it is compared with rows."""

    said: list[str]  # its tokens, in their order
    weights: dict[str, float]  # of each token: how much it says
    nears: dict[str, dict[str, float]]  # of each token, the tokens of all rows that are like it
    missing: list[str]  # the words that no row has
    skipped: int  # words of a long text that were not read


class Scored(NamedTuple):
    """How well a row answers a question."""

    score: float
    exact: bool  # the row quotes four words of the question
    row: dict
    own: float  # by the row's words alone, without how likely its causes are


def asked_of(known: Index, query: str) -> Asked:
    """A question, read once: rare words count more."""
    every = list(tokens(query))
    words = excerpt(every)
    nears: dict[str, dict[str, float]] = {}
    weights: dict[str, float] = {}
    for token in dict.fromkeys(token for token, _ in words):
        nears[token] = {word: much for word in known.all if (much := alike(token, word))}
        if token[0].isdigit() and not nears[token]:
            continue  # a number that no row has is no sign
        weights[token] = weigh(known, nears[token])
    missing = dict.fromkeys(word for token, word in words if token in weights and not nears[token])
    return Asked([token for token, _ in words], weights, nears, list(missing),
                 len(every) - len(words))


def scores(known: Index, asked: Asked, shares: dict[str, float]) -> list[Scored]:
    """How well each row answers, best first; shares: how likely each cause is to be meant."""
    weights, found = rules()["weights"], []
    whole = sum(asked.weights.values()) or 1
    for row, lengths in zip(known.rows, known.lengths, strict=True):
        cover = sum(weight * coverage(asked.nears[token], row)
                    for token, weight in asked.weights.items())
        beside = sum(asked.weights[token] for token in together(asked.said, row)) / 2
        same = closest(asked.weights, asked.nears, row, lengths) if cover else 0
        exact = quoted(asked.said, row)
        own = (cover + weights["pair"] * beside) / whole + weights["phrase"] * same
        own *= weights["quoted"] if exact else 1
        score = round(own + weights["likely"] * likelihood(row.row, shares), DIGITS)
        found.append(Scored(score, exact, row.row, own))
    return sorted(found, key=lambda one: -one.score)


def rank(known: Index, query: str) -> Answer:
    """Rank rows: rare words, words for what one sees, and likely causes count more."""
    asked = asked_of(known, query)
    if not asked.said:
        return Answer([], [], "", [])
    fall, shares = rules()["weights"]["fall"], likely(asked.said)
    every, named = scores(known, asked, shares), {}
    for one in every:
        for place, cause in enumerate(causes_of(one.row)):
            named[cause] = max(named.get(cause, 0), one.own * fall ** place)
    scored = [one for one in every if one.score]
    exact = bool(scored) and scored[0].exact
    causes = likeliest(named, shares)
    known_words = sum(bool(asked.nears[token]) for token in asked.weights)
    sure = in_words(belief(shares, exact, known_words)) if scored else ""
    if sure == UNSURE and unknown(asked) > rules()["gate"]["unknown"]:
        sure = ""
    return Answer(agreeing([(one.score, one.row) for one in scored], causes), causes, sure,
                  asked.missing, asked.skipped)


def unknown(asked: Asked) -> float:
    """The share of a question's weight in words that no row has."""
    return sum(weight for token, weight in asked.weights.items() if not asked.nears[token]) / (
        sum(asked.weights.values()) or 1)


def belief(shares: dict[str, float], exact: bool, words: int) -> float:
    """The probability that a right cause is among those shown.

    A logistic curve over the best cause's probability, relative to NONE and by itself.
    tools.finder_gate fits it to phrases that the causes' weights were not trained on. A message
    that a row quotes word for word is extra evidence; a single known word is weak evidence.
    words: how many are known.
    """
    gate = rules()["gate"]
    best = max((share for cause, share in shares.items() if cause != NONE), default=0)
    if not best:
        return gate["quoted"] if exact else 0
    odds = math.log(max(best, LEAST)) - math.log(max(shares.get(NONE, 0), LEAST))
    logit = gate["bias"] + gate["odds"] * odds + gate["best"] * math.log(max(best, LEAST))
    much = 1 / (1 + math.exp(-logit))
    if words < 2:
        return min(much, gate["alone"])
    return max(much, gate["quoted"]) if exact else much


def in_words(much: float) -> str:
    """How sure the finder says it is: the first of its words for which `much` is enough."""
    return next((word for least, word in rules()["sure"] if much >= least), "")


def agreeing(scored: list[tuple[float, dict]], causes: list[str]) -> list[dict]:
    """The rows that score enough and name a cause that is shown, so that signs and causes agree.

    For a shown cause that none of them names, the best row that does is added.
    """
    least, wanted = rules()["weights"]["shown"] * (scored[0][0] if scored else 0), set(causes)
    firsts = {}  # of each cause, its best row
    for place, (_, row) in enumerate(scored):
        for cause in wanted.intersection(causes_of(row)):
            firsts.setdefault(cause, place)
    return [row for place, (score, row) in enumerate(scored)
            if place in firsts.values()
            or (score >= least and wanted.intersection(causes_of(row)))]


def likeliest(named: dict[str, float], causes: dict[str, float]) -> list[str]:
    """The best causes, by how well a row that names them answers and how likely they are."""
    much = rules()["weights"]["cause"]
    scores = {cause: round(named[cause] + much * causes.get(cause, 0), DIGITS)
              for cause in stored()["said"]["causes"] if cause != NONE}
    return sorted((cause for cause in scores if scores[cause]), key=lambda one: -scores[one])[:MOST]


def notes(answer: Answer) -> list[str]:
    """The notes next to an answer: a sentence each on what was not understood or not read."""
    lines = []
    if answer.missing:
        names = [word[:LETTERS] for word in answer.missing[:NAMED]]
        more = len(answer.missing) - len(names)
        others = f" and {more} more" if more else ""
        lines.append(f"The finder does not know: {', '.join(names)}{others}.")
    if answer.missing and not answer.causes:
        lines.append(ENGLISH)
    if answer.skipped:
        lines.append(long_text())
    return lines


def long_text() -> str:
    return (f"The text is long: only its first and its last {rules()['ends']} words were read. Ask "
            "with the one line that matters.")


def search() -> list[str]:
    """How to look for a cause that the finder does not know."""
    return rules()["search"]


def watch_says(rules: list[str]) -> str:
    """What the watch says of a fault, by the names of its rules."""
    *others, last = rules
    return "dlsys watch says " + (f"{', '.join(others)} or {last}" if others else last)


def traps(row: dict) -> list[str]:
    """The traps that a sign may be, most frequent first."""
    return [cause["trap"] for cause in row["causes"] if "trap" in cause]


def words_of(row: dict) -> dict:
    """What a row is found by, as text: the sign, other words for it, causes, page and rules."""
    names = [catalog.trap(cause["trap"]).name if "trap" in cause else cause["says"]
             for cause in row["causes"]]
    first = [catalog.trap(trap).symptom for trap in traps(row)[:1]]
    watched = [watch_says(cause["rules"]) for cause in row["causes"] if cause.get("rules")]
    return {"see": row["see"], "also": row["also"], "name": " . ".join([*names, *first]),
            "rest": " . ".join([row.get("page", ""), *watched])}


def rows() -> list[dict]:
    return stored()["rows"]


def cause_with_page(cause: dict, base: str) -> str:
    """A cause as it is printed, with the address of its page if the site is known."""
    if "says" in cause:
        return f"{cause['says']} ({NO_TRAP})"
    trap = cause["trap"]
    link = f"  {base}/traps/{trap.replace('.', '-')}.html" if base else ""
    return f"trap {trap}  {catalog.trap(trap).name}{link}"


def cause_line(cause: str) -> str:
    """A cause in one line: a trap with its fault, or the text of a cause that no trap teaches."""
    known = {trap.id: trap.name for trap in catalog.traps()}
    return f"{cause} {known[cause]}" if cause in known else cause


@functools.cache
def watched() -> dict[str, list[str]]:
    """The watch's rules for each trap."""
    return {cause["trap"]: cause["rules"] for row in rows() for cause in row["causes"]
            if "trap" in cause}


def watch_line(cause: str) -> str:
    """What `dlsys watch` says of a cause: its rules, that it has none, or "" without a trap."""
    if cause not in watched():
        return ""
    return watch_says(watched()[cause]) if watched()[cause] else "dlsys watch has no rule for it"


def with_watch(text: str, cause: str) -> str:
    return "; ".join(part for part in (text, watch_line(cause)) if part)


def printed_row(row: dict) -> list[str]:
    """A row as it is printed: the sign, its causes with what the watch says of each, the test."""
    base = os.environ.get("DLSYS_BOOK", "").rstrip("/")
    causes = [with_watch(cause_with_page(cause, base), cause.get("trap", ""))
              for cause in row["causes"]] or [row["page"]]
    first, *others = causes
    return [row["see"], first, *(f"or {cause}" for cause in others), f"test: {row['test']}"]
