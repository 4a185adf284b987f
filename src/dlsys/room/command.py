"""`dlsys room`, `dlsys join` and `dlsys leave`."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib import error, request

from dlsys import work_folder
from dlsys.grading.text import clean
from dlsys.room.questions import Item, RoomError
from dlsys_helpers import room_client
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import SPAN

PORT = 8228
PATIENCE = 5.0  # seconds to wait for a room's answer to a join


# ---- dlsys room

def add_parser(commands) -> None:
    """Add `room` to the commands of `dlsys`."""
    parser = commands.add_parser("room", help="let a class guess, or review changes, "
                                 "together, on its phones")
    parser.add_argument("stage", nargs="?", help=f"number of the stage, {SPAN}")
    parser.add_argument("--release", type=Path, metavar="FOLDER",
                        help="ask about the stages in a folder that dlsys release made")
    parser.add_argument("--review", nargs="*", metavar="CHANGE",
                        help="review changes to a training repository together; the changes with "
                        "these numbers in dlsys review-diff --list come first")
    parser.add_argument("--out", type=Path, metavar="FOLDER",
                        help="where to keep the answers and the report; continues a room that is "
                        "there (default my-work/rooms/...)")
    parser.add_argument("--host",
                        help="the address to listen on (default: all addresses of this machine)")
    parser.add_argument("--port", type=int, default=PORT, help=f"default {PORT}")
    parser.add_argument("--prefix", default="/", metavar="/PATH/",
                        help="where a proxy, such as a hub, puts the room: /services/room/")
    parser.add_argument("--address", metavar="URL",
                        help="the address to show the class, if the one found is wrong")
    parser.add_argument("--names", action="store_true",
                        help="ask participants for a name, which is optional")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _refuse_bad(args)
    from dlsys.room import questions
    if args.review is not None:
        planned = _numbers(args.review)
        return _served(lambda: _review(args, planned))
    if args.release:
        stages, items = questions.of_release(args.release)
        title = f"Stages {', '.join(map(str, stages))}" if len(stages) > 1 else _title(stages[0])
    else:
        stages = [work_folder.stage_of(args.stage).number]
        items, title = questions.of_stage(work_folder.stage_of(args.stage)), _title(stages[0])
    return _served(lambda: _guesses(args, stages, items, title))


def _served(opened: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run what imports a web server. Raises RoomError if none is installed."""
    try:
        room = opened()
    except ModuleNotFoundError as missing:
        raise RoomError(f"{missing.name} is not installed, and a room needs it. Run: pip install "
                        f"{missing.name}") from None
    return asyncio.run(room)


def _guesses(args: argparse.Namespace, stages: list[int], items: list[Item],
             title: str) -> Coroutine[Any, Any, int]:
    from dlsys.room import open_room
    from dlsys.room.rounds import Room
    return open_room.run(args, stages, Room(items), title)


def _review(args: argparse.Namespace, planned: list[str]) -> Coroutine[Any, Any, int]:
    from dlsys.room import open_room
    from dlsys.room.changes import ReviewRoom
    from dlsys.room.review_server import TITLE, LiveReview
    from dlsys_diffs.case_files import cases
    room = ReviewRoom([*cases().values()], planned)
    return open_room.run(args, [], room, TITLE, LiveReview)


def _numbers(asked: list[str]) -> list[str]:
    """The numbers of changes, each once. Raises UserError."""
    from dlsys import review_diff
    return [*dict.fromkeys(str(review_diff.number_of(review_diff.case_of(text, "--review")))
                           for text in asked)]


def _title(number: int) -> str:
    stage = work_folder.stage_of(number)
    return f"Stage {number}: {stage.title}"


def _refuse_bad(args: argparse.Namespace) -> None:
    asked = [name for name, given in (("a stage", args.stage), ("--release", args.release),
                                      ("--review", args.review is not None)) if given]
    if len(asked) != 1:
        raise RoomError(f"got {' and '.join(asked)}, expected one of them: dlsys room 8" if asked
                        else "expected a stage: dlsys room 8, or --release FOLDER, or --review")
    if not 0 <= args.port <= 65535:
        raise RoomError(f"--port: got {args.port}, expected 0 to 65535; 0 picks a free one.")
    if not re.fullmatch(r"/([\w.~@%-]+/)*", args.prefix):
        raise RoomError(f"--prefix: got {args.prefix[:60]!r}, expected a path that begins and ends "
                        "with a slash: /services/room/")
    if args.address and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", args.address):
        raise RoomError(f"--address: got {args.address[:80]!r}, expected http://... or https://...")


# ---- dlsys join, dlsys leave

