"""Fixtures for all tests, which never touch a learner's progress."""

import linecache
import os
import pickle
import signal

import pytest
from once import once, shared_folder

os.environ.setdefault("DLSYS_PROGRESS", "off")
# Tests send Ctrl-C to what they start, but a shell's background job and its children ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_edits(clear=linecache.clearcache):
    """Clear linecache as torch's compiler does, but keep sources that have no file to reread."""
    edits = {name: lines for name, lines in linecache.cache.items() if name.startswith("<")}
    clear()
    linecache.cache.update(edits)


linecache.clearcache = keep_edits


@pytest.fixture(scope="module")
def browser():
    """A browser for each file: its event loop must not keep running during other files' tests."""
    from browser import open_browser

    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def frames_made_once(tmp_path_factory):
    """One worker computes the frames of a page, which train networks, for all tests.

    If the record of an explorer is fresh, its page has only the frames that tests look at, and
    tests compare a drawing with the numbers that the page was made from.
    """
    from explorer_oracle import COMPUTED, computed_for

    from dlsys_helpers.explorers import Explorer, names
    from tools import frames
    from tools.nightly import trusted

    folder, make = shared_folder(tmp_path_factory), Explorer.frames.func

    def write(path, explorer):
        path.write_bytes(pickle.dumps(
            computed_for(explorer) if trusted(frames.fresh(explorer.name))
            else (make(explorer), {})))

    def once_made(explorer):
        if explorer.name not in names():
            return make(explorer)
        stored = once(folder / f"{explorer.name}.frames", lambda path: write(path, explorer))
        packed, COMPUTED[explorer.name] = pickle.loads(stored.read_bytes())
        return packed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Explorer, "frames", property(once_made))
        yield


@pytest.fixture(scope="session")
def html(tmp_path_factory, frames_made_once):
    """The folder of a book built once for the tests, apart from the reader's own copy."""
    from tools import book

    out = once(shared_folder(tmp_path_factory) / "book", book.build)
    return out / "_build" / "html"
