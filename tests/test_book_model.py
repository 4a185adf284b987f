"""The page with the model that writes text takes everything it says from the record."""

import base64
import json
import re

import nbformat
import pytest

from dlsys_helpers import paths
from dlsys_model import gallery
from tools import book, book_gallery, book_model
from tools.own_model import PACKED, RECORD

FACTS = json.loads(RECORD.read_text("utf-8"))


def test_the_written_page_says_what_the_record_holds_and_keeps_no_mark():
    text = book_model.filled_in((book.BOOK / "your_model.md").read_text("utf-8"))
    assert "{{" not in text
    assert f"{FACTS['weights']:,} weights" in text
    assert f"from {len(FACTS['parts'])} answers to exercises" in text
    for loss in FACTS["validation"].values():
        assert f"| {loss:.3f} |" in text
    assert "The weights take 519 kB" in text
    assert text.count('data-model="model/weights.js"') == 1


def test_on_the_start_page_it_begins_by_itself():
    assert " data-start>" in book_model.panel(starts=True)
    assert " data-start>" not in book_model.panel()


def test_the_files_beside_the_page_hold_the_packed_weights(tmp_path):
    book_model.write_assets(tmp_path)
    weights = (tmp_path / "model" / "weights.js").read_text("utf-8")
    inside = re.fullmatch(r'window\.dlsysModel = "([A-Za-z0-9+/=]+)";\n', weights)[1]
    assert base64.b64decode(inside) == PACKED.read_bytes()
    script = (tmp_path / "model" / "model.js").read_text("utf-8")
    assert "eval(" not in script
    assert "http" not in script
    assert (tmp_path / "model" / "model.css").stat().st_size > 1000


def test_the_notebook_leads_to_the_gallery_and_the_gallery_back():
    notebook = nbformat.read(paths.NOTEBOOKS / "your_model.ipynb", 4)
    text = "".join(cell.source for cell in book.with_gallery(notebook).cells)
    assert text.count("[What would you see?](../gallery.md)") == 1
    told = book_gallery.introduction(gallery.recorded())
    assert "[Your model](notebooks/your_model.ipynb)" in told
    with pytest.raises(ValueError, match="does not name the gallery"):
        book.with_gallery(nbformat.v4.new_notebook())
