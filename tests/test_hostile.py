"""Hostile and broken submissions, and honest ones that look strange. Each costs only its author.

Everything here runs inside the sandbox and stays bounded even if a wall fails: at most 100
processes, 3 GB, and no network except loopback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path

import pytest
from grading_samples import (
    FULL,
    POINTS,
    code,
    entry,
    lost,
    notebook,
    open_grader,
    right_answers,
    settings,
    statuses,
    without_sandbox,
    worksheet,
)
from IPython.core.inputtransformer2 import TransformerManager

from dlsys.grading import judge
from dlsys.grading.books import reports, submitted_notebook
from dlsys.grading.walls import (
    framing,
    isolation,
    process_limit,
    runner,
    sandbox,
    serialization,
    shell,
    supervisor,
)
from dlsys_checks import registry
from dlsys_helpers import acting, catalog, judging, paths, stages, verdicts
from tools.nightly import mark_nightly

CLASS_SEEDS, ARRANGE, PAPERS = judge.SEEDS, judging.Exercise.arrange, judge.Judge.papers
HURRY = 1.5  # seconds for a cell or an exercise that hangs until its limit
LOOP = "def grad_ratio(model, x, y):\n    while True:\n        pass"


@pytest.fixture(scope="module")
def grader():
    """One grader for all; each submission after a hostile one shows that it still works.

    It draws cases from one seed instead of three and keeps every third one, because these tests are
    about what code does to the grader, and each case costs acts and laws for every submission. No
    submission here reaches the total time limit, not even on a busy machine.
    """
    with open_grader(settings(total=120.0)) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "SEEDS", 1)
        patch.setattr(judging.Exercise, "arrange", lambda *ask: ARRANGE(*ask)[::3])
        yield made


@pytest.fixture
def grade(grader, monkeypatch):
    """Grades all exercises of a notebook, or only those named: each costs a few processes."""
    def run(data, *ids):
        monkeypatch.setattr(judge.Judge, "papers", lambda *which: [
            paper for paper in PAPERS(*which) if not ids or paper.exercise.id in ids])
        return grader.grade(data)
    return run


@pytest.fixture
def grade_in_a_hurry(grade, grader, monkeypatch):
    """Grade a hanging answer with a shorter limit; only the length of the wait differs."""
    limits = dataclasses.replace(grader.settings.limits, seconds=HURRY)
    monkeypatch.setattr(grader.judge.zygote, "limits", limits)
    return grade


@pytest.fixture
def grade_in_full(grader, monkeypatch):
    """Grades with as many cases as a class gets."""
    monkeypatch.setattr(judge, "SEEDS", CLASS_SEEDS)
    monkeypatch.setattr(judging.Exercise, "arrange", ARRANGE)
    monkeypatch.setattr(grader.judge, "_papers", {})
    return grader.grade


# ---- cells that end, hang or fill something: the other answers keep all their points

STOPPED = {
    "exits at the top": "import sys; sys.exit(0)",
    "raises SystemExit": "raise SystemExit('bye')",
    "allocates 3 GB": "x = bytearray(3 << 30)",
    "allocates 3 GB in tensors": "x = [torch.empty(2**26) for _ in range(12)]",
    "recurses": "def f(): f()\nf()",
    "syntax error": "def broken(:\n    pass",
    "deep expression": "x = " + "(" * 5000 + ")" * 5000,
    "null byte": "x = 'a\0b'",
    "raises KeyboardInterrupt": "raise KeyboardInterrupt",
    "an error whose text raises": (
        "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E"),
    "an error with a long text": "raise ValueError('x' * 10**7)",
    "an error with a long type": (
        "class M(type):\n    __name__ = 'n' * 10**7\n"
        "class E(Exception, metaclass=M): pass\nraise E"),
    "an error with a long line": "e = SyntaxError('x')\ne.lineno = 10**4000\nraise e",
    "a group of errors, 2,000 deep": (
        "e = ValueError()\nfor _ in range(2000):\n    e = ExceptionGroup('g', [e])\nraise e"),
}
ENDED = {
    "ends the process": "import os; os._exit(0)",
    "aborts": "import os; os.abort()",
    "kills its group": "import os; os.killpg(0, 9)",
    "kills itself": "import os; os.kill(os.getpid(), 9)",
    "crashes the interpreter": "import ctypes; ctypes.string_at(0)",
    "recurses in C": "x = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    "an error whose text ends the process": (
        "import os\nclass E(Exception):\n    def __str__(self): os._exit(0)\nraise E"),
}


HANGING = {
    "loops": "while True: pass",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "ignores signals and loops": (
        "import signal\nfor s in (1, 2, 3, 10, 12, 14, 15, 24):\n"
        "    signal.signal(s, signal.SIG_IGN)\nsignal.alarm(1)\nwhile True: pass"),
    "raises its alarm again and again": (
        "import signal\ndef again(*_): signal.alarm(1)\nsignal.signal(14, again); signal.alarm(1)\n"
        "while True: pass"),
}


def test_bad_cells_cost_only_themselves(grade):
    """None of them ends the process, so one attempt runs them all."""
    expect_each_stopped(grade(worksheet(*STOPPED.values())), STOPPED)


def test_cells_that_end_the_process_cost_only_themselves(grade):
    """Each ends its own process in the second attempt, in which a cell is a process."""
    expect_each_stopped(grade(worksheet(*ENDED.values())), ENDED)


def test_cells_that_hang_cost_only_themselves(grade_in_a_hurry):
    expect_each_stopped(grade_in_a_hurry(worksheet(*HANGING.values()), "01.4", "01.5"), HANGING)


LATER = {
    "a timer": "import os, threading; threading.Timer(0.2, os._exit, [0]).start()",
    "an alarm": "import signal; signal.setitimer(signal.ITIMER_REAL, 0.2)",
    "its parent": "import os; os.kill(os.getppid() or os.getpid(), 9)",
    "the init, by a signal that Python has a handler for": (
        "import os, signal; os.kill(1, signal.SIGINT)"),
}


@pytest.mark.parametrize("name", LATER)
def test_what_a_cell_ends_later_or_beside_it_costs_no_other_points(grade, name):
    slow = "import time; time.sleep(0.3)\n" + right_answers()["01.4"]

    result = grade(worksheet(LATER[name], e4=slow), "01.4", "01.5")

    assert result["points"] == result["possible"], (statuses(result), result["cells"])


def test_an_answer_that_kills_its_parent_costs_only_its_own_points(grade):
    kills = "def grad_ratio(model, x, y):\n    import os; os.kill(os.getppid(), 9)"

    result = grade(worksheet(e3=kills))

    assert lost(result) == {"01.3"}, statuses(result)
    assert "ended the Python process" in entry(result, "01.3")["message"]


def expect_stopped(result, *cells):
    """These cells stopped, no other did, and all points are there."""
    assert result["points"] == result["possible"] > 0, (statuses(result), result["cells"])
    assert [report["number"] for report in result["cells"]] == list(cells)


def expect_each_stopped(result, cells: dict[str, str]):
    """Each of these cells, the first ones after the set-up, stopped; all points are there."""
    stopped = {report["number"] for report in result["cells"]}
    assert [name for at, name in enumerate(cells, 2) if at not in stopped] == [], result["cells"]
    expect_stopped(result, *range(2, 2 + len(cells)))


HARMLESS = {
    "forgets all modules": "import sys; sys.modules.clear()",
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
    "asks for input": "name = input('name?')",
    "was written in Colab": (
        "import google.colab\nfrom google.colab import drive\ndrive.mount('/content/drive')"),
    "asks IPython for magics": (
        "from IPython import get_ipython\nget_ipython().run_line_magic('matplotlib', 'inline')\n"
        "import matplotlib.pyplot as plt; plt.plot([1])"),
    "the value of a magic": "y = %time 1 + 2\nassert y == 3",
    "captured output": "%%capture said\nprint('hello')",
    "await under a magic": "%%time\nimport asyncio\nawait asyncio.sleep(0)",
    "an environment variable": (
        "%env DLSYS_X=3\nimport os\nassert os.environ['DLSYS_X'] == '3'"),
    "lines of a command": "x = !ls\nassert x == []",
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
    "its check": "check('01.4', lambda h: 3)",
    "another check": "import dlsys_helpers as h; h.check('01.4', abs)",
}


PACKS = 7  # submissions; cells that change similar settings are in different ones


@pytest.mark.parametrize("pack", range(PACKS))
def test_a_right_answer_is_not_punished_for_what_stands_beside_it(grade, pack):
    names = [*HARMLESS][::-1][pack::PACKS]  # settings that affect all later cells come last

    result = grade(worksheet(*map(HARMLESS.get, names)))

    stopped = [(names[report["number"] - 2], report) for report in result["cells"]]
    assert stopped == []
    assert result["points"] == FULL, (statuses(result), names)


TAKES_FROM_ITSELF = {
    "limits that are zero": (
        "import resource\nfor kind in (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE,\n"
        "             resource.RLIMIT_NOFILE, resource.RLIMIT_STACK):\n"
        "    resource.setrlimit(kind, (0, 0))"),
    "a hook before forks that waits": (
        "import os, time; os.register_at_fork(before=lambda: time.sleep(1e6))"),
    "nothing to import from": "import sys; sys.meta_path.clear(); sys.path.clear()",
}


@pytest.mark.parametrize("name", TAKES_FROM_ITSELF)
def test_what_a_cell_takes_from_its_own_process_costs_no_points(grade, name):
    """In a process shared with other exercises, the cell would affect them too, as in Jupyter."""
    result = grade(worksheet(last=(TAKES_FROM_ITSELF[name],)), "01.4", "01.5")

    assert result["cells"] == []
    assert result["points"] == result["possible"]


@pytest.mark.parametrize("name", ["numpy", "torch", "dlsys_helpers"])
def test_a_package_that_a_cell_forgets_can_be_imported_behind_it(grade, name):
    forgets = (f"import sys\nfor m in [m for m in sys.modules if m.split('.')[0] == '{name}']:\n"
               "    del sys.modules[m]")
    grade(worksheet("# torch.optim"), "01.4")  # from here on the compiler's modules are loaded

    assert grade(worksheet(forgets, f"import {name}"), "01.4")["cells"] == []


def test_cells_share_what_they_share_in_jupyter(grade):
    cells = ("from __future__ import annotations", "def f(x: Unknown) -> Unknown: return x",
             "%%writefile mine.py\nvalue = 7", "import mine\nassert mine.value == 7",
             "import asyncio\ntask = asyncio.ensure_future(asyncio.sleep(0, 5))",
             "assert await task == 5", "6 * 7", "assert _ == 42",
             "%%capture said\nprint('hello')", "assert said.stdout == 'hello\\n'")

    expect_stopped(grade(worksheet(*cells)))


@pytest.mark.parametrize(("source", "line"), [
    ("\n\n  \na = 1\nnone[0]", 5), ("%%time\na = 1\nnone[0]", 3), ("\n%%capture\n\nnone[0]", 4),
    ("a = 1\nb = %time 1\nnone[0]", 3), ("%%time\na = (", 2)])
def test_the_line_is_counted_as_the_learner_sees_it(grade, source, line):
    (report,) = grade(worksheet(source), "01.4")["cells"]

    assert (report["number"], report["line"]) == (2, line)


CELL_TEXTS = [
    "", "\n", "x = 1", "# x", "f(x);", "a\n\n\nb", "x=1\r\ny=2", "await f()", "return 1",
    "a = 5 % 2", "'''\n%time\n!ls\n'''", "x = 'what?'", "x\\\n = 1", "async def f():\n  pass",
    "%time x", "%%time\nx", "!ls", "x = !ls", "x = %time 1", "x?", "?x", "  x = 1\n  y = 2",
    "\tx = 1", ">>> x = 1\n... y", "In [1]: x = 3", "In [12]: x: int = 3\n   ...: y", "/f x",
    ",f a b", ";f a b"]


@pytest.mark.parametrize("text", CELL_TEXTS)
def test_a_cell_is_read_as_ipython_reads_it(text):
    assert shell.transformed(text) == TransformerManager().transform_cell(text)


def test_the_compiler_is_loaded_for_those_who_will_use_it(grade):
    asks = "import sys\nassert 'torch._dynamo' in sys.modules  # before torch.optim.SGD asks for it"

    assert grade(worksheet(asks), "01.4")["cells"] == []


def test_a_load_of_the_compiler_is_waited_for():
    zygote = sandbox.Zygote.__new__(sandbox.Zygote)
    zygote.compiler = False
    zygote.line, supervisor_line = socket.socketpair()
    sent = []
    late = threading.Timer(0.3, lambda: sent.append(1) or supervisor_line.sendall(b"."))
    late.start()

    zygote.load_compiler()

    assert sent
    assert zygote.compiler
    late.join()
    supervisor_line.close()
    with pytest.raises(sandbox.SandboxLost):
        zygote.load_compiler()
    assert not zygote.compiler
    zygote.line.close()


@pytest.mark.parametrize(("text", "loads"), [
    ("o = torch.optim.SGD(p)", True), ("from dlsys_helpers import fit", True),
    ("loss.backward(torch.ones(3))", True), ("from torch.utils.checkpoint import checkpoint", True),
    ("torch.autograd.grad(f(x), [x, y], v)", True), ("grad(out,\n  x, v, allow_unused=True)", True),
    ("grad(f(x, y), x, create_graph=True)", False), ("grad(f(x, y), (x, y))", False),
    ("loss.backward()", False), ("optimum = fitted = compiler = 1", False)])
def test_who_will_use_the_compiler_is_known_by_the_words(text, loads):
    assert submitted_notebook.loads_compiler(["x = 1", text]) == loads


def cells_of(stage: int) -> list[str]:
    """The code cells of a stage's worked answers, as a learner would hand them in."""
    cells = json.loads((paths.SOLUTIONS / f"{stages.stage(stage).stem}.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def acts_of(stage: int) -> list[str]:
    """The source of the acts that call the answers of a stage."""
    return [acting.act_source(exercise.act_fn) for exercise in registry.of_stage(stage).values()
            if exercise.act_fn is not acting.call_function]


@pytest.mark.nightly
def test_the_answers_of_a_stage_without_such_words_load_no_part_of_it():
    """Run the answers of all such stages and their acts one after another in one process."""
    wordless = [stage.number for stage in stages.STAGES if not submitted_notebook.loads_compiler(
        [*cells_of(stage.number), *acts_of(stage.number)])]
    assert len(wordless) > 3
    answers = [cell for stage in wordless for cell in cells_of(stage)]
    cells = [*answers, "import sys\nprint({'torch._dynamo', 'sympy'} & set(sys.modules))"]

    done = subprocess.run([sys.executable, "-"], input="\n".join(cells), capture_output=True,
                          text=True, check=True, env={**os.environ, "DLSYS_PROGRESS": "off"})

    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(("source", "found"), [
    ("def dropout(x):\n    return x * mask(x)", []), ("# SGD()\nx = 'SGD()'", []),
    ("def f(p):\n    return torch.optim.SGD(p)", ["SGD"]),
    ("def dropout(x):\n    return F.dropout(x)", ["dropout"]), ("dropout(x)", ["dropout"]),
    ("dropout(", [])])
def test_only_calls_of_a_library_count_as_such(source, found):
    assert submitted_notebook.calls([source], ["SGD", "dropout"]) == set(found)


PARSED = """
import resource, sys
from types import SimpleNamespace
from dlsys.grading import judge
from dlsys.grading.books import submitted_notebook
from dlsys.grading.text import clean
from dlsys_helpers.verdicts import Verdict

cells = [(1, "def dropout(): pass\\n" + "a;" * (3 * 2**20))]  # 925 MiB for each MiB, once parsed
paper = SimpleNamespace(exercise=SimpleNamespace(id="04.7", by_hand=("dropout",)),
                        trap=SimpleNamespace(function="dropout"))
session = judge.GradingSession(submitted_notebook.Notebook(4, cells), [paper], None)
session.verdicts["04.7"] = Verdict("pass", "04.7")
with open("/proc/self/statm") as statm:
    mapped = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**28, mapped + 2**28))
print(session.forbidden_call_note(paper))
"""


def test_a_cell_that_would_fill_the_judges_memory_is_not_parsed():
    """The child may use 256 MiB, so that this machine survives if the judge does parse it."""
    done = subprocess.run([sys.executable, "-c", PARSED], capture_output=True, text=True,
                          check=False, timeout=120)

    assert done.stdout.startswith("04.7 has too much code to check"), done.stderr[-300:]


def test_an_answer_that_comes_twice_is_judged_once(monkeypatch):
    judged = []
    monkeypatch.setattr(judge.GradingSession, "_judged", lambda _, paper, __: (
        judged.append(paper)) or (verdicts.Verdict("wrong", paper.exercise.id, "no"), {"cases": 3}))
    same = sandbox.Attempt(cells_done=True, answers={0: [serialization.pack({
        "kind": "value", "value": 1, "error_type": "", "error": "", "where": "", "mutated": []})]})
    box = types.SimpleNamespace(attempt=lambda *_, **__: same, limits=settings().limits, used={})
    trap = catalog.traps(1)[0]
    exercise = types.SimpleNamespace(id=trap.id, by_hand=())
    paper = types.SimpleNamespace(exercise=exercise, trap=trap, packed=b"")

    session = judge.GradingSession(submitted_notebook.Notebook(1, []), [paper], box)
    session.judge_all()

    assert judged == [paper]
    (entry,) = session.result()["exercises"]
    assert (entry["status"], entry["cases"]) == ("wrong", 3)


# ---- what counts is what the learner checks

WEAK = "def weak(x, threshold):\n    return x"
MINE = right_answers()["01.5"].replace("soft_threshold", "mine")
SOFT = right_answers()["01.5"] + "\n"
MEANT = {
    "overwritten by its value": [SOFT + "check('01.5', soft_threshold)",
                                 "soft_threshold = soft_threshold(torch.ones(3), 0.5)"],
    "a worse one is checked later": [SOFT + "check('01.5', soft_threshold)",
                                     WEAK + "\ncheck('01.5', weak)"],
    "a worse one is checked before": [WEAK + "\ncheck('01.5', weak)", SOFT],
    "an old check is a comment": [SOFT, "# check('01.5', weak)"],
    "another name": [MINE + "\ncheck('01.5', mine)"],
    "another name, and the stub is there": [
        MINE + "\ncheck('01.5', mine)",
        "def soft_threshold(x, threshold):\n    raise NotImplementedError('x is not written yet')"],
    "a stub stands below it": [
        SOFT + "check('01.5', soft_threshold)",
        "def soft_threshold(x, threshold):\n    raise NotImplementedError('x is not written yet')"],
    "by keyword": [MINE + "\ncheck(id='01.5', fn=mine)"],
    "a method": ["class S:\n    @staticmethod\n" + MINE.replace("def ", "    def ").replace(
        "\n    ", "\n        ").replace("\n        def", "\n    def") + "\ncheck('01.5', S.mine)"],
    "a lambda": [MINE + "\ncheck('01.5', lambda x, threshold: mine(x, threshold))"],
    "its helper is overwritten": [
        MINE.replace("mine", "helper") + "\ndef soft_threshold(x, threshold):\n"
        "    return helper(x, threshold)\ncheck('01.5', soft_threshold)", "helper = 3"],
    "its constants are overwritten, and another cell crashes": [
        MINE.replace("mine", "helper") + "\ndef soft_threshold(x, threshold):\n"
        "    return helper(x, threshold)\ncheck('01.5', soft_threshold)", "helper = 3",
        "import os; os._exit(3)"],
}


@pytest.mark.parametrize("name", MEANT)
def test_the_function_that_passes_where_it_is_checked_counts(grade, name):
    result = grade(worksheet(e5="", last=tuple(MEANT[name])), "01.5")

    assert result["points"] == POINTS["01.5"], result["exercises"]


def test_a_name_given_to_something_else_is_called_so(grade):
    result = grade(worksheet(last=("soft_threshold = torch.ones(3)",)))

    assert entry(result, "01.5")["message"] == (
        "soft_threshold is a Tensor, not a function; a later cell reassigned it.")


def test_more_checks_are_not_more_chances(grade):
    """Only two of a thousand guesses are looked at, and the last one."""
    guesses = ("def guess(x, threshold, k):\n    return (x * k / 1000)\n"
               "for k in range(1000):\n"
               "    check('01.5', lambda x, threshold, k=k: guess(x, threshold, k))\n" + MINE
               + "\ncheck('01.5', mine)\ncheck('01.5', lambda x, threshold: x)")

    assert lost(grade(worksheet(e5="", last=(guesses,)))) == {"01.5"}


def test_an_answer_that_hangs_where_it_is_checked_is_named(grade_in_a_hurry):
    hangs = "def soft_threshold(x, threshold):\n    while True: pass\n"

    result = grade_in_a_hurry(worksheet(e5="", last=(hangs + "check('01.5', soft_threshold)",)))

    assert lost(result) == {"01.5"}
    assert f"did not return within {HURRY} s" in entry(result, "01.5")["message"]
    assert result["cells"] == []


def test_what_hung_where_it_was_checked_is_not_waited_for_again(monkeypatch):
    waited, sent = [], []
    monkeypatch.setattr(runner, "Shell", lambda: types.SimpleNamespace(space={}))
    monkeypatch.setattr(runner.check, "tell", None)
    monkeypatch.setattr(runner, "run_in_child", lambda unit, seconds: waited.append(unit) or b"new")
    line = types.SimpleNamespace(sendall=sent.append)
    job = {"seconds": 3.0, "careful": True, "checkpoints": False, "both": True}
    one = runner.Runner(line, job, [{"id": "01.5", "function": "soft_threshold"}])
    hung, named = (lambda: 1), (lambda: 2)
    one.checked, one.early = {"01.5": hung}, {"01.5": [(hung, runner.FAULTS[0])]}
    one.shell.space["soft_threshold"] = named

    one.answers()

    assert len(waited) == 1
    payloads = [frame[framing.HEAD.size:] for frame in sent if len(frame) > framing.HEAD.size]
    assert payloads == [b"new", runner.FAULTS[0]]


def test_a_missing_name_is_traced_to_the_cell_that_stopped(grade):
    cells = ("from kaggle_secrets import UserSecretsClient\nEPS = UserSecretsClient()",)
    uses = "def dead_units(h):\n    return EPS"

    result = grade(worksheet(*cells, e4=uses))

    message = entry(result, "01.4")["message"]
    assert "name 'EPS' is not defined" in message
    assert "Before that, cell 2, line 1 stopped: ModuleNotFoundError" in message


def test_an_answer_that_hangs_is_named_and_not_the_first_cell_that_stopped(grade):
    result = grade(worksheet("def broken(:", e5="", last=(
        "while True:\n    pass", "check('01.5', soft_threshold)")))

    message = entry(result, "01.5")["message"]
    assert "The cell above its check, cell 7, stopped: ran past the time limit" in message


def test_a_check_cell_is_not_the_cause_of_a_missing_function(grade):
    result = grade(worksheet(e5="", last=("check('01.5', soft_threshold)",)))

    assert entry(result, "01.5")["message"] == (
        "soft_threshold is not defined after all cells have run.")


# ---- an answer that faults costs its own points

FAULTS = {
    "crashes": ("import ctypes; ctypes.string_at(0)", "ended the Python process"),
    "exits": ("import os; os._exit(0)", "ended the Python process"),
    "raises SystemExit": ("raise SystemExit(0)", "raised SystemExit"),
    "kills its group": ("import os; os.killpg(0, 9)", "ended the Python process"),
    "3 GB": ("x = bytearray(3 << 30)", "raised MemoryError"),
    "10**12 zeros": ("return torch.zeros(10**12)", "raised RuntimeError"),
    "80 MB": ("return torch.zeros(20_000_000)", "returned more than 4 MiB"),
    "many answers of 3 MB": ("return [torch.zeros(700_000)] * 20", "returned more than 4 MiB"),
    "expanded view": ("return torch.zeros(1).expand(10**12)", "raised RuntimeError"),
    "a long list": ("return list(range(250_000))", "returned more than 4 MiB"),
    "nested list": ("x = []\n    for _ in range(10**4): x = [x]\n    return x", "type of the"),
    "a list that holds itself": ("x = []; x.append(x); return x", "type of the"),
    "a very long int": ("return 10**5000", "type of the"),
    "a generator": ("return (i for i in range(3))", "got generator"),
    "an open file": ("return open('/dev/null')", "TextIOWrapper"),
    "itself": ("return grad_ratio", "got function"),
    "an exception": ("return ValueError('x')", "got ValueError"),
    "NaN": ("return float('nan')", "got nan"),
    "infinity": ("return float('inf')", "got inf"),
    "None": ("return None", "got NoneType"),
    "True": ("return True", "got bool"),
    "complex": ("return 1j", "got complex"),
    "a numpy float": ("import numpy; return numpy.float32(0.5)", "got numpy.float32"),
    "a tensor": ("return torch.tensor(0.5)", "got Tensor"),
    "a sparse tensor": ("return torch.eye(3).to_sparse()", "type of the"),
    "a meta tensor": ("return torch.empty(3, device='meta')", "raised|type of the"),
    "an error with a wild text": (
        "raise ValueError('\\x1b[31mred\\x00\\u202e' + 'y' * 10**6)", "raised ValueError"),
}


# One each: ends its process, raises, uses too much, never ends, has no form, wrong type.
SOME_FAULTS = {"crashes", "raises SystemExit", "3 GB", "80 MB", "a list that holds itself",
               "a sparse tensor", "a generator", "NaN", "an error with a wild text"}


@pytest.mark.parametrize("name", mark_nightly(FAULTS, lambda name: name in SOME_FAULTS))
def test_a_bad_answer_costs_only_its_own_points(grade, name):
    body, message = FAULTS[name]

    result = grade(worksheet(e3=f"def grad_ratio(model, x, y):\n    {body}"), "01.3", "01.4")

    assert lost(result) == {"01.3"}, statuses(result)
    assert result["points"] == POINTS["01.4"]
    found = entry(result, "01.3")["message"]
    assert any(part in found for part in message.split("|")), found
    assert found.isprintable()


def test_a_slow_or_crashing_neighbour_is_reported_by_its_own_name(grade_in_a_hurry):
    crash = "def dead_units(h):\n    import ctypes; ctypes.string_at(0)"

    result = grade_in_a_hurry(worksheet(e3=LOOP, e4=crash))

    assert lost(result) == {"01.3", "01.4"}
    assert "did not return" in entry(result, "01.3")["message"]
    assert "ended the Python process" in entry(result, "01.4")["message"]


def test_an_answer_that_sleeps_costs_only_its_own_points(grade_in_a_hurry):
    sleeps = "def grad_ratio(model, x, y):\n    import time; time.sleep(1e6)"

    result = grade_in_a_hurry(worksheet(e3=sleeps))

    assert lost(result) == {"01.3"}
    assert f"did not return within {HURRY} s" in entry(result, "01.3")["message"]


def test_an_answer_that_spoils_torch_while_it_runs_does_not_spoil_the_next(grade):
    spoiler = ("def predict(model, x):\n    torch.Tensor.softmax = torch.softmax = None\n"
               "    torch.relu = F.relu = None\n    raise ValueError('gone')")

    result = grade(worksheet(e1=spoiler))

    assert lost(result) == {"01.1"}


IMPORTS = {
    "above the others": "import not_here\nimport torch as kept",
    "in one line with others": "import not_here, torch as kept",
    "behind a semicolon": "x = 1; import not_here; import torch as kept",
    "two that are missing": "from not_here import a\nimport not_there.b as c, torch as kept",
    "below a magic": "%matplotlib inline\nimport not_here  # for later\nimport torch as kept",
}


@pytest.mark.parametrize("name", IMPORTS)
def test_a_package_that_is_missing_costs_what_needs_it(grade, name):
    uses = right_answers()["01.1"].replace("torch.", "kept.")
    assert "kept." in uses

    result = grade(worksheet(IMPORTS[name], e1=uses), "01.1", "01.4")

    expect_stopped(result, 2)
    assert result["cells"][0]["error"].startswith("ModuleNotFoundError: No module named 'not_here'")


@pytest.mark.parametrize("first", ["import dlsys_checks.s01", "from dlsys_checks import s01"])
def test_asking_for_the_checks_is_said_and_costs_nothing(grade, first):
    result = grade(worksheet(first), "01.4")
    result["learner"] = {"name": "mal", "id": "", "source": "", "raw": ""}

    assert (reports.asked_for_checks([result]), reports.missing_packages([result])) == (["mal"], [])


def test_an_import_that_fails_inside_a_function_stops_its_cell(grade):
    result = grade(worksheet("def load():\n    import not_here\nload()\nkept = 1",
                             e1="assert kept\n" + right_answers()["01.1"]))

    assert [report["number"] for report in result["cells"]][:1] == [2]
    assert lost(result) == {"01.1"}


def test_the_message_names_cell_line_and_code(grade):
    result = grade(worksheet(e4="def dead_units(h):\n    x = 1\n    return h.sun()"))

    assert "cell 3, line 3: return h.sun()" in entry(result, "01.4")["message"]


def test_a_missing_function_is_explained_by_the_cell_that_broke(grade):
    result = grade(worksheet(e4="def dead_units(h):\n    return (h == 0"))

    assert lost(result) == {"01.4"}
    assert "because cell 3, line 2 stopped: SyntaxError" in entry(result, "01.4")["message"]


# ---- exhausting the machine

HOG = ("import os, time\nfor _ in range(10):\n    if os.fork() == 0:\n"
       "        x = b'x' * (300 << 20); time.sleep(30)\ntime.sleep(30)")
BOMB = ("import os, time\nmade = 0\ntry:\n    for _ in range(100):\n"
        "        if os.fork() == 0:\n            time.sleep(60)\n"
        "        made += 1\nexcept BlockingIOError:\n    pass\n"
        "assert made < {most}, made")
ORPHANS = ("import os, time, ctypes\nfor _ in range(5):\n    if os.fork() == 0:\n"
           "        os.setsid()\n"
           "        if os.fork() == 0:\n            ctypes.CDLL(None).prctl(15, b'orphan-qx')\n"
           "            time.sleep(600)\n        os._exit(0)")


NEARLY_ALL = ("x = b'x' * (440 << 20)\n"
              "with open('f', 'wb') as f:\n    for _ in range(60): f.write(bytes(1 << 20))\n"
              "del x")


@pytest.fixture
def patient(grader, monkeypatch):
    """A time limit that tests which use much memory or time on purpose do not reach."""
    limits = dataclasses.replace(grader.settings.limits, seconds=90.0)
    monkeypatch.setattr(grader.judge.zygote, "limits", limits)


@pytest.mark.usefixtures("patient")
def test_a_right_submission_may_use_nearly_all_its_memory_and_disk(grade):
    result = grade(worksheet(NEARLY_ALL), "01.4")

    assert (result["ended_by"], result["cells"]) == ("", [])
    assert result["points"] == POINTS["01.4"]


def test_runners_are_in_the_graders_control_group_where_it_can_have_one(grade, grader):
    group, wall = grader.judge.zygote.group, grader.judge.wall
    result = grade(worksheet(f"assert {group.name!r} in open('/proc/self/cgroup').read()"), "01.4")

    assert result["cells"] == []
    assert ("by a control group made for them" in wall) == bool(group.fds)


BURN = "while time.process_time() < 0.3: pass\n"
BURNT = {
    "a checkpoint left": ("import time\n" + BURN, True, ""),
    "the watch ended": (
        "import os, time\nif os.fork() == 0:\n    " + BURN + "    open('done', 'w')\n"
        "    x = b'x' * (300 << 20); time.sleep(60)\n"
        "while not os.path.exists('done'): time.sleep(0.01)\n"
        "x = b'x' * (300 << 20); time.sleep(60)", False, "memory")}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", BURNT)
def test_the_time_of_all_processes_counts(grader, name):
    source, checkpoints, ended_by = BURNT[name]

    with grader.judge.zygote.sandbox() as box:
        box.attempt([(1, source), (2, "pass")], [], checkpoints=checkpoints)

    assert box.used["ended_by"] == ended_by
    assert 0.3 <= box.used["cpu_seconds"] < 4


@pytest.mark.usefixtures("patient")
def test_many_processes_share_one_memory_limit(grade):
    result = grade(worksheet(HOG))

    assert result["ended_by"] == "memory"
    assert result["points"] == 0
    assert "GiB of memory in total" in entry(result, "01.1")["message"]


ENDINGS = {"memory": "took more than 0.5 GiB of memory in total.",
           "time": "took more than 30 s in total."}


@pytest.mark.parametrize("why", ENDINGS)
def test_what_was_answered_in_the_second_attempt_keeps_its_own_words(why):
    """The first attempt died; the second answered one exercise, then was ended from outside."""
    silent, spoke = sandbox.Attempt(fault="died"), sandbox.Attempt(
        fault="died", cells_done=True, answers={0: [serialization.pack({"missing": "int"})]})
    attempts = iter([silent, spoke])
    box = types.SimpleNamespace(attempt=lambda *_, **__: next(attempts),
                                limits=settings().limits, used={"ended_by": why})
    papers = [types.SimpleNamespace(
        exercise=types.SimpleNamespace(id=trap.id, by_hand=(), promises=()), trap=trap,
        packed=b"", all_cases=[])
        for trap in catalog.traps(1)[:2]]
    session = judge.GradingSession(submitted_notebook.Notebook(1, []), papers, box)

    session.judge_all()
    first, second = (entry["message"] for entry in session.result()["exercises"])

    assert first.startswith("to_probs is an int, not a function")
    assert second.endswith(ENDINGS[why])


def test_the_errors_of_many_cells_are_too_short_to_send_the_cases_out():
    """A hundred cells with 120 letters each once sent learners 17,500 bytes of the cases."""
    cells = [(number, "x") for number in range(1, 101)]
    told = [{"number": n, "line": 1, "error": f"E: {chr(0x4e00 + n) * 110}"} for n in range(1, 101)]
    kept = judge.valid_reports(sandbox.Attempt(cells=told), cells, 32)
    texts = {report["error"] for report in kept} - {judge.NO_ROOM}
    assert [report["number"] for report in kept] == [*range(1, 101)]
    assert 0 < len("".join(texts).encode()) <= judge.LONGEST_ERRORS
    same = [{"number": n, "line": 1, "error": "NameError: name 'x' is not defined"}
            for n in range(1, 101)]
    assert judge.valid_reports(sandbox.Attempt(cells=[*same]), cells, 32) == same


def test_forged_reports_of_cells_name_only_cells_and_lines_that_there_are():
    forged = [{"number": number, "line": line, "error": "x"}
              for number, line in [(2, 1), (2, 10**300), (10**300, 1), (2, -1), (True, 1), (3, 1)]]
    attempt = sandbox.Attempt(cells=forged, cells_done=True)

    assert [(r["number"], r["line"]) for r in judge.valid_reports(attempt, [(2, "a\nb")], 32)] == [
        (2, 1), (2, None), (2, None)]


def test_an_error_is_too_short_to_read_a_case_out_and_names_a_line_that_there_is(grade):
    """The feedback of `raise ValueError(repr(h))` once contained 37 numbers of a case."""
    said = "' '.join(f'{x:.6f}' for x in h.flatten().tolist())"
    tells = f"def dead_units(h):\n    raise type('E' * 300, (Exception,), {{}})({said})"

    result = grade(worksheet("raise ValueError('7' * 300)", e4=tells), "01.4")

    assert len(result["cells"][0]["error"]) == judge.LONGEST_ERROR
    message = entry(result, "01.4")["message"]
    assert "E" * judge.LONGEST_TYPE + ": " in message
    assert "E" * (judge.LONGEST_TYPE + 1) + ":" not in message
    assert len(message.partition(": ")[2].partition("... (cell 4, line 2: raise type(")[0]) == (
        judge.LONGEST_ERROR - 3), message
    assert judge.place_of("cell 9, line 1: 0.5 0.25", [(1, "a\nb")]) == ""
    assert judge.place_of("cell 1, line 2: 0.5 0.25", [(1, "a\nb")]) == "cell 1, line 2: b"


def test_a_cell_whose_children_still_count_costs_no_other_points(grade_in_a_hurry):
    many = ("import os, time\nfor _ in range(26):\n    if os.fork() == 0:\n"
            "        time.sleep(1e6)\ntime.sleep(1e6)")

    result = grade_in_a_hurry(worksheet(many))

    assert result["ended_by"] == ""
    assert result["points"] == FULL, statuses(result)


CROWD = ("import threading, time\n{0}for _ in range(60):\n"
         "{0}    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()")


def test_the_limit_of_processes_is_named_to_whom_it_stops(grade):
    answer = "def grad_ratio(model, x, y):\n    " + CROWD.format("    ")

    result = grade(worksheet(CROWD.format(""), e3=answer), "01.3")

    for text in (result["cells"][0]["error"], entry(result, "01.3")["message"]):
        assert "can't start new thread. The sandbox allows 24 processes and threads" in text
        assert "num_workers=0" in text


def test_what_hangs_in_a_crowd_is_told_the_limit(monkeypatch):
    monkeypatch.setattr(process_limit, "process_limit", lambda: 24)
    monkeypatch.setattr(process_limit, "count_running", lambda: 23)
    answer = serialization.unpack(runner.run_in_child(lambda: time.sleep(60), 0.05))
    box = types.SimpleNamespace(limits=settings().limits)

    verdict = judge.fault_verdict(types.SimpleNamespace(
        trap=catalog.trap("01.3"), exercise=types.SimpleNamespace(id="01.3")), "crowded", box)

    assert answer == {"fault": "crowded"}
    assert "within 3 s, with many processes" in verdict.message
    assert "allows 24 together" in verdict.message
    said = process_limit.timeout_in_a_crowd()
    assert "with 23 processes and threads running. The sandbox allows 24" in said


def test_a_fork_bomb_stops_at_the_limit(grade):
    assert grade(worksheet(BOMB.format(most=30)))["cells"] == []


def test_no_process_outlives_its_submission(grade):
    assert grade(worksheet(ORPHANS))["points"] == FULL
    assert "orphan-qx\n" not in process_names()


def process_names() -> list[str]:
    """The names of this machine's processes, as /proc has them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # the process has ended by now
            found.append(path.read_text())
    return found


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
PATCHES = {
    "patches comparisons": (
        "import builtins, math\n"
        "torch.allclose = torch.equal = torch.isclose = lambda *a, **k: True\n"
        "builtins.abs = lambda x: 0\nbuiltins.all = lambda x: True\n"
        "math.isclose = lambda *a: True"),
    "patches the check": (
        "import dlsys_helpers as h\nfrom dlsys_helpers import expect, judging, verdicts\n"
        "expect.expect_close = expect.expect_equal = lambda *a, **k: 0\n"
        "judging.Exercise.judge = lambda s, *a: verdicts.Verdict('pass', s.id)\n"
        "h.check = lambda *a: None"),
    "strips asserts": "get_ipython().ast_transformers.append(None)",
    "prints a verdict": (
        "print('8 passed'); print('{\"points\": 100, \"status\": \"pass\"}')\n"
        "open('grades.json', 'w').write('{}')"),
}
CHEATS = {
    "patches the act's outcome": (
        "import dlsys_helpers.acting as a\na.run_act = lambda *x: a.Outcome('todo')\n"
        "import dlsys.grading.walls.runner as r\nr.answer = lambda *x: b''"),
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
    "writes 500,000 answers": (
        "import os, struct\nj = b'[\"l\",[' + b','.join([b'[\"t\",\"bool\",[0]]'] * 9000) + b']]'\n"
        "m = struct.pack('<II', len(j), 0) + j\nfor k in range(60):\n"
        "    f = struct.pack('<HI', k, len(m)) + m\n    for fd in range(3, 12):\n"
        "        try: os.write(fd, f)\n        except OSError: pass"),
    "writes 50,000 reports of cells": (
        "from dlsys.grading.walls import serialization, framing\nimport os\n"
        "m = serialization.pack({'cells': [{'number': 1, 'line': 1, 'error': 'x' * 50}] * 20000})\n"
        "for fd in range(3, 12):\n    try: os.write(fd, framing.frame(framing.CELLS, m))\n"
        "    except OSError: pass"),
    "writes a pickle": (
        "import os, pickle\nclass P:\n    def __reduce__(self): return (os.system, ('id',))\n"
        "p = pickle.dumps(P())\nfor fd in range(3, 200):\n    try: os.write(fd, p)\n"
        "    except OSError: pass"),
    "closes every descriptor": "import os; os.closerange(0, 256)",
    "kills the init": "import os; os.kill(1, 9); os.kill(-1, 15)",
    "kills everything": "import os; os.kill(-1, 9)",
    "limits the init": (
        "import resource, os\nresource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))"),
    "reads the init's memory": "open('/proc/1/mem', 'rb').read(10)",
    "lists the init's descriptors": "import os; print(os.listdir('/proc/1/fd'))",
}


def test_no_patch_of_what_judges_earns_a_point(grade):
    result = grade(worksheet(*PATCHES.values(), **WRONG))

    assert set(statuses(result)) == set(POINTS)
    assert set(statuses(result).values()) <= {"wrong", "error"}, result["exercises"]
    assert "wrong" in statuses(result).values()


# One each: patches, writes no frame or a misplaced one, asks for too much, kills.
SOME_CHEATS = {"patches the act's outcome", "writes to every descriptor",
               "writes a frame that ends the attempt", "writes an answer of 4 GB",
               "writes a pickle", "closes every descriptor", "kills everything"}


@pytest.mark.parametrize("name", mark_nightly(CHEATS, lambda name: name in SOME_CHEATS))
def test_no_trick_in_a_cell_earns_a_point(grade, name):
    result = grade(worksheet(CHEATS[name], **WRONG), "01.4", "01.5")

    assert result["points"] == 0
    assert result["possible"] == POINTS["01.4"] + POINTS["01.5"]
    assert not set(statuses(result).values()) & {"pass"}
    assert len(result["cells"]) <= 100


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
    "a type that is numpy's by hash and equality": (
        "import numpy as np\nclass M(type):\n    __hash__ = lambda c: hash(np.float64)\n"
        "    __eq__ = lambda c, o: True\nclass N(float, metaclass=M):\n"
        "    __eq__ = lambda s, o: True\n    __abs__ = __float__ = lambda s: s\n"
        "    __sub__ = __rsub__ = lambda s, o: 0.0\n    __hash__ = None\n"
        "def grad_ratio(model, x, y): return N(-1.0)"),
    "a list that is a message, of a type that is bool": (
        "class M(type):\n    __hash__ = type.__hash__\n"
        "    __eq__ = lambda c, o: o in (bool, str)\nclass L(list, metaclass=M): pass\n"
        "def grad_ratio(model, x, y): return L(['x', 'float'])"),
    "a type whose name is no text": (
        "class M(type):\n    __name__ = property(lambda c: object())\n"
        "class N(metaclass=M): pass\ndef grad_ratio(model, x, y): return N()"),
    "a tensor whose attributes lie": (
        "class T(torch.Tensor):\n    requires_grad = property(lambda s: 1 / 0)\n"
        "    shape = property(lambda s: ())\n    numel = lambda s: 0\n"
        "def grad_ratio(model, x, y):\n    t = torch.zeros(4)\n    t.__class__ = T\n"
        "    return t"),
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
    result = grade(worksheet(e3=LIARS[name]), "01.3", "01.4")

    assert lost(result) == {"01.3"}


def test_no_source_of_a_check_or_a_solution_is_in_reach(grade):
    places = [str(paths.SOLUTIONS), str(paths.ROOT / "lessons"),
              str(paths.ROOT / "tests"), *isolation.masked_paths()]
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
    importlib.import_module("dlsys_checks.s01.e1_predict")
    raise SystemExit("imported the checks")
except ImportError:
    pass
from dlsys_helpers import check
assert not [name for name in sys.modules if name.startswith("dlsys_checks.")]
"""
    result = grade(worksheet(search))

    assert result["cells"] == []


def test_memorised_answers_to_the_fixed_seeds_do_not_pass(grade):
    table = """
def dead_units(h):
    if h.isnan().any(): raise ValueError
    known = {(31, 12): 3, (9, 16): 0, (8, 6): 1}
    return known[tuple(h.shape)] if h[0, 0] == 0 else 99"""
    assert lost(grade(worksheet(e4=table))) == {"01.4"}


def test_what_a_learner_sees_is_the_same_in_every_run_and_names_no_grader(grade):
    look = ("import os\nassert not [k for k in os.environ if 'NBG' in k or 'DLSYS' in k], 'env'\n"
            "assert set(os.listdir('/sandbox')) <= set(), os.listdir('/sandbox')\n"
            "assert 'PATH' not in os.environ and os.environ['HOME'] == '/sandbox'\n"
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
    output = [{"output_type": "display_data", "data": {"text/plain": "any words"},
               "metadata": verdicts.Verdict("pass", "01.4").facts()}]
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
    ("e5", "def soft_threshold(x, cut):\n    x.detach().zero_()\n    return x",
     "result|input after the call"),
    ("e4", "def dead_units(h):\n    h.zero_()\n    return h.shape[1]", "dead units|changed"),
    ("e4", "def dead_units(h):\n    return torch.zeros(16, 7)", "got Tensor, expected int"),
    ("e2", "def to_probs(logits, kind):\n    return torch.tensor(0.25)", "shape of the"),
    ("e2", "def to_probs(logits, kind):\n    return logits * float('nan')", "got nan"),
    ("e2", "def to_probs(logits, kind):\n    return logits.double().softmax(1)", "dtype|got 1"),
    ("e2", "def to_probs(logits, kind):\n    return torch.rand_like(logits)", "probabilities"),
])
def test_wrong_numbers_fail_by_name(grade, id, source, message):
    asked = f"01.{id[1]}"
    result = grade(worksheet(**{id: source}), "01.3", asked)

    assert lost(result) == {asked}
    found = entry(result, asked)["message"]
    assert any(part in found for part in message.split("|")), found


def test_the_misconception_is_named(grade):
    zeros = "def dead_units(h):\n    if h.isnan().any(): raise ValueError\n"
    result = grade(worksheet(e4=zeros + "    return int((h == 0).sum())"))

    assert entry(result, "01.4")["misconception"] == "counting zeros instead of units"


LIBRARY = """import torch
import torch.nn.functional as F
def ce_from_logits(logits, y):
    z = logits.detach().requires_grad_()
    loss = F.cross_entropy(z, y)
    return loss.detach(), torch.autograd.grad(loss, z)[0]
"""


def test_what_should_be_written_by_hand_is_refused_from_the_library(grade):
    solved = json.loads((paths.SOLUTIONS / "03_losses.ipynb").read_text("utf-8"))
    for cell in solved["cells"]:
        if "def ce_from_logits" in "".join(cell["source"]):
            cell["source"] = LIBRARY
    solved["metadata"]["dlsys"]["view"] = "exercise"
    result = grade(json.dumps(solved).encode())

    assert lost(result) == {"03.1"}
    assert "['cross_entropy', 'grad']" in entry(result, "03.1")["message"]


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
    "another root": "import os; os.chroot('/sandbox')",
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
    "data out of band": (
        "import socket\nsocket.socketpair()[0].send(b'x', socket.MSG_OOB)"),
    "the init's priority": "import os; os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "the priority of all": "import os; os.setpriority(os.PRIO_USER, 0, 19)",
    "the init's cores": "import os; os.sched_setaffinity(1, {0})",
    "the init's environment": "open('/proc/1/environ')",
    "the init's files": "import os; os.listdir('/proc/1/root')",
    "the init's place among what the kernel ends": (
        "open('/proc/1/oom_score_adj', 'w').write('1000')"),
    "the init's turn": "import os; os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
}


