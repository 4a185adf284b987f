"""The room's web server: a page for the class, a page for the presenter, and what they send.

Participants carry a signed cookie that says nothing but eight random letters; joining keeps no
state, so ten thousand joins cost nothing. The presenter's secret travels in a header, never in an
address that a projector shows. Pages hear of changes by server-sent events, each of which holds all
that is shown: a page that was away for a while needs only the next one.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from tornado import httpserver, iostream, locks, web

from dlsys.grading.text import clean
from dlsys.room import report, results
from dlsys.room.connections import Connections
from dlsys.room.log import Log
from dlsys.room.questions import questions_that_come, to_break_live
from dlsys.room.rate_limit import Limit
from dlsys.room.rounds import EXERCISE, OPEN, REST, REVEALED, SHOWN, Room

PAGES = Path(__file__).with_name("pages")
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # in a code: without vowels it spells no word
PERSON = re.compile(rf"[{LETTERS}]{{8}}")  # a participant: follows the room's code and a dash
BODY = 16_384  # most bytes in a request
SLOW = 10.0  # timeout in seconds for a request's header, and for its body
BEAT = 15.0  # seconds between keep-alive messages on an idle stream
PACE = 0.25  # seconds at least between two updates of the presenter's page
STREAMS = 3_000  # pages at a time
FILES = STREAMS + 500  # open connections: streams and short requests
OWN_FILES = 64  # of these, for the log, the pages and the system
STREAMS_EACH = 8  # pages of one participant
# Wrong codes that a room hears before it limits the tries of an address. Until then, somebody who
# guesses behind a router locks nobody else out there; so many guesses find one room in 640.
WRONG_CODES = 100_000
HERE = 600  # seconds for which an answer from JupyterLab counts as presence
NAME = 40  # most characters in a participant's name
COOKIE = "dlsys-room"
OVER = "over"  # the phase of a room that was ended
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; form-action 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store"}


def new_settings(stages: list[int], title: str, names: bool) -> dict[str, Any]:
    """The first event of a room's log: what it is about, its code and its secrets."""
    return {"kind": "begin", "stages": stages, "title": title, "names": names,
            "code": letters(6),
            "secret": secrets.token_urlsafe(16), "sign": secrets.token_hex(32)}


def letters(number: int) -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(number))


