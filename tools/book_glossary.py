"""The book's page *Glossary*: every term, what it is, and where it is taught."""

from __future__ import annotations

from dlsys import glossary
from dlsys.glossary import Term
from tools import book_pages, book_units, words


def page() -> str:
    """The page, an alphabetical table of all terms."""
    rows = [(name(term), term.clause, book_units.link(term.home) if term.home else "")
            for term in glossary.terms()]
    return "\n\n".join([
        "# Glossary",
        f"{len(rows)} words and calls that the lessons use, each explained in one clause. If a "
        "lesson uses a word without explaining it, the word's first use links to this page. In "
        "the terminal, type "
        '`dlsys find "momentum"`.',
        f":::{{div}} rows\n{book_pages.table(('Word', 'What it is', 'Where'), rows)}\n:::"]) + "\n"


def name(term: Term) -> str:
    """The term as a link target, and its other spellings."""
    shown = term.name if term.is_call else book_pages.plain(term.name)
    return f'<span id="{words.anchor(term)}"></span>{shown}'
