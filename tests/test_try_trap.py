"""One table shows what a trap lacks: each row says where to edit and what to do."""

import re
from types import SimpleNamespace

import pytest

from dlsys_checks import questions, registry
from dlsys_helpers import paths
from dlsys_helpers.paths import ROOT
from tools import lessons, proof, rows, solutions, trap_rows, try_trap
from tools.rows import Row

[LESSON] = [path for path in paths.lessons() if path.stem == "01_activations"]


@pytest.fixture(scope="module")
def source():
    return lessons.Source(LESSON)


@pytest.fixture(scope="module")
def files():
    return trap_rows.files_of("01.1")


def line_at(place):
    name, _, number = place.partition(":")
    return (ROOT / name).read_text("utf-8").splitlines()[int(number) - 1]


# ---- places

def test_a_cell_that_fails_is_found_by_its_line(source):
    cell = source.of("01.1", "look", "code")[0]
    for number, line in enumerate(cell.source.splitlines(), 1):
        said = f"drafts/notebooks/01_activations.ipynb, cell {cell['id']}, line {number}, `x`: E: x"
        assert line_at(trap_rows.place_of_cell(source, said)) == line
    said = f"notebooks/01_activations.ipynb, cell {cell['id']}: it writes to stderr: 'x'."
    assert 'trap="01.1" role="look"' in line_at(trap_rows.place_of_cell(source, said))


def test_a_cell_that_only_a_notebook_has_is_found_by_its_exercise(source):
    place = trap_rows.place_of_cell(source, "solutions/x.ipynb, cell 01-1-check-1, line 0, `c`: E")
    assert 'trap="01.1" role="exercise"' in line_at(place)
    assert trap_rows.place_of_cell(source, "no cell at all") == "lessons/01_activations.py"


def test_each_note_of_a_draft_names_the_cell_it_is_about(tmp_path):
    folder = tmp_path / "lessons"
    folder.mkdir()
    path = folder / LESSON.name
    path.write_text(LESSON.read_text("utf-8").replace("traps=5", "traps=4"), "utf-8")
    [note] = lessons.read(path, draft=True).notes
    assert line_at(note.place).endswith('role="hook" traps=5')
    with pytest.raises(lessons.RuleBroken) as broken:
        lessons.read(path)
    assert broken.value.place == note.place


# ---- what a proof says

def test_a_wrong_answer_is_found_in_the_check_and_a_right_one_beside_it(files):
    exercise = solutions.with_kept_answers("01.1")
    for wrong in exercise.wrong_answers:
        said = [f"01.1, {wrong.name}: seed {seed}: is not wrong: pass" for seed in (0, 1)]
        [row] = trap_rows.proof_rows("01.1", files, said)
        assert wrong.name[:20] in line_at(row.place)
        assert row.says.endswith("add the case that does.")
    for route in exercise.right_answers:
        said = [f"01.1, {route}: seed 3, case 'one row': got 1, expected 2"]
        [row] = trap_rows.proof_rows("01.1", files, said)
        assert route[:20] in line_at(row.place)
        assert row.says.endswith(trap_rows.REFUSED)


def test_a_verdict_is_told_in_words_and_of_each_answer_the_first_line(files):
    wrong = registry.find("01.1").wrong_answers[0]
    verdict = ("Verdict(status='wrong', id='01.1', message=\"got 'a'\", misconception='another', "
               "trap='', law='', case='', seed=None, accident=False)")
    [row] = trap_rows.proof_rows("01.1", files, [
        f"01.1, {wrong.name}: seed 0: has not its name: {verdict}",
        f"01.1, {wrong.name}: seed 1: does not say 'b': {verdict}"])
    assert row.says == (f"{wrong.name}: seed 0: has not its name; it was taken for: another. It "
                        f"was told: got 'a'. {trap_rows.REMEDIES['has not its name']}")


@pytest.mark.parametrize(("said", "word", "remedy"), [
    ("01.1, mutant lives: return x -> return y", "@ex.cases", "Add a case"),
    ("01.1, a forged outcome: AssertionError: a case: NaN", "@ex.law", "type and shape"),
    ("01.1: a case: nan at () is accepted", "@ex.law", "does not judge"),
    (f"01.1, {proof.WORKED}: seed 0, case 'x': got 1", "def ", "your own law")])
def test_what_is_no_answers_fault_has_a_place_too(files, said, word, remedy):
    [row] = trap_rows.proof_rows("01.1", files, [said])
    assert word in line_at(row.place)
    assert remedy in row.says


def test_each_remedy_answers_what_a_proof_can_say():
    text = (ROOT / "tools/proof.py").read_text("utf-8")
    assert [part for part in trap_rows.REMEDIES if part not in text] == []


