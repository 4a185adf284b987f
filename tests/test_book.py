"""How the book is put together: formatting of cells, generated pages, settings, clear errors."""

import re
import socket
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from docutils import frontend, nodes, utils
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from dlsys import find
from dlsys.reading_time import NEW, PRACTISED
from dlsys_helpers import acting, judging
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import STAGES
from tools import (
    book,
    book_doors,
    book_finish,
    book_home,
    book_minutes,
    book_pages,
    book_sphinx,
    book_theme,
    gpu_tables,
    proof,
    social_cards,
)
from tools.stage_drawings import DRAWINGS, drawing


def cell(kind, source, role, outputs=(), **facts):
    made = (new_code_cell if kind == "code" else new_markdown_cell)(source)
    made.metadata.update({"dlsys": {"role": role, **facts}, "tags": [f"role-{role}"]})
    if kind == "code":
        made.outputs = list(outputs)
    return nbformat.from_dict(made)


def lesson(*cells, view="lesson"):
    return new_notebook(cells=list(cells), metadata={"dlsys": {"stage": 1, "view": view}})


# One pixel.
PNG = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5E"
       "rkJggg==")


def figure(**image):
    return new_output("display_data", {"image/png": PNG}, metadata={"image/png": image})


def docutils_document():
    return utils.new_document("page", frontend.get_default_settings())


def printed(text):
    return new_output("stream", name="stdout", text=text)


# ---- dressing

def test_a_step_is_framed_and_its_heading_stays_outside():
    framed = book.frame("## Title\n\nOne rule.", "keep")
    heading, opening, body, closing = (line for line in framed.split("\n") if line)
    assert heading == "## Title"
    assert opening.endswith("{div} role-keep")
    assert body == "One rule."
    assert closing == book.FENCE


@pytest.mark.parametrize("role", ["hook", "concept", "gpu", "summary", "situation", "why", ""])
def test_other_text_stays_as_it_is(role):
    assert book.frame("## Title\n\nText.", role) == "## Title\n\nText."


def test_only_questions_of_a_quiz_are_framed():
    question = "**1. Why?**\n\n<details class=\"quiz\"><summary>A</summary></details>"
    assert book.FENCE in book.frame(question, "quiz")
    assert book.frame("## Check yourself\n\nThink first.", "quiz").startswith("## Check yourself")
    assert book.FENCE not in book.frame("## Check yourself\n\nThink first.", "quiz")


def test_a_trap_gets_its_number_and_one_target():
    dressed = book.dress(lesson(
        cell("markdown", "## Trap 01.2 (core): A title\n\nGuess.", "situation", trap="01.2"),
        cell("markdown", "Because.", "why", trap="01.2")))
    first, second = (c.source for c in dressed.cells)
    assert first.startswith("(trap-01-2)=\n## 01.2 A title\n")
    assert "trap-01-2" not in second


def test_a_number_that_stands_there_is_not_repeated():
    assert book.numbered("## 01.2 A title", "01.2") == "## 01.2 A title"


def test_an_exercise_of_a_worksheet_is_a_target():
    sheet = lesson(cell("markdown", "# Worksheet", "setup"),
                   cell("markdown", "## 01.1 A title\n\n3 points.", "exercise", trap="01.1"),
                   view="exercise")
    assert book.dress(sheet).cells[1].source.startswith("(exercise-01-1)=\n")


def test_what_the_notebook_folds_is_folded_on_the_page():
    hidden = {"jupyter": {"source_hidden": True}}
    _, drawing, claimed, _ = cells = [
        cell("code", "import torch", "setup"),
        cell("code", "plot_lines(x)", "look", [figure(alt="A rising line.")], trap="01.1"),
        cell("code", "claim('it rises', x, above=0)", "look"), cell("code", "x = f(y)", "break")]
    for folded in (drawing, claimed):
        folded.metadata.update(hidden)
    book.dress(lesson(*cells))
    assert [c.metadata.mystnb.get("code_prompt_show") for c in cells] == [
        "Setup", "How it is drawn", "How this was measured", None]
    assert ["hide-input" in c.metadata.tags for c in cells] == [True, True, True, False]
    assert drawing.metadata.mystnb.image.alt == "A rising line."


