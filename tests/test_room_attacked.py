"""More hostile clients of a room: many pages, silence, odd characters, a proxy's headers."""

import http.client
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from contextlib import ExitStack

import pytest
from browser import offline_page
from playwright.sync_api import expect
from rooms import Learner, Running, running, send, shown, wait

from dlsys import cli
from dlsys.room import open_room, questions, results, server
from dlsys_helpers import paths, room_client
from dlsys_helpers.stages import stage

RIGHT = "more than `4`"
GUESSED = "from dlsys.room import server; server.WRONG_CODES = 0"  # limits who tries a code


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with running(tmp_path_factory.mktemp("room")) as one:
        assert one.step("ask") == 200
        yield one


def test_behind_a_proxy_the_limit_goes_by_what_the_proxy_wrote(tmp_path):
    """A client that sends X-Real-Ip or a longer X-Forwarded-For itself gets no more tries."""
    with running(tmp_path, "--prefix", "/services/room/", first=GUESSED) as hub:
        def tries(last):
            return [send(hub.port, "services/room/join", {"code": "AAAAAA"}, **{
                "X-Real-Ip": f"10.0.0.{k}", "X-Forwarded-For": f"10.0.1.{k}, {last}"})[0]
                for k in range(35)]
        assert tries("192.0.2.1") == 30 * [403] + 5 * [429]
        assert tries("192.0.2.2")[0] == 403, "another address has tries of its own"


def test_without_a_proxy_no_header_says_who_asks_and_half_a_letter_is_a_wrong_code(tmp_path):
    with running(tmp_path, first=GUESSED) as fresh:
        tried = [send(fresh.port, "join", {"code": "\ud800"}, **{
            "X-Forwarded-For": f"10.0.0.{k}"})[0] for k in range(31)]
    assert tried == 30 * [403] + [429]


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "HEAD"])
def test_no_other_site_is_let_in_by_another_method(opened, method):
    for path in ("join", "answer", "step", "watch", "events"):
        link = http.client.HTTPConnection("127.0.0.1", opened.port, timeout=20)
        link.request(method, f"/{path}", headers={"Origin": "http://x.example"})
        answer = link.getresponse()
        assert answer.status in (401, 403, 405)
        assert answer.getheader("Access-Control-Allow-Origin") is None
        link.close()


def test_two_lengths_of_one_body_and_compressed_bodies_are_refused(opened):
    heads = (b"Transfer-Encoding: chunked\r\nContent-Length: 4", b"Transfer-Encoding: gzip",
             b"Content-Length: +5", b"Content-Length: 5\r\nContent-Encoding: gzip")
    for head in heads:
        with socket.create_connection(("127.0.0.1", opened.port), timeout=20) as link:
            link.sendall(b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                         + head + b"\r\n\r\n0\r\n\r\nGET /me HTTP/1.1\r\n\r\n")
            assert link.recv(100).startswith(b"HTTP/1.1 400")


def test_who_asks_a_thousand_times_and_never_reads_keeps_nobody_waiting(opened):
    learner = Learner(opened)
    deaf = [socket.create_connection(("127.0.0.1", opened.port)) for _ in range(20)]
    for link in deaf:
        link.setblocking(False)
        link.send(1000 * b"GET /static/present.js HTTP/1.1\r\nHost: x\r\n\r\n")
    assert learner.answer("08.1", RIGHT) == 200
    for link in deaf:
        link.close()


def test_one_address_does_not_take_all_pages(tmp_path):
    """With room for four pages, the address with the most pages gives one up for another."""
    fewer = "from dlsys.room import server; server.STREAMS = 4"
    with running(tmp_path, "--prefix", "/r/", first=fewer) as room:
        cookie = send(room.port, "r/join", {"code": room.code})[2]

        def page(ip):
            link = opened.enter_context(
                socket.create_connection(("127.0.0.1", room.port), timeout=20))
            link.sendall(f"GET /r/events HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n"
                         f"X-Forwarded-For: {ip}\r\n\r\n".encode())
            return link, int(link.recv(100).split()[1])

        with ExitStack() as opened:
            pages = [page(ip) for ip in [*5 * ["192.0.2.1"], *2 * ["192.0.2.2"]]]
            assert [status for _, status in pages] == [*4 * [200], 503, 200, 200]
            for oldest in (0, 1):
                assert ends(pages[oldest][0])
        with ExitStack() as opened:
            wait(lambda: page("192.0.2.1")[1] == 200)