def test_an_error_in_a_file_of_a_check_is_a_row_and_any_other_one_is_raised():
    draw = registry.find("01.1").make_cases
    row = try_trap.result_or_row(lambda: list(draw("no generator")))
    assert row.place.startswith("src/dlsys_checks/")
    assert "Error: " in row.says
    with pytest.raises(ZeroDivisionError):
        try_trap.result_or_row(lambda: 1 / 0)


def test_a_file_that_cannot_be_parsed_is_a_row_with_its_line():
    def read():
        try:
            compile("x = 1\nx = (", str(ROOT / "tests/right_answers/s01/e1_x.py"), "exec")
        except SyntaxError as error:
            raise SystemExit("tests/right_answers/s01/ cannot be imported") from error
    row = try_trap.result_or_row(read)
    assert row.place == "tests/right_answers/s01/e1_x.py:2"
    assert row.says.startswith("SyntaxError")


def test_a_trap_that_the_finder_cannot_know_is_a_row_below_the_one_before():
    assert trap_rows.finder_rows("01.5") == []
    [row] = trap_rows.finder_rows("01.99")
    assert row.place.startswith("book/finder_said.yml:")
    assert "0 phrases for trap 01.99, expected 10" in row.says


# ---- what tests say

def test_each_test_that_is_explained_or_left_out_is_there():
    text = "\n".join((ROOT / "tests" / name).read_text("utf-8") for name in try_trap.TEST_FILES)
    tests = set(re.findall(r"^def (test_\w+)", text, re.M))
    assert {*trap_rows.ADVICE, *try_trap.COVERED} - tests == set()


@pytest.mark.parametrize(("message", "says"), [
    ("AssertionError: no wrong answer breaks this alone: any size\nassert not {'any size'}",
     "no wrong answer breaks this alone: any size"),
    ("AssertionError: assert ['no promise for: a word', 'x'] == []\n  \n  Left contains 2 more",
     "no promise for: a word; x"),
    ("AssertionError: assert 3 >= 4\n +  where 3 = len([])", "assert 3 >= 4")])
def test_a_failed_assertion_in_its_own_words(message, says):
    assert trap_rows.own_words(message) == says


def test_a_promise_that_is_not_in_the_docstring_is_found_in_the_check(files):
    key = registry.find("01.1").promises[0].key
    row = trap_rows.test_row("01.1", files, "test_promises_cover_the_docstring",
                            f"AssertionError: assert [\"{key}: 'a' stands not once in: b\"] == []")
    assert key in line_at(row.place)
    assert "copy the sentence" in row.says


def test_a_question_is_looked_for_where_the_questions_of_its_trap_begin(files):
    row = trap_rows.test_row("01.1", files, "test_a_trap_has_four_questions_or_more",
                            "assert 3 >= 4")
    assert row.place.startswith("src/dlsys_checks/questions/q01.py:")
    assert '"01.1"' in line_at(row.place)
    draw = questions.about("01.1")[1]
    test = "test_answers_are_taken_and_beliefs_refused_on_many_seeds"
    row = trap_rows.test_row("01.1", files, test,
                            f"AssertionError: {draw.__name__}, seed 3: a text\nassert False")
    text = (ROOT / "src/dlsys_checks/questions/q01.py").read_text("utf-8").splitlines()
    before = text[:int(row.place.partition(":")[2])]
    assert sum(line.startswith(('ask("01.1"', '@question_for("01.1")')) for line in before) == 2


def test_only_the_tests_of_one_exercise_run_and_those_that_fail_are_noted():
    def item(name, **params):
        return SimpleNamespace(originalname=name, callspec=SimpleNamespace(params=params))
    plugin = try_trap.OfTrap("09.1")
    items = [item("test_stub_is_todo", id="09.1"), item("test_stub_is_todo", id="09.10"),
             item(next(iter(try_trap.COVERED)), id="09.1"), SimpleNamespace(originalname="test_x")]
    plugin.pytest_collection_modifyitems(items)
    assert [(one.originalname, one.callspec.params) for one in items] == [
        ("test_stub_is_todo", {"id": "09.1"})]

    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="assert 1 == 2"))
    for failed in (True, False):
        plugin.pytest_runtest_logreport(SimpleNamespace(
            when="call", failed=failed, longrepr=crash,
            nodeid=f"tests/test_checks.py::test_{failed}[09.1]"))
    assert (plugin.ran, plugin.failed) == (2, {"test_True": "assert 1 == 2"})


# ---- claims, linter, the table

