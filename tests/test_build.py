"""The builder refuses what would not teach, and writes the same bytes from the same source."""

import json
import re

import nbformat
import pytest

from dlsys_helpers import paths
from dlsys_helpers.paths import ROOT
from tools import build, lessons
from tools.canonical import canonical

LESSON = ROOT / "lessons" / "01_activations.py"
TEXT = LESSON.read_text("utf-8")


def read(tmp_path, text, name=LESSON.name, draft=False):
    folder = tmp_path / "lessons"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, "utf-8")
    return lessons.read(path, draft)


def cut(start, end):
    """The lesson without the cells from the marker `start` up to `end`."""
    a = TEXT.index(start)
    return TEXT[:a] + TEXT[TEXT.index(end, a):]


REPAIR = '# %% [markdown] trap="01.2" role="repair"'
CASES = {
    "unknown role": (TEXT.replace('role="summary"', 'role="epilogue"'), "epilogue"),
    "no role": (TEXT.replace('# %% [markdown] role="summary"', "# %% [markdown]"), "role None"),
    "missing role in a trap": (cut('# %% [markdown] trap="01.2" role="keep"',
                                   '# %% [markdown] trap="01.3"'), "01.2"),
    "misordered trap": (TEXT.replace('# %% trap="01.2" role="break"',
                                     '# %% trap="01.2" role="keep"'), "01.2"),
    "duplicate id": (TEXT.replace('trap="01.3"', 'trap="01.2"'), "01.2"),
    "gap in the ids": (TEXT.replace('trap="01.5"', 'trap="01.7"'), "01.5"),
    "no symptom": (re.sub(r' symptom="classifier[^"]*"', "", TEXT), "symptom"),
    "no core path": (TEXT.replace(" core=true", ""), "no trap is on the core path"),
    "a core path of two hours": (TEXT.replace("minutes=15", "minutes=90"),
                                 "4 traps with 120 minutes"),
    "no guess": (cut('# %% trap="01.2" role="predict"', '# %% trap="01.2" role="break"'),
                 "asks for a guess"),
    "code before the guess": (TEXT.replace('guess("01.2"', 'x = 1\nguess("01.2"'),
                              "asks for a guess"),
    "no question": (TEXT.replace("raises the alarm?", "raises the alarm."), "ends with '?'"),
    "guess of another trap": (TEXT.replace('guess("01.2"', 'guess("01.3"'), "'01.2'"),
    "guess without answers": (TEXT.replace('unit="operations"', 'unit=""'), "or a unit"),
    "guess that nothing comes back to": (TEXT.replace('measured("01.2", 0)', "pass"),
                                         "0 cells come"),
    "measured twice": (TEXT.replace('measured("01.2", 0)\n', 'measured("01.2", 0)\n\n'
                                    '# %% trap="01.2" role="look"\nmeasured("01.2", 0)\n'),
                       "2 cells come"),
    "measured beside other code": (TEXT.replace('measured("01.2", 0)', 'measured("01.2", 0)\npass'),
                                   "1 cells come"),
    "no such choice": (TEXT.replace('measured("01.2", 0)', 'measured("01.2", 3)'),
                       "does not answer"),
    "a number without a range": (TEXT.replace("flips, right=(2, 20)", "flips"), "does not answer"),
    "explanation that stutters": (TEXT.replace(":: The sigmoid of a", ":: Right. The sigmoid of a"),
                                  "an explanation begins"),
    "look without a claim": (re.sub(r'(trap="01.5" role="look"(?s:.*?))^claim\(.*?\n\n', r"\1\n",
                                    TEXT, flags=re.M), "claims nothing"),
    "number that nobody measured": (TEXT.replace("so you\n# ship it", "so in 73 %"), "73%"),
    "two solution regions": (TEXT.replace("    # END SOLUTION", "    # END SOLUTION\n"
                                          "    # BEGIN SOLUTION\n    pass\n    # END SOLUTION",
                                          1), "one solution region"),
    "no points": (TEXT.replace("points=4 ", ""), "points"),
    "exercise without a check": (TEXT.replace("def dead_units(", "def dead_ones("), "dead_ones"),
    "lesson uses a learner's answer": (TEXT.replace("alarm = score > 0.5",
                                                    "alarm = predict(detector, score) > 0.5"),
                                       "learner's answer: predict"),
    "long line": (TEXT.replace("fast = shrink(vector)", "fast = shrink(vector)" + " " * 60 + "#"),
                  "76 columns"),
    "long cell": (TEXT.replace("vector = torch.randn(1000)\n",
                               "vector = torch.randn(1000)\n" + "vector = vector\n" * 20),
                  "at most 20"),
    "one hint": (re.sub(r'(role="hint"\n# 1\. Leave.*?\n)# 2\..*?\n# 3\..*?\n', r"\1", TEXT),
                 "1 hints"),
    "unexplained choice": (TEXT.replace(" :: Dropout", ""), None),
    "two right choices": (TEXT.replace("- [ ] makes its output", "- [x] makes its output"),
                          "one right choice"),
    "title differs": (TEXT.replace("# # 1. Perceptron", "# # 1. Perceptrons"), "heading"),
    "missing parameter": (TEXT.replace("THREADS = 1\n", "", 1), "SEED, DEVICE"),
    "no gpu part": (cut('# %% [markdown] role="gpu"', '# %% [markdown] role="summary"'), "gpu"),
    "concept after a trap": (TEXT.replace('# %% [markdown] trap="01.2" role="predict"',
                                          '# %% [markdown] role="concept"\n# late\n\n'
                                          '# %% [markdown] trap="01.2" role="predict"'),
                             "trap, further, trap"),
    "further without its heading": (TEXT.replace('# %% [markdown] role="quiz"',
                                                 '# %% [markdown] role="concept"\n# late\n\n'
                                                 '# %% [markdown] role="quiz"', 1),
                                    "## Further"),
}
CASES["explorer that is not shown"] = (TEXT.replace("\n\nactivations\n", "\n\nF.relu\n"),
                                       'end it with "activations"')