def test_the_two_cells_of_the_set_up_have_different_names():
    values = cell("code", "SEED = 0", "setup")
    values.metadata.tags = ["parameters"]
    imports = cell("code", "import torch", "setup")
    book.dress(lesson(values, imports))
    assert [c.metadata.mystnb["code_prompt_show"] for c in (values, imports)] == [
        "Settings", "Setup"]


def test_a_cell_that_only_sets_a_name_says_which():
    steps, imports = cell("code", "STEPS = 40", "setup"), cell("code", "import torch", "setup")
    book.dress(lesson(steps, imports))
    assert [c.metadata.mystnb["code_prompt_show"] for c in (steps, imports)] == [
        "Settings: STEPS", "Setup"]


def test_folded_helpers_are_named_and_a_claim_says_how_it_was_measured():
    assert book.folded_prompt("import copy\n\ndef a(): ...\n\nclass B: ...") == "Helpers: a and B"
    claiming = "def a(): ...\nclaim('it holds', a(), above=1)"
    assert book.folded_prompt(claiming) == "How this was measured"
    assert book.folded_prompt("x = 1") == "How this was measured"


def test_an_order_that_is_not_that_of_the_numbers_is_explained():
    assert book.order_note(["09.1", "09.2", "09.3"]) == ""
    assert book.order_note(["09.1", "09.8", "09.2"]).endswith("so 09.8 follows 09.1.")


def step(text, name):
    made = cell("markdown", f"### {text}", "step", trap="01.2")
    made["id"] = f"01-2-{name}-step"
    return made


@pytest.mark.parametrize(("text", "name", "told"), [
    ("Look", "look", "Look"), ("Why: no `mask` at all", "why", "Why\n\n**No `mask` at all**"),
    ("More: a · b: c (2 claims)", "more", "More: a · b: c (2 claims)")])
def test_a_heading_of_a_step_becomes_the_mark_at_which_it_begins(text, name, told):
    _, marked = book.dress(lesson(cell("markdown", "## T", "situation", trap="01.2"),
                                  step(text, name))).cells
    assert marked.source == f"{book.FENCE}{{div}} step-mark step-{name}\n{told}\n{book.FENCE}"


def test_a_link_to_the_next_trap_leads_to_its_permanent_place():
    text = ("Next on the core path: [01.2 A title (old)](#Trap-01.2-(core):-A-title-(old)), "
            "[01.3 More](#Trap-01.3:-More).")
    shown = book.dress(lesson(cell("markdown", text, "setup"))).cells[0].source
    assert shown == ("Next on the core path: {ref}`01.2 A title (old) <trap-01-2>`, "
                     "{ref}`01.3 More <trap-01-3>`.")


def kids(node):
    """The children of a doctree node: class or tag name to text."""
    return {" ".join(c.get("classes", [])) or c.tagname: c.astext() for c in node.children}


def test_a_trap_becomes_a_pair_what_waits_and_a_way_on():
    def mark(name, text):
        return nodes.container("", nodes.paragraph("", text), classes=["step-mark", f"step-{name}"])
    section = nodes.section("", nodes.title("", "T"), nodes.paragraph("", "The situation."),
                            ids=["trap-01-1"])
    for name, text in (("break", "The code"), ("guess", "Guess"), ("look", "Look"),
                       ("why", "Why"), ("more", "More: a"), ("keep", "Keep")):
        section += [mark(name, text), nodes.paragraph("", f"{name} told.")]
    section += nodes.container("", nodes.paragraph("", "Next."), classes=["role-next"])
    document = docutils_document()
    document += section
    book_sphinx.group_steps(None, document)
    title, situation, pair, waits, following = section.children
    assert (title.astext(), situation.astext()) == ("T core", "The situation.")
    assert [*kids(pair)] == ["step step-break", "step step-guess"]
    assert [*kids(waits)] == ["step step-look", "step step-why", "step step-more",
                              "step step-keep"]
    assert waits.children[1].astext() == "Why\n\nwhy told."
    [fold] = waits.children[2].children
    assert isinstance(fold, book_sphinx.Fold)
    assert [c.tagname for c in fold.children] == ["FoldName", "paragraph"]
    assert following.astext() == "Next."


