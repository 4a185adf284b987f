"""Candidates for one place in a right answer: the right code, and mistakes that the check knows.

The repair bench of a trap's page shows them, see book_repair.py. The mistakes are wrong answers
that the exercise's check has registered. Only these rules choose them:

- *Edits.* Where a check writes mistakes as edits of one right function (`ex.edits`), a place is a
  run of its lines, and the edits inside it are the mistakes.
- *Options.* Where mistakes are values of one keyword of a right function, the place is its default.
- *Whole answers.* Where right answers and mistakes are a few lines each, the place is the body.

A place shows the first mistakes in the check's file that fit it; the authors wrote the most typical
ones first. We take the place whose mistakes come earliest and whose candidates have the fewest
lines. An exercise without a place for three mistakes has no bench; its page links to the list of
its wrong answers.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import random
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import ModuleType
from typing import NamedTuple

from dlsys_checks import registry
from dlsys_helpers.judging import Exercise, unguarded
from tools import solutions

FEWEST, MOST = 3, 4  # wrong candidates on a bench, in addition to the right one
PLACE_LINES = 6  # the most lines of a place, and of a candidate
WHOLE_LINES = 10  # the most lines of a whole answer
HELPER = 5  # the cost, in lines, of a name that only the check's file explains
WIDEST = 110  # the most columns in a candidate's line
NO_OPTIONS = {"breaks", "says", "trap"}  # keywords of ex.wrong that it does not pass on
WORD = re.compile(r"\w+")


class Mistake(NamedTuple):
    """A registered wrong answer as code for the place; `rank` is its place in the check's file."""

    rank: int
    name: str
    code: str


class Bench(NamedTuple):
    """A place in a right answer, and the code that may be there: the right one and mistakes.

    indent: the indentation in the place that we removed from that code.
    """

    before: str
    right: str
    after: str
    mistakes: list[Mistake]
    indent: str = ""

    @property
    def codes(self) -> list[str]:
        """The right code, then the code of each mistake."""
        return [self.right, *(mistake.code for mistake in self.mistakes)]

    def answer(self, code: str) -> str:
        """The whole answer with this code in its place."""
        return self.before + textwrap.indent(code, self.indent) + self.after

    def cost(self, own: Collection[str]) -> int:
        """The cost of the place: late mistakes in the check's file, and much to read.

        own: the names that only this file explains.
        """
        used = {*WORD.findall("\n".join([self.before, *self.codes, self.after]))} & {*own}
        lines = sum(map(_height, self.codes))
        return sum(m.rank for m in self.mistakes) + lines + HELPER * len(used)


@functools.cache
def bench(id: str) -> Bench | None:
    """The bench of an exercise; None if no place has enough mistakes."""
    exercise = registry.find(id)
    places = [place for rule in (edit_places, option_places, answer_places)
              for place in rule(exercise) if len(place.mistakes) >= FEWEST]
    most = max((len(place.mistakes) for place in places), default=0)
    own = defined(check_module(exercise))
    return min((place for place in places if len(place.mistakes) == most),
               key=lambda place: place.cost(own), default=None)


def shuffled(id: str, found: Bench) -> list[tuple[str, str]]:
    """The code and mistake name of each candidate, in an order that depends only on the id.

    The page's script draws a new order at each visit. The right one has the name "".
    """
    rows = [(found.right, ""), *((m.code, m.name) for m in found.mistakes)]
    return random.Random(id).sample(rows, len(rows))


def place_of(before: str, right: str, after: str, mistakes: Iterable[Mistake],
             most: int = PLACE_LINES) -> Bench:
    """A place with the mistakes that it shows; none if the right code is too long."""
    seen, shown = {right}, []
    for mistake in sorted(mistakes):
        if mistake.code not in seen and fits(mistake.code, most):
            shown.append(mistake)
            seen.add(mistake.code)
    shown = shown[:MOST] if fits(right, most) else []
    indent = margin([right, *(m.code for m in shown)])
    return Bench(before, _out(right, indent), after,
                 [m._replace(code=_out(m.code, indent)) for m in shown], indent)


def margin(codes: Iterable[str]) -> str:
    """The leading spaces that all lines of these codes share."""
    lines = [line for code in codes for line in code.splitlines() if line.strip()]
    return " " * min((len(line) - len(line.lstrip()) for line in lines), default=0)


def _out(code: str, indent: str) -> str:
    return "\n".join(line.removeprefix(indent) for line in code.splitlines())


def fits(code: str, most: int) -> bool:
    """Whether the code is neither empty nor too long."""
    return bool(code) and _height(code) <= most and max(map(len, code.splitlines())) <= WIDEST


def _height(code: str) -> int:
    return code.count("\n") + 1


