"""The builder refuses lessons that would not teach, and is deterministic."""

import base64
import json
import re

import nbformat
import pytest

from dlsys_checks import questions
from dlsys_helpers import paths, plots
from dlsys_helpers.paths import ROOT
from tools import build, execution, lessons, stored_outputs, views
from tools.canonical import canonical
from tools.views import all_views, as_text, new_cell

LESSON = ROOT / "lessons" / "01_activations.py"
TEXT = LESSON.read_text("utf-8")


def write(tmp_path, text, name=LESSON.name):
    folder = tmp_path / "lessons"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def read(tmp_path, text, name=LESSON.name, draft=False):
    return lessons.read(write(tmp_path, text, name), draft)


def cut(start, end):
    """The lesson without the cells from the marker `start` up to `end`."""
    a = TEXT.index(start)
    return TEXT[:a] + TEXT[TEXT.index(end, a):]


MEASURED, BAND = 'measured("01.2", 2)', "right=(64, 96)"
CASES = {
    "unknown role": (TEXT.replace('role="summary"', 'role="epilogue"'), "epilogue"),
    "no role": (TEXT.replace('# %% [markdown] role="summary"', "# %% [markdown]"), "role None"),
    "missing role in a trap": (cut('# %% [markdown] trap="01.2" role="keep"',
                                   '# %% [markdown] role="concept"\n# ## What the activation buys'),
                             "01.2"),
    "misordered trap": (TEXT.replace('# %% trap="01.2" role="break"',
                                     '# %% trap="01.2" role="keep"'), "01.2"),
    "duplicate id": (TEXT.replace('trap="01.3"', 'trap="01.2"'), "01.2"),
    "gap in the ids": (TEXT.replace('trap="01.5"', 'trap="01.7"'), "01.5"),
    "no symptom": (re.sub(r' symptom="classifier[^"]*"', "", TEXT), "symptom"),
    "no fault": (re.sub(r' fault="a logit[^"]*"', "", TEXT), "its fault is ''"),
    "a fault of a paragraph": (TEXT.replace('fault="a logit', f'fault="{"so " * 20}a logit'),
                               "expected 1 to 60 characters"),
    "a fault that is a sentence": (TEXT.replace('probability" symptom', 'probability." symptom'),
                                   "without a full stop"),
    "an output above the question": (TEXT.replace("alarm = score > 0.5 ",
                                                  "print(score)\nalarm = score > 0.5 "),
                                     "it calls print above the question"),
    "the question above the code": (TEXT.replace('trap="01.2" role="break"',
                                                 'trap="01.2" role="look"'), "01.2"),
    "a band of a factor of five": (TEXT.replace(BAND, "right=(20, 100)"),
                                   "a factor of 5"),
    "somebody quoted, unsaid who is right": (TEXT.replace(' quoted="wrong"', ""),
                                             "quotes somebody and quoted is None"),
    "nobody quoted": (TEXT.replace('trap="01.2" role="guess"', 'trap="01.2" role="guess" '
                                   'quoted="right"'), "quotes nobody and quoted is 'right'"),
    "two claims in the line of a trap": (
        TEXT.replace('claim("fraction of the eights that the alarm finds"',
                     'claim("accuracy", right, above=0.9)\nclaim("fraction of the eights that '
                     'the alarm finds"'), "2 claims follow each other, expected at most 1"),
    "seven claims in a row": (
        TEXT.replace('claim("lowest score', 'claim("accuracy", right, above=0.9)\n' * 4
                     + 'claim("lowest score'), "7 claims follow each other, expected at most 6"),
    "something folded, unsaid what": (re.sub(r' topics="a threshold[^"]*"', "", TEXT),
                                      "what is folded"),
    "a heading in what is folded": (TEXT.replace("# You can pass the score",
                                                 "# ## You can\n# pass the score"),
                                    "a heading stands in what is folded"),
    "four hundred open words": (TEXT.replace("# so you ship it.",
                                             "# " + "so " * 350 + "you ship it."),
                                "words of trap 01.2 are open, expected at most 350"),
    "five pictures": (TEXT.replace("plot_lines(", "print(").replace("draw_tree(", "print(")
                      .replace("draw_grids({", "print({"),
                      "5 cells end in a figure"),
    "a core path that needs a trap off it": (TEXT.replace("deep, wide = ",
                                                          "lengths.append(1)\ndeep, wide = "),
                                             "it uses lengths, which 01-5-repair-3 defines"),
    "no core path": (TEXT.replace(" core=true", ""), "no trap is on the core path"),
    "a core path of two hours": (TEXT.replace("minutes=15", "minutes=90"),
                                 "4 traps with 120 minutes"),
    "no guess": (cut('# %% trap="01.2" role="guess"', '# %% trap="01.2" role="look"'),
                 "has no guess"),
    "code beside the guess": (TEXT.replace('guess("01.2"', 'x = 1\nguess("01.2"'),
                              "asks for a guess"),
    "no question": (TEXT.replace("raise the alarm?", "raise the alarm."), "ends with '?'"),
    "guess of another trap": (TEXT.replace('guess("01.2"', 'guess("01.3"'), "'01.2'"),
    "guess without answers": (TEXT.replace('unit="operations"', 'unit=""'), "or a unit"),
    "guess that nothing comes back to": (TEXT.replace(MEASURED, "pass"),
                                         "0 cells come"),
    "measured twice": (TEXT.replace(MEASURED, f'{MEASURED}\n\n'
                                    f'# %% trap="01.2" role="look"\n{MEASURED}'),
                       "2 cells come"),
    "measured beside other code": (TEXT.replace(MEASURED, f"{MEASURED}\npass"),
                                   "1 cells come"),
    "no such choice": (TEXT.replace(MEASURED, 'measured("01.2", 3)'), "does not answer"),
    "a number without a range": (TEXT.replace(BAND, ""), "does not answer"),
    "explanation that stutters": (TEXT.replace(":: The sigmoid of a", ":: Right. The sigmoid of a"),
                                  "an explanation begins"),
    "look without a claim": (
        re.sub(r'(trap="01.5" role="look"(?s:.*?))^claim\((?s:.*?)\n\n', r"\1\n", TEXT, flags=re.M),
        "claims nothing"),
    "number that nobody measured": (TEXT.replace("# so you ship it.", "# so you ship it in 73 %."),
                                     "73%"),
    "two solution regions": (TEXT.replace("    # END SOLUTION", "    # END SOLUTION\n"
                                          "    # BEGIN SOLUTION\n    pass\n    # END SOLUTION",
                                          1), "one solution region"),
    "a hook that counts fewer traps": (TEXT.replace("traps=5", "traps=4"), "as 4, and the lesson"),
    "a hook that counts in another word": (TEXT.replace("with five\n# mistakes",
                                                           "with\n# mistakes"),
                                           "with the word 'five'"),
    "no points": (TEXT.replace("points=4 ", ""), "points"),
    "exercise without a check": (TEXT.replace("def dead_units(", "def dead_ones("), "dead_ones"),
    "lesson uses a learner's answer": (TEXT.replace("alarm = score > 0.5",
                                                    "alarm = predict(detector, score) > 0.5"),
                                       "learner's answer: predict"),
    "long line": (TEXT.replace("fast = signed_log(vector)",
                               "fast = signed_log(vector)" + " " * 60 + "#"),
                  "76 columns"),
    "long cell": (TEXT.replace("vector = torch.randn(1000)\n",
                               "vector = torch.randn(1000)\n" + "vector = vector\n" * 20),
                  "at most 20"),
    "one hint": (re.sub(r'(role="hint"\n# 1\. You need no access.*?\n)# 2\..*?\n# 3\..*?\n', r"\1",
                        TEXT), "1 hints"),
    "unexplained choice": (TEXT.replace(" :: Dropout", ""), None),
    "two right choices": (TEXT.replace("- [ ] It makes the output", "- [x] It makes the output"),
                          "one right choice"),
    "title differs": (TEXT.replace("# # 1. Perceptron", "# # 1. Perceptrons"), "heading"),
    "missing parameter": (TEXT.replace("THREADS = 1\n", "", 1), "SEED, DEVICE"),
    "no gpu part": (cut('# %% [markdown] role="gpu"', '# %% [markdown] role="summary"'), "gpu"),
    "concept after a trap": (TEXT.replace('# %% [markdown] trap="01.5" role="situation"',
                                          '# %% [markdown] role="concept"\n# late\n\n'
                                          '# %% [markdown] trap="01.5" role="situation"'),
                             "without a heading"),
    "further without its heading": (TEXT.replace("# ## Further\n", "# late\n"), "## Further"),
}
CASES["explorer that is not shown"] = (TEXT.replace("\n\nactivations\n", "\n\nF.relu\n"),
                                       'end it with "activations"')