def test_a_figure_without_alt_text_is_refused():
    with pytest.raises(book.BookError, match="figure without alt text"):
        book.dress(lesson(cell("code", "plot()", "look", [figure()])))


def test_an_explorer_replaces_its_stored_picture():
    shown = book.dress(lesson(cell("code", "activations", "explore", [figure()],
                                   explorer="activations"))).cells[0]
    assert [list(o.data) for o in shown.outputs] == [["text/html"]]
    assert 'data-explorer="activations"' in shown.outputs[0].data["text/html"]
    assert "remove-input" in shown.metadata.tags


def test_many_frames_lie_beside_the_page_in_a_file_that_is_there(monkeypatch, tmp_path):
    size = {"tape": book.FRAMES_INSIDE + 1, "scalar_graph": 5}
    monkeypatch.setattr(book.frames, "RECORD",
                        SimpleNamespace(entry=lambda name: {"bytes": size.get(name, 0)}))
    pages = [book.dress(lesson(cell("code", name, "explore", [figure()], explorer=name)))
             .cells[0].outputs[0].data["text/html"] for name in ("tape", "scalar_graph")]
    book.write_frames(tmp_path)
    [made] = tmp_path.iterdir()
    assert re.fullmatch(r"tape-[0-9a-f]{8}\.js", made.name)
    assert [f'data-rest="../explorers/{made.name}"' in page for page in pages] == [True, False]


SHOWN = book_home.SHOWN_TRAP


def guess_cell():
    asked = new_output("display_data", {"text/plain": "Your guess: How many?\n  - a number, in %",
                                        "text/html": '<div data-guess="{}">How many?</div>'})
    made = cell("code", f'guess("{SHOWN}", "How many?", unit="%")', "guess", [asked], trap=SHOWN)
    made.metadata["tags"].append("guess")
    return made


def test_a_lesson_with_guesses_says_so_first_and_shows_forms_without_code():
    answer = cell("code", f'measured("{SHOWN}", 3)', "look", trap=SHOWN)
    answer.metadata["tags"].append("measured")
    hook, asked, told = book.dress(lesson(
        cell("markdown", "# 1. A title\n\nText.", "hook"), guess_cell(), answer)).cells
    heading, _, rest = hook.source.partition("\n")
    assert heading == "# 1. A title"
    assert rest.index("data-everything") < rest.index("Text.")
    assert "guess.js" in rest
    assert "remove-input" in asked.metadata.tags
    assert "remove-input" in told.metadata.tags


def test_a_page_without_guesses_has_no_button_for_them():
    [hook] = book.dress(lesson(cell("markdown", "# 1. A title\n\nText.", "hook"))).cells
    assert hook.source == "# 1. A title\n\nText."


def answered_cell():
    told = new_output("display_data", {"text/html": "<p data-measured='{}'>9 %</p>"})
    found = cell("code", f'measured("{SHOWN}", 9, right=(4, 12))', "look", [told], trap=SHOWN)
    found.metadata["tags"].append("measured")
    return found


def test_the_start_page_asks_a_trap_below_its_code_and_hides_the_answer():
    told = book_home.card(lesson(
        cell("markdown", "## Trap: A title\n\nYou deploy it.", "situation", trap=SHOWN),
        cell("code", "model = 0\n\nbroken = 1", "break", trap=SHOWN), guess_cell(),
        answered_cell()))
    places = [told.find(part) for part in ("You deploy it.", "broken = 1", "data-guess",
                                           "{div} waits", "9 %",
                                           f'data-repair="{SHOWN}"', "What the check says",
                                           f"traps/{SHOWN.replace('.', '-')}.md")]
    assert -1 not in places
    assert places == sorted(places)
    assert "model = 0" not in told


def test_the_start_page_leads_to_learning_looking_up_watching_and_teaching():
    links = re.findall(r'href="([^"]+)"', book_home.ways({1: lesson()}))
    assert links == ["notebooks/01_activations.html", "symptoms.html", "watch.html",
                     "instructors.html"]


