"""Commands, modules, files and headings named in CONTRIBUTING.md and REFERENCE.md exist."""

import re

import pytest

from dlsys_helpers.paths import ROOT

PAGES = {name: (ROOT / name).read_text("utf-8") for name in ("CONTRIBUTING.md", "REFERENCE.md")}
PROBLEMS = {  # what a page names, and whether it exists
    "commands": (r"\bmake ([a-z][a-z-]*)", lambda name: name in targets()),
    "modules": (r"`((?:tools|benchmarks)(?:\.[a-z_]+)+)", lambda name: is_module(name)),
    "files": (r"`((?:book|deploy|lessons|src|tests|tools)/[\w./]*)`", lambda name: is_file(name)),
    "headings": (r"\(((?:[A-Z]+\.md)?#[\w-]+)\)", lambda name: is_heading(name)),
}
EXAMPLE = re.compile(r"NN|eN_|/e\d_|your own")  # a placeholder for the reader's own file


def targets():
    phony = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.M)
    return set(" ".join(phony).split())


def is_module(name):
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def is_file(name):
    return bool(EXAMPLE.search(name)) or (ROOT / name).exists()


def is_heading(link):
    page, _, anchor = link.partition("#")
    headings = re.findall(r"^#+ (.+)$", PAGES[page or "REFERENCE.md"], re.M)
    return anchor in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}


def absent(text, kind):
    pattern, there = PROBLEMS[kind]
    prose = kind != "commands"
    code = text if prose else " ".join(re.findall(r"`([^`]+)`", text))
    return sorted({name for name in re.findall(pattern, code) if not there(name)})


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page, kind):
    assert absent(PAGES[page], kind) == []


@pytest.mark.parametrize(("kind", "text"), [
    ("commands", "`make nothing LESSON=05`"), ("modules", "`tools.nothing`"),
    ("files", "`tools/nothing.py`"), ("headings", "[x](REFERENCE.md#nothing)")])
def test_what_is_not_there_is_found(kind, text):
    assert len(absent(text, kind)) == 1
