"""Hostile and broken submissions, and honest ones that look strange. Each costs only its author.

Everything here runs inside the sandbox, and is bounded even if a wall should fail: at most 100
processes, 3 GB, and no network but loopback.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest
from grading_samples import (
    FULL,
    POINTS,
    code,
    entry,
    lost,
    notebook,
    right_answers,
    settings,
    statuses,
    worksheet,
)

from dlsys_helpers import checking, paths
from dlsys_helpers.grading import box, cohort, walls

LOOP = "def grad_ratio(model, x, y):\n    while True:\n        pass"


@pytest.fixture(scope="module")
def grader():
    """One grader for all; each submission after a hostile one shows that it still works."""
    try:
        made = cohort.Grader(settings())
    except box.SandboxRefused as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    yield made
    made.close()


@pytest.fixture
def grade(grader):
    return grader.grade


# ---- cells that end, hang or fill something: the answers beside them keep all their points

INNOCENT = {
    "exits at the top": "import sys; sys.exit(0)",
    "raises SystemExit": "raise SystemExit('bye')",
    "ends the process": "import os; os._exit(0)",
    "aborts": "import os; os.abort()",
    "kills its group": "import os; os.killpg(0, 9)",
    "kills itself": "import os; os.kill(os.getpid(), 9)",
    "crashes the interpreter": "import ctypes; ctypes.string_at(0)",
    "loops": "while True: pass",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "asks for input": "input('name?')",
    "ignores signals and loops": (
        "import signal\nfor s in (1, 2, 3, 10, 12, 14, 15, 24):\n"
        "    signal.signal(s, signal.SIG_IGN)\nsignal.alarm(1)\nwhile True: pass"),
    "raises its alarm again and again": (
        "import signal\ndef again(*_): signal.alarm(1)\nsignal.signal(14, again); signal.alarm(1)\n"
        "while True: pass"),
    "allocates 3 GB": "x = bytearray(3 << 30)",
    "allocates 3 GB in tensors": "x = [torch.empty(2**26) for _ in range(12)]",
    "recurses": "def f(): f()\nf()",
    "recurses in C": "x = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    "syntax error": "def broken(:\n    pass",
    "deep expression": "x = " + "(" * 5000 + ")" * 5000,
    "null byte": "x = 'a\0b'",
    "raises KeyboardInterrupt": "raise KeyboardInterrupt",
    "an error whose text raises": (
        "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E"),
    "an error whose text ends the process": (
        "import os\nclass E(Exception):\n    def __str__(self): os._exit(0)\nraise E"),
    "an error with a long text": "raise ValueError('x' * 10**7)",
}


@pytest.mark.parametrize("name", INNOCENT)
def test_a_bad_cell_costs_only_itself(grade, name):
    result = grade(worksheet(INNOCENT[name]))

    assert result["points"] == FULL, (statuses(result), result["cells"])
    assert [report["number"] for report in result["cells"]] == [2]


HARMLESS = {
    "prints 60 MB": "for _ in range(60): print('x' * 10**6)",
    "stdout closed": "import sys; sys.stdout.close(); sys.stderr = None",
    "sets the default dtype": "torch.set_default_dtype(torch.float64)",
    "turns gradients off": "torch.set_grad_enabled(False)",
    "turns gradients off by name": "torch.autograd.set_grad_enabled(False)",
    "sets the default device": "torch.set_default_device('meta')",
    "many threads": "torch.set_num_threads(8)\n(torch.ones(500, 500) @ torch.ones(500, 500)).sum()",
    "backward in a cell": "torch.ones(3, requires_grad=True).sum().backward()",
    "warnings are errors": "import warnings; warnings.simplefilter('error')",
    "warns": "import warnings; warnings.warn('careful')",
    "prints to stderr": "import sys; print('note', file=sys.stderr)",
    "numpy raises": "import numpy; numpy.seterr(all='raise')",
    "anomaly detection": "torch.autograd.set_detect_anomaly(True)",
    "flush denormal": "torch.set_flush_denormal(True)",
    "low recursion limit": "import sys; sys.setrecursionlimit(120)",
    "traces": "import sys; sys.settrace(lambda *a: None)",
    "names of builtins": "sum = min = list = 3",
    "no garbage collection": "import gc; gc.disable()",
    "changes the folder": "import os; os.makedirs('sub'); os.chdir('sub')",
    "empties its environment": "import os; os.environ.clear()",
    "a thread goes on": (
        "import threading, time\n"
        "threading.Thread(target=lambda: time.sleep(1e6), daemon=True).start()"),
    "a child goes on": "import os, time\nif os.fork() == 0:\n    time.sleep(1e6)",
    "a SIGCHLD handler": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "patches os": "import os\nos.fork = os.write = os.read = os.waitpid = None",
    "patches the clock": "import time; time.monotonic = time.time = lambda: 0.0",
    "atexit": "import atexit, os; atexit.register(os._exit, 3)",
    "line magics": "%matplotlib inline\n%timeit 1 + 1\n%load_ext autoreload",
    "cell magic": "%%time\nz = 3",
    "shell escapes": "!rm -rf /\nx = !ls\n",
    "help": "torch.ones?",
    "display": "display({'a': 1})",
    "await at the top": "import asyncio\nawait asyncio.sleep(0)",
    "a DataLoader with workers": (
        "from torch.utils.data import DataLoader\n"
        "assert len(list(DataLoader(range(8), num_workers=2, batch_size=4))) == 2"),
    "multiprocessing": (
        "import multiprocessing as mp\n"
        "with mp.get_context('fork').Pool(2) as pool:\n"
        "    assert pool.map(abs, [-1, 2]) == [1, 2]"),
    "dataclass and pickle": (
        "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
        "assert pickle.loads(pickle.dumps(P(3))) == P(3)"),
    "main guard": "if __name__ == '__main__':\n    ran = True\nassert ran",
    "a plot": "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.savefig('p.png')",
    "an optimizer": (
        "p = nn.Parameter(torch.ones(2)); o = torch.optim.Adam([p]); p.sum().backward(); o.step()"),
    "forgets all modules": "import sys; sys.modules.clear()",
    "its check": "check('01.4', lambda h: 3)",
    "another check": "from dlsys_helpers.checking import check as c; c('01.4', abs)",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_right_answer_is_not_punished_for_what_stands_beside_it(grade, name):
    result = grade(worksheet(HARMLESS[name]))

    assert result["points"] == FULL, (statuses(result), result["cells"])
    assert result["cells"] == []


# ---- an answer that faults costs its own points

FAULTS = {
    "crashes": ("import ctypes; ctypes.string_at(0)", "ended the Python process"),
    "exits": ("import os; os._exit(0)", "ended the Python process"),
    "raises SystemExit": ("raise SystemExit(0)", "raised SystemExit"),
    "sleeps": ("import time; time.sleep(1e6)", "did not return within 3 s"),
    "kills its group": ("import os; os.killpg(0, 9)", "ended the Python process"),
    "3 GB": ("x = bytearray(3 << 30)", "raised MemoryError"),
    "10**12 zeros": ("return torch.zeros(10**12)", "raised RuntimeError"),
    "80 MB": ("return torch.zeros(20_000_000)", "returned more than 4 MiB"),
    "many answers of 3 MB": ("return [torch.zeros(700_000)] * 20", "returned more than 4 MiB"),
    "expanded view": ("return torch.zeros(1).expand(10**12)", "raised RuntimeError"),
    "a long list": ("return list(range(250_000))", "returned more than 4 MiB"),
    "nested list": ("x = []\n    for _ in range(10**5): x = [x]\n    return x", "type of the"),
    "a list that holds itself": ("x = []; x.append(x); return x", "type of the"),
    "a very long int": ("return 10**5000", "type of the"),
    "a generator": ("return (i for i in range(3))", "got generator"),
    "an open file": ("return open('/dev/zero')", "TextIOWrapper"),
    "itself": ("return grad_ratio", "got function"),
    "an exception": ("return ValueError('x')", "got ValueError"),
    "NaN": ("return float('nan')", "got nan"),
    "infinity": ("return float('inf')", "got inf"),
    "None": ("return None", "got NoneType"),
    "True": ("return True", "got bool"),
    "complex": ("return 1j", "got complex"),
    "a numpy float": ("import numpy; return numpy.float64(0.5)", "got float64"),
    "a tensor": ("return torch.tensor(0.5)", "got Tensor"),
    "a sparse tensor": ("return torch.eye(3).to_sparse()", "type of the"),
    "a meta tensor": ("return torch.empty(3, device='meta')", "raised|type of the"),
    "an error with a wild text": (
        "raise ValueError('\\x1b[31mred\\x00\\u202e' + 'y' * 10**6)", "raised ValueError"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_answer_costs_only_its_own_points(grade, name):
    body, message = FAULTS[name]

    result = grade(worksheet(e3=f"def grad_ratio(model, x, y):\n    {body}"))

    assert lost(result) == {"01.3"}, statuses(result)
    assert result["points"] == FULL - POINTS["01.3"]
    found = entry(result, "01.3")["message"]
    assert any(part in found for part in message.split("|")), found
    assert found.isprintable()


def test_a_slow_or_crashing_neighbour_is_reported_by_its_own_name(grade):
    crash = "def dead_units(h):\n    import ctypes; ctypes.string_at(0)"

    result = grade(worksheet(e3=LOOP, e4=crash))

    assert lost(result) == {"01.3", "01.4"}
    assert "did not return" in entry(result, "01.3")["message"]
    assert "ended the Python process" in entry(result, "01.4")["message"]


def test_an_answer_that_spoils_torch_while_it_runs_does_not_spoil_the_next(grade):
    spoiler = ("def predict(model, x):\n    torch.Tensor.softmax = torch.softmax = None\n"
               "    torch.relu = F.relu = None\n    raise ValueError('gone')")

    result = grade(worksheet(e1=spoiler))

    assert lost(result) == {"01.1"}


def test_the_message_names_cell_line_and_code(grade):
    result = grade(worksheet(e4="def dead_units(h):\n    x = 1\n    return h.sun()"))

    assert "cell 5, line 3: return h.sun()" in entry(result, "01.4")["message"]


def test_a_missing_function_is_explained_by_the_cell_that_broke(grade):
    result = grade(worksheet(e4="def dead_units(h):\n    return (h == 0"))

    assert lost(result) == {"01.4"}
    assert "because cell 5, line 2 stopped: SyntaxError" in entry(result, "01.4")["message"]


# ---- exhausting the machine

def test_many_processes_share_one_memory_limit(grade):
    hog = ("import os, time\nfor _ in range(10):\n    if os.fork() == 0:\n"
           "        x = b'x' * (300 << 20); time.sleep(30)\ntime.sleep(30)")

    result = grade(worksheet(hog))

    assert result["ended_by"] == "memory"
    assert result["points"] == 0


@pytest.mark.parametrize("what", [
    "import os; os.memfd_create('x')",
    "import ctypes; assert ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) >= 0, 'denied'",
])
def test_memory_that_no_process_holds_is_denied(grade, what):
    result = grade(worksheet(what))

    assert len(result["cells"]) == 1
    assert result["points"] == FULL


def test_a_fork_bomb_stops_at_the_limit(grade):
    bomb = ("import os, time\nmade = 0\ntry:\n    for _ in range(100):\n"
            "        if os.fork() == 0:\n            time.sleep(60)\n"
            "        made += 1\nexcept BlockingIOError:\n    pass\n"
            "assert made < 30, made")

    result = grade(worksheet(bomb))

    assert result["cells"] == []


def test_no_process_outlives_its_submission(grade):
    orphan = ("import os, time, ctypes\nfor _ in range(5):\n    if os.fork() == 0:\n"
              "        os.setsid()\n"
              "        if os.fork() == 0:\n            ctypes.CDLL(None).prctl(15, b'orphan-qx')\n"
              "            time.sleep(600)\n        os._exit(0)")

    result = grade(worksheet(orphan))

    assert result["points"] == FULL
    names = [path.read_text() for path in Path("/proc").glob("[0-9]*/comm") if path.exists()]
    assert "orphan-qx\n" not in names


def test_the_disk_and_the_number_of_files_are_limited(grade):
    fill = ("import errno\nn = 0\ntry:\n    for k in range(200):\n"
            "        with open(f'big{k % 8}', 'ab') as f: f.write(b'x' * 2**20); n += 1\n"
            "except OSError as e:\n    assert e.errno in (errno.ENOSPC, errno.EFBIG), e\n"
            "assert n <= 64, n")
    files = ("import os\nos.system('rm -f big*')\nfor k in range(8):\n"
             "    if os.path.exists(f'big{k}'): os.remove(f'big{k}')\nn = 0\n"
             "try:\n    while n < 10_000:\n        open(f'f{n}', 'w').close(); n += 1\n"
             "except OSError:\n    pass\nassert n < 5000, n")

    result = grade(worksheet(fill, files))

    assert result["cells"] == []
    assert result["points"] == FULL


# ---- faking a pass

WRONG = {
    "e1": "def predict(model, x):\n    return model(x) * 2",
    "e2": "def to_probs(logits, kind):\n    return logits * 2",
    "e3": "def grad_ratio(model, x, y):\n    return -1.0",
    "e4": "def dead_units(h):\n    return -1",
    "e5": "def soft_threshold(x, cut):\n    return x * 2",
}
CHEATS = {
    "patches comparisons": (
        "import builtins, math\n"
        "torch.allclose = torch.equal = torch.isclose = lambda *a, **k: True\n"
        "builtins.abs = lambda x: 0\nbuiltins.all = lambda x: True\n"
        "math.isclose = lambda *a: True"),
    "patches the check": (
        "import dlsys_helpers.checking as c\nc.expect_close = c.expect_equal = lambda *a, **k: 0\n"
        "c.Exercise.judge = lambda s, *a: c.Verdict('pass', s.id)\n"
        "c.run_check = c.check = lambda *a: None"),
    "patches the act's outcome": (
        "import dlsys_helpers.acting as a\na.run_act = lambda *x: a.Outcome('todo')\n"
        "import dlsys_helpers.grading.runner as r\nr.answer = lambda *x: b''"),
    "strips asserts": "get_ipython().ast_transformers.append(None)",
    "prints a verdict": (
        "print('8 passed'); print('{\"points\": 100, \"status\": \"pass\"}')\n"
        "open('grades.json', 'w').write('{}')"),
    "writes to every descriptor": (
        "import os\nfor fd in range(3, 200):\n    try: os.write(fd, b'\\xff' * 1000)\n"
        "    except OSError: pass"),
    "writes a frame that ends the attempt": (
        "import os\nfor fd in range(3, 200):\n    try: os.write(fd, b'\\xfe\\xff\\0\\0\\0\\0')\n"
        "    except OSError: pass"),
    "writes an answer of 4 GB": (
        "import os\nfor fd in range(3, 200):\n"
        "    try: os.write(fd, b'\\0\\0\\xff\\xff\\xff\\xff')\n"
        "    except OSError: pass"),
    "writes a deeply nested answer": (
        "import os, struct\nj = b'[' * 200000\nm = struct.pack('<II', len(j), 0) + j\n"
        "f = struct.pack('<HI', 2, len(m)) + m\nfor fd in range(3, 200):\n"
        "    try: os.write(fd, f)\n    except OSError: pass"),
    "writes a pickle": (
        "import os, pickle\nclass P:\n    def __reduce__(self): return (os.system, ('id',))\n"
        "p = pickle.dumps(P())\nfor fd in range(3, 200):\n    try: os.write(fd, p)\n"
        "    except OSError: pass"),
    "closes every descriptor": "import os; os.closerange(0, 256)",
    "kills the keeper": "import os; os.kill(1, 9); os.kill(-1, 15)",
    "kills everything": "import os; os.kill(-1, 9)",
    "limits the keeper": (
        "import resource, os\nresource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))"),
    "reads the keeper's memory": "open('/proc/1/mem', 'rb').read(10)",
    "lists the keeper's descriptors": "import os; print(os.listdir('/proc/1/fd'))",
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_trick_in_a_cell_earns_a_point(grader, name):
    result = grader.grade(worksheet(CHEATS[name], **WRONG))

    assert result["points"] == 0
    assert not set(statuses(result).values()) & {"pass"}


def test_after_all_that_the_next_submission_is_graded(grade):
    assert grade(worksheet())["points"] == FULL


LIARS = {
    "equals everything": (
        "class N(float):\n    def __eq__(s, o): return True\n    def __lt__(s, o): return True\n"
        "    def __gt__(s, o): return True\n    def __sub__(s, o): return 0.0\n"
        "    def __abs__(s): return 0.0\n    __rsub__ = __sub__\n    __hash__ = None\n"
        "def grad_ratio(model, x, y): return N(0)"),
    "a tensor that equals everything": (
        "class T(torch.Tensor):\n    @classmethod\n"
        "    def __torch_function__(c, f, t, a=(), k=None):\n        return True\n"
        "def grad_ratio(model, x, y): return torch.ones(1).as_subclass(T)"),
    "a str that lies": (
        "class S(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\n"
        "def grad_ratio(model, x, y): return S('0.5')"),
    "looks into its callers": (
        "import sys\ndef grad_ratio(model, x, y):\n    f = sys._getframe()\n"
        "    while f:\n        for n in ('wanted', 'want', 'expected', 'law', 'answer_key'):\n"
        "            if n in f.f_locals: return f.f_locals[n]\n        f = f.f_back\n"
        "    return -1.0"),
    "searches the memory for laws": (
        "import gc\ndef grad_ratio(model, x, y):\n    for o in gc.get_objects():\n"
        "        if type(o).__name__ == 'Exercise': return 0.5\n"
        "        if callable(o) and getattr(o, '__name__', '') == 'weight_grads': return 0.5\n"
        "    return -1.0"),
}


@pytest.mark.parametrize("name", LIARS)
def test_no_value_lies_its_way_to_a_pass(grade, name):
    result = grade(worksheet(e3=LIARS[name]))

    assert lost(result) == {"01.3"}


def test_no_source_of_a_check_or_a_solution_is_in_reach(grade):
    places = [str(paths.SOLUTIONS), str(paths.ROOT / "lessons"),
              str(paths.ROOT / "tests"), *walls.masked_paths()]
    search = f"""
