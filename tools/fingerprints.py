"""Dependency fingerprints of stored results: code, this repository's modules, pinned packages.

    rests_on(["from dlsys_helpers import fit\\nfit(model, x, y)"])
    -> {"code": "1c9f...", "dlsys_helpers.train": "77ab...", "torch": "2.14.1", ...}

A record keeps this mapping. Where it differs from today's, the record is stale, and the keys that
differ say why. Comments, docstrings and blank lines are removed before hashing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import dlsys_helpers
from dlsys_helpers.paths import ROOT

SRC = ROOT / "src"
PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "jax")
# Left out: these keep, judge and show what a learner did, or draw; no number depends on them.
BESIDE = {f"dlsys_helpers.{name}" for name in (
    "acting", "cards", "catalog", "checking", "diagrams", "drawings", "errors", "expect",
    "guesses", "judging", "number_lines", "plots", "progress", "room_client", "canvas",
    "json_lines", "verdicts", "wording")} | {
    f"dlsys_model.{name}" for name in ("errors", "report", "show")}
LEARNERS = ("dlsys.", "dlsys_files", "dlsys_model.answers")
NAMES = "dlsys_helpers.stages"
FRONT_END = ("explorers/explorer.js", "explorers/explorer.css")


def rests_on(code: Iterable[str], beside: Collection[str] = BESIDE) -> dict[str, str]:
    """The dependencies of these cells' results, each with its fingerprint or version.

    beside: modules that are used and do not count.
    """
    cells = list(code)
    whole = "\n".join(cells)
    modules = reached(used_modules(whole)) - {*beside}
    parts = {"code": fingerprint("\0".join(map(without_prose, cells)))}
    parts |= {name: module_fingerprint(name) for name in sorted(modules)}
    if "dlsys_helpers.explorers" in modules:
        parts |= {name: fingerprint((SRC / "dlsys_helpers" / name).read_text("utf-8"))
                  for name in FRONT_END}
    return parts | pinned()


def changes(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of the parts that differ, sorted."""
    return sorted(name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name))


def pinned() -> dict[str, str]:
    """The versions in requirements.lock of the packages that numbers come from."""
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    versions = dict(re.match(r"([\w.-]+)==(\S+)", line).groups() for line in lines if "==" in line)
    return {name: versions[name] for name in PACKAGES}


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@functools.cache
def without_prose(code: str) -> str:
    """Python code without comments, docstrings, blank lines and trailing blanks."""
    lines = code.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for first, last in _docstrings(ast.parse(code)):
        lines[first - 1:last] = [""] * (last - first + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


# Where words stand in a call: what people are told, and what no verdict depends on.
WORDS = {"Broken": (0, 2, 3), "promise": (1,), "wrong": (0,), "probe": (0,), "right": (0,),
         "equivalent": (1,)}
WORDED = ("look", "says", "what", "shown")  # the same by name


@functools.cache
def without_words(code: str) -> str:
    """Python code as `without_prose`, and without the words of messages: what a verdict rests on.

    Texts in the places of WORDS, the first of an `expect_` function and those of WORDED are empty,
    and each statement stands on one line, so that a message may be wrapped anew.
    """
    tree = ast.parse(code)
    texts = [text for call in ast.walk(tree) if isinstance(call, ast.Call)
             for place in _worded(call) for text in _texts(place)]
    data = code.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans = sorted({(starts[t.lineno - 1] + t.col_offset, starts[t.end_lineno - 1]
                     + t.end_col_offset) for t in texts}, reverse=True)
    for first, last in spans:
        data = data[:first] + b'""' + data[last:]
    return _on_one_line(without_prose(data.decode()))


def _worded(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of a call that hold words."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    places = (0,) if name.startswith("expect_") and name != "expect_parts" else WORDS.get(name, ())
    yield from (call.args[place] for place in places if place < len(call.args))
    yield from (keyword.value for keyword in call.keywords if keyword.arg in WORDED)


def _texts(node: ast.AST) -> Iterator[ast.expr]:
    """The outermost texts in an expression, f-strings whole."""
    if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    elif not isinstance(node, ast.Call):  # what a call is given may be a key
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _on_one_line(code: str) -> str:
    """Each statement on a line of its own, however it was wrapped."""
    lines, depth, joined = code.splitlines(), 0, set()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        elif token.type == tokenize.NL and depth:
            joined.add(token.start[0])
    text = "".join(line.rstrip() + (" " if row in joined else "\n") if row - 1 not in joined
                   else line.strip() + (" " if row in joined else "\n")
                   for row, line in enumerate(lines, 1))
    return re.sub(r"([(\[{]) ", r"\1", text)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """First and last line of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                ast.get_docstring(node, clean=False) is not None):
            yield node.body[0].lineno, node.body[0].end_lineno


def used_modules(code: str) -> set[str]:
    """The modules under src/ that lesson code imports something from and then uses it."""
    tree = ast.parse(code)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {module for name, module in _imports(tree) if name in used}


def reached(modules: Iterable[str]) -> set[str]:
    """These modules and all that they import, transitively.

    Not those that read what a learner wrote, the command `dlsys` among them, nor the list of the
    stages' names, which grows with each stage: no number or output of a lesson depends on them.
    """
    found: set[str] = set()
    left = list(modules)
    while left:
        if (name := left.pop()) not in found and not name.startswith((*LEARNERS, NAMES)):
            found.add(name)
            left += _imported_by(name)
    return found


@functools.cache
def source(module: str) -> str:
    """The text of a module under src/."""
    return _file(module).read_text("utf-8")


@functools.cache
def _imported_by(module: str) -> list[str]:
    return [name for _, name in _imports(ast.parse(source(module)))]


@functools.cache
def module_fingerprint(module: str) -> str:
    """Of a module under src/, without its prose."""
    return fingerprint(without_prose(source(module)))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each import from a module under src/: the name it binds, and the module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and _file(node.module or ""):
            yield from ((a.asname or a.name, _home(node.module, a.name)) for a in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.asname or a.name.partition(".")[0], a.name)
                        for a in node.names if _file(a.name))
        yield from _imports(node)


def _home(module: str, name: str) -> str:
    """The module that `from module import name` takes the name from."""
    if _file(f"{module}.{name}"):
        return f"{module}.{name}"
    if module == "dlsys_helpers" and name in dlsys_helpers._HOMES:
        return f"{module}.{dlsys_helpers._HOMES[name]}"
    return module


@functools.cache
def _file(module: str) -> Path | None:
    """The file of a module under src/; None for a module that is not ours."""
    path = SRC.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module and file.is_file():
            return file
    return None
