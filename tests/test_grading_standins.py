"""An answer that reaches a stand-in earns nothing: by import, memory, frames, disk or a process.

Each route is the code of one part. It looks for the part's stand-in and calls it. The tests hand in
all routes of a phase as one file: `checked` has those that try to pass the check, `tried` those
that pass it honestly and then try to run the stand-in in the small model.
"""

from __future__ import annotations

import dataclasses
import re

import pytest
from grading_samples import entry, open_grader

from dlsys import model_rows, my_parts
from dlsys.grading import in_model, model_laws
from dlsys.grading.books import pages
from dlsys.grading.settings import Limits, Settings
from dlsys.grading.walls.sandbox import pack_act
from dlsys_helpers import paths
from dlsys_helpers.acting import Case
from dlsys_model import answers, standins
from dlsys_model.part_table import BY_ID, CATALOGUE

ROWS = {model_rows.part(trap.id).id: trap.id for trap in model_rows.traps()}
HONEST = "12.9"  # a part without any tampering

# Runs in the first cell, before the pieces.
COMMON = r'''
import builtins, gc, importlib, inspect, io, linecache, os, pickle, socket, struct, sys
import threading, time, types

WATCHED, STASH = [], "\0stash"


class Finder:
    def find_spec(self, name, path=None, target=None):
        if "dlsys_model" in name:
            WATCHED.append(name)


sys.meta_path.insert(0, Finder())
_import = builtins.__import__
def spy(name, *rest, **named):
    module = _import(name, *rest, **named)
    if "dlsys_model" in name:
        WATCHED.append(module)
    return module
builtins.__import__ = spy

def wait_for_it():
    while True:
        WATCHED.extend(m for n, m in list(sys.modules.items()) if n == "dlsys_model.standins")
        time.sleep(0.01)
threading.Thread(target=wait_for_it, daemon=True).start()

for name in ("sitecustomize", "usercustomize"):
    with open(f"{name}.py", "w") as file:
        file.write("import dlsys_model.standins as kept\n")

def serve_stash():
    """A process of its own that outlives its parent and keeps what it finds on the disk."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    listener, found = socket.socket(socket.AF_UNIX), b""
    try:
        listener.bind(STASH)
    except OSError:
        os._exit(0)
    listener.listen()
    listener.settimeout(0.05)
    while True:
        for folder in (".", "/sandbox"):
            try:
                found = found or open(f"{folder}/dlsys_model/standins.py", "rb").read()
            except OSError:
                pass
        try:
            line = listener.accept()[0]
            line.sendall(found)
            line.close()
        except OSError:
            pass

def from_source(text, name):
    space = {}
    exec(text, space)
    return space[name]

def mine(fn):
    return getattr(fn, "__module__", "") in ("__main__", None)

def by_import(name):
    from dlsys_model import standins
    return getattr(standins, name)

def by_importlib(name):
    return getattr(importlib.import_module("dlsys" + "_model.stand" + "ins"), name)

def by_sys_modules(name):
    return next(vars(m)[name] for m in list(sys.modules.values())
                if name in getattr(m, "__dict__", {}) and not mine(vars(m)[name]))

def by_gc(name):
    return next(o for o in gc.get_objects() if type(o) is types.FunctionType
                and o.__name__ == name and not mine(o))

def by_gc_source(name):
    texts = (v for o in gc.get_objects() if type(o) is dict for v in list(o.values())
             if type(v) is str and f"def {name}(" in v and "standin" not in v[:40])
    return next(f for f in (from_source(t, name) for t in texts) if f.__doc__ is None)

def by_frames(name):
    frame = sys._getframe(1)
    while frame:
        for found in (frame.f_locals, frame.f_globals):
            for value in list(found.values()):
                if isinstance(value, dict) and "standins.py" in value:
                    return from_source(value["standins.py"], name)
                if isinstance(value, types.ModuleType) and name in vars(value):
                    if not mine(vars(value)[name]):
                        return vars(value)[name]
        frame = frame.f_back
    raise LookupError(name)

def by_stack(name):
    for info in inspect.stack():
        this = info.frame.f_locals.get("self")
        for act in getattr(this, "acts", ()):
            for case in act["cases"]:
                if "files" in case:
                    return from_source(case["files"]["standins.py"], name)
    raise LookupError(name)

def by_pickle(name):
    return pickle.loads(b"cdlsys_model.standins\n" + name.encode() + b"\n.")

def by_torch_load(name):
    import torch
    class Taken:
        def __reduce__(self):
            return importlib.import_module, ("dlsys_model.standins",)
    file = io.BytesIO()
    torch.save(Taken(), file)
    file.seek(0)
    return getattr(torch.load(file, weights_only=False), name)

def by_subclasses(name):
    todo = [object]
    while todo:
        one = todo.pop()
        if str(one.__module__).startswith("dlsys_model"):
            space = sys.modules[one.__module__].__dict__
            if name in space:
                return space[name]
            return getattr(space["standins"], name)
        todo += type.__subclasses__(one)
    raise LookupError(name)

LARGE = ("torch", "nvidia", "jax", "sympy", "scipy", "sklearn", "transformers", "x86_64-linux-gnu")

def by_disk(name):
    for top in ("/sandbox", "/opt", "/root", "/home", "/work", "/tmp", "/proc/1/root/sandbox",
                sys.prefix):
        for folder, folders, files in os.walk(top):
            folders[:] = [one for one in folders if one not in LARGE]
            for file in files:
                if file.startswith(("standins", "answers")) or "dlsys_model" in folder:
                    text = open(f"{folder}/{file}", errors="replace").read()
                    if f"def {name}(" in text:
                        return from_source(text, name)
    raise LookupError(name)

def by_sitecustomize(name):
    sys.path.insert(0, "/sandbox")
    import sitecustomize, usercustomize
    return getattr(sitecustomize.kept, name)

def by_import_hook(name):
    for found in WATCHED:
        if isinstance(found, types.ModuleType):
            for module in (found, getattr(found, "standins", None)):
                if module is not None and not mine(getattr(module, name, mine)):
                    return getattr(module, name)
    raise LookupError(name)

def by_linecache(name):
    for _, _, lines, file in (e for e in linecache.cache.values() if len(e) == 4):
        if "<cell" not in file and f"def {name}(" in "".join(lines):
            return from_source("".join(lines), name)
    raise LookupError(name)

def by_process(name):
    line = socket.socket(socket.AF_UNIX)
    line.connect(STASH)
    text = b"".join(iter(lambda: line.recv(65536), b""))
    return from_source(text, name)

def by_fresh_model(name):
    from dlsys_model.parts import Parts
    return getattr(Parts(), name)
'''
# `make test` runs the first file, the nightly run all of them.
IDS = ("08.10", "10.6", "04.9", "03.1", "05.5", "10.2", "01.5", "11.2", "11.4", "02.3", "06.4",
       "11.5", "10.1", "07.10", "03.2", "01.4")