# ---- edits of one right function

def edit_places(exercise: Exercise) -> Iterator[Bench]:
    """The runs of lines in a right function, each with the edits that change nothing else."""
    edits = defaultdict(list)
    for rank, wrong in enumerate(exercise.wrong_answers):
        if edited := edit_of(wrong.fn):
            edits[edited.__name__].append((rank, wrong.name, lines_of(edited)))
    for name, found in edits.items():
        base = lines_of(getattr(check_module(exercise), name))
        spans = [(*changed(base, lines), *row, lines) for *row, lines in found]
        top = 1 + next(i for i, line in enumerate(base) if line.startswith("def "))
        for start in range(top, len(base)):
            for end in range(start + 1, min(start + PLACE_LINES, len(base)) + 1):
                inside = [Mistake(rank, mistake,
                                  "\n".join(lines[start:len(lines) - len(base) + end]))
                          for low, high, rank, mistake, lines in spans
                          if start <= low and high <= end]
                place = place_of("\n".join([*base[:start], ""]), "\n".join(base[start:end]),
                                 "\n".join(["", *base[end:]]), inside)
                yield renamed(place, name, exercise.function)


def edit_of(fn: Callable) -> Callable | None:
    """The function that `ex.edits` made; None for any other answer."""
    plain = inspect.unwrap(fn) if inspect.isfunction(fn) else None
    return plain if plain and plain.__code__.co_filename.startswith("<") else None


@functools.cache
def lines_of(fn: Callable) -> list[str]:
    """The source lines of a function, without its docstring and `@not_an_answer`."""
    plain = inspect.unwrap(unguarded(fn))
    text = "".join(linecache.getlines(plain.__code__.co_filename)) if edit_of(plain) else (
        textwrap.dedent(inspect.getsource(plain)))
    told = docstring(parsed(text).body[0]) if plain.__doc__ else None
    lines = text.rstrip().splitlines()
    kept = lines[:told.lineno - 1] + lines[told.end_lineno:] if told else lines
    return [line for line in kept if line != "@not_an_answer"]


def docstring(fn: ast.FunctionDef) -> ast.stmt | None:
    return fn.body[0] if len(fn.body) > 1 and ast.get_docstring(fn) is not None else None


def changed(base: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """The first line of `base` that `other` changes, and the line after the last one."""
    low = _alike(base, other)
    return low, len(base) - _alike(base[low:][::-1], other[low:][::-1])


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines two texts share at their beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)))


def renamed(found: Bench, name: str, function: str) -> Bench:
    """The bench with a right function renamed to the learner's function."""
    def text(code: str) -> str:
        return re.sub(rf"(?<![.\w]){name}(?=\()", function, code)
    return Bench(text(found.before), text(found.right), text(found.after),
                 [m._replace(code=text(m.code)) for m in found.mistakes], found.indent)


# ---- values of one keyword

def option_places(exercise: Exercise) -> Iterator[Bench]:
    """The defaults of a right function, each with the mistakes that set only this keyword."""
    values = defaultdict(list)
    for answer in registered(exercise):
        options = [k for k in answer.keywords if k.arg not in NO_OPTIONS]
        if isinstance(answer.node, ast.Name) and len(options) == 1:
            code = _option(options[0].arg, options[0].value, answer.source)
            values[answer.node.id, options[0].arg].append(Mistake(answer.rank, answer.name, code))
    for (name, option), found in values.items():
        fn = getattr(check_module(exercise), name)
        if hasattr(fn, "guards"):  # right with its defaults
            yield from option_place(exercise, fn, option, found)


def option_place(exercise: Exercise, fn: Callable, option: str, found: list[Mistake],
                 ) -> Iterator[Bench]:
    lines = lines_of(fn)
    text = "\n".join(lines)
    head = parsed(text).body[0]
    for argument, value in zip(head.args.kwonlyargs, head.args.kw_defaults, strict=True):
        if argument.arg == option and value is not None:
            first, last = argument.lineno - 1, value.end_lineno - 1
            before = "\n".join([*lines[:first], lines[first][:argument.col_offset]])
            after = "\n".join([lines[last][value.end_col_offset:], *lines[last + 1:]])
            place = place_of(before, _option(option, value, text), after, found)
            yield renamed(place, head.name, exercise.function)


def _option(name: str, value: ast.expr, source: str) -> str:
    return f"{name}={' '.join(segment(source, value).split())}"


class Registered(NamedTuple):
    """A wrong answer as a check's file writes it: a name, a lambda or a function."""

    rank: int
    name: str
    node: ast.expr | ast.FunctionDef
    keywords: list[ast.keyword]
    source: str


