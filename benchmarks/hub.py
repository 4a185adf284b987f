"""Learners who come to the hub of `make hub` at the same time: seconds, memory, processor time.

python -m benchmarks.hub [--learners 10]

Each logs in, opens stage 1's lesson and runs it, passes the check of its first exercise in the
worksheet and looks at their progress, all through the hub's pages and Jupyter's REST and websocket
interfaces. Once with ordinary kernels, once with warm ones; the result is benchmarks/HUB.md.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import requests
import websocket

from benchmarks import machine
from benchmarks.machine import processor, pss
from benchmarks.page import table
from deploy.hub import local
from dlsys_helpers.paths import ROOT, SOLUTIONS

TARGET = ROOT / "benchmarks" / "HUB.md"
PORT = 18000
PAGE = f"http://127.0.0.1:{PORT}"
SECRET = "for-the-benchmark-only"
PATIENCE = 1200  # seconds for a cell, where ten learners share two cores with others
START = "from dlsys import work_folder; work_folder.start(1)"
PROGRESS = ("import subprocess; print(subprocess.run(['dlsys', 'progress'], check=True, "
            "capture_output=True, text=True).stdout)")


class Learner:
    """A learner who logs in and works; ``moments`` has the seconds since login."""

    def __init__(self, number: int) -> None:
        self.name, self.moments = f"learner{number}", {}
        self.web = requests.Session()

    def reached(self, moment: str) -> None:
        self.moments[moment] = time.monotonic() - self.began

    def hour(self, all_done: threading.Barrier) -> dict[str, float]:
        """A learner's hour, without the thinking. Raises RuntimeError if something fails."""
        self.began = time.monotonic()
        self.log_in()
        self.reached("JupyterLab is there")
        start = self.open_notebook("00_start_here.ipynb")
        start.run(START)
        start.stop()
        lesson = self.open_notebook("01_lesson.ipynb")
        self.reached("lesson open, kernel ready")
        for index, cell in enumerate(lesson.cells()):
            lesson.run(cell)
            if index == 1:  # the first imports torch
                self.reached("first cells of the lesson")
        self.reached("whole lesson")
        worksheet = self.open_notebook("01_activations.ipynb")
        for cell in first_answer():
            worksheet.run(cell)
        self.reached("first check passed")
        solved = re.search(r"1/\d+|1 of \d+", worksheet.run(PROGRESS))
        if not solved:
            raise RuntimeError(f"{self.name}: their progress does not show the solved exercise")
        self.reached("progress seen")
        all_done.wait(PATIENCE)  # with lesson and worksheet open
        all_done.wait(PATIENCE)  # measured
        return self.moments

    def log_in(self) -> None:
        self.web.get(f"{PAGE}/hub/login").raise_for_status()
        form = {"username": self.name, "password": SECRET, "_xsrf": self.web.cookies["_xsrf"]}
        self.web.post(f"{PAGE}/hub/login", form, allow_redirects=False).raise_for_status()
        hub = f"{PAGE}/hub/api/users/{self.name}"
        self.web.get(f"{PAGE}/hub/home").raise_for_status()
        # Cookies of several paths share this name; the hub's own pages use the one for /hub/.
        xsrf = next(c.value for c in self.web.cookies if c.name == "_xsrf" and c.path == "/hub/")
        made = self.web.post(f"{hub}/tokens", json={"note": "load"}, headers={
            "X-XSRFToken": xsrf, "Referer": f"{PAGE}/hub/token"})
        made.raise_for_status()
        self.token = made.json()["token"]
        self.web = requests.Session()
        self.web.headers["Authorization"] = f"token {self.token}"
        self.web.post(f"{hub}/server").raise_for_status()
        until = time.monotonic() + PATIENCE
        while not self.web.get(hub).json()["servers"].get("", {}).get("ready"):
            if time.monotonic() > until:
                raise RuntimeError(f"the server of {self.name} is not ready in {PATIENCE} s")
            time.sleep(0.2)

    def ask(self, method: str, path: str, /, **body: object) -> dict:
        done = self.web.request(method, f"{PAGE}/user/{self.name}/api/{path}", json=body or None,
                                timeout=PATIENCE)
        done.raise_for_status()
        return done.json() if done.content else {}

    def open_notebook(self, name: str) -> "Notebook":
        return Notebook(self, name)


