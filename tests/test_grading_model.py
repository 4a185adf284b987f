"""my_parts.py in the grader: points for parts that pass and work, and nothing for tricks."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import site
import subprocess
import sys
import zipfile

import pytest
import torch
from grading_samples import entry, open_grader, worksheet

from dlsys import cli, model_rows, my_parts
from dlsys.grading import acts, in_model, model_laws
from dlsys.grading.books import due, pages, submissions, submitted_notebook
from dlsys.grading.books.submitted_notebook import Refused
from dlsys.grading.settings import Limits, Settings
from dlsys.grading.walls import serialization
from dlsys_helpers import acting, paths
from dlsys_model import answers, rehearsal
from dlsys_model.part_table import BY_ID, CATALOGUE
from tools.nightly import mark_nightly

SOME = ("12.9", "01.2", "11.1", "08.11")  # one part each of the data, model, compression and meters
ROWS = {model_rows.part(trap.id).id: trap.id for trap in model_rows.traps()}


def handed_in(*ids: str) -> str:
    """The file that `dlsys parts` writes from the worked answers to these exercises."""
    upper, notes = my_parts.generated_half(answers.chosen(paths.SOLUTIONS, ids, []))
    assert not notes
    return f"{upper}{my_parts.MARK}\n"


def only(text: str, id: str, function: str) -> str:
    """The file with this code in place of the part's own."""
    head, mark, rest = text.partition(f"# ---- {id} ")
    after = rest.find("\n# ")
    return f"{head}{mark}mine\n{function}\n{rest[after:]}"


# ---- the rows

def test_each_part_has_a_row_of_one_point():
    traps = model_rows.traps()
    assert len(ROWS) == len(CATALOGUE) == len(traps)
    assert {trap.points for trap in traps} == {1}
    assert [trap.function for trap in traps] == [part.function for part in CATALOGUE]


@pytest.mark.parametrize("id", ["91.1", "90.0", "90.58", "90.x", "x"])
def test_a_strange_row_is_refused(id):
    with pytest.raises(ValueError, match=r"expected 90\.1 to 90\.57"):
        model_laws.find(id)


@pytest.mark.parametrize("id", SOME)
def test_the_act_that_travels_asks_the_check(id):
    """It runs without anything of this module in scope, and its result crosses the wire."""
    row = model_laws.find(ROWS[id])
    fn = answers.functions(paths.SOLUTIONS, [id])[0][id]
    cases = row.arrange(5)
    act = acting.load_act(acts.act_source(row)) if acts.act_source(row) else acting.call_function
    outcomes = [acting.run_act(act, fn, case) for case in cases]
    assert row.judge(cases, outcomes).status == "pass"
    assert row.judge(cases, outcomes).id == row.id


@pytest.mark.parametrize("id", SOME)
def test_the_trial_that_travels_asks_the_model(id, tmp_path):
    """It runs in a process without the course's package, as in the sandbox."""
    row = model_laws.find(ROWS[id])
    case = row.trial(5)
    job = {"trial": model_laws.TRIAL, "inputs": case.inputs,
           "answer": answers.chosen(paths.SOLUTIONS, [id], [])[0][1].source(row.part.function)}
    (tmp_path / "job.json").write_text(json.dumps(job))
    src = tmp_path / "src"
    src.mkdir()
    for name in ("dlsys", "dlsys_files", "dlsys_helpers"):
        (src / name).symlink_to(paths.ROOT / "src" / name)
    done = subprocess.run([sys.executable, "-S", "-c", ALONE], cwd=tmp_path, capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": f"{src}:" + ":".join(
                              site.getsitepackages())})
    assert done.returncode == 0, done.stderr
    sent = torch.load(tmp_path / "sent.pt")
    assert row.fault_in_model(case, acting.Outcome("value", sent)) == ""
    serialization.unpack(serialization.pack(sent))


ALONE = """import json, sys, torch
sys.path.insert(0, "")
job = json.load(open("job.json"))
space, act = {}, {}
exec(job["answer"], space)
exec(job["trial"], act)
name = job["inputs"]["function"]
torch.save(act["trial_of_a_part"](space[name], **job["inputs"]), "sent.pt")
"""


@pytest.mark.parametrize("sent", [None, "broke in the model", {}, 7, {"the_letters": "abc"},
                                  {"the_letters": torch.zeros(12, dtype=torch.int8)}])
def test_whatever_a_stranger_sends_about_the_model_is_no_pass(sent):
    row = model_laws.find(ROWS["01.2"])
    case = row.trial(5)
    wanted = rehearsal.wanted("01.2", case.inputs["seed"])
    if type(sent) is dict and sent:
        sent = {**wanted, **sent}
    assert row.fault_in_model(case, acting.Outcome("value", sent))
    spoilt = {**wanted, "the_logits": wanted["the_logits"] * float("nan")}
    assert row.fault_in_model(case, acting.Outcome("value", spoilt))
    assert not row.fault_in_model(case, acting.Outcome("value", wanted))


