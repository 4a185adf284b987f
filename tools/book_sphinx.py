"""A Sphinx extension: the steps of a trap, formulas as MathML, permanent anchors, descriptions.

book/_config.yml names it, so Jupyter Book's own process loads it.
"""

from __future__ import annotations

import functools
import html
import re
import textwrap

from docutils import nodes
from sphinx import search
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish
from sphinx.util import logging

from dlsys.formulas import mathml
from dlsys_helpers import catalog
from tools import social_cards

log = logging.getLogger(__name__)
NAMED = re.compile(r"(trap|exercise)-(\d\d)-(\d+)")  # ids that never change
MARK, STEP = "step-mark", "step-"  # classes of a step's mark, see book.mark
ASKED = ("break", "guess")  # the code and the question appear side by side


class StepName(nodes.General, nodes.TextElement):
    """The name of a step, a heading that is in no table of contents."""


class Fold(nodes.General, nodes.Element):
    """Folded content; its first child, a `FoldName`, says what it contains."""


class FoldName(nodes.General, nodes.TextElement):
    """The line of a fold that stays visible."""


def pieces(tex: str) -> list[str]:
    """Split a formula before each relation outside of braces, where a line may break."""
    parts, depth = [""], 0
    for token in re.findall(r"\\[a-zA-Z]+|\\.|.", tex, re.DOTALL):
        depth += (token == "{") - (token == "}")
        if not depth and token in {"=", r"\leftarrow"} and parts[-1].strip():
            parts.append("")
        parts[-1] += token
    return parts


def draw(self, node: nodes.Element, parts: list[str], display: str, frame: str) -> None:
    try:
        *before, last = [mathml(part, display) for part in parts]
    except ValueError as error:  # Jupyter Book stops at a warning and names page and line
        log.warning(str(error), location=node)
        before, last = [], html.escape(node.astext())
    if "behind" in node:  # punctuation, see book_theme.hold_together
        last = f'<span class="whole">{last}{node["behind"]}</span>'
    self.body.append(frame.format("".join([*before, last])))
    raise nodes.SkipNode


def draw_inline(self, node: nodes.Element) -> None:
    draw(self, node, pieces(node.astext()), "inline", '<span class="math">{}</span>')


def draw_block(self, node: nodes.Element) -> None:
    draw(self, node, [node.astext()], "block", '<div class="math">{}</div>')


def permanent_first(_app: Sphinx, doctree: nodes.document) -> None:
    """Put a trap's permanent id first, so that its heading links by id, not by its words."""
    for section in doctree.findall(nodes.section):
        section["ids"].sort(key=lambda name: not NAMED.fullmatch(name))


# ---- the steps of a trap

def group_steps(_app: Sphinx, doctree: nodes.document) -> None:
    """Put all nodes of a trap's step into one block, which begins with the step's name."""
    for section in [*doctree.findall(nodes.section)]:
        number = next((m for m in map(NAMED.fullmatch, section["ids"]) if m), None)
        if number and number[1] == "trap":
            group(section)
            if catalog.trap(f"{number[2]}.{number[3]}").core:
                section[0] += [nodes.Text(" "), nodes.inline("", "core", classes=["core"])]


def group(section: nodes.section) -> None:
    """Group a section: heading and situation, question next to its code, what follows the guess."""
    opening, steps = [], []
    for node in section.children:
        if "role-next" in node.get("classes", []):
            steps.append(("next", [node]))
        elif MARK in node.get("classes", []):
            name = next(c.removeprefix(STEP) for c in node["classes"] if c != MARK)
            steps.append((name, [*step_heading(name, node)]))
        else:
            (steps[-1][1] if steps else opening).append(node)
    rest = [name for name, _ in steps if name not in (*ASKED, "next")]
    asked, waiting, ways = ([block(name, found) for name, found in steps if name in names]
                            for names in (ASKED, rest, ["next"]))
    section.children = []
    section += opening
    section += [div("pair", *asked)] if asked else []
    section += [div("waits", *waiting)] if waiting else []
    section += ways


def step_heading(step: str, mark: nodes.Element) -> list[nodes.Node]:
    """The first nodes of a step: its name, and for the cause also the fault."""
    name, *more = mark.children
    if step == "more":
        return [FoldName("", "", *name.children)]
    for paragraph in more:
        paragraph["classes"].append("fault")
    return [StepName("", "", *name.children), *more]


def block(step: str, found: list[nodes.Node]) -> nodes.Element:
    if step == "more":
        return div("step step-more", Fold("", *found))
    return div(f"step {STEP}{step}", *found)


def div(classes: str, *found: nodes.Node) -> nodes.container:
    return nodes.container("", *found, classes=classes.split(), is_div=True)


def tags(name: str, classes: str = "") -> tuple:
    """The pair of functions that write a node as this HTML element."""
    said = f' class="{classes}"' if classes else ""
    return (lambda self, _node: self.body.append(f"<{name}{said}>"),
            lambda self, _node: self.body.append(f"</{name}>\n"))


def summary(doctree: nodes.document | None) -> str:
    """The first paragraph of a page, cut to the length that search engines show."""
    found = next(doctree.findall(nodes.paragraph), None) if doctree else None
    return textwrap.shorten(found.astext(), 160, placeholder=" \u2026") if found else ""


def describe(app: Sphinx, page: str, _template: str, context: dict,
             doctree: nodes.document | None) -> None:
    """Title, description and preview of a page; addresses only if the book has a public one.

    The picture is the card of the page's stage: social_cards.py draws it.
    """
    tags = context.get("metatags", "")
    title = html.unescape(re.sub("<[^>]*>", "", context.get("title", "")))
    written = re.search(r'<meta content="([^"]*)" name="description"', tags)
    text = html.unescape(written[1]) if written else summary(doctree)
    said = {"og:title": title, "og:type": "website", "og:site_name": app.config.html_title}
    if text:
        said["og:description"] = text
        tags += "" if written else meta("name", "description", text)
    if app.config.html_baseurl:
        card = social_cards.name(stage_of(page))
        said |= {"og:url": f"{app.config.html_baseurl}{page}.html",
                 "og:image": f"{app.config.html_baseurl}cards/{card}",
                 "og:image:width": "1200", "og:image:height": "630"}
        tags += meta("name", "twitter:card", "summary_large_image")
    context["metatags"] = tags + "".join(meta("property", *pair) for pair in said.items())


class English(SearchEnglish):
    """The language of the search; stems each word of the book once.

    Sphinx stems it again on every page.
    """

    def init(self, options: dict[str, str]) -> None:
        super().init(options)
        self.stem = functools.cache(self.stem)


def stage_of(page: str) -> int:
    """The stage of a page such as notebooks/08_transformers or traps/08-1; 0 for any other."""
    found = re.match(r"(?:notebooks|exercises|traps|present|wrong_answers)/(?:stage_)?(\d\d)", page)
    return int(found[1]) if found else 0


def meta(kind: str, name: str, content: str) -> str:
    return f'<meta {kind}="{name}" content="{html.escape(content)}">\n'


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    app.add_node(StepName, html=tags("h3", "step-name"))
    app.add_node(Fold, html=tags("details", "more"))
    app.add_node(FoldName, html=tags("summary"))
    # Runs before Sphinx collects the contents, so they get the same mark and the same link.
    for prepare in (permanent_first, group_steps):
        app.connect("doctree-read", prepare, priority=400)
    app.connect("html-page-context", describe)
    search.languages["en"] = English
    return {"parallel_read_safe": True, "parallel_write_safe": True}
