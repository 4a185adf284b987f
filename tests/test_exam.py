"""The exam: each fault shows and its mend ends it, the forms match, and answers earn their rows."""

import json
import re
from itertools import combinations

import nbformat
import pytest
from grading_samples import code, settings
from grading_samples import entry as row_of

from dlsys import cli, exam, sheets, worksheets
from dlsys.grading import pages, reports
from dlsys.grading.judge import Judge
from dlsys.grading.notebooks import parse
from dlsys.grading.sandbox import SandboxRefused, Zygote
from dlsys_checks.exam import faults, laws, mending, numbers, probes, sheet
from dlsys_checks.exam.faults import FAULTS
from dlsys_helpers import paths, progress
from dlsys_helpers.checking import CheckFailed

SHEET = sheet.number_of("A", 3)


def look(source, seed, *names):
    return probes.look(source, *laws.pictures(), seed, *([names] if names else []))


def telling(fault):
    """All probes, but the dearest to compute only where it shows something that counts."""
    needed = {probe for probe, *_ in fault.shows}
    return [name for name in numbers.HEALTHY if name != "one_batch" or name in needed]


@pytest.fixture(scope="module")
def shown():
    """What the probes show of each fault, each with a seed of its own."""
    return {id: look(fault.planted(faults.healthy()), 500 + k, *telling(fault))
            for k, (id, fault) in enumerate(FAULTS.items())}


def tells(fault, found):
    """Whether the numbers of this fault fit what was found; what is not known may fit."""
    return any(probe not in found or low <= found[probe][name] <= high
               for probe, name, low, high in fault.shows)


# ---- faults and probes

@pytest.mark.parametrize("id", FAULTS)
def test_a_fault_shows_in_its_numbers(shown, id):
    for probe, name, low, high in FAULTS[id].shows:
        value = shown[id][probe][name]
        assert low <= value <= high, (name, value)
        assert not numbers.is_healthy(probe, name, value)


def test_without_a_fault_nothing_shows():
    assert numbers.ailing(look(faults.healthy(), 4093)) == []


CLIP, DROP, STEP = faults.CLIP, "        self.drop =", "            optimizer.step()\n"
OTHER_MENDS = [
    ("03.4", [("nn.init.normal_(layer.weight, std=0.01)", "pass")]),
    ("07.8", [(DROP, f"        self.layers = nn.Sequential(*self.layers)\n{DROP}")]),
    ("09.1", [(CLIP, "            for p in model.parameters():\n"
                     f"                p.grad /= 1024\n{CLIP}")]),
    ("02.1", [("            total = 0.0\n", "            total = 0.0\n            "
                                             "model.zero_grad()\n")])]
HALF_MENDS = [
    ("03.3", [(CLIP, ""), (STEP, STEP + CLIP)]),
    ("06.4", [("score, model.state_dict()", "score, dict(model.state_dict())")]),
    ("05.3", [("F.dropout(x, 0.1)", "F.dropout(x, 0.1, True)")]),
    ("12.1", [("keepdim=True)\n\n\n# part: model", "keepdim=True).clamp(min=1e-6)"
               "\n\n\n# part: model")])]


def mended(id, changes, *names):
    text = FAULTS[id].planted(faults.healthy())
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return numbers.ailing(look(text, 77, *names))


@pytest.mark.parametrize(("id", "changes"), OTHER_MENDS)
def test_another_mend_is_right_too(id, changes):
    assert mended(id, changes, *telling(FAULTS[id])) == []


@pytest.mark.parametrize(("id", "changes"), HALF_MENDS)
def test_half_a_mend_still_shows(id, changes):
    assert mended(id, changes, FAULTS[id].shows[0][0])


def test_any_two_faults_are_told_apart_by_their_numbers(shown):
    """Where one number fits both, another number of one of them does not fit the other."""
    alike = [(a, b) for a, b in combinations(FAULTS, 2)
             if tells(FAULTS[a], shown[b]) and tells(FAULTS[b], shown[a])]
    assert alike == []


def test_there_are_enough_faults_and_they_come_from_all_stages():
    assert len(FAULTS) >= 20
    assert {int(id[:2]) for id in FAULTS} == set(range(1, 13))
    assert all(fault.part in faults.PARTS for fault in FAULTS.values())


@pytest.mark.parametrize("id", FAULTS)
def test_a_fault_changes_its_part_alone(id):
    healthy, faulty = faults.healthy(), FAULTS[id].planted(faults.healthy())
    changed = [part for part in faults.PARTS
               if faults.part_of(healthy, part) != faults.part_of(faulty, part)]
    assert changed == [FAULTS[id].part]


