"""`dlsys same`: two runs that must agree, and the first tensor in which they do not.

The expected values follow from the arithmetic of the programs: a loss that is not divided by the
number of its parts is that many times too large, and so on.
"""

import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dlsys.cli import main
from dlsys.testing import same
from dlsys_helpers.paths import ROOT
from dlsys_same import pairs, runs, sketch
from dlsys_same.pairs import Pair, SameError
from dlsys_same.testing import recorded

PROGRAMS = Path(__file__).parent / "same"
X = torch.randn(16, 5, generator=torch.Generator().manual_seed(8))
Y = torch.arange(16) % 2


def training(*, build=None, parts=(8,), scale=None, seed=0, rows=None, optimizer=torch.optim.SGD,
             end=lambda model: None, between=lambda model: None, steps=2, x=X):
    """A function that trains: a batch of eight rows a step, in micro-batches of these sizes."""
    def train():
        torch.manual_seed(seed)
        model = build() if build else nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
        opt = optimizer(model.parameters(), 0.1)
        for step in range(steps):
            batch = torch.arange(8) + 8 * step if rows is None else torch.tensor(rows) + 8 * step
            for part in batch.split(list(parts)):
                loss = F.cross_entropy(model(x[part]), Y[part])
                (loss * (len(part) / len(batch) if scale is None else scale)).backward()
            between(model)
            opt.step()
            opt.zero_grad()
        end(model)
    return train


def difference(first, second, **options) -> str:
    with pytest.raises(AssertionError) as caught:
        same(first, second, steps=options.pop("steps", 2), **options)
    return str(caught.value)


AGREE = {
    "halves of a batch": training(parts=(4, 4)),
    "unequal parts, weighted by their rows": training(parts=(5, 3)),
    "eight rows one by one": training(parts=(1,) * 8),
    "a model in a class of its own": training(build=lambda: Wrapped()),
    "blocks that are computed again in backward": training(build=lambda: Checkpointed()),
    "the same values in double precision": training(build=lambda: Doubled()),
}


class Wrapped(nn.Module):
    """The same layers under the same names."""

    def __init__(self):
        super().__init__()
        for name, layer in enumerate((nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))):
            self.add_module(str(name), layer)

    def forward(self, x):
        return self.get_submodule("2")(self.get_submodule("1")(self.get_submodule("0")(x)))


class Checkpointed(Wrapped):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)


class Doubled(Wrapped):
    """Computes in float64 what the others compute in float32."""

    def forward(self, x):
        return super().forward(x.double()).float()

    def __init__(self):
        super().__init__()
        self.double()


@pytest.mark.parametrize("name", AGREE)
def test_what_must_agree_does(name):
    result = same(training(), AGREE[name], steps=2)
    assert result.agree
    assert result.steps == 2
    assert min(result.compared[kind] for kind in ("weights", "data", "forward", "loss")) >= 1
    assert result.compared["gradient"] == result.compared["update"] == 8, "four weights, two steps"


DIFFER = {
    "a loss that is not divided": (training(parts=(4, 4), scale=1.0), "step 1, loss, loss",
                                   "2 times the first's"),
    "a mean of means over unequal parts": (training(parts=(6, 2), scale=0.5), "step 1, loss, loss",
                                           "its mean, its mask"),
    "another seed": (training(seed=1), "step 1, weights before the first step, 0.weight",
                     "initialize"),
    "rows in another order": (training(rows=(1, 0, 2, 3, 4, 5, 6, 7)),
                              "step 1, data, model, input 0", "same 8 rows, in a different order"),
    "other rows": (training(rows=(0, 1, 2, 3, 4, 5, 6, 6)), "step 1, data, model, input 0",
                   "7 are in both"),
    "another optimizer": (training(optimizer=lambda p, rate: torch.optim.SGD(
        p, rate, weight_decay=0.5)), "step 1, update of a weight, 0.weight", "optimizer differs"),
    "twice the rate": (training(optimizer=lambda p, rate: torch.optim.SGD(p, 2 * rate)),
                       "step 1, update of a weight, 0.weight", "2 times the first's"),
    "gradients clipped": (training(between=lambda model: nn.utils.clip_grad_norm_(
        model.parameters(), 0.01)), "step 1, gradient, 0.weight", ""),
    "a weight that is frozen": (training(between=lambda model: setattr(
        model[2].bias, "grad", None)), "step 1, gradient, 2.bias", "The second has none for it."),
    "state that is lost at the second step": (training(optimizer=lambda p, rate: torch.optim.SGD(
        p, rate, momentum=0.5)), "step 2, update of a weight, 0.weight", "state that"),
    "batch norm of halves": (training(build=lambda: nn.Sequential(
        nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 2)), parts=(4, 4)),
        "step 1, output of a module, 1", "statistics of each micro-batch"),
}