CASES["explorer that is not imported"] = (
    TEXT.replace('explorer="activations"', 'explorer="schedules"'), "explorers.schedules import")
CASES["no such explorer"] = (TEXT.replace('explorer="activations"', 'explorer="relu"'), "'relu'")
CASES["placeholder"] = (TEXT.replace("Each step looks like", "TODO: the end"), "TODO: the end")
CASES["code that teaches and claims"] = (
    TEXT.replace('claim("lowest score', 'print(score.min())\nclaim("lowest score'),
    "it teaches and claims: 1 lines")
CASES["a function beside a claim"] = (
    TEXT.replace('claim("accuracy of the alarm', 'def half(x):\n    return x / 2\n\n'
                 'claim("accuracy of the alarm'), "it teaches and claims: 2 lines")
CASES["sixteen lines that teach"] = (
    TEXT.replace("vector = torch.randn(1000)\n", "vector = torch.randn(1000)\n" * 8),
    "16 lines of code that teaches")
CASES["code that is no Python"] = (TEXT.replace("fast = signed_log(vector)",
                                                "fast = signed_log(vector"),
                                   "`fast = signed_log(vector`: '(' was never closed")
CASES["trap after the quiz"] = (TEXT.replace('# %% [markdown] role="gpu"',
                                             '# %% [markdown] trap="01.6" role="situation"\n'
                                             '# ## Late\n\n# %% [markdown] role="gpu"', 1),
                                "trap, quiz, trap, gpu")
