"""`dlsys watch`: every rule reports its fault and nothing else, and changes nothing.

The programs are in `watch/faults` and `watch/healthy`. The findings of whole lessons are a record
that `benchmarks.watch_lessons` renews.
"""

import email.message
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "watch"))

import faults
import healthy
import ranks

import dlsys_watch
from benchmarks import watch_corpus, watch_lessons, watch_page
from dlsys_helpers import catalog
from dlsys_watch import attach, command, formats, places, run, script, session
from dlsys_watch.rule import Rule
from dlsys_watch.rules import all_rules
from dlsys_watch.settings import Settings, SettingsError
from tools import book_traps, watch_record
from tools.nightly import mark_nightly

pytestmark = pytest.mark.filterwarnings("default")
RULES = {rule.id: rule for rule in all_rules()}


# ---- the rules

def test_there_are_many_rules_with_distinct_names():
    assert len(RULES) == len(all_rules()) >= 30
    assert sum(rule.sound for rule in all_rules()) >= 30


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_rule_names_a_trap_and_what_it_reads(rule):
    assert rule.trap in {t.id for t in catalog.traps()}
    assert len(rule.reads) > 20
    assert rule.__doc__ is None or "\n" not in rule.__doc__


def test_a_record_outlives_a_new_description_of_a_rule_but_no_new_message(tmp_path, monkeypatch):
    monkeypatch.setattr(watch_lessons, "WATCH", tmp_path)
    found = []
    for reads, said in [("a", "b"), ("c", "b"), ("a", "d")]:
        (tmp_path / "rule.py").write_text(f'class R:\n    reads = "{reads}"\n    said = "{said}"\n')
        found.append(watch_lessons.watch_digest())
    assert found[0] == found[1] != found[2]


def test_every_rule_has_a_program_with_its_fault():
    found = {faults.rule_of(path).id for path in faults.FAULTS}
    of_ranks = {"past-the-wrapper", "clip-before-reduce", "same-batch-on-ranks",   # two processes
                "not-reduced", "ranks-drift"}
    assert found | of_ranks == set(RULES)


@pytest.mark.parametrize("path", faults.FAULTS, ids=lambda path: path.stem)
def test_a_rule_tells_its_fault_by_line_and_is_silent_when_it_is_repaired(path):
    rule, source = faults.rule_of(path), path.read_text("utf-8")
    found, failed = faults.watch(source, path, hints=not rule.sound)
    assert {(f.rule, f.line) for f in found} <= {(rule.id, n) for n in faults.lines_found(source)}
    assert found
    assert {f.file for f in found} == {str(path)}
    assert not failed
    mended = faults.repaired(source)
    assert mended != source
    assert faults.watch(mended, path, hints=not rule.sound) == ([], {})


@pytest.mark.parametrize("stem", ["untied", "untied_by_to_empty"])
def test_weights_that_come_untied_lead_to_the_trap_about_them(stem):
    path = faults.FAULTS[0].with_name(stem + ".py")
    found, _ = faults.watch(path.read_text("utf-8"), path)
    assert {(f.rule, f.trap) for f in found} == {("untied", "08.12")}
    assert json.loads(formats.EXPLANATIONS.read_text("utf-8"))["untied"]["trap"] == "08.12"


@pytest.mark.parametrize("stem", ["attention_dropout_in_eval", "no_causal_mask", "softmax_twice"])
def test_a_fault_is_told_under_a_default_device(stem):
    path = faults.FAULTS[0].with_name(stem + ".py")
    with torch.device("cpu"):
        found, failed = faults.watch(path.read_text("utf-8"), path, hints=True)
    assert faults.rule_of(path).id in {f.rule for f in found}
    assert not failed