@pytest.mark.parametrize("name", DIFFER)
def test_the_first_tensor_that_differs_is_named(name):
    second, where, why = DIFFER[name]
    first = training()
    if name == "batch norm of halves":
        first = training(build=lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7),
                                                     nn.Linear(7, 2)))
    told = difference(first, second)
    assert f"First difference: {where}" in told
    assert why in told


def test_what_rounding_does_is_measured_and_allowed():
    # Adam divides a gradient by its own size, so a gradient of pure rounding moves its weight by
    # the whole rate, one way or the other. A bias before a BatchNorm has no other gradient.
    def build():
        return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 2))

    def other_order():
        model = build()
        model[0].register_forward_hook(lambda module, args, out: (out * 3) / 3)
        return model

    adam = {"optimizer": torch.optim.Adam}
    assert same(training(build=build, **adam), training(build=other_order, **adam), steps=2).agree


def test_an_evaluation_is_compared_row_by_row():
    def evaluated(size, mode=lambda model: model.eval()):
        def end(model):
            mode(model)
            with torch.no_grad():
                for part in X.split(size):
                    model(part)
        return training(build=lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)), end=end)

    assert same(evaluated(16), evaluated(6), whole=True, steps=2).compared["evaluation"] == 1
    told = difference(evaluated(16), evaluated(6, mode=lambda model: None), whole=True)
    assert "output in evaluation, model" in told


def test_a_run_is_not_changed_by_being_recorded():
    seen = []

    def program():
        training(end=lambda model: seen.append(
            [p.detach().clone() for p in model.parameters()] + [torch.rand(3)]))()

    program()
    recorded(program, steps=9, after=0, whole=True)
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_torch_is_left_as_it_was():
    before = torch.autograd.backward, torch.amp.GradScaler.scale
    others = dict(nn.modules.module._global_forward_hooks_with_kwargs)  # left by other tests
    recorded(training(), steps=1, after=0, whole=False)
    assert (torch.autograd.backward, torch.amp.GradScaler.scale) == before
    assert nn.modules.module._global_forward_hooks_with_kwargs == others
    assert not nn.modules.module._global_forward_hooks


def test_a_program_that_draws_other_data_each_time_is_told_so():
    def program():
        X.copy_(torch.rand(16, 5, generator=torch.Generator().manual_seed(random.getrandbits(30))))
        training()()

    kept = X.clone()
    try:
        assert "draw different data" in difference(program, program)
    finally:
        X.copy_(kept)


def test_a_sketch_keeps_distances():
    a, b = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(1))
    got = (sketch.of_tensor(a) - sketch.of_tensor(b)).norm().item()
    assert got == pytest.approx((a.double() - b.double()).norm().item(), rel=0.05)
    assert torch.equal(sketch.of_tensor(2 * a), 2 * sketch.of_tensor(a))
    small = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sketch.of_rows(small), small.double().flatten(1)), "small ones stay whole"


def test_the_loss_is_that_before_a_scaler():
    def scaled():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
        opt, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
        for step in range(2):
            rows = torch.arange(8) + 8 * step
            scaler.scale(F.cross_entropy(model(X[rows]), Y[rows])).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
    assert same(training(), scaled, steps=2).agree


# ---- programs

def same_command(*args: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "dlsys", "same", *args], cwd=folder,
                          capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The program's folder, with a space and an umlaut in its name."""
    made = tmp_path_factory.mktemp("Übung zwei")
    (made / "train.py").write_text((PROGRAMS / "train.py").read_text("utf-8"), "utf-8")
    return made


def test_accumulation_agrees_and_an_undivided_loss_does_not(folder):
    (folder / "same.toml").write_text("""
[[pair]]
name = "accumulation"
first = "train.py"
second = "train.py --bs 4 --accum 2"
[[pair]]
first = "train.py"
second = "train.py --bs 4 --accum 2 --undivided"
steps = 1
""")
    done = same_command("same.toml", "--json", "found.json", folder=folder)
    assert done.returncode == 3, done.stderr
    assert "accumulation:\nfirst:  train.py\n" in done.stdout
    assert "The second's is 2 times the first's." in done.stdout
    found = json.loads((folder / "found.json").read_text("utf-8"))
    assert [pair["agree"] for pair in found] == [True, False]
    assert found[0]["steps"] == 3
    assert found[0]["difference"] is None
    assert found[1]["difference"]["kind"] == "loss"


def test_two_ranks_agree_with_one_process_and_unreduced_ones_do_not(folder):
    ranks = shlex.join([sys.executable, "-m", "torch.distributed.run", "--standalone",
                        "--nproc-per-node", "2", "train.py"])
    assert same("train.py", ranks, folder=folder).compared["gradient"] == 12
    told = difference("train.py", f"{ranks} --unwrapped", folder=folder, steps=1)
    assert "First difference: step 1, gradient, 0.weight" in told
    assert "not reduced" in told
    for line in in_lesson("09", "text").splitlines():
        assert line in told


