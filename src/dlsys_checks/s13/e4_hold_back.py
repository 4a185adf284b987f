"""Exercise 13.4, `Stream`."""

from __future__ import annotations

import codecs
import re

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.4", "Stream", seen=("stops", "tokens", "beside"), says="text after")

ex.promise_table(r"""
text       | Send the text of an answer while it is written, up to the first stop word. | a
             different text; broken letters; text that was sent too early; text after a stop word;
             text that is held too long
stops      | stops: a list of texts, possibly empty. No stop word is empty, is part of another one
             or contains "\ufffd". | case no stops; two stops; two stops that overlap; stops that
             begin alike; a stop of one letter; two stops, of which the first holds more; two stops,
             of which the second holds more; stops with signs; a stop word in capitals; two stop
             words in one token
left       | stops is not changed. | inputs after the call
cut        | push(token): token holds the next bytes of the answer in UTF-8, cut anywhere. | case
             letter by letter; byte by byte; a token without bytes; one token
kind       | push returns the text that can be sent now. | type of the
bad        | Bytes that are not UTF-8 become "\ufffd". | case bytes that are not UTF-8
never      | Sent text is never taken back, so push keeps the ending that can become a stop word. |
             text that was sent too early
letters    | push also keeps the bytes of an unfinished letter. | broken letters; letters that are
             lost
sure       | push keeps nothing else. | text that is held too long
over       | Neither the first stop word nor what follows is sent. From then on, push returns "". |
             text after a stop word
end        | end() is called once, when the answer is over, and returns the text still kept. | text
             after end
unfinished | At the end, an unfinished letter becomes "\ufffd". | case an unfinished letter; an
             unfinished letter after a stop word; an unfinished letter after what is held
apart      | Objects do not affect each other. | case two answers at once
example    | Example: stops ["\nUser"], push(b"Hi\nU") "Hi", push(b"se") "", push(b"d!") "\nUsed!",
             end() "". | case the example
""")

WORDS = ("Grüße", "aus", "Zürich", "你好", "мир", "naïve", "🙂", "日本", "kostet", "5 €", "güneş",
         "żółć", "User", "use", "Us")


@ex.cases
def cases(g):
    whole = integers(g)

    def some(n=7):
        return " ".join(WORDS[whole(0, len(WORDS))] for _ in range(n))

    def tokens(text, size=4):
        data = text.encode() if type(text) is str else text
        found = []
        while data:
            n = whole(1, size + 1)
            found.append(list(data[:n]))
            data = data[n:]
        return found

    def given(name, stops, *pieces):
        """The tokens as they are cut here."""
        return name, {"stops": stops, "tokens": [list(p if type(p) is bytes else p.encode())
                                                 for p in pieces], "beside": []}

    def one(name, stops, text, size=4):
        return name, {"stops": stops, "tokens": tokens(text, size), "beside": []}

    stop, smile = "\nUser:", "🙂".encode()
    two = one("two answers at once", [stop], f"{some()} 你好 🙂🙂", 1)
    two[1]["beside"] = tokens(f"🙂 {some()}", 1)
    return [one("a stop word at the end", [stop], some() + stop + " secret " + some(3)),
            one("no stop word occurs", [stop], some() + "\nUse it"),
            one("ends like a stop word", [stop], some(3) + "\nUser"),
            one("begins like a stop word, again and again", [stop],
                f"{some(2)}\n\nUs\nUse\n\nUser\nUser of {some(2)}{stop} no"),
            one("letter by letter", [stop], some(4) + stop + "x", 1),
            one("byte by byte", ["日本"], "日光 " + some(4) + " 日 日本 x", 1),
            given("one token", [stop], f"Zürich{stop} secret"),
            one("a stop word at the front", [stop], stop + some(2)),
            one("twice", ["ende"], f"{some(2)} ende {some(2)} ende {some(2)}", 3),
            one("no stops", [], some(8)), one("two stops", ["#", stop], some(4) + "\nUser# no"),
            one("two stops, the second", ["\n\n", stop], f"{some(3)}\n{some(1)}{stop}\n\nx", 9),
            one("two stops that overlap", ["abc", "cde"], f"{some(2)} ab cd abd abcde f", 2),
            one("stops that begin alike", ["stop it", "stopped", "stock"],
                f"{some(2)} sto stop sted stopper stock", 2),
            one("a stop of one letter", ["你"], f"好 {some(3)} 您你好", 2),
            one("a stop that repeats itself", ["aab"], "ba aaa aaaa aaaab", 1),
            one("a stop that repeats itself, longer", ["ababc"],
                f"{some(1)} abab ababab ababababc x", 2),
            given("a token without bytes", [stop], "", some(2), "", some(1), stop[:4], "",
                  " x", ""),
            given("no token", [stop]),
            given("two stops, of which the first holds more", ["abc", "bd"], f"{some(1)} ab", "ac",
                  " xab", "c no"),
            given("two stops, of which the second holds more", ["bd", "abc"], "güneş ab", "d",
                  " xab", "c no"),
            given("two stop words in one token", ["#", stop], some(2), f" {some(1)}{stop} a # no"),
            given("a stop word in capitals", [stop], "Zürich\nUSER: aus"),
            given("a stop word twice in one token", ["ende"], some(2), f" {some(2)} ende da ende."),
            one("stops with signs", ["<|eot|>", "Is it?", "etc."],
                f"< {some(1)} eot <|eot > Is i, Is itc, etca <|eot|>no", 3), two,
            one("letters that only look like others", [stop], f"\ufeff\nuser: {some(1)}\r\n\nUSER: "
                f"e\u0301 \u00e9 \nUser\uff1a{stop} no", 5),
            one("an unfinished letter", [stop], some(3).encode() + "🙂".encode()[:3]),
            given("an unfinished letter after a stop word", [stop], some(2), stop,
                  b"so " + smile[:2]),
            given("an unfinished letter after what is held", [stop], some(2), stop[:3],
                  smile[:3]),
            one("bytes that are not UTF-8", [stop],
                b"ab\xff\xfec" + some(2).encode() + b"\xff.", 2),
            one("many letters", [stop], some(40) + stop + some(4), 6),
            given("the example", ["\nUser"], b"Hi\nU", b"se", b"d!")]


