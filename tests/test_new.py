"""A new trap fits after the traps of every stage, runs there, and its check is proven."""

import ast
import os
import random
import re
import shutil
import subprocess
import sys
from functools import cache

import jupytext
import pytest
import torch

from dlsys_checks import questions, registry
from dlsys_helpers import acting
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import STAGES
from tools import lessons, new
from tools.nightly import mark_nightly

NUMBERS = [stage.number for stage in STAGES]
# All stages share the template; try the first lesson, and one with a different set-up.
every = pytest.mark.parametrize("number", mark_nightly(NUMBERS, lambda number: number in (1, 8)))
QUESTIONS, RIGHT_ANSWERS = "src/dlsys_checks/questions", "tests/right_answers"


FACTS = {"id": "99.1", "name": "centre", "stage": "99", "number": "1"}


def copied(root, *parts):
    """A copy of parts of the repository."""
    for part in parts:
        shutil.copytree(ROOT / part, root / part,
                        ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return root


def with_next_trap(root, number, function="rescale"):
    """Add the next trap to a stage of this copy; returns the lesson's file, the new id."""
    lesson = next((root / "lessons").glob(f"{number:02d}_*.py"))
    id = f"{number:02d}.{len(lessons.Source(lesson).traps) + 1}"
    new.add_trap(id, function, root)
    return lesson, id


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """Adds a trap to a stage, once, in a copy: the lesson's file, the new id, its text before."""
    root = copied(tmp_path_factory.mktemp("new"), "lessons", "src/dlsys_checks", RIGHT_ANSWERS)

    @cache
    def add(number):
        before = next((root / "lessons").glob(f"{number:02d}_*.py")).read_text("utf-8")
        return *with_next_trap(root, number), before

    return add


@every
def test_the_builder_accepts_a_new_trap_in_every_lesson(added, number):
    path, id, _ = added(number)
    source = lessons.read(path, draft=True)
    roles = [cell.metadata["role"] for cell in source.of(id)]
    assert list(dict.fromkeys(roles)) == lessons.TRAP_ORDER
    wanted = (f"no check named {id}", f"trap {id} has 0 questions", "it counts the traps as")
    left = [note for note in source.notes if "to do" not in note]
    assert [note for note in left if not any(text in note for text in wanted)] == []
    assert len(left) in {2, 3}


@every
def test_a_new_trap_follows_the_last_one_and_moves_nothing_else(added, number):
    path, id, before = added(number)
    old = jupytext.reads(before, fmt="py:percent").cells
    cells = [(c.cell_type, c.metadata, c.source) for c in lessons.Source(path).cells]
    mine = [n for n, (_, meta, _) in enumerate(cells) if meta.get("trap") == id]
    assert mine == list(range(mine[0], mine[-1] + 1))
    assert [(kind, source) for kind, _, source in cells[:mine[0]] + cells[mine[-1] + 1:]] == [
        (c.cell_type, c.source) for c in old]
    assert cells[mine[0] - 1][1]["role"] in lessons.TRAP_ORDER
    assert cells[mine[-1] + 1][1]["role"] in {"concept", "quiz"}


@every
def test_the_example_uses_what_the_lesson_has_and_no_name_of_its_cells(added, number):
    """Otherwise the cells after the traps would use the example's data."""
    path, id, before = added(number)
    source = lessons.Source(path)
    names = [n for c in source.of(id, kind="code") if c.metadata["role"] != "exercise"
             for n in ast.walk(ast.parse(c.source)) if isinstance(n, ast.Name)]
    own = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    setup = "\n".join(c.source for c in source.of(role="setup"))
    bound = {a.asname or a.name for n in ast.walk(ast.parse(setup))
             if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
    assert {n.id for n in names} - own - bound == {"print"}
    assert not re.findall(rf"\b({'|'.join(own)})\b", before)


@pytest.mark.nightly
def test_a_new_trap_can_be_tried_at_once_and_lacks_only_what_is_to_do(tmp_path):
    """Follow CONTRIBUTING.md in a copy of the repository, with the copy's own package."""
    root = copied(tmp_path, "lessons", "src", "tools", "solutions", "exercises", "tests")
    (root / "book").mkdir()
    for name in ("requirements.lock", "pyproject.toml", "conftest.py", "book/finder_said.yml",
                 "book/_config.yml"):
        shutil.copy(ROOT / name, root / name)
    _, id = with_next_trap(root, 2)
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "DLSYS_PROGRESS": "off"}
    done = subprocess.run([sys.executable, "-m", "tools.try_trap", id], cwd=root, text=True,
                          env=env, capture_output=True)
    steps, _, table = done.stdout.partition("place to edit")
    counts = re.findall(r"^(\w+) .*?(\d+) (?:objection|failed|complaint|do not)", steps, re.M)
    assert counts == [(step, "0") for step in ("linter", "check", "tests", "claims")], (
        done.stdout + done.stderr)
    rows = re.split(r"\n (?=\w\S+(?::\d+)? )", table)[1:]
    assert len(rows) > 15
    wanted = ("TODO", "it counts the traps", "symptom finder has")
    left = [row for row in rows if not any(text in row for text in wanted)]
    assert (done.returncode, left) == (1, [])


def used_in_a_cell(lesson):
    """A name that a cell of the lesson assigns and that none of its functions has."""
    source = lessons.Source(lesson)
    text = lesson.read_text("utf-8")
    return next(name for cell in source.of(role="look", kind="code")
                for name in sorted(lessons.names_bound(cell.source)) if f"def {name}(" not in text)


def files(root):
    return {path: path.read_text("utf-8") for path in root.rglob("*.py")}


@pytest.mark.parametrize(("id", "function", "says"), [
    ("02.9", "shift", "got trap 02.9, expected 02.7"),
    ("02.6", "shift", "got trap 02.6, expected 02.7"),
    ("02.7", "rescale", "rescale is there already"),
    ("02.7", "MARKER", "MARKER is there already")])
def test_refused_in_one_line_and_nothing_is_written(tmp_path, id, function, says):
    function = function.replace("MARKER", used_in_a_cell(ROOT / "lessons/02_backpropagation.py"))
    says = says.replace("MARKER", function)
    root = copied(tmp_path, "lessons", "src/dlsys_checks/s02", QUESTIONS, RIGHT_ANSWERS)
    (root / "src/dlsys_checks/s02/e7_rescale.py").write_text("# mine\n", "utf-8")
    before = files(root)
    with pytest.raises(SystemExit, match=says) as refused:
        new.add_trap(id, function, root)
    assert "\n" not in str(refused.value)
    assert files(root) == before


@pytest.mark.parametrize(("args", "says"), [
    (["5"], "TRAP: got '5'"), ([""], "TRAP: got ''"), (["99.1"], "TRAP: got '99.1'"),
    (["05.x"], "TRAP: got '05.x'"), (["05.7", "a-b"], "NAME: got 'a-b'"),
    (["05.7", "class"], "NAME: got 'class'")])
def test_words_that_name_no_trap_are_refused(monkeypatch, capsys, args, says):
    monkeypatch.setattr("sys.argv", ["new", *args])
    with pytest.raises(SystemExit, match="2"):
        new.main()
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_no_field_of_a_template_is_left_open_and_no_line_is_too_long():
    for path in new.TEMPLATES.iterdir():
        text = new.filled(path.name, **FACTS)
        assert not re.search(r"{{\w+}}", text), path.name
        assert path.name == "trap.txt" or max(map(len, text.splitlines())) <= 100, path.name


@pytest.fixture
def example(monkeypatch):
    """The exercise of the template, registered for one test."""
    monkeypatch.setattr(registry, "REGISTRY", {})
    space = {"__name__": "example"}
    exec(new.filled("check.txt", **FACTS), space)
    beside = new.filled("right_answers.txt", **FACTS)
    exec(beside.replace("from dlsys_checks.s99.e1_centre import ex\n", ""), space)
    return registry.REGISTRY["99.1"]


@pytest.mark.parametrize("seed", range(8))
def test_the_example_of_a_check_passes_what_is_right_and_names_what_is_wrong(example, seed):
    def verdict(fn):
        cases = example.arrange(seed)
        return example.judge(cases, [acting.run_act(lambda f, x: f(x), fn, c) for c in cases])
    assert verdict(lambda x: x - x.mean(0)).status == "pass"
    assert verdict(lambda x: torch.zeros_like(x)).misconception == ""
    names = [wrong.name for wrong in example.wrong_answers]
    assert [verdict(wrong.fn).misconception for wrong in example.wrong_answers] == names
    assert len(names) >= 4
    assert {verdict(fn).status for fn in example.right_answers.values()} == {"pass"}
    assert len(example.right_answers) >= 4


def test_the_example_of_questions_is_right_by_another_route(monkeypatch):
    monkeypatch.setattr(questions, "_GENERATORS", {})
    exec(new.filled("question.txt", **FACTS), vars(questions).copy())
    *rows, choose = questions.about("99.1")
    for draw in rows:
        for seed in range(30):
            one = draw(random.Random(seed))
            first, second = [*map(int, re.findall(r"\d+", one.text)), 0][:2]
            # Columns of two rows; the requested one is last.
            columns = {"Two": [[second, second], [first, first]],
                       "Four": [[first, first]] * 4 + [[second, second]],
                       "A": [[first, 0, 0]]}[one.text.split()[0]]
            left = torch.tensor(columns).double()
            left -= left.mean()
            assert one.answer == pytest.approx(left[-1, 0].item())
            assert not any(one.right(belief) for belief in one.beliefs)
    assert (len(rows), choose(random.Random(0)).shown) == (3, "the mean of all entries")
