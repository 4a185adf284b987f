"""Exercise 13.6, `commit`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.6", "commit", seen=("past", "draft", "says"), says="tokens to write")

ex.promise_table("""
triple  | Compute (write, feed, stay) after one round of greedy speculative decoding. | type of the
          result; parts of the result; token to feed; tokens to write
past    | past: the number of cache entries before the round. | case an empty cache; a long cache |
          entries that stay
fed     | In the round, the last written token was fed first. Then draft was fed, a list of guesses
          that may be empty. Each token that was fed left one cache entry. | entries that stay;
          raised
says    | says: for each token that was fed, the token that the model itself wants next. So says has
          one token more than draft. | tokens to write
numbers | Tokens are integers, 0 or more. | case token 0 guessed right; token 0 guessed wrong; token
          0 in a guess's place; large token numbers
write   | write: a list of all tokens that, as this round shows, the model would write without a
          draft. | tokens to write; type of the tokens
feed    | feed: the token to feed next, which is the last token written, because that token has no
          entry. | token to feed
stay    | stay: the number of cache entries, counted from the first, that can stay. | entries that
          stay
left    | draft and says are not changed. | inputs after the call
example | Example: past 10, draft [4, 7, 9], says [4, 8, 9, 2] give ([4, 8], 8, 12). | case the
          example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, n, good, past=None, again=()):
        """`n` guesses of which the first `good` are right; those in `again` agree once more."""
        says = (torch.randperm(90, generator=g)[:n + 1] + 1).tolist()
        draft = [says[i] if i < good or i in again else 100 + whole(0, 90) for i in range(n)]
        return name, {"past": whole(5, 40) if past is None else past, "draft": draft,
                      "says": says}

    shifted = one("guesses one position late", 4, 0)
    shifted[1]["draft"] = shifted[1]["says"][1:]
    same = one("one token repeated", 4, 2)
    same[1].update(draft=[7, 7, 8, 7], says=[7, 7, 7, 7, 7])
    large = one("large token numbers", 4, 0)
    large[1].update(draft=[4000, 70_001, 128_000, 9], says=[4000, 70_001, 600, 9, 5])
    zero = one("token 0 guessed right", 4, 3)
    zero[1]["says"][1] = zero[1]["draft"][1] = 0
    not_zero = one("token 0 guessed wrong", 3, 1)
    not_zero[1]["draft"][1] = 0
    own = one("token 0 in a guess's place", 3, 1)
    own[1]["says"][1] = 0
    a, b, c, d = one("", 3, 0)[1]["says"]
    repeated = one("a guess right at first, wrong when it comes again", 4, 0)
    repeated[1].update(draft=[a, b, a, c], says=[a, b, d, c, b])
    return [one("some guesses right", 5, whole(1, 4)), one("one guess right", 3, 1),
            one("no guess right", 4, 0), one("all guesses right", 4, 4),
            one("all guesses but the last right", 4, 3),
            one("one guess, right", 1, 1), one("one guess, wrong", 1, 0), one("no guess", 0, 0),
            one("right again after a wrong guess", 6, 2, again=(3, 5)),
            one("wrong at first, then right", 4, 0, again=(1, 2, 3)),
            one("an empty cache", 3, 2, past=0), one("a long cache", 3, 1, past=4000),
            one("many guesses", 20, whole(10, 15)), shifted, same, large, zero, not_zero, own,
            repeated,
            ("the example", {"past": 10, "draft": [4, 7, 9], "says": [4, 8, 9, 2]})]


@ex.act
def act(fn, past, draft, says):
    draft[:] = [int(str(token)) for token in draft]  # objects of their own, as numbers read are
    found = fn(past, draft, says)
    return {"found": found}


@ex.law
def law(out, past, draft, says):
    expect_parts(out, "found")
    expect_type("result", out["found"], tuple)
    if len(out["found"]) != 3:
        raise Broken("parts of the result", len(out["found"]), 3)
    write, feed, stay = out["found"]
    expect_type("tokens to write", write, list)
    wrong = [place for place, pair in enumerate(zip(draft, says)) if pair[0] != pair[1]]
    n = wrong[0] if wrong else len(draft)
    place = f"guess {n + 1} is the first wrong one" if wrong else "all of them are right"
    expect_equal("tokens to write", write, says[:n + 1],
                 f"There are {len(draft)} guesses; {place}.")
    expect_equal("token to feed next", feed, says[n])
    expect_equal("entries that stay", stay, past + n + 1,
                 f"The cache has {past + 1 + len(draft)} entries now; {past} are from before this "
                 "round.")


