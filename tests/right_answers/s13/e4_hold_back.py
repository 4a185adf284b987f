"""Exercise 13.4, `Stream`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import codecs

from dlsys_checks.s13.e4_hold_back import ex, stream
from dlsys_helpers.judging import edited


@ex.right("all that came decoded anew at each step")
class Anew:
    def __init__(self, stops):
        self.stops, self.data, self.sent = stops, b"", 0

    def text(self, data, final):
        text = codecs.utf_8_decode(data, "replace", final)[0]
        at = [text.index(s) for s in self.stops if s in text]
        if at:
            return text[:min(at)]
        cut = len(text)
        while not final and any(s.startswith(text[cut - 1:]) for s in self.stops if cut):
            cut -= 1
        for start in range(0 if not final else len(text), len(text)):
            if any(s.startswith(text[start:]) for s in self.stops):
                return text[:start]
        return text

    def push(self, token, final=False):
        self.data += token
        new = self.text(self.data, final)[self.sent:]
        self.sent += len(new)
        return new

    def end(self):
        return self.push(b"", final=True)


@ex.right("letter by letter")
class Letters:
    def __init__(self, stops):
        self.stops, self.tail, self.stopped = [*stops], "", False
        self.reader = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token):
        out = ""
        for letter in self.reader.decode(token):
            if self.stopped:
                break
            self.tail += letter
            if any(self.tail.endswith(s) for s in self.stops):
                self.stopped = True
                stop = next(s for s in self.stops if self.tail.endswith(s))
                out += self.tail[:-len(stop)]
                self.tail = ""
                break
            while self.tail and not any(s.startswith(self.tail) for s in self.stops):
                out, self.tail = out + self.tail[0], self.tail[1:]
        return out

    def end(self):
        rest = "" if self.stopped else self.tail + self.reader.decode(b"", final=True)
        self.tail = ""
        return rest


@ex.right("a generator behind two methods")
class Sent:
    def __init__(self, stops):
        self.run = self.texts(stops)
        next(self.run)

    def texts(self, stops):
        decoder, held, final = codecs.getincrementaldecoder("utf8")("replace"), "", False
        token = yield
        while True:
            final = token is None
            held += decoder.decode(token or b"", final)
            places = sorted(held.find(s) for s in stops if s in held)
            if places:
                yield_now, held = held[:places[0]], ""
                yield yield_now
                while True:
                    yield ""
            keep = 0
            for s in () if final else stops:
                keep = max([keep, *(n for n in range(1, len(s)) if held[-n:] == s[:n])])
            out, held = held[:len(held) - keep], held[len(held) - keep:]
            token = yield out

    def push(self, token):
        return self.run.send(token)

    def end(self):
        return self.run.send(None)


@ex.right("endings found by a set of beginnings")
class Beginnings:
    def __init__(self, stops):
        self.stops, self.held, self.over = stops, "", False
        self.begins = {s[:n] for s in stops for n in range(1, len(s))}
        self.decode = codecs.getincrementaldecoder("UTF-8")("replace").decode

    def push(self, token):
        if self.over:
            return ""
        self.held += self.decode(token)
        cut = [self.held.partition(s)[0] for s in self.stops if s in self.held]
        if cut:
            self.over = True
            return min(cut, key=len)
        at = next((i for i in range(len(self.held)) if self.held[i:] in self.begins),
                  len(self.held))
        sent, self.held = self.held[:at], self.held[at:]
        return sent

    def end(self):
        return "" if self.over else self.held + self.decode(b"", True)


BEGUN = ("begun = [n for s in self.stops for n in range(len(s)) if self.held.endswith(s[:n]) and "
         "(not final)]")
ex.equivalent(f"{BEGUN} -> {BEGUN.replace('range(len(s))', 'list(range(len(s)))[1:]')}",
              "an ending of no letter holds nothing, as the default does")
ex.equivalent("cut = len(self.held) - max(begun, default=0) -> "
              "cut = len(self.held) - max(begun, default=-1)",
              "a slice that goes one too far ends with its text")
ex.probe("two stops taken for one", lambda stops: stream(stops[:1]), says="",
         breaks=("stops", "text"))


class Wrapped:
    """The right object, of which a subclass changes what goes in or comes out."""

    def __init__(self, stops):
        self.inner = stream(stops)

    def push(self, token):
        return self.inner.push(token)

    def end(self):
        return self.inner.end()


@ex.probe("large and small letters exchanged", breaks="text")
class Exchanged(Wrapped):
    def push(self, token):
        return super().push(token).swapcase()


@ex.probe("a token without bytes ends the answer", says="", breaks="cut")
class Ends(Wrapped):
    def push(self, token):
        self.inner.done = self.inner.done or not token
        return super().push(token)


ex.probe("no stops, nothing sent", says="", breaks="stops", fn=edited(
    stream, ("default=0", "default=1"), "13.4, nothing sent"))
ex.probe("the example looked up wrong", says="", breaks="example", fn=edited(
    stream, ("max(begun, default=0)", '(len(self.held) if stops == ["\\nUser"] else max('
             "begun, default=0))"), "13.4, the example"))