# ---- sheets

@pytest.mark.parametrize("draw", range(sheet.DRAWS))
def test_two_forms_of_a_draw_match_and_share_nothing(draw):
    a, b = (sheet.drawn(sheet.number_of(form, draw)) for form in "AB")
    dearer = [abs(x - y) for x, y in zip(*(sorted(sheet.cost(fault) for case in form[:4]
                                                  for fault in case) for form in (a, b)),
                                         strict=True)]

    assert [len(case) for case in a] == [len(case) for case in b] == [1, 1, 1, 1, 2]
    assert all(abs(sheet.cost(x) - sheet.cost(y)) <= 1 for x, y in zip(a[4], b[4], strict=True))
    assert max(dearer) <= 1
    assert len({fault.id for form in (a, b) for case in form for fault in case}) == 12


def test_no_case_of_form_b_is_the_partner_of_the_same_case_of_form_a():
    """Nor does a couple come back in every draw."""
    partners = []
    for draw in range(sheet.DRAWS):
        rng = sheet.random.Random(draw)
        couples = [{x.id, y.id} for x, y in sheet.coupled(rng)]
        a, b = (sheet.drawn(sheet.number_of(form, draw)) for form in "AB")
        assert not any({x.id, y.id} in couples
                       for (x,), (y,) in zip(a[:4], b[:4], strict=True))
        partners += map(tuple, map(sorted, couples))
    assert max(map(partners.count, set(partners))) <= sheet.DRAWS / 2


def test_draws_ask_for_every_fault():
    asked = {fault.id for draw in range(sheet.DRAWS)
             for case in sheet.drawn(sheet.number_of("A", draw)) for fault in case}
    assert asked == set(FAULTS) - {"12.1"}


@pytest.mark.parametrize("number", [20, 33, 49, 50, 79])
def test_the_straight_way_is_within_the_budget_and_reading_all_is_not(number):
    for case in sheet.drawn(number):
        way = ["loss_curve", *(name for fault in case for name in (
            fault.shows[0][0], f"read {fault.part}")), "wrong name"]
        assert numbers.price(way) <= numbers.BUDGETS[len(case)]
    every = [f"read {part}" for part in faults.PARTS]
    assert numbers.price([*every, "loss_curve"]) > numbers.BUDGETS[1]


def test_the_double_case_shows_both_faults():
    for number in (20, 51):
        case = sheet.drawn(number)[-1]
        names = {probe for fault in case for probe, *_ in fault.shows}
        found = look(sheet.source(case), sheet.seed(number, 5), *names)
        assert all(tells(fault, found) for fault in case)


# ---- answers

def answer(number, place, **other):
    """A right answer, as somebody may give it who replaces whole parts."""
    planted = sheet.case(number, place)
    faulty, healthy = sheet.source(planted), faults.healthy()
    return {"faults": [fault.id for fault in planted],
            "evidence": [(*fault.shows[0][:2], sum(fault.shows[0][2:]) / 2) for fault in planted],
            "mend": [(faults.part_of(faulty, fault.part), faults.part_of(healthy, fault.part))
                     for fault in planted],
            "paid": [word for fault in planted
                     for word in (fault.shows[0][0], f"read {fault.part}")], **other}


def text_of(place):
    """The script of a case of the sheet."""
    return sheet.source(sheet.case(SHEET, place))


def verdict(place, row, **other):
    id = f"{SHEET}.{4 * place - 3 + row}"
    return laws.run_check(id, lambda: answer(SHEET, place, **other), (0,))


@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("place", [2, 5])
def test_a_right_answer_earns_each_row(place, row):
    assert verdict(place, row).status == "pass"


OTHER = next(id for id in FAULTS if id not in {f.id for c in sheet.drawn(SHEET) for f in c})


EVERYTHING = [name for name in numbers.PRICES if not name.startswith("wrong")]
(FIRST,) = sheet.case(SHEET, 1)
PROBE, NUMBER, *SPAN = FIRST.shows[0]
RIGHT = (PROBE, NUMBER, sum(SPAN) / 2)
BLANKS = ("def scaled(images):\n", "\n\n\ndef scaled(images):  # mended\n")