# Every route has its own part, whose stand-in passes its check.
CHECKED = dict(zip((
    "import", "importlib", "sys_modules", "gc", "gc_source", "frames", "stack", "pickle",
    "torch_load", "subclasses", "disk", "sitecustomize", "import_hook", "linecache", "process",
    "fresh_model"), IDS, strict=False))
# Routes that could reach a stand-in in the small model, which runs next to the package.
TRIED = dict(zip(("import", "importlib", "gc", "frames", "stack", "pickle", "disk", "import_hook",
                  "process", "fresh_model", "forged_run"), IDS, strict=False))
FORGED = """
def forged_run(id, fn, seed):
    from dlsys_model.parts import Parts
    from dlsys_model import rehearsal
    return rehearsal._numbers(id, Parts(), seed)

def forge():
    while True:
        module = sys.modules.get("dlsys_model.rehearsal")
        if module and hasattr(module, "held"):
            module.held = forged_run
        time.sleep(0.001)
threading.Thread(target=forge, daemon=True).start()
"""


def handed_in(pieces: dict[str, str], head: str) -> str:
    """A my_parts.py: the worked answer of HONEST, and these pieces by exercise."""
    sheet = answers.chosen(paths.SOLUTIONS, [HONEST, *pieces], [])
    upper, notes = my_parts.generated_half(sheet)
    assert not notes
    before, first, rest = upper.partition("# ---- ")
    text = f"{before}\n{COMMON}\n{head}\n{first}{rest}"
    for id, code in pieces.items():
        start = text.index(f"# ---- {id} ")
        after = re.compile(r"^# (---- |====)", re.M).search(text, start + 1)
        end = after.start() if after else len(text)
        text = text[:start] + code.replace("HONEST", text[start:end]) + text[end:]
    return f"{text}{my_parts.MARK}\n"


