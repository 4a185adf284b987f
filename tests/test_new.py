"""A newcomer's first files: they build as a draft, their check holds, nothing is overwritten."""

import pytest
import torch

from dlsys_helpers import acting, checking
from dlsys_helpers.stages import stage
from tools import lessons, new

LAST = stage(12)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder where stage 12 was just started; its checks are not those of this package."""
    monkeypatch.setattr(checking, "of_stage", lambda number: {})
    new.start_stage(12, "rescale", tmp_path)
    return tmp_path


def files(root):
    return {str(p.relative_to(root)): p.read_text("utf-8") for p in root.rglob("*.py")}


def test_a_stage_is_three_files_that_build_as_a_draft(tree):
    assert set(files(tree)) == {f"lessons/{LAST.stem}.py", "src/dlsys_checks/s12/__init__.py",
                                "src/dlsys_checks/s12/e1_rescale.py"}
    source = lessons.read(tree / f"lessons/{LAST.stem}.py", draft=True)
    roles = [cell.metadata["role"] for cell in source.of("12.1")]
    assert list(dict.fromkeys(roles)) == lessons.TRAP_ORDER
    assert source.notes
    assert all("to do" in note or "no check" in note for note in source.notes)


def test_what_was_started_is_no_finished_lesson(tree):
    path = tree / f"lessons/{LAST.stem}.py"
    path.write_text(path.read_text("utf-8").replace(" draft=true", ""), "utf-8")
    with pytest.raises(lessons.RuleBroken):
        lessons.read(path)


def test_no_field_of_a_template_is_left_open(tree):
    new.add_trap("12.2", "shift", tree)
    assert not [name for name, text in files(tree).items() if "{{" in text or "}}" in text]


def test_a_further_trap_stands_before_the_quiz_with_a_check_of_its_own(tree):
    new.add_trap("12.2", "shift", tree)
    source = lessons.read(tree / f"lessons/{LAST.stem}.py", draft=True)
    assert source.traps == ["12.1", "12.2"]
    assert lessons.exercise_function(source, "12.2").name == "shift"
    assert 'exercise("12.2", "shift"' in files(tree)["src/dlsys_checks/s12/e2_shift.py"]


def start_again(root):
    new.start_stage(12, "other", root)


@pytest.mark.parametrize(("act", "says"), [
    (start_again, "there already, nothing was written. A further trap: make new TRAP=12.2"),
    (lambda root: new.add_trap("12.4", "shift", root), "expected 12.2"),
    (lambda root: new.add_trap("12.1", "shift", root), "expected 12.2"),
    (lambda root: new.add_trap("12.2", "rescale", root), "rescale is there already"),
    (lambda root: new.add_trap("11.1", "shift", root), "make new STAGE=11")])
def test_refused_in_one_line_and_nothing_is_written(tree, act, says):
    before = files(tree)
    with pytest.raises(SystemExit, match=says) as refused:
        act(tree)
    assert "\n" not in str(refused.value)
    assert files(tree) == before


def test_a_stage_that_is_there_is_refused_with_the_id_of_its_next_trap(tree):
    new.add_trap("12.2", "shift", tree)
    with pytest.raises(SystemExit, match=r"make new TRAP=12\.3"):
        start_again(tree)


@pytest.fixture
def example(monkeypatch):
    """The exercise of the template, registered for one test."""
    monkeypatch.setattr(checking, "REGISTRY", {})
    exec(new.filled("check.txt", id="99.1", name="center"), {"__name__": "example"})
    return checking.REGISTRY["99.1"]


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