def ends(link):
    """Whether a room hangs up."""
    try:
        while link.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


FEW = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))"


def joined_from(room, address):
    """The page of a participant who joins from another address of this machine in 127.x."""
    def asked(head, body=""):
        link = socket.create_connection(("127.0.0.1", room.port), timeout=20,
                                        source_address=(address, 0))
        link.sendall(f"{head} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        return link, link.recv(4096).decode()

    link, told = asked("POST /join", json.dumps({"code": room.code}))
    link.close()
    cookie = re.search(r"Set-Cookie: ([^;]*)", told)[1]
    page, told = asked(f"GET /events HTTP/1.1\r\nCookie: {cookie}\r\nX: x")
    assert told.startswith("HTTP/1.1 200")
    return page, cookie


@pytest.mark.skipif(sys.platform != "linux", reason="other addresses of this machine, a limit")
def test_two_hostile_addresses_with_silent_connections_do_not_close_the_room(tmp_path):
    """With a limit of 200 files, which the two use up; they reconnect after a hang-up."""
    with running(tmp_path, first=FEW, stderr=subprocess.PIPE) as room, ExitStack() as opened:
        for round_ in range(2):
            for address in ("127.0.0.2", "127.0.0.3"):
                for _ in range(100):
                    opened.enter_context(socket.create_connection(
                        ("127.0.0.1", room.port), source_address=(address, 0)))
            page, cookie = joined_from(room, "127.0.0.4")
            opened.enter_context(page)
            if not round_:
                assert room.step("ask") == 200
            assert send(room.port, "answer", {"trap": "08.1", "go": 1, "guess": RIGHT,
                                              "sure": True}, cookie)[0] == 200
        assert shown(room.port, "watch", key=room.secret)["answered"] == 2
        room.kill()
        with room.process.stderr as said:
            assert "Too many open files" not in said.read()


@pytest.mark.skipif(sys.platform != "linux", reason="other addresses of this machine, a limit")
def test_a_lecture_behind_one_router_comes_in(tmp_path):
    """With a limit of 200 files, 110 pages of one address take more than half of them."""
    with running(tmp_path, first=FEW) as room, ExitStack() as opened:
        for _ in range(110):
            opened.enter_context(joined_from(room, "127.0.0.4")[0])
        assert shown(room.port, "watch", key=room.secret)["here"] == 110


@pytest.mark.skipif(sys.platform != "linux", reason="other addresses of this machine, a limit")
def test_silent_connections_of_one_address_leave_files_for_others(tmp_path):
    with running(tmp_path, first=FEW, stderr=subprocess.PIPE) as room:
        silent = [socket.create_connection(("127.0.0.1", room.port)) for _ in range(250)]
        joined_from(room, "127.0.0.2")[0].close()
        for link in silent:
            link.close()
        wait(lambda: _joins(room.port, room.code))
    with room.process.stderr as said:
        assert "Too many open files" not in said.read()


def _joins(port, code):
    try:
        return send(port, "join", {"code": code})[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


@pytest.mark.skipif(os.name == "nt", reason="a limit of POSIX")
def test_on_a_full_disk_nothing_is_acknowledged_and_the_report_is_written(tmp_path):
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))"
    with running(tmp_path, first=full) as room:
        assert room.step("ask") == 200
        learner, kept = Learner(room), 0
        while learner.answer("08.1", RIGHT, go=1) == 200:
            kept += 1
            assert kept < 100
        assert kept
        assert send(room.port, "me", {}, learner.cookie, method="GET")[0] == 200
        out = room.stop()
    assert room.process.returncode == 0
    assert "can no longer be written" in out
    assert next(tmp_path.glob("rooms/*/report.csv")).read_text().count("\n") == 2