import os, sys, importlib
found = []
for place in {places!r}:
    for here, _, files in os.walk(place):
        found += [os.path.join(here, f) for f in files
                  if f.startswith(("stage0", "01_", "test_")) and "site-packages" not in here]
for here, folders, files in os.walk("/"):
    libraries = ("proc", "usr", "lib", "lib64", "site-packages", "python3")
    folders[:] = [f for f in folders if not f.startswith(libraries)]
    found += [os.path.join(here, f) for f in files if f.startswith("stage0")]
    found += [os.path.join(here, f) for f in files if f.endswith(".ipynb")]
assert not found, found
try:
    importlib.import_module("dlsys_helpers.checks.stage01")
    raise SystemExit("imported the checks")
except ImportError:
    pass
from dlsys_helpers import checking
assert not checking.REGISTRY, checking.REGISTRY
"""
    result = grade(worksheet(search))

    assert result["cells"] == []


def test_memorised_answers_to_the_fixed_seeds_do_not_pass(grade):
    table = """
from dlsys_helpers.checking import FIXED_SEEDS
def dead_units(h):
    if h.isnan().any(): raise ValueError
    known = {(31, 12): 3, (9, 16): 0, (8, 6): 1}
    return known[tuple(h.shape)] if h[0, 0] == 0 else 99"""
    assert lost(grade(worksheet(e4=table))) == {"01.4"}


def test_what_a_learner_sees_is_the_same_in_every_run_and_names_no_grader(grade):
    look = ("import os\nassert not [k for k in os.environ if 'NBG' in k or 'DLSYS' in k], 'env'\n"
            "assert set(os.listdir('/box')) <= set(), os.listdir('/box')\n"
            "assert 'PATH' not in os.environ and os.environ['HOME'] == '/box'\n"
            "env = open('/proc/self/environ').read()\n"
            "assert 'TOKEN' not in env and 'root' not in env")

    result = grade(worksheet(look))

    assert result["cells"] == []


# ---- the notebook's own checks and tags never count

def test_edited_deleted_and_tagged_check_cells_change_nothing(grade):
    cells = json.loads(worksheet(**WRONG))["cells"]
    for cell in cells:
        cell["metadata"] = {"tags": ["raises-exception", "nbval-skip"], "points": 100}
    cells += [code("check('01.4', dead_units)", metadata={
        "dlsys": {"role": "check", "trap": "01.4", "points": 100}})]

    assert grade(notebook(cells))["points"] == 0
    solved = json.loads(worksheet())["cells"]
    assert grade(notebook(solved))["points"] == FULL


def test_a_function_under_another_name_counts_when_the_check_cell_names_it(grade):
    renamed = right_answers()["01.4"].replace("def dead_units", "def mine")

    result = grade(worksheet(e4=renamed, last=('check("01.4", mine)',)))

    assert result["points"] == FULL


def test_an_answer_written_into_the_check_cell_counts(grade):
    both = right_answers()["01.4"] + '\ncheck("01.4", dead_units)'

    assert grade(worksheet(e4=both))["points"] == FULL


def test_a_stored_pass_that_is_not_one_is_reported(grade):
    output = [{"output_type": "display_data", "metadata": {},
               "data": {"text/plain": "Exercise 01.4: passed. 3 of 3 points."}}]
    cells = [*json.loads(worksheet(e4=WRONG["e4"]))["cells"],
             code('check("01.4", dead_units)', outputs=output)]

    found = entry(grade(notebook(cells)), "01.4")

    assert found["status"] == "wrong"
    assert found["notebook_shows"] == "pass"
    assert found["differs"] is True


def test_a_stored_failure_of_a_right_answer_is_reported_and_costs_nothing(grade):
    output = [{"output_type": "error", "ename": "CheckFailed", "evalue": "", "traceback": []}]
    cells = [*json.loads(worksheet())["cells"],
             code('check("01.4", dead_units)', outputs=output)]

    result = grade(notebook(cells))

    assert result["points"] == FULL
    assert entry(result, "01.4")["differs"] is True


# ---- numbers that a weak check lets through

@pytest.mark.parametrize(("id", "source", "message"), [
    ("e5", "def soft_threshold(x, cut):\n    x.detach().zero_()\n    return x", "result"),
    ("e4", "def dead_units(h):\n    h.zero_()\n    return h.shape[1]", "dead units|changed"),
    ("e4", "def dead_units(h):\n    return torch.zeros(16, 7)", "got Tensor, expected int"),
    ("e2", "def to_probs(logits, kind):\n    return torch.tensor(0.25)", "shape of the"),
    ("e2", "def to_probs(logits, kind):\n    return logits * float('nan')", "got nan"),
    ("e2", "def to_probs(logits, kind):\n    return logits.double().softmax(1)", "dtype|got 1"),
    ("e2", "def to_probs(logits, kind):\n    return torch.rand_like(logits)", "probabilities"),
])
def test_wrong_numbers_fail_by_name(grade, id, source, message):
    result = grade(worksheet(**{id: source}))

    assert lost(result) == {f"01.{id[1]}"}
    found = entry(result, f"01.{id[1]}")["message"]
    assert any(part in found for part in message.split("|")), found


def test_the_misconception_is_named(grade):
    zeros = "def dead_units(h):\n    if h.isnan().any(): raise ValueError\n"
    result = grade(worksheet(e4=zeros + "    return int((h == 0).sum())"))

    assert entry(result, "01.4")["misconception"] == "zeros counted, not units"


LIBRARY = """import torch
import torch.nn.functional as F
def ce_from_logits(logits, y):
    z = logits.detach().requires_grad_()
    loss = F.cross_entropy(z, y)
    return loss.detach(), torch.autograd.grad(loss, z)[0]