def test_a_start_page_without_its_question_is_not_built():
    with pytest.raises(UserError, match="make build LESSON=01"):
        book_home.card(lesson(cell("code", "broken = 1", "break", trap=SHOWN), answered_cell()))


@pytest.mark.parametrize("phrase", book_home.PHRASES)
def test_the_finder_has_a_row_for_each_phrase_that_the_start_page_offers(phrase):
    assert find.rank(find.index(find.rows()), phrase).fits


def test_each_stage_has_a_drawing_of_its_own():
    assert len({drawing(s.number) for s in STAGES}) == len(STAGES) == len(DRAWINGS)


# ---- generated text

def test_essence_ends_at_the_last_number_and_drops_what_only_reports():
    code = ("a = f(x)\nclaim('a', a, above=0)\nb = [\n    1]  # kept\n"
            "print(\n    a, b)\nclaim('b', b)\nc = 1")
    assert book_pages.without_reports(code) == "a = f(x)\nb = [\n    1]  # kept"


def test_essence_of_code_without_a_print_is_all_of_it():
    silent = "a = 1\n\nb = 2\nmodel.eval()"
    assert book_pages.without_reports(silent) == silent


def test_told_and_measured_are_two_paragraphs():
    text = book_pages.told_and_measured("**Told:** it is.\n**Measured:** it is not.")
    assert text == "**Told:** it is.\n\n**Measured:** it is not."


def test_errata_collects_every_folklore_cell():
    page = book_pages.errata_page({1: lesson(
        cell("markdown", "**Told:** one.\n**Measured:** two.", "folklore", trap="01.1"),
        cell("markdown", "Not this.", "repair", trap="01.1"),
        cell("code", "claim('not this code', 1)", "folklore", trap="01.1"))})
    assert "not this code" not in page
    assert "{ref}" in page
    assert "<trap-01-1>" in page
    assert "**Told:** one." in page
    assert "Not this" not in page


def test_a_cell_of_a_table_cannot_break_it():
    row = book_pages.table(("a",), [("x | y\nz",)]).splitlines()[-1]
    assert row == "| x \\| y z |"


def test_text_from_a_check_is_shown_as_it_is():
    assert book_pages.plain("x[0] * `y` <b>") == r"x\[0\] \* \`y\` \<b\>"


def test_the_map_shows_every_stage_and_leads_only_to_written_ones():
    shown = book_home.stage_map({1: lesson()})
    assert all(f"<strong>{s.title.replace('&', '&amp;')}</strong>" in shown for s in STAGES)
    assert shown.count("<a ") == 1
    assert shown.count("Not written yet") == len(STAGES) - 1


@pytest.mark.parametrize("recorded", [0, 1, 2])
def test_the_page_of_gpu_evidence_counts_what_is_recorded(monkeypatch, recorded):
    entries = [{"key": f"s{n}/a", "notebook": "01_activations", "columns": ["n"],
                "state": "recorded" if n < recorded else "missing", "provenance": None}
               for n in range(2)]
    monkeypatch.setattr(book_pages.gpu_evidence, "evidence", lambda: entries)
    monkeypatch.setattr(book_pages, "record", lambda entry: "")
    assert f"on machines without one: {recorded} of 2 so far." in book_pages.gpu_page({})


def gpu_lesson(*lines):
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    head = "".join(f"<th>{name}</th>" for name in ("asked", "predicted, X", "measured", "claim"))
    return new_notebook(cells=[new_code_cell("", outputs=[new_output("display_data", {
        "text/html": f'<div class="dlsys-gpu"><table><thead><tr>{head}</tr></thead>'
                     f"<tbody>{rows}</tbody></table></div>"})])])