CASES["explorer that is not imported"] = (
    TEXT.replace('explorer="activations"', 'explorer="schedules"'), "explorers.schedules import")
CASES["no such explorer"] = (TEXT.replace('explorer="activations"', 'explorer="relu"'), "'relu'")
CASES["placeholder"] = (TEXT.replace("Each step looks like", "TODO: the end"), "TODO: the end")
CASES["code that teaches and claims"] = (
    TEXT.replace('claim("the lowest score', 'print(score.min())\nclaim("the lowest score'),
    "it teaches and claims: 1 lines")
CASES["a function beside a claim"] = (
    TEXT.replace('claim("accuracy of the alarm', 'def half(x):\n    return x / 2\n\n'
                 'claim("accuracy of the alarm'), "it teaches and claims: 2 lines")
CASES["four claims in a cell"] = (
    TEXT.replace('claim("accuracy of the alarm", right, above=0.9)',
                 'claim("accuracy of the alarm", right, above=0.9)\n' * 2),
    "4 claims stand in a row")
CASES["four claims in two cells"] = (
    TEXT.replace('claim("the lowest score',
                 'claim("accuracy", right, above=0.9)\n\n# %% trap="01.2" role="look"\n'
                 'claim("the lowest score'), "4 claims stand in a row")
CASES["sixteen lines that teach"] = (
    TEXT.replace("vector = torch.randn(1000)\n", "vector = torch.randn(1000)\n" * 8),
    "16 lines of code that teaches")
CASES["draft"] = (TEXT.replace('role="hook"', 'role="hook" draft=true', 1), "DRAFT=1")
CASES["trap after the quiz"] = (TEXT.replace('# %% [markdown] role="gpu"',
                                             '# %% [markdown] trap="01.6" role="predict"\n'
                                             '# ## Late\n\n# %% [markdown] role="gpu"', 1),
                                "trap, quiz, trap, gpu")
CASES["unexplained choice"] = (re.sub(r" :: That is what `eval\(\)` does\.", "", TEXT),
                               "not explained")


