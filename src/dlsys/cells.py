"""Run the source of one cell as a notebook does: its last line may be a value."""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Callable
from typing import Any


def remember(source: str, name: str) -> None:
    """Put a cell's source where tracebacks and inspect.getsource look for it.

    Without a time stamp the entry is never checked against a file.
    """
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def run(source: str, name: str, execute: Callable[[types.CodeType], Any],
        flags: Callable[[], int] = lambda: 0) -> Any:
    """Hand the compiled source to `execute`; returns the value of a last expression, else None.

    flags: compiler flags, asked for again before the last line.
    """
    def compiled(part: ast.AST, mode: str) -> types.CodeType:
        return compile(part, name, mode, flags(), dont_inherit=True)

    tree = compile(source, name, "exec", flags() | ast.PyCF_ONLY_AST, dont_inherit=True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    execute(compiled(tree, "exec"))
    return None if last is None else execute(compiled(ast.Expression(last.value), "eval"))