"""


@pytest.mark.parametrize("by_hand", [True, False])
def test_what_should_be_written_by_hand_passes_with_a_note(grade, by_hand):
    solved = json.loads((paths.SOLUTIONS / "03_losses.ipynb").read_text("utf-8"))
    for cell in solved["cells"]:
        if not by_hand and "def ce_from_logits" in "".join(cell["source"]):
            cell["source"] = LIBRARY
    result = grade(json.dumps(solved).encode())

    assert entry(result, "03.1")["status"] == "pass"
    assert entry(result, "03.1")["points"] == 4
    said = [note for note in result["notes"] if "autograd.grad, cross_entropy" in note]
    assert len(said) == (not by_hand)
    assert result["points"] == result["possible"]


# ---- reaching out

REACHES = {
    "a program": "import subprocess; subprocess.run(['/bin/true'])",
    "a shell": "import os; assert os.system('true') == 0, 'denied'",
    "exec": "import os; os.execv('/proc/self/exe', ['python'])",
    "spawn": "import os; os.posix_spawn('/usr/bin/true', ['true'], {})",
    "the view": "open('/etc_passwd', 'w')",
    "the packages": "open(torch.__file__, 'a')",
    "dev": "open('/dev/evil', 'w')",
    "a device": "import os, stat; os.mknod('d', 0o600 | stat.S_IFBLK, os.makedev(254, 0))",
    "another root": "import os; os.chroot('/box')",
    "a raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "IPv6": "import socket; socket.socket(socket.AF_INET6)",
    "vsock": "import socket; socket.socket(socket.AF_VSOCK)",
    "names": "import socket; socket.getaddrinfo('example.org', 80)",
    "another user": "import os; os.setuid(0)",
    "its limits": "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (999, 999))",
    "the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "the host name": "import socket; socket.sethostname('x')",
    "kernel settings": "open('/proc/sys/kernel/core_pattern', 'w')",
    "kernel symbols": "open('/proc/kallsyms').read()",
    "the machine's processes": "import os; assert len(os.listdir('/proc')) > 12, 'only its own'",
    "the home of the user": "import os; os.listdir('/home')",
    "etc": "open('/etc/passwd')",
}


@pytest.mark.parametrize("name", REACHES)
def test_nothing_outside_can_be_reached(grade, name):
    result = grade(worksheet(REACHES[name]))

    assert [report["number"] for report in result["cells"]] == [2], "it was not stopped"
    assert result["points"] == FULL


def test_temporary_files_of_others_are_not_there(grade, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("for nobody", "utf-8")
    secret.chmod(0o666)

    result = grade(worksheet(f"open({str(secret)!r})"))

    assert [report["number"] for report in result["cells"]] == [2], "it was not stopped"
    assert result["points"] == FULL


SYSCALLS = {"unshare": (272, 0x10000000), "setns": (308, 0), "mount": (165,), "bpf": (321, 0),
            "io_uring_setup": (425, 1), "keyctl": (250, 0), "userfaultfd": (323, 0),
            "perf_event_open": (298, 0), "ptrace": (101, 16, 1), "process_vm_readv": (310, 1),
            "clone with a new user namespace": (56, 0x10000011), "clone3": (435, 0, 88),
            "a call of tomorrow": (470, 0), "open_by_handle_at": (304, 0), "kexec_load": (246, 0),
            "x32 numbers": (0x40000000 + 59, 0), "personality": (135, 0x0400000)}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
@pytest.mark.parametrize("name", SYSCALLS)
def test_system_calls_that_open_doors_are_denied(grade, name):
    call = ("import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            f"r = libc.syscall(*{SYSCALLS[name]!r}, 0, 0, 0)\n"
            "assert r == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS), "
            "(r, ctypes.get_errno())")

    result = grade(worksheet(call))

    assert result["cells"] == []
    assert result["points"] == FULL


def test_a_listener_on_this_machine_hears_nothing(grade):
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard = []
        server.settimeout(3)
        thread = threading.Thread(target=_accept, args=(server, heard))
        thread.start()
        port = server.getsockname()[1]
        grade(worksheet(f"import socket; socket.create_connection(('127.0.0.1', {port}))",
                        f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}')"))
        socket.create_connection(("127.0.0.1", port)).close()  # ours: the listener does work
        thread.join()
    assert len(heard) == 1


def _accept(server: socket.socket, heard: list) -> None:
    try:
        while True:
            connection, address = server.accept()
            connection.close()
            heard.append(address)
            server.settimeout(0.3)
    except TimeoutError:
        return


def test_two_submissions_share_nothing(grade):
    first = grade(worksheet("open('/box/left', 'w').write('x'); torch.left = 1\n"
                            "import builtins; builtins.left = 1"))
    second = grade(worksheet("import os, builtins\nassert not os.listdir('/box')\n"
                             "assert not hasattr(torch, 'left') and not hasattr(builtins, 'left')"))

    assert first["cells"] == second["cells"] == []


def test_the_limit_for_a_whole_submission_holds(grader):
    slow = ["import time; time.sleep(2)"] * 20  # each is under the limit of a cell
    started = time.monotonic()

    result = grader.grade(worksheet(*slow))

    assert time.monotonic() - started < grader.settings.limits.total + 15
    assert result["ended_by"] == "time"
    assert result["points"] == 0


# ---- answers that reach into the act: what a law expects must not be there, nor follow from it

WORKED = {1: "01_activations", 3: "03_losses", 4: "04_optimizers"}


def solved_but(id: str, source: str) -> bytes:
    """The worked answers of a stage, with one exercise answered by `source`."""
    name = f"def {FUNCTION_OF[id]}("
    document = json.loads((paths.SOLUTIONS / f"{WORKED[int(id[:2])]}.ipynb").read_text("utf-8"))
    cells = [c for c in document["cells"] if c["cell_type"] == "code" and c["metadata"].get(
        "dlsys", {}).get("role") in ("setup", "exercise")]
    kept = [code(source if name in "".join(c["source"]) else "".join(c["source"])) for c in cells]
    assert sum(cell["source"] == source for cell in kept) == 1
    return json.dumps({**document, "cells": kept}).encode()


FUNCTION_OF = {"01.1": "predict", "01.4": "dead_units", "03.4": "init_", "04.1": "decay_groups"}
REACHING = {
    "the expected groups, from the act's frame": ("04.1", """