CASES["unexplained choice"] = (re.sub(
    r" :: `eval\(\)` switches BatchNorm, and `no_grad` does not\.", "", TEXT), "not explained")


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


# In a draft, a missing or too long part is only a note; all else is refused there, too.
MISSING = {"missing role in a trap", "look without a claim", "one hint", "no gpu part", "no guess",
           "no core path", "a hook that counts fewer traps",
           "a hook that counts in another word", "no fault", "a fault of a paragraph",
           "a fault that is a sentence",
           "an output above the question", "a band of a factor of five",
           "somebody quoted, unsaid who is right", "nobody quoted",
           "two claims in the line of a trap", "seven claims in a row",
           "something folded, unsaid what", "four hundred open words", "five pictures",
           "a core path that needs a trap off it",
           "code beside the guess", "guess that nothing comes back to", "measured twice",
           "measured beside other code",
           "number that nobody measured", "placeholder", "long line", "long cell",
           "code that teaches and claims", "a function beside a claim", "sixteen lines that teach"}


def test_what_only_measures_is_folded_and_what_teaches_is_not(tmp_path):
    cells = {c.id: c for c in all_views(read(tmp_path, TEXT))["lesson"].cells}
    folded = {id for id, c in cells.items() if c.metadata.get("jupyter") == {"source_hidden": True}}
    # Claims; the counter, which is tagged plumbing; a figure.
    assert {"01-2-look-3", "01-5-look-1", "01-4-why-2"} <= folded
    assert not folded & {"01-2-look-1", "01-2-break-1", "01-5-repair-1"}
    assert "nbval-check-output" in cells["01-2-look-1"].metadata.tags
    assert "nbval-check-output" not in cells["01-2-look-3"].metadata.tags


def test_the_steps_of_a_trap_are_headings_in_the_lesson_alone(tmp_path):
    views = all_views(read(tmp_path, TEXT))
    found = [c.source.partition("\n\n**")[0] for c in views["lesson"].cells
             if c.metadata["dlsys"].get("trap") == "01.2" and c.cell_type == "markdown"
             and c.source.startswith("#")]
    assert found[0].startswith("## Trap 01.2 (core): An alarm at one half\n\nYou train")
    assert found[1:] == ["### The code", "### Guess", "### Look",
                         "### Why: a logit is cut at 0.5 as if it were a probability", "### Repair",
                         "### More: a threshold at logit 0 \u00b7 the eights that are still missed "
                         "\u00b7 a sigmoid inside the model \u00b7 told and measured (7 claims)",
                         "### Your turn", "### Keep"]
    for view in ("exercise", "solution"):
        assert not [c for c in views[view].cells if c.metadata["dlsys"]["role"] == "step"]


