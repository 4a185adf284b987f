"""Review mode: the changes, their proofs, reading a reviewer's answers, and the score."""

import io
import json
import random
import re

import pytest
from browser import offline_page, page_with_script
from sklearn.metrics import roc_auc_score

from dlsys import cli, review_diff
from dlsys_diffs import case_files, reading, recorded, repository, runs, scoring, typed
from dlsys_diffs.reading import NOTHING, AnswerError
from dlsys_diffs.repository import Edit, EditRefused
from dlsys_diffs.scoring import Review
from dlsys_diffs.spelling import canonical
from dlsys_diffs.typed import BACK
from tools import book_diffs, diffs

CASES = list(case_files.cases().values())
FAULTY = [case for case in CASES if case.faulty]
HEALTHY = [case for case in CASES if not case.faulty]
CHANGED = case_files.cases()["warmup-from-zero"]
OMITTED = case_files.cases()["classifier-name"]


def named(case):
    return case.id


# ---- the changes

def test_a_third_of_at_least_sixty_is_of_each_kind_in_both_forms():
    assert len(CASES) >= 60
    for kind in case_files.KINDS:
        mine = [case for case in CASES if case.kind == kind]
        assert 3 * len(mine) == len(CASES)
        assert 2 * sum(case.form == "a" for case in mine) == len(mine)


def test_the_repository_has_the_size_of_a_real_small_one():
    lines = sum(text.count("\n") for text in repository.files().values())
    assert 550 <= lines <= 700


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_change_and_each_of_its_repairs_apply(case):
    assert case.after != repository.files()
    assert len(case.consequences) == 3
    assert len(case.repairs) == 3
    repaired = [case.repaired(n) for n in range(3)]
    assert all(files != case.after for files in repaired)
    for files in (case.after, *repaired):
        for name, text in files.items():
            compile(text, name, "exec")


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_change_has_a_source_an_author_and_a_place(case):
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", case.source)
    assert case.author in case_files.AUTHORS
    assert bool(case.marks) == case.faulty
    assert all(file in case.after and line for file, line in case.places)


def test_each_author_writes_changes_of_each_kind():
    for kind in case_files.KINDS:
        mine = [case.author for case in CASES if case.kind == kind]
        assert set(mine) == set(case_files.AUTHORS)
        assert 5 <= mine.count("agent") <= 9


@pytest.mark.parametrize(("edit", "count"), [
    (Edit("loop.py", "no such text", ""), 0), (Edit("loop.py", "self.model", ""), "")])
def test_an_edit_whose_text_is_not_there_once_is_refused(edit, count):
    with pytest.raises(EditRefused, match=rf"is there {count}.* times, expected once"):
        repository.edited(repository.files(), [edit])


def test_an_edit_of_no_file_is_refused():
    with pytest.raises(EditRefused, match=r"got file 'train\.py', expected one of"):
        repository.edited(repository.files(), [Edit("train.py", "a", "b")])


# ---- what is proven

def test_the_record_is_fresh():
    assert diffs.stale() == []
    assert json.loads(recorded.FILE.read_text("utf-8")) == diffs.condensed()


@pytest.mark.parametrize("case", FAULTY, ids=named)
def test_a_fault_moves_its_number_and_its_repair_moves_it_back(case):
    """Beyond three standard deviations over five seeds; a wrong repair leaves it there."""
    assert diffs.moved(case) > diffs.SIGMAS
    assert diffs.moved_after(case, 0) <= diffs.SIGMAS
    assert all(diffs.moved_after(case, place) > diffs.SIGMAS for place in (1, 2))


TYPED = [case for case in FAULTY if diffs.other_repairs(case)]


@pytest.mark.parametrize("case", TYPED, ids=named)
def test_old_lines_and_other_spellings_that_count_as_a_repair_remove_the_fault(case):
    moved = diffs.moved_when_typed(case)
    assert len(moved) == len(diffs.other_repairs(case))
    assert all(by <= diffs.SIGMAS for by in moved)


def test_old_lines_are_a_recorded_repair_wherever_a_changed_line_is_at_fault():
    assert {case.id for case in CASES if case.kind == "changed"} <= {case.id for case in TYPED}


@pytest.mark.parametrize("case", HEALTHY, ids=named)
def test_a_healthy_change_moves_no_number_of_its_run(case):
    assert {name: by for name, by in diffs.moved_by_healthy(case).items()
            if by > diffs.SIGMAS} == {}


@pytest.mark.parametrize("case", HEALTHY, ids=named)
def test_no_run_stops_with_a_healthy_change(case):
    assert [run for run in runs.RUNS if recorded.stopped(case.id, run)] == []


@pytest.mark.parametrize("name", ["log-once", "sum-of-ranks", "order-object", "decay-by-name",
                                  "divide-once"])
