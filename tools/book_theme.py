"""A Sphinx extension that changes the theme's pages by templates and events.

The templates are in book/_templates. book/_config.yml names this module, so Jupyter Book's own
process loads it.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from docutils import nodes
from myst_nb.sphinx_ext import HideCodeCellNode
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.images import get_image_size

from tools.stage_drawings import nan

# What every page would load, and the words by which we tell that a page needs it.
IDLE = {"design-tabs.js": ("sd-tab-set",), "sphinx-design.min.css": ('class="sd-',),
        "explorer.js": ("data-explorer",),
        "explorer.css": ("data-explorer", "data-guess", "data-model")}
# Next to "Print to PDF", on pages that fold code.
PRINT_CODE = {"type": "javascript", "label": "print-code-button", "text": ".pdf, all code",
              "icon": "fas fa-file-pdf", "tooltip": "Print to PDF, with the folded code"}
BEHIND = re.compile(r"[,.;:)?]+")  # punctuation that must stay with its formula


# ---- each page

def prepare(app: Sphinx, page: str, _template: str, context: dict[str, Any],
            _doctree: nodes.document | None) -> None:
    """Leave out what a page does not use, and pass the list of pages to its sidebar."""
    body = context.get("body", "")
    for kind in ("script_files", "css_files"):
        context[kind] = [asset for asset in context[kind] if is_needed(asset.filename, body)]
    for button in context.get("header_buttons", ()):
        if button["type"] == "group":
            button["buttons"] = [one for one in button["buttons"] if offers_download(one)]
            if button["label"] == "download-buttons" and "hide above-input" in body:
                button["buttons"].append(PRINT_CODE)
    context["contents"] = contents(app.env)
    if page == "404":
        context |= {"base": urlsplit(app.config.html_baseurl).path, "drawing": lost_page_drawing()}


def is_needed(file: str, body: str) -> bool:
    """Whether a page needs a script or style sheet; one without a file name is dropped."""
    name = str(file or "").partition("?")[0].rpartition("/")[2]
    return bool(name) and (name not in IDLE or any(sign in body for sign in IDLE[name]))


def offers_download(button: dict[str, str]) -> bool:
    """Whether a download button is useful, which one for a page's Markdown is not."""
    return not button.get("url", "").endswith(".md")


@dataclasses.dataclass(frozen=True)
class ListedPage:
    """A page in the sidebar's list, with the pages below it."""

    name: str
    title: str  # as HTML
    below: tuple[ListedPage, ...]

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of the page and of all pages below it."""
        return frozenset({self.name}).union(*(page.names for page in self.below))


@functools.cache
def contents(env: BuildEnvironment) -> list[tuple[str, list[ListedPage]]]:
    """The parts of the book as the sidebar lists them on every page: captions and pages.

    The theme would resolve them again for each page, which takes a tenth of a build.
    """
    return [(part["caption"], listed_pages(env, part)) for part in parts(env, env.config.root_doc)]


def parts(env: BuildEnvironment, page: str) -> Iterable[addnodes.toctree]:
    return env.tocs[page].findall(addnodes.toctree)


def listed_pages(env: BuildEnvironment, part: addnodes.toctree) -> list[ListedPage]:
    return [ListedPage(page, html.escape(title or env.titles[page].astext(), quote=False),
                   tuple(one for below in parts(env, page) for one in listed_pages(env, below)))
            for title, page in part["entries"]]


def lost_page_drawing() -> str:
    """The drawing on the "page not found" page: a loss that has become nan."""
    return f'<svg viewBox="0 0 120 54" aria-hidden="true">{nan()}</svg>'


# ---- overrides of what the theme and its parts write

def open_fold(self, node: nodes.Element) -> None:
    """Open a folded cell with its own prompt, not MyST-NB's "Toggle hidden content"."""
    kinds = " ".join(node["classes"])
    shown, hidden = (html.escape(node[f"prompt_{what}"]) for what in ("show", "hide"))
    self.body.append(f'<details class="admonition hide {kinds}">\n<summary>'
                     f'<p class="collapsed admonition-title">{shown}</p>\n'
                     f'<p class="expanded admonition-title">{hidden}</p>\n</summary>\n')


def close_fold(self, _node: nodes.Element) -> None:
    self.body.append("</details>\n")


def open_cell(self, node: nodes.entry) -> None:
    """Open a table cell; on a phone it shows its column's name, which `label_cells` has set.

    An empty corner becomes a plain cell, or a screen reader would read out an empty heading.
    """
    type(self).visit_entry(self, node)
    if isinstance(node.parent.parent, nodes.thead) and not node.astext():
        self.body[-1] = self.body[-1].replace("<th", "<td", 1)
        self.context[-1] = self.context[-1].replace("th", "td")
    if "label" in node:
        self.body[-1] = self.body[-1].replace("<td", f"<td data-label={quoteattr(node['label'])}")


def close_cell(self, node: nodes.entry) -> None:
    type(self).depart_entry(self, node)


def open_image(self, node: nodes.image) -> None:
    """Open a picture with its size, so that nothing moves when it loads."""
    size = get_image_size(Path(self.builder.srcdir) / node["uri"])
    type(self).visit_image(self, node)
    if size:
        self.body[-1] = self.body[-1].replace(
            "<img", f'<img width="{size[0]}" height="{size[1]}"', 1)


def close_image(self, node: nodes.image) -> None:
    type(self).depart_image(self, node)


def finish_nodes(_app: Sphinx, doctree: nodes.document, _page: str) -> None:
    """Load pictures only when they scroll into view, and label table cells by column."""
    for image in doctree.findall(nodes.image):
        image["loading"] = "lazy"
    for box in doctree.findall(nodes.container):
        if "rows" in box["classes"]:
            label_cells(box.findall(nodes.table))


def label_cells(tables: Iterable[nodes.table]) -> None:
    """Label each cell with its column, for phones, which show a row's cells one below the other.

    Empty cells get the class that hides them there.
    """
    for table in tables:
        [head], [body] = table.findall(nodes.thead), table.findall(nodes.tbody)
        names = [entry.astext() for entry in head.findall(nodes.entry)]
        for row in body.findall(nodes.row):
            for entry, name in zip(row.findall(nodes.entry), names, strict=True):
                entry["label"] = name
                if not entry.astext() and not any(entry.findall(nodes.image)):
                    entry["classes"].append("empty")


def hold_together(_app: Sphinx, doctree: nodes.document) -> None:
    """Give a formula the punctuation after it, so that no line breaks between them."""
    for formula in doctree.findall(nodes.math):
        after = formula.next_node(descend=False, siblings=True)
        found = BEHIND.match(after) if isinstance(after, nodes.Text) else None
        if found:
            formula["behind"] = found[0]
            after.parent.replace(after, nodes.Text(after[found.end():]))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(HideCodeCellNode, override=True, html=(open_fold, close_fold))
    app.add_node(nodes.image, override=True, html=(open_image, close_image))
    app.add_node(nodes.entry, override=True, html=(open_cell, close_cell))
    app.connect("doctree-read", hold_together)
    app.connect("doctree-resolved", finish_nodes)
    app.connect("html-page-context", prepare, priority=900)  # after the theme's own handlers
    return {"parallel_read_safe": True, "parallel_write_safe": True}
