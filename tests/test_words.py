"""Words are cheap: text that only a reader sees makes no record stale."""

import ast
import shutil

import nbformat
import pytest

from benchmarks import watch_corpus, watch_lessons
from dlsys_helpers.explorers import names
from dlsys_helpers.paths import ROOT
from tools import (
    core_path,
    exam,
    finder_record,
    fingerprints,
    frames,
    gallery,
    lessons,
    proof,
    solutions,
    sweep,
)
from tools.views import all_views

LESSON = "lessons/05_normalization.py"
NAME = "05_normalization.ipynb"
CHECK = "src/dlsys_checks/s03/e2_class_loss.py"


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """edited(old, new): the notebooks of LESSON with one text replaced, where records look."""
    text = (ROOT / LESSON).read_text("utf-8")
    (tmp_path / "lessons").mkdir()
    monkeypatch.setattr(watch_lessons, "lessons", lambda: {
        "05": tmp_path / "notebooks" / NAME})
    shutil.copytree(ROOT / "solutions", tmp_path / "solutions")
    monkeypatch.setattr(solutions, "SOLUTIONS", tmp_path / "solutions")

    def edit(old, new):
        assert text.count(old) >= 1, f"{LESSON}: the test no longer finds {old!r}"
        path = tmp_path / LESSON
        path.write_text(text.replace(old, new, 1), "utf-8")
        for view, book in all_views(lessons.Source(path)).items():
            folder = tmp_path / {"lesson": "notebooks", "solution": "solutions"}.get(view, view)
            folder.mkdir(exist_ok=True)
            nbformat.write(book, folder / NAME)
        for cached in (proof.fresh, proof.has_fresh_feedback):
            cached.cache_clear()
        return tmp_path / "notebooks" / NAME
    yield edit
    proof.fresh.cache_clear()
    proof.has_fresh_feedback.cache_clear()


def stale_of_the_lesson(path):
    """The complaints of every record about a lesson or its worked answers."""
    ids = [id for id in solutions.answers("05")]
    return [*filter(None, [sweep.stale(path), core_path.stale(path), watch_lessons.stale("05"),
                           proof.stale(path.stem, ids)])]


def stale_of_all_else():
    found = [proof.stale(stage, solutions.answers(stage)) for stage in solutions.stages()]
    found += map(frames.stale, names())
    found += [name for name, source in exam.scripts().items() if not exam.recorded(source)]
    found += [f"{key}, seed {seed}" for key, seed in gallery.stale()]
    found += map(watch_corpus.stale, watch_corpus.FAULTY + watch_corpus.HEALTHY)
    return [*filter(None, [*found, *finder_record.stale()])]


def test_nothing_is_stale_as_it_stands(edited):
    """Otherwise the tests below would prove nothing."""
    assert stale_of_the_lesson(edited("", "")) == []
    assert stale_of_all_else() == []


WORDS = {  # a kind of word -> the text in the lesson and its replacement
    "a claim": ('claim("', 'claim("once more: '),
    "a title": ('title="', 'title="Seen again: '),
    "an axis": ('ylabel="', 'ylabel="the '),
    "a label": ('label="', 'label="the '),
    "an alt text": ('alt="', 'alt="A picture. '),
    "a question of a GPU table": ('norms.asks("', 'norms.asks("on the GPU, '),
    "a question": ('guess("05.1",\n      "', 'guess("05.1",\n      "Think first. '),
    "a choice": ('choices=["', 'choices=["probably '),
    "a docstring": ('    """', '    """In short: '),
    "a comment": ("    return ", "    # What comes out.\n    return "),
    "what a print says": ('print(f"', 'print(f"measured: '),
    "prose": ("# The ", "# As you know, the "),
}


@pytest.mark.parametrize("kind", WORDS)
def test_a_word_in_a_lesson_makes_no_record_stale(edited, kind):
    assert stale_of_the_lesson(edited(*WORDS[kind])) == []


@pytest.mark.parametrize(("old", "new"), [
    ("lr=", "lr=0.9 * "), ("above=", "above=0.9 * "), ("print(f\"", "torch.rand(1); print(f\"")])