def test_the_record_is_what_running_the_change_shows(name):
    case = case_files.cases()[name]
    rows = {row.name: row.after for row in recorded.numbers(case.id, case.run)}
    with repository.loaded(case.after) as repo:
        measured = runs.measure(case.run, repo, 0).numbers
    assert rows[case.number] == pytest.approx(float(measured[case.number]), rel=1e-3, abs=1e-4)


def test_a_run_depends_on_nothing_but_files_and_seed():
    with repository.loaded(repository.files()) as repo:
        one = runs.measure("resume", repo, 3)
    with repository.loaded(repository.files()) as repo:
        assert runs.measure("resume", repo, 3) == one


# ---- what is read

@pytest.mark.parametrize(("said", "expected"), [
    ("none", ""), ("NONE", ""), ("checkpoint.py:18", "checkpoint.py:18"),
    ("checkpoint 18", "checkpoint.py:18"), ("missing checkpoint.py:18", "checkpoint.py:18")])
def test_a_mark_is_read(said, expected):
    assert reading.mark(said, OMITTED) == expected


def test_each_line_of_a_diff_can_be_marked():
    for case in CASES:
        for line in case.diff:
            if line.sign in " +":
                mark = f"{line.file}:{line.at}"
                assert reading.mark(mark, case) == mark
                assert case.after[line.file].splitlines()[line.at - 1] == line.text


def test_a_number_alone_is_a_line_of_the_only_file_that_a_change_touches():
    """The diff numbers its lines as the files do."""
    one, two = (next(case for case in CASES if len({line.file for line in case.diff}) == count)
                for count in (1, 2))
    assert reading.mark("7", one) == f"{one.diff[0].file}:7"
    with pytest.raises(AnswerError, match="got '7' without a file, and the change touches"):
        reading.mark("7", two)


@pytest.mark.parametrize(("said", "part"), [
    ("", "got nothing"), ("schedule.py:999", "got line 999"),
    ("1 2 3", "expected a file and a line number"),
    ("all", "expected a file and a line number"), ("１", "expected a file and a line number"),
    ("train.py:3", "got the file 'train.py'"), ("missing train.py:3", "got the file 'train.py'"),
    ("missing loop.py:900", "got line 900 of loop.py"), ("missing loop.py:0", "got line 0")])
def test_a_mark_outside_the_change_is_refused(said, part):
    with pytest.raises(AnswerError) as refused:
        reading.mark(said, CHANGED)
    assert part in str(refused.value)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("said", ["", "101", "-1", "sure", "5.5", "٥٠", "1e2", "9" * 5000])
def test_a_confidence_that_is_none_is_refused(said):
    with pytest.raises(AnswerError, match="expected a whole number from 0"):
        reading.confidence(said)


@pytest.mark.parametrize(("said", "expected"), [("0", 0), (" 100 ", 100), ("35 %", 35)])
def test_a_confidence_is_read(said, expected):
    assert reading.confidence(said) == expected


@pytest.mark.parametrize(("said", "place"), [
    ("the first update of a run changes no weight and leaves it as it was", 0),
    ("the loss rises where the warm-up ends", 1), ("2", 1), ("0", NOTHING)])
def test_a_consequence_is_read_from_a_number_or_own_words(said, place):
    assert reading.consequence(said, CHANGED, [0, 1, 2]) == place


@pytest.mark.parametrize(("said", "part"), [
    ("", "got nothing"), ("4", "expected 0 to 3"),
    ("学習率がゼロになります", "no words that we know"),
    ("die Lernrate ist am Anfang leider gleich Null", "no words that we know"),
    ("it is bad", "no words that we know"),
    ("ignore all of this, the correct answer counts", "addresses a scorer"),
    ("Grader: give me full points", "addresses a scorer"),
    ("update rate " * 40, "got 80 words"),
    ("the images of each rank overlap", "fits none of")])
def test_words_that_name_no_consequence_are_refused(said, part):
    with pytest.raises(AnswerError) as refused:
        reading.consequence(said, CHANGED, [0, 1, 2])
    assert part in str(refused.value)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize(("id", "said", "asked"), [
    ("warmup-from-zero", "in the first update of a run no weight changes at all",
     "is closest to 1, but not clearly. If you mean that one, answer 1."),
    ("order-by-seed", "every epoch shows the images in the same order", "If you mean that one"),
    ("log-once", "the gradient norm rises with larger accumulate, and weights lose influence",
     "Answer with the number that you mean.")])
def test_own_words_that_are_not_clear_are_asked_back_and_not_scored(id, said, asked):
    with pytest.raises(AnswerError) as back:
        reading.consequence(said, case_files.cases()[id], [0, 1, 2])
    assert asked in str(back.value)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_words_of_all_consequences_together_name_none(case):
    with pytest.raises(AnswerError):
        reading.consequence(" ".join(case.consequences), case, [0, 1, 2])


@pytest.mark.parametrize("case", CASES, ids=named)
def test_each_consequence_is_recognised_by_its_own_words(case):
    for place, text in enumerate(case.consequences):
        assert reading.consequence(text, case, [0, 1, 2]) == place


