"""A Sphinx extension: formulas as MathML, what a page says to search engines, permanent anchors.

book/_config.yml names it, so Jupyter Book's own process loads it.
"""

from __future__ import annotations

import html
import re
import textwrap

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

from dlsys.formulas import mathml

log = logging.getLogger(__name__)
NAMED = re.compile(r"(trap|exercise)-\d\d-\d+")  # ids that never change


def pieces(tex: str) -> list[str]:
    """A formula cut before each relation outside of all braces, where a line may break."""
    parts, depth = [""], 0
    for token in re.findall(r"\\[a-zA-Z]+|\\.|.", tex, re.DOTALL):
        depth += (token == "{") - (token == "}")
        if not depth and token in {"=", r"\leftarrow"} and parts[-1].strip():
            parts.append("")
        parts[-1] += token
    return parts


def draw(self, node: nodes.Element, parts: list[str], display: str, frame: str) -> None:
    try:
        formula = "".join(mathml(part, display) for part in parts)
    except ValueError as error:  # Jupyter Book stops at a warning, with page and line
        log.warning(str(error), location=node)
        formula = html.escape(node.astext())
    self.body.append(frame.format(formula))
    raise nodes.SkipNode


def draw_inline(self, node: nodes.Element) -> None:
    draw(self, node, pieces(node.astext()), "inline", '<span class="math">{}</span>')


def draw_block(self, node: nodes.Element) -> None:
    draw(self, node, [node.astext()], "block", '<div class="math">{}</div>')


def permanent_first(_app: Sphinx, doctree: nodes.document) -> None:
    """Put a trap's permanent id first, so that its heading links to it and not to its words."""
    for section in doctree.findall(nodes.section):
        section["ids"].sort(key=lambda name: not NAMED.fullmatch(name))


def summary(doctree: nodes.document | None) -> str:
    """The first paragraph of a page, in the length that search engines show."""
    found = next(doctree.findall(nodes.paragraph), None) if doctree else None
    return textwrap.shorten(found.astext(), 160, placeholder=" \u2026") if found else ""


def describe(app: Sphinx, page: str, _template: str, context: dict,
             doctree: nodes.document | None) -> None:
    """Title, description and preview of a page; addresses only where the book has a public one."""
    tags = context.get("metatags", "")
    title = html.unescape(re.sub("<[^>]*>", "", context.get("title", "")))
    written = re.search(r'<meta content="([^"]*)" name="description"', tags)
    text = html.unescape(written[1]) if written else summary(doctree)
    said = {"og:title": title, "og:type": "website", "og:site_name": app.config.html_title}
    if text:
        said["og:description"] = text
        tags += "" if written else meta("name", "description", text)
    if app.config.html_baseurl:
        said |= {"og:url": f"{app.config.html_baseurl}{page}.html",
                 "og:image": f"{app.config.html_baseurl}_static/readme.png"}
    context["metatags"] = tags + "".join(meta("property", *pair) for pair in said.items())


def meta(kind: str, name: str, content: str) -> str:
    return f'<meta {kind}="{name}" content="{html.escape(content)}">\n'


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    app.connect("doctree-read", permanent_first)
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
