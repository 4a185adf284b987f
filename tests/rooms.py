"""Run a room as a process, with plain HTTP clients as participants, for tests and benchmarks."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

START_S = 30


class Running:
    """A room's process: its port, code and presenter's secret, as it printed them.

    `first` is Python code that the process runs before it opens the room: a limit, another bound.
    `what` says what the room is about: a stage, or changes for review.
    """

    def __init__(self, folder: Path, *options: str, port: int = 0, first: str = "",
                 stderr: int | None = None, what: tuple[str, ...] = ("8",)) -> None:
        self.folder, self.options, self.first, self.stderr = folder, options, first, stderr
        self.what = what
        self.start(port)

    def start(self, port: int) -> None:
        env = os.environ | {"DLSYS_WORK": str(self.folder)}
        command = f"{self.first}\nimport sys\nfrom dlsys import cli\nsys.exit(cli.main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "room", *self.what, "--host", "127.0.0.1", "--port",
             str(port), *self.options], env=env, text=True, stdout=subprocess.PIPE,
            stderr=self.stderr)
        self.output = ""
        while "Ctrl-C ends" not in self.output:
            line = self.process.stdout.readline()
            if not line:
                said = self.output + (self.process.stderr.read() if self.process.stderr else "")
                self.kill()
                raise AssertionError(f"the room did not start: {said}")
            self.output += line
        self.code = re.search(r"code (\w{6})", self.output)[1]
        self.secret = re.search(r"present#(\S+)", self.output)[1]
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)", self.output)[1])
        self.url = f"http://127.0.0.1:{self.port}/"

    def step(self, name: str, **more) -> int:
        return send(self.port, "step", {"step": name, **more}, key=self.secret)[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self) -> str:
        """End it as Ctrl-C does; return what it printed."""
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=START_S)[0]


@contextmanager
def running(folder: Path, *options: str, **how):
    room = Running(folder, *options, **how)
    try:
        yield room
    finally:
        room.kill()


def send(port: int, path: str, data: object, cookie: str = "", key: str = "",
         method: str = "POST", **headers: str) -> tuple[int, dict, str]:
    """Status, answer and cookie of one request."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Content-Type": "application/json", **headers}
    if cookie:
        headers["Cookie"] = cookie
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        link.request(method, f"/{path}", json.dumps(data) if method == "POST" else None, headers)
        answer = link.getresponse()
        body = answer.read()
        told = json.loads(body) if body.startswith(b"{") else {}
        return answer.status, told, (answer.getheader("Set-Cookie") or "").partition(";")[0]
    finally:
        link.close()


class Learner:
    """A participant who joined."""

    def __init__(self, room: Running) -> None:
        self.room = room
        status, _, self.cookie = send(room.port, "join", {"code": room.code})
        assert status == 200

    def send(self, path: str, **data) -> int:
        return send(self.room.port, path, data, self.cookie)[0]

    def answer(self, trap: str, guess: object, sure: bool = True, **more) -> int:
        return self.send("answer", trap=trap, guess=guess, sure=sure, **more)

    def verdict(self, trap: str, status: str, mistake: str = "") -> int:
        return self.send("verdict", trap=trap, status=status, mistake=mistake)


def shown(port: int, path: str, **who: str) -> dict:
    """The first event of a stream."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Authorization": f"Bearer {who['key']}"} if "key" in who else {
        "Cookie": who["cookie"]}
    try:
        link.request("GET", f"/{path}", headers=headers)
        answer = link.getresponse()
        while not (line := answer.readline()).startswith(b"data: "):
            assert line, "the stream ended"
        return json.loads(line[6:])
    finally:
        link.close()


def wait(done, seconds: float = 20) -> None:
    """Wait until `done()`; raise AssertionError if it takes too long."""
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.05)
