"""The watch in everyday work: trainers, tests, baselines, output formats, exit codes."""

import json
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import jsonschema
import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import nn

import dlsys_watch
from dlsys_helpers.paths import ROOT
from dlsys_watch import baseline, command, formats, places, pytest_plugin
from dlsys_watch.formats import Finding
from dlsys_watch.report import Report
from dlsys_watch.settings import Settings, SettingsError

PLAIN = nn.Module.__dict__["__call__"]
PAGE = (ROOT / "book" / "watch.md").read_text("utf-8")
SCRIPT = """import torch
import torch.nn.functional as F
net, x, y = torch.nn.Linear(4, 3), torch.randn(9, 4), torch.arange(9) % 3
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    opt.zero_grad()
    loss = F.cross_entropy(net(x).softmax(1), y)
    loss.backward()
    opt.step()
"""


class Rule:
    id, trap, sound, follows = "softmax-twice", "03.1", True, ()


class Consequence(Rule):
    id, follows = "never-trained", ("softmax-twice",)


def run(*arguments, folder, **names):
    return subprocess.run([sys.executable, "-m", "dlsys_watch", *map(str, arguments)], text=True,
                          capture_output=True, timeout=120, check=False, cwd=folder,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **names})


def report(**asked) -> Report:
    return Report(Settings(**asked))


# ---- one line for a cause

def test_what_follows_from_a_cause_is_not_told_beside_it(capsys):
    told = report()
    assert told.add(Rule, "softmax", places.Place("/a/train.py", 3))
    assert not told.add(Consequence, "nothing moves", places.Place("/a/train.py", 9))
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert report().add(Consequence, "nothing moves", places.Place("/a/train.py", 9))


def test_places_past_the_most_are_counted(capsys):
    told = report()
    for line in range(1, 9):
        told.add(Rule, "softmax", places.Place("/a/train.py", line))
        told.add(Rule, "softmax", places.Place("/a/train.py", line))
    told.gather()
    _, also, rest = capsys.readouterr().err.splitlines()
    assert "also at lines 2, 3, 4 and 5" in also
    assert "and at 3 more, which are not listed" in rest


# ---- forms

def test_an_annotation_escapes_what_would_end_it():
    found = Finding("a-rule", "03.1", "a,b:c.py", 7, "100 %\nof it", True)
    assert formats.as_annotation(found).startswith(
        "::warning file=a%2Cb%3Ac.py,line=7,title=a-rule::100 %25%0Aof it  trap 03.1")
    assert formats.as_annotation(found._replace(sound=False)).startswith("::notice ")
    assert "file=" not in formats.as_annotation(found._replace(file="", line=0))


# The parts of SARIF 2.1.0 that its schema and code scanning require.
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
SARIF = {
    "type": "object", "required": ["version", "runs", "$schema"],
    "properties": {"version": {"const": "2.1.0"}, "runs": {"type": "array", "items": {
        "type": "object", "required": ["tool", "results"], "properties": {
            "tool": {"type": "object", "required": ["driver"], "properties": {"driver": {
                "type": "object", "required": ["name", "rules"], "properties": {
                    "rules": {"type": "array", "uniqueItems": True, "items": {
                        "required": ["id", "shortDescription", "fullDescription", "help"],
                        "properties": {"shortDescription": TEXT, "fullDescription": TEXT,
                                       "help": TEXT}}}}}}},
            "results": {"type": "array", "items": {
                "required": ["ruleId", "message", "locations", "partialFingerprints"],
                "properties": {
                    "message": TEXT,
                    "level": {"enum": ["none", "note", "warning", "error"]},
                    "partialFingerprints": {"additionalProperties": {"type": "string"}},
                    "locations": {"type": "array", "minItems": 1, "items": {
                        "required": ["physicalLocation"], "properties": {"physicalLocation": {
                            "required": ["artifactLocation", "region"], "properties": {
                                "artifactLocation": {"required": ["uri"], "properties": {
                                    "uri": {"pattern": r"^[^\s\\]+$"}}},
                                "region": {"required": ["startLine"], "properties": {
                                    "startLine": {"type": "integer", "minimum": 1}}}}}}}}}}}}}}}}


def test_sarif_holds_what_code_scanning_demands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "main_file", [str(tmp_path / "train it.py")])
    (tmp_path / "train it.py").write_text(SCRIPT)
    placed = Finding("softmax-twice", "03.1", str(tmp_path / "train it.py"), 7, "twice", True)
    found = [placed, placed._replace(rule="never-trained", file="", line=0, sound=False)]
    made = json.loads(formats.written(found, "sarif"))
    jsonschema.validate(made, SARIF)
    first, second = made["runs"][0]["results"]
    where = first["locations"][0]["physicalLocation"]
    assert (where["artifactLocation"]["uri"], where["region"]["startLine"]) == ("train%20it.py", 7)
    assert (first["level"], second["level"]) == ("warning", "note")
    jsonschema.validate(json.loads(formats.written([], "sarif")), SARIF)