@ex.act
def act(fn, stops, tokens, beside):
    stream, sent = fn(stops), []
    other, aside = fn(stops) if beside else None, []
    for place in range(max(len(tokens), len(beside))):
        sent += [stream.push(bytes(token)) for token in tokens[place:place + 1]]
        aside += [other.push(bytes(token)) for token in beside[place:place + 1]]
    return {"sent": sent, "end": stream.end(), "aside": aside,
            "last": other.end() if beside else ""}


@ex.law
def law(out, stops, tokens, beside):
    expect_parts(out, "sent", "end", "aside", "last")
    judge(out["sent"], out["end"], stops, tokens)
    judge(out["aside"], out["last"], stops, beside)


def judge(sent, end, stops, tokens):
    """Judge the texts of one object, in the order in which they came."""
    expect_length("texts", sent, len(tokens))
    data, sofar, over = b"", "", False
    for number, (token, text) in enumerate(zip(tokens, sent, strict=True), 1):
        expect_type("text that push returns", text, str)
        data += bytes(token)
        wanted, most, over = sure(data, stops)
        compare(sofar + text, wanted, most, over,
                f"This is the end of all text sent up to push {number}, {bytes(token)!r}. "
                f"The stop words are {stops}.")
        sofar += text
    expect_type("text that end returns", end, str)
    whole = data.decode("utf-8", "replace")
    at = min((whole.find(s) for s in stops if s in whole), default=len(whole))
    if sofar + end != whole[:at]:
        raise Broken("text after end, in full" if not over else "text after a stop word",
                     repr((sofar + end)[-20:]), repr(whole[:at][-20:]))


def sure(data, stops):
    """(text, most, over): what is sure after these bytes, letter by letter; and if that is all.

    most: the same where the bytes of an unfinished letter are read as well, which may rule out that
    the ending still becomes a stop word. An answer may send it now, or with the letter.
    """
    text, left = "", list(data)
    while left:
        lead = left[0]
        size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        if lead >= 0xF8:
            text, left = text + "\ufffd", left[1:]
            continue
        if len(left) < size:
            break
        text, left = text + bytes(left[:size]).decode(), left[size:]
        if any(text.endswith(s) for s in stops):
            sent = text[:-len(next(s for s in stops if text.endswith(s)))]
            return sent, sent, True
    held = [(n, s) for s in stops for n in range(1, len(s)) if text[-n:] == s[:n]]
    still = [(n, s) for n, s in held if s[n:].encode().startswith(bytes(left))]
    ends = [len(text) - max((n for n, _ in some), default=0) for some in (held, still)]
    return text[:ends[0]], text[:ends[1]], False