def test_a_lesson_says_what_its_helpers_are_before_it_uses_them(tmp_path):
    views = all_views(read(tmp_path, TEXT))
    cells = [c.id for c in views["lesson"].cells]
    [note] = [c for c in views["lesson"].cells if c.id == "stage-note-1"]
    assert cells[cells.index("stage-note-1") + 1:][:3] == [
        "stage-words-1", "stage-install-1", "stage-setup-1"]
    assert all(f"`{name}" in note.source for name in ("claim(", "fit`", "digits(", "accuracy`"))
    assert "stage-note-1" not in [c.id for c in views["exercise"].cells]


def test_a_line_before_the_first_cell_leads_past_the_ideas_to_the_first_trap(tmp_path):
    source = read(tmp_path, TEXT)
    line, _, rest = views.note(source, all_views(source)["lesson"].cells).partition("\n\n")
    assert f"its first trap, {views.to_trap(source, source.traps[0])}. In" in line
    assert rest.startswith("**Before the first cell**")


def test_the_way_past_the_ideas_leads_to_a_trap_that_a_copy_of_the_core_path_holds(tmp_path):
    situation = 'trap="01.2" role="situation" core=true'
    text = TEXT.replace(situation, situation.removesuffix(" core=true"))
    source = read(tmp_path, text, draft=True)
    [line] = views.past_the_ideas(source)
    assert f"the first trap of its core path, {views.to_trap(source, '01.4')}. In" in line


def test_a_line_before_the_first_cell_names_the_core_path_and_its_minutes(tmp_path):
    source = read(tmp_path, TEXT)
    [line] = views.short_way(source, all_views(source)["lesson"].cells)
    assert re.match(r"- The core path is \[01\.2 .*: about [\d to]+ minutes to read, 45 for its "
                    r"exercises\.", line)


def test_a_stage_whose_traps_are_all_core_says_so_with_its_minutes(tmp_path):
    off = 'trap="01.5" role="situation"'
    source = read(tmp_path, TEXT.replace(off, f"{off} core=true"))
    [line] = views.short_way(source, all_views(source)["lesson"].cells)
    assert re.fullmatch(r"- All 5 traps of this stage are on the core path: about [\d to]+ minutes "
                        r"to read, 55 for the exercises\.", line)


def test_a_lesson_that_begins_with_a_trap_has_no_ideas_to_skip(tmp_path):
    first, last = TEXT.index('# %% [markdown] role="concept"'), TEXT.index('role="situation"')
    bare = read(tmp_path, TEXT[:first] + TEXT[TEXT.rindex("# %%", 0, last):], draft=True)
    assert views.past_the_ideas(bare) == []
    assert views.note(bare, []).startswith("**Before the first cell**")


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
        assert says in "\n".join(notes)
        return
    with pytest.raises(lessons.RuleBroken) as refused:
        read(tmp_path, text, draft=True)
    assert says in str(refused.value)


def test_a_draft_may_lack_every_part_of_a_trap_but_its_heading(tmp_path):
    text = cut('# %% trap="01.2" role="break"',
               '# %% [markdown] role="concept"\n# ## What the activation buys')
    source = read(tmp_path, text, draft=True)
    assert "no break, guess, look, why, repair, exercise, hint, keep" in source.notes[0]
    assert "no cell that asks for a guess" in source.notes[1]
    assert "check 01.2 has no exercise" in source.notes[2]
    sheet = all_views(source)["exercise"].cells
    assert [c.metadata["dlsys"]["trap"] for c in sheet if c.id.endswith("-check-1")] == [
        "01.4", "01.3", "01.1", "01.5"]


def test_a_draft_says_so_first_and_prints_its_verdicts(tmp_path):
    views = all_views(read(tmp_path, TEXT, draft=True))
    for book in views.values():
        assert book.metadata["dlsys"]["draft"] is True
        assert book.cells[0].source.startswith("**Draft")
        assert book.cells[1].source.startswith("# ")
    checks = [c.source for c in views["solution"].cells if c.metadata["dlsys"]["role"] == "check"]
    assert checks[0].endswith('print(run_check("01.2", to_probs).line())')
    assert len(checks) == 5


def test_a_lesson_is_built_beside_another_one_that_is_broken(tmp_path, monkeypatch):
    read(tmp_path, TEXT)
    (tmp_path / "lessons" / "02_backpropagation.py").write_text("# %%\nhalf edited", "utf-8")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert [source.stage for source in build.sources_of(["01"])] == [1]


def test_a_check_that_cannot_be_imported_is_refused_with_its_line(tmp_path, monkeypatch):
    def broken(_):
        raise ValueError("exercise: got 'x', expected an id")
    monkeypatch.setattr(lessons.registry, "of_stage", broken)
    with pytest.raises(lessons.RuleBroken, match="s01/ cannot be imported: ValueError: exer"):
        read(tmp_path, TEXT)


