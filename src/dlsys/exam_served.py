"""`dlsys exam serve`: the desk of a class, as a small web server.

A learner's machine gets answers and nothing that they are made of. Each sheet has a ticket with
separate cases, so that a second ticket reveals nothing about the first. One thread does all
computations; while it works, other requests wait, and the addresses they come from take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dlsys import exam_desk
from dlsys.exam_desk import Desk, ExamError
from dlsys.grading.text import clean
from dlsys_checks.exam import ledger, sheet
from dlsys_helpers.errors import UserError

MOST_SHEETS = 5_000  # tickets of one exam
MOST_ASKED = 300  # questions about one sheet in a minute
NAME = 80  # characters of a learner's name


class Counter:
    """The desk, and what a request may ask it to do."""

    def __init__(self, desk: Desk) -> None:
        from dlsys.room.rate_limit import Limit
        self.desk, self.asked = desk, Limit(MOST_ASKED, 60)
        self.begun: Counts[str] = Counts()  # sheets by address
        self.tickets = {(entry["sheet"], entry["ticket"]) for entry in desk.entries()
                        if "begun" in entry}

    def begin(self, told: dict[str, Any], address: str = "") -> dict[str, Any]:
        """A ticket for a sheet: a new one, or the one of the learner's matched form.

        An address can begin sheets only while it has begun fewer than are left for everyone.
        """
        number, mine = told.get("number"), told.get("ticket")
        if type(number) is not int or not sheet.is_exam(number):
            raise ExamError(f"exam: got the sheet {str(number)[:20]}, expected {sheet.NUMBERS[0]} "
                            f"to {sheet.NUMBERS[-1]}.")
        if type(mine) not in (str, type(None)):
            raise ExamError("exam: got a ticket that is not a text, expected eight letters.")
        if self.desk.over:
            raise ExamError("exam: it is over, so no new sheet can be begun.")
        left = MOST_SHEETS - len(self.tickets)
        if self.begun[address] >= left:
            raise ExamError(f"exam: {len(self.tickets)} of at most {MOST_SHEETS} sheets were "
                            f"begun, {self.begun[address]} of them from your address, which can "
                            "begin no more. Tell your instructor.")
        known = {ticket for _, ticket in self.tickets}
        ticket = mine if type(mine) is str and mine in known else exam_desk.new_ticket()
        if (number, ticket) not in self.tickets:
            self.desk.note({"sheet": number, "ticket": ticket, "case": 0, "time": ledger.now(),
                            "begun": clean(str(told.get("name", "")), NAME)})
            self.tickets.add((number, ticket))
            self.begun[address] += 1
        elif told.get("name") and not self.desk.begun_by(number, ticket):
            self.desk.note({"sheet": number, "ticket": ticket, "case": 0, "time": ledger.now(),
                            "begun": clean(str(told["name"]), NAME)})
        return {"ticket": ticket, "name": self.desk.begun_by(number, ticket)}

    def ask(self, told: dict[str, Any], _: str = "") -> dict[str, Any]:
        """The desk's answer to a question about a sheet that was begun here."""
        number, ticket, place = (told.get(key) for key in ("number", "ticket", "place"))
        if {type(number), type(place)} != {int} or (number, ticket) not in self.tickets:
            raise ExamError("exam: this sheet was not begun at this desk. Begin one with: "
                            "dlsys exam a --at ADDRESS")
        if self.asked.spent(ticket):
            raise ExamError("exam: too many questions in a minute. Wait a little.")
        self.asked.count(ticket)
        text = self.desk.ask(number, ticket, place, told.get("what"), told.get("text"))
        missed = {"missed": self.desk.missed(number, ticket)}
        return {"text": text, **(missed if told.get("what") == "debrief" else {})}