# ---- wrong, by name

@not_an_answer
def made(past, draft, says):
    n = 0
    while n < len(draft) and draft[n] == says[n]:
        n += 1
    return says[:n + 1], says[n], past + 1 + n


wrong = ex.edits(made)
SAME, WRITE, FEED, STAY = "draft[n] == says[n]", "says[:n + 1]", "says[n], past", "past + 1 + n"
# https://github.com/Sudharsanselvaraj/Token-Print/issues/110
wrong("keeping the cache entries of wrong guesses",
      ("stay", "example"), STAY, "past + 1 + len(draft)")
wrong("keeping the cache entry of the first wrong guess", ("stay", "example"),
      STAY, "min(past + 2 + n, past + 1 + len(draft))")
wrong("keeping one cache entry too many", "stay", STAY, "past + 2 + n")
wrong("keeping one cache entry too few", ("stay", "fed"), STAY, "past + n")
# https://github.com/paiml/aprender/pull/2014
wrong("dropping the whole cache", ("stay", "past"), STAY, "1 + n")
wrong("dropping all cache entries of this round", ("stay", "fed"), STAY, "past")
wrong("returning the number of entries to drop, not of those that stay",
      ("stay", "past"), STAY, "len(draft) - n")
wrong("treating token 0 as a missing token",
      "numbers", FEED, "says[n] or says[n - 1], past", says="")
wrong("returning a list of entries instead of their number",
      "stay", STAY, "list(range(past + 1 + n))")
wrong("counting right guesses even after a wrong one", ("write", "says"),
      "return", "n = sum(map(int.__eq__, draft, says)); return", says="")
wrong("writing all guesses up to the last right one", "write", "return",
      "m = max((i + 1 for i in range(len(draft)) if draft[i] == says[i]), default=0); return",
      WRITE, "[*draft[:m], says[m]]")
wrong("writing all guesses", ("write", "says"), WRITE, "draft + says[-1:]")
wrong("not writing the model's own token", ("write", "triple"), WRITE, "draft[:n]")
wrong("not writing the model's own token if all guesses are right", ("write", "says"),
      WRITE, "[*draft[:n], says[n]][:max(len(draft), 1)]")
wrong("writing the first wrong guess instead of the model's token", "write",
      WRITE, "(draft + says[-1:])[:n + 1]")
wrong("comparing each guess with the model's token one position later",
      ("says", "write"), SAME, "draft[n] == says[n + 1]", says="")
wrong("writing only the last token", ("write", "says"), WRITE, "says[n:n + 1]")
wrong("never counting a guess of token 0 as right",
      "numbers", SAME, f"draft[n] and {SAME}", says="")
wrong("comparing tokens by identity, which fails for numbers above 256", "numbers",
      SAME, "draft[n] is says[n]", says="")
wrong("searching for the first wrong guess by its value, which may occur earlier",
      ("write", "says"),
      "return", "n = draft.index(draft[n]) if n < len(draft) else n; return", says="")
wrong("writing all tokens that the model wants", ("write", "says"), WRITE, "says[:]")
wrong("feeding the first wrong guess", "feed", FEED, "(draft + says[-1:])[n], past")
wrong("feeding the last right guess", "feed", FEED, "(says[:1] + draft)[n], past")
wrong("feeding the last token that the model wants", "feed", FEED, "says[-1], past")
wrong("swapping the last two parts of the result", ("feed", "triple"),
      "says[n], past + 1 + n", "past + 1 + n, says[n]")
wrong("returning the tokens to write as a tuple", "write", WRITE, "tuple(says[:n + 1])",
      says="type of the tokens")
wrong("returning a list instead of a tuple", "triple", "return says", "return [says",
      STAY, f"{STAY}]", says="type of the result")
wrong("appending the model's token to the draft in place", "left",
      "return", "draft[n:] = says[n:n + 1]; return")
