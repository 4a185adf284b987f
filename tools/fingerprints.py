"""Dependency fingerprints of stored results: code, this repository's modules, pinned packages.

    rests_on(["from dlsys_helpers import fit\\nfit(model, x, y)"])
    -> {"code": "1c9f...", "dlsys_helpers.train": "77ab...", "torch": "2.14.1", ...}

A record keeps this mapping. If it differs from today's, the record is stale, and the keys that
differ say why. Fingerprints are of the parsed code, so comments, docstrings and layout never count.
Words for readers do not count either: see `lesson_words` and `check_words`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import dlsys_helpers
from dlsys import needed
from dlsys_helpers import promise_tables
from dlsys_helpers.paths import ROOT

SRC = ROOT / "src"
PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "jax")
# These store, judge and show learners' work, or draw: no number depends on them.
IGNORED = {f"dlsys_helpers.{name}" for name in (
    "acting", "cards", "catalog", "diagrams", "drawings", "errors", "expect",
    "gradient_graphs", "guesses", "judging", "number_lines", "plots", "progress", "room_client",
    "drawing_canvas", "json_lines", "promise_tables", "verdicts", "wording")} | {
    f"dlsys_model.{name}" for name in ("errors", "report", "show")} | {
    "dlsys_checks", "dlsys_checks.checking", "dlsys_checks.registry"}
LEARNERS = ("dlsys.", "dlsys_files", "dlsys_model.answers")
NAMES = "dlsys_helpers.stages"
FRONT_END = ("explorers/explorer.js", "explorers/explorer.css")


def rests_on(code: Iterable[str] | Mapping[str, str], ignored: Collection[str] = IGNORED,
             ) -> dict[str, str]:
    """The dependencies of these cells' results, each with its fingerprint or version.

    code: the sources of cells; in a mapping, each named cell is a separate part, in order.
    ignored: modules that do not count although the cells use them.
    """
    cells = {name: [cell] for name, cell in code.items()} if isinstance(code, Mapping) else {
        "code": list(code)}
    parts = {name: fingerprint("\0".join(essence(cell, lesson_words) for cell in several))
             for name, several in cells.items()}
    whole = "\n".join(cell for several in cells.values() for cell in several)
    modules = with_imports(used_modules(whole)) - {*ignored}
    parts |= {name: module_fingerprint(name) for name in sorted(modules)}
    if "dlsys_helpers.explorers" in modules:
        parts |= {name: fingerprint((SRC / "dlsys_helpers" / name).read_text("utf-8"))
                  for name in FRONT_END}
    return parts | pinned()


def changes(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The sorted names of the parts that differ."""
    return sorted(name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name))


def pinned() -> dict[str, str]:
    """The versions in requirements.lock of the packages that numbers come from."""
    versions = needed.pinned(ROOT / "requirements.lock")
    return {name: versions[name] for name in PACKAGES}


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# ---- which parts of the code count

Words = Callable[[ast.Call], Iterator[ast.expr]]  # the arguments of a call that hold words


def no_words(_: ast.Call) -> Iterator[ast.expr]:
    """No words, so every text counts."""
    yield from ()


# Calls by which a lesson shows something; all their texts are words.
SHOWING = {"print", "show", "new_axes", "annotate", "legend", "suptitle", "supxlabel", "supylabel",
           "text"}
SHOWS = ("draw_", "plot_", "set_")  # the same for names with these prefixes: set_title, draw_grids
DRAWN = {"label", "labels", "title", "alt"}  # keywords of words, in matplotlib's calls and ours


def lesson_words(call: ast.Call) -> Iterator[ast.expr]:
    """A lesson's words on its numbers: claim texts, questions, the texts of figures and prints."""
    name = _name(call)
    if name == "claim":
        yield from call.args[:1]
    elif name == "asks":   # a table of GPU measurements; predictions may be words
        yield from (one for one in call.args if isinstance(one, ast.JoinedStr)
                    or (isinstance(one, ast.Constant) and isinstance(one.value, str)))
    elif name == "guess":
        yield from (*call.args[1:], *(keyword.value for keyword in call.keywords))
    elif name in SHOWING or name.startswith(SHOWS):
        yield from (*call.args, *(keyword.value for keyword in call.keywords))
    elif isinstance(call.func, ast.Attribute):
        yield from (keyword.value for keyword in call.keywords if keyword.arg in DRAWN)


# Arguments by which a check speaks to learners or names something; no verdict depends on them.
SPEAKS = {"Broken": (0, 2, 3), "promise": (1,), "promise_table": (0,), "wrong": (0,), "probe": (0,),
          "right": (0,), "equivalent": (1,)}
SAID = {"look", "says", "what", "shown"}  # the same for keywords