def compare(got, wanted, most, over, look):
    """Raise Broken unless that was sent so far, or as much as `most`."""
    if got not in (wanted, most):
        what = ("broken letters" if got.count("\ufffd") > wanted.count("\ufffd") else
                "text after a stop word" if over and len(got) > len(wanted) else
                "text that is held too long" if wanted.startswith(got) else
                "text that was sent too early" if got.startswith(wanted) else
                "letters that are lost" if len(got) < len(wanted) else "a different text")
        raise Broken(what, repr(got[-20:]), repr(wanted[-20:]), look)


# ---- wrong, by name

ONE_DECODER = {}


@not_an_answer
def stream(stops):
    class Texts:
        def __init__(self):
            self.held, self.done = "", False
            self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def push(self, token, final=False):
            self.held += self.decoder.decode(token, final)
            if self.done:
                return ""
            found = [self.held.find(s) for s in stops if s in self.held]
            if found:
                self.done = True
                return self.held[:min(found)]
            begun = [n for s in stops for n in range(len(s)) if self.held.endswith(s[:n])]
            cut = len(self.held) if final else max(0, len(self.held) - max(begun, default=0))
            text, self.held = self.held[:cut], self.held[cut:]
            return text

        def end(self):
            return self.push(b"", final=True)
    return Texts()


@not_an_answer
def token_by_token(stops):
    """The cell of the trap: a piece is searched and sent at once."""
    class Pieces:
        done = False

        def push(self, token):
            piece = token.decode("utf-8", "replace")
            self.done = self.done or any(s in piece for s in stops)
            return "" if self.done else piece

        def end(self):
            return ""
    return Pieces()


@not_an_answer
def searched_behind(stops, alone=False):
    """The whole text is searched, or each piece alone, and what is new is sent at once."""
    class Sent:
        def __init__(self):
            self.text, self.done = "", False
            self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def push(self, token, final=False):
            piece = self.decoder.decode(token, final)
            before = "" if alone else self.text
            self.text = before + piece
            if self.done:
                return ""
            found = [self.text.find(s) for s in stops if s in self.text]
            self.done = bool(found)
            return self.text[len(before):max(len(before), min(found))] if found else piece

        def end(self):
            return self.push(b"", final=True)
    return Sent()


def by_pattern(held, stop):
    """Where the stop word stands if its signs were those of a regular expression."""
    found = re.search(stop, held)
    return found.start() if found else -1


wrong = ex.edits(stream)
DECODE, END = "self.decoder.decode(token, final)", 'return self.push(b"", final=True)'
HELD = "max(begun, default=0)"
FOUND, AT = "[self.held.find(s) for s in stops if s in self.held]", "return self.held[:min(found)]"
# https://github.com/antonellof/ferrox/issues/124
ex.wrong("decoding and searching each token by itself", token_by_token, says="",
         breaks=("letters", "never", "over", "text", "end", "bad", "unfinished"))
wrong("decoding each token by itself", "letters", DECODE, 'token.decode("utf-8", "replace")')
wrong("dropping the bytes of an unfinished letter", ("letters", "text", "bad", "unfinished"),
      DECODE, 'token.decode("utf-8", "ignore")', says="")
wrong("dropping bytes that are not UTF-8", ("bad", "unfinished"),
      '("replace")', '("ignore")', says="")
wrong("writing a question mark for bytes that are not UTF-8", "bad",
      DECODE, f'{DECODE} if final else {DECODE}.replace("\\ufffd", "?")', says="")
# https://github.com/vllm-project/vllm/issues/3574
ex.wrong("searching the whole text, although its beginning has already been sent",
         searched_behind, breaks="never")
ex.wrong("looking for stop words only within each piece", searched_behind, says="",
         breaks=("never", "over", "stops"), alone=True)
wrong("always holding back as many letters as the longest stop word has, minus one", "sure",
      HELD, "(max(map(len, stops), default=1) - 1)")
