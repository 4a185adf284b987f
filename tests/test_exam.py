"""The exam: each fault shows, its fix ends it, the forms match, and answers earn their rows."""

import json
import re
from datetime import timedelta
from itertools import combinations

import nbformat
import pytest
import torch
from grading_samples import code, settings, without_sandbox
from grading_samples import entry as row_of

from dlsys import assignments, cli, exam, review, start_page, worksheets
from dlsys.check_stub import CheckStub
from dlsys.grading.books import pages, reports
from dlsys.grading.books.submitted_notebook import parse
from dlsys.grading.judge import Judge
from dlsys.grading.walls.sandbox import SandboxRefused, Zygote
from dlsys_checks.checking import BadCall, CheckFailed
from dlsys_checks.exam import faults, laws, ledger, mending, mends, numbers, sheet
from dlsys_checks.exam.faults import FAULTS
from dlsys_files import notebook_reader
from dlsys_helpers import catalog, paths, progress
from dlsys_helpers.stages import NUMBERS
from dlsys_helpers.verdicts import Verdict
from tools import exam as record
from tools.nightly import mark_nightly

SHEET = sheet.number_of("A", 3)


def fits(fault, found):
    """Whether the numbers of this fault fit what was found."""
    return any(low <= found[probe][name] <= high for probe, name, low, high in fault.shows)


def probe_numbers(id):
    """What the probes show of a fault, on each recorded seed."""
    return record.numbers_by_seed(FAULTS[id].planted(faults.healthy()))


# ---- faults and probes

@pytest.mark.parametrize("id", FAULTS)
def test_a_fault_shows_in_its_numbers(id):
    for found in probe_numbers(id):
        for probe, name, low, high in FAULTS[id].shows:
            value = found[probe][name]
            assert low <= value <= high, (name, value)
            assert not numbers.is_healthy(probe, name, value)


def test_without_a_fault_nothing_shows():
    for found in record.numbers_by_seed(faults.healthy()):
        assert numbers.ailing(found) == []


@pytest.mark.parametrize(("id", "changes"), mends.RIGHT)
def test_another_mend_is_right_too(id, changes):
    for found in record.numbers_by_seed(mends.mended(id, changes)):
        assert numbers.ailing(found) == []


@pytest.mark.parametrize(("id", "changes"), mends.HALF)
def test_half_a_mend_still_shows(id, changes):
    for found in record.numbers_by_seed(mends.mended(id, changes)):
        assert numbers.ailing(found)


def test_any_two_faults_are_told_apart_by_their_numbers():
    """Where one number fits both, another number of one of them does not fit the other."""
    alike = [(a, b) for a, b in combinations(FAULTS, 2)
             if any(fits(FAULTS[a], found) for found in probe_numbers(b))
             and any(fits(FAULTS[b], found) for found in probe_numbers(a))]
    assert alike == []


def test_a_number_that_fits_another_fault_is_one_of_few():
    """What else moves a number so far that it fits: no number of a fault fits more than a few."""
    fits = {(id, *entry[:2]): [other for other in FAULTS if other != id and any(
                entry[2] <= found[entry[0]][entry[1]] <= entry[3]
                for found in probe_numbers(other))]
            for id, fault in FAULTS.items() for entry in fault.shows}
    assert {key: others for key, others in fits.items() if len(others) > 3} == {}
    assert sum(not others for others in fits.values()) > 0.75 * len(fits)


def test_the_record_holds_every_script_and_no_other():
    scripts = record.scripts()
    stale = [name for name, source in scripts.items() if not record.recorded(source)]
    assert stale == [], f"Run: {record.RECORD.renew}"
    assert record.RECORD.entries().keys() == scripts.keys()


@pytest.mark.parametrize("part", mark_nightly(faults.PARTS, lambda part: part == "train"))
def test_the_record_is_what_is_measured(part):
    """The first fault of each part, measured anew on a recorded seed; processors round apart."""
    id, fault = next((id, fault) for id, fault in FAULTS.items() if fault.part == part)
    probe = fault.shows[0][0]
    now = record.measured(fault.planted(faults.healthy()), record.SEEDS[0], probe)[probe]
    assert now == pytest.approx(probe_numbers(id)[0][probe], rel=0.1, abs=0.01)