class LiveRoom:
    """A room with its log, its open pages, and what each kind of page is shown."""

    def __init__(self, room: Room, log: Log, settings: dict[str, Any], welcome: dict) -> None:
        self.room, self.log, self.settings, self.welcome = room, log, settings, welcome
        self.stepped, self.changed = locks.Condition(), locks.Condition()
        self.pages: Counter[str] = Counter()  # by participant
        self.streams = Connections(lambda: STREAMS)  # by which pages hear of changes
        self.others = Connections(lambda: FILES - OWN_FILES - self.streams.total)
        self.seen: dict[str, float] = {}
        self.wrong_codes, self.joins, self.posts = Limit(30, 60), Limit(STREAMS, 600), Limit(
            120, 60)
        self.wrong = 0  # wrong codes so far
        self.over = False
        self._view: str | None = None

    def end(self) -> None:
        """Tell all pages that the room is over; their streams end."""
        self.over, self._view = True, None
        self.stepped.notify_all()
        self.changed.notify_all()

    def take(self, event: dict[str, Any]) -> str:
        """Keep an event and take it in; returns "", or why it is refused."""
        if why := self.room.refuse(event):
            return why
        self.log.append(event)
        self.room.apply(event)
        if event["kind"] == "same":  # its counts are shown when the room goes on
            self._view = None
        elif event["kind"] not in ("answer", "verdict", "hint", "name"):
            self._view = None
            self.stepped.notify_all()
        self.changed.notify_all()
        return ""

    def name(self, who: str, text: str) -> None:
        """Keep the name of somebody who gave one, if the presenter asks for names."""
        name = clean(text, NAME)
        if self.settings["names"] and name:
            self.take({"kind": "name", "who": who, "name": name})

    def own_code(self, who: str) -> str:
        """The code with which another device joins as this participant; the two count once."""
        return f"{self.settings['code']}-{who}"

    def count_present(self) -> int:
        """How many have a page open, or answered from JupyterLab a short while ago."""
        lately = time.monotonic() - HERE
        self.seen = {who: at for who, at in self.seen.items() if at > lately}
        return len({who for who, n in self.pages.items() if n} | self.seen.keys())

    # ---- what is shown

    def view(self) -> str:
        """What the class sees, as JSON; counts only once they are shown."""
        if self._view is None:
            self._view = json.dumps(self._public())
        return self._view

    def own_answers(self, who: str) -> str:
        """A participant's answers to the current question, by round, as JSON."""
        now, found = self.room.now, {}
        if now and self.room.phase != EXERCISE:
            for go in range(1, self.room.rounds[now].go + 1):
                if who in (given := self.room.answers.get((now, go), {})):
                    found[go] = given[who]._asdict()
        if self.room.phase == EXERCISE:
            found = {"hints": self.room.hints.get(now, {}).get(who, 0)}
        return json.dumps(found)

    def _public(self) -> dict[str, Any]:
        shown = {"title": self.settings["title"], "names": self.settings["names"],
                 "phase": OVER if self.over else self.room.phase}
        return shown if self.over else shown | self._asked()

    def _asked(self) -> dict[str, Any]:
        """What the class is asked now, and what is shown of the answers."""
        room, item = self.room, self.room.item
        if item is None:
            return {}
        shown = {"trap": item.trap.id, "name": room.shown_name(item.trap.id)}
        if room.phase == EXERCISE:
            return shown | {"until": room.until, "hints": item.trap.hints}
        shown |= {"go": room.rounds[room.now].go, "question": item.asked._asdict(),
                  "situation": as_html(item.situation), "code": as_html(item.code)}
        if room.phase in (SHOWN, REVEALED):
            shown["results"] = results.question_view(room, room.now, room.phase == REVEALED)
        return shown

    def presenter_view(self, notes: bool) -> str:
        """What the presenter's page shows; notes: what is for the presenter's own screen only."""
        room = self.room
        shown = json.loads(self.view()) | self.welcome | {
            "steps": () if self.over else room.steps(), "next": room.next(),
            "left": room.left and room.left[0],
            "here": self.count_present(), "code": self.settings["code"], "traps": self._traps()}
        if shown["phase"] == EXERCISE:
            shown["exercise"] = results.exercise_view(room, room.now)
        elif "go" in shown:
            shown["answered"] = len(room.answers.get((room.now, shown["go"]), {}))
        if notes:
            shown["notes"] = self._notes()
        return json.dumps(shown)

    def warm(self) -> None:
        """Do now what takes a second the first time, so that no round waits for it."""
        for item in self.room.items:
            as_html(item.situation), as_html(item.code)

    def routes(self) -> list[tuple]:
        """Routes of this kind of room, which go before the others."""
        return []

    def report(self, folder: Path) -> list[Path]:
        """Write the room's report; returns the files."""
        return report.write(folder, self.room, self.settings)

    def _traps(self) -> list[dict]:
        return [{"id": id, "title": self.room.shown_name(id), "minutes": item.trap.minutes,
                 "phase": self.room.rounds[id].phase if id in self.room.rounds else ""}
                for id, item in self.room.by_id.items()]

    def _notes(self) -> dict[str, Any]:
        """For the presenter alone: the counts before the class sees them, advice, what to say."""
        room = self.room
        id = room.now or room.next()
        stage = int(id[:2])
        notes = {"live": to_break_live(stage).get(id, ""), "questions": [
            one for one in questions_that_come(stage) if one["trap"] == id]}
        if room.phase not in (REST, OPEN, EXERCISE):
            go = room.rounds[id].go
            if go == 1 and room.phase != REVEALED:
                notes["advice"] = results.advice(room.item, room.answers.get((id, 1), {}).values())
            notes["peek"] = results.question_view(room, id, revealed=True)
        return notes


# ---- requests