@pytest.mark.parametrize("name", CASES)
def test_refused_with_file_cell_and_remedy(name, tmp_path):
    text, says = CASES[name]
    assert text != TEXT, "the fixture no longer changes the lesson"
    with pytest.raises(lessons.RuleBroken) as refused:
        read(tmp_path, text)
    message = str(refused.value)
    assert message.startswith("lessons/01_activations.py")
    assert says in message
    assert message.rstrip().endswith(".") or message.rstrip().endswith('"')


# What is only missing is a note in a draft; all else is refused there too.
MISSING = {"missing role in a trap", "look without a claim", "one hint", "no gpu part", "no guess",
           "code before the guess", "guess that nothing comes back to", "measured twice",
           "measured beside other code",
           "number that nobody measured", "placeholder", "draft"}


def test_what_only_measures_is_folded_and_what_teaches_is_not(tmp_path):
    cells = {c.id: c for c in build.views(read(tmp_path, TEXT))["lesson"].cells}
    folded = {id for id, c in cells.items() if c.metadata.get("jupyter") == {"source_hidden": True}}
    assert {"01-2-look-2", "01-5-look-1"} <= folded          # claims; the counter, tagged plumbing
    assert not folded & {"01-2-look-1", "01-2-break-1", "01-5-repair-2"}
    assert "nbval-check-output" in cells["01-2-look-1"].metadata.tags
    assert "nbval-check-output" not in cells["01-2-look-2"].metadata.tags


def test_the_steps_of_a_trap_are_headings_in_the_lesson_alone(tmp_path):
    views = build.views(read(tmp_path, TEXT))
    found = [c.source.partition("\n\n**")[0] for c in views["lesson"].cells
             if c.metadata["dlsys"].get("trap") == "01.2" and c.cell_type == "markdown"
             and c.source.startswith("#")]
    assert found[0].startswith("## Trap 01.2: An alarm at one half\n\n### Predict\n\nYou train")
    assert found[1:] == ["### Break it", "### Look", "### Why, and the repair",
                         "### Told and measured", "### Your turn", "### Keep"]
    for view in ("exercise", "solution"):
        assert not [c for c in views[view].cells if c.metadata["dlsys"]["role"] == "step"]


def test_a_lesson_says_what_its_helpers_are_before_it_uses_them(tmp_path):
    views = build.views(read(tmp_path, TEXT))
    cells = [c.id for c in views["lesson"].cells]
    [note] = [c for c in views["lesson"].cells if c.id == "stage-note-1"]
    assert cells.index("stage-note-1") == cells.index("stage-setup-1") - 1
    assert all(f"`{name}" in note.source for name in ("claim(", "fit`", "digits(", "accuracy`"))
    assert "stage-note-1" not in [c.id for c in views["exercise"].cells]


def test_concepts_may_follow_the_last_trap(tmp_path):
    text = TEXT.replace('# %% [markdown] role="quiz"', '# %% [markdown] role="concept"\n'
                        '# ## Further\n\n# %% role="concept"\n1 + 1\n\n'
                        '# %% [markdown] role="quiz"', 1)
    assert text != TEXT
    assert lessons.parts(read(tmp_path, text)).count("further") >= 2


@pytest.mark.parametrize("name", CASES)
def test_a_draft_notes_what_is_missing_and_refuses_what_is_wrong(name, tmp_path):
    text, says = CASES[name]
    if name in MISSING:
        notes = read(tmp_path, text, draft=True).notes
        assert name == "draft" or says in "\n".join(notes)
        return
    with pytest.raises(lessons.RuleBroken) as refused:
        read(tmp_path, text, draft=True)
    assert says in str(refused.value)


def test_a_draft_may_lack_every_part_of_a_trap_but_its_heading(tmp_path):
    text = cut('# %% trap="01.2" role="break"', '# %% [markdown] trap="01.3"')
    source = read(tmp_path, text, draft=True)
    assert "no break, look, repair, exercise, hint, keep" in source.notes[0]
    assert "come back to the guess of trap 01.2" in source.notes[1]
    assert "check 01.2 has no exercise" in source.notes[2]
    sheet = build.views(source)["exercise"].cells
    assert [c.metadata["dlsys"]["trap"] for c in sheet if c.id.endswith("-check-1")] == [
        "01.1", "01.3", "01.4", "01.5"]