def test_a_trap_with_fewer_than_four_questions_lacks_some(tmp_path, monkeypatch):
    asked = questions.about("01.5")
    monkeypatch.setitem(questions._GENERATORS, "01.5", asked[:3])
    [note] = read(tmp_path, TEXT, draft=True).notes
    assert note.startswith("trap 01.5 has 3 questions for review, expected 4 or more. Write")
    with pytest.raises(lessons.RuleBroken, match="has 3 questions for review"):
        read(tmp_path, TEXT)


def test_questions_that_cannot_be_imported_are_refused(tmp_path, monkeypatch):
    def broken(_):
        raise NameError("name 'asks' is not defined")
    monkeypatch.setattr(lessons.questions, "about", broken)
    with pytest.raises(lessons.RuleBroken, match="questions/ cannot be imported: NameError: name"):
        read(tmp_path, TEXT)


def test_renamed_file_is_refused(tmp_path):
    with pytest.raises(lessons.RuleBroken, match=r"01_activations\.py"):
        read(tmp_path, TEXT, "01_neurons.py")


def test_the_shipped_lesson_is_accepted(tmp_path):
    assert read(tmp_path, TEXT).traps == ["01.2", "01.4", "01.3", "01.1", "01.5"]


def test_generated_files_are_what_the_lessons_say():
    assert build.stale(build.sources_of([])) == []


def test_the_start_page_stores_no_map():
    """The map differs for each learner, and changes with every new lesson."""
    path = build.ROOT / "notebooks" / "00_start_here.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    stored = [cell.outputs for cell in cells if cell.cell_type == "code"]
    assert len(stored) > 2
    assert not any(stored)


def test_jupyterlab_runs_the_start_page_as_it_is_when_it_opens():
    """JupyterLab does so only if it knows the call in every code cell."""
    script = build.ROOT / "src/dlsys/labextensions/dlsys-reading/static/remoteEntry.js"
    own = re.compile(re.search(r"const OWN = /(.+)/;", script.read_text("utf-8"))[1])
    path = build.ROOT / "notebooks" / "00_start_here.ipynb"
    codes = [cell.source.strip() for cell in nbformat.read(path, as_version=4).cells
             if cell.cell_type == "code"]
    assert [code for code in codes if not own.search(code)] == []
    assert not own.search("import os\nos.remove('mine')\nnext_step()")


def test_a_stage_that_is_gone_leaves_a_catalog_that_is_out_of_date():
    (source,) = build.sources_of(["01"])
    assert "src/dlsys_helpers/catalog/02.json" in build.stale([source])


# ---- stored outputs

def stored(view="lesson"):
    """A notebook of the lesson as it would be stored after a run."""
    book = all_views(lessons.Source(LESSON))[view]
    for n, cell in enumerate(stored_outputs.code_cells(book)):
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"kept {n}\n")]
    return book


def rebuilt(tmp_path, text, view="lesson"):
    return all_views(read(tmp_path, text))[view]


PROSE = {"a trap": ("Each step looks like", "Every step looks like"),
         "a quiz": ("`eval()` switches BatchNorm, and", "`eval()` switches it, and"),
         "a hint": ("# 1. You need no", "# 1. Think: you need no"),
         "a symptom": ('symptom="', 'symptom="my ')}


@pytest.mark.parametrize("view", ["lesson", "solution"])
@pytest.mark.parametrize("change", PROSE.values(), ids=PROSE)
def test_outputs_are_kept_where_only_prose_changed(tmp_path, monkeypatch, view, change):
    text = TEXT.replace(*change)
    assert text != TEXT
    book = rebuilt(tmp_path, text, view)
    nbformat.write(stored(view), tmp_path / "old.ipynb")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "run", None)  # runs nothing
    assert build.with_outputs(book, "old.ipynb", again=False) == "outputs kept, no code changed"
    assert [c.outputs[0].text for c in stored_outputs.code_cells(book)] == [
        f"kept {n}\n" for n in range(len(stored_outputs.code_cells(book)))]


@pytest.fixture(scope="module")
def figure():
    """Makes a PNG, in base64, of a curve under a title."""
    plots.use_house_style()

    def draw(title: str = "The loss falls to 0.13", factor: float = 1.0) -> str:
        axes = plots.new_axes(title, "step", "loss")
        axes.plot(range(50), [factor * (1 - n / 55) for n in range(50)])
        png = plots.picture(axes.figure)
        plots.plt.close(axes.figure)
        return base64.b64encode(png).decode()
    return draw


