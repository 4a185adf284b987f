"""Other numbers for the same exercises: where each stands, the check that asks for it, its way."""

import json
from functools import cache

import pytest

from dlsys import cli, pool, update, variants, worksheets
from dlsys.grading import cohort, judge, notebooks, pages
from dlsys.pool_constants import CONSTANTS
from dlsys.told import Told
from dlsys_helpers import catalog, checking, paths, verdicts
from tools import proof

EACH = [(id, value) for id, one in CONSTANTS.items() for value in one.values[1:]]
STAGES = sorted({int(id[:2]) for id in CONSTANTS})


@cache
def cells(folder, id):
    """The sources of an exercise's cells in a generated notebook, by role: code, then hints."""
    (path,) = folder.glob(f"{id[:2]}_*.ipynb")
    found = [(cell["cell_type"], cell["metadata"]["dlsys"].get("role"), "".join(cell["source"]))
             for cell in json.loads(path.read_text("utf-8"))["cells"]
             if cell["metadata"]["dlsys"].get("trap") == id]
    return {role: source for kind, role, source in found
            if (kind, role) in {("code", "exercise"), ("markdown", "hint")}}


@pytest.fixture
def registry(monkeypatch):
    """The registry and the catalog, put back as they were."""
    monkeypatch.setattr(checking, "REGISTRY", {**checking.load_all()})
    monkeypatch.setattr(catalog, "trap", catalog.trap)
    monkeypatch.setattr(variants, "_put", {})


# ---- where a number stands

@pytest.mark.parametrize("id", CONSTANTS)
def test_each_piece_stands_where_it_should_and_once(id):
    one, stub, answer = CONSTANTS[id], *(
        cells(folder, id)["exercise"] for folder in (paths.EXERCISES, paths.SOLUTIONS))
    hints = cells(paths.EXERCISES, id).get("hint", ""), "\n".join(catalog.trap(id).hints)
    for piece in one.text:
        said = pool.written(piece, one.values[0])
        assert (stub.count(said), answer.count(said)) == (1, 1), said
    for piece in one.code:
        said = pool.written(piece, one.values[0])
        assert (stub.count(said), answer.count(said)) == (0, 1), said
    for piece in one.hints:
        assert any(pool.written(piece, one.values[0]) in hint for hint in hints), piece


@pytest.mark.parametrize(("id", "value"), EACH)
def test_the_docstring_says_what_the_check_of_another_number_promises(id, value):
    """In the worksheet and above the worked answer alike."""
    texts = [pool.with_value(cells(folder, id)["exercise"], id, value)
             for folder in (paths.EXERCISES, paths.SOLUTIONS)]
    for text in texts:
        assert proof.unpromised(variants.exercise(id, value), text.split('"""')[1]) == []
        assert max(map(len, text.split("\n"))) <= 79
        assert pool.written(CONSTANTS[id].text[0], CONSTANTS[id].values[0]) not in text


def test_the_hints_have_the_number_in_every_form():
    hint = cells(paths.EXERCISES, "04.5")["hint"]
    assert pool.with_value(hint, "04.5", 5).count("5 * best") == hint.count("4 * best") == 2
    (trap,) = pool.named([catalog.trap("04.5")], {}, {"04.5": 5})
    assert "`not loss <= 5 * best`" in trap.hints[-1]
    assert "`loss > 5 * best`" in trap.hints[-1]


# ---- the check that asks for it

@pytest.mark.parametrize("id", CONSTANTS)
def test_another_number_is_as_sound_as_the_usual_one(id):
    """One value and one seed; `tools.proof --variants` tries all of them on many."""
    value = CONSTANTS[id].values[1 + list(CONSTANTS).index(id) % 2]
    assert list(proof.contradictions(id, value, (0,), ())) == []
    with proof.asking(id, value):
        told = {wrong.name: list(proof.glance(id, wrong))
                for wrong in checking.find(id).wrong_answers}
    assert {name: lines for name, lines in told.items() if lines} == {}


