"""Exercise 13.10, `given_valid`."""

from __future__ import annotations

import fractions
import math

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.10", "given_valid", seen=("words", "weights", "sharp", "shift"),
              says="probabilities of the words")

ex.promise_table("""
given   | Compute the probability of each word, given that the model writes one of these words. |
          probabilities of the words
words   | words: different lists of one or more tokens, of any length. No word is the beginning of
          another. | case lengths from 1 to 6; one token each; one word; many words
begin   | logprob(begin) returns the log-probabilities of the next token, (V,) float64, after the
          tokens in the list begin, which is [] for a word's first token. | probabilities of the
          words; led to; raised
minus   | Some log-probabilities can be minus infinity, but at least one word is possible. | case a
          word that cannot occur; words that cannot occur; a word that cannot occur next to unlikely
          words
form    | Returns (len(words),) float64. | shape of the; dtype of the; type of the
sum     | The entries sum to 1. | probabilities of the words
tiny    | The sum is 1 even if every word is less likely than the smallest positive float. | case
          very unlikely words; long words; a far less likely word in front
left    | words and the results of logprob are not changed. | inputs after the call; values changed
example | Example: if 'ab' has the probability 0.5 * 0.2 and 'ba' 0.5 * 0.6, return [0.25, 0.75]. |
          case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, words, sharp=1.5, shift=0.0, vocabulary=6):
        weights = torch.randn(4, vocabulary, vocabulary, generator=g, dtype=torch.float64)
        return name, {"words": words, "weights": weights, "sharp": sharp, "shift": shift}

    def some(n, length, vocabulary=5):
        found = []
        while len(found) < n:
            word = [whole(0, vocabulary) for _ in range(length)]
            if word not in found:
                found.append(word)
        return found

    common = [[1, 2, 3], [1, 2, 4], [1, 0, 0], [2, 2, 2], [2, 1, 0]]
    mixed = [[0], [1, 3], [1, 4, 2], [2, 0, 1, 1], [3, 1, 1, 2, 5], [4, 2, 2, 0, 1, 5]]
    never = one("a word that cannot occur", [[1, 2], [1, 3], [2, 1], [0, 4]])
    never[1]["weights"][:, :, 3] = -math.inf
    nevers = one("words that cannot occur", [[1, 2, 0], [3, 1, 0], [3, 2, 0], [0, 4, 0]])
    nevers[1]["weights"][0, :, 3] = -math.inf
    beside = one("a word that cannot occur next to unlikely words", [[2, 1], [3, 1], [2, 4]])
    beside[1]["weights"][0, :, 3] = -math.inf
    beside[1]["weights"][1, 2, [1, 4]] -= 120.0
    front = one("a far less likely word in front", [[0, *word] for word in some(4, 4)],
                shift=-160.0)
    front[1]["words"][0][0] = 5
    front[1]["weights"][0, :, 5] = -900.0
    example = torch.zeros(4, 2, 2, dtype=torch.float64)
    example[1, 0] = torch.tensor([0.8, 0.2], dtype=torch.float64).log()    # behind token 0
    example[1, 1] = torch.tensor([0.6, 0.4], dtype=torch.float64).log()    # behind token 1
    return [one("words that begin alike", common), one("words that begin alike, sharper", common,
                sharp=4.0),
            one("lengths from 1 to 6", mixed), one("one token each", [[0], [3], [5]]),
            one("one word", [[2, 4, 1]]), one("four letters", some(5, 4)),
            one("many words", some(40, 3)), one("the last token decides", [
                [1, 2, 3, 0], [1, 2, 3, 4], [1, 2, 3, 5]]),
            one("the first token decides", [[0, 1, 1], [3, 1, 1], [5, 1, 1]]),
            one("a repeated token", [[2, 2, 2, 2], [2, 2, 2, 3], [3, 3, 3, 3]]),
            one("a narrow way to a likely word", [[1, 5], [2, 0], [2, 1], [2, 3], [2, 4]]),
            never, nevers, beside, front,
            one("very unlikely words", some(4, 5), shift=-160.0),
            one("long words", some(3, 60), sharp=14.0),
            ("the example", {"words": [[0, 1], [1, 0]], "weights": example, "sharp": 1.0,
                             "shift": 0.0})]


@ex.act
def act(fn, words, weights, sharp, shift):
    kept = {}

    def logprob(begin):
        """A model that keeps what it has said for a beginning."""
        if type(begin) is not list:
            raise TypeError(f"logprob: got a {type(begin).__name__}, expected a list of tokens")
        if tuple(begin) not in kept:
            row = said(begin)
            kept[tuple(begin)] = row, row.clone()
        return kept[tuple(begin)][0]

    def said(begin):
        """A model whose next token depends on the last one and on how many stand before it."""
        row = weights[min(len(begin), 3), begin[-1] if begin else 0]
        row = row * sharp + (0.3 * begin[0] * row.sin() if len(begin) > 1 else 0.0)
        return row.nan_to_num(nan=-math.inf, neginf=-math.inf).log_softmax(0) + shift

    found = fn(logprob, words)
    return {"found": found, "moved": sum(int((row != as_said).sum())
                                         for row, as_said in kept.values())}


@ex.law
def law(out, words, weights, sharp, shift):
    expect_parts(out, "found", "moved")
    expect_equal("values changed in what logprob returned", out["moved"], 0,
                 "Adding with += to a number picked from a tensor writes into the tensor.")

    def says(begin):
        row = weights[min(len(begin), 3), begin[-1] if begin else 0]
        row = row * sharp + (0.3 * begin[0] * row.sin() if len(begin) > 1 else 0.0)
        return row.nan_to_num(nan=-math.inf, neginf=-math.inf).log_softmax(0).exp()

    shares = []
    for word in words:                      # exact products, which no range ends
        share = fractions.Fraction(1)
        for i, token in enumerate(word):
            share *= fractions.Fraction(says(word[:i])[token].item()) * fractions.Fraction(
                1, 2**230) ** (shift < 0)
        shares.append(share)
    if shift < 0:                           # each word has as many factors of the shift
        shares = [share * fractions.Fraction(2**230) ** len(word)
                  for share, word in zip(shares, words, strict=True)]
    wanted = torch.tensor([float(share / sum(shares)) for share in shares], dtype=torch.float64)
    best = int(wanted.argmax())
    expect_close("probabilities of the words", out["found"], wanted, rtol=1e-6, atol=1e-9,
                 look=f"Of {len(words)} words, word {best} is the likeliest, with "
                      f"{wanted[best]:.3g}.")
    expect_equal("whether they sum to 1", abs(float(out["found"].sum()) - 1.0) < 1e-9, True)


# ---- wrong, by name

@not_an_answer
def made(logprob, words):
    total = [math.fsum(logprob(word[:i])[word[i]].item() for i in range(len(word)))
             for word in words]
    t = torch.tensor(total, dtype=torch.float64)
    return t.softmax(0)


def masked(row, word, i, words):
    """What is left of a row behind the mask of a step, made to sum to 1 again."""
    allowed = sorted({w[i] for w in words if w[:i] == word[:i] and len(w) > i})
    out = torch.full_like(row, -math.inf)
    out[allowed] = row[allowed]
    return out.log_softmax(0)


def floored(row, word):
    """The row, its minus infinity replaced by a number below the others."""
    floor = -4.0 - 400.0 * (row.max() < -50) - 400.0 * (len(word) > 20)
    return row.clamp(min=floor) if row.isinf().any() else row


def greedy(logprob, words):
    begin = []
    while begin not in words:
        allowed = sorted({w[len(begin)] for w in words if w[:len(begin)] == begin})
        begin.append(max(allowed, key=lambda t: logprob(list(begin))[t].item()))
    return torch.tensor([float(w == begin) for w in words], dtype=torch.float64)


wrong = ex.edits(made)
ROW, BEFORE, PLACES, SHARES = "logprob(word[:i])", "word[:i]", "range(len(word))", "t.softmax(0)"
wrong("masking at each step and normalizing there", "given",
      ROW, "masked(logprob(word[:i]), word, i, words)", SHARES, "t.exp()")
ex.wrong("taking the likeliest allowed token at each step", greedy, breaks="given")
wrong("giving the likeliest word all the probability", "given",
      SHARES, "torch.nn.functional.one_hot(t.argmax(), len(t)).double()")
wrong("giving all words the same probability", "given", SHARES, "torch.full_like(t, 1 / len(t))")
wrong("returning the words' probabilities without dividing by their sum", ("sum", "given"),
      SHARES, "t.exp()")
wrong("multiplying probabilities, which can underflow to 0", "tiny",
      SHARES, "t.exp() / t.exp().sum()", says="")
wrong("multiplying probabilities as Python floats, whose sum can underflow to 0", "tiny",
      SHARES, "torch.tensor([math.exp(s) / math.fsum(map(math.exp, total)) for s in total], "
      "dtype=t.dtype)",
      says="raised ZeroDivisionError")
wrong("adding 1e-300 to each product of probabilities", "tiny",
      SHARES, "(t.exp() + 1e-300) / (t.exp() + 1e-300).sum()", says="")
wrong("averaging the log-probabilities of a word's tokens",
      "given", f"{PLACES})", f"{PLACES}) / len(word)")
wrong("leaving out each word's first token", ("given", "words"), PLACES, "range(1, len(word))")
wrong("leaving out each word's last token", ("given", "words"), PLACES, "range(len(word) - 1)")
wrong("using only each word's first token", "given", PLACES, "[0]")
wrong("using only each word's last token", "given", PLACES, "[len(word) - 1]")
wrong("passing only the last token to logprob", "begin",
      BEFORE, "word[i - 1:i] if i else []")
wrong("passing an empty list for every token", "begin", BEFORE, "[]")
wrong("passing the token itself to logprob as well", "begin", BEFORE, "word[:i + 1]")
wrong("passing a tuple instead of a list to logprob",
      "begin", BEFORE, "tuple(word[:i])", says="raised")
wrong("multiplying log-probabilities", ("given", "sum"), "math.fsum", "math.prod", says="")
wrong("returning the logarithms of the result", ("given", "sum"), SHARES, "t.log_softmax(0)")
wrong("replacing minus infinity with a finite negative number", "minus",
      ROW, "floored(logprob(word[:i]), word)")
wrong("giving an impossible token the probability e**-50", "minus",
      ROW, f"{ROW}.nan_to_num(neginf=-50.0)")
wrong("subtracting the first word's sum, not the largest sum, before exp()", "tiny",
      SHARES, "(t - t[0]).exp() / (t - t[0]).exp().sum()", says="")
wrong("computing in float32", "form", SHARES, "t.softmax(0).float()", says="dtype of the")
wrong("returning a list of floats", "form", SHARES, "t.softmax(0).tolist()", says="type of the")
wrong("returning a matrix with one row", "form", SHARES, "t.softmax(0)[None]", says="shape of the")


@ex.wrong("adding in place, which overwrites what logprob returned", says="values changed",
          breaks="left")
def added(logprob, words):
    totals = []
    for word in words:
        total = logprob([])[word[0]]
        for i in range(1, len(word)):
            total += logprob(word[:i])[word[i]]
        totals.append(total.item())
    return torch.tensor(totals, dtype=torch.float64).softmax(0)


wrong("removing tokens from the words in place",
      "left", "return", "[word.pop() for word in words]; return")