def test_forms_of_the_command_and_its_exit_codes(tmp_path):
    """One process each: annotations and 3, a file of JSON lines and 0, SARIF without a file."""
    (tmp_path / "train.py").write_text(SCRIPT)
    told = run("--format", "github", "--strict", "train.py", folder=tmp_path)
    assert told.returncode == command.FOUND
    assert told.stderr.startswith("::warning file=train.py,line=7,title=softmax-twice::softmax ")
    kept = run("--format", "json", "--output", "found.jsonl", "train.py", folder=tmp_path)
    assert (kept.returncode, kept.stderr[:10]) == (0, "train.py:7")
    row, = map(json.loads, (tmp_path / "found.jsonl").read_text().splitlines())
    assert (row["rule"], row["line"]) == ("softmax-twice", 7)
    assert run("--format", "sarif", "train.py", folder=tmp_path).returncode == command.BAD_INPUT
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    assert run("--strict", "train.py", folder=tmp_path).returncode == 7


# ---- the baseline

def test_what_a_baseline_knows_stays_known_when_lines_are_added(tmp_path, capsys):
    file, known = tmp_path / "train.py", tmp_path / "known.json"
    file.write_text(SCRIPT)
    first = report(new_baseline=known)
    first.add(Rule, "softmax", places.Place(str(file), 7))
    first.notes = tmp_path / "none"
    first.gather()
    file.write_text("# a line\n# another\n" + SCRIPT)
    again = report(baseline=known)
    assert not again.add(Rule, "softmax", places.Place(str(file), 9))
    assert again.add(Rule, "softmax", places.Place(str(file), 10))   # other code
    again.notes = tmp_path / "none"
    again.gather()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[0] for line in lines[:3:2]] == [f"{file}:7", f"{file}:10"]
    assert lines[1].startswith("dlsys watch: wrote 1 to ")
    assert lines[3].startswith("dlsys watch: 1 left out, which are in ")


@pytest.mark.parametrize("held", ["", "[]", '{"dlsys_watch_baseline": 2, "findings": []}',
                                  '{"dlsys_watch_baseline": 1}'])
def test_a_file_that_is_no_baseline_is_refused_and_kept(tmp_path, capsys, held, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "known.json"
    file.write_text(held)
    (tmp_path / "train.py").write_text("")
    for option in ("--baseline", "--write-baseline"):
        assert command.main([option, str(file), "train.py"]) == command.BAD_INPUT
        assert capsys.readouterr().err.count("\n") == 1
    assert file.read_text() == held
    with pytest.raises(SettingsError, match="there is no such file"):
        baseline.read(tmp_path / "nothing.json")


# ---- one line that attaches it

def test_a_finding_is_handed_to_whoever_asks(capsys):
    seen = []
    with dlsys_watch.watching(on_finding=seen.append) as found:
        F.cross_entropy(nn.Linear(4, 3)(torch.randn(9, 4)).softmax(1), torch.arange(9) % 3)
    assert seen == found
    assert [f.rule for f in seen] == ["softmax-twice"]
    broken = report(on_finding=lambda found: 1 / 0)
    for line in (3, 4):
        broken.add(Rule, f"softmax {'ab'[line - 3]}", places.Place("/a/train.py", line))
    assert capsys.readouterr().err.count("on_finding failed") == 1


def test_weights_and_biases_keeps_the_findings_of_a_run(tmp_path, monkeypatch):
    """Run the page's line offline; writing the summary makes no extra step."""
    wandb = pytest.importorskip("wandb")
    line, = re.findall(r"watching\((on_finding=lambda f: run\.summary.*)\):`", PAGE)
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="watch", dir=tmp_path, mode="offline",
                     settings=wandb.Settings(console="off"))
    try:
        with eval(f"dlsys_watch.watching({line})", {"dlsys_watch": dlsys_watch, "run": run}):
            F.cross_entropy(nn.Linear(4, 3)(torch.randn(9, 4)).softmax(1), torch.arange(9) % 3)
        assert "softmax twice" in run.summary["watch/softmax-twice"]
        assert run.step == 0
    finally:
        run.finish()