def test_there_are_enough_faults_and_they_come_from_all_stages():
    assert len(FAULTS) >= 20
    assert {int(id[:2]) for id in FAULTS} == set(NUMBERS)
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
    assert asked == set(FAULTS) - {one.id for one in faults.WORKED}


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
        needed = {probe for fault in case for probe, *_ in fault.shows[:1]}
        found = record.measured(sheet.source(case), sheet.seed(number, 5), *needed)
        for fault in case:
            probe, name, low, high = fault.shows[0]
            assert low <= found[probe][name] <= high


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
    (2, {"mend": [("import copy\n", "")], "paid": ["read ranks"]},
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
    (3, {"paid": EVERYTHING}, "price: got 53, expected 10 or less"),
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
    """Put healthy functions in front of a script's own: a fix that would fit every script."""
    parts = faults.parts(faults.healthy())
    code = {name: text.partition("\n")[2] + extra for name, text in parts.items()}
    return [("@torch.no_grad()\ndef evaluate", f"{code['train']}{code['evaluate']}"
             "\n\ndef again(*_): pass\n\n@torch.no_grad()\ndef unused")]


@pytest.mark.parametrize(("pairs", "says"), [
    (pasted(), "lines that the mend"),
    ([("import copy\n", f"import copy\nx = '{'1' * 200}'\n")], "characters of the lines"),
    ([("import copy\n", "x = 1\n" * 2000)], "very long texts"),
    ([("import copy\n", "import copy  # as before\n")], "the same script"),
    *(([("import copy\n", f"import copy\n{line}\n")], says) for line, says in (
        ("import sys", "import sys"), ("torch.sys.modules", "sys"),
        ("f = train.__globals__", "__globals__"), ("f = gen.gi_frame.f_back", "f_back"),
        ("exec('x = 1')", "exec"), ("F.relu = abs", "F is set"), ("del nn.Linear", "nn is set"),
        ("torch.Tensor.isnan.x['y'] = 1", "torch is set")))])
def test_what_is_no_mend_is_refused_before_anything_is_run(pairs, says):
    every = [f"read {part}" for part in faults.PARTS]
    source, why = mending.mended({"mend": pairs, "paid": every}, faults.parts(text_of(1)), 1)
    assert source is None
    assert says in " ".join(map(str, why))


def test_a_mend_that_reaches_the_library_by_another_name_earns_nothing():
    """The fault is a softmax before the loss: without it in torch, all numbers were healthy."""
    number, place = next((n, k) for n in sheet.NUMBERS for k in range(1, 5)
                         if [f.id for f in sheet.case(n, k)] == ["03.1"])
    torch_mended = [("def scaled", "for t in [torch.Tensor]:\n    t.softmax = lambda s, d: "
                     "s if s.grad_fn else torch.softmax(s, d)\n\ndef scaled")]
    mine = answer(number, place, mend=torch_mended, paid=EVERYTHING)

    try:
        found = laws.run_check(f"{number}.{4 * place - 1}", lambda: mine, (0,))
    finally:
        del torch.Tensor.softmax  # it has it from its base

    assert found.status == "wrong"
    assert "got Tensor.softmax is set, expected a change of this script alone" in found.message


def test_a_pasted_answer_earns_nothing():
    """Numbers of many faults, a fix that fits every script, all probes bought: no points."""
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
    found = [verdict(1, row, **empty) for row in range(4)]
    assert {one.status for one in found} == {"todo"}
    assert '"mend" of case_1 is empty' in found[2].message
    assert verdict(1, 2, mend=[]).status == "todo"


def test_ids_beyond_a_sheet_are_unknown():
    with pytest.raises(ValueError, match=r"expected 23.1 to 23.20"):
        laws.find(f"{SHEET}.21")
    for id in (f"{SHEET}.21", "01.1", f"0{SHEET}.1", "x", 23.1):
        with pytest.raises(BadCall, match="expected the id of a row in quotes"):
            exam.check(id, dict)


@pytest.mark.parametrize(("id", "number"), [
    ("27.3", 27), ("01.4", 1), ("x", 0), ("", 0), ("²3.1", 0), ("٢٣.1", 0), ("-1.2", 0)])
def test_an_id_begins_with_the_number_of_its_sheet(id, number):
    assert assignments.number_of(id) == number


def test_the_answer_of_another_case_is_not_checked_and_costs_nothing(kept):
    def case_2():
        return answer(SHEET, 2)

    with pytest.raises(BadCall, match=f"got case_2 for row {SHEET}.1, expected case_1"):
        exam.check(f"{SHEET}.1", case_2)
    assert exam.sit(SHEET).case(1).paid() == []


def test_a_check_of_no_function_is_told_so():
    assert "got case_1, expected your function case_1, without quotes" in laws.run_check(
        f"{SHEET}.1", "case_1", (0,)).message


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


def test_a_draw_that_is_none_is_told_in_one_line(kept, capsys):
    for draw in ("30", "-1", "x"):
        with pytest.raises(SystemExit):
            cli.main(["exam", "a", f"--draw={draw}"])
    assert capsys.readouterr().err.count("expected a whole number, 0 to 29. See:") == 3


def test_the_other_form_takes_the_draw_of_the_first(kept):
    assert cli.main(["exam", "a", "--draw", "3"]) == 0
    assert cli.main(["exam", "b"]) == 0
    assert (kept / "53_exam_b.ipynb").exists()


def test_the_notebook_says_the_limits_and_what_each_part_holds():
    top = exam.notebook(SHEET)["cells"][0]["source"]
    text = " ".join(top.split())
    assert "A case with one fault has a budget of 10, and the last case has 16." in text
    assert "remove and add 6 lines in all" in text
    assert "160 characters" in top
    assert all(f"- `{part}`: " in top for part in faults.PARTS)


def test_the_notebook_tells_no_answer(kept):
    def texts(number):
        text = "\n".join(cell["source"] for cell in exam.notebook(number)["cells"])
        return re.sub(rf"\b{number}\b", "N", text).replace(f"draw {number - 20}", "draw K")

    assert texts(SHEET) == texts(SHEET + 1)


def test_a_row_without_hints_is_reported_as_data():
    row = assignments.trap(f"{SHEET}.1")
    assert cli.exercise_data(row, Verdict("wrong", row.id, "no"))["hint"] is None


def test_an_unwritten_sheet_is_read_as_a_worksheet(kept):
    cli.main(["exam", "a", "--draw", "3"])
    found = worksheets.read(kept / "23_exam_a.ipynb")
    assert found.stage == SHEET
    assert [row.id for row in found.exercises] == [row.id for row in assignments.traps(SHEET)]
    assert found.notes == []


def test_each_row_has_a_check_in_a_cell_of_its_own():
    """A cell ends with the first check that does not pass, where nobody sees the card."""
    found = [notebook_reader.checked_in(cell["source"])
             for cell in exam.notebook(SHEET)["cells"] if cell["cell_type"] == "code"]
    assert [ids for ids in found if ids] == [[row.id] for row in assignments.traps(SHEET)]


@pytest.mark.parametrize(("number", "place"), [
    (str(SHEET), 1), (float(SHEET), 1), (SHEET, True), (SHEET, 2.0), (SHEET, "1"), (SHEET, 6),
    (SHEET, -2)])
def test_what_the_ledger_could_not_note_is_refused(number, place):
    with pytest.raises(exam.ExamError, match=r"expected (a|the) whole number"):
        exam.sit(number).case(place)


def test_no_probe_looks_at_a_sheet_that_is_none(kept, capsys):
    """Below the first form the draws of the second would come again."""
    for number in (5, 19, 80, 95):
        exam.sit(number).case(1).trace()
        exam.sit(number).case(1).receipt()
    assert capsys.readouterr().out.count("expected 20 to 79. Make one with: dlsys exam a\n") == 8


def test_the_free_case_shows_no_part_of_the_plain_script(kept, capsys):
    exam.sit(SHEET).case(0).read("train")
    said = capsys.readouterr().out
    assert "expected 'data'" in said
    assert "def train" not in said


def test_a_look_is_paid_before_it_is_seen(kept, monkeypatch):
    def cut_off(*_):
        raise KeyboardInterrupt

    case = exam.sit(SHEET).case(1)
    monkeypatch.setattr("builtins.print", cut_off)
    with pytest.raises(KeyboardInterrupt):
        case.read("data")
    assert case.paid() == ["read data"]


def test_a_silent_case_shows_in_one_number_alone():
    for found in probe_numbers("06.7"):
        assert numbers.ailing(found) == [("evaluation", "test pictures that train has seen", 1.0)]


@pytest.mark.parametrize("place", [0, -1])
def test_a_worked_case_is_solved_as_it_says(place):
    """The answer in its notebook names, shows and fixes the planted fault."""
    written = [text for text in (cell["source"] for cell in exam.notebook(SHEET)["cells"])
               if text.startswith("def case_") and '"faults": ["' in text]
    space = {}
    exec(written[-place], space)
    (mine,) = [made() for name, made in space.items() if name.startswith("case_")]
    planted = sheet.case(SHEET, place)
    laws.law_price(mine, planted)
    source, refused = mending.mended(mine, faults.parts(sheet.source(planted)), 1)
    assert refused is None
    assert source == faults.healthy()


def test_ranks_have_faults_of_their_own():
    assert [id for id, fault in FAULTS.items() if fault.part == "ranks"] == ["09.11", "09.12"]


# ---- the debrief

@pytest.fixture
def quick(monkeypatch):
    """Probes that show the middle of a fault's range: each case takes seconds to train."""
    def look(number, case, probe):
        return {name: (low + high) / 2 for fault in sheet.case(number, case)
                for where, name, low, high in fault.shows if where == probe}
    monkeypatch.setattr(laws, "look", look)


def test_the_debrief_tells_each_case_its_number_and_its_trap(kept, quick, capsys):
    progress.record(f"{SHEET}.1", "pass")
    (kept / "23_exam_a.ipynb").write_text("{}")
    assert cli.main(["exam", "a", "--debrief"]) == 0
    said = capsys.readouterr().out
    assert "Case 1: named, 2 of 8 points" in said
    assert "Case 2: not named, 0 of 8 points" in said
    for place in range(1, 6):
        assert f"the lines to change: dlsys answer {SHEET}.{4 * place - 3}" in said
        for fault in sheet.case(SHEET, place):
            probe, name, low, high = fault.shows[0]
            assert f"{fault.id} {fault.name}, in the part {fault.part}" in said
            assert f"{probe} shows it: {name} {(low + high) / 2:.4g}, healthy" in said
            assert f"read trap {fault.id}, {catalog.trap(fault.id).name}\n" in said


def test_what_was_not_named_comes_back_in_review_once(kept, quick):
    progress.record(f"{SHEET}.1", "pass")
    exam.sit(SHEET).debrief()
    exam.sit(SHEET).debrief()
    missed = {fault.id for place in range(2, 6) for fault in sheet.case(SHEET, place)}
    later = review.now() + timedelta(days=review.INTERVALS[0])
    assert review.due(review.now()) == []
    assert {item.trap.id for item in review.due(later)} == missed
    assert {item.state.mistakes for item in review.due(later)} == {1}


def test_after_the_debrief_the_mended_lines_are_told(kept, quick, capsys):
    assert cli.main(["answer", f"{SHEET}.5"]) == 2
    exam.sit(SHEET).debrief()
    assert cli.main(["answer", f"{SHEET}.5"]) == 0
    (fault,) = sheet.case(SHEET, 2)
    assert f"{fault.id} {fault.name}" in capsys.readouterr().out.split("\n\n")[-1]


def test_a_debrief_costs_no_look_and_waits_for_a_sheet(kept, quick, capsys):
    exam.sit(SHEET).case(1).read("data")
    exam.sit(SHEET).debrief()
    assert exam.sit(SHEET).case(1).paid() == ["read data"]
    assert cli.main(["exam", "b", "--debrief"]) == 2
    assert "no sheet of form B" in capsys.readouterr().err


def test_a_notebook_that_is_run_for_its_answers_is_not_ended(kept, quick, monkeypatch, capsys):
    monkeypatch.setattr("dlsys_helpers.check", CheckStub())
    exam.sit(SHEET).debrief()
    assert capsys.readouterr().out == ""
    assert not ledger.is_told(SHEET, 1)


def test_the_debrief_of_a_sheet_is_its_last_cell_and_does_not_run_by_itself():
    assert exam.notebook(SHEET)["cells"][-1]["source"] == "# exam.debrief()"


def test_progress_and_the_start_page_show_the_sheets_that_were_begun(kept, capsys, monkeypatch):
    assert start_page.exams() == []
    assert "dlsys exam a" in start_page.map_html()
    for row in range(1, 5):
        progress.record(f"{SHEET}.{row}", "pass")
    progress.record(f"{SHEET}.5", "wrong", "03.1 softmax before the loss")
    (kept / "53_exam_b.ipynb").write_text("{}")
    monkeypatch.chdir(kept)
    monkeypatch.setenv("COLUMNS", "160")

    assert [(one.stage.number, one.points, one.possible) for one in start_page.exams()] == [
        (23, 8, 40), (53, 0, 40)]
    assert cli.main(["progress"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"exam-a Exam, form A, draw 3 8/40", "Case 1 ● solved 8/8",
            "Case 2 ◐ tried 0/8", "03.1 softmax before the loss"} <= {*lines}
    text = start_page.map_html()
    assert text.count("<small>Exam · ") == 2
    assert "Case 1 · 8 of 8 points" in text
    assert 'href="53_exam_b.ipynb">Continue your sheet' in text
    assert "dlsys exam a" not in text


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


def test_a_receipt_says_when_nothing_is_kept(kept, capsys, monkeypatch):
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    exam.sit(SHEET).case(1).receipt()
    assert "DLSYS_PROGRESS is off" in capsys.readouterr().out


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
        without_sandbox(error)
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
    page = pages.feedback([graded], {"run": {"begun": "2027-01-15T10:00:00+00:00"}})
    assert "Case 1: the faults" in page
    assert f"faults: got {OTHER}" in page
