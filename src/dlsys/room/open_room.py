"""A room from start to report: it is resumed or begun, served, and ended."""

from __future__ import annotations

import argparse
import asyncio
import errno
import signal
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import segno

from dlsys import work_folder
from dlsys.room import log, server
from dlsys.room.log import Log
from dlsys.room.questions import RoomError
from dlsys.room.rounds import Room
from dlsys_helpers import paths

EVERYWHERE = "0.0.0.0"


async def run(args: argparse.Namespace, stages: list[int], room: Room, title: str,
              kind: type[server.LiveRoom] = server.LiveRoom) -> int:
    """Serve a room until Ctrl-C, then write its report. stages: empty for a room of changes."""
    folder = args.out or room_folder(stages)
    with closing(Log(folder)) as kept:
        settings = _opened(kept, folder, stages, room, title, args.names)
        host = args.host or (EVERYWHERE if args.prefix == "/" else "127.0.0.1")
        live = kind(room, kept, settings, {})
        live.warm()
        web, port = _listening(live, host, args.port, args.prefix)
        address = args.address or f"http://{lan_address() if host == EVERYWHERE else host}:{port}"
        address = address.rstrip("/") + (args.prefix if not args.address else "/")
        live.welcome |= {"address": address, "qr": qr(f"{address}#{settings['code']}")}
        _print_welcome(args, host, port, address, settings)
        await _until_stopped()
        live.end()
        web.stop()
        await asyncio.sleep(2 * server.PACE)  # until the pages have heard of it
        try:
            kept.append({"kind": "end"})
        except sqlite3.Error as error:  # a full disk: the report may still fit
            print(f"Note: {kept.path}: can no longer be written ({error}).")
        for path in live.report(folder):
            print(path)
    return 0


def room_folder(stages: list[int]) -> Path:
    """The folder of a room of these stages, or of changes, that was killed, or a new one."""
    rooms = paths.MY_WORK / "rooms"
    name = "_".join(f"{n:02d}" for n in stages) or "review"
    for old in sorted(rooms.glob(f"{name}_2*"), reverse=True):
        if log.is_open(old):
            return old
    return _new(rooms / f"{name}_{time.strftime('%Y-%m-%d_%H%M%S')}")


def _new(folder: Path) -> Path:
    """Make this folder, with a number after its name if a room began in the same second."""
    places = (folder.with_name(folder.name + end) for end in work_folder.name_endings())
    return next(place for place in places if _could_make(place))


def _could_make(place: Path) -> bool:
    """Make a folder; returns False if it exists already. Raises RoomError."""
    try:
        place.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise RoomError(f"{place}: cannot be created ({error.strerror}). Name a different folder "
                        "with --out FOLDER.") from None
    return True


def _opened(kept: Log, folder: Path, stages: list[int], room: Room, title: str,
            names: bool) -> dict[str, Any]:
    """The settings of a room, after it has taken in its earlier events. Raises RoomError."""
    past = list(kept.events())
    if not past:
        past = [server.new_settings(stages, title, names)]
        kept.append(past[0])
    settings, *events = past
    if settings.get("stages") != stages:
        raise RoomError(f"{folder}: contains a room for other stages. Name a different folder with "
                        "--out.")
    try:
        for event in events:
            if event["kind"] != "end":
                room.apply(event)
    except KeyError as error:
        raise RoomError(f"{folder}: its room asked {error}, which the course no longer has. Name "
                        "a different folder with --out.") from None
    if events:
        print(f"Continuing the room in {folder}: {sum(map(len, room.answers.values()))} "
              "answers. Its code and addresses are the same as before. For a new room, end this "
              "one with Ctrl-C first, or name a different folder with --out.")
    return settings


def _listening(live: server.LiveRoom, host: str, port: int, prefix: str) -> tuple[Any, int]:
    try:
        return server.listen(live, host, port, prefix, allow_many_files())
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise RoomError(f"--port: {port} is in use, perhaps by another room. Use a different "
                            f"one: --port {port + 1}") from None
        raise RoomError(f"--host, --port: cannot listen on {host}:{port} "
                        f"({error.strerror or error}).") from None


def allow_many_files() -> int:
    """Allow as many open files as the system permits, one a page; returns how many that is."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return server.FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = server.FILES if hard == resource.RLIM_INFINITY else min(server.FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def lan_address() -> str:
    """This machine's address in its network. Nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: RFC 5737
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def qr(text: str) -> str:
    """A QR code as a picture in a data URI."""
    return segno.make(text, error="m").svg_data_uri(scale=8, border=2, dark="#000", light="#fff")


def _print_welcome(args: argparse.Namespace, host: str, port: int, address: str,
                   settings: dict[str, Any]) -> None:
    near = "127.0.0.1" if host in (EVERYWHERE, "127.0.0.1") else host
    own = address if args.prefix != "/" else f"http://{near}:{port}/"
    print(f"The room is open. {settings['title']}")
    print(f"  Presenter  {own}present#{settings['secret']}   keep this one to yourself")
    print(f"  Class      {address}   code {settings['code']}")
    for slides in _slides(settings["stages"]):
        print(f"  Slides     {slides.resolve().as_uri()}#room={own}present#{settings['secret']}   "
              "R shows the room; keep this one to yourself as well")
    if host == EVERYWHERE:
        print(f"Note: everybody on your network can open the class page on port {port} of this "
              "machine, and nothing else. To serve only this machine: --host 127.0.0.1")
    print("Ctrl-C ends the room and writes its report.", flush=True)


def _slides(stages: list[int]) -> list[Path]:
    """The slides of these stages that `dlsys slides` has written."""
    return [path for stage in stages for path in sorted(
        paths.MY_WORK.glob(f"{stage:02d}_slides*.html"))]


async def _until_stopped() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM"):
        try:
            loop.add_signal_handler(getattr(signal, name), stopped.set)
        except NotImplementedError:  # Windows: a Ctrl-C arrives as an exception
            signal.signal(getattr(signal, name),
                          lambda *_: loop.call_soon_threadsafe(stopped.set))
    await stopped.wait()