def test_a_trainer_of_transformers_is_watched_by_one_line(tmp_path, monkeypatch, capsys):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from dlsys_watch.transformers import Watch

    def rows(shift):
        ids = torch.randint(3, 40, (32, 13), generator=torch.Generator().manual_seed(0))
        return [{"input_ids": row[:-1], "labels": row[1:] if shift else row[:-1]} for row in ids]

    def trained(shift, callbacks):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=8, n_layer=1,
                                           n_head=2, bos_token_id=0, eos_token_id=1))
        asked = TrainingArguments(str(tmp_path), max_steps=4, per_device_train_batch_size=8,
                                  report_to=[], save_strategy="no", use_cpu=True,
                                  disable_tqdm=True)
        Trainer(model, asked, train_dataset=rows(shift), callbacks=callbacks).train()
        return [p.detach().clone() for p in model.parameters()]

    alone, watch = trained(True, []), Watch()
    beside = trained(True, [watch])
    assert [f.rule for f in watch.found] == ["shifted-twice"]
    assert all(map(torch.equal, alone, beside))
    assert nn.Module.__dict__["__call__"] is PLAIN
    healthy = Watch()
    trained(False, [healthy])
    assert healthy.found == []


def test_a_trainer_of_lightning_is_watched_by_one_line(monkeypatch):
    """Without Lightning, use a stand-in with its `Callback` and the hooks' arguments."""
    if "lightning.pytorch" not in sys.modules:
        standin = types.ModuleType("lightning.pytorch")
        standin.Callback = type("Callback", (), {})
        monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
        monkeypatch.setitem(sys.modules, "lightning.pytorch", standin)
    monkeypatch.delitem(sys.modules, "dlsys_watch.lightning", raising=False)
    from dlsys_watch.lightning import Callback, Watch

    watch = Watch()
    assert isinstance(watch, Callback)
    for leave in (lambda: watch.teardown(None, None, "fit"),
                  lambda: watch.on_exception(None, None, KeyboardInterrupt())):
        watch.setup(None, None, "fit")
        F.cross_entropy(nn.Linear(4, 3)(torch.randn(9, 4)).softmax(1), torch.arange(9) % 3)
        leave()
        assert [f.rule for f in watch.found] == ["softmax-twice"]
        assert nn.Module.__dict__["__call__"] is PLAIN
    sys.modules.pop("dlsys_watch.lightning")


def test_a_callback_does_nothing_in_a_program_that_is_watched():
    inner = dlsys_watch.Attached()
    with dlsys_watch.watching() as outer:
        inner.begin()
        F.cross_entropy(nn.Linear(4, 3)(torch.randn(9, 4)).softmax(1), torch.arange(9) % 3)
        inner.end()
    assert (len(outer), inner.found) == (1, [])


def test_the_fixture_fails_a_test_that_shows_a_fault(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["dlsys_watch.pytest_plugin"]\n')
    (tmp_path / "test_it.py").write_text(
        "import torch, torch.nn.functional as F\n"
        "def loss(x):\n    return F.cross_entropy(x, torch.arange(9) % 3)\n"
        "def test_twice(watched):\n    loss(torch.nn.Linear(4, 3)(torch.randn(9, 4)).softmax(1))\n"
        "def test_right(watched):\n    loss(torch.nn.Linear(4, 3)(torch.randn(9, 4)))\n"
        "def test_expected(watched):\n"
        "    loss(torch.nn.Linear(4, 3)(torch.randn(9, 4)).softmax(1))\n"
        "    assert watched.pop().rule == 'softmax-twice'\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                           "test_it.py"], cwd=tmp_path, text=True, capture_output=True,
                          timeout=120, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 1
    assert "3 passed, 1 error" in done.stdout
    assert "test_it.py:3  softmax twice" in done.stdout
    assert pytest_plugin.watched.__name__ == "watched"


# ---- the page

def test_the_pipeline_of_the_page_passes_and_fails_where_it_says(tmp_path):
    """Run the steps that call the watch, one after another, in a folder with a script."""
    (tmp_path / "train.py").write_text(SCRIPT)
    text = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]
    steps = [step["run"] for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]
             if "dlsys-watch" in step.get("run", "") and "install" not in step["run"]]
    assert len(steps) == 1
    arguments = shlex.split(steps[0])[1:]
    made = run("--write-baseline", "watch.json", "--steps", "300", "train.py", folder=tmp_path)
    assert made.returncode == 0
    assert run(*arguments, folder=tmp_path).returncode == 0
    with (tmp_path / "train.py").open("a") as script:
        script.write("F.cross_entropy(net(x).softmax(-1), y)\n")
    worse = run(*arguments, folder=tmp_path)
    assert worse.returncode == command.FOUND
    assert "file=train.py,line=10,title=softmax-twice::" in worse.stderr


def test_the_page_and_the_help_name_every_exit_code(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"With --strict it is {command.FOUND} if" in shown
    assert f"{command.BAD_INPUT} for bad input" in shown
    assert f"| {command.FOUND} |" in PAGE
    assert f"| {command.BAD_INPUT} |" in PAGE
    assert Path(formats.EXPLANATIONS).is_file()
