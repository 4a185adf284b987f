"""Exercise 13.4, `Stream`."""

from __future__ import annotations

import codecs

from dlsys_checks.kit import integers
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.4", "Stream", seen=("stops", "tokens"), says="text after")

ex.promise("text", "The text of an answer while it is written, up to its first stop word.",
           says=("another text", "broken letters", "text that was sent too early",
                 "text behind a stop word", "text that is held too long"))
ex.promise("stops", "stops: a list of texts, none empty, none inside another; no stops is "
           "possible.", cases=("no stops", "two stops", "two stops that overlap",
                               "stops that begin alike", "a stop of one letter"))
ex.promise("cut", "push(token): token is the next bytes of the answer in UTF-8, cut anywhere;",
           cases=("letter by letter", "byte by byte", "a token without bytes", "one token"))
ex.promise("kind", "the result is what can be sent now, a text.", says=("type of the",))
ex.promise("never", "What was sent is never taken back, so the ending that may still become a stop "
           "word is held,", says=("text that was sent too early",))
ex.promise("letters", "and bytes that are no whole letter yet.", says=("broken letters",
                                                                     "letters that are lost"))
ex.promise("sure", "Nothing else is held: all that is sure is sent.",
           says=("text that is held too long",))
ex.promise("over", "From the first stop word on nothing comes, neither the word nor what follows.",
           says=("text behind a stop word",))
ex.promise("end", "end(): what is still held, once the answer is over;", says=("text after end",))
ex.promise("bad", "an unfinished letter is sent as \"\\ufffd\", as are bytes that are no UTF-8, at "
           "once.", cases=("an unfinished letter", "bytes that are no UTF-8"))
ex.promise("example", "Example: stops [\"\\nUser\"], push(b\"Hi\\nU\") \"Hi\", push(b\"se\") \"\", "
           "push(b\"d!\") \"\\nUsed!\", end() \"\".", cases=("the example",))

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

    def one(name, stops, text, size=4):
        return name, {"stops": stops, "tokens": tokens(text, size)}

    stop = "\nUser:"
    return [one("a stop word in the end", [stop], some() + stop + " secret " + some(3)),
            one("no stop word comes", [stop], some() + "\nUse it"),
            one("ends like a stop word", [stop], some(3) + "\nUser"),
            one("begins like a stop word, again and again", [stop],
                f"{some(2)}\n\nUs\nUse\n\nUser\nUser of {some(2)}{stop} no"),
            one("letter by letter", [stop], some(4) + stop + "x", 1),
            one("byte by byte", ["日本"], "日光 " + some(4) + " 日 日本 x", 1),
            ("one token", {"stops": [stop], "tokens": [list(f"Zürich{stop} secret".encode())]}),
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
            ("a token without bytes", {"stops": [stop], "tokens": [[], *tokens(some(2)), [],
                                                                  *tokens(stop[:4]), [],
                                                                  *tokens(" x"), []]}),
            ("no token", {"stops": [stop], "tokens": []}),
            one("an unfinished letter", [stop], some(3).encode() + "🙂".encode()[:3]),
            one("bytes that are no UTF-8", [stop], b"ab\xff\xfec" + some(2).encode() + b"\xff.", 2),
            one("many letters", [stop], some(40) + stop + some(4), 6),
            ("the example", {"stops": ["\nUser"], "tokens": [list(b"Hi\nU"), list(b"se"),
                                                            list(b"d!")]})]


@ex.act
def act(fn, stops, tokens):
    stream = fn(list(stops))
    sent = [stream.push(bytes(token)) for token in tokens]
    return {"sent": sent, "end": stream.end()}


@ex.law
def law(out, stops, tokens):
    expect_parts(out, "sent", "end")
    expect_length("texts", out["sent"], len(tokens))
    data, sofar, over = b"", "", False
    for token, text in zip(tokens, out["sent"], strict=True):
        expect_type("text that push returns", text, str)
        data += bytes(token)
        over = compare(sofar + text, *sure(data, stops))
        sofar += text
    expect_type("text that end returns", out["end"], str)
    whole = data.decode("utf-8", "replace")
    at = min((whole.find(s) for s in stops if s in whole), default=len(whole))
    if sofar + out["end"] != whole[:at]:
        raise Broken("text after end, all of it" if not over else "text behind a stop word",
                     repr((sofar + out["end"])[-20:]), repr(whole[:at][-20:]))


def sure(data, stops):
    """(text, over): what is sure after these bytes, letter by letter, and whether that is all."""
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
            return text[:-len(next(s for s in stops if text.endswith(s)))], True
    held = max((n for s in stops for n in range(1, len(s)) if text[-n:] == s[:n]), default=0)
    return text[:len(text) - held], False


def compare(got, wanted, over):
    """Raise Broken unless that is what was sent so far; returns whether the answer is over."""
    if got != wanted:
        what = ("broken letters" if got.count("\ufffd") > wanted.count("\ufffd") else
                "text behind a stop word" if over and len(got) > len(wanted) else
                "text that is held too long" if wanted.startswith(got) else
                "text that was sent too early" if got.startswith(wanted) else
                "letters that are lost" if len(got) < len(wanted) else "another text")
        raise Broken(what, repr(got[-20:]), repr(wanted[-20:]),
                     "All that was sent so far, its end.")
    return over


# ---- wrong, by name