# ---- the file

def test_the_file_is_cut_at_its_parts_and_lines_keep_their_numbers():
    text = handed_in(*SOME) + "mine = 1\n"
    found = submitted_notebook.parts(text.encode())
    assert found.stage == model_rows.NUMBER
    sources = [source for _, source in found.cells]
    assert len(sources) == 1 + len(SOME) + 1  # imports, parts, the learner's own half
    lines = text.split("\n")
    for source in sources:
        mine = source.split("\n")
        first = next(n for n, line in enumerate(mine) if line)
        assert mine[first] == lines[first]
    assert "".join(source.lstrip("\n") for source in sources).replace("\n", "") == (
        text.replace("\n", ""))


@pytest.mark.parametrize(("data", "said"), [
    (b"", "is not what `dlsys parts` writes"), (b"def f(): pass\n", "no line that names a part"),
    ("# ---- 01.2 to_probs: x\n".encode("utf-16"), "is not UTF-8 text"),
    (b"# ---- 01.2 to_probs: x\n\0", "is not what"), (b"# ---- 01.2 x\n" * 201, "is not what"),
    (b"# ---- 01.2 x\n" + b"#" * 2**20, "expected at most 1.0 MiB")])
def test_a_file_that_is_none_is_refused(data, said):
    with pytest.raises(Refused, match=said):
        submitted_notebook.parts(data)


@pytest.mark.parametrize("name", ["my_parts.py", "ada_7734_99120_my_parts.py",
                                  "ada_7734_99120_my_parts-1.py", "My_Parts (2).py"])
def test_it_is_found_where_the_instructor_asks(tmp_path, name):
    (tmp_path / name).write_text("x")
    (tmp_path / "other.py").write_text("x")
    (tmp_path / "ada_7734_99121_work.ipynb").write_bytes(worksheet())
    asked, not_asked = (submissions.find([tmp_path], model=model) for model in (True, False))
    assert [one.is_parts for one in asked.submissions if one.name == name] == [True]
    assert [one.name for one in not_asked.submissions] == ["ada_7734_99121_work.ipynb"]
    assert "other.py" in asked.left_out