def with_picture(png: str, printed: str = "loss 0.13", code: str = "plot()"):
    """A notebook of one cell that prints a line and draws."""
    cell = new_cell("code", "01-1-look-1", code, role="look")
    cell.outputs = [nbformat.v4.new_output("stream", text=printed),
                    nbformat.v4.new_output("display_data", {"image/png": png})]
    return nbformat.v4.new_notebook(cells=[cell])


def test_a_picture_that_looks_as_it_did_keeps_its_bytes(figure):
    old, new = figure(), figure(factor=1 + 1e-5)
    assert old != new
    book = with_picture(new)
    assert stored_outputs.keep_pictures(book, with_picture(old)) == ["01-1-look-1"]
    assert book.cells[0].outputs[1].data["image/png"] == old


@pytest.mark.parametrize("change", [
    {"png": {"title": "The loss falls to 0.18"}}, {"png": {"factor": 0.99}},
    {"printed": "loss 0.14"}, {"code": "plot(1)"}], ids=str)
def test_a_picture_of_something_else_gets_its_own_bytes(figure, change):
    new = figure(**change.pop("png", {"factor": 1 + 1e-5}))
    book = with_picture(new, **change)
    assert stored_outputs.keep_pictures(book, with_picture(figure())) == []
    assert book.cells[0].outputs[1].data["image/png"] == new


CODE = {"a number": ("torch.randn(1000)", "torch.randn(1001)"),
        "a claim's text": ('claim("accuracy of the alarm', 'claim("accuracy of this alarm'),
        "a comment": ("vector = torch.randn(1000)\n", "vector = torch.randn(1000)  # new\n"),
        "the order of cells": ('claim("accuracy of the alarm", right, above=0.9)\n',
                               'claim("accuracy of the alarm", right, above=0.9)\n\n'
                               '# %% trap="01.2" role="look"\n')}


@pytest.mark.parametrize("change", CODE.values(), ids=CODE)
def test_a_lesson_runs_where_code_changed(tmp_path, change):
    text = TEXT.replace(*change)
    assert text != TEXT
    assert stored_outputs.changes(all_views(lessons.Source(write(tmp_path, text)))["lesson"],
                                  stored()) == ["code"]


PARTS = {"a helper": "dlsys_helpers.train", "how a claim is shown": "dlsys_helpers.cards",
         "a pinned version": "torch", "another package": "requirements.lock",
         "a GPU record": "GPU records"}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_lesson_runs_where_what_it_rests_on_changed(part):
    old, new = stored(), stored()
    assert stored_outputs.changes(new, old) == []
    assert part in new.metadata["dlsys"]["rests_on"]
    new.metadata["dlsys"]["rests_on"][part] = "other"
    assert stored_outputs.changes(new, old) == [part]


def test_a_lesson_runs_where_its_stored_outputs_were_edited():
    old = stored()
    cell = stored_outputs.code_cells(old)[0]
    cell.outputs = [nbformat.v4.new_output("stream", text="0.97")]
    stored_outputs.sign(old)
    assert stored_outputs.changes(stored(), old) == []
    cell.outputs[0].text = "0.98"
    assert stored_outputs.changes(stored(), old) == ["outputs"]


def test_every_built_notebook_is_signed():
    for folder in ("notebooks", "solutions"):
        for path in sorted((ROOT / folder).glob("[01][1-9]_*.ipynb")):
            book = nbformat.read(path, as_version=4)
            assert "outputs" in book.metadata["dlsys"], path.name
            assert stored_outputs.edited(book) == [], path.name


def test_a_notebook_without_a_note_of_what_it_rests_on_runs():
    """A notebook that failed in a draft is stored without this note."""
    old = stored()
    del old.metadata["dlsys"]["rests_on"]
    assert "code" in stored_outputs.changes(stored(), old)


@pytest.mark.parametrize("change", [("return x", "return 1 * x"), ("points=4", "points=5")])
def test_worked_answers_run_where_an_answer_or_its_points_changed(tmp_path, change):
    """The verdict on the page names the points."""
    text = TEXT.replace(*change)
    assert text != TEXT
    assert stored_outputs.changes(rebuilt(tmp_path, text, "solution"), stored("solution"))