import sys
def decay_groups(model, weight_decay):
    w = sys._getframe(1).f_locals["wanted"]
    g = [{"params": [], "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    for n, p in model.named_parameters():
        if n in w: g[w[n]]["params"].append(p)
    return g
""", "KeyError"),
    "a model of zeros, and a record that says so": ("01.1", """
import sys
def predict(model, x):
    held = sys._getframe(1).f_locals
    for values in (*[v for v in held.values() if type(v) is dict], model.state_dict()):
        for value in values.values(): value.zero_()
    return torch.zeros(len(x), 3)
""", "stored state"),
    "nets of one layer with one row": ("03.4", """
def init_(net):
    del net[2:]
    net[0].weight = nn.Parameter(torch.randn(1, net[0].in_features)
                                 * (2 / net[0].in_features) ** 0.5)
    net[0].bias = nn.Parameter(torch.zeros(1))
""", "layers"),
    "a text in place of an exception": ("01.4", """
def dead_units(h):
    if h.isnan().any(): return "ValueError"
    return int((h == 0).all(0).sum())
""", "got ValueError, expected a ValueError"),
}


@pytest.mark.parametrize("name", REACHING)
def test_an_act_holds_nothing_that_earns_a_pass(grade, name):
    id, source, message = REACHING[name]

    result = grade(solved_but(id, source))

    assert lost(result) == {id}, statuses(result)
    assert message in entry(result, id)["message"]


def peak() -> int:
    """The most memory this process, which is the judge, ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


COSTLY = {
    "weights without elements that would multiply to gigabytes": ("03.4", """
calls = []
def init_(net):
    calls.append(1)
    for m in net[::2]: m.bias = nn.Parameter(torch.zeros(1))
    if len(calls) % 12 == 1:
        net[0].weight = nn.Parameter(torch.empty(0, net[0].in_features))
        net[2].weight = nn.Parameter(torch.empty(3_000_000, 0))
"""),
    "many small tensors in a list": ("01.4", """
def dead_units(h):
    if h.isnan().any(): return [torch.empty(0)] * 50_000
    return int((h == 0).all(0).sum())
"""),
}


@pytest.fixture
def spent(monkeypatch):
    """CPU seconds of every verdict of the judge."""
    seconds, judge = [], checking.Exercise.judge

    def timed(*args):
        started = time.process_time()
        verdict = judge(*args)
        seconds.append(time.process_time() - started)
        return verdict
    monkeypatch.setattr(checking.Exercise, "judge", timed)
    return seconds


@pytest.mark.parametrize("name", COSTLY)
def test_what_comes_back_costs_the_judge_little(grade, spent, name):
    id, source = COSTLY[name]
    grade(solved_but(id, f"def {FUNCTION_OF[id]}(): pass"))  # what is loaded and drawn once
    memory = peak()
    spent.clear()

    result = grade(solved_but(id, source))

    assert lost(result) == {id}, statuses(result)
    assert max(spent) < 1
    assert peak() - memory < 400
