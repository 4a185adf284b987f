"""A stand-in for a notebook's kernel: the cells' namespace, magics, top-level `await`.

Runs inside the sandbox, in the learner's process.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import builtins
import inspect
import re
import sys
import types
from contextlib import suppress
from os import chdir, environ
from typing import Any

import IPython
from IPython.core.inputtransformer2 import TransformerManager
from IPython.display import display
from IPython.utils.capture import capture_output

from dlsys_files import run_source

_EMPTY_LINES = re.compile(r"(?:[ \t]*\n)*")
_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class Shell:
    """The parts of a kernel that cells need: their namespace, `get_ipython()`, magics.

    Magics that run Python code run it; `%%writefile`, `%env` and `%cd` act inside the sandbox; all
    others do nothing.
    """

    def __init__(self) -> None:
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        sys.path.insert(0, "")  # a file that a cell writes can be imported, as in Jupyter
        colab = types.ModuleType("google.colab")  # a right answer may come from Colab
        vars(colab)["__getattr__"] = Nothing().__getattr__
        google = sys.modules.setdefault("google", types.ModuleType("google"))
        sys.modules["google.colab"] = vars(google)["colab"] = colab
        self.space = self.user_ns = module.__dict__
        self.name, self.above, self.flags = "<cell 0>", 0, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        for place in (IPython, IPython.core.getipython):
            vars(place)["get_ipython"] = self.me
        self.space.update(__builtins__=builtins, get_ipython=self.me, display=display,
                          input=lambda *_: "")

    def me(self) -> Shell:
        """This shell, as `get_ipython` returns it."""
        return self

    def run(self, number: int, source: str) -> Any:
        """Run one cell as a notebook would; `_` is then the value of its last line."""
        self.name = f"<cell {number}>"
        return self._below(0, source)

    def _below(self, above: int, source: str) -> Any:
        """Run text from `above` lines below the cell's top, with correct line numbers."""
        match = _EMPTY_LINES.match(source)
        empty = match.end() if match else 0
        self.above = above + source.count("\n", 0, empty)
        code = "\n" * self.above + transformed(source[empty:])
        run_source.remember(code, self.name)
        return self.execute(code, self.name)

    def execute(self, code: str, name: str = "<magic>") -> Any:
        """Run transformed code. Allows `await` at the top level; keeps `__future__` imports.

        If a package is not installed, its import raises only at the end; the lines below it run.
        """
        missing: ModuleNotFoundError | None = None
        value = None
        while True:
            try:
                value = run_source.run(code, name, self._run, lambda: self.flags)
                break
            except ModuleNotFoundError as error:
                missing = missing or error
                rest = run_source.after_import(code, name, error, self.flags)
                if rest is None:
                    raise missing from None
                code = rest
            except Exception:
                if missing:  # the cause of what failed below it
                    raise missing from None
                raise
        if missing:
            raise missing
        if value is not None:
            self.space["_"] = value
        return value

    def _run(self, code: types.CodeType) -> Any:
        self.flags |= code.co_flags & _FUTURES
        result = eval(code, self.space)
        if code.co_flags & inspect.CO_COROUTINE:
            return self.loop.run_until_complete(result)
        return result

    def run_line_magic(self, name: str, line: str, *_: Any, **__: Any) -> Any:
        """`x = %time f()` runs f and returns its value."""
        if name == "time":
            return self.execute(line)
        if name in ("env", "set_env") and (pair := re.fullmatch(r"(\w+)\s*[=\s]\s*(.*)", line)):
            environ[pair[1]] = pair[2]
        if name == "cd":
            chdir(line.strip() or ".")
        return None

    def run_cell_magic(self, name: str, line: str, cell: str) -> Any:
        """`%%time` and `%%capture` run their cell, `%%writefile` writes it."""
        if name == "writefile":
            path = line.split()[-1]
            with open(path, "a" if "-a" in line.split() else "w", encoding="utf-8") as file:
                file.write(cell)
        if name in ("time", "prun"):
            return self._below(self.above + 1, cell)
        if name == "capture":
            with capture_output() as captured:
                self._below(self.above + 1, cell)
            self.space.update({word: captured for word in line.split() if word.isidentifier()})
        return None

    def getoutput(self, *_: Any, **__: Any) -> list[str]:
        """`x = !ls`: there are no other programs, so no lines."""
        return []

    def __getattr__(self, name: str) -> Nothing:
        return Nothing()


def transformed(source: str) -> str:
    """A cell's text as Python: magics, `!`, `?` and pasted prompts are translated.

    Text that already parses is left alone, because IPython would cut a prompt out of a string. The
    exception is a pasted `In [1]: x`: it parses as an annotation, but is translated.
    """
    with suppress(SyntaxError, ValueError):
        ast.parse(source)
        if "In [" not in source:
            return source if source.endswith("\n") else source + "\n"
    return TransformerManager().transform_cell(source)


class Nothing:
    """Any part of a kernel that the sandbox lacks: calling it returns None, an attribute itself."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self