def test_a_resumed_run_agrees_and_one_without_the_momentum_does_not(folder):
    subprocess.run([sys.executable, "train.py", "--save", "at3.pt"], cwd=folder, check=True)
    resumed = "train.py --load at3.pt --first 3"
    assert same("train.py", resumed, after=3, folder=folder).agree
    told = difference("train.py", f"{resumed} --forget", after=3, steps=1, folder=folder)
    assert "First difference: step 1, update of a weight" in told
    assert "was not restored" in told
    for line in in_lesson("12", "text").splitlines():
        assert line in told


def in_lesson(number: str, kind: str) -> str:
    """The fenced block of this kind that follows the words `dlsys same` or `same` in a lesson."""
    lesson, = (ROOT / "lessons").glob(f"{number}_*.py")
    cell, = (cell for cell in lesson.read_text("utf-8").split("\n# %% ")
             if "dlsys same" in cell or "dlsys.testing" in cell)
    text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in cell.splitlines())
    return re.search(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1]


def test_the_test_in_lesson_2_says_what_the_lesson_says():
    code, known = in_lesson("02", "python"), {"torch": torch, "nn": nn, "F": F}
    with pytest.raises(AssertionError) as told:
        exec(code, dict(known))
    for line in in_lesson("02", "text").splitlines():
        assert line in str(told.value)
    exec(code.replace("loss.backward()", "(loss / parts).backward()"), dict(known))


def test_the_environments_own_sitecustomize_still_runs(folder, monkeypatch):
    (folder / "site").mkdir()
    (folder / "site/sitecustomize.py").write_text("import builtins; builtins.OWN = 1\n")
    (folder / "own.py").write_text("print(OWN)\n" + (folder / "train.py").read_text("utf-8"))
    monkeypatch.setenv("PYTHONPATH", str(folder / "site"))
    assert runs.run("own.py", Pair("own.py", "own.py", steps=1, folder=folder))[0]["done"] == 1


PROBLEMS = {
    "a script that is not there": (["train.py", "nope.py"], "got nope.py, expected the file"),
    "one command": (["train.py"], "got one command, 'train.py', expected two"),
    "an open quote": (["train.py", "train.py 'a"], "Check its quotes"),
    "an empty command": (["train.py", " "], "got an empty command"),
    "no steps": (["train.py", "train.py", "--steps", "0"], "steps: got 0, expected a whole number"),
    "steps below zero": (["train.py", "train.py", "--after", "-1"], "after: got -1"),
    "no time": (["train.py", "train.py", "--limit", "nan"], "limit: got nan"),
    "no folder": (["train.py", "train.py", "--json", "no/where.json"], "there is no folder"),
    "no such file": (["pairs.toml"], "pairs.toml: No such file"),
    "no TOML": (["bad.toml"], "bad.toml is not valid TOML"),
    "no pair": (["empty.toml"], "got no [[pair]]"),
    "a word that is not known": (["word.toml"], "pair 1: got 'step', expected some of"),
    "half a pair": (["half.toml"], "pair 1: second is missing"),
    "a pair of another type": (["type.toml"], "pair 1: steps: got '3'"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_bad_input_is_told_in_a_line(name, tmp_path, monkeypatch, capsys):
    args, message = PROBLEMS[name]
    monkeypatch.chdir(tmp_path)
    for file, text in {"train.py": "", "bad.toml": "[[", "empty.toml": "", "half.toml":
                       '[[pair]]\nfirst = "train.py"', "word.toml":
                       '[[pair]]\nfirst = "a b"\nsecond = "a b"\nstep = 1', "type.toml":
                       '[[pair]]\nfirst = "a b"\nsecond = "a b"\nsteps = "3"'}.items():
        (tmp_path / file).write_text(text)
    assert main(["same", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dlsys same: ")
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(("text", "message"), [
    ("print(1)", "ended without calling a model"),
    ("import torch; raise SystemExit(7)", "ended with status 7 before a model was called"),
    ("import time; time.sleep(60)", "took longer than 1 s"),
])
def test_a_program_that_records_nothing_is_told_why(text, message, tmp_path):
    (tmp_path / "p.py").write_text(text)
    with pytest.raises(SameError, match=message):
        same("p.py", "p.py", limit=1 if "sleep" in text else 60, folder=tmp_path)


def test_other_types_are_refused():
    with pytest.raises(SameError, match="got str and function, expected two commands"):
        same("train.py", training())


def test_a_function_that_calls_no_model_is_told_so():
    with pytest.raises(SameError, match="ended without calling a model"):
        same(print, print)


def test_a_command_is_split_as_a_shell_splits_it():
    assert pairs.words("train.py --name 'a b'") == [sys.executable, "train.py", "--name", "a b"]
    assert pairs.words("python -m x") == [sys.executable, "-m", "x"]
    assert pairs.words("torchrun train.py")[0] == "torchrun"


def test_the_command_line_does_not_import_torch():
    done = subprocess.run([sys.executable, "-c", "import sys, dlsys.cli; "
                           "sys.exit('torch' in sys.modules)"], check=False, env=dict(os.environ))
    assert done.returncode == 0