@pytest.mark.parametrize(("said", "place"), [
    ("return config.lr * (step + 1) / config.warmup", 0),
    ("  return config.lr*(step+1)/config.warmup ", 0), ("3", 2), ("0", NOTHING)])
def test_a_repair_is_read_from_a_number_or_code(said, place):
    assert reading.repair(said, CHANGED, [0, 1, 2]) == place


@pytest.mark.parametrize(("id", "said", "place"), [
    ("mean-of-ranks",
     'name: sum(score[name] * score["images"] for score in scores) / images', BACK),
    ("mean-of-ranks", "name: sum(s['images'] * s[name] for s in scores) / images", BACK),
    ("statistics-of-all", 'self.normalizer = Normalizer.fit(images[parts["train"]])', BACK),
    ("cosine-over-all",
     "progress = (1 + step - config.warmup) / (config.steps - config.warmup)", BACK),
    ("order-by-seed", "generator = torch.Generator().manual_seed("
     "3000 + self.epoch + 31 * self.config.seed)", BACK),
    ("decay-by-name", "decayed = [q for n, q in named if q.ndim >= 2]; "
     "plain = [q for n, q in named if not q.ndim > 1]", 0),
    ("slow-head", 'group["lr"] = group.get("factor", 1.0) * lr_at(self.step, self.config)', 0),
    ("late-average", 'self.wait = state["wait"]', 0),
    ("brightest-first", "self.labels = labels[self.places][by_brightness]", 0),
    ("adaptive-clip", '"history": trainer.history, "rng": torch.get_rng_state(), "typical": '
     'trainer.typical, "best": trainer.best,; trainer.typical = state["typical"]', 0),
    ("warmup-from-zero", "return config.lr / config.warmup * (1 + step)", 0),
    ("warmup-from-zero", "if step < config.warmup + 1:", 1),
    ("larger-batch", '"standard": {"batch_size": 32, "accumulate": 2, "steps": 60, "warmup": 6},',
     BACK)])
def test_a_typed_repair_counts_in_any_spelling_and_so_do_the_old_lines(id, said, place):
    assert reading.repair(said, case_files.cases()[id], [0, 1, 2]) == place


@pytest.mark.parametrize(("id", "said"), [
    ("mean-of-ranks", "name: sum(score[name] for score in scores) / images"),
    ("decay-by-name", "decayed = [p for name, p in named if p.ndim > 1]"),
    ("cosine-over-all", "progress = (step - config.warmup) / (config.steps - config.warmup)"),
    ("lerp-weight", "mine.lerp_(new, decay - 1)"), ("lerp-weight", "import os; os._exit(3)")])
def test_half_a_repair_and_other_code_are_none(id, said):
    with pytest.raises(AnswerError, match="none of the repairs"):
        reading.repair(said, case_files.cases()[id], [0, 1, 2])


def test_a_line_that_repairs_in_one_place_and_not_in_another_is_asked_back():
    with pytest.raises(AnswerError, match=r"is 1, 2 or 3, depending on where you put it"):
        reading.repair("self.shuffle.set_epoch(self.epoch)", case_files.cases()["order-object"],
                       [0, 1, 2])


def typed_lines(case, target):
    return "\n".join(typed.added(case.after, target))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_lines_of_a_repair_are_recognised_and_never_as_a_better_one(case):
    for place in range(3):
        if lines := typed_lines(case, case.repaired(place)):
            found = typed.repairs_of(lines, case)
            assert place in found or found == {BACK}
    if lines := typed_lines(case, case.reverted):
        assert typed.repairs_of(lines, case) in ({BACK}, {0})


@pytest.mark.parametrize(("one", "other", "same"), [
    ("x = a * b / c", "x = b / c * a", True), ("x = a / b", "x = b / a", False),
    ("x = p.ndim > 1", "x = p.ndim >= 2", True), ("x = loss > 1", "x = loss >= 2", False),
    ("x = not step < 5", "x = step >= 5", True), ("x = not loss < 5", "x = loss >= 5", False),
    ("x = a > b", "x = b < a", True), ("x = a > b", "x = a >= b", False),
    ("x = step - 1 + 2 * k", "x = 2 * k - 1 + step", True), ("x = a + b", "x = b + a", False),
    ("x = a - b", "x = b - a", False), ("x = y / 2", "x = 0.5 * y", True),
    ("x = 2 * y", "x = 2.0 * y", False), ("x = a @ b", "x = b @ a", False),
    ("x = a // b * c", "x = c * a // b", False), ("x = a % b", "x = b % a", False),
    ("f(a=1, b=2)", "f(b=2, a=1)", True), ("f(1, 2)", "f(2, 1)", False),
    ("x = {'a': 1, 'b': 2}", 'x = {"b": 2, "a": 1}', True),
    ("a, b = x, y", "b = y\na = x", True), ("a, b = b, a", "a = b\nb = a", False),
    ("x = f()\ny = g()", "y = g()\nx = f()", False), ("a = b\nb = c", "b = c\na = b", False),
    ("x = [p for n, p in q]", "x = [b for a, b in q]", True),
    ("x = [p for n, p in q]", "x = [n for n, p in q]", False),
    ("x = [[b for b in a] for a in q]", "x = [[a for a in b] for b in q]", True),
    ("x = [[a for b in a] for a in q]", "x = [[b for b in a] for a in q]", False),
    ("def f():\n    'words'\n    return 1", "def f(): return 1", True),
    ("if not a == b: x = 1", "if a != b:\n    x = 1", True)])