@pytest.mark.parametrize(("row", "other", "says"), [
    (0, {"faults": [OTHER]}, f"faults: got {OTHER}, expected what is planted here"),
    (0, {"faults": ["softmax"]}, "expected an id of the list"),
    (0, {"faults": [OTHER, OTHER]}, "number of faults: got 2, expected 1"),
    (0, {"faults": [3.1]}, "Write the id in quotes"),
    (0, {"more": 1}, "parts of the answer"),
    (1, {"faults": [OTHER]}, "expected what is planted here"),
    (1, {"faults": []}, "Names come first"),
    (1, {"evidence": [RIGHT, RIGHT]}, "number of entries of evidence: got 2, expected 1"),
    (1, {"evidence": [(PROBE, NUMBER, 77777.0)]}, "expected what this probe prints"),
    (1, {"evidence": [("loss_curve", "last loss", 9.0)], "paid": ["loss_curve"]},
     "a number that tells which fault it is"),
    (1, {"evidence": [("loss_curve", "last loss", 0.2)], "paid": ["loss_curve"]},
     "expected a number outside the healthy range"),
    (1, {"evidence": [("trace", "last rate", 1.0)], "paid": ["read data"]},
     "a probe that stands in paid"),
    (1, {"evidence": [("trace", "the loss", 1.0)]}, "a number that this probe prints"),
    (1, {"evidence": ["the loss is high"]}, "Write (probe, number, value)"),
    (2, {"mend": [("no such line", "")]}, "does not stand there exactly once"),
    (2, {"mend": [("", "x = 1")]}, "does not stand there exactly once"),
    (2, {"mend": [("import copy\n", "")], "paid": [f"read {FIRST.part}"]},
     "does not stand there exactly once"),
    (2, {"paid": []}, "paid: got nothing, expected the line that receipt() prints"),
    (2, {"mend": "x = 1"}, "type of the mend: got str, expected list"),
    (2, {"mend": [("x = 1",)]}, "expected a list of pairs of texts"),
    (2, {"mend": [BLANKS], "paid": EVERYTHING}, "mend: got the same script, expected a change"),
    (2, {"mend": [("import copy\n", "import copy (\n")], "paid": EVERYTHING}, "import copy ("),
    (2, {"mend": [("import copy\n", "import copy\nprint(1)\n")], "paid": EVERYTHING},
     "mended script, "),
    (2, {"mend": [("import copy\n", "import copy\nraise ValueError('no')\n")],
         "paid": EVERYTHING}, "mended script: got ValueError: no, expected a script that runs"),
    (3, {"paid": ["loss_curve"]}, "a probe that stands in paid"),
    (3, {"paid": ["free"]}, "words as receipt() prints them"),
    (3, {"paid": []}, "paid: got nothing, expected the line that receipt() prints"),
    (3, {"mend": []}, "the price counts for a whole answer"),
    (3, {"faults": [OTHER]}, "expected what is planted here"),
    (3, {"paid": EVERYTHING}, "price: got 29, expected 10 or less"),
    (3, {"paid": [word for word in EVERYTHING if not word.startswith("read")]},
     "one of the parts that you read")])
def test_a_wrong_answer_is_told_what_is_wrong(row, other, says):
    found = verdict(1, row, **other)
    assert found.status == "wrong"
    assert says in found.message


def test_two_faults_need_a_number_each():
    one, _ = answer(SHEET, 5)["evidence"]
    assert "a number for each fault" in verdict(5, 1, evidence=[one, one]).message


# ---- mends

def changed(fault):
    """How a mend of this fault comes out that puts the healthy part in the place of the faulty."""
    faulty, healthy = fault.planted(faults.healthy()), faults.healthy()
    pair = tuple(faults.part_of(text, fault.part) for text in (faulty, healthy))
    mine = {"mend": [pair], "paid": [f"read {fault.part}"]}
    return mending.mended(mine, faults.parts(faulty), 1)


@pytest.mark.parametrize("id", FAULTS)
def test_each_fault_can_be_mended_within_the_limits(id):
    assert changed(FAULTS[id]) == (faults.healthy(), None)


def pasted(extra=""):
    """A mend that fits all scripts: healthy functions in front of those that stand there."""
    parts = faults.parts(faults.healthy())
    code = {name: text.partition("\n")[2] + extra for name, text in parts.items()}
    return [("@torch.no_grad()\ndef evaluate", f"{code['train']}{code['evaluate']}"
             "\n\ndef again(*_): pass\n\n@torch.no_grad()\ndef unused")]


@pytest.mark.parametrize(("pairs", "says"), [
    (pasted(), "lines that the mend"),
    ([("import copy\n", f"import copy\nx = '{'1' * 200}'\n")], "characters of the lines"),
    ([("import copy\n", "x = 1\n" * 2000)], "very long texts"),
    ([("import copy\n", "import copy  # as before\n")], "the same script")])
def test_what_is_no_mend_is_refused_before_anything_is_run(pairs, says):
    every = [f"read {part}" for part in faults.PARTS]
    source, why = mending.mended({"mend": pairs, "paid": every}, faults.parts(text_of(1)), 1)
    assert source is None
    assert says in " ".join(map(str, why))


