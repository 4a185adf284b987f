"""The repair bench of a trap's page: which candidates it shows, and whether its claims hold."""

import html
import re

import pytest
from nbformat.v4 import new_output
from test_book import cell, lesson, printed

from dlsys_checks import checking, registry
from dlsys_helpers import acting, catalog
from tools import book_repair, proof, repair_candidates, solutions
from tools.nightly import mark_nightly
from tools.repair_candidates import Bench, Mistake, bench, place_of

IDS = [trap.id for trap in catalog.traps()]


def test_every_exercise_has_a_bench_of_four_or_five_candidates():
    assert {1 + len(bench(id).mistakes) for id in IDS} <= {4, 5}


def test_edits_in_the_same_lines_are_candidates_for_these_lines():
    found = bench("09.2")
    assert found.before.endswith("        for x, y in group:\n")
    assert found.right == 'loss = cross_entropy(model(x), y, weight, reduction="sum") / whole'
    assert found.after.startswith("\n            loss.backward()")
    undivided = 'loss = cross_entropy(model(x), y, weight, reduction="sum")'
    assert ("summing the losses without dividing", undivided) in [
        mistake[1:] for mistake in found.mistakes]


def test_values_of_one_keyword_are_candidates_for_its_default():
    found = bench("07.8")
    assert found.right == "kinds=(list, tuple, dict)"
    assert {m.code for m in found.mistakes} >= {"kinds=list", "kinds=(list, dict)"}
    assert found.before.endswith("def hidden_values(model, *, ")
    assert found.after.startswith(", bare=True")


def test_short_answers_are_candidates_as_a_whole():
    found = bench("02.3")
    assert (found.before, found.after) == ("", "")
    heading = "def stop_grad(t: torch.Tensor):\n    return t"
    assert found.right == f"{heading}.detach().clone()"
    assert {f"{heading}.detach()", f"{heading}.clone()"} <= {m.code for m in found.mistakes}


def test_the_lines_that_an_edit_changes_are_told_from_those_that_stay():
    base = ["def f(x):", "    y = x", "    z = y", "    return z"]
    assert repair_candidates.changed(base, [*base[:2], "    z = -y", base[3]]) == (2, 3)
    assert repair_candidates.changed(base, [*base[:2], "    y = 1", *base[2:]]) == (2, 2)
    assert repair_candidates.changed(base, [base[0], *base[2:]]) == (1, 2)


def test_a_place_shows_the_first_mistakes_that_differ_and_are_short():
    long = "\n".join(["x = 1"] * (repair_candidates.PLACE_LINES + 1))
    mistakes = [Mistake(4, "late", "    e"), Mistake(0, "the same", "    x"),
                Mistake(1, "long", long), Mistake(2, "a", "    a"), Mistake(3, "again", "    a"),
                Mistake(5, "nothing", ""), Mistake(6, "wide", "y" * 200)]
    found = place_of("def f():\n", "    x", "", mistakes)
    assert found == Bench("def f():\n", "x", "",
                          [Mistake(2, "a", "a"), Mistake(4, "late", "e")], "    ")
    assert found.answer("a") == "def f():\n    a"


# ---- what a candidate says is what it gets

def written(id, code):
    """The learner's function with this code in its place."""
    module = repair_candidates.check_module(registry.find(id))
    space = {"__name__": "worksheet"}
    exec(compile(solutions.answers(id[:2])[id][0], "<set-up>", "exec"), space)
    space |= {name: getattr(value, "guards", value) for name, value in vars(module).items()
              if not name.startswith("__")}
    exec(compile(bench(id).answer(code), f"<{id}>", "exec"), space)
    return space[registry.find(id).function]


OFTEN = {"01.1", "02.3", "06.4", "07.8", "09.2"}  # one for each rule


@pytest.mark.parametrize("id", mark_nightly(IDS, OFTEN.__contains__))
def test_the_right_candidate_passes_and_each_other_is_the_mistake_that_it_is_said_to_be(id):
    exercise, found = registry.find(id), bench(id)
    with acting.standard_session():
        assert checking.run_check(id, written(id, found.right), (0,)).status == "pass"
        cases = exercise.arrange(0)
        names = [exercise.judge(cases, exercise.outcomes(written(id, mistake.code), cases)
                                ).misconception for mistake in found.mistakes]
    assert names == [mistake.name for mistake in found.mistakes]


# ---- the page's part

def repaired_lesson():
    return lesson(cell("code", "print(share)", "repair", [printed("share: 0.0 % & less\n")],
                       trap="02.3"))


def test_a_bench_holds_each_message_and_the_number_after_the_repair():
    [heading, text] = book_repair.of_lesson(repaired_lesson(), catalog.trap("02.3"))
    assert heading == "## Repair it"
    told = proof.feedback_by_mistake("02.3")
    for mistake in bench("02.3").mistakes:
        assert html.escape(told[mistake.name]) in text
    assert text.count("data-right") == 1
    [right] = re.findall(r"<li data-right>(.*?)</li>", text, re.DOTALL)
    assert "<strong>✓ Passed.</strong>" in right
    assert "share: 0.0 % &amp; less" in right
    assert text.count("✗ Not right yet.") == len(bench("02.3").mistakes)


def test_lines_that_not_all_candidates_have_are_marked_where_some_are_shared():
    shown = book_repair.marked("x = 1\n    y = 2", {"x = 1", "z = 3"})
    [own] = re.findall('<span class="own-line">(.*)</span>', shown)
    assert re.sub("<[^>]+>", "", own) == "    y = 2"
    assert "own-line" not in book_repair.marked("x = 1", set())


def test_without_a_number_the_right_one_only_passes():
    [_, text] = book_repair.of_lesson(lesson(), catalog.trap("02.3"))
    assert "Measured in the lesson" not in text


def test_what_a_claim_measured_stands_in_for_what_was_printed():
    held = new_output("display_data", {"text/plain": "holds: gap: 0, expected 0"})
    assert book_repair.numbers(lesson(cell("code", "claim()", "repair", [held], trap="02.3")),
                               "02.3") == "<pre>gap: 0, expected 0</pre>"


def test_the_order_in_the_file_is_drawn_by_the_id_and_not_always_right_first():
    places = {[name for _, name in book_repair.shuffled(id, bench(id))].index("")
              for id in IDS}
    assert places == {0, 1, 2, 3, 4}
    first, again = (book_repair.shuffled("02.3", bench("02.3")) for _ in range(2))
    assert first == again


def test_without_a_bench_the_page_leads_to_exercise_and_mistakes(monkeypatch):
    monkeypatch.setattr(repair_candidates, "bench", lambda id: None)
    [_, text] = book_repair.of_lesson(lesson(), catalog.trap("12.6"))
    assert "<exercise-12-6>" in text
    assert "../wrong_answers/12.md" in text
    assert str(len(registry.find("12.6").wrong_answers)) in text


def test_long_code_around_the_place_is_cut_and_says_so():
    before = "def f():\n" + "".join(f"    a{n} = 1\n" for n in range(20))
    after = "\n" + "\n".join(f"    b{n} = 1" for n in range(20))
    shown = re.sub("<[^>]+>", "", book_repair.place(Bench(before, "x = 1", after, [], "    ")))
    assert shown.count("    ...") == 2
    assert "def f():" in shown
    assert "a19 = 1\n    which code?\n    b0 = 1" in shown
    assert "a9" not in shown
    assert "b19" not in shown