def test_a_draft_says_so_first_and_prints_its_verdicts(tmp_path):
    views = build.views(read(tmp_path, CASES["draft"][0], draft=True))
    for book in views.values():
        assert book.metadata["dlsys"]["draft"] is True
        assert book.cells[0].source.startswith("**Draft")
        assert book.cells[1].source.startswith("# ")
    checks = [c.source for c in views["solution"].cells if c.metadata["dlsys"]["role"] == "check"]
    assert checks[0].endswith('print(run_check("01.1", predict).line())')
    assert len(checks) == 5


def test_a_marked_lesson_is_left_out_of_what_is_built_and_refused_by_name(tmp_path, monkeypatch):
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / LESSON.name).write_text(CASES["draft"][0], "utf-8")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert build.sources_of([]) == []
    with pytest.raises(lessons.RuleBroken, match="marked as a draft"):
        build.sources_of(["01"])


def test_a_lesson_is_built_beside_another_one_that_is_broken(tmp_path, monkeypatch):
    read(tmp_path, TEXT)
    (tmp_path / "lessons" / "02_backpropagation.py").write_text("# %%\nhalf edited", "utf-8")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert [source.stage for source in build.sources_of(["01"])] == [1]


def test_a_check_that_cannot_be_imported_is_refused_with_its_line(tmp_path, monkeypatch):
    def broken(_):
        raise ValueError("exercise: got 'x', expected an id")
    monkeypatch.setattr(lessons.checking, "of_stage", broken)
    with pytest.raises(lessons.RuleBroken, match="cannot be imported: ValueError: exercise: got"):
        read(tmp_path, TEXT)


def test_renamed_file_is_refused(tmp_path):
    with pytest.raises(lessons.RuleBroken, match=r"01_activations\.py"):
        read(tmp_path, TEXT, "01_neurons.py")


def test_the_shipped_lesson_is_accepted(tmp_path):
    assert read(tmp_path, TEXT).traps == ["01.1", "01.2", "01.3", "01.4", "01.5"]


def test_generated_files_are_what_the_lessons_say():
    assert build.stale(build.sources_of([])) == []


def test_the_start_page_stores_no_map():
    """It would be one learner's, and another one with each lesson that is added."""
    path = build.ROOT / "notebooks" / "00_start_here.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.outputs for cell in cells if cell.cell_type == "code"] == [[], [], []]


def test_a_stage_that_is_gone_leaves_a_catalog_that_is_out_of_date():
    (source,) = build.sources_of(["01"])
    assert "src/dlsys_helpers/catalog/02.json" in build.stale([source])


PARTS = {"a helper": "dlsys_helpers.train", "the pins": "torch", "a cell": "code"}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_stored_outputs_are_kept_only_while_what_they_rest_on_is_the_same(part):
    old, new = (build.views(lessons.read(LESSON))["lesson"] for _ in range(2))
    cell = next(c for c in old.cells if c.cell_type == "code")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="kept\n")]
    assert part in new.metadata["dlsys"]["rests_on"]
    new.metadata["dlsys"]["rests_on"][part] = "other"
    assert not build.keep_outputs(new, old)
    new.metadata["dlsys"]["rests_on"] = old.metadata["dlsys"]["rests_on"]
    assert build.keep_outputs(new, old)
    assert "kept" in str(new.cells)


def test_worked_answers_rest_on_the_checks_of_their_stage():
    books = build.views(lessons.read(LESSON))
    assert "checks" in books["solution"].metadata["dlsys"]["rests_on"]
    assert "checks" not in books["lesson"].metadata["dlsys"]["rests_on"]


@pytest.mark.parametrize("part", ["dlsys_helpers.explorers.activations",
                                  "explorers/explorer.js", "torch"])
