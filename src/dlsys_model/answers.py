"""The learner's answers: their source from the worksheets, with only what it needs.

Reading never writes. A cell that does not parse costs only the exercises that it names.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import re
import symtable
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dlsys_files import notebook_file
from dlsys_files.notebook_file import WorksheetError
from dlsys_files.run_source import remember
from dlsys_helpers import paths, progress
from dlsys_helpers.stages import STAGES, Stage
from dlsys_model.part_table import BY_ID, CATALOGUE, OURS, Part


@dataclass
class Sheet:
    """A worksheet's top-level code.

    imports: import lines, by the name they bind. pieces: source of each function, class
    and constant, by name; the last one counts. broken: names in cells that do not parse, with why.
    """

    stage: Stage
    imports: dict[str, str] = field(default_factory=dict)
    pieces: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def needed(self, name: str) -> list[str]:
        """Names of the pieces that a function is made of, each after those that it uses."""
        found, seen = [], set()

        def visit(one: str) -> None:
            if one in self.pieces and one not in seen:
                seen.add(one)
                for used in sorted(_names(self.pieces[one])):
                    visit(used)
                found.append(one)
        visit(name)
        return found

    def source(self, name: str) -> str:
        """A function with its imports and helpers, as a separate module."""
        pieces = [self.pieces[one] for one in self.needed(name)]
        return "\n\n\n".join(["\n".join(self.imports_of(pieces)), *pieces]).strip() + "\n"

    def imports_of(self, pieces: list[str]) -> list[str]:
        """The import lines that these pieces use."""
        used = set().union(*map(_names, pieces))
        return sorted({line for name, line in self.imports.items() if name in used})


def passed() -> set[str]:
    """Ids of the parts whose last check passed."""
    last = {entry["id"]: entry["status"] for entry in progress.entries()}
    return {id for id, status in last.items() if status == "pass" and id in BY_ID}


def functions(folder: Path | None = None, ids: Iterable[str] | None = None
              ) -> tuple[dict[str, Callable], list[str]]:
    """The learner's functions by id, and a line about each passed one that cannot be used."""
    found, notes = {}, []
    for part, sheet in chosen(folder, ids, notes):
        name = f"<your answer {part.id}>"
        source = sheet.source(part.function)
        space = {"__name__": f"my_parts_{part.id.replace('.', '_')}"}
        remember(source, name)
        try:
            exec(compile(source, name, "exec", dont_inherit=True), space)
        except Exception as error:
            notes.append(_unused(part, f"stops with {type(error).__name__}: {str(error)[:80]}"))
        else:
            found[part.id] = space[part.function]
    return found, notes


def chosen(folder: Path | None, ids: Iterable[str] | None, notes: list[str]
           ) -> list[tuple[Part, Sheet]]:
    """The passed parts that a worksheet defines, in the catalogue's order; notes on the others."""
    asked = passed() if ids is None else set(ids)
    sheets = {stage.number: _sheet(stage, folder or paths.MY_WORK, notes)
              for stage in STAGES if any(id.startswith(f"{stage.number:02d}.") for id in asked)}
    found = []
    for part in CATALOGUE:
        sheet = sheets.get(int(part.id[:2])) if part.id in asked else None
        if sheet is None:
            continue
        if part.function in sheet.broken:
            notes.append(_unused(part, sheet.broken[part.function]))
        elif part.function in sheet.pieces:
            found.append((part, sheet))
        else:
            notes.append(_unused(part, "is passed, but no cell defines it now"))
    return found


def _unused(part: Part, why: str) -> str:
    other = "our stand-in" if part.standin == OURS else part.standin
    return f"{part.id} {part.function}: {why}. In its place: {other}."


def _sheet(stage: Stage, folder: Path, notes: list[str]) -> Sheet | None:
    """A stage's parsed worksheet; None, and a note, if there is none that can be read."""
    path = folder / f"{stage.stem}.ipynb"
    try:
        cells = notebook_file.load(path).cells
    except WorksheetError as error:
        notes.append(f"stage {stage.number}: its stand-ins are used. {error}")
        return None
    sheet = Sheet(stage)
    for _, source in cells:
        _take(sheet, source)
    return sheet


def _take(sheet: Sheet, source: str) -> None:
    """Add a cell's imports and definitions."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        why = f"its cell does not parse ({error.msg}, line {error.lineno})" if isinstance(
            error, SyntaxError) else "its cell holds zero bytes"
        sheet.broken.update(dict.fromkeys(re.findall(r"^(?:def|class) (\w+)", source, re.M), why))
        return
    for node in _statements(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _import(sheet, node)
        for name in _bound(node):
            sheet.pieces[name] = _text(source, node)
            sheet.broken.pop(name, None)


def _statements(body: list[ast.stmt]):
    """Top-level statements; for a try, those of its body."""
    for node in body:
        yield from _statements(node.body) if isinstance(node, ast.Try) else [node]


def _import(sheet: Sheet, node: ast.Import | ast.ImportFrom) -> None:
    for alias in node.names:
        bound = alias.asname or alias.name.partition(".")[0]
        one = (ast.Import([alias]) if isinstance(node, ast.Import)
               else ast.ImportFrom(node.module, [alias], node.level))
        sheet.imports[bound] = ast.unparse(one)
        sheet.pieces.pop(bound, None)


def _bound(node: ast.stmt) -> list[str]:
    """Names that a statement defines: a function, a class, a constant."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = (node.targets if isinstance(node, ast.Assign)
               else [node.target] if isinstance(node, ast.AnnAssign) and node.value else [])
    return [name.id for target in targets for name in ast.walk(target)
            if isinstance(name, ast.Name)]


def _text(source: str, node: ast.stmt) -> str:
    """A statement's own lines, its decorators and the comments right above it included."""
    lines = source.split("\n")
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
    above = itertools.takewhile(lambda line: line.startswith("#"), reversed(lines[:first]))
    return "\n".join(lines[first - len(list(above)):node.end_lineno])


def _names(source: str) -> set[str]:
    """Names that a piece takes from the cells around it: no locals and no builtins."""
    found = set()

    def visit(table: symtable.SymbolTable) -> None:
        found.update(symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()
                     and (table.get_type() == "module" or symbol.is_global()))
        for inner in table.get_children():
            visit(inner)
    visit(symtable.symtable(source, "<cell>", "exec"))
    return {name for name in found if not hasattr(builtins, name)}