def add_join(commands) -> None:
    parser = commands.add_parser("join", help="send your guesses and verdicts to a class's room")
    parser.add_argument("address", help="the address on the wall: http://192.168.1.20:8228/")
    parser.add_argument("code", help="its six letters; add a dash and the eight letters on your "
                        "phone, and you and your phone count once")
    parser.add_argument("--name", default="", help="your name, if the presenter asks for one "
                        "and you agree")
    parser.set_defaults(run=run_join)


def run_join(args: argparse.Namespace) -> int:
    address, asked = whole_address(args.address), args.code.strip().upper()
    code, _, person = asked.partition("-")
    old = room_client.joined()
    here = (old.get("address"), old.get("code")) == (address, code) and _answers(old)
    if here and not person:
        print(f"You are already in the room {code}. To stop: dlsys leave")
        return 0
    if old and old["address"] != address and _answers(old):
        raise UserError(f"join: you are in the room {old['code']} at {old['address']} already. "
                        "Leave it first: dlsys leave")
    told, cookie = _post_join(address, asked, args.name, old["cookie"] if here else "")
    try:
        room_client.join({"address": address, "code": code, "cookie": cookie})
    except OSError as fault:
        raise UserError(
            f"join: {room_client.file()} cannot be written ({fault.strerror}).") from None
    print(f"You are in the room {code}: {clean(told.get('title', ''))}. Your guesses and the "
          "verdicts of your checks go to it, but never code"
          f"{', and no name' if not (args.name and told.get('names')) else ''}. "
          "To stop: dlsys leave")
    if not person and told.get("own"):
        print(f"Do you also answer on a phone? Type {clean(told['own'])} there instead of the "
              "six letters, and you count once.")
    if args.name and not told.get("names"):
        print("Your name was not sent: the presenter asks for none.")
    return 0


def whole_address(text: str) -> str:
    """The address that the class sees on the wall, with http:// or https:// and a final slash."""
    text = text.strip().partition("#")[0]
    found = text if "://" in text else f"http://{text}"
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", found):
        raise UserError(f"join: got the address {text[:80]!r}, expected the address on the wall, "
                        "such as http://192.168.1.20:8228/")
    return found.rstrip("/") + "/"


def _post_join(address: str, code: str, name: str, cookie: str) -> tuple[dict, str]:
    """What the room says about itself, and its cookie. Raises UserError.

    cookie: the one that this learner already has from that room, or "".
    """
    body = json.dumps({"code": code, "name": name, "stays": True}).encode()
    asked = request.Request(f"{address}join", body,
                            {"Content-Type": "application/json", "Cookie": cookie})
    try:
        with request.urlopen(asked, timeout=PATIENCE) as answer:
            cookie = (answer.headers.get("Set-Cookie") or "").partition(";")[0]
            told = json.loads(answer.read(10_000))
    except error.HTTPError as refused:
        with refused:
            raise UserError(f"join: {_why(refused)}") from None
    except (OSError, HTTPException, ValueError) as fault:
        why = getattr(fault, "reason", fault)
        raise UserError(f"join: {address} does not answer ({why}). Is the address right, and are "
                        "you on the same network as the presenter?") from None
    if not cookie or not isinstance(told, dict):
        raise UserError(f"join: {address} answers, but is not a room. Check the address.")
    return told, cookie


def _why(refused: error.HTTPError) -> str:
    try:
        return clean(json.loads(refused.read(2000))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"the address answers {refused.code}, so it is not a room. Check the address."


def over_room() -> str:
    """What to say about a joined room that no longer answers; "" if it does, or none was."""
    room = room_client.joined()
    if not room or _answers(room):
        return ""
    return (f"The room {clean(room['code'])} no longer answers, so nothing was sent to it. "
            "To leave it: dlsys leave")


def _answers(joined: dict[str, str]) -> bool:
    """Whether a room that was joined is still there."""
    asked = request.Request(f"{joined['address']}events", headers={"Cookie": joined["cookie"]})
    try:
        request.urlopen(asked, timeout=PATIENCE).close()
    except error.HTTPError as refused:
        refused.close()
        return False
    except (OSError, HTTPException, ValueError):
        return False
    return True


def add_leave(commands) -> None:
    parser = commands.add_parser("leave", help="leave the room of a class")
    parser.set_defaults(run=run_leave)


def run_leave(_: argparse.Namespace) -> int:
    old = room_client.joined()
    if not old and not room_client.file().exists():
        print("You are not in a room, so there is nothing to leave.")
        return 0
    try:
        room_client.leave()
    except OSError as fault:
        raise UserError(
            f"leave: {room_client.file()} cannot be removed ({fault.strerror}).") from None
    print(f"You left the room {old.get('code', '')}. Nothing more is sent to it.")
    return 0