def test_stored_picture_of_a_changed_explorer_is_out_of_date(part):
    book = build.views(lessons.read(LESSON))["lesson"]
    assert build.stale_pictures(book) == []
    book.metadata["dlsys"]["rests_on"][part] = "as it was when the picture was stored"
    found = build.stale_pictures(book)
    assert f"explorer activations ({part})" in found
    assert len(found) == (1 if part.endswith("activations") else 2)


def test_a_changed_helper_or_prose_leaves_pictures_alone():
    book = build.views(lessons.read(LESSON))["lesson"]
    book.metadata["dlsys"]["rests_on"] |= {"dlsys_helpers.train": "older", "code": "older"}
    assert build.stale_pictures(book) == []


def test_the_code_of_a_question_and_of_its_answer_is_folded():
    """It would give the answer away: the index of the right choice, or a range."""
    cells = [c for c in build.views(lessons.read(LESSON))["lesson"].cells
             if c.source.startswith(("guess(", "# Back to your guess.\nmeasured("))]
    assert len(cells) == 10
    for cell in cells:
        assert cell.metadata["jupyter"] == {"source_hidden": True}
        assert "nbval-check-output" not in cell.metadata["tags"]
        assert ("guess" in cell.metadata["tags"]) == cell.source.startswith("guess(")


def test_what_explorers_say_is_compared():
    cells = build.views(lessons.read(LESSON))["lesson"].cells
    tags = [c.metadata["tags"] for c in cells
            if c.cell_type == "code" and c.metadata["dlsys"]["role"] == "explore"]
    assert len(tags) == 2
    assert all("nbval-check-output" in found for found in tags)


def test_same_source_same_bytes():
    first, second = ([build.written(canonical(book)) for book in build.views(
        lessons.read(LESSON)).values()] for _ in range(2))
    assert first == second


def test_ids_are_unique_and_survive_an_inserted_stage_cell():
    views = build.views(lessons.read(LESSON))
    for book in views.values():
        ids = [c.id for c in book.cells]
        assert len(set(ids)) == len(ids)
    assert "01-3-break-1" in [c.id for c in views["lesson"].cells]


def test_worksheet_has_a_check_for_each_exercise_and_hints_are_folded():
    cells = build.views(lessons.read(LESSON))["exercise"].cells
    checks = [c.source.removeprefix("from dlsys_helpers import check\n\n") for c in cells
              if c.metadata["dlsys"]["role"] == "check"]
    assert checks == ['check("01.1", predict)', 'check("01.2", to_probs)',
                      'check("01.3", grad_ratio)', 'check("01.4", dead_units)',
                      'check("01.5", soft_threshold)']
    hints = [c.source for c in cells if c.metadata["dlsys"]["role"] == "hint"]
    assert all(h.count("<details>") == 3 for h in hints)


def test_quiz_choices_fold_and_say_which_is_right():
    quiz = [c.source for c in build.views(lessons.read(LESSON))["lesson"].cells
            if c.metadata["dlsys"]["role"] == "quiz" and "<details" in c.source]
    assert len(quiz) == 5
    assert all(q.count("<strong>Right.</strong>") == 1 for q in quiz)


def test_worksheet_version_changes_with_a_stub_and_not_with_prose(tmp_path):
    def version(text):
        book = build.views(read(tmp_path, text))["exercise"]
        return book.metadata["dlsys"]["version"]
    assert version(TEXT) == version(TEXT.replace("Each step looks like", "Every step looks like"))
    assert version(TEXT) != version(TEXT.replace("for [[0., 1.], [0., 0.]]",
                                                 "for [[0., 2.], [0., 0.]]"))


def test_canonical_form_drops_what_changes_between_runs():
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x")])
    book.cells[0].outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="<f at 0x7fa70e6dde40>\n"),
        nbformat.v4.new_output("stream", name="stdout", text="more\n"),
        nbformat.v4.new_output("display_data", data={
            "application/vnd.jupyter.widget-view+json": {}, "text/plain": "w"})]
    book.cells[0].metadata["execution"] = {"iopub.execute_input": "now"}
    clean = canonical(book)
    text = json.dumps(clean)
    assert "<f at 0x0>\\nmore" in text
    assert "widget-view" not in text
    assert "iopub" not in text
    assert clean.cells[0].execution_count == 1