class Handler(web.RequestHandler):
    """Answers in JSON, with headers that let nothing of another host in."""

    def initialize(self, live: LiveRoom) -> None:
        self.live = live
        live.others.used(*self.connection())

    def connection(self) -> tuple[str, iostream.IOStream]:
        """The address that is connected, which may be a proxy's, and the connection."""
        made = self.request.connection
        return made.context.address[0], made.stream

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def write_error(self, status_code: int, **_: Any) -> None:
        self.finish({"error": {413: "too long", 404: "nothing is here"}.get(
            status_code, "this did not work")})

    def refuse(self, status: int, why: str) -> None:
        self.set_status(status)
        self.finish({"error": why})

    def sent(self) -> dict[str, Any]:
        """What a page sent; another site cannot send this type without asking."""
        if self.request.headers.get("Content-Type", "").partition(";")[0] != "application/json":
            raise web.HTTPError(415)
        try:
            data = json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise web.HTTPError(400) from None
        if not isinstance(data, dict):
            raise web.HTTPError(400)
        return data

    def who(self) -> str | None:
        """The participant of a cookie that this room signed; None for any other."""
        value = self.get_signed_cookie(COOKIE, max_age_days=2)
        return value.decode("ascii", "replace") if value else None

    def ip(self) -> str:
        """The address that asks; behind a proxy the last one forwarded, which the proxy wrote.

        Tornado's own reading of these headers also trusts X-Real-Ip, which anybody can send.
        """
        told = self.request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
        return told if told and self.settings["prefix"] != "/" else self.request.remote_ip

    def text(self, data: dict, key: str, longest: int = 200) -> str:
        value = data.get(key, "")
        if not isinstance(value, str):
            raise web.HTTPError(400)
        return value[:longest]

    async def stream(self, show: Callable[[], str], condition: locks.Condition,
                     pace: float = 0) -> None:
        """Send what `show` returns, and again at each change, until the page is gone."""
        self.live.others.remove(*self.connection())
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")  # a proxy must not buffer it
        last = None
        with suppress(iostream.StreamClosedError):
            while True:
                shown = show()
                self.write(f"data: {shown}\n\n" if shown != last else ":\n\n")
                await self.flush()
                if self.live.over:
                    return
                last = shown
                await asyncio.sleep(pace)
                if show() == last:
                    await condition.wait(timeout=timedelta(seconds=BEAT))


class NothingHandler(Handler):
    """Any other address."""

    def prepare(self) -> None:
        raise web.HTTPError(404)


class PageHandler(Handler):
    """One of the two pages, which contain no room data: their scripts fetch it."""

    def initialize(self, live: LiveRoom, name: str) -> None:
        super().initialize(live)
        self.name = name

    def get(self) -> None:
        if self.name == "class.html":  # the slides show the presenter's page in a frame
            self.set_header("X-Frame-Options", "DENY")
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish((PAGES / self.name).read_bytes())


class JoinHandler(Handler):
    def post(self) -> None:
        live, ip = self.live, self.ip()
        data = self.sent()
        guessed = live.wrong > WRONG_CODES and live.wrong_codes.spent(ip)
        if guessed or live.joins.spent(ip):
            return self.refuse(429, "Too many tries from this network. Wait a minute.")
        code, _, person = self.text(data, "code").strip().upper().partition("-")
        if not hmac.compare_digest(code.encode(errors="replace"), live.settings["code"].encode()):
            live.wrong += 1
            live.wrong_codes.count(ip)
            return self.refuse(403, "This is not the code of this room. The code is on the wall: "
                               "six letters.")
        if person and not PERSON.fullmatch(person):
            return self.refuse(403, "After the dash, type the eight letters that your other "
                               "device shows. Without them you join as a new participant.")
        live.joins.count(ip)
        who = self._as(person)
        if data.get("stays") is True:  # a terminal, which opens no page
            live.seen[who] = time.monotonic()
            live.changed.notify_all()
        live.name(who, self.text(data, "name"))
        self.set_signed_cookie(COOKIE, who, expires_days=2, httponly=True, samesite="Lax",
                               path=self.settings["prefix"])
        return self.finish({"title": live.settings["title"], "names": live.settings["names"],
                            "own": live.own_code(who)})

    def _as(self, person: str) -> str:
        """Who joins: if another device already has joined as `person`, merge their answers."""
        before = self.who()
        if person and before and before != person:
            self.live.take({"kind": "same", "who": before, "as": person})
        return person or before or letters(8)