def test_two_numbers_that_differ_in_the_last_digit_hang_no_page(browser, tmp_path):
    with running(tmp_path) as fresh:
        assert fresh.step("ask", trap="08.2") == 200
        for guess in (1e15, 1e15 - 0.125):
            assert Learner(fresh).answer("08.2", guess) == 200
        page = offline_page(browser)
        page.goto(f"{fresh.url}present#{fresh.secret}")
        expect(page.locator("footer button").first).to_contain_text("Close")
        assert fresh.step("close") == fresh.step("show") == 200
        expect(page.locator(".tickname").first).to_be_visible()
        page.close()


@pytest.mark.parametrize("numbers", [[1e15, 1e15 - 0.125], [5e-324], [-1e-320, -2e-320],
                                     [0.1 + 0.2, 0.3]])
def test_an_axis_has_room_for_its_ticks(numbers):
    low, high = results.span(numbers, (), "s")
    step = (high - low) / 10
    assert low < low + step < high
    assert low <= min(numbers) <= max(numbers) <= high


def test_a_second_room_of_a_stage_is_a_room_of_its_own(tmp_path):
    """Two groups run at once on one machine; the first folder gets no second server."""
    first = Running(tmp_path)
    try:
        with running(tmp_path) as second:
            assert second.code != first.code
            assert len(list(tmp_path.glob("rooms/*"))) == 2
        folder = next(f for f in tmp_path.glob("rooms/*") if _code(f) is None)
        words = ["room", "8", "--port", "0", "--out", str(folder)]
        done = subprocess.run([sys.executable, "-m", "dlsys.cli", *words], capture_output=True,
                              text=True, check=False)
        assert done.returncode == cli.BAD_INPUT
        assert "this room is already open" in done.stderr
    finally:
        first.kill()


def test_rooms_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path)
    monkeypatch.setattr(open_room.time, "strftime", lambda _: "2026-01-02_030405")
    assert [open_room.room_folder([8]).name for _ in range(3)] == [
        "08_2026-01-02_030405", "08_2026-01-02_030405_2", "08_2026-01-02_030405_3"]


def test_no_place_for_a_room_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "file")
    (tmp_path / "file").write_text("")
    with pytest.raises(questions.RoomError, match=r"cannot be created .*--out FOLDER"):
        open_room.room_folder([8])


def _code(folder):
    """The code in a room's log; None while its server runs."""
    base = sqlite3.connect(folder / "room.sqlite", timeout=0)
    try:
        return json.loads(base.execute("SELECT event FROM events").fetchone()[0])["code"]
    except sqlite3.OperationalError:
        return None
    finally:
        base.close()


def test_a_name_of_a_mistake_holds_no_long_number():
    item = questions.of_stage(stage(4))[4]
    assert item.ask("stopping at more than 4 times the previous loss")
    for number in (60 * "7", "٣", "1." + 40 * "0"):
        assert item.ask(f"an end at more than {number} times the previous loss") is None


def test_what_a_room_says_of_itself_is_harmless_on_a_terminal(tmp_path, monkeypatch, capsys):
    import http.server
    import threading

    class Hostile(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("Set-Cookie", "dlsys-room=x; Path=/")
            self.end_headers()
            self.wfile.write(json.dumps({"title": "\x1b]0;owned\x07\n\u202eevil"}).encode())

        def log_message(self, *_):
            pass

    monkeypatch.setattr(paths, "MY_WORK", tmp_path)
    with http.server.HTTPServer(("127.0.0.1", 0), Hostile) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        assert cli.main(["join", f"127.0.0.1:{other.server_port}", "ABCDEF"]) == 0
        other.shutdown()
    out = capsys.readouterr().out
    assert "evil" in out
    assert not re.search("[\x1b\x07\u202e]", out)
    room_client.leave()


def test_what_a_pages_own_text_shows_is_the_questions_alone(opened):
    """The situation and the code come with a question; the measured result does not."""
    seen = shown(opened.port, "events", cookie=Learner(opened).cookie)["room"]
    assert "the roll of a fair" in " ".join(seen["situation"].split())
    assert "open_lm" in seen["code"]
    assert "measured" not in json.dumps(seen).lower()
    assert server.as_html(questions.of_stage(stage(8))[0].keep) not in json.dumps(seen)