@pytest.mark.parametrize("id", CONSTANTS)
def test_an_answer_with_the_usual_number_is_told_so_by_name(id):
    usual, other = CONSTANTS[id].values[0], CONSTANTS[id].values[-1]
    drawn, cases = variants.exercise(id, other), variants.exercise(id, other).arrange(0)
    verdicts = [drawn.judge(cases, drawn.outcomes(fn, cases))
                for fn in checking.find(id).right_answers.values()]
    failed = [verdict for verdict in verdicts if verdict.status != "pass"]
    named = {"03.2": "", "09.2": "", "08.7": "warps of 32"}.get(  # an error alone has other causes
        id, f"the usual {usual} in place of {other}")
    assert failed
    assert {verdict.misconception for verdict in failed} == {named}


def test_another_mistake_keeps_its_own_name():
    drawn = variants.exercise("03.2", -9)
    cases = drawn.arrange(0)
    for wrong in drawn.wrong_answers:
        assert drawn.judge(cases, drawn.outcomes(wrong.fn, cases)).misconception == wrong.name


def test_a_number_that_changes_nothing_is_found(monkeypatch):
    monkeypatch.setattr(pool, "with_value", lambda text, id, value: text)
    *promises, last = proof.contradictions("10.6", -1, (), ())
    assert "masked: 'and at all other places stands -1," in promises[0]
    assert last == "10.6, IGNORE -1: its worked answer passes for the usual value"


def test_the_usual_exercise_stays_and_keeps_its_place():
    before = list(checking.load_all().items())
    other = variants.exercise("12.3", 0.05)
    assert list(checking.REGISTRY.items()) == before
    assert other is variants.exercise("12.3", 0.05) is not checking.find("12.3")
    assert "times 0.05," in next(p.text for p in other.promises if p.key == "first F")


@pytest.mark.parametrize("text", ["TIMES = 4\nTIMES = 5\n", "x = 4\n"])
def test_a_check_without_one_assignment_is_refused(text):
    with pytest.raises(ValueError, match=r"TIMES: got [02] assignments in its check, expected one"):
        variants._replaced(variants.ast.parse(text), "TIMES", 3)


# ---- drawing, and what a worksheet says

def test_a_key_draws_the_same_numbers_again_and_never_the_usual_ones():
    drawn = [{stage: pool.draw_constants(stage, f"key {n}") for stage in STAGES} for n in range(20)]
    assert drawn[3] == {stage: pool.draw_constants(stage, "key 3") for stage in STAGES}
    for id, one in CONSTANTS.items():
        assert {numbers[int(id[:2])][id] for numbers in drawn} == set(one.values[1:])
        assert one.values[0] not in one.values[1:]


@pytest.mark.parametrize("said", [None, [], {"04.5": 6}, {"04.5": 4}, {"04.5": "5"}, {"04.5": [5]},
                                  {"04.5": 5.0}, {"09.2": True}, {"01.1": 5}])
def test_numbers_that_no_release_draws_are_ignored(said):
    assert pool.drawable(said) == {}
    assert pool.named(catalog.traps(4), {}, said) == catalog.traps(4)


# ---- a release