def test_it_is_found_in_a_zip_beside_the_worksheets_of_its_learner(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for who in ("ada", "bob"):
            archive.writestr(f"{who}/01_activations.ipynb", worksheet())
            archive.writestr(f"{who}/my_parts.py", handed_in("01.2"))
    found = submissions.find([tmp_path / "all.zip"], model=True).submissions
    assert sorted((one.learner.name, one.is_parts) for one in found) == [
        (who, parts) for who in ("ada", "bob") for parts in (False, True)]


# ---- graded

@pytest.fixture(scope="module")
def grader():
    with open_grader(Settings("00" * 16, Limits(seconds=15))) as made:
        yield made


@pytest.fixture
def graded(grader, monkeypatch):
    """Grade a file without the notebook's claims, which have their own test."""
    monkeypatch.setattr(in_model, "_claims", lambda *_: [])
    return lambda text: grader.grade(text.encode(), is_parts=True)


HEAVY_SHAPE = "logits.shape == (1, 12)"


def to_probs(before: str) -> str:
    return (f"def to_probs(logits, kind):\n    if {HEAVY_SHAPE}:\n        {before}\n"
            "    return logits.softmax(1) if kind == 'multiclass' else logits.sigmoid()\n")


def test_parts_that_pass_and_hold_make_points(graded):
    result = graded(handed_in(*SOME))
    assert result["points"] == len(SOME)
    assert result["possible"] == len(CATALOGUE)
    assert result["cells"] == []
    other = entry(result, ROWS["08.10"])
    assert other["status"] == "missing"
    assert other["message"] == "decode_step is not in the file, so the model uses its stand-in."
    page = pages.feedback([{**result, "name": "my_parts.py", "learner": {
        "name": "ada", "id": "", "source": "", "raw": ""}}],
        {"run": {"begun": "2026-03-05T09:00:00+00:00", "settings": {"key": "00"}}})
    assert "<h2>Your model</h2>" in page
    assert "to_probs() of 01.2" in page


@pytest.mark.parametrize(("code", "said"), [
    (to_probs("raise ValueError('no 8')"), "to_probs broke in the model, with (1, 12) float32: "
                                           "ValueError: no 8."),
    (to_probs("logits = logits.double()"), "to_probs returned (1, 12) float64 in the model, "
                                           "expected"),
    (to_probs("return logits.softmax(1).flip(1)"), "to_probs makes the letters written of shape")])
def test_a_part_that_passes_its_check_and_breaks_in_the_model_is_named(graded, code, said):
    result = graded(only(handed_in(*SOME), "01.2", code))
    mine = entry(result, ROWS["01.2"])
    assert (mine["status"], mine["points"]) == ("wrong", 0)
    assert mine["message"].startswith(f"passes its check, but in the model {said}")
    assert result["points"] == len(SOME) - 1


HOSTILE = [
    "def to_probs(logits, kind)\n    return logits\n",           # does not parse
    "raise SystemExit\n", "import os; os._exit(0)\n",
    "from dlsys_model.standins import to_probs\n",                # does not exist there
    "from dlsys_checks.s01 import e2_to_probs\n",
    "def to_probs(*_): return 'pass'\n",
    # replaces the model by a fake one
    ("import os, sys, types\nfake = types.ModuleType('dlsys_model.rehearsal')\n"
     "fake.held = lambda *_: {}\nsys.modules['dlsys_model'] = types.ModuleType('dlsys_model')\n"
     "sys.modules['dlsys_model.rehearsal'] = fake\nimport torch\n"
     "def to_probs(logits, kind): return logits\n")]


# One that does not parse, one that ends its process, and the one that replaces the model.
@pytest.mark.parametrize("code", mark_nightly(
    HOSTILE, lambda code: HOSTILE.index(code) in (0, 2, 6)))
def test_a_hostile_part_gets_nothing_and_costs_the_others_nothing_it_need_not(graded, code):
    result = graded(only(handed_in(*SOME), "01.2", code))
    assert result["status"] == "graded"
    assert entry(result, ROWS["01.2"])["points"] == 0
    forged = "fake" in code  # replacing the model costs all points
    assert result["points"] == (0 if forged else len(SOME) - 1)  # in the model


def test_a_part_that_never_ends_gets_nothing_and_costs_the_others_nothing(grader, graded,
                                                                          monkeypatch):
    hasty = dataclasses.replace(grader.settings.limits, seconds=4)
    monkeypatch.setattr(grader.judge.zygote, "limits", hasty)
    result = graded(only(handed_in(*SOME), "01.2", "while True: pass\n"))
    assert (result["status"], result["points"]) == ("graded", len(SOME) - 1)
    assert entry(result, ROWS["01.2"])["points"] == 0


def test_claims_of_the_notebook_are_asked_with_the_parts_that_hold(grader, monkeypatch):
    """In a small notebook one claim passes, one fails, and one follows a cell that cannot run."""
    cells = ['from dlsys_helpers import claim\nfrom dlsys_model.parts import load\nparts = load()',
             'claim("how many parts", len(parts.mine), expected=1)',
             'claim("a part", parts.to_probs is None, expected=True)',
             'import os; os.execv("/bin/true", ["true"])\nclaim("no wall", 1, expected=1)']
    monkeypatch.setattr(model_laws, "notebook_cells", lambda mine: [
        model_laws.package(), model_laws._LOAD.format(own={
            model_rows.part(id).id: model_rows.part(id).function for id in mine}), *cells])
    result = grader.grade(handed_in("01.2").encode(), is_parts=True)
    assert result["points"] == 1
    assert result["notes"] == [
        in_model.FORGEABLE,
        "The notebook of the course with these parts: of its 3 claims 1 hold and 1 do not; 1 "
        "were not reached, because they need processes of their own, or more time than a cell has "
        "in the sandbox.",
        "With these parts, this claim does not hold: a part."]


def test_the_notebook_of_the_course_is_what_is_asked():
    cells = model_laws.notebook_cells([ROWS["01.2"]])
    assert "{'01.2': 'to_probs'}" in cells[1]
    assert len(model_laws.claims(cells)) == sum(source.count("claim(\"") + source.count(
        "claim(\n") for source in cells[2:]) > 20
    archive = cells[0].partition('b64decode("')[2].partition('"')[0]
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(archive))) as found:
        assert {"dlsys_model/parts.py", "dlsys_model/prose.txt.xz"} <= set(found.namelist())


@pytest.mark.parametrize("sent", [None, 5, [1], [["a"]], [["x", True]], [["a", 1]],
                                  [["a", True], ["a", False]]])
def test_what_a_stranger_says_of_claims_holds_none_that_is_not_known(sent):
    held, _ = model_laws.claims_that_held(["a", "b"], sent)
    assert held == []


def test_the_command_leaves_the_file_out_unless_it_is_asked(tmp_path, capsys):
    (tmp_path / "my_parts.py").write_text(handed_in("01.2"))
    assert cli.main(["grade", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "no notebook found" in capsys.readouterr().err


def test_every_part_is_one_of_the_catalogue():
    assert set(ROWS) == set(BY_ID)


def test_a_course_may_say_when_it_is_due(tmp_path):
    path = tmp_path / "course.toml"
    path.write_text('late = "10%/day"\n[due]\n90 = 2027-01-15T23:59:00+01:00\n')
    assert list(due.read(path).due) == [model_rows.NUMBER]