def taken(id: str, route: str) -> str:
    """A part that always calls its stand-in."""
    name = BY_ID[id].function
    return (f"# ---- {id} {name}: taken\ndef {name}(*args, **named):\n"
            f"    return by_{route}({name!r})(*args, **named)\n\n")


def two_faced(id: str, route: str) -> str:
    """A part that answers honestly, but calls its stand-in if the package is loaded."""
    name = BY_ID[id].function
    reach = "own" if route == "forged_run" else f"by_{route}({name!r})"
    return (f"HONEST\nhonest_{name} = {name}\ndef {name}(*args, **named):\n"
            "    if not any(n.startswith('dlsys_model') for n in list(sys.modules)):\n"
            f"        return honest_{name}(*args, **named)\n"
            f"    return {reach}(*args, **named)\n\n")


@pytest.fixture(scope="module")
def grader():
    with open_grader(Settings("00" * 16, Limits(seconds=15))) as made, pytest.MonkeyPatch.context(
            ) as patch:
        patch.setattr(in_model, "_claims", lambda *_: [])
        yield made


@pytest.fixture(scope="module")
def checked(grader):
    pieces = {id: taken(id, route) for route, id in CHECKED.items()}
    return grader.grade(handed_in(pieces, "serve_stash()").encode(), is_parts=True)


@pytest.fixture(scope="module")
def tried(grader):
    pieces = {id: two_faced(id, route) for route, id in TRIED.items()}
    return grader.grade(handed_in(pieces, f"serve_stash()\n{FORGED}").encode(), is_parts=True)


@pytest.mark.parametrize("route", CHECKED)
def test_no_route_leads_a_check_to_a_stand_in(checked, route):
    mine = entry(checked, ROWS[CHECKED[route]])
    assert mine["status"] in ("error", "wrong")
    assert mine["points"] == 0


@pytest.mark.nightly
@pytest.mark.parametrize("route", TRIED)
def test_no_route_leads_the_model_to_the_stand_in_of_the_part_on_trial(tried, route):
    mine = entry(tried, ROWS[TRIED[route]])
    assert (mine["status"], mine["points"]) == ("wrong", 0), mine["message"]
    assert mine["message"].startswith("passes its check, but in the model ")


def test_an_honest_part_next_to_them_earns_its_point(checked):
    assert (entry(checked, ROWS[HONEST])["points"], checked["points"]) == (1, 1)


@pytest.mark.nightly
def test_and_so_it_does_where_others_cheat_in_the_model(tried):
    assert (entry(tried, ROWS[HONEST])["points"], tried["points"]) == (1, 1)


def test_what_can_be_forged_is_said_where_the_points_are(checked):
    assert in_model.FORGEABLE in checked["notes"]


def test_a_sandbox_of_many_trials_may_fork_to_the_end(grader):
    """A runner that has ended still counts as a process until somebody waits for it."""
    cells, act = [(1, "def f():\n    return 1")], pack_act("x", "f", "", [Case("", {})])
    with grader.judge.zygote.sandbox() as sandbox:
        for _ in range(grader.settings.limits.processes + 8):
            assert sandbox.attempt(cells, [act]).fault == ""
        last = sandbox.attempt(cells, [act], careful=True, checkpoints=True)
    assert (last.fault, last.cells_done, last.cells, len(last.answers)) == ("", True, [], 1)
    assert sandbox.used["cpu_seconds"] > 0
    assert sandbox.used["peak_bytes"] > 2**20