def test_a_figure_shows_each_number_over_its_prediction():
    lessons = {2: gpu_lesson(("peak: MB", "400", "404", ""), ("flash, the same", "2", "2", ""),
                             ("update: time", "1,000", "4,000", ""),
                             ("bytes held", "2", "2", ""),    # counted, not measured
                             ("copy", "1 or, by launches, 16", "1", ""), ("held", "0", "0", "")),
               3: gpu_lesson(("a < b: time", "2", "waits", ""), ("rate", "1", "0.01", ""))}
    page = book_pages.gpu_page(lessons)
    assert ("## Counted bytes were right within 20 % in 2 of 2 cases, other predictions in 0 of 2"
            in page)
    left, right = gpu_tables.LEFT, gpu_tables.WIDTH - gpu_tables.RIGHT
    # On a log scale, 4 is three quarters of the way from 1/16 to 16.
    at = left + 0.75 * (right - left)
    assert f'<circle cx="{at:.1f}"' in page
    assert f'<circle cx="{left:.1f}"' in page  # 1/100 is drawn at the edge
    assert page.count("<title>") == 4
    assert "| [3](notebooks/03_losses.ipynb) | rate | 1 | 0.01 |" in page
    assert page.index("| rate |") < page.index("| update: time |")


def test_a_cell_of_a_gpu_table_says_its_column_in_the_book():
    cell = gpu_lesson(("peak: MB", "400", "404", "")).cells[0]
    cell.outputs[0].data["text/html"] = cell.outputs[0].data["text/html"].replace(
        "<td>", '<td style="text-align:left;overflow-wrap:anywhere">')
    cell.metadata["tags"] = []
    book.dress_code(cell, {"role": "gpu"})
    assert ('<td data-label="measured" style="text-align:left">404</td>'
            in cell.outputs[0].data["text/html"])


def test_without_a_record_there_is_no_figure():
    assert "<svg" not in book_pages.gpu_page({2: new_notebook()})


def test_only_an_unfinished_course_is_written_so_far():
    all_of_them = {s.number: lesson() for s in STAGES}
    assert book_home.hours(all_of_them).startswith(f"The {len(STAGES)} stages take about ")
    assert book_home.hours({1: lesson()}).startswith("The 1 stage written so far takes about ")


def test_a_wrong_answer_that_passes_its_check_stops_the_book():
    lax = judging.Exercise("01.1", "predict")
    lax.act_fn, lax.law_fn = (lambda fn, x: fn(x)), (lambda out, x: None)
    cases = [acting.Case("a number", {"x": 3.0})]
    harmless = judging.WrongAnswer("harmless", abs, ("nothing",), "01.1")
    with pytest.raises(ValueError, match="Mend the check"):
        proof.feedback(lax, cases, harmless)


def test_reading_time_counts_words_and_the_code_that_is_read():
    text, code = "word " * (5 * PRACTISED.words), "x = 1\n" * (5 * PRACTISED.lines)
    assert book_minutes.of_lesson(lesson(cell("markdown", text, "concept"))) == 5
    assert book_minutes.of_lesson(lesson(cell("markdown", text, "concept"),
                                         cell("code", code, "break"))) == 10
    assert book_minutes.of_lesson(lesson(cell("code", code, "setup"))) == 0


def test_a_newcomer_reads_the_same_more_slowly():
    text, code = "word " * (10 * NEW.words), "x = 1\n" * (20 * NEW.lines)
    made = lesson(cell("markdown", text, "concept"), cell("code", code, "break"))
    assert book_minutes.of_newcomer(made) == 30
    assert book_minutes.of_lesson(made) == 25  # 7.3 for the words and 15 for the code
    assert book_minutes.between(made.cells) == "25 to 30"


def test_the_start_page_repeats_what_the_readme_asks_for():
    needs = book_home.requirements()
    assert all(word in needs for word in ("Linux", "make", "Python 3.11", "11 GB"))


@pytest.mark.parametrize("url", ["", "https://github.com/owner/course"])
def test_code_and_run_button_come_with_a_public_repository(url):
    links = book_home.code_links(book_doors.Home(url, "main", ""))
    assert (links == "") is (url == "")
    if url:
        assert f'href="{url}"' in links
        assert "/github/owner/course/blob/learner-copies/open/01_lesson.ipynb" in links


def test_an_exercise_leads_to_its_place_on_the_worksheet_and_back():
    assert "<exercise-01-2>" in book.link_across("3 points.", "trap", "01.2")
    assert "<trap-01-2>" in book.link_across("3 points.", "exercise", "01.2")