CALL = "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc."
DENIED = {
    "shared memory without a file": "import mmap; mmap.mmap(-1, 1 << 20)",
    "shared memory of a device": "open('/dev/zero')",
    "a file in memory": "import os; os.memfd_create('x')",
    "shared memory of System V": CALL + "shmget(0, 1 << 20, 0o1600) >= 0, 'denied'",
    "larger buffers": (
        "import socket\nsocket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 7, 1 << 30)"),
    "larger pipes": "import fcntl, os; fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",
    "semaphores of System V": CALL + "semget(0, 32000, 0o1600) >= 0, 'denied'",
    "watching files": CALL + "inotify_init() >= 0, 'denied'",
    "a lease on a file": (
        "import fcntl\nfcntl.fcntl(open(torch.__file__), fcntl.F_SETLEASE, fcntl.F_RDLCK)"),
    "a hint on a file": (
        "import fcntl\nfcntl.fcntl(open(torch.__file__), 1036, (2).to_bytes(8, 'little'))"),
}


def test_nothing_outside_can_be_reached(grade):
    expect_each_stopped(grade(worksheet(*REACHES.values())), REACHES)


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
            "clone with a new user namespace": (56, 0x10000011),
            "clone of a sibling": (56, 0x8000 | 17), "clone3": (435, 0, 88),
            "sync": (162,), "a pair of network sockets": (53, 2, 1, 0),
            "a call of tomorrow": (470, 0), "open_by_handle_at": (304, 0), "kexec_load": (246, 0),
            "x32 numbers": (0x40000000 + 59, 0), "personality": (135, 0x0400000)}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