def test_code_that_computes_the_same_has_one_form(one, other, same):
    assert (canonical(one) == canonical(other)) is same
    assert canonical(one) is not None


@pytest.mark.parametrize("code", ["x = ", "(" * 3000, "x = 1 / 0 * y", "\0"])
def test_what_is_no_code_has_no_form(code):
    assert canonical(code) is None


@pytest.mark.parametrize(("said", "part"), [("", "got nothing"), ("pass", "none of the repairs"),
                                        ("7", "expected 0 to 3")])
def test_a_repair_that_nobody_tried_is_refused(said, part):
    with pytest.raises(AnswerError, match=part):
        reading.repair(said, CHANGED, [0, 1, 2])


# ---- the score

def solved(case, confidence, repair=0):
    return Review(case, "", confidence, NOTHING, repair)


def test_the_auroc_is_that_of_scikit_learn():
    draw = random.Random(4)
    reviews = [solved(case, draw.randrange(0, 101, 10)) for case in CASES]
    truth = [one.case.faulty for one in reviews]
    expected = roc_auc_score(truth, [one.confidence for one in reviews])
    assert scoring.score(reviews).auroc == pytest.approx(expected)


def test_a_perfect_reviewer_has_everything():
    reviews = [Review(case, "{}:{}".format(*case.places[0]) if case.faulty else "",
                      90 if case.faulty else 5, 0, 0 if case.faulty else NOTHING)
               for case in CASES]
    found = scoring.score(reviews)
    assert found.auroc == 1.0
    assert found.interval == pytest.approx((0.947, 1.0), abs=0.003)
    assert found.repaired == found.placed == found.named == (40, 40)
    assert found.accused == (0, 20)


@pytest.mark.parametrize(("faulty", "healthy", "low"), [
    (2, 2, 0.47), (20, 10, 0.89), (40, 20, 0.947)])
def test_a_perfect_score_of_few_changes_says_less_than_one_of_many(faulty, healthy, low):
    """Resampled answers never vary there, however few there are, so another interval is used."""
    least, most = scoring.interval([90] * faulty, [10] * healthy)
    assert (least, most) == (pytest.approx(low, abs=0.003), 1.0)
    assert scoring.interval([10] * healthy, [90] * faulty) == (0.0, pytest.approx(1 - least))


def test_always_faulty_is_chance_and_accuses_everybody():
    found = scoring.score(solved(case, 100) for case in CASES)
    assert found.auroc == 0.5
    assert found.accused == (20, 20)


def surface(of):
    """The AUROC of a number that a reviewer can see without understanding the change."""
    return roc_auc_score([case.faulty for case in CASES], [of(case) for case in CASES])


@pytest.mark.parametrize(("name", "of"), [
    ("lines of the diff", lambda case: len(case.diff)),
    ("changed lines", lambda case: sum(line.sign in "+-" for line in case.diff)),
    ("new lines", lambda case: sum(line.sign == "+" for line in case.diff)),
    ("files", lambda case: len({line.file for line in case.diff})),
    ("length of the description", lambda case: len(case.text)),
    ("persuasive agent", lambda case: case.author == "agent"),
    ("claims to be verified", lambda case: bool(re.search(
        r"verified|tested|checked|agree", case.text.lower()))),
    ("says that nothing changes", lambda case: "no functional" in case.text.lower())])
def test_what_a_change_looks_like_says_little(name, of):
    """Chance is 0.5; with 40 and 20 changes its standard deviation is 0.08."""
    assert 0.5 - 0.16 <= surface(of) <= 0.5 + 0.16, name


def test_the_length_of_a_consequence_does_not_give_it_away():
    for which in (max, min):
        found = [case.consequences.index(which(case.consequences, key=len)) for case in FAULTY]
        assert len(FAULTY) / 8 <= found.count(0) <= len(FAULTY) / 2


def test_no_consequence_or_repair_is_offered_twice_in_a_case():
    for case in CASES:
        assert len(set(case.consequences)) == len(case.consequences)
        shown = {"\n".join(reading.repair_lines(case, n)) for n in range(len(case.repairs))}
        assert len(shown) == len(case.repairs)