@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The worksheet, the lesson and the worked answers of stage 4, drawn from the word b."""
    out = tmp_path_factory.mktemp("variant")
    assert cli.main(["release", "4", "--variant", "b", "--out", str(out / "class"),
                     "--answers", str(out / "mine")]) == 0
    return out


def sources(path):
    return [cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
            for cell in json.loads(path.read_text("utf-8"))["cells"]]


def test_a_release_says_what_it_drew(capsys, tmp_path):
    cli.main(["release", "4", "--variant", "b", "--out", str(tmp_path / "class")])
    value = pool.draw_constants(4, "b")["04.5"]
    said = capsys.readouterr().out
    assert f"04.5: lr_find is {pool.draw(4, 'b')['04.5']}, TIMES is {value} instead of 4" in said
    assert f"04.4: decoupled_step is {pool.draw(4, 'b')['04.4']}\n" in said


def test_a_worksheet_says_its_numbers_to_the_check_and_to_the_grader(released):
    path, value = released / "class/04_optimizers.ipynb", pool.draw_constants(4, "b")["04.5"]
    setup = next(text for text in sources(path) if "begin(SEED" in text)
    assert setup.endswith(f'\n\nfrom dlsys import variants\n\nvariants.use({{"04.5": {value}}})')
    assert any(f"more than {value} times the lowest" in text for text in sources(path))
    assert worksheets.read(path).constants == {"04.5": value}
    assert f"{value} * best" in worksheets.read(path).exercises[4].hints[-1]
    assert notebooks.parse(path.read_bytes()).constants == {"04.5": value}
    assert not any("variants" in text for text in sources(released / "class/04_lesson.ipynb"))


def test_the_instructor_gets_the_worked_answers_of_the_variant(released):
    (path,) = (released / "mine").iterdir()
    name, value = pool.draw(4, "b")["04.5"], pool.draw_constants(4, "b")["04.5"]
    (answer,) = (text for text in sources(path) if f"def {name}(" in text)
    assert f"loss <= {value} * best" in answer
    assert any(text.endswith(f'variants.use({{"04.5": {value}}})') for text in sources(path))
    assert not any(cell.get("outputs") for cell in json.loads(path.read_text("utf-8"))["cells"])


@pytest.mark.parametrize(("folder", "said"), [("class/mine", "outside of --out"),
                                              ("class", "outside of --out")])
def test_answers_never_go_into_what_the_class_is_handed(folder, said, tmp_path, capsys):
    assert cli.main(["release", "4", "--out", str(tmp_path / "class"), "--answers",
                     str(tmp_path / folder)]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "class").exists()


def test_a_wheel_has_no_answers_to_give(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path / "solutions")
    assert cli.main(["release", "4", "--out", str(tmp_path / "class"), "--answers",
                     str(tmp_path / "mine")]) == 2
    assert "A wheel has no worked answers" in capsys.readouterr().err
    assert not (tmp_path / "class").exists()


def test_a_newer_worksheet_keeps_the_numbers(released):
    old = json.loads((released / "class/04_optimizers.ipynb").read_text("utf-8"))
    new = json.loads((paths.EXERCISES / "04_optimizers.ipynb").read_text("utf-8"))
    update._keep_drawn(old, new)
    stub = next("".join(cell["source"]) for cell in new["cells"] if cell["id"] == "04-5-exercise-1")
    assert stub == next("".join(cell["source"]) for cell in old["cells"]
                        if cell["id"] == "04-5-exercise-1")
    assert new["metadata"]["dlsys"]["constants"] == pool.draw_constants(4, "b")


# ---- in a learner's kernel

def test_a_worksheets_own_check_asks_for_its_number(registry):
    mine, usual = answer(-9), answer()
    variants.use({"10.6": -9})
    assert checking.run_check("10.6", mine, (0,)).status == "pass"
    assert checking.run_check("10.6", usual, (0,)).status == "wrong"
    variants.use({"10.6": -100})
    assert checking.run_check("10.6", usual, (0,)).status == "pass"


def answer(value=None):
    """The worked answer of 10.6, with another number where one is given."""
    return proof.right_answers("10.6", value)["the worked answer"]


def test_a_stub_is_called_what_its_worksheet_calls_it():
    def sweep_rates(*given):
        raise NotImplementedError("exercise 04.5 is not written yet")

    told = checking.run_check("04.5", sweep_rates, (0,))
    assert (told.status, told.message) == (
        "todo", "Write the body of sweep_rates, then check it again.")


def test_the_card_of_a_check_shows_the_hints_with_its_number(registry):
    variants.use({"04.5": 3})
    assert "3 * best" in catalog.trap("04.5").hints[-1]
    assert catalog.trap("04.4").hints == catalog.traps(4)[3].hints


@pytest.mark.parametrize(("said", "wanted"), [
    ({"04.5": 6}, "use: got 6 for '04.5', expected one of 4, 3, 5."),
    ({"04.4": 5}, "use: got 5 for '04.4', expected an exercise with a number.")])
def test_a_number_that_nobody_draws_is_refused_in_one_line(registry, said, wanted):
    with pytest.raises(variants.NotDrawn) as refused:
        variants.use(said)
    (line,) = refused.value._render_traceback_()
    assert line.startswith(wanted)
    assert "fresh copy" in line


def test_where_a_worksheet_is_run_for_its_answers_the_line_does_nothing(registry, monkeypatch):
    monkeypatch.setattr(checking, "check", Told())
    variants.use({"04.5": 6, "10.6": -9})
    assert checking.find("10.6").promises[1].text.split(",")[0].endswith("-100")


# ---- in the grader

@pytest.fixture
def bench(monkeypatch):
    """A judge without a sandbox, one seed an exercise."""
    monkeypatch.setattr(judge, "SEEDS", 1)
    made = object.__new__(judge.Judge)
    made._key, made._papers = b"key", {}
    return made


def test_papers_go_by_the_number_and_are_made_once(bench):
    usual, mine, again = (bench.papers(10, 0, asked) for asked in ({}, {"10.6": -9}, {"10.6": -9}))
    assert [a is b for a, b in zip(usual, mine, strict=True)] == [True] * 5 + [False]
    assert [a is b for a, b in zip(mine, again, strict=True)] == [True] * 6
    assert (usual[-1].constant, mine[-1].constant) == (None, -9)
    verdict = mine[-1].exercise.judge(mine[-1].cases[0], mine[-1].exercise.outcomes(
        answer(-9), mine[-1].cases[0]))
    assert verdict == verdicts.Verdict("pass", "10.6")


def test_the_page_of_a_learner_shows_the_hints_with_the_number():
    entry = {"id": "04.5", "status": "wrong", "message": "batches drawn: a loss that is NaN",
             "misconception": "loss > 5 * best, which NaN slips through", "constant": 5}
    assert "5 * best" in pages._hints(entry)["first"]
    del entry["constant"]
    assert "4 * best" in pages._hints(entry)["first"]


def sheet(key=None):
    """A worksheet of stage 10 as the class of this key is given it."""
    said = {} if key is None else {"names": pool.draw(10, key),
                                   "constants": pool.draw_constants(10, key)}
    return notebooks.Notebook(10, [], {}, [], **said)


def test_the_class_s_own_worksheet_is_graded_as_it_says():
    assert notebooks.of_variant(sheet("b"), "b") == sheet("b")


def test_another_worksheet_is_graded_by_the_class_s_numbers_and_says_so():
    graded = notebooks.of_variant(sheet(), "b")
    assert (graded.names, graded.constants) == (sheet("b").names, sheet("b").constants)
    (note,) = graded.notes
    assert "names in 10.1, 10.2, 10.3, 10.4, 10.5, ... and other numbers in 10.3, 10.6" in note


def test_the_exam_has_no_variant():
    exam = notebooks.Notebook(27, [])
    assert notebooks.of_variant(exam, "b") is exam


def test_a_run_remembers_its_key():
    settings = cohort.Settings("00", cohort.walls.Limits(), variant="b")
    assert cohort.Settings.read(settings.plain()) == settings
    older = {name: fact for name, fact in settings.plain().items() if name != "variant"}
    assert cohort.Settings.read(older).variant is None


# ---- the page for instructors

def test_the_page_names_every_number_and_no_other():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in (paths.ROOT / "book/hand_out.md").read_text("utf-8").splitlines()
            if line.startswith(("| 0", "| 1"))]
    told = {id: (usual, others) for ids, _, usual, others in rows for id in ids.split(", ")}
    assert told == {id: (str(one.values[0]), ", ".join(map(str, one.values[1:])))
                    for id, one in CONSTANTS.items()}