def registered(exercise: Exercise) -> Iterator[Registered]:
    """The answers that a check's file passes to `ex.wrong`, or decorates with it."""
    source = source_of(check_module(exercise))
    ranks = {wrong.name: rank for rank, wrong in enumerate(exercise.wrong_answers)}
    for node in parsed(source).body:
        calls = [(node.value, None)] if isinstance(node, ast.Expr) else [
            (line, node) for line in getattr(node, "decorator_list", [])]
        for call, under in calls:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "ex.wrong":
                name, *answers = call.args
                answer = under or (answers[0] if answers else None)  # one may be named fn=
                if answer and isinstance(name, ast.Constant) and name.value in ranks:
                    yield Registered(ranks[name.value], name.value, answer, call.keywords, source)


# ---- whole answers

def answer_places(exercise: Exercise) -> Iterator[Bench]:
    """The whole worked answer, with the mistakes that need no other function of their file."""
    own = defined(check_module(exercise))
    worked, source = worked_answer(exercise.id)
    if worked is None:
        return
    heading = f"def {exercise.function}({ast.unparse(worked.args)}):"
    plain = [(answer.rank, answer.name, answer.node, answer.source)
             for answer in registered(exercise)
             if isinstance(answer.node, ast.Lambda | ast.FunctionDef) and not any(
                 k.arg not in NO_OPTIONS for k in answer.keywords)]
    for rank, wrong in enumerate(exercise.wrong_answers):
        edited = edit_of(wrong.fn)
        if edited and 0 < len(lines_of(edited)) <= WHOLE_LINES:
            text = "\n".join(lines_of(edited))
            plain.append((rank, wrong.name, parsed(text).body[0], text))
    found = [Mistake(rank, name, whole(node, text, heading)) for rank, name, node, text in plain
             if parameters(node) == parameters(worked) and not names(node) & own]
    yield place_of("", whole(worked, source, heading), "", found, WHOLE_LINES)


def whole(fn: ast.FunctionDef | ast.Lambda, source: str, heading: str) -> str:
    """An answer as a function with this heading, without the check's own decorators."""
    run = [f"@{ast.unparse(line)}" for line in getattr(fn, "decorator_list", [])
           if not ast.unparse(line).startswith(("ex.", "not_an_answer"))]
    return "\n".join([*run, heading, textwrap.indent(body(fn, source), "    ")])


def parameters(fn: ast.FunctionDef | ast.Lambda) -> list[str]:
    """The parameter names of an answer."""
    taken = fn.args
    return [*(a.arg for a in taken.args), "*", *(a.arg for a in taken.kwonlyargs)]


def names(fn: ast.FunctionDef | ast.Lambda) -> set[str]:
    """The names that an answer uses, apart from its decorators."""
    parts = fn.body if isinstance(fn, ast.FunctionDef) else [fn.body]
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}


def body(fn: ast.FunctionDef | ast.Lambda, source: str) -> str:
    """The lines of an answer's body; for a lambda, a `return`."""
    if isinstance(fn, ast.Lambda):
        return f"return {' '.join(segment(source, fn.body).split())}"
    told = docstring(fn)
    first = told.end_lineno if told else fn.body[0].lineno - 1
    return textwrap.dedent("\n".join(source.splitlines()[first:fn.end_lineno])).strip("\n")


@functools.cache
def worked_answer(id: str) -> tuple[ast.FunctionDef | None, str]:
    """The worked answer of an exercise, or None for a class, and its source."""
    function, source = registry.find(id).function, worked_answers(id[:2])[id][1]
    return next((node for node in parsed(source).body
                 if isinstance(node, ast.FunctionDef) and node.name == function), None), source


worked_answers = functools.cache(solutions.answers)  # each call reads a notebook


# ---- the check's file

def check_module(exercise: Exercise) -> ModuleType:
    return sys.modules[exercise.law_fn.__module__]


source_of = functools.cache(inspect.getsource)
parsed = functools.cache(ast.parse)


@functools.cache
def _lines(source: str) -> list[bytes]:
    return source.encode().splitlines(keepends=True)


def segment(source: str, node: ast.expr) -> str:
    """The text of a node; `ast.get_source_segment` splits the whole source each time."""
    lines = _lines(source)[node.lineno - 1:node.end_lineno]
    lines[-1] = lines[-1][:node.end_col_offset]
    lines[0] = lines[0][node.col_offset:]
    return b"".join(lines).decode()


@functools.cache
def defined(module: ModuleType) -> set[str]:
    """The names that a check's file defines or imports from our other files."""
    found = set()
    for node in parsed(source_of(module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("dlsys"):
            found |= {alias.asname or alias.name for alias in node.names}
        else:
            found |= {t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)}
    return found