def test_system_calls_that_open_doors_are_denied(grade):
    calls = [("import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
              f"r = libc.syscall(*{SYSCALLS[name]!r}, 0, 0, 0)\n"
              "assert r == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS), "
              f"({name!r}, r, ctypes.get_errno())") for name in SYSCALLS]

    expect_stopped(grade(worksheet(*calls)))


def test_a_listener_on_this_machine_hears_nothing(grade):
    with socket.create_server(("127.0.0.1", 0)) as server:  # connections wait until accepted
        port = server.getsockname()[1]
        grade(worksheet(f"import socket; socket.create_connection(('127.0.0.1', {port}))",
                        f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}')"))
        with socket.create_connection(("127.0.0.1", port)) as ours:  # the listener does work
            assert _heard(server) == [ours.getsockname()]


def _heard(server: socket.socket) -> list:
    """The addresses of the clients that wait to be accepted."""
    server.settimeout(0.5)
    heard = []
    with contextlib.suppress(TimeoutError):
        while True:
            connection, address = server.accept()
            connection.close()
            heard.append(address)
    return heard


# An abstract name, without a file: if two submissions share it, the second gets an error.
NAMED = "import os, socket, time\ns = socket.socket(socket.AF_UNIX)\ns.{}"


def test_two_submissions_share_nothing(grade):
    first = grade(worksheet("open('/sandbox/left', 'w').write('x'); torch.left = 1\n"
                            "import builtins; builtins.left = 1", NAMED.format(
                                "bind('\\0left'); s.listen()\nif not os.fork(): time.sleep(1e6)")))
    second = grade(worksheet("import os, builtins\nassert not os.listdir('/sandbox')\n"
                             "assert not hasattr(torch, 'left') and not hasattr(builtins, 'left')",
                             f"{NAMED.format('bind')}('\\0left')"))

    assert first["cells"] == second["cells"] == []


def test_a_flag_of_an_open_file_is_not_left_for_the_next_submission(grade):
    flags = "import fcntl, os\nmarks = os.O_APPEND | os.O_NONBLOCK\nfor fd in range(3):\n    "
    leaves = f"{flags}fcntl.fcntl(fd, fcntl.F_SETFL, marks)"
    looks = f"{flags}assert not fcntl.fcntl(fd, fcntl.F_GETFL) & marks, fd"

    first, second = grade(worksheet(leaves), "01.4"), grade(worksheet(looks), "01.4")

    assert first["cells"] == second["cells"] == []


def test_the_limit_for_a_whole_submission_holds():
    """The supervisor ends a sandbox whose time is up even if none of its cells is late."""
    limits = dataclasses.replace(settings().limits, total=0.1)
    watch = supervisor.Supervised(None, False, limits, None)
    (life, kept), (mine, theirs) = os.pipe(), socket.socketpair()
    with mine, theirs:
        init_fd = os.pidfd_open(os.getpid())  # stands in for an init that lives on
        watch.watch_until_closed(init_fd, life, mine)
    for fd in (init_fd, life, kept):
        os.close(fd)

    assert watch.ended_by == "time"


# ---- files of the machine that a program holds without opening them

METADATA = """
import os
done = []
for name in ("/proc/self/exe", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2", "/",
             "/proc/self/root", "/dev", "/dev/null", "/dev/urandom", os.__file__, torch.__file__):
    for change in (lambda: os.chmod(name, os.stat(name).st_mode & 0o7777),
                   lambda: os.chown(name, os.getuid(), os.getgid()),
                   lambda: os.utime(name), lambda: os.utime(name, (1e9, 1e9)),
                   lambda: os.setxattr(name, "user.note", b"from the box")):
        try:
            change()
            done.append(name)
        except OSError:
            pass
assert not done, done
"""
NOBODY = 65534


def test_no_file_of_the_machine_can_be_changed_in_mode_owner_or_times(grade):
    result = grade(worksheet(METADATA))

    assert result["cells"] == []
    assert result["points"] == FULL


@pytest.fixture(scope="module")
def owned_folder():
    """An ordinary user's folder, a link to an interpreter that the user owns, and the user's id."""
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    with tempfile.TemporaryDirectory(prefix="dlsys-owned-") as name:
        folder, python = Path(name), Path(name, "venv", "bin", "python")
        python.parent.mkdir(parents=True)
        shutil.copy(os.path.realpath(sys.executable), python.with_name("itself"))
        python.symlink_to("itself")
        (folder / "venv" / "lib").symlink_to(f"{sys.prefix}/lib")
        (folder / "venv" / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n", "utf-8")
        for path in (folder, python.parent.parent, python.parent, python):
            os.chown(path, user, user)
        yield folder, python, user


def grade_as(folder: Path, python: list, user: int | None, **handed_in: bytes) -> dict:
    """Result by name of one `dlsys grade` run as this user; skips if the user cannot run it."""
    def run(*command: str) -> subprocess.CompletedProcess:
        who = {} if user is None or os.geteuid() else {
            "user": user, "group": user, "extra_groups": []}
        return subprocess.run(
            command, cwd="/", capture_output=True, text=True, check=False,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, **who)
    imports = "import dlsys_helpers, importlib.metadata as m; m.version('torch')"
    for able in (run("/usr/bin/env", "unshare", "-Ur", "true"), run(*python, "-P", "-c", imports)):
        if able.returncode:
            without_sandbox(f"{user or 'this user'} cannot grade here: {able.stderr[-300:]}")
    names = []
    for name, data in handed_in.items():
        names.append(str(folder / f"{name}.ipynb"))
        Path(names[-1]).write_bytes(data)
    ended = run(*python, "-P", "-m", "dlsys.cli", "grade", *names, "--out", f"{folder}/out",
                "--workers", "1", "--memory", "0.5", "--seconds", "3")
    assert (folder / "out" / "grades.json").exists(), ended.stdout + ended.stderr
    results = json.loads((folder / "out" / "grades.json").read_text("utf-8"))["results"]
    return {result["name"].removesuffix(".ipynb"): result for result in results}


@pytest.mark.nightly  # as an ordinary user, see below
def test_root_of_a_user_namespace_keeps_its_files(tmp_path):
    (result,) = grade_as(tmp_path, ["unshare", "-Ur", sys.executable], None,
                         a=worksheet(METADATA)).values()

    assert result["cells"] == []
    assert result["points"] == FULL


# ---- an ordinary user's sandboxes hold what root's hold, although their walls differ

@pytest.fixture(scope="module")
def by_user(owned_folder):
    """Results of hostile submissions in an ordinary user's run, with the user's interpreter."""
    folder, python, user = owned_folder
    before = python.stat()
    results = grade_as(
        folder, [str(python)], user, metadata=worksheet(METADATA),
        doors=worksheet(*REACHES.values(), *DENIED.values()),
        ended=worksheet(*ENDED.values(), CHEATS["kills everything"]), memory=worksheet(HOG),
        orphans=worksheet(ORPHANS, BOMB.format(most=40)),
        patches=worksheet(*PATCHES.values(), **WRONG))
    return types.SimpleNamespace(results=results, python=python, before=before)


def test_the_interpreter_of_an_ordinary_user_cannot_be_changed(by_user):
    expect_stopped(by_user.results["metadata"])
    before, after = by_user.before, by_user.python.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode, before.st_mtime_ns, before.st_ctime_ns)
    assert os.listxattr(by_user.python) == []


def test_nothing_outside_can_be_reached_from_a_users_sandbox(by_user):
    expect_each_stopped(by_user.results["doors"], REACHES | DENIED)


def test_a_users_sandbox_ends_with_all_that_is_in_it(by_user):
    expect_each_stopped(by_user.results["ended"], ENDED)
    expect_stopped(by_user.results["orphans"])
    assert "orphan-qx\n" not in process_names()
    assert by_user.results["memory"]["ended_by"] == "memory"


def test_no_patch_earns_a_point_from_a_user(by_user):
    assert by_user.results["patches"]["points"] == 0


# ---- memory that no process seems to hold, and what is left over

HOARDS = {
    "buffers of sockets": (
        "import os, socket, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
        "        keep = [socket.socketpair() for _ in range(110)]\n"
        "        for one in (s for pair in keep for s in pair):\n"
        "            one.setblocking(False)\n            try:\n"
        "                while True: one.send(b'x' * 65536)\n"
        "            except BlockingIOError: pass\n        time.sleep(30)\ntime.sleep(30)"),
    "processes whose first thread has ended": (
        "import ctypes, os, threading, time\n"
        "def hold():\n    time.sleep(0.5)  # until the first thread is gone\n"
        "    x = b'x' * (200 << 20)\n    time.sleep(30)\nfor _ in range(4):\n"
        "    if os.fork() == 0:\n        threading.Thread(target=hold).start()\n"
        "        ctypes.CDLL(None).syscall({'x86_64': 60}.get(os.uname().machine, 93), 0)\n"
        "time.sleep(30)"),
}


@pytest.mark.parametrize("name", HOARDS)
def test_the_watch_finds_what_is_hoarded(grade, name):
    result = grade(worksheet(HOARDS[name]))

    assert result["ended_by"] == "memory"
    assert result["points"] == 0


def test_what_could_be_hoarded_or_left_for_others_is_denied(grade):
    expect_each_stopped(grade(worksheet(*DENIED.values())), DENIED)


def test_a_lock_of_one_sandbox_is_not_seen_by_others(grade):
    import fcntl

    import torch
    with open(torch.__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = grade(worksheet("import fcntl\nf = open(torch.__file__)\n"
                                 "fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"))
    assert result["cells"] == []


def test_a_second_attempt_finds_nothing_of_the_first(grade):
    seen = ("import os, subprocess\nseen = os.path.exists('/sandbox/left/deep')\n"
            "os.makedirs('/sandbox/left/deep', exist_ok=True)\n"
            "open('/sandbox/left/\\udcff', 'w').close()\nos.chmod('/sandbox/left', 0)")
    answer = right_answers()["01.4"].replace("def dead_units", "def right")
    late = f"{answer}\ndef dead_units(h):\n    return right(h) if seen else -1"

    result = grade(worksheet(seen, e4=late))

    assert lost(result) == {"01.4"}
    assert result["cells"] == []


ORDINARY = {
    "files of all kinds": (
        "import os, shutil, zipfile\nopen('a', 'w').write('x' * 100)\nshutil.copy2('a', 'b')\n"
        "os.chmod('b', 0o640); os.utime('b', (1, 1))\nos.truncate('b', 10)\n"
        "os.mkdir('d'); shutil.move('b', 'd'); shutil.copytree('d', 'e')\n"
        "zipfile.ZipFile('z.zip', 'w').write('a')\nzipfile.ZipFile('z.zip').extractall('out')\n"
        "torch.save(torch.ones(3), 't.pt')\nassert torch.load('t.pt', mmap=True).sum() == 3\n"
        "shutil.rmtree('e')"),
    "sqlite, shelve and locks": (
        "import fcntl, shelve, sqlite3\nwith sqlite3.connect('x.db') as c:\n"
        "    c.execute('create table t (a)'); c.execute('insert into t values (3)')\n"
        "assert c.execute('select a from t').fetchone() == (3,)\n"
        "with shelve.open('s') as s: s['a'] = 1\n"
        "with open('l', 'w') as f: fcntl.lockf(f, fcntl.LOCK_EX); fcntl.flock(f, fcntl.LOCK_UN)"),
    "temporary files and memory maps": (
        "import mmap, numpy, tempfile\nwith tempfile.NamedTemporaryFile() as f:\n"
        "    f.write(b'x' * 4096); f.flush()\n    assert mmap.mmap(f.fileno(), 0)[0] == 120\n"
        "m = numpy.memmap('m', 'float32', 'w+', shape=(9,)); m[:] = 1; m.flush()"),
    "shared tensors": "torch.ones(3).share_memory_(); torch.ones(10**6).share_memory_()",
    "a DataLoader with four workers": (
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "data = TensorDataset(torch.randn(64, 8))\n"
        "loader = DataLoader(data, batch_size=4, num_workers=4, persistent_workers=True)\n"
        "assert sum(len(x) for _ in range(2) for x, in loader) == 128"),
    "asyncio with threads and streams": (
        "import asyncio\nasync def main():\n    async def serve(r, w):\n"
        "        w.write(await r.readline()); await w.drain(); w.close()\n"
        "    server = await asyncio.start_unix_server(serve, '/sandbox/sock')\n"
        "    r, w = await asyncio.open_unix_connection('/sandbox/sock')\n"
        "    w.write(b'hi\\n'); assert await r.readline() == b'hi\\n'\n"
        "    assert await asyncio.to_thread(sum, [1, 2]) == 3\n"
        "    w.close(); server.close()\nawait main()"),
    "a queue between processes": (
        "import multiprocessing as mp\ndef work(q): q.put(torch.arange(1000).sum().item())\n"
        "q = mp.Queue(); p = mp.Process(target=work, args=(q,)); p.start()\n"
        "assert q.get() == 499500; p.join()"),
    "tensors between processes": (
        "import torch.multiprocessing as mp\ndef work(q, r): q.put(torch.ones(5)); r.get()\n"
        "q, r = mp.Queue(), mp.Queue()\np = mp.Process(target=work, args=(q, r)); p.start()\n"
        "assert q.get().sum() == 5; r.put(1); p.join()"),
    "writing and reading the null device": (
        "import os\nopen('/dev/null', 'w').write('x'); assert open('/dev/null').read() == ''\n"
        "assert len(open('/dev/urandom', 'rb').read(3)) == 3 and len(os.urandom(3)) == 3"),
    "timers and pools": (
        "import concurrent.futures as c, threading\nt = threading.Timer(0.01, print); t.start()\n"
        "t.join()\nwith c.ProcessPoolExecutor(2, mp_context=__import__('multiprocessing')."
        "get_context('fork')) as p: assert list(p.map(abs, [-1])) == [1]\n"
        "with c.ThreadPoolExecutor(4) as p: assert list(p.map(abs, [-1])) == [1]"),
}


# Files with locks, shared memory, and processes; the others take the same paths.
SOME_ORDINARY = {"sqlite, shelve and locks", "shared tensors", "a DataLoader with four workers"}


@pytest.mark.parametrize("name", mark_nightly(ORDINARY, lambda name: name in SOME_ORDINARY))
def test_what_honest_code_does_with_the_system_goes_on_working(grade, name):
    expect_stopped(grade(worksheet(ORDINARY[name]), "01.4"))


# ---- answers that reach into the act: it must neither hold nor imply what a law expects

def solved_but(id: str, source: str) -> bytes:
    """The worked answers of a stage, with one exercise answered by `source`."""
    name, stem = f"def {function_of(id)}(", stages.stage(int(id[:2])).stem
    document = json.loads((paths.SOLUTIONS / f"{stem}.ipynb").read_text("utf-8"))
    cells = [c for c in document["cells"] if c["cell_type"] == "code" and c["metadata"].get(
        "dlsys", {}).get("role") in ("setup", "exercise")]
    kept = [code(source if name in "".join(c["source"]) else "".join(c["source"])) for c in cells]
    assert sum(cell["source"] == source for cell in kept) == 1
    document["metadata"]["dlsys"]["view"] = "exercise"  # solution notebooks never count
    return json.dumps({**document, "cells": kept}).encode()


def function_of(id: str) -> str:
    """The name that an exercise asks for."""
    return catalog.trap(id).function


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
    """Peak memory of this process, which is the judge, in MiB."""
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


@pytest.mark.parametrize("name", COSTLY)
def test_what_comes_back_costs_the_judge_little(grade_in_full, name):
    id, source = COSTLY[name]
    grade_in_full(solved_but(id, f"def {function_of(id)}(): pass"))  # loads and draws once
    memory = peak()

    result = grade_in_full(solved_but(id, source))

    assert lost(result) == {id}, statuses(result)
    assert peak() - memory < 400
