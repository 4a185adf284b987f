"""A room under load, killed, and attacked: how long an answer waits until it is acknowledged.

python -m benchmarks.room [--participants 500] [--lecture 900]

Server and participants are on one machine; each participant has a page open that hears of every
step. A lecture is behind one router; hostile clients use other addresses in 127.x, which on Linux
all belong to this machine. The result is written to benchmarks/ROOM.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from benchmarks import machine
from benchmarks.machine import processor, pss_mib
from benchmarks.page import table
from dlsys.room import questions
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import stage
from tests.rooms import Running, shown

TARGET = ROOT / "benchmarks" / "ROOM.md"
CHOICES = "about `0.36`", "more than `4`"
CHOSEN = next(item for item in questions.of_stage(stage(8))
              if item.asked.choices and item.trap.id != "08.1")
SPREAD = 10.0  # seconds in which a class answers
JOINS, SLOW, BODY = 10_000, 300, 100 * 2**20
MINUTE = 60.0  # seconds in which a lecture joins
FILES = ["static/room.css", "static/class.js", "static/room.js", "static/draw.js"]
ROUTER, BESIDE = "127.0.0.4", "127.0.0.5"  # of a lecture, and of a class under siege
HOSTILE, IDLE = ("127.0.0.2", "127.0.0.3"), 1_750  # addresses, silent connections of each
WRONG = 30  # wrong codes from the besieged class's address
BESIEGED, SIEGE = 100, 20.0  # honest participants meanwhile; seconds in which they join


class Member:
    """A participant with two connections: one sends, one reads the stream."""

    def __init__(self, room: Running, address: str = "127.0.0.1") -> None:
        self.room, self.address, self.cookie, self.heard = room, address, "", 0.0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.room.port,
                                             local_addr=(self.address, 0))

    async def join(self) -> None:
        self.link = await self.connect()
        status, head = await self.post("join", {"code": self.room.code})
        if status != 200:
            raise RuntimeError(f"joining: got {status}, expected 200.")
        self.cookie = head.partition("Set-Cookie: ")[2].partition(";")[0]

    async def post(self, path: str, data: dict) -> tuple[int, str]:
        return await post(*self.link, path, json.dumps(data).encode(), self.cookie)

    async def answer(self, trap: str, go: int) -> float:
        """Seconds until the answer was acknowledged."""
        began = time.monotonic()
        status, _ = await self.post("answer", {
            "trap": trap, "go": go, "guess": random.choice(CHOICES), "sure": True})
        if status != 200:
            raise RuntimeError(f"answer: got {status}, expected 200.")
        return time.monotonic() - began

    async def listen(self) -> None:
        """Remember when the last event came."""
        reader, writer = await self.connect()
        writer.write(f"GET /events HTTP/1.1\r\nHost: x\r\nCookie: {self.cookie}\r\n\r\n".encode())
        with suppress(OSError):
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    self.heard = time.monotonic()


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes,
               cookie: str = "") -> tuple[int, str]:
    """Status and head of the answer to one request on a connection that stays open."""
    writer.write(f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                 f"Cookie: {cookie}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
    await reader.readexactly(length)
    return int(head.split()[1]), head


def spread(seconds: list[float]) -> list:
    """Median, 95th percentile and slowest, in milliseconds; dashes if nobody came through."""
    ordered = sorted(1000 * s for s in seconds)
    if not ordered:
        return ["–"] * 3
    return [statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1]]


async def later(seconds: float, what: Callable[[], Awaitable]) -> object:
    await asyncio.sleep(seconds)
    return await what()


async def answers(members: list[Member], trap: str, go: int, within: float) -> list[float]:
    return await asyncio.gather(*(later(random.uniform(0, within), lambda m=m: m.answer(trap, go))
                                  for m in members))


async def heard(room: Running, members: list[Member], *step: str) -> list[float]:
    """Seconds from a step of the presenter until each page shows it."""
    began = time.monotonic()
    status = await asyncio.to_thread(room.step, *step)
    if status != 200:
        raise RuntimeError(f"step {step}: got {status}, expected 200.")
    while any(m.heard < began for m in members):
        await asyncio.sleep(0.01)
    return [m.heard - began for m in members]


async def load(room: Running, members: list[Member]) -> list[list]:
    """Rows: what, how many, median, 95th percentile, slowest, in milliseconds."""
    n = len(members)
    asked = await heard(room, members, "ask")
    calm = await answers(members, "08.1", 1, SPREAD)
    await heard(room, members, "close")
    counts = await heard(room, members, "show")
    await heard(room, members, "again")
    burst = await answers(members, "08.1", 2, 0)
    return [[f"an answer, all within {SPREAD:.0f} s", n, *spread(calm)],
            ["an answer, all at the same moment", n, *spread(burst)],
            ["a page shows the question", n, *spread(asked)],
            ["a page shows the counts", n, *spread(counts)]]


async def attack(room: Running, members: list[Member]) -> tuple[list, dict[str, int]]:
    """A row for the honest answers meanwhile, and the outcome of the attacks."""
    for step in ("close", "reveal", "ask"):
        await heard(room, members, step)
    found = {"refused joins": 0, "refused bodies": 0, "cut slow senders": 0}

    async def joins() -> None:
        link = await asyncio.open_connection("127.0.0.1", room.port)
        body = json.dumps({"code": room.code}).encode()
        for _ in range(JOINS):
            status, _ = await post(*link, "join", body)
            found["refused joins"] += status == 429

    async def body() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", room.port)
        writer.write(f"POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY}\r\n\r\n".encode())
        try:
            for _ in range(BODY // 2**16):
                writer.write(b"x" * 2**16)
                await writer.drain()
        except OSError:
            pass
        told = await gone(reader)
        found["refused bodies"] += b" 200 " not in told

    async def slow() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", room.port)
        writer.write(b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Le")
        told = await gone(reader)
        found["cut slow senders"] += b" 200 " not in told

    attackers = [asyncio.create_task(one()) for one in (joins, body, *[slow] * SLOW)]
    numbers = [m.post("answer", {"trap": "08.2", "go": 1, "guess": 37.0, "sure": True})
               for m in members]
    honest = await asyncio.gather(*(timed(random.uniform(0, SPREAD), one) for one in numbers))
    await asyncio.gather(*attackers)
    return ["an answer, under attack", len(members), *spread(honest)], found


class Phone(Member):
    """A participant that acts like a browser: it keeps the connections of its page open."""

    def __init__(self, room: Running, address: str) -> None:
        super().__init__(room, address)
        self.took, self.idle = 0.0, []

    async def get(self, *paths: str) -> None:
        reader, writer = await self.connect()
        self.idle.append(writer)
        for path in paths:
            writer.write(f"GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            await reader.readexactly(int(head.partition("Content-Length: ")[2].split("\r\n")[0]))

    async def arrive(self) -> bool:
        """Load the page, join and hear of the room; False if the room hangs up or refuses."""
        began = time.monotonic()
        try:
            await self.get("")
            await asyncio.gather(self.get(*FILES[:2]), self.get(*FILES[2:]))
            self.link = await self.connect()
            status, head = await self.post("join", {"code": self.room.code})
            if status != 200:
                return False
            self.cookie = head.partition("Set-Cookie: ")[2].partition(";")[0]
            self.listening = asyncio.create_task(self.listen())
            while not self.heard:
                if self.listening.done():
                    return False
                await asyncio.sleep(0.02)
        except (OSError, asyncio.IncompleteReadError):
            return False
        self.took = time.monotonic() - began
        return True

    async def reply(self, trap: str, guess: object) -> float | None:
        """Seconds until an answer was acknowledged, on a fresh connection; None if it was not.
        """
        began = time.monotonic()
        try:
            self.link = await self.connect()
            status, _ = await self.post("answer", {"trap": trap, "go": 1, "guess": guess,
                                                   "sure": True})
        except (OSError, asyncio.IncompleteReadError):
            return None
        return time.monotonic() - began if status == 200 else None


async def arrivals(room: Running, number: int, address: str, within: float) -> list[Phone]:
    """The phones that got in, out of `number` from one address."""
    phones = [Phone(room, address) for _ in range(number)]
    came = await asyncio.gather(*(later(random.uniform(0, within), p.arrive) for p in phones))
    return [phone for phone, ok in zip(phones, came, strict=True) if ok]


async def lecture(folder: Path, number: int) -> tuple[list[list], str]:
    """Rows for a lecture behind one router, and a sentence on the outcome."""
    room = Running(folder)
    phones = await arrivals(room, number, ROUTER, MINUTE)
    memory = pss_mib(room.process.pid)
    await asyncio.to_thread(room.step, "ask")
    took = await asyncio.gather(*(later(random.uniform(0, SPREAD), lambda p=p: p.reply(
        "08.1", CHOICES[0])) for p in phones))
    answered = [seconds for seconds in took if seconds is not None]
    for phone in phones:
        phone.listening.cancel()
    room.kill()
    return [["a phone is in, of a lecture behind one router", len(phones),
             *spread([p.took for p in phones])],
            [f"an answer of the lecture, all within {SPREAD:.0f} s", len(answered),
             *spread(answered)]], (
        f"A lecture of {number} that joins from one address within a minute: {len(phones)} came "
        f"in, {len(answered)} of their answers were acknowledged, {memory:.0f} MiB.")


async def siege(folder: Path) -> tuple[list[list], str]:
    """Rows for an honest class with two hostile addresses and a guesser behind its own router."""
    room = Running(folder)

    async def silent(address: str) -> None:
        while True:  # reconnect whenever the room hangs up
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", room.port, local_addr=(address, 0))
                await reader.read()
                writer.close()
            await asyncio.sleep(1)

    hostile = [asyncio.create_task(silent(address)) for address in HOSTILE for _ in range(IDLE)]
    await asyncio.sleep(5)
    guesser = Phone(room, BESIDE)
    with suppress(OSError, asyncio.IncompleteReadError):
        guesser.link = await guesser.connect()
        for _ in range(WRONG):
            await guesser.post("join", {"code": "AAAAAA"})
    phones = await arrivals(room, BESIEGED, BESIDE, SIEGE)
    with suppress(OSError):  # the presenter may be locked out as well
        await asyncio.to_thread(room.step, "ask")
    took = await asyncio.gather(*(later(random.uniform(0, SPREAD), lambda p=p: p.reply(
        "08.1", CHOICES[0])) for p in phones))
    answered = [seconds for seconds in took if seconds is not None]
    memory = pss_mib(room.process.pid)
    for task in (*hostile, *(phone.listening for phone in phones)):
        task.cancel()
    room.kill()
    rows = [["a phone is in, under siege", len(phones), *spread([p.took for p in phones])],
            ["an answer, under siege", len(answered), *spread(answered)]]
    return rows, (
        f"Two hostile addresses with {IDLE:,} silent connections each, and {WRONG} wrong codes "
        f"from the address of an honest class of {BESIEGED}: {len(phones)} of the class came in, "
        f"{len(answered)} of their answers were acknowledged, {memory:.0f} MiB.")


async def timed(wait: float, asked: Awaitable) -> float:
    await asyncio.sleep(wait)
    began = time.monotonic()
    await asked
    return time.monotonic() - began


async def gone(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except OSError:
        return b""


async def killed(room: Running, members: list[Member]) -> tuple[int, int, Running]:
    """How many answers were acknowledged before kill -9, and how many of them came back."""
    for step in ("close", "reveal"):
        await heard(room, members, step)
    await asyncio.to_thread(room.step, "ask", trap=CHOSEN.trap.id)
    for member in members:  # the room closes a silent connection after a while
        member.link = await asyncio.open_connection("127.0.0.1", room.port)
    kept = []
    choice = CHOSEN.asked.choices[0]

    async def one(member: Member) -> None:
        try:
            await asyncio.sleep(random.uniform(0, 2))
            status, _ = await member.post("answer", {"trap": CHOSEN.trap.id, "go": 1,
                                                     "guess": choice, "sure": False})
            if status == 200:
                kept.append(member)
        except (OSError, asyncio.IncompleteReadError):
            return

    tasks = [asyncio.create_task(one(m)) for m in members]
    await asyncio.sleep(1)
    room.process.kill()
    await asyncio.gather(*tasks)
    room.process.wait()
    again = await asyncio.to_thread(Running, room.folder, port=room.port)
    back = 0
    for member in kept:
        mine = await asyncio.to_thread(shown, again.port, "events", cookie=member.cookie)
        back += mine["mine"] == {"1": {"guess": choice, "sure": False}}
    return len(kept), back, again


async def measure(number: int, heard_by: int) -> str:
    run = machine.describe()
    with tempfile.TemporaryDirectory() as folder:
        room = Running(Path(folder))
        members = [Member(room) for _ in range(number)]
        for member in members:
            await member.join()
        streams = [asyncio.create_task(m.listen()) for m in members]
        while not all(m.heard for m in members):
            await asyncio.sleep(0.05)
        rows = await load(room, members)
        memory = pss_mib(room.process.pid)
        row, attacks = await attack(room, members)
        grown = pss_mib(room.process.pid) - memory
        kept, back, room = await killed(room, members)
        for stream in streams:
            stream.cancel()
        room.kill()
    with tempfile.TemporaryDirectory() as folder:
        many, said = await lecture(Path(folder), heard_by)
    with tempfile.TemporaryDirectory() as folder:
        besieged, endured = await siege(Path(folder))
    return page([*rows, row, *many, *besieged], attacks, (memory, grown), (kept, back), run,
                said, endured)


def page(rows: list[list], attacks: dict[str, int], memory: tuple[float, float],
         kill: tuple[int, int], run: dict[str, str], *told: str) -> str:
    return "\n".join([
        "# A room\n",
        f"Measured {run['date']} on {os.cpu_count()} cores of {processor()}, load {run['load']} "
        "before it began; server and participants share the machine. Milliseconds; an answer is "
        "acknowledged once it is in the log.\n",
        table(["until", "participants", "median", "95 of 100", "slowest"], rows),
        f"\nUnder attack, at once: {JOINS:,} joins from one address, {attacks['refused joins']:,} "
        "of them refused; a body of 100 MB, "
        f"{'refused' if attacks['refused bodies'] else 'taken'}; {SLOW} senders that never end "
        f"their first line, {attacks['cut slow senders']} of them cut off. The server took "
        f"{memory[0]:.0f} MiB before and {memory[1]:.0f} MiB more after.\n",
        f"`kill -9` in the middle of a round: {kill[0]} answers had been acknowledged, {kill[1]} "
        "of them were there after the restart.", *(f"\n{text}" for text in told), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--participants", type=int, default=500)
    parser.add_argument("--lecture", type=int, default=900)
    asked = parser.parse_args()
    text = asyncio.run(measure(asked.participants, asked.lecture))
    TARGET.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
