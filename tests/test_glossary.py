"""No word comes before its explanation: glossary, lists at the top of lessons, links."""

import re

import nbformat
import pytest

from dlsys import cli, glossary, reading_time
from dlsys_helpers import paths
from tools import book, book_glossary, build, lessons, words

SOURCES = {source.stage: source for source in map(lessons.Source, paths.lessons()) if source.stage}

# What a beginner (Python and scikit-learn, no PyTorch) found unexplained in stages 1 and 2.
UNEXPLAINED = """
Adam|optimizer|loss|batch|perceptron|nn.Sequential|.numel|.parameters|feature|BatchNorm|dropout|
no_grad|running mean|graph|mask|stored statistics|requires_grad|state_dict|cross-entropy|softmax|
F.binary_cross_entropy_with_logits|[:, None]|gradient|norm|SGD|F.cross_entropy|
torch.autograd.grad|fan_in|He init|Xavier|kaiming_normal_|gain|leaky ReLU|GELU|momentum|
weight decay|detach|kernel|tensor core|torch.compile|leaf|grad_fn|next_functions|.step|reduction
""".replace("\n", "").split("|")


@pytest.mark.parametrize("word", UNEXPLAINED)
def test_every_word_that_a_beginner_missed_has_a_clause(word):
    assert glossary.named(word)


def test_the_glossary_is_whole_and_no_term_stands_twice():
    names = [term.name for term in glossary.terms()]
    assert len(names) == len({*names}) >= 150
    assert len({words.anchor(term) for term in glossary.terms()}) == len(names)


def test_a_clause_is_short_and_ends_without_a_point():
    long = [term.name for term in glossary.terms()
            if len(term.clause.split()) > 25 or term.clause.endswith(".")]
    assert long == []


@pytest.mark.parametrize("number", SOURCES)
def test_each_term_is_named_where_the_glossary_says_that_it_is_explained(number):
    assert words.lost(SOURCES[number].cells, number) == []