class Turns:
    """One thread works; the addresses that wait take turns, so that none keeps the others waiting.

    Requests from one address run in order of arrival.
    """

    def __init__(self) -> None:
        self.thread, self.busy = ThreadPoolExecutor(1), False
        self.waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next address is first

    async def run(self, address: str, work: Callable[[], Any]) -> Any:
        """What `work` returns, when it is this address's turn."""
        loop = asyncio.get_running_loop()
        if self.busy:
            mine = loop.create_future()
            self.waiting.setdefault(address, deque()).append(mine)
            await mine
        self.busy = True
        try:
            return await loop.run_in_executor(self.thread, work)
        finally:
            self._next()

    def _next(self) -> None:
        self.busy = bool(self.waiting)
        if self.waiting:
            address = next(iter(self.waiting))
            queue = self.waiting.pop(address)
            queue.popleft().set_result(None)
            if queue:
                self.waiting[address] = queue


def application(counter: Counter) -> Any:
    """The server's addresses: begin, ask, and a plain page at the root."""
    from tornado import web
    turns = Turns()

    class Handler(web.RequestHandler):
        async def post(self, what: str) -> None:
            self.set_header("Cache-Control", "no-store")
            try:
                told = json.loads(self.request.body)
                if type(told) is not dict:
                    raise ValueError
                answer, address = getattr(counter, what), self.request.remote_ip
                self.finish(await turns.run(address, lambda: answer(told, address)))
            except UserError as why:
                self.set_status(409)
                self.finish({"error": clean(str(why), 1000)})
            except (ValueError, RecursionError, TypeError):
                self.set_status(400)
                self.finish({"error": "exam: the desk does not understand this question."})

        def write_error(self, status_code: int, **_: Any) -> None:
            self.finish({"error": f"exam: the desk could not answer ({status_code})."})

    class Root(web.RequestHandler):
        def get(self) -> None:
            """For a phone that tests the network before the exam."""
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            begin = f"dlsys exam a --at {self.request.protocol}://{self.request.host}/"
            self.finish("This is the desk of an exam. " + (
                "The exam is over.\n" if counter.desk.over else f"Begin with: {begin}\n"))

    return web.Application([(r"/", Root), (r"/(begin|ask)", Handler)], log_function=lambda _: None)


def listen(counter: Counter, host: str, port: int, files: int = 0) -> tuple[Any, int]:
    """Start listening; returns the server and its port. Raises OSError if the port is taken.

    files: how many may be open, 0 for as many as the system allows. Where connections would take
    more, the address with the most loses one.
    """
    from dlsys.room import open_room
    from dlsys.room.connections import Connections
    from dlsys.room.server import OWN_FILES, bound
    most = (files or open_room.allow_many_files()) - OWN_FILES
    return bound(application(counter), Connections(lambda: most), host, port)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises ExamError."""
    if not 0 <= args.port <= 65535:
        raise ExamError(f"--port: got {args.port}, expected 0 to 65535; 0 picks a free one.")
    desk = exam_desk.of_class(args.out, args.over, make=not args.over)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by background jobs
    try:
        asyncio.run(_serve(Counter(desk), args))
    except OSError as error:
        raise ExamError(f"exam serve: port {args.port}: {error.strerror}. Is an exam running "
                        "already? Use a different one: --port N") from None
    except KeyboardInterrupt:
        pass
    print(f"\nStopped; the key and the record are in {args.out}. The same command goes on, "
          f"and --over ends the exam. To grade it: dlsys grade HANDED-IN --exam {args.out}")
    return 0


async def _serve(counter: Counter, args: argparse.Namespace) -> None:
    from dlsys.room.open_room import lan_address
    server, port = listen(counter, args.host, args.port)
    address = f"http://{args.host or lan_address()}:{port}/"
    print("The exam is over; the desk now shows only the debrief." if args.over else
          f"The exam is on. Learners begin with: dlsys exam a --at {address} --name THEIR-NAME\n"
          f"The key is in {args.out / exam_desk.KEY}: anyone who has it has all answers.",
          flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        server.stop()