def test_what_counts_makes_the_sweep_stale(edited, old, new):
    assert "changed since it was swept" in sweep.stale(edited(old, new))


def test_a_call_inside_of_words_counts():
    """It may draw random numbers, or train."""
    words = fingerprints.lesson_words
    plain, other, call = (fingerprints.essence(f'claim(f"a {text} b", x, above=1)', words)
                          for text in ("{n:.2f}", "word {m}", "{torch.rand(1):.2f}"))
    assert plain == other != call


@pytest.mark.parametrize(("before", "after", "same"), [
    ("f(a,\n  b)", "f(a, b)  # both", True),
    ("x = 'a' 'b'", 'x = "ab"', True),
    ("def f():\n    '''Say.'''\n    return 1", "def f():\n\n    return 1", True),
    ("f('key')", "f('other')", False),
    ("x = 1", "x = 1.0", False),
    ("x = 1", "x = True", False),
    ("x = ''", "x = None", False),
    ("plot_lines(x, title='a')", "plot_lines(x, title='b')", True),
    ("ax.plot(x, label='a')", "ax.plot(x, label='b')", True),
    ("run(x, label='a')", "run(x, label='b')", False),
    ("rows.asks('a', '1, or 16', f)", "rows.asks('b', '16, or 1', f)", True),
    ("rows.asks('a', 1.0, f)", "rows.asks('a', 2.0, f)", False),
    ("plot_lines(f('a'))", "plot_lines(f('b'))", False),
])
def test_the_essence_of_code(before, after, same):
    one, other = (fingerprints.essence(code, fingerprints.lesson_words)
                  for code in (before, after))
    assert (one == other) == same


# ---- checks

IN_A_CHECK = {
    "a message": ('Broken("', 'Broken("again, '),
    "the name of a mistake": ('wrong("', 'wrong("again '),
    "a comment": ("@ex.cases\n", "# Drawn anew for each seed.\n@ex.cases\n"),
}


@pytest.fixture
def in_check(monkeypatch):
    """in_check(old, new): the check's source with one text replaced."""
    read = fingerprints.source
    module = CHECK.removeprefix("src/").removesuffix(".py").replace("/", ".")

    def edit(old, new):
        text = read(module)
        assert old in text, f"{CHECK}: the test no longer finds {old!r}"
        monkeypatch.setattr(fingerprints, "source", lambda name: (
            text.replace(old, new, 1) if name == module else read(name)))
        proof.fresh.cache_clear()
        proof.has_fresh_feedback.cache_clear()
    yield edit
    proof.fresh.cache_clear()
    proof.has_fresh_feedback.cache_clear()


@pytest.mark.parametrize("kind", IN_A_CHECK)
def test_a_word_in_a_check_makes_no_proof_stale(in_check, kind):
    assert proof.stale("03_losses", ["03.2"]) == ""
    in_check(*IN_A_CHECK[kind])
    assert proof.stale("03_losses", ["03.2"]) == ""


TABLE = 'ex.promise_table("""\nsum | The sum of x. | the sum\nsizes | x: (N,), | case one\n""")'


@pytest.mark.parametrize(("old", "new", "same"), [
    ("The sum", "A sum", True), ("| the sum", "| the total", True), ("case one", "case two", False),
    ("sizes |", "shape |", False)])
def test_of_a_table_of_promises_keys_and_cases_count(old, new, same):
    words = fingerprints.check_words
    assert old in TABLE
    assert (fingerprints.essence(TABLE, words)
            == fingerprints.essence(TABLE.replace(old, new), words)) == same
    assert fingerprints.essence(TABLE) != fingerprints.essence(TABLE.replace(old, new))


def test_a_number_in_a_check_makes_its_proof_stale(in_check):
    in_check("atol=", "atol=2 * ")
    assert proof.stale("03_losses", ["03.2"]).endswith("Run: make finish LESSON=03")


def test_what_a_call_says_is_read_without_a_change_of_its_tree():
    """Every call returns the same: if it changed the tree, the next reader would miss its table."""
    tree = ast.parse(TABLE)
    before = ast.dump(tree)
    assert list(fingerprints.check_words(tree.body[0].value)) == [tree.body[0].value.args[0]]
    assert ast.dump(tree) == before