@not_an_answer
def stream(stops, *, decoder=lambda: codecs.getincrementaldecoder("utf-8")("replace"), hold=None,
           find=min, over=True, flush=True):
    """The right object with its pieces as options."""
    class Texts:
        def __init__(self):
            self.held, self.done, self.decoder = "", False, decoder()

        def push(self, token, final=False):
            self.held += self.decoder.decode(token, final)
            if self.done:
                return ""
            found = [self.held.find(s) for s in stops if s in self.held]
            if found:
                self.done, text = over, self.held[:find(found)]
                self.held = self.held[find(found):].replace(stops[0], "", 1) if not over else ""
                return text
            n = 0 if final else hold(self.held, stops) if hold else max(
                (n for s in stops for n in range(len(s)) if self.held.endswith(s[:n])), default=0)
            cut = max(0, len(self.held) - n)
            text, self.held = self.held[:cut], self.held[cut:]
            return text

        def end(self):
            if not flush:
                return ""
            return self.push(b"", True)
    return Texts()


class Each:
    """Each token on its own."""

    def __init__(self, errors):
        self.errors = errors

    def decode(self, token, final=False):
        return token.decode("utf-8", self.errors)


class Lenient:
    """An incremental decoder that drops what it cannot read."""

    def __init__(self):
        self.inner = codecs.getincrementaldecoder("utf-8")("ignore")

    def decode(self, token, final=False):
        return self.inner.decode(token, final)


class Unfinished:
    """A decoder that is never told of the end."""

    def __init__(self):
        self.inner = codecs.getincrementaldecoder("utf-8")("replace")

    def decode(self, token, final=False):
        return self.inner.decode(token)


class Whole:
    """Bytes kept until all of them can be read."""

    def __init__(self):
        self.data = b""

    def decode(self, token, final=False):
        self.data += token
        try:
            text = self.data.decode()
        except UnicodeDecodeError:
            if not final:
                return ""
            text = self.data.decode("utf-8", "replace")
        self.data = b""
        return text


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
def searched_behind(stops):
    """The whole text is searched, and what is new is sent at once."""
    class Sent:
        def __init__(self):
            self.text, self.done = "", False
            self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def push(self, token, final=False):
            piece = self.decoder.decode(token, final)
            before, self.text = self.text, self.text + piece
            if self.done:
                return ""
            found = [self.text.find(s) for s in stops if s in self.text]
            self.done = bool(found)
            return self.text[len(before):max(len(before), min(found))] if found else piece

        def end(self):
            return self.push(b"", True)
    return Sent()


def longest(held, stops):
    return max(map(len, stops), default=1) - 1


# https://github.com/antonellof/ferrox/issues/124
ex.wrong("each token decoded and searched alone", token_by_token, says="",
         breaks=("letters", "never", "over", "text", "end", "bad"))
ex.wrong("each token decoded alone", stream, breaks="letters", decoder=lambda: Each("replace"))
ex.wrong("bytes that are no letter yet dropped", stream, says="", breaks=("letters", "text", "bad"),
         decoder=lambda: Each("ignore"))
ex.wrong("bytes that are no UTF-8 dropped", stream, says="", breaks="bad", decoder=Lenient)
# https://github.com/vllm-project/vllm/issues/3574
ex.wrong("the whole text searched, its beginning sent already", searched_behind, breaks="never")
ex.wrong("held always, as long as a stop word less one", stream, breaks="sure", hold=longest)
ex.wrong("held always, as long as a stop word", stream, breaks="sure",
         hold=lambda held, stops: max(map(len, stops), default=0))
ex.wrong("all held to the end", stream, breaks="sure", hold=lambda held, stops: len(held))
ex.wrong("held from the first letter of a stop word that comes", stream, breaks="sure",
         hold=lambda held, stops: len(held) - min((held.find(s[0]) for s in stops if s[0] in held),
                                                  default=len(held)))
ex.wrong("held only where all but a letter of a stop word stands", stream, says="",
         breaks=("never", "stops"), hold=lambda held, stops: max(
             (len(s) - 1 for s in stops if held.endswith(s[:-1])), default=0))
ex.wrong("the shortest ending held", stream, says="text that was sent too early",
         breaks=("never",), hold=lambda held, stops: min(
             (n for s in stops for n in range(1, len(s)) if held.endswith(s[:n])), default=0))
ex.wrong("only the first stop word held back", stream, says="text that was sent too early",
         breaks=("stops", "never"), hold=lambda held, stops: max(
             (n for s in stops[:1] for n in range(len(s)) if held.endswith(s[:n])), default=0))
ex.wrong("goes on behind the stop word", stream, breaks="over", over=False)
ex.wrong("what is held is lost at the end", stream, breaks="end", flush=False)
ex.wrong("an unfinished letter is lost at the end", stream, says="text after end", breaks="bad",
         decoder=Unfinished)


# https://github.com/Blaizzy/mlx-vlm/pull/1778
@ex.wrong("bytes held until all can be read", breaks=("sure", "bad"))
def whole_only(stops):
    return stream(stops, decoder=Whole)


@ex.wrong("bytes given back for a text", says="type of the text", breaks="kind")
def as_bytes(stops):
    class Bytes:
        def __init__(self):
            self.inner = stream(stops)

        def push(self, token):
            return self.inner.push(token).encode()

        def end(self):
            return self.inner.end().encode()
    return Bytes()


@ex.wrong("nothing given back while something is held", says="type of the text", breaks="kind")
def none(stops):
    class Nothing:
        def __init__(self):
            self.inner = stream(stops)

        def push(self, token):
            return self.inner.push(token) or None

        def end(self):
            return self.inner.end()
    return Nothing()


@ex.wrong("the stop word sent as well", says="text behind a stop word", breaks=("over", "never"))
def word_too(stops):
    class Word:
        def __init__(self):
            self.inner = stream(stops)

        def push(self, token):
            was, text = self.inner.done, self.inner.push(token)
            return text + (stops[0] if self.inner.done and not was else "")

        def end(self):
            return self.inner.end()
    return Word()