@pytest.mark.parametrize("number", SOURCES)
def test_a_lesson_lists_what_it_uses_before_its_explanation(number):
    [path] = paths.NOTEBOOKS.glob(f"{number:02}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    told = "".join(cell.source for cell in notebook.cells if cell.id == "stage-words-1")
    assert [term.name for term in words.ahead(SOURCES[number].cells, number)
            if term.clause not in told] == []


@pytest.mark.parametrize("number", range(1, 13))
def test_no_word_comes_unexplained_who_reads_the_stages_in_order(number):
    """Every glossary word that a stage uses is known, listed, or explained right there."""
    cells, here = SOURCES[number].cells, words.sections(SOURCES[number].cells, number)
    listed = {term.name for term in words.ahead(cells, number)}
    for term in glossary.terms():
        used = [at for at, cell in enumerate(cells) if words.uses(cell, term)
                and words.facts(cell)["role"] != "hook"]
        if used and term.name not in listed:
            assert 0 < term.stage < number or here.index(term.where) <= used[0], term.name


def cell(text, role="concept", kind="markdown", **facts):
    made = (nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell)(text)
    made.metadata = nbformat.NotebookNode({"role": role, **facts})
    return made




def test_a_word_is_ahead_of_its_place_and_known_from_there_on():
    early, late = cell("Some momentum helps."), cell("*momentum* is a sum", "why", trap="02.1")
    named = [term.name for term in words.ahead([early, late], 2)]
    assert "momentum" in named
    assert "momentum" not in [term.name for term in words.ahead([late, early], 2)]
    assert "momentum" not in [term.name for term in words.ahead([early], 3)]
    assert "momentum" in [term.name for term in words.ahead([early], 1)]


def test_the_top_of_a_lesson_may_name_what_it_will_explain():
    top, late = cell("momentum", "hook"), cell("*momentum* is a sum", "why", trap="02.1")
    assert words.ahead([top, late], 2) == []
    assert [term.name for term in words.ahead([top], 1)] == ["momentum"]


@pytest.mark.parametrize("text", ["# Momentum", "$momentum$", "[momentum](a.md)", "`no momentum`",
                                  "<b momentum>", "micro-momentum", "momentums3",
                                  "**Source:** momentum"])
def test_a_heading_a_formula_a_link_or_code_is_no_use_of_a_word(text):
    assert "momentum" not in [term.name for term in words.ahead([cell(text)], 1)]


def test_what_is_folded_uses_no_word():
    assert words.ahead([cell("momentum", "more", trap="01.1")], 1) == []


def test_a_call_is_used_by_code_and_by_the_text():
    code, text = cell("y = x.squeeze(1)", kind="code"), cell("It calls `x.squeeze(1)`.")
    for one in (code, text):
        assert [term.name for term in words.ahead([one], 1)] == ["`.squeeze`"]
    assert words.ahead([cell("y = squeezed(x)", kind="code")], 1) == []


def test_a_place_that_does_not_name_its_term_is_told():
    lost = words.lost([cell("## One neuron draws a line"), cell("Nothing.")], 1)
    assert "glossary.csv explains perceptron in 'lesson 01: One neuron draws a line', which does " \
        "not name it." in lost
    assert any("which is not there" in line for line in lost)


def test_the_builder_refuses_a_lesson_that_lost_a_word(monkeypatch):
    monkeypatch.setattr(words, "lost", lambda cells, number: ["glossary.csv explains a in b."])
    with pytest.raises(lessons.RuleBroken, match=r"01_activations.py: glossary.csv explains a"):
        build.sources_of(["1"])


def test_the_first_use_leads_to_the_glossary_and_the_text_stays():
    cells = [cell("## Momentum\n\nIt is `momentum`, and momentum."), cell("Momentum again.")]
    before = [one.source for one in cells]
    words.linked(cells, 1)
    link = '<a class="word" href="../glossary.html#word-momentum">`momentum`</a>'
    assert cells[0].source.count(link) == 1
    assert [re.sub(r"</?a[^>]*>", "", one.source) for one in cells] == before


def test_a_word_has_no_link_where_it_is_explained():
    cells = [cell("*momentum* is a sum", "why", trap="02.1")]
    words.linked(cells, 2)
    assert "<a" not in cells[0].source


def test_a_page_leads_to_terms_that_the_glossary_has():
    [path] = paths.NOTEBOOKS.glob("04_*.ipynb")
    notebook = book.dress(nbformat.read(path, as_version=4))
    targets = {target for cell in notebook.cells
               for target in re.findall(r"glossary\.html#([\w-]+)", cell.source)}
    page = book_glossary.page()
    assert len(targets) > 20
    assert targets <= {*re.findall(r'id="([\w-]+)"', page)}
    assert page.count("\n| ") == len(glossary.terms()) + 2


def test_the_list_of_words_adds_no_time_to_read():
    listed = nbformat.v4.new_markdown_cell("word " * 1500)
    listed.metadata["dlsys"] = {"role": "words"}
    assert reading_time.minutes([listed]) == 0


@pytest.mark.parametrize("word", ["momentum", "batchnorm", "kv cache", "GELU", "F.cross_entropy"])
def test_find_says_what_a_word_means(word, capsys):
    [term, *_] = glossary.named(word)
    assert cli.main(["find", word]) == 0
    assert f"{term.name.strip('`')}: {term.clause}" in capsys.readouterr().out


@pytest.mark.parametrize("row", ["a,,lesson 1: X,,clause", "a,,trap 01.1,,", "a,,,,clause",
                                 "a,,trap 01.1,somewhere,clause"])
def test_a_row_without_a_place_or_a_clause_is_refused(tmp_path, row):
    path = tmp_path / "glossary.csv"
    path.write_text(f"{','.join(glossary.FIELDS)}\n{row}\n", "utf-8")
    with pytest.raises(ValueError, match=r"glossary\.csv:2: got .* expected term,also"):
        glossary.read(path)