def test_a_claim_that_does_not_hold_is_found_by_its_text(source):
    text = re.search(r'^claim\("([^"]+)"', LESSON.read_text("utf-8"), re.M)[1]
    [row] = trap_rows.claim_rows(source, [f"{text}: 3 at seed 3, threads 1, native; expected 2"])
    assert text[:30] in line_at(row.place)
    [row] = trap_rows.claim_rows(source, ["01_x, seed 3: a cell failed.\nTrace\nKeyError: 1"])
    assert row.says.endswith("KeyError: 1")
    [row] = trap_rows.claim_rows(source, ["01_x, seed 3: a cell failed.\n"])  # the run was killed
    assert row.says == "01_x, seed 3: the run ended without a word"


def test_the_linter_names_its_rule_and_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(try_trap, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.ruff]\nline-length = 100\nlint.select = ["E"]')
    (tmp_path / "long.py").write_text(f"x = 1\ny = '{'x' * 100}'\n", "utf-8")
    [row] = try_trap.linted(["long.py", "gone.py", ""])
    assert row.place == "long.py:2"
    assert row.says.startswith("E501: Line too long")


def test_rows_come_by_file_and_line_each_once(capsys):
    found = [Row("b.py:10", "ten"), Row("b.py:9", "nine"), Row("z.py", "last"),
             Row("a.py", "word " * 90), Row("b.py:9", "nine")]
    ordered = rows.in_order(found, ["a.py", "b.py"])
    assert [row.place for row in ordered] == ["a.py", "b.py:9", "b.py:10", "z.py"]
    rows.show(rows.screen(), ordered)
    said = capsys.readouterr().out
    assert "b.py:9 " in said
    assert said.count("word") < 90


@pytest.fixture
def steps(monkeypatch):
    """All steps report success without running; the test changes one of them."""
    for name, value in (("built", ([], [])), ("proven", []), ("tested", (14, [])), ("linted", []),
                        ("refuted", (99, []))):
        monkeypatch.setattr(try_trap, name, lambda *_, value=value: value)
    monkeypatch.setattr(try_trap, "as_draft", lambda stage: None)
    monkeypatch.setattr("sys.argv", ["try", "1.1"])
    return lambda name, value: monkeypatch.setattr(try_trap, name, lambda *_: value)


def test_a_trap_that_lacks_nothing_is_sent_to_finish(steps, capsys):
    try_trap.main()
    said = capsys.readouterr().out
    assert "99 at seed 3" in said
    assert said.endswith("Trap 01.1 lacks nothing. Next: make finish LESSON=01\n")


def test_what_every_step_finds_is_in_one_table(steps, capsys):
    steps("built", ([], [Row("lessons/01_activations.py:7", "a note")]))
    steps("tested", (14, [Row("src/dlsys_checks/s01/x.py:3", "a test")]))
    steps("refuted", (99, ["no such claim: 3 at seed 3; expected 2"]))
    with pytest.raises(SystemExit, match="1"):
        try_trap.main()
    said = capsys.readouterr().out.partition("place to edit")[2]
    assert re.findall(r"a note|a test|no such claim", said) == ["no such claim", "a note", "a test"]
    assert "Next:" not in said


def test_a_cell_that_fails_is_one_row_and_no_claim_that_does_not_hold(steps, capsys):
    stopped = (0, ["01_activations, seed 3: a cell failed.\nTrace\nTypeError: no ylabel"])
    steps("refuted", stopped)
    assert [row.says for row in try_trap.missing("01.1")] == [
        "01_activations, seed 3: TypeError: no ylabel"]
    assert "claims   none: a cell failed at seed 3" in capsys.readouterr().out

    steps("built", ([Row("lessons/01_activations.py:9", "TypeError: no ylabel")], []))
    assert [row.place for row in try_trap.missing("01.1")] == ["lessons/01_activations.py:9"]


def test_a_lesson_that_cannot_be_built_is_the_only_row(steps, monkeypatch, capsys):
    def refused(path, draft):
        raise lessons.RuleBroken("lessons/x.py, cell y: it is wrong. Mend it.", "lessons/x.py:5")
    monkeypatch.setattr(lessons, "read", refused)
    assert list(try_trap.missing("01.1")) == [Row("lessons/x.py:5", "it is wrong. Mend it.")]


@pytest.mark.parametrize(("trap", "says"), [
    ("5", "TRAP: got '5'"), ("01.99", "make new TRAP=01.99")])
def test_words_that_name_no_trap_get_a_command(steps, monkeypatch, capsys, trap, says):
    monkeypatch.setattr("sys.argv", ["try", trap])
    with pytest.raises(SystemExit) as stopped:
        try_trap.main()
    assert says in f"{capsys.readouterr().err}{stopped.value}"