def check_words(call: ast.Call) -> Iterator[ast.expr]:
    """The words of a check: messages, promises, the names of mistakes and of routes."""
    name = _name(call)
    places = (0,) if name.startswith("expect_") and name != "expect_parts" else SPEAKS.get(name, ())
    yield from (call.args[place] for place in places if place < len(call.args))
    yield from (keyword.value for keyword in call.keywords if keyword.arg in SAID)


def _name(call: ast.Call) -> str:
    """The last name of a call: "set_title" of `ax.set_title(...)`; "" if it has none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@functools.cache
def essence(code: str, words: Words = no_words) -> str:
    """The parsed form of Python code, without docstrings and words: equal if it does the same.

    Not by `ast.dump`, whose output differs between versions of Python. The calls inside an f-string
    count even if it is words, because they may draw random numbers.
    """
    tree = ast.parse(code)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    silent = {id(text): _part_that_counts(call, text)
              for call in calls for argument in words(call) for text in _texts(argument)}
    return "".join(_written(tree, silent))


def _part_that_counts(call: ast.Call, text: ast.expr) -> str:
    """The keys and deciding cases of a table of promises; "" for other words."""
    if _name(call) != "promise_table":
        return ""
    return "\n".join(" | ".join((row.key, *row.cases))
                     for row in promise_tables.read(ast.literal_eval(text)))


def _written(value: object, silent: Mapping[int, str]) -> Iterator[str]:
    """A node as text. silent: the part of each word that counts, by the id of its node."""
    if isinstance(value, list):
        yield "["
        for item in value:
            yield from _written(item, silent)
        yield "]"
    elif not isinstance(value, ast.AST):
        yield f"{value!r},"
    elif id(value) in silent:
        yield f"{silent[id(value)]!r},"
        yield from _written([call for call in ast.walk(value) if isinstance(call, ast.Call)],
                            silent)
    else:
        yield f"{type(value).__name__}("
        for name, part in _fields(value):
            yield f"{name}="
            yield from _written(part, silent)
        yield ")"


EMPTY = (None, [], "")
UNSEEN = {"ctx", "kind", "type_comment", "type_ignores"}  # redundant


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    """The fields of a node that count; empty ones do not, as other Pythons may lack them."""
    for name, part in ast.iter_fields(node):
        if name == "body" and _has_docstring(node):
            part = part[1:]
        if name not in UNSEEN and (isinstance(node, ast.Constant) or part not in EMPTY):
            yield name, part


def _has_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) \
        and ast.get_docstring(node, clean=False) is not None


def _texts(node: ast.AST) -> Iterator[ast.expr]:
    """The outermost texts in an expression; an f-string is one text."""
    if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    elif not isinstance(node, ast.Call):  # an argument of a call may be a key
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def without(code: str, names: Collection[str]) -> str:
    """Python code without the functions, methods and constants of these names."""
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if names_of(node) & {*names}:
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            lines[first - 1:node.end_lineno] = [""] * (node.end_lineno - first + 1)
    return "\n".join(lines)


def names_of(node: ast.AST) -> set[str]:
    """The names that a definition or an assignment of names binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


# ---- what a piece of code uses

def used_modules(code: str) -> set[str]:
    """The modules under src/ from which lesson code imports something that it uses."""
    tree = ast.parse(code)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {module for name, module in _imports(tree) if name in used}


def with_imports(modules: Iterable[str]) -> set[str]:
    """These modules and all that they import, transitively.

    Leaves out the modules that read learners' work, such as the command `dlsys`, and the list of
    stage names, which grows with each stage: no number or output of a lesson depends on them.
    """
    found: set[str] = set()
    left = list(modules)
    while left:
        if (name := left.pop()) not in found and not name.startswith((*LEARNERS, NAMES)):
            found.add(name)
            left += imported_by(name)
    return found


@functools.cache
def source(module: str) -> str:
    """The text of a module under src/."""
    return file_of(module).read_text("utf-8")


@functools.cache
def imported_by(module: str) -> list[str]:
    """The modules under src/ that a module imports."""
    return [name for _, name in _imports(ast.parse(source(module)))]


@functools.cache
def module_fingerprint(module: str) -> str:
    """Fingerprint of a module under src/; docstrings and comments do not count."""
    return fingerprint(essence(source(module)))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """For each import from a module under src/, the name that it binds and the module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and file_of(node.module or ""):
            yield from ((a.asname or a.name, _home(node.module, a.name)) for a in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.asname or a.name.partition(".")[0], a.name)
                        for a in node.names if file_of(a.name))
        yield from _imports(node)


def _home(module: str, name: str) -> str:
    """The module that `from module import name` takes the name from."""
    if file_of(f"{module}.{name}"):
        return f"{module}.{name}"
    return dlsys_helpers.HOMES.get(name, module) if module == "dlsys_helpers" else module


@functools.cache
def file_of(module: str) -> Path | None:
    """The file of a module under src/; None for a module that is not ours."""
    path = SRC.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module and file.is_file():
            return file
    return None