def test_worked_answers_rest_on_the_checks_of_their_stage_and_what_these_import(monkeypatch):
    old = stored("solution")
    assert "checks" not in stored().metadata["dlsys"]["rests_on"]
    real = stored_outputs.fingerprints.source
    for module in ("dlsys_checks.s01.e3_grad_ratio", "dlsys_helpers.expect"):
        monkeypatch.setattr(stored_outputs.fingerprints, "source",
                            lambda name, other=module: real(name) + "x = 1\n" * (name == other))
        assert "checks" in stored_outputs.changes(stored("solution"), old)


@pytest.mark.parametrize("part", ["dlsys_helpers.explorers.activations",
                                  "explorers/explorer.js", "torch"])
def test_stored_picture_of_a_changed_explorer_is_out_of_date(part):
    book = all_views(lessons.read(LESSON))["lesson"]
    assert stored_outputs.stale_pictures(book) == []
    book.metadata["dlsys"]["rests_on"][part] = "as it was when the picture was stored"
    found = stored_outputs.stale_pictures(book)
    assert f"explorer activations ({part})" in found
    assert len(found) == (1 if part.endswith("activations") else 3)


def test_a_changed_helper_or_prose_leaves_pictures_alone():
    book = all_views(lessons.read(LESSON))["lesson"]
    book.metadata["dlsys"]["rests_on"] |= {"dlsys_helpers.train": "older", "code": "older"}
    assert stored_outputs.stale_pictures(book) == []


def test_the_code_of_a_question_and_of_its_answer_is_folded():
    """The code gives the answer away: the index of the right choice, or a range."""
    cells = [c for c in all_views(lessons.read(LESSON))["lesson"].cells
             if c.source.startswith(("guess(", "# Back to your guess.\nmeasured("))]
    assert len(cells) == 10
    for cell in cells:
        assert cell.metadata["jupyter"] == {"source_hidden": True}
        assert "nbval-check-output" not in cell.metadata["tags"]
        assert ("guess" in cell.metadata["tags"]) == cell.source.startswith("guess(")


def test_what_explorers_say_is_compared():
    cells = all_views(lessons.read(LESSON))["lesson"].cells
    tags = [c.metadata["tags"] for c in cells
            if c.cell_type == "code" and c.metadata["dlsys"]["role"] == "explore"]
    assert len(tags) == 3
    assert all("nbval-check-output" in found for found in tags)


def test_same_source_same_bytes():
    first, second = ([as_text(canonical(book)) for book in all_views(
        lessons.read(LESSON)).values()] for _ in range(2))
    assert first == second


def test_ids_are_unique_and_survive_an_inserted_stage_cell():
    views = all_views(lessons.read(LESSON))
    for book in views.values():
        ids = [c.id for c in book.cells]
        assert len(set(ids)) == len(ids)
    assert "01-3-break-1" in [c.id for c in views["lesson"].cells]


def test_worksheet_has_a_check_for_each_exercise_and_hints_are_folded():
    cells = all_views(lessons.read(LESSON))["exercise"].cells
    checks = [c.source.removeprefix("from dlsys_helpers import check\n\n") for c in cells
              if c.metadata["dlsys"]["role"] == "check"]
    assert checks == ['check("01.2", to_probs)', 'check("01.4", dead_units)',
                      'check("01.3", grad_ratio)', 'check("01.1", predict)',
                      'check("01.5", soft_threshold)']
    hints = [c.source for c in cells if c.metadata["dlsys"]["role"] == "hint"]
    assert all(h.count("<details>") == 3 for h in hints)


def test_quiz_choices_fold_and_say_which_is_right():
    quiz = [c.source for c in all_views(lessons.read(LESSON))["lesson"].cells
            if c.metadata["dlsys"]["role"] == "quiz" and "<details" in c.source]
    assert len(quiz) == 5
    assert all(q.count("<strong>Right.</strong>") == 1 for q in quiz)


def test_worksheet_version_changes_with_a_stub_and_not_with_prose(tmp_path):
    def version(text):
        book = all_views(read(tmp_path, text))["exercise"]
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


# ---- a cell that fails