wrong("always holding back as many letters as the longest stop word has",
      "sure", HELD, "max(map(len, stops), default=0)")
wrong("holding back all text until the end", "sure", HELD, "len(self.held)")
wrong("holding back everything from the first occurrence of a stop word's first letter", "sure",
      HELD, "(len(self.held) - min((self.held.find(s[0]) for s in stops if s[0] in self.held), "
      "default=len(self.held)))")
wrong("holding back an ending only if it lacks just the last letter of a stop word",
      ("never", "stops"),
      HELD, "max((len(s) - 1 for s in stops if self.held.endswith(s[:-1])), default=0)", says="")
wrong("holding back the shortest ending instead of the longest", "never",
      HELD, "min(filter(None, begun), default=0)", says="text that was sent too early")
wrong("holding back only beginnings of the first stop word in the list", ("stops", "never"),
      "n for s in stops for", "n for s in stops[:1] for", says="text that was sent too early")
wrong("holding back the beginning of the last stop word that fits, not the longest beginning",
      ("stops", "never"),
      HELD, "[0, *begun][-1]", says="")
wrong("holding back the beginning of the first stop word that fits, not the longest beginning",
      ("stops", "never"),
      HELD, "next((n for s in stops for n in range(len(s) - 1, 0, -1) if "
      "self.held.endswith(s[:n])), 0)", says="")
wrong("cutting at the stop word that comes first in the list, not in the text", ("over", "stops"),
      "min(found)", "found[0]", says="text after a stop word")
wrong("holding back a final U+FFFD, as if its letter could still be completed", ("sure", "bad"),
      HELD, f'(1 if self.held.endswith("\\ufffd") else {HELD})',
      says="text that is held too long")
wrong("cutting at the last occurrence of a stop word", "over", "held.find(", "held.rfind(")
wrong("treating stop words as regular expressions", "stops",
      FOUND, "[at for s in stops if (at := by_pattern(self.held, s)) >= 0]", says="")
wrong("ignoring case in stop words", ("stops", "sure"),
      FOUND,
      "[self.held.lower().find(s.lower()) for s in stops if s.lower() in self.held.lower()]",
      says="")
wrong("sending the text that follows the stop word", "over",
      "self.done = True", "at = min(found)",
      AT, 'text, self.held = self.held[:at], self.held[at:].replace(stops[0], "", 1)\n'
      "                return text")
wrong("returning an empty text from end()", "end", END, 'return ""')
wrong("returning only the unfinished letter from end()", "end",
      END, 'return "" if self.done else self.decoder.decode(b"", True)')
wrong("sending an unfinished letter that follows a stop word", "unfinished",
      END, 'return ("" if self.done else self.held) + self.decoder.decode(b"", True)',
      says="text after a stop")
wrong("sending an unfinished letter before the text that was held back", "unfinished",
      END, 'return "" if self.done else self.decoder.decode(b"", True) + self.held',
      says="text after end")
wrong("dropping an unfinished letter in end()", "unfinished",
      DECODE, "self.decoder.decode(token)", says="text after end")
# https://github.com/Blaizzy/mlx-vlm/pull/1778
wrong("holding back all bytes until every byte can be decoded", ("sure", "bad"),
      "self.held, self.done =", "self.data, self.held, self.done =", '"", False', 'b"", "", False',
      f"self.held += {DECODE}",
      "self.data += token\n            try:\n                self.held, self.data = self.held + "
      "self.data.decode(), b\"\"\n            except UnicodeDecodeError:\n                "
      'if not final: return ""\n                self.held += self.data.decode("utf-8", "replace")')
wrong("returning bytes instead of text", "kind",
      "return text", "return text.encode()", says="type of the text")
wrong("returning None while all text is held back", "kind",
      "return text", "return text or None", says="type of the text")
wrong("sending the stop word itself as well", ("over", "never"),
      AT, AT + " + stops[0]", says="text after a stop word")
wrong("sharing one decoder between all objects", "apart",
      "= codecs", '= ONE_DECODER.setdefault("it", codecs', '("replace")', '("replace"))', says="")
wrong("sorting the caller's list of stop words in place",
      "left", "class Texts:", "stops.sort(key=len)\n    class Texts:")
