"""Execute one cell's source as a notebook does, and return the value of its last expression."""

from __future__ import annotations

import ast
import linecache
import traceback
import types
from collections.abc import Callable
from typing import Any


def remember(source: str, name: str) -> None:
    """Put a cell's source into linecache, where tracebacks and inspect.getsource look for it.

    mtime is None: linecache then never compares the entry with a file.
    """
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def after_import(source: str, name: str, error: ModuleNotFoundError, flags: int = 0) -> str | None:
    """The rest of a cell, after the top-level import that raised this error; line numbers stay.

    Of `import a, b` where a is missing, `import b` stays. None if the error came from elsewhere.
    """
    line = next((frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == name), None) or 0
    tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    node = next((node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
                 and node.lineno <= line <= (node.end_lineno or 0)), None)
    if node is None or node.end_lineno is None:
        return None
    kept = _others(node, error.name or "")
    first, *below = source.split("\n")[node.end_lineno - 1:]
    beside = first.encode()[node.end_col_offset:].decode().lstrip(" \t;")
    return "\n" * (node.end_lineno - 1) + "\n".join(["; ".join([*kept, beside]), *below])


def _others(node: ast.Import | ast.ImportFrom, missing: str) -> list[str]:
    """The import without the missing name and those before it, which were imported already."""
    roots = [alias.name.partition(".")[0] for alias in node.names]
    root = missing.partition(".")[0]
    if isinstance(node, ast.ImportFrom) or root not in roots:
        return []
    rest = node.names[roots.index(root) + 1:]
    return [ast.unparse(ast.Import(rest))] if rest else []


def run(source: str, name: str, execute: Callable[[types.CodeType], Any],
        flags: Callable[[], int] = lambda: 0) -> Any:
    """Compile the source and pass it to `execute`; returns the last expression's value, or None.

    flags: compiler flags; called again for the last line, as a `from __future__` may change them.
    """
    def compiled(part: ast.Module | ast.Expression, mode: str) -> types.CodeType:
        return compile(part, name, mode, flags(), dont_inherit=True)

    tree = compile(source, name, "exec", flags() | ast.PyCF_ONLY_AST, dont_inherit=True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    execute(compiled(tree, "exec"))
    return None if last is None else execute(compiled(ast.Expression(last.value), "eval"))