@pytest.mark.parametrize("path", healthy.HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_program_is_left_alone_and_computes_the_same(path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    alone, beside, found, failed = healthy.both(path)
    assert found == []
    assert failed == {}
    if path.stem in healthy.CACHING:   # its libraries cache tensors in the first run
        alone.pop("tensors"), beside.pop("tensors")
    assert beside == alone


@pytest.fixture
def few_looks(monkeypatch):
    """The watch skips most steps, as it does late in a long run."""
    for name, value in {"WARM_UP": 2, "SETTLED": 6, "AGAIN": {True: 5, False: 3}}.items():
        monkeypatch.setattr(run, name, value)


@pytest.mark.parametrize("path", mark_nightly(
    healthy.HEALTHY, lambda path: path.stem in {"fixmatch", "accumulation", "two_optimizers"}),
    ids=lambda path: path.stem)
def test_a_healthy_program_is_left_alone_when_few_steps_are_looked_at(path, few_looks, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert healthy.both(path)[2:] == ([], {})


@pytest.mark.parametrize("path", mark_nightly(
    faults.FAULTS, lambda path: "accumulation" in path.stem), ids=lambda path: path.stem)
def test_a_repaired_program_is_left_alone_when_few_steps_are_looked_at(path, few_looks):
    source = faults.repaired(path.read_text("utf-8"))
    assert faults.watch(source, path, hints=not faults.rule_of(path).sound) == ([], {})


class Hears(Rule):
    """A rule that records the events it hears of."""

    id = "hears"

    def __init__(self, watch):
        super().__init__(watch)
        self.heard = []

    def on_root(self, module, args, kwargs, grad):
        self.heard.append(("root", grad, module.training))

    def on_step(self, optimizer, closure):
        self.heard.append("step")

    def on_save(self, *_):
        self.heard.append("save")


def heard(kind, steps: int, between=lambda model, step: None) -> list:
    """The events that a rule hears in `steps` steps of one model and one optimizer."""
    watching = dlsys_watch.watching()
    with watching:
        rule = kind(watching.session.watch)
        watching.session.watch.add(rule)
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(steps):
            between(model, step)
            model(torch.ones(3, 2)).sum().backward()
            opt.step()
            opt.zero_grad()
    return rule.heard


def test_a_rule_that_rests_hears_only_of_steps_that_are_looked_at(few_looks):
    rests = type("Rests", (Hears,), {"rests": ("step",)})
    assert heard(Hears, 40).count("step") == 40
    # the watch looks at steps 1 to 7, then at every fifth from 10 to 40
    assert heard(rests, 40).count("step") == 7 + 7
    assert heard(rests, 40).count(("root", True, True)) == 40


def test_a_rule_that_rests_hears_of_calls_without_gradients_and_of_the_first_in_another_mode(
        few_looks):
    def between(model, step):
        model.train(step != 21)
        if step == 23:
            with torch.no_grad():
                model(torch.ones(3, 2))

    found = heard(type("Rests", (Hears,), {"rests": ("root",)}), 24, between)
    assert ("root", True, False) in found
    assert ("root", False, True) in found


def test_a_rule_that_waits_for_an_event_hears_of_it_and_of_what_follows(tmp_path):
    def between(model, step):
        if step in (2, 3):
            torch.save(model.state_dict(), tmp_path / "weights.pt")

    waits = type("Waits", (Hears,), {"begins": ("save",)})
    one = [("root", True, True), "step"]
    assert heard(waits, 5, between) == ["save", *one, "save", *one, *one]
    assert heard(waits, 5) == []


def test_a_rule_that_fails_is_left_out_and_named(monkeypatch, capsys):
    def on_loss(self, loss):
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(RULES["softmax-twice"], "on_loss", on_loss)
    path = next(p for p in faults.FAULTS if p.stem == "softmax_twice")
    found, failed = faults.watch(path.read_text("utf-8"), path)
    assert (found, list(failed)) == ([], ["softmax-twice"])
    assert "ZeroDivisionError: mine" in failed["softmax-twice"]
    assert capsys.readouterr().err == ""


def test_rules_of_two_ranks(tmp_path):
    """Both ranks report what they see; only rank 0 reports equal batches and drifting weights."""
    first, second = ranks.start(str(tmp_path))
    assert len(first) == 2 * len(ranks.RANKS) == 10
    for name, answer in first.items():
        assert answer["found"] == [[answer["rule"], line] for line in answer["lines"]], name
        assert answer["failed"] == second[name]["failed"] == {}
        if not name.startswith(("same_batch", "ranks_drift")):
            assert second[name]["found"] == answer["found"]


# ---- the lessons

def test_the_record_of_the_lessons_is_fresh():
    assert [why for number in watch_lessons.lessons() if (why := watch_lessons.stale(number))] == []


def test_in_the_lessons_only_broken_code_is_told():
    record = watch_record.LESSONS.entries()
    assert len(record) == len(catalog.written())
    told = {(f["cell"], f["rule"]) for lesson in record.values() for f in lesson["findings"]}
    assert all(not lesson["rules_failed"] for lesson in record.values())
    healthy_cells = {pair for pair in told if "-break-" not in pair[0] and "-look-" not in pair[0]}
    assert healthy_cells <= watch_lessons.ON_PURPOSE.keys()


# ---- programs that the rules were not written for

CORPUS = watch_corpus.FAULTY + watch_corpus.HEALTHY


@pytest.mark.parametrize("path", watch_corpus.FAULTY, ids=lambda path: path.stem)
def test_a_faulty_program_names_its_source_its_trap_and_its_line(path):
    source, traps = watch_corpus.head(path)
    assert source
    assert set(traps) <= {trap.id for trap in catalog.traps()}
    assert watch_corpus.marked(path)
    assert len(path.read_text("utf-8").splitlines()) <= 40


def test_the_record_of_the_corpus_is_fresh_and_nothing_was_computed_otherwise():
    record = watch_corpus.RECORD.entries()
    assert [why for path in CORPUS if (why := watch_corpus.stale(path))] == []
    assert record.keys() == {watch_corpus.name(path) for path in CORPUS}
    assert all(row["same"] and "rules_failed" not in row for row in record.values())


def test_the_recall_of_the_record_keeps_its_bounds():
    """At least 80 % found, with hints; at most one false alarm; right findings name a line."""
    rows = watch_corpus.RECORD.entries()
    counts = watch_corpus.counts(rows)
    right = counts[watch_corpus.FOUND] + counts[watch_corpus.HINT]
    assert right >= 0.8 * len(watch_corpus.FAULTY)
    assert counts["false alarm"] <= 1
    assert all(row["line"] for row in rows.values() if row.get("verdict") == watch_corpus.FOUND)


@pytest.mark.parametrize("name", mark_nightly(map(watch_corpus.name, CORPUS), {
    "faulty/missing_zero_grad_D", "healthy/evolution"}.__contains__))
def test_a_program_of_the_corpus_is_told_as_in_the_record(name):
    path = watch_corpus.CORPUS / f"{name}.py"
    found, failed = faults.watch(path.read_text("utf-8"), path, hints=True)
    told = [{"rule": f.rule, "trap": f.trap, "line": f.line, "sound": f.sound} for f in found]
    assert (told, failed) == (watch_corpus.RECORD.entries()[name]["findings"], {})


def test_a_neighbour_without_a_trap_names_the_rules_of_the_trap_beside_it():
    for row in watch_record.neighbours():
        assert bool(row.get("rules")) != bool(row.get("why"))
        assert all(RULES[rule].trap == row["beside"] for rule in row.get("rules", ()))
        line = f"**A related fault:** {row['says']} {watch_record.detection(row)}"
        assert line in book_traps.neighbours(row["beside"])


# ---- the command

SCRIPT = """import sys
print(__name__, __file__, sys.argv, sys.path[0], __spec__)
def inner():
    return 1 / int(sys.argv[1])
inner()
sys.exit(int(sys.argv[2]))
"""


def python(*arguments, **how):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, check=False, **how)


@pytest.mark.parametrize("arguments", [("1", "0"), ("1", "7"), ("0", "0")])
def test_a_script_behaves_as_without_the_watch(tmp_path, arguments):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    alone, beside = python(file, *arguments), python("-m", "dlsys_watch", file, *arguments)
    assert (beside.returncode, beside.stdout, beside.stderr) == (
        alone.returncode, alone.stdout, alone.stderr)


@pytest.mark.parametrize("code", ["os.kill(os.getpid(), signal.SIGTERM)", "raise KeyboardInterrupt",
                                  "os._exit(9)", "sys.exit('no')", "x = = 1"])
def test_a_script_ends_as_without_the_watch(tmp_path, code):
    file = tmp_path / "train.py"
    file.write_text(f"import os, signal, sys\n{code}\n")
    alone, beside = python(file), python("-m", "dlsys_watch", "--json", tmp_path / "f", file)
    assert (beside.returncode, beside.stderr) == (alone.returncode, alone.stderr)
    assert json.loads((tmp_path / "f").read_text()) == []


SPAWNING = """import multiprocessing as mp
def work(queue):
    queue.put((__name__, work.__module__))
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        context = mp.get_context(method)
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        print(queue.get(timeout=30))
        process.join()
        print(process.exitcode)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot fork")
def test_processes_are_started_as_without_the_watch(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SPAWNING)
    alone, beside = python(file), python("-m", "dlsys_watch", file)
    assert (beside.returncode, beside.stdout, beside.stderr) == (0, alone.stdout, alone.stderr)


def test_findings_of_the_command(tmp_path):
    """In a separate process: --json, --strict, the book's address, the line."""
    path = next(p for p in faults.FAULTS if p.stem == "softmax_twice")
    file = tmp_path / "train.py"
    file.write_text("import torch\nfrom torch import nn\nF = nn.functional\nfrom torch.nn."
                    "functional import cross_entropy\nnet = lambda: nn.Linear(10, 3)\n"
                    "x, y = torch.randn(64, 10), torch.randint(3, (64,))\n"
                    + path.read_text("utf-8"))
    done = python("-m", "dlsys_watch", "--json", "found.json", "--strict", "train.py",
                  cwd=tmp_path, env={**os.environ, "DLSYS_BOOK": "https://book.example/",
                                     "OMP_NUM_THREADS": "1"})
    assert done.returncode == command.FOUND
    found, = json.loads((tmp_path / "found.json").read_text())
    assert found.pop("message") in done.stderr
    assert found == {"rule": "softmax-twice", "trap": "03.1", "file": str(file), "line": 12,
                     "sound": True}
    assert done.stderr.startswith("train.py:12  softmax twice: ")
    assert done.stderr.endswith("trap 03.1 https://book.example/traps/03-1.html\n")


@pytest.fixture
def as_script(monkeypatch):
    """Lets the command run scripts in this process, and puts back what it sets."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(places, "main_file", list(places.main_file))


def train(tmp_path, line="loss = F.cross_entropy(model(x).softmax(1), y)"):
    file = tmp_path / "train.py"
    file.write_text("import torch\nimport torch.nn.functional as F\n"
                    "model, x = torch.nn.Linear(4, 3), torch.randn(8, 4)\n"
                    f"y = torch.arange(8) % 3\n{line}\n")
    return file


def test_what_is_silenced_is_silent(tmp_path, as_script, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = train(tmp_path)
    assert command.main(["--strict", str(file)]) == command.FOUND
    assert command.main(["--strict", "--silence", "softmax-twice", str(file)]) == 0
    (tmp_path / "pyproject.toml").write_text('[tool.dlsys.watch]\nsilence = ["softmax-twice"]\n')
    assert command.main(["--strict", str(file)]) == 0
    (tmp_path / "pyproject.toml").write_text("[tool.dlsys.watch]\nhints = true\n")
    file = train(tmp_path, "F.cross_entropy(model(x).softmax(1), y)  # dlsys: ok softmax-twice")
    assert command.main(["--strict", str(file)]) == 0
    assert capsys.readouterr().err.count("[softmax-twice]") == 1


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "no script given"), (["none.py"], "got none.py, expected the file of a script"),
    (["--silence", "nothing", "train.py"], "no rule 'nothing'"),
    (["--json", "no/where.json", "train.py"], "there is no folder")])
def test_bad_input_is_one_line(tmp_path, as_script, capsys, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    train(tmp_path)
    assert command.main(arguments) == command.BAD_INPUT
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_wrong_setting_is_one_line(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.dlsys.watch]\nhints = "yes"\n')
    with pytest.raises(SettingsError, match="hints = 'yes', expected silence"):
        Settings().with_file(tmp_path)


def test_the_rules_are_listed_and_known_without_torch(capsys):
    assert command.main(["--rules"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{rule.id} " in listed and rule.reads in listed for rule in all_rules())
    assert command.rule_ids() == {*RULES, "all"}


def test_the_course_hands_the_command_over(tmp_path, as_script, capsys):
    from dlsys import cli

    assert cli.main(["watch", "--strict", str(train(tmp_path))]) == command.FOUND
    assert "softmax twice" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_package_stands_alone(tmp_path):
    """Unpack its wheel into an empty folder: it still runs scripts, even without torch."""
    source = Path(command.__file__).parent
    shutil.copytree(source, tmp_path / "source", ignore=shutil.ignore_patterns("__pycache__"))
    built = python("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
                   "--wheel-dir", tmp_path, tmp_path / "source")
    wheel, = tmp_path.glob("dlsys_watch-*-py3-none-any.whl")
    assert built.returncode == 0, built.stderr
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    assert {path.name for path in (tmp_path / "installed/dlsys_watch/rules").glob("*.py")} == {
        path.name for path in (source / "rules").glob("*.py")}
    (tmp_path / "train.py").write_text("import sys; print(len(sys.argv), 'torch' in sys.modules)")
    done = python("-S", "-m", "dlsys_watch", tmp_path / "train.py", "x", cwd=tmp_path,
                  env={"PYTHONPATH": str(tmp_path / "installed")})
    assert (done.stdout, done.stderr) == ("2 False\n", "")


@pytest.mark.parametrize(("program", "name"), [
    ("/usr/bin/dlsys-watch", "dlsys-watch"), ("/usr/bin/dlsys", "dlsys watch"),
    ("C:/Scripts/dlsys-watch.exe", "dlsys-watch")])
def test_it_calls_itself_as_it_was_called(monkeypatch, capsys, program, name):
    monkeypatch.setattr(sys, "argv", [program])
    assert command.main([]) == command.BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith(f"{name}: no script given")
    assert said.endswith(f"See: {name} --help\n")


def test_a_finding_names_a_page_only_where_one_is_known(monkeypatch, tmp_path):
    monkeypatch.delenv("DLSYS_BOOK", raising=False)
    monkeypatch.setattr(formats, "BOOK", tmp_path)
    found = formats.Finding("softmax-twice", "03.1", "", 0, "twice", True)
    monkeypatch.setattr(formats, "published", lambda: "")
    assert found.text().endswith("[softmax-twice] trap 03.1")
    monkeypatch.setattr(formats, "published", lambda: "https://a.example/b/")
    assert found.text().endswith("trap 03.1 https://a.example/b/traps/03-1.html")


def test_the_address_of_the_pages_is_that_of_the_package(monkeypatch):
    package = email.message.Message()
    package["Project-URL"] = "Repository, https://a.example/code"
    package["Project-URL"] = "Documentation, https://a.example/pages"
    monkeypatch.setattr(formats.metadata, "metadata", lambda name: package)
    assert formats.published() == "https://a.example/pages"


# ---- what is left after the watch

def test_nothing_of_torch_stays_changed():
    import torch
    import torch.nn.functional as F

    owners = (F, torch, torch.Tensor, torch.nn.Module, torch.autograd, torch.optim.Optimizer,
              torch.nn.utils, torch.amp.GradScaler, torch.utils.data.DataLoader)
    before = [dict(vars(owner)) for owner in owners]
    with dlsys_watch.watching():
        inside = [dict(vars(owner)) for owner in owners]
    assert all(now != then for now, then in zip(inside, before, strict=True))
    assert [dict(vars(owner)) for owner in owners] == before


def test_what_is_wrapped_looks_as_before():
    import inspect
    import pickle

    import torch
    import torch.nn.functional as F

    names = [F.cross_entropy, F.dropout, F.scaled_dot_product_attention, torch.softmax]
    told = [(f.__name__, f.__doc__) for f in names]
    signature = inspect.signature(F.cross_entropy)
    with dlsys_watch.watching():
        wrapped = [F.cross_entropy, F.dropout, F.scaled_dot_product_attention, torch.softmax]
        assert [(f.__name__, f.__doc__) for f in wrapped] == told
        assert inspect.signature(F.cross_entropy) == signature
        assert pickle.loads(pickle.dumps(wrapped)) == wrapped
        data = pickle.dumps(wrapped)
    assert pickle.loads(data) == names


def test_scripting_tracing_and_fx_work():
    import warnings

    import torch
    import torch.nn.functional as F

    class Model(torch.nn.Module):
        def forward(self, x):
            h = F.scaled_dot_product_attention(x, x, x)
            return F.mse_loss(F.dropout(h, 0.5, self.training), x)

    model, x = Model().eval(), torch.randn(2, 3, 4)
    with dlsys_watch.watching() as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = model(x)
        for made in (torch.jit.script(model), torch.jit.trace(model, x),
                     torch.fx.symbolic_trace(model)):
            assert torch.equal(made(x), wanted)
    assert found == []


def test_the_page_holds_the_tables_of_the_records():
    """`book/watch.md` holds what `benchmarks.watch_page` makes."""
    page = watch_page.PAGE.read_text("utf-8")
    stale = [name for name, made in watch_page.TABLES.items() if made() not in page]
    assert not stale, ".venv/bin/python -m benchmarks.watch_page"


def test_a_traceback_loses_only_our_frames(as_script, tmp_path, capsys):
    file = train(tmp_path, "F.cross_entropy(model(torch.randn(8, 5)), y)")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        script.run(str(file), [])
    shown = capsys.readouterr().err
    assert "train.py" in shown
    assert "dlsys_watch" not in shown


def test_a_signal_ends_the_command(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen([sys.executable, "-m", "dlsys_watch", str(file)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        running.wait(timeout=30)
    assert running.returncode == -signal.SIGINT


def test_a_torch_that_cannot_be_watched_disturbs_no_program(monkeypatch):
    """The session ends with the program; the end once raised if nothing had been attached."""
    begun = session.Session(Settings())
    monkeypatch.setattr(attach, "Attachment", lambda watch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        begun.attach()
    begun.end()
