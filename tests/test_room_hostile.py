"""A room with hostile clients: none can read counts early, close a round, or stop the room."""

import http.client
import json
import socket
import time

import pytest
from rooms import Learner, running, send, shown
from tornado.web import create_signed_value

from dlsys.room import rate_limit, server

RIGHT, POPULAR = "more than `4`", "about `0.36`"


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    with running(tmp_path_factory.mktemp("room")) as opened:
        assert opened.step("ask") == 200
        yield opened
        assert opened.process.poll() is None, "the server lives"


@pytest.fixture(scope="module")
def learner(room):
    return Learner(room)


@pytest.mark.parametrize("cookie", ["", "dlsys-room=", "dlsys-room=0123456789abcdef",
                                    "dlsys-room=2|1:0|10:1790000000|10:dlsys-room|4:YWJj|"
                                    + 64 * "0", "dlsys-room=" + 4000 * "x"])
def test_a_forged_cookie_opens_nothing(room, cookie):
    for path in ("answer", "verdict", "hint", "name"):
        assert send(room.port, path, {}, cookie)[0] == 401
    for path in ("events", "me", "keep/08.1"):
        assert send(room.port, path, {}, cookie, method="GET")[0] == 401


def test_the_cookie_of_another_room_opens_nothing(room):
    signed = create_signed_value("another room's secret", server.COOKIE, "0123456789abcdef")
    assert send(room.port, "me", {}, f"{server.COOKIE}={signed.decode()}", method="GET")[0] == 401


@pytest.mark.parametrize("key", ["", "x", "None", "é", 10_000 * "x"])
def test_without_the_secret_nobody_goes_on_or_looks(room, learner, key):
    for name in ("ask", "close", "show", "again", "reveal", "exercise", "rest"):
        assert send(room.port, "step", {"step": name}, learner.cookie, key.encode("utf-8").decode(
            "latin-1"))[0] in (400, 403)
    assert send(room.port, "watch?notes=1", {}, learner.cookie, key.encode("utf-8").decode(
        "latin-1"), method="GET")[0] in (400, 403)
    assert shown(room.port, "watch", key=room.secret)["phase"] == "open"


def test_no_count_is_told_before_it_is_shown_and_no_answer_before_it_is_revealed(tmp_path):
    with running(tmp_path) as fresh:
        a, b = Learner(fresh), Learner(fresh)

        def seen():
            return shown(fresh.port, "events", cookie=b.cookie)["room"]

        def wall():
            return shown(fresh.port, "watch", key=fresh.secret)

        assert fresh.step("ask") == 200
        assert a.answer("08.1", RIGHT) == 200
        for _ in range(2):  # open, then closed
            assert not {"results", "answered", "here", "notes"} & seen().keys()
            assert not {"results", "notes"} & wall().keys()
            assert send(fresh.port, "keep/08.1", {}, b.cookie, method="GET")[0] == 404
            fresh.step("close")
        assert fresh.step("show") == 200
        assert seen()["results"]["counts"] == [1]
        assert not {"measured", "right"} & seen()["results"].keys()
        assert a.answer("08.1", POPULAR, go=1) == 409
        assert fresh.step("again") == 200
        assert "results" not in seen()
        assert a.answer("08.1", POPULAR, go=1) == 409
        assert a.answer("08.1", POPULAR, go=2) == 200
        assert fresh.step("close") == fresh.step("reveal") == 200
        assert seen()["results"]["measured"] == "“more than `4`”"
        assert seen()["results"]["flow"]["counts"] == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]


def test_codes_are_tried_so_often_and_no_more(tmp_path):
    """A room that has heard more than 35 wrong codes limits each address to 30 a minute."""
    few = "from dlsys.room import server; server.WRONG_CODES = 35"
    with running(tmp_path, first=few) as fresh:
        tried = [send(fresh.port, "join", {"code": f"{k:06d}"})[0] for k in range(40)]
        assert tried == 36 * [403] + 4 * [429]
        assert send(fresh.port, "join", {"code": fresh.code})[0] == 429


def test_wrong_codes_from_an_address_lock_nobody_out_behind_it(room):
    assert {send(room.port, "join", {"code": "AAAAAA"})[0] for _ in range(60)} == {403}
    assert send(room.port, "join", {"code": room.code})[0] == 200


def test_one_address_joins_so_often_and_no_more(tmp_path):
    with running(tmp_path, first="from dlsys.room import server; server.STREAMS = 50") as fresh:
        honest = Learner(fresh)
        link = http.client.HTTPConnection("127.0.0.1", fresh.port, timeout=20)
        body, joined = json.dumps({"code": fresh.code}), 0
        for _ in range(70):
            link.request("POST", "/join", body, {"Content-Type": "application/json"})
            answer = link.getresponse()
            answer.read()
            joined += answer.status == 200
        link.close()
        assert joined == 49
        assert fresh.step("ask") == 200
        assert honest.answer("08.1", RIGHT) == 200


