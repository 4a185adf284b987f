"""The editors' aid finds the patterns that it is made for and leaves plain sentences alone."""

import pytest

from tools import sentences

LONG = " ".join(["word"] * 31) + " is here."


@pytest.mark.parametrize(("sentence", "why"), [
    ("Whoever guesses has a loss of ln V.", "'whoever': name the actor"),
    ("Print the loss beside its bound.", "'beside': next to, compared with"),
    ("Adam's net gives the mean, too.", "', too': also"),
    ("What is left behind is freed.", "'behind': after"),
    (LONG, "33 words"),
    ("First: it is split: then it is sent.", "2 colons"),
    ("The gradient of the first batch.", "no verb in sight")])
def test_a_sentence_that_deserves_a_look_says_why(sentence, why):
    assert why in sentences.reasons(sentence)


@pytest.mark.parametrize("sentence", [
    "A uniform guess costs ln V.", "The batch of one is innocent.",
    "Its standard deviation is 0.1.", "Set `beside` to 3 and run the cell again."])
def test_a_plain_sentence_is_left_alone(sentence):
    assert sentences.reasons(sentence) == []


def test_only_the_first_sentence_of_a_paragraph_may_not_begin_with_a_pronoun():
    assert sentences.reasons("It is full.", first=True) == ["a pronoun begins the paragraph"]
    assert sentences.reasons("It is full.") == []


def test_tables_code_and_links_are_no_sentences():
    text = ("See [the other page](beside.md).\n\n| beside | x |\n\n```\nbehind\n```\n\n"
            "- an item\n  too")
    assert sentences.paragraphs(text) == ["See the other page.", "an item too"]


def test_a_page_lists_its_worst_sentence_first(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nAll is well. Whoever pays stands behind it.\n\nIt lies there.\n")
    sentences.main([str(page), "--first", "1"])
    shown = capsys.readouterr().out
    assert "page.md: 2 sentences" in shown
    assert shown.rstrip().endswith("Whoever pays stands behind it.")


def test_a_keep_of_a_lesson_needs_an_actor(tmp_path):
    lesson = tmp_path / "03_losses.py"
    begin = '# %% [markdown] trap="03.1" role="keep"\n'
    lesson.write_text(f"{begin}# **Keep:** a loss belongs to its question.\n")
    assert [look.why for look in sentences.looks(lesson)] == [["a Keep without an actor"]]
    lesson.write_text(f"{begin}# **Keep:** Compare losses of one question.\n")
    assert sentences.looks(lesson) == []


def test_a_file_that_is_not_there_is_refused(capsys):
    with pytest.raises(SystemExit):
        sentences.main(["nothing.md"])
    assert "got nothing.md, expected the file of a lesson or a page" in capsys.readouterr().err