def test_a_pasted_answer_earns_nothing():
    """Numbers of many faults, a mend that fits all, all probes paid: in no case a point."""
    numbers_of_all = [(*fault.shows[0][:2], sum(fault.shows[0][2:]) / 2)
                      for fault in FAULTS.values()]
    for number in (SHEET, sheet.number_of("B", 9)):
        for k, row in enumerate(sheet.traps(number)):
            mine = {"faults": [OTHER] * (2 if k >= 16 else 1), "evidence": numbers_of_all,
                    "mend": pasted(), "paid": EVERYTHING}
            if OTHER not in {fault.id for fault in sheet.case(number, k // 4 + 1)}:
                assert laws.run_check(row.id, lambda mine=mine: mine, (0,)).status == "wrong"
            named = {**mine, "faults": [f.id for f in sheet.case(number, k // 4 + 1)]}
            if k % 4:
                assert laws.run_check(row.id, lambda mine=named: mine, (0,)).status == "wrong"


def test_what_is_empty_is_not_written_yet():
    empty = {"faults": [], "evidence": [], "mend": [], "paid": []}
    assert {verdict(1, row, **empty).status for row in range(3)} == {"todo"}
    assert verdict(1, 3, **empty).status == "todo"


def test_ids_beyond_a_sheet_are_unknown():
    with pytest.raises(ValueError, match=r"expected 23.1 to 23.20"):
        laws.find(f"{SHEET}.21")


@pytest.mark.parametrize("row", range(4))
def test_a_wrong_name_is_known_in_every_row_and_not_repeated(row):
    found = verdict(1, row, faults=[OTHER], mend=[("no such line", "")])
    assert found.misconception == f"{OTHER} {FAULTS[OTHER].name}"
    assert FAULTS[OTHER].name not in found.message
    assert FIRST.id not in found.message
    assert found.trap == ""


# ---- the notebook

@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder of the learner's own, where progress is kept."""
    monkeypatch.setattr(paths, "MY_WORK", tmp_path)
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path))
    return tmp_path


def test_the_command_writes_a_sheet_and_never_over_it(kept, capsys):
    assert cli.main(["exam", "b", "--draw", "3"]) == 0
    path = kept / "53_exam_b.ipynb"
    nbformat.validate(nbformat.read(path, as_version=4))
    assert "dlsys exam a --draw 3" in capsys.readouterr().out
    path.write_text("mine")

    assert cli.main(["exam", "b", "--draw", "3"]) == 0

    assert "stays as it is" in capsys.readouterr().out
    assert path.read_text() == "mine"


def test_the_other_form_takes_the_draw_of_the_first(kept):
    assert cli.main(["exam", "a", "--draw", "3"]) == 0
    assert cli.main(["exam", "b"]) == 0
    assert (kept / "53_exam_b.ipynb").exists()


def test_the_notebook_says_the_limits_and_what_each_part_holds():
    top = exam.notebook(SHEET)["cells"][0]["source"]
    assert "A case with one fault has a budget of 10, the last case\nof 16" in top
    assert "6 lines together" in top
    assert "160 characters" in top
    assert all(f"- `{part}`: " in top for part in faults.PARTS)


def test_the_notebook_tells_no_answer(kept):
    def texts(number):
        text = "\n".join(cell["source"] for cell in exam.notebook(number)["cells"])
        return re.sub(rf"\b{number}\b", "N", text).replace(f"draw {number - 20}", "draw K")

    assert texts(SHEET) == texts(SHEET + 1)


def test_an_unwritten_sheet_is_read_as_a_worksheet(kept):
    cli.main(["exam", "a", "--draw", "3"])
    found = worksheets.read(kept / "23_exam_a.ipynb")
    assert found.stage == SHEET
    assert [row.id for row in found.exercises] == [row.id for row in sheets.traps(SHEET)]
    assert found.notes == []


def test_probes_print_numbers_and_a_receipt(kept, capsys):
    case = exam.sit(SHEET).case(1)
    case.read("optimizer")
    case.read("optimizer")
    case.look_at_batch()
    case.read("nothing")
    said = capsys.readouterr().out
    assert "def make_optimizer(model, steps):" in said
    assert "healthy: 0.9 to 1" in said
    assert "expected one of data, model" in said
    progress.record(f"{SHEET}.1", "wrong", "03.1 softmax before the loss")
    progress.record(f"{SHEET}.1", "wrong", "03.1 softmax before the loss")

    case.receipt()

    assert 'Paid 8 of 10.\n"paid": ["read optimizer", "look_at_batch", "wrong name"],' in (
        capsys.readouterr().out)


def test_a_check_shows_the_verdict_and_remembers_what_it_refused(kept, capsys):
    other = [("loss_curve", "last loss", 9.0)]
    for row, more in ((1, {"faults": [OTHER]}), (3, {"faults": [OTHER]}),
                      (2, {"evidence": other, "paid": ["loss_curve"]})):
        with pytest.raises(CheckFailed):
            exam.check(f"{SHEET}.{row}", lambda more=more: answer(SHEET, 1, **more))
    exam.check(f"{SHEET}.1", lambda: answer(SHEET, 1))

    said = capsys.readouterr().out
    assert "Exercise 23.1: passed. 2 of 2 points" in said
    assert "Paid 3 of 10." in said
    assert exam.sit(SHEET).case(1).paid() == ["wrong evidence", "wrong name"]


def test_the_price_counts_what_the_ledger_holds(kept):
    exam.sit(SHEET).case(1).read("data")
    progress.record(f"{SHEET}.1", "wrong", "03.1 softmax before the loss")
    assert "2 fewer than you paid" in verdict(1, 3, paid=[PROBE]).message

    known = [*answer(SHEET, 1)["paid"], "read data", "wrong name"]
    assert "2 fewer" not in verdict(1, 3, paid=known).message


def test_the_worked_case_is_free_and_shows_what_it_says(kept, capsys):
    case = exam.sit(SHEET).case(0)
    case.loss_curve()
    case.look_at_batch()
    said = capsys.readouterr().out
    assert "! not a number" in said
    assert "0.002   healthy: 0\n" in said
    assert "Paid 3 of 10.  This case is free." in said
    space = {}
    exec(next(text for kind, text in exam.WORKED if text.startswith("def case_0")), space)
    mended = sheet.source(sheet.case(SHEET, 0))
    for old, new in space["case_0"]()["mend"]:
        assert mended.count(old) == 1
        mended = mended.replace(old, new)
    assert mended == faults.healthy()


def test_the_answer_comes_after_names_evidence_and_mend(kept, capsys):
    assert cli.main(["answer", f"{SHEET}.1"]) == 2
    progress.record(f"{SHEET}.1", "pass")
    progress.record(f"{SHEET}.2", "pass")
    assert cli.main(["answer", f"{SHEET}.1"]) == 2
    assert "case 1 is not solved yet" in capsys.readouterr().err
    progress.record(f"{SHEET}.3", "pass")
    assert cli.main(["answer", f"{SHEET}.1"]) == 0
    (right,) = sheet.case(SHEET, 1)
    assert right.name in capsys.readouterr().out


# ---- the grader

@pytest.fixture(scope="module")
def graded():
    """The result of a sheet of which case 2 is solved and case 1 has a wrong name."""
    cells = [cell["source"] for cell in exam.notebook(SHEET)["cells"]
             if cell["cell_type"] == "code"]
    written = {1: answer(SHEET, 1, faults=[OTHER], mend=[]), 2: answer(SHEET, 2)}
    for place, mine in written.items():
        stub = next(k for k, text in enumerate(cells) if text.startswith(f"def case_{place}("))
        cells[stub] = f"def case_{place}():\n    return {mine!r}"
    data = json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": list(map(code, cells)),
                       "metadata": {"dlsys": {"stage": SHEET, "view": "exercise"}}}).encode()
    zygote = Zygote(settings(seconds=60, gib=1.0).limits)
    try:
        judge = Judge(bytes(16), zygote)
    except SandboxRefused as error:
        pytest.skip(str(error))
    with_learner = {"name": "a.ipynb", "learner": {"name": "a", "id": "", "source": "", "raw": ""}}
    try:
        return {**with_learner, **judge.grade(parse(data))}
    finally:
        judge.close()


def test_the_grader_takes_a_sheet_as_it_takes_a_worksheet(graded):
    assert graded["points"] == 8  # and nothing for case 1, whose name is wrong
    assert graded["possible"] == 40
    assert row_of(graded, f"{SHEET}.7")["status"] == "pass"
    assert row_of(graded, f"{SHEET}.1")["misconception"].startswith(OTHER)
    assert row_of(graded, f"{SHEET}.2")["status"] == "wrong"
    assert row_of(graded, f"{SHEET}.9")["status"] == "todo"


def test_probes_do_no_harm_in_the_sandbox_and_reports_know_the_sheet(graded):
    assert graded["cells"] == []
    assert reports.nbgrader([graded])[1][0] == "23_exam_a"
    page = pages.feedback([graded])
    assert "Case 1: the faults" in page
    assert f"faults: got {OTHER}" in page