def test_a_guide_that_a_lesson_names_in_italics_is_a_link():
    assert book.link_guides("See *Which compression\nfirst*.") == (
        "See [Which compression first](../guide_compression.md).")
    assert book.link_guides("Which compression first, *dynamic*?") == (
        "Which compression first, *dynamic*?")
    told = [c for c in book.read(book.NOTEBOOKS / "11_compression.ipynb").cells
            if "](../guide_compression.md)" in book.link_guides(c.source)]
    assert [c.metadata.dlsys.role for c in told] == ["summary"]


# ---- formulas and the last hand

@pytest.mark.parametrize(("tex", "part"), [
    (r"\frac{a}{b}", "<mfrac>"), (r"\ln C", '<mi>ln</mi><mspace width="0.167em"/><mi>C</mi>'),
    (r"\ln(C)", "<mi>ln</mi><mo stretchy"), (r"\mathrm{sign}(g)", "<mi>sign</mi>")])
def test_a_formula_becomes_mathml(tex, part):
    assert part in book_sphinx.mathml(tex, "inline")


def test_a_formula_with_an_unknown_command_is_refused():
    with pytest.raises(ValueError, match="a command that MathML does not have"):
        book_sphinx.mathml(r"\frobnicate x", "inline")


def test_a_formula_may_break_at_its_relations_but_not_inside_braces():
    assert book_sphinx.pieces(r"a + b = c \leftarrow d") == ["a + b ", "= c ", r"\leftarrow d"]
    assert book_sphinx.pieces(r"\sum_{k=1} x") == [r"\sum_{k=1} x"]


def test_a_page_keeps_the_files_that_it_needs():
    assert book_theme.is_needed("../explorers/explorer.js?v=1", '<div data-explorer="x">')
    assert not book_theme.is_needed("../explorers/explorer.js", "<p>")
    assert book_theme.is_needed("_static/doctools.js", "<p>")
    assert not book_theme.is_needed("", "<p>")  # a script in the page


def test_punctuation_stays_with_the_formula_before_it():
    paragraph = nodes.paragraph("", "", nodes.math("x", "x"), nodes.Text("), then"),
                                nodes.math("y", "y"), nodes.Text(" is"))
    found = docutils_document()
    found += paragraph
    book_theme.hold_together(None, found)
    assert [node.get("behind") for node in found.findall(nodes.math)] == ["),", None]
    assert [node.astext() for node in paragraph.children[1::2]] == [" then", " is"]


def table(*rows):
    def row(cells):
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in cells))
    return nodes.table("", nodes.tgroup("", nodes.thead("", row(rows[0])),
                                        nodes.tbody("", *map(row, rows[1:]))))


def test_cells_of_rows_know_their_columns_and_others_do_not():
    found = docutils_document()
    found += nodes.container("", table("AB", "12", "34"), classes=["symptoms", "rows"])
    found += table("CD", "56")
    book_theme.finish_nodes(None, found, "page")
    labels = [entry.get("label") for body in found.findall(nodes.tbody)
              for entry in body.findall(nodes.entry)]
    assert labels == ["A", "B", "A", "B", None, None]


STYLE = """.used, .gone { color: red } .gone .used { color: red }
@media print { .gone { color: red } p { color: red } }
@media screen { .gone { color: red } }
@font-face { font-family: "Font Awesome" } .used::before { content: var(--pst-icon-x) }
"""


def test_a_style_sheet_keeps_what_some_element_may_meet(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "page.html").write_text('<p class="used">')
    (tmp_path / "_static" / "basic.css").write_text(STYLE)
    book_finish.slim(tmp_path)
    left = (tmp_path / "_static" / "basic.css").read_text()
    assert " ".join(left.split()) == (
        ".used, .gone { color: red }@media print {p { color: red }}")


def test_only_a_public_address_brings_a_site_map(tmp_path):
    (tmp_path / "index.html").write_text("")
    book_finish.write_robots(tmp_path, "")
    assert not (tmp_path / "sitemap.xml").exists()
    book_finish.write_robots(tmp_path, "https://a.example/")
    assert (tmp_path / "sitemap.xml").read_text().count("<loc>https://a.example/index.html<") == 1
    assert "Sitemap: https://a.example/sitemap.xml" in (tmp_path / "robots.txt").read_text()