FAILS = {
    "in the cell": ("x = 1\ny = x / 0\n", "line 2, `y = x / 0`: ZeroDivisionError: "
                    "division by zero"),
    "in a function of another cell": ("1 + 1\nhalf(0)", "line 2, `half(0)`: ZeroDivisionError: "
                                      "division by zero"),
    "in a helper": ("digits(size=3)", "line 1, `digits(size=3)`: TypeError: digits() got an "
                    "unexpected keyword argument 'size'"),
    "inside a module": ("x = 1\n\njson.loads('{')", "line 3, `json.loads('{')`: JSONDecodeError: "
                        "Expecting property name enclosed in double quotes: line 1 column 2 "
                        "(char 1) (raised in decoder.py, line"),
    "a claim": ("claim('one is two', 1,\n      expected=1)\nclaim('one is three', 1,\n"
                "      expected=3)", "line 3, `claim('one is three', 1,`: ClaimFailed: one is "
                "three: got 1, expected 3."),
}


@pytest.fixture(scope="module")
def failed():
    """What the builder says of each of these cells, all run in one kernel."""
    setup = "import json\nfrom dlsys_helpers import claim, digits\n\ndef half(x):\n    return 1 / x"
    cells = [new_cell("code", "stage-setup-1", setup, role="setup")]
    cells += [new_cell("code", f"01-1-look-{n}", code, role="look")
              for n, (code, _) in enumerate(FAILS.values(), 1)]
    for cell in cells[1:]:
        cell.metadata["tags"].append("raises-exception")  # so that the next one still runs
    book = nbformat.v4.new_notebook(cells=cells)
    execution.run(book, "notebooks/failing.ipynb")
    return {name: execution.failure(nbformat.v4.new_notebook(cells=[cell]))
            for name, cell in zip(FAILS, cells[1:], strict=True)}


@pytest.mark.parametrize("name", FAILS)
def test_a_failed_cell_is_shown_with_its_name_its_line_and_the_error(failed, name):
    cell = f"cell 01-1-look-{[*FAILS].index(name) + 1}, "
    assert failed[name].startswith(cell + FAILS[name][1])
    assert "\n" not in failed[name]


def draft_that_fails(tmp_path, monkeypatch, run):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "run", run)
    return build.build_draft(write(tmp_path, TEXT), again=False)


def test_a_draft_that_fails_is_written_and_says_what_failed_beside_what_it_lacks(
        tmp_path, monkeypatch, capsys):
    def run(book, name):
        raise execution.CellFailed(f"{name}, cell 01-1-look-1, line 1, `1 / 0`: ZeroDivisionError")
    assert draft_that_fails(tmp_path, monkeypatch, run) == 1
    said = capsys.readouterr().out
    assert "lacks 2 things:\n  drafts/notebooks/01_activations.ipynb, cell 01-1-look-1" in said
    assert "drafts/solutions/01_activations.ipynb, cell" in said
    assert "Next, in this order:" in said
    book = nbformat.read(tmp_path / "drafts/notebooks/01_activations.ipynb", as_version=4)
    assert "rests_on" not in book.metadata["dlsys"]  # so that it runs again
    assert draft_that_fails(tmp_path, monkeypatch, lambda *_: None) == 0
    said = capsys.readouterr().out
    assert "notebooks/01_activations.ipynb: run: no outputs stored (" in said
    assert said.count("run: no outputs stored (") == 2


def test_a_draft_names_the_commands_that_come_next(tmp_path, monkeypatch, capsys):
    assert draft_that_fails(tmp_path, monkeypatch, lambda *_: None) == 0
    said = capsys.readouterr().out
    assert "01_activations.py lacks nothing.\nNext, in this order:\n  1. make try TRAP=01." in said


def test_a_lesson_that_fails_leaves_its_notebooks_as_they_were(tmp_path, monkeypatch):
    def run(book, name):
        raise execution.CellFailed("cell 01-1-look-1")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "run", run)
    with pytest.raises(execution.CellFailed):
        build.build(read(tmp_path, TEXT))
    assert not [*tmp_path.rglob("*.ipynb")]


def test_what_a_built_lesson_still_owes_is_named_with_its_command(monkeypatch):
    source = lessons.Source(LESSON)
    monkeypatch.setattr(build.sweep, "stale", lambda path: "")
    monkeypatch.setattr(build.proof, "fresh", lambda id: True)
    assert list(build.stale_records(source)) == []
    monkeypatch.setattr(build.sweep, "stale", lambda path: f"{path.stem}: make sweep")
    monkeypatch.setattr(build.proof, "fresh", lambda id: id != "01.5")
    swept, proven = build.stale_records(source)
    assert swept == "01_activations: make sweep"
    assert proven.endswith("not proven as they stand: 01.5. Run: make finish LESSON=01")