class Notebook:
    """An open notebook with its kernel."""

    def __init__(self, learner: Learner, name: str) -> None:
        self.learner, self.name = learner, name
        session = learner.ask("POST", "sessions", path=name, name=name, type="notebook",
                              kernel={"name": "python3"})
        self.session, self.kernel = session["id"], session["kernel"]["id"]
        self.socket = self.connected()
        self.run("")

    def connected(self) -> websocket.WebSocket:
        """Connect to the kernel's channels. Like a page, retry after a refusal.

        If many start at once, two kernels may want one port; the one that loses restarts.
        """
        address = f"{PAGE}/user/{self.learner.name}/api/kernels/{self.kernel}/channels"
        for _ in range(3):
            with contextlib.suppress(websocket.WebSocketBadStatusException):
                return websocket.create_connection(
                    address.replace("http", "ws"), timeout=PATIENCE,
                    header=[f"Authorization: token {self.learner.token}"])
        raise RuntimeError(f"{self.learner.name}: {self.name}: its kernel does not answer")

    def cells(self) -> list[str]:
        book = self.learner.ask("GET", f"contents/{self.name}")["content"]
        return [cell["source"] for cell in book["cells"] if cell["cell_type"] == "code"]

    def run(self, code: str) -> str:
        """What the cell prints. Raises RuntimeError if it fails."""
        number, printed, awaited = uuid.uuid4().hex, [], {"execute_reply", "idle"}
        header = {"msg_id": number, "msg_type": "execute_request", "username": "",
                  "session": self.session, "version": "5.4"}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        self.socket.send(json.dumps({"header": header, "parent_header": {}, "metadata": {},
                                     "content": content, "channel": "shell", "buffers": []}))
        while awaited:  # two channels, in either order: the output ends with idle
            received = self.socket.recv()
            if isinstance(received, bytes):  # a widget's message, with its buffers
                continue
            message = json.loads(received)
            kind, said = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != number:
                continue
            if kind == "stream":
                printed.append(said["text"])
            elif kind == "execute_reply" and said["status"] != "ok":
                raise RuntimeError(f"{self.learner.name}: {self.name}: {code[:60]!r}: "
                                   f"{said.get('evalue', '')[:200]}")
            awaited -= {kind, said.get("execution_state")}
        return "".join(printed)

    def stop(self) -> None:
        self.socket.close()
        self.learner.ask("DELETE", f"sessions/{self.session}")


