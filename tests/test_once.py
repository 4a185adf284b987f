"""One worker makes what all of them share, however many ask at once."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from once import once


def test_many_that_ask_at_once_get_what_one_of_them_made(tmp_path):
    made = []

    def make(path):
        made.append(path)
        path.write_text("ha")
        time.sleep(0.2)  # the others ask meanwhile
        path.write_text("whole")

    with ThreadPoolExecutor(4) as workers:  # a lock on a file also holds between threads
        got = [workers.submit(once, tmp_path / "dear", make) for _ in range(4)]
        assert [one.result().read_text() for one in got] == ["whole"] * 4
    assert len(made) == 1


def test_what_failed_on_the_way_is_made_again(tmp_path):
    def stop_halfway(path):
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        once(tmp_path / "dear", stop_halfway)
    once(tmp_path / "dear", lambda path: path.write_text("whole"))
    assert (tmp_path / "dear").read_text() == "whole"