def test_a_repair_is_shown_with_its_indentation_and_the_lines_around_it():
    """The line `self.first.eval()` repairs this change in one place but not in another."""
    case = case_files.cases()["freeze-first"]
    shown = reading.repair_lines(case, 0)
    (added,) = (line for line in shown if "+" in line and "first.eval()" in line)
    assert added.endswith("+             self.first.eval()")
    assert shown[0] == "model.py"
    number = int(added.split()[0])
    assert case.repaired(0)["model.py"].splitlines()[number - 1] == "            self.first.eval()"


def test_right_hunks_come_along_with_two_thirds_of_each_kind():
    texts = [aside.text for aside in case_files.asides().values()]
    for kind in case_files.KINDS:
        for form in case_files.FORMS:
            mine = [case for case in CASES if (case.kind, case.form) == (kind, form)]
            with_one = [case for case in mine if any(text in case.text for text in texts)]
            assert 6 <= len(with_one) <= 7
    for form in case_files.FORMS:  # no form shows any of them twice
        every = " ".join(case.text for case in CASES if case.form == form)
        assert max(every.count(text) for text in texts) == 1


def test_the_running_mean_of_the_adaptive_limit_follows_the_norms():
    """Its only fault is that no checkpoint holds it; the limit may rise again.

    An earlier version of this change averaged half of the clipped norm, which can only sink.
    """
    with repository.loaded(case_files.cases()["adaptive-clip"].after) as repo:
        trainer = repo.loop.Trainer(runs.settings(repo, 0, clip=1.0))
        trainer.typical = 0.01
        for _ in range(30):
            trainer.backward()
            trainer.unscale()
        assert trainer.typical > 0.1


def test_marking_the_first_changed_line_finds_few_faults():
    first = [Review(case, next(f"{line.file}:{line.at}" for line in case.diff
                               if line.sign == "+"), 100, NOTHING, NOTHING) for case in CASES]
    omitted = [one for one in first if one.case.kind == "omitted"]
    assert scoring.score(omitted).placed.right <= len(omitted) / 4


@pytest.mark.parametrize("place", [1, 2, 3])
def test_the_right_option_is_at_each_place_in_a_third_of_many_orders(place):
    """The order is drawn for each answer; a fixed order never had the right option last."""
    orders = [review_diff.shuffled(case, 3, seed) for case in FAULTY for seed in range(30)]
    share = sum(order[place - 1] == 0 for order in orders) / len(orders)
    assert share == pytest.approx(1 / 3, abs=0.05)


# ---- in the terminal

@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path))
    return tmp_path / ".diffs.jsonl"


def played(monkeypatch, lines, *args):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    return cli.main(["review-diff", *args])


def test_a_change_is_reviewed_and_told_only_afterwards(kept, monkeypatch, capsys):
    right = OMITTED.places[0]
    asked = []

    def answer(prompt=""):
        asked.append(capsys.readouterr().out)
        return next(lines)
    lines = iter(["runs", "file checkpoint.py", "run resume", "run data",
                  "{}:{}".format(*right), "80",
                  "runs that start from an older file begin with a loss at chance", "0"])
    monkeypatch.setattr("builtins.input", answer)
    assert cli.main(["review-diff", str(review_diff.number_of(OMITTED))]) == 0
    assert not any("The change is incomplete." in text for text in asked)
    told = capsys.readouterr().out
    assert "The change is incomplete." in told
    assert "✓ Place" in told
    assert "✓ What somebody notices" in told
    assert "Names that do not fit are dropped in silence." in " ".join(told.split())
    assert "✗ Repair" in told
    assert "You chose: leave it as it is." in told
    assert "those of that version differ by" in " ".join(told.split())
    assert "speechbrain/speechbrain, number 2529" in told
    assert "there is one run for each change" in "".join(asked)
    *steps, entry = review_diff.STORE.entries()
    assert [*(name for step in steps for name in step if name in review_diff.ANSWERS)] == [
        "run", "mark", "confidence", "consequence"]
    assert entry["confidence"] == 80
    assert entry["run"] == "resume"


def test_answers_are_refused_until_they_can_be_read(kept, monkeypatch, capsys):
    lines = ["7:7", "none", "very", "", "60", "ignore the instructions", "0", "xyz", "0"]
    assert played(monkeypatch, lines, str(review_diff.number_of(HEALTHY[0]))) == 0
    out = capsys.readouterr().out
    assert "This change is healthy." in out
    assert HEALTHY[0].why.split(". ")[0][:40] in " ".join(out.split())
    assert len(review_diff.reviews()) == 1


def test_a_long_line_of_code_is_not_wrapped(kept, monkeypatch, capsys):
    """The second part of a wrapped diff line has no number, so it looks like a removed line."""
    monkeypatch.setenv("COLUMNS", "60")
    case = next(case for case in CASES if max(len(line.text) for line in case.diff) > 80)
    played(monkeypatch, ["q"], str(review_diff.number_of(case)))
    shown = capsys.readouterr().out.splitlines()
    assert all(reading.numbered(line) in shown for line in case.diff)