def raw(port, data, patience=20):
    """The server's reply to malformed bytes; b"" if it hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as link:
        try:
            link.sendall(data)
            return link.recv(4096)
        except ConnectionError:
            return b""


@pytest.mark.parametrize("head", [
    b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n",
    b"POST /answer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + 20_000 * b"x" + b"\r\n\r\n",
    b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 9\r\n\r\n{}",
    b"\x16\x03\x01 this is TLS\r\n\r\n"])
def test_too_long_and_malformed_requests_are_cut_off(room, head):
    told = raw(room.port, head + 200_000 * b"x")
    assert b" 200 " not in told
    assert send(room.port, "", {}, method="GET")[0] == 200


def test_slow_senders_keep_nobody_waiting(room, learner):
    slow = [socket.create_connection(("127.0.0.1", room.port)) for _ in range(100)]
    for link in slow:
        link.sendall(b"POST /join HTTP/1.1\r\nHost: x\r\nContent-Le")
    assert learner.answer("08.1", RIGHT) == 200
    for link in slow:
        link.close()


@pytest.mark.parametrize("data", ["[]", "null", '"x"', "{", "", 500 * "[", '{"trap": 3}',
                                  '{"trap": "08.1", "guess": {}}', '{"trap": "08.1", "guess": NaN}',
                                  '{"trap": "08.1", "guess": 1, "go": []}',
                                  '{"trap": "../..", "guess": 1}', '{"number": 1e999}'])
def test_what_is_no_message_is_refused(room, learner, data):
    for path in ("answer", "verdict", "hint"):
        link = http.client.HTTPConnection("127.0.0.1", room.port, timeout=20)
        link.request("POST", f"/{path}", data, {"Content-Type": "application/json",
                                                "Cookie": learner.cookie})
        assert link.getresponse().status in (400, 409)
        link.close()
        learner = Learner(room)  # each has a limit per minute


def test_a_form_of_another_site_is_refused(room, learner):
    assert send(room.port, "answer", {}, learner.cookie, **{"Content-Type": "text/plain"})[0] == 415


def test_who_answers_too_often_is_refused(room):
    many = Learner(room)
    sent = [many.answer("08.1", RIGHT) for _ in range(125)]
    assert sent == 120 * [200] + 5 * [429]


def test_a_script_in_a_text_never_reaches_the_wall(room):
    bad = Learner(room)
    text = "<script>alert(1)</script>"
    assert bad.verdict("08.1", "wrong", text) == 200
    assert bad.answer("08.1", text) == 409
    assert text not in json.dumps(shown(room.port, "watch", key=room.secret))


def test_files_of_the_machine_are_not_served(room):
    for path in ("static/../server.py", "static/%2e%2e/server.py", "static/report.html",
                 "../room.sqlite", "static//etc/passwd", "keep/../../x"):
        assert send(room.port, path, {}, method="GET")[0] in (400, 401, 403, 404)


def test_pages_let_no_other_host_in(room):
    link = http.client.HTTPConnection("127.0.0.1", room.port, timeout=20)
    for path in ("/", "/present"):
        link.request("GET", path)
        answer = link.getresponse()
        text = answer.read().decode()
        assert "default-src 'none'" in answer.getheader("Content-Security-Policy")
        assert "unsafe" not in answer.getheader("Content-Security-Policy")
        assert "http" not in text.replace("http-equiv", "")
    link.close()


def test_a_limit_forgets_old_tries_and_has_a_bounded_memory(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limit = rate_limit.Limit(2, 10)
    for _ in range(2):
        assert not limit.spent("a")
        limit.count("a")
    assert limit.spent("a")
    now[0] = 11.0
    assert not limit.spent("a")
    monkeypatch.setattr(rate_limit, "KEYS", 100)
    for k in range(1000):
        now[0] += 1
        limit.count(str(k))
    assert len(limit.seen) <= 101


def test_a_limit_looks_at_few_keys_a_time_however_many_live(monkeypatch):
    class Looked(rate_limit.OrderedDict):
        looks = 0

        def __iter__(self):
            for key in super().__iter__():
                self.looks += 1
                yield key

        def items(self):
            self.looks += len(self)
            return super().items()

    monkeypatch.setattr(rate_limit, "KEYS", 1000)
    limit = rate_limit.Limit(2, 3600)
    limit.seen = seen = Looked()
    for k in range(1500):  # all of them live
        limit.count(str(k))
    assert limit.seen is seen
    assert seen.looks < 2 * 1500
    assert len(seen) == 1000
    assert "1499" in seen