def first_answer() -> list[str]:
    """The cells of stage 1's solution up to the first check."""
    path = next(SOLUTIONS.glob("01_*.ipynb"))
    cells = [c for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    roles = [c["metadata"]["dlsys"]["role"] for c in cells]
    return ["".join(c["source"]) for c in cells[:roles.index("check") + 1]]


def processes() -> Iterator[Path]:
    """The processes in .venv-hub: hub, proxy, JupyterLabs, kernels and their warm server."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{local.HOME}/".encode() in (path / "cmdline").read_bytes():
                yield path
        except OSError:
            continue


def megabytes() -> tuple[int, float]:
    """Number of processes, and their memory, counting shared pages once."""
    found = [int(path.name) for path in processes()]
    return len(found), pss(found) / 1e6


def processor_seconds() -> float:
    """Processor time that these processes and their ended children have used."""
    ticks = [map(int, (path / "stat").read_text().rpartition(")")[2].split()[11:15])
             for path in processes()]
    return sum(map(sum, ticks)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def hub(warm: bool) -> Iterator[None]:
    """A running hub with separate folders, all of which are removed afterwards."""
    with tempfile.TemporaryDirectory() as data:
        env = local.environment(PORT, Path(data), SECRET)
        env |= {"JUPYTER_DEFAULT_PROVISIONER_NAME": "dlsys-warm" if warm else "local-provisioner"}
        with open(Path(data) / "log", "wb") as log:
            running = subprocess.Popen(local.command(), env=env, cwd=data, stdout=log, stderr=log)
        try:
            wait_for_page(running)
            yield
        except Exception:
            print((Path(data) / "log").read_text()[-3000:])
            raise
        finally:
            running.terminate()
            running.wait(60)
            for path in processes():
                os.kill(int(path.name), signal.SIGTERM)


def wait_for_page(running: subprocess.Popen) -> None:
    while running.poll() is None:
        try:
            requests.get(f"{PAGE}/hub/health", timeout=5).raise_for_status()
            return
        except requests.RequestException:
            time.sleep(0.2)
    raise RuntimeError("the hub ended before its page came")


def class_of(learners: int, warm: bool) -> dict[str, list[float]]:
    """Each learner's seconds by moment; then megabytes, processes and processor seconds."""
    with hub(warm), ThreadPoolExecutor(learners) as pool:
        empty, used = megabytes()[1], processor_seconds()
        all_done = threading.Barrier(learners + 1)
        work = [pool.submit(watched, Learner(n), all_done) for n in range(learners)]
        try:
            all_done.wait(PATIENCE)
            count, full = megabytes()
            used = processor_seconds() - used
            all_done.wait(PATIENCE)
        except threading.BrokenBarrierError:
            pass  # the error of the learner who broke it is raised below
        errors = [done.exception() for done in work]
        for error in errors:  # only from the learner who broke the barrier
            if error and not isinstance(error, threading.BrokenBarrierError):
                raise error
        moments = [done.result() for done in work]
    found = {name: [each[name] for each in moments] for name in moments[0]}
    return found | {"hub alone, MB": [empty], "MB": [full], "processes": [count],
                    "processor s": [used]}


def watched(learner: Learner, all_done: threading.Barrier) -> dict[str, float]:
    try:
        return learner.hour(all_done)
    except Exception:
        all_done.abort()  # or all others would wait for this one
        raise


SINGLE = {"hub alone, MB", "MB", "processes", "processor s"}


def moments_of(found: dict) -> list[str]:
    return [name for name in found if name not in SINGLE]


def totals(found: dict) -> dict[str, float]:
    """What one way costs, in total and per learner."""
    learners = len(found[moments_of(found)[0]])
    (full,), (hub_alone,), (used,) = (found[n] for n in ("MB", "hub alone, MB", "processor s"))
    return {"processes": found["processes"][0], "memory of all, GB": full / 1000,
            "of that, hub and proxy, GB": hub_alone / 1000,
            "memory per learner, MB": (full - hub_alone) / learners,
            "processor time per learner, s": used / learners}


def both_ways(cold: dict, warm: dict) -> list[str]:
    rows = [[name, *(f(found[name]) for found in (cold, warm) for f in (statistics.median, max)),
             statistics.median(warm[name]) / statistics.median(cold[name])]
            for name in moments_of(cold)]
    sums = [[name, value, totals(warm)[name], totals(warm)[name] / value]
            for name, value in totals(cold).items()]
    return [table(["seconds from login until", "ordinary, median", "slowest", "warm, median",
                   "slowest", "ratio of medians"], rows), "",
            table(["sums", "ordinary", "warm", "ratio"], sums), ""]


def page(cold: dict, warm: dict, run: dict[str, str]) -> str:
    learners = len(warm[moments_of(warm)[0]])
    return "\n".join([
        "# Learners on one server\n",
        f"Measured {run['date']} on {os.cpu_count()} cores of {processor()}, load {run['load']} "
        f"before it began. All {learners} learners came at the same moment; memory was read "
        "while each learner had lesson and worksheet open. The first warm kernel waits until "
        "the warm process "
        "has imported everything.\n", *both_ways(cold, warm)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=10, help="so many, both ways")
    learners = parser.parse_args().learners
    local.set_up()
    local.free_ports(PORT)
    run = machine.describe()
    found = []
    for warm in (False, True):
        found.append(class_of(learners, warm))
        print(json.dumps(found[-1]), flush=True)
    TARGET.write_text(page(*found, run), "utf-8")
    print(f"written: {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
