"""The room that the learner joined with `dlsys join`; guesses and verdicts are sent to it.

A message is an id with the guess, or with the verdict and the name of the mistake; never code,
never a person's name. A separate thread sends it, so a guess never waits. A verdict waits a moment
to say whether the room received it, but not if the room has just failed to answer.
"""

from __future__ import annotations

import atexit
import html
import json
import os
import queue
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlsys_helpers import cards, paths
from dlsys_helpers.verdicts import Verdict

NAME = ".room.json"
PATIENCE = 3.0  # seconds for one message
HEARD = 2.0  # seconds that a verdict waits for the room's answer
AT_END = 1.0  # seconds that an ending program waits for its last messages
PAUSE = 30.0  # seconds without messages after one that did not arrive
SILENT, REFUSED = "does not answer", "does not take this"
_QUEUE: queue.Queue[tuple[dict, str, dict, Future]] = queue.Queue(64)
_thread: threading.Thread | None = None


def file() -> Path:
    """The file that says which room was joined."""
    return paths.MY_WORK / NAME


def joined() -> dict[str, str]:
    """Address, code and cookie of the room; {} without one."""
    try:
        room = json.loads(file().read_bytes())
    except (OSError, ValueError):
        return {}
    whole = isinstance(room, dict) and all(
        isinstance(room.get(key), str) for key in ("address", "code", "cookie"))
    return room if whole else {}


def join(room: dict[str, str]) -> None:
    """Keep the room in a file that only its owner can read. Raises OSError."""
    file().parent.mkdir(parents=True, exist_ok=True)
    with open(file(), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        json.dump(room, out)


def leave() -> None:
    """Forget the room. Raises OSError."""
    file().unlink(missing_ok=True)


def say_guess() -> None:
    """Say below a question that its guess is sent to the room, if one was joined."""
    if joined():
        _say("Your guess is also sent to the room, without your name.")


def tell_guess(id: str, said: dict[str, Any]) -> None:
    """Send the room a guess, `{"guess": ..., "sure": ...}`, if one was joined."""
    _tell("answer", {"trap": id, "guess": said["guess"], "sure": said["sure"]})


def tell_verdicts(*verdicts: Verdict) -> None:
    """Send the room the verdicts and say whether it received them, if one was joined."""
    told = [_tell("verdict", {"trap": v.id, "status": v.status, "mistake": v.misconception})
            for v in verdicts if v.status != "missing"]
    if not joined() or not told:
        return
    until = time.monotonic() + HEARD
    faults = [one and _fault(one, until) for one in told]
    fault = next((one for one in faults if one), "")
    if fault:
        _say(f"The room {joined()['code'][:20]} {fault}, so it did not get this.")
    elif None in faults:
        _say("The room has not answered yet, so this may not have arrived.")
    else:
        _say("Sent to the room: the verdict and the name of the mistake, not your code.")


def _fault(message: Future, until: float) -> str | None:
    """Why the room did not take a message, "" if it did; None if that is not known by then."""
    with suppress(TimeoutError):
        return message.result(max(0.0, until - time.monotonic()))
    return None


def _say(text: str) -> None:
    text += " To stop: dlsys leave"
    if cards.shell() is not None:
        cards.emit(f'<p style="font-size:.86em;opacity:.85">{html.escape(text)}</p>', text)
    else:
        print(text, file=os.sys.stderr)  # stdout may be read by a program


def _tell(path: str, data: dict[str, Any]) -> Future | None:
    """Hand a message to the thread; None without a room, or where too many wait.

    The result is why the room did not take it, "" if it did.
    """
    global _thread
    room = joined()
    if not room:
        return None
    message: Future = Future()
    with suppress(queue.Full):
        _QUEUE.put_nowait((room, path, data, message))
        if _thread is None or not _thread.is_alive():
            if _thread is None:
                atexit.register(_finish)
            _thread = threading.Thread(target=_work, name="dlsys room", daemon=True)
            _thread.start()
        return message
    return None


def _work() -> None:
    silent_until, silent = 0.0, {}
    while True:
        room, path, data, message = _QUEUE.get()
        fault = SILENT
        if room != silent or time.monotonic() > silent_until:
            fault = _send(room, path, data)
            if fault == SILENT:
                silent_until, silent = time.monotonic() + PAUSE, room
        message.set_result(fault)
        _QUEUE.task_done()


def _send(room: dict[str, str], path: str, data: dict[str, Any]) -> str:
    """Send a message; returns why the room did not take it, "" if it did."""
    from http.client import HTTPException
    from urllib import error, request
    asked = request.Request(room["address"] + path, json.dumps(data).encode(), {
        "Content-Type": "application/json", "Cookie": room["cookie"]})
    try:
        request.urlopen(asked, timeout=PATIENCE).close()
    except error.HTTPError as refused:
        refused.close()
        return REFUSED
    except (OSError, HTTPException, ValueError):
        return SILENT
    return ""


def _finish() -> None:
    """Wait a moment for unsent messages when a program ends right after a check."""
    until = time.monotonic() + AT_END
    while _QUEUE.unfinished_tasks and time.monotonic() < until:
        time.sleep(0.01)