def test_a_folder_of_pages_leads_to_its_page_and_lists_no_files(tmp_path):
    for name in ("index.html", "present.html", "present/01.html", "deep/er/02.html",
                 "_static/x.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    book_finish.write_indexes(tmp_path)
    for folder, page in (("present", "../present.html"), ("deep/er", "../../index.html")):
        text = (tmp_path / folder / "index.html").read_text("utf-8")
        assert f'content="0; url={page}"' in text
        assert f'<a href="{page}">' in text
        assert (tmp_path / folder / page).resolve().is_file()
    assert not (tmp_path / "_static" / "index.html").exists()
    assert (tmp_path / "index.html").read_text() == ""


@pytest.mark.parametrize("kind", [Path("00.png"), Path("12.png")])
def test_a_card_has_the_size_that_previews_of_links_ask_for(kind, tmp_path):
    social_cards.write_cards(tmp_path)
    with Image.open(tmp_path / kind) as card:
        assert card.size == (1200, 630)
        assert len(card.convert("RGB").getcolors(1 << 20)) > 10
    assert len([*tmp_path.iterdir()]) == 1 + len(STAGES)


def test_a_page_shows_the_card_of_its_stage():
    pages = ("index", "traps", "notebooks/08_transformers", "traps/11-3", "your_model")
    assert [book_sphinx.stage_of(page) for page in pages] == [0, 0, 8, 11, 0]


# ---- settings and errors

@pytest.mark.parametrize(("url", "buttons"), [("", False), ("https://github.com/o/r", True)])
def test_one_setting_brings_the_button_of_the_repository(url, buttons):
    config = book.settings({"repository": {"url": url}, "html": {}})
    assert ("use_repository_button" in config["html"]) is buttons


def test_without_notebooks_it_says_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr(book, "NOTEBOOKS", tmp_path)
    with pytest.raises(book.BookError, match="Run: make build"):
        book.build(tmp_path)


@pytest.mark.parametrize("text", ["", "not json", '{"cells": ['])
def test_a_damaged_notebook_is_named(monkeypatch, tmp_path, text):
    monkeypatch.setattr(book, "ROOT", tmp_path)
    (tmp_path / "x.ipynb").write_text(text)
    with pytest.raises(book.BookError, match=r"x\.ipynb: not a notebook"):
        book.read(tmp_path / "x.ipynb")


def test_a_busy_port_gets_one_clear_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(book.BookError, match=f"port {port}: .* Choose another one"):
            book.serve(tmp_path, port)


def test_a_warning_of_jupyter_book_stops_the_build(tmp_path):
    source = tmp_path / "_build" / "source"
    source.mkdir(parents=True)
    (source / "_config.yml").write_text("title: x\n")
    (source / "_toc.yml").write_text("format: jb-book\nroot: index\n")
    (source / "index.md").write_text("# Title\n\n[nowhere](missing.md)\n")
    with pytest.raises(book.BookError, match=r"missing\.md"):
        book.render(tmp_path)


@pytest.mark.parametrize("page", sorted(Path(__file__).parents[1].glob("book/*.md")),
                         ids=lambda page: page.stem)
def test_nothing_on_a_page_is_wider_than_a_phone(page):
    """The browser visits one page of each kind, but any page can have a width in pixels."""
    wide = re.findall(r"width(?:=\"|:\s*)(\d+)(?:px|\")", page.read_text("utf-8"))
    assert [w for w in map(int, wide) if w > 360] == []


@pytest.mark.parametrize("page", sorted(Path(__file__).parents[1].glob("book/*.md")),
                         ids=lambda page: page.stem)
def test_what_stands_above_a_page_is_yaml(page):
    """Front matter wrapped like a paragraph stops the build of the whole book."""
    text = page.read_text("utf-8")
    if text.startswith("---\n"):
        above = yaml.safe_load(text.split("---\n")[1])
        assert isinstance(above, dict)
        assert set(above) <= {"myst", "html_theme.sidebar_secondary.remove"}
    else:
        assert text.startswith("# ")