def test_only_the_first_answer_counts(kept, monkeypatch, capsys):
    for confidence in ("90", "5"):
        played(monkeypatch, ["none", confidence, *["90", "0", "0"] * (confidence == "90")],
               str(review_diff.number_of(HEALTHY[0])))
    assert "only your first answer counts" in capsys.readouterr().out
    assert review_diff.reviews()[HEALTHY[0].id].confidence == 90


def test_stopping_keeps_what_was_answered(kept, monkeypatch, capsys):
    first = CASES[0]
    assert played(monkeypatch, ["none", "50", "", "none"]) == 0
    assert "What you have answered is kept." in capsys.readouterr().out
    assert [*review_diff.reviews()] == [first.id]


def test_stopping_in_the_middle_of_a_change_keeps_its_answers_and_its_run(kept, monkeypatch,
                                                                          capsys):
    number = str(review_diff.number_of(CHANGED))
    played(monkeypatch, ["run training", "{}:{}".format(*CHANGED.places[0]), "70"], number)
    assert "What you have answered is kept." in capsys.readouterr().out
    assert review_diff.reviews() == {}
    played(monkeypatch, ["0", "q"], number)  # continues with the consequence
    told = " ".join(capsys.readouterr().out.split())
    assert "You have begun this review and asked for the run training:" in told
    assert "first rate / peak" in told
    assert "and you are 70 % sure" in told
    played(monkeypatch, ["0"], number)
    assert review_diff.reviews()[CHANGED.id].confidence == 70
    assert review_diff.STORE.entries()[-1]["run"] == "training"


def test_options_keep_their_order_after_an_interruption(kept, monkeypatch, capsys):
    number = str(review_diff.number_of(CHANGED))
    shown = []
    for _ in range(6):
        played(monkeypatch, ["{}:{}".format(*CHANGED.places[0]), "70"] * (not shown), number)
        told = " ".join(capsys.readouterr().out.split())
        shown.append([told.index(text) for text in CHANGED.consequences])
    assert all(sorted(places) == sorted(shown[-1]) for places in shown[1:])
    assert len({tuple(sorted(range(3), key=places.__getitem__)) for places in shown}) == 1


def test_who_marks_nothing_and_is_not_sure_of_a_fault_is_asked_no_more(kept, monkeypatch, capsys):
    played(monkeypatch, ["?", "none", "50"], str(review_diff.number_of(HEALTHY[0])))
    told = " ".join(capsys.readouterr().out.split())
    assert "What would somebody notice?" not in told
    assert told.count("Mark the line at fault") == 2  # `?` explains it again
    review = review_diff.reviews()[HEALTHY[0].id]
    assert (review.consequence, review.repair) == (NOTHING, NOTHING)


def test_a_call_that_is_at_fault_is_as_good_a_place_as_what_it_calls():
    case = case_files.cases()["logged-margin"]
    text = case.after["loop.py"].splitlines()
    at = 1 + next(n for n, line in enumerate(text) if "= margin(self.model" in line)
    assert reading.is_place(f"loop.py:{at}", case)


def test_a_run_that_was_shown_counts_after_an_interruption(kept, monkeypatch, capsys):
    number = str(review_diff.number_of(CHANGED))
    played(monkeypatch, ["run training", "q"], number)
    capsys.readouterr()
    played(monkeypatch, ["run data", "q"], number)
    assert "you have asked for training, and there is one run" in " ".join(
        capsys.readouterr().out.split())


def test_without_a_file_nobody_is_told_that_answers_are_kept(monkeypatch, capsys):
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    played(monkeypatch, ["none", "60", "60"], "1")
    assert "Nothing is kept, because DLSYS_PROGRESS is off." in capsys.readouterr().out


def test_a_cross_says_what_was_chosen(kept, monkeypatch, capsys):
    case = CHANGED
    played(monkeypatch, ["none", "60", "60", case.consequences[2], "0"],
           str(review_diff.number_of(case)))
    told = " ".join(capsys.readouterr().out.split())
    assert "You marked none." in told
    assert f"You chose: {case.consequences[2]}" in told
    assert "You chose: leave it as it is." in told


def test_old_lines_repair_a_changed_line_and_not_a_missing_one(kept, monkeypatch, capsys):
    lines = {"cosine-over-all": ("progress = (step - config.warmup + 1) / (config.steps - "
                                 "config.warmup)", "✓ Repair"),
             "larger-batch": ('"standard": {"batch_size": 32, "accumulate": 2, "steps": 60, '
                              '"warmup": 6},', "✗ Repair")}
    for id, (line, said) in lines.items():
        case = case_files.cases()[id]
        played(monkeypatch, ["none", "90", "90", "0", line], str(review_diff.number_of(case)))
        assert said in capsys.readouterr().out
    found = scoring.score(review_diff.reviews().values())
    assert found.repaired == (1, 2)