class MeHandler(Handler):
    """Whether this page has joined, and the code by which another device joins as the same."""

    def get(self) -> None:
        if who := self.who():
            self.finish({"own": self.live.own_code(who)})
        else:
            self.refuse(401, "Join the room first.")


class ParticipantHandler(Handler):
    """A request that needs the cookie of somebody who joined."""

    def prepare(self) -> None:
        live, self.me = self.live, self.who()
        if self.me is None:
            self.refuse(401, "Join the room first.")
        elif self.request.method == "POST":
            if live.posts.spent(self.me):
                self.refuse(429, "Too many answers. Wait a minute.")
            live.posts.count(self.me)
            live.seen[self.me] = time.monotonic()

    def keep(self, event: dict[str, Any]) -> None:
        """Acknowledge an event once it is kept."""
        if why := self.live.take({**event, "who": self.me}):
            self.refuse(409, why)
        else:
            self.finish({})


class SayHandler(ParticipantHandler):
    """An answer, a verdict or a hint that was opened."""

    def post(self, kind: str) -> None:
        data = self.sent()
        if kind == "name":
            self.live.name(self.me, self.text(data, "name"))
            return self.finish({})
        event = {"kind": kind, "trap": self.text(data, "trap")}
        if kind == "answer":
            event |= self.answer(data, event["trap"])
        elif kind == "verdict":
            event |= {"status": self.text(data, "status"), "mistake": self.text(data, "mistake")}
        else:
            event |= {"number": data.get("number")}
        return self.keep(event)

    def answer(self, data: dict[str, Any], trap: str) -> dict[str, Any]:
        """What was answered, as the room keeps it."""
        go, guess = data.get("go", self.live.room.go(trap)), data.get("guess")
        if not isinstance(guess, str | int | float) or not isinstance(go, int | None):
            raise web.HTTPError(400)
        return {"guess": guess, "sure": data.get("sure"), "go": go or 0}


class EventsHandler(ParticipantHandler):
    """What the class sees, for one page, and the participant's own answers."""

    counted: tuple[str, iostream.IOStream] | None = None  # as what this page counts

    async def get(self) -> None:
        live, me, ip = self.live, self.me, self.ip()
        if live.pages[me] >= STREAMS_EACH or (
                live.streams.is_full and live.streams.greediest() == ip):
            return self.refuse(503, "The room is full.")
        live.streams.make_room()
        self.counted = (ip, self.connection()[1])
        live.streams.add(*self.counted)
        live.pages[me] += 1
        live.changed.notify_all()
        await self.stream(lambda: f'{{"room": {live.view()}, "mine": {live.own_answers(me)}}}',
                          live.stepped)
        return self.on_connection_close()

    def on_connection_close(self) -> None:
        if self.counted:
            self.live.streams.remove(*self.counted)
            self.counted = None
            self.live.pages[self.me] -= 1
            self.live.pages += Counter()  # forgets those at zero
            self.live.changed.notify_all()


class PresenterHandler(Handler):
    """A request that needs the presenter's secret."""

    def prepare(self) -> None:
        key = self.request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(key.encode(), self.live.settings["secret"].encode()):
            self.refuse(403, "This page needs the presenter's address, as dlsys room printed it.")


class StepHandler(PresenterHandler):
    """The presenter goes on: asks, closes, shows, ..."""

    def post(self) -> None:
        live, event = self.live, self.event(self.sent())
        if event["kind"] not in live.room.steps():
            return self.refuse(409, f"{event['kind'][:20]}: not now.")
        if why := live.take(event):
            return self.refuse(409, why)
        return self.finish({})

    def event(self, data: dict[str, Any]) -> dict[str, Any]:
        """What the presenter asks for, as the room keeps it."""
        room, event = self.live.room, {"kind": self.text(data, "step")}
        if event["kind"] == "ask":
            event["trap"] = self.text(data, "trap") or room.next()
        elif event["kind"] == "exercise":
            event["trap"] = self.text(data, "trap") or room.now
        if event["kind"] == "exercise" and event["trap"] in room.by_id:
            minutes = data.get("minutes") or room.by_id[event["trap"]].trap.minutes
            if type(minutes) is not int or not 0 < minutes <= 600:
                raise web.HTTPError(400)
            event["until"] = time.time() + 60 * minutes
        return event


