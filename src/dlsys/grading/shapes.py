"""What is left of an answer's code without names, comments, docstring and layout.

Two answers with the same form differ only in these. The code is parsed and never run.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from typing import Any

LARGEST = 2**14    # characters of a cell that is parsed: a parser's memory is a thousand times that
GRAM, WINDOW = 8, 4  # parts of the code in one mark, and marks of which one is kept


def shape(source: str, function: str) -> dict[str, Any]:
    """exact, form, size and marks of a function's code; {} if it cannot be read.

    exact: a digest of the code without comments, docstring and layout. form: the same without
    names. size: how many parts the code has. marks: some of its sequences of parts; two answers
    that share most of them are nearly the same.
    """
    if len(source) > LARGEST:
        return {}
    try:
        found = _definition(ast.parse(source), function)
        if found is None:
            return {}
        plain = _Plain().visit(found)
        plain.name = "answer"
        exact = _digest(ast.dump(plain))
        nameless = _Nameless(_bound(plain)).visit(plain)
        parts = list(_parts(nameless))
        return {"exact": exact, "form": _digest(ast.dump(nameless)), "size": len(parts),
                "marks": _marks(parts)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


def _definition(tree: ast.Module, function: str) -> ast.FunctionDef | ast.ClassDef | None:
    found = [node for node in tree.body
             if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == function]
    return found[-1] if found else None


class _Plain(ast.NodeTransformer):
    """Removes docstrings, annotations and lone `pass` statements."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        body = getattr(node, "body", None)
        if isinstance(body, list) and len(body) > 1:
            setattr(node, "body", [  # noqa: B010, which kinds have a body is not in the types
                one for k, one in enumerate(body)
                if not isinstance(one, ast.Pass) and not (k == 0 and _is_text(one))])
        for name in ("annotation", "returns"):
            if isinstance(node, ast.arg | ast.FunctionDef) and getattr(node, name, None):
                setattr(node, name, None)
        return super().generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        return ast.Assign([node.target], node.value) if node.value else None


def _is_text(node: ast.AST) -> bool:
    return (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str))


def _bound(tree: ast.AST) -> set[str]:
    """Names that the code itself defines: of arguments, variables, inner functions, imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node is not tree:
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


class _Nameless(ast.NodeTransformer):
    """Numbers the names that the code itself defines, in order of appearance."""

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.numbers: dict[str, int] = {}

    def _name(self, name: str) -> str:
        return f"_{self.numbers.setdefault(name, len(self.numbers))}" if name in self.own else name

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "arg", "asname"):
            if isinstance(value := getattr(node, field, None), str) and not isinstance(
                    node, ast.keyword):
                setattr(node, field, self._name(value))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.name = self._name(node.name)
        if isinstance(node, ast.Nonlocal | ast.Global):
            node.names = [self._name(name) for name in node.names]
        return super().generic_visit(node)


def _parts(node: ast.AST) -> Any:
    """The parts of the code in order: kinds of nodes, with their names, attributes, constants."""
    said = [repr(value) for field in ("id", "attr", "arg", "value")
            if not isinstance(value := getattr(node, field, None), ast.AST | None | list)]
    if not isinstance(node, ast.expr_context | ast.arguments):
        yield " ".join([type(node).__name__, *said])
    for child in ast.iter_child_nodes(node):
        yield from _parts(child)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _marks(parts: Sequence[str]) -> list[int]:
    """The smallest digest in each window of WINDOW sequences, each of GRAM parts."""
    digests = [int(_digest("\n".join(parts[k:k + GRAM]))[:8], 16)
               for k in range(max(1, len(parts) - GRAM + 1))]
    windows = range(max(1, len(digests) - WINDOW + 1))
    return sorted({min(digests[k:k + WINDOW]) for k in windows})


def likeness(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The share of their marks that two answers have in common, from 0 to 1.

    To compare many pairs, give the marks as frozensets, which are not copied.
    """
    mine, theirs = frozenset(a["marks"]), frozenset(b["marks"])
    common = len(mine & theirs)
    return common / (len(mine) + len(theirs) - common)