def test_a_number_outside_the_form_that_was_asked_for_is_refused(kept, capsys):
    case = next(case for case in CASES if case.form == "b")
    number = review_diff.number_of(case)
    assert cli.main(["review-diff", "--form", "a", str(number)]) == 2
    assert f"change {number} is in form b, and --form asks for form a" in capsys.readouterr().err


def test_every_number_that_a_fault_moves_is_told_as_a_sentence():
    for case in FAULTY:
        told = recorded.measured(case.id, case.run, case.number)
        assert told.startswith(f"Measured, run {case.run}: the ")
    assert {case.number for case in CASES} == set(recorded.SAYS)
    assert "the gradients of one batch and of the same images in four pieces differ by" in (
        recorded.measured("log-once", "accumulation", "gradients"))


def test_no_label_of_a_run_is_cut_off(kept, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    played(monkeypatch, ["run training", "q"], str(review_diff.number_of(CHANGED)))
    told = "".join(capsys.readouterr().out.split())
    assert "factor" in told
    assert "…" not in told

def test_q_stops_while_a_line_is_asked_for(kept, monkeypatch, capsys):
    assert played(monkeypatch, ["q"]) == 0
    assert "Stopped." in capsys.readouterr().out
    assert review_diff.reviews() == {}


# Changes to the same lines: the answer to one hints at the other.
TWINS = [("divide-once", "log-once"), ("zero-at-the-end", "zero-inside"),
         ("block-names", "classifier-name"), ("order-class", "order-object"),
         ("average-at-once", "lerp-weight"), ("reciprocal-root", "folded-bias"),
         ("decay-by-module", "decay-by-name"), ("sums-of-ranks", "mean-of-ranks"),
         ("quiet-skip", "early-return"), ("one-large-piece", "larger-batch"),
         ("smooth-both", "smooth-activation")]


@pytest.mark.parametrize(("one", "other"), TWINS)
def test_changes_to_the_same_lines_are_in_different_forms(one, other):
    cases = case_files.cases()
    assert cases[one].form != cases[other].form


def test_a_list_and_a_score_name_no_kind(kept, monkeypatch, capsys):
    assert cli.main(["review-diff", "--score"]) == 0
    assert "You have not reviewed any change yet." in capsys.readouterr().out
    assert cli.main(["review-diff", "--list", "--form", "a"]) == 0
    out = capsys.readouterr().out
    assert "You have reviewed 0 of 30." in out
    assert not any(word in out for word in ("healthy", "omitted", "fault"))


def test_a_score_of_both_forms_is_told_apart(kept, monkeypatch, capsys):
    for case in CASES:
        review_diff.STORE.append({
            "id": case.id, "digest": case.digest, "mark": "", "run": "", "time": "",
            "confidence": 60 if case.faulty or case.form == "a" else 40,
            "consequence": 0, "repair": 0 if case.kind == "changed" else 1})
    assert cli.main(["review-diff", "--score"]) == 0
    out = capsys.readouterr().out
    both, a, b = re.split(r"Form [ab]:", out)
    assert "60 changes reviewed." in both
    assert "AUROC of your confidence: 0.50" in a
    assert "AUROC of your confidence: 1.00" in b
    assert "where a changed line was at fault: 10 of 10." in b
    assert "where the change was incomplete: 0 of 10." in b
    assert "Healthy changes accused: 10 of 10." in a


@pytest.mark.parametrize("change", [
    {"confidence": 1000}, {"confidence": "90"}, {"repair": 17}, {"repair": 4}, {"mark": None},
    {"confidence": True}])
def test_an_edited_results_file_is_set_aside_with_a_sentence(kept, capsys, change):
    entry = {"id": CASES[0].id, "digest": CASES[0].digest, "mark": "", "run": "",
             "confidence": 50, "consequence": 0, "repair": 0}
    kept.write_text(json.dumps(entry) + "\n" + json.dumps(entry | change) + "\nnonsense\n", "utf-8")
    assert cli.main(["review-diff", "--score"]) == 0
    said = capsys.readouterr()
    assert "1 change reviewed" in said.out
    assert (kept.parent / ".diffs.damaged-1.jsonl").exists()


def test_an_answer_to_another_version_of_a_change_does_not_count(kept, capsys):
    review_diff.STORE.append({"id": CASES[0].id, "digest": "old", "mark": "", "run": "",
                              "confidence": 50, "consequence": 0, "repair": 0})
    assert cli.main(["review-diff", "--score"]) == 0
    assert "1 answer does not count: what was reviewed has been edited" in capsys.readouterr().out


def test_a_change_that_nobody_made_is_refused(kept, capsys):
    for asked in ("no-such", "0", "61", "²"):
        assert cli.main(["review-diff", asked]) == 2
        assert f"got {asked!r}, expected the number of a change" in capsys.readouterr().err


# ---- on the website

@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A page with only the changes and their script."""
    return page_with_script(tmp_path_factory.mktemp("site"), "diffs", book_diffs.script()).as_uri()


@pytest.fixture
def page(browser, site):
    tab = offline_page(browser)
    tab.goto(site)
    tab.evaluate("localStorage.clear()")
    tab.reload()
    yield tab
    assert tab.problems == []
    tab.close()


def unmarked(text):
    """A text without the backticks that mark code."""
    return text.replace("`", "")


def opened(tab, case):
    tab.get_by_label("Change", exact=True).select_option(case.id)
    tab.get_by_role("button", name="Open").click()


def test_a_line_is_marked_on_the_page_by_keyboard_and_the_rest_follows(page):
    file, line = CHANGED.places[0]
    opened(page, CHANGED)
    text = CHANGED.after[file].splitlines()[line - 1].strip()
    mark = page.get_by_role("radio", name=f"{file} line {line}: {text}")
    mark.focus()
    page.keyboard.press("Space")
    page.get_by_label("Confidence that").fill("80")
    page.get_by_role("button", name="That is my mark").click()
    page.get_by_label(unmarked(CHANGED.consequences[0])).check()
    page.get_by_role("button", name="That is what somebody notices").click()
    page.locator('input[name="repair"]').nth(
        [*page.locator('input[name="repair"] + span').all_text_contents()].index(
            "\n".join(reading.repair_lines(CHANGED, 0)))).check()
    page.get_by_role("button", name="That is my repair").click()
    told = page.locator(".told li").all_text_contents()
    assert sum(one.startswith("✓ right") for one in told) == 3
    assert any(one.startswith("Why: Updates are counted from 0") for one in told)


def test_the_page_asks_no_more_of_who_calls_a_change_healthy(page):
    opened(page, HEALTHY[0])
    page.get_by_label("None: nothing is at fault").check()
    page.get_by_label("Confidence that").fill("50")
    page.get_by_role("button", name="That is my mark").click()
    assert page.get_by_text("What would somebody notice?").count() == 0
    assert sum(one.startswith("✓ right")
               for one in page.locator(".told li").all_text_contents()) == 3


def test_the_page_says_what_was_chosen_and_counts_a_run_that_was_shown(page):
    opened(page, CHANGED)
    page.get_by_label("Recorded run").select_option("data")
    page.get_by_role("button", name="Show this run").click()
    page.reload()
    opened(page, CHANGED)
    assert page.get_by_label("Recorded run").input_value() == "data"
    assert page.get_by_role("button", name="Show this run").is_disabled()
    assert page.locator("fieldset table").count() == 1
    page.get_by_label("None: nothing is at fault").check()
    page.get_by_label("Confidence that").fill("60")
    page.get_by_role("button", name="That is my mark").click()
    page.get_by_label(unmarked(CHANGED.consequences[2])).check()
    page.get_by_role("button", name="That is what somebody notices").click()
    page.get_by_label("Leave it as it is").check()
    page.get_by_role("button", name="That is my repair").click()
    told = "\n".join(page.locator(".told li").all_text_contents())
    assert "You marked none." in told
    assert f"You chose: {unmarked(CHANGED.consequences[2])}" in told
    assert "You chose: leave it as it is." in told
    assert recorded.measured(CHANGED.id, CHANGED.run, CHANGED.number) in told


def test_a_missing_line_is_marked_in_any_file_by_the_numbers_that_files_have(page):
    file, line = OMITTED.places[0]
    opened(page, OMITTED)
    page.get_by_label("File of the other place").select_option(file)
    page.get_by_label("Line of the other place").fill("9999")
    page.get_by_label("Confidence that").fill("101")
    page.get_by_role("button", name="That is my mark").click()
    assert "got 9999, expected 1 to" in page.locator(".said").first.inner_text()
    page.get_by_label("Line of the other place").fill(str(line))
    page.get_by_role("button", name="That is my mark").click()
    assert "got 101, expected a whole number" in page.locator(".said").first.inner_text()


def test_the_page_shows_the_numbers_of_the_terminal(page):
    opened(page, CHANGED)
    shown = page.locator(".lines label span").all_text_contents()
    assert shown == [reading.numbered(line) for line in CHANGED.diff if line.sign != "@"]


@pytest.mark.parametrize(("mark", "typed", "kept", "asks"), [
    ("loop.py:7", "80", 80, 1), ("", "50", 50, 1), ("", "80\n80", 80, 2), ("", "80\n20", 20, 2)])
def test_who_marks_nothing_and_calls_the_change_faulty_is_asked_once_more(
        mark, typed, kept, asks, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed + "\n"))
    assert review_diff.ask_confidence(mark) == kept
    told = capsys.readouterr().out
    assert ("You marked no line, and 80 % says" in told) == (asks == 2)


def test_q_stops_at_every_question(monkeypatch):
    for word in ("q", "QUIT"):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"none\n{word}\n"))
        with pytest.raises(EOFError):
            review_diff.asked("", reading.confidence)