class WatchHandler(PresenterHandler):
    async def get(self) -> None:
        notes = self.get_query_argument("notes", "") == "1"
        await self.stream(lambda: self.live.presenter_view(notes), self.live.changed, PACE)


class KeepHandler(ParticipantHandler):
    """What to take home from a trap, once it was revealed."""

    async def get(self, trap: str) -> None:
        room = self.live.room
        if trap not in room.rounds or room.rounds[trap].phase != REVEALED:
            return self.refuse(404, "This trap has not been revealed yet.")
        page = await asyncio.to_thread(as_html, room.by_id[trap].keep)
        return self.finish({"html": page})


@cache
def as_html(text: str) -> str:
    """Markdown of the course as HTML; as plain text where nbconvert is missing."""
    from html import escape
    try:
        from dlsys.deck import markdown
    except ModuleNotFoundError:
        return f"<p>{escape(text)}</p>"
    return markdown(text)


def application(live: LiveRoom, prefix: str = "/") -> web.Application:
    """The pages of a room below a prefix, which begins and ends with a slash."""
    own = {"live": live}
    routes = [
        *live.routes(),
        ("", PageHandler, own | {"name": "class.html"}),
        ("present", PageHandler, own | {"name": "present.html"}),
        ("join", JoinHandler, own), ("me", MeHandler, own),
        ("(answer|verdict|hint|name)", SayHandler, own), ("events", EventsHandler, own),
        (r"keep/(\d\d\.\d+)", KeepHandler, own), ("step", StepHandler, own),
        ("watch", WatchHandler, own)]
    files = (f"{prefix}static/(room.css|room.js|class.js|present.js|draw.js|review.js)",
             web.StaticFileHandler, {"path": str(PAGES)})
    return web.Application([*((prefix + path, *rest) for path, *rest in routes), files],
                           cookie_secret=live.settings["sign"],
                           default_handler_class=NothingHandler, default_handler_args=own,
                           prefix=prefix, log_function=lambda _: None, compress_response=False)


class Server(httpserver.HTTPServer):
    """A server that never takes more connections than it has files for; see `Connections`."""

    def initialize(self, *args: Any, opened: Connections, **options: Any) -> None:
        super().initialize(*args, **options)
        self.opened = opened

    def handle_stream(self, stream: iostream.IOStream, address: tuple) -> None:
        self.opened.make_room()
        self.opened.add(address[0], stream)
        super().handle_stream(stream, address)

    def on_close(self, server_conn: Any) -> None:
        super().on_close(server_conn)
        self.opened.remove(server_conn.context.address[0], server_conn.stream)


def bound(app: web.Application, opened: Connections, host: str, port: int) -> tuple[Server, int]:
    """A listening server, and its port. Raises OSError if the port is taken."""
    taken = socket.create_server((host, port), backlog=1024, family=(
        socket.AF_INET6 if ":" in host else socket.AF_INET))
    taken.setblocking(False)
    server = Server(app, opened=opened, max_body_size=BODY, max_header_size=BODY,
                    max_buffer_size=4 * BODY, body_timeout=SLOW, idle_connection_timeout=3 * SLOW)
    server.add_socket(taken)
    return server, taken.getsockname()[1]


def listen(live: LiveRoom, host: str, port: int, prefix: str = "/",
           files: int = FILES) -> tuple[Server, int]:
    """Start listening; returns the server and its port. Raises OSError if the port is taken.

    files: how many may be open.
    """
    live.others.most = lambda: files - OWN_FILES - live.streams.total
    return bound(application(live, prefix), live.others, host, port)