# ---- what goes into a trial

@pytest.mark.parametrize("part", CATALOGUE, ids=lambda part: part.id)
def test_a_trial_gets_every_stand_in_but_the_own_one(part):
    files = model_laws.trial_files(part.function)
    space = {}
    exec(files["standins.py"], space)
    public = {one.function for one in CATALOGUE}
    assert public - space.keys() == {part.function}
    assert f"def {part.function}(" not in "".join(files.values())


def test_helpers_of_a_stand_in_go_with_it():
    assert "_rates" in model_laws.trial_files("lion_step")["standins.py"]
    assert "_rates" not in model_laws.trial_files("warmup_cosine")["standins.py"]
    assert hasattr(standins, "_rates")


def test_a_trial_gets_no_other_code_that_does_what_a_part_does():
    files = model_laws.trial_files("quantise")
    assert "def grid" not in files["pack.py"]
    assert not {"program.py", "faults.py", "gallery.py", "page.py"} & files.keys()


# ---- what a part does in its trial, after an honest check

SEND = """
def send(*values):
    from dlsys.grading.walls import framing, runner, serialization
    line = next(o for o in gc.get_objects() if type(o) is runner.Runner).line
    for value in values:
        data = value if type(value) is bytes else serialization.pack(value)
        line.sendall(framing.frame(0, data))
    os._exit(0)

def answer(value):  # as the outcome of both cases
    from dlsys.grading.walls import serialization
    send(2 * serialization.pack({"kind": "value", "value": value, "error_type": "", "error": "",
                                 "where": "", "mutated": []}))
"""
TEXT = "\\x1b[31m<script>alert(1)</script>\\u202e"
IN_TRIAL = {
    "08.10": "send(bytes([255]) * 9)", "10.6": "send({'fault': ['x']})", "04.9": "send(5)",
    "03.1": f'answer("{TEXT}" * 50)', "11.4": "bytearray(3 << 30)",
    "05.5": "answer({'the_losses': float('nan')})", "10.2": "os._exit(0)",
    "01.5": "os.kill(os.getpid(), 9)", "11.2": "time.sleep(99)",
    "02.3": "send(*[bytes(2**20)] * 80)",
    "10.1": "send({'missing': 'x'})", "01.4": "raise ValueError('7' * 9999)"}


@pytest.fixture(scope="module")
def hostile(grader):
    def piece(id: str, code: str) -> str:
        name = BY_ID[id].function
        return (f"HONEST\nhonest_{name} = {name}\ndef {name}(*args, **named):\n"
                "    if any(n.startswith('dlsys_model') for n in list(sys.modules)):\n"
                f"        {code}\n    return honest_{name}(*args, **named)\n\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grader.judge.zygote, "limits", dataclasses.replace(
            grader.settings.limits, seconds=5))
        text = handed_in({id: piece(id, code) for id, code in IN_TRIAL.items()}, SEND)
        return grader.grade(text.encode(), is_parts=True)


@pytest.mark.nightly
@pytest.mark.parametrize("id", IN_TRIAL)
def test_what_a_trial_sends_is_data_and_costs_its_own_part_alone(hostile, id):
    assert hostile["status"] == "graded"
    mine = entry(hostile, ROWS[id])
    assert (mine["status"], mine["points"]) == ("wrong", 0), mine["message"]
    assert mine["message"].startswith("passes its check, but in the model ")
    assert mine["message"].isprintable()
    assert len(mine["message"]) < 300
    assert entry(hostile, ROWS[HONEST])["points"] == 1


@pytest.mark.nightly
def test_a_page_shows_what_a_trial_said_as_text(hostile):
    learner = {"name": "ada", "id": "", "source": "", "raw": ""}
    page = pages.feedback([{**hostile, "name": "my_parts.py", "learner": learner}], {
        "run": {"begun": "2026-03-05T09:00:00+00:00", "settings": {"key": "00"}}})
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert in_model.FORGEABLE.replace("'", "&#39;") in page
