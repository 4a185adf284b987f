"""Change each worked answer mechanically, and see whether its check refuses the change.

A mutant that passes is a hole in the check, unless it is equivalent to the answer; then the
exercise's file says why: `ex.equivalent(mutant, why)`. tools/solutions.py shows the mutants that
pass, and tools/proof.py records them.
"""

from __future__ import annotations

import ast
import copy
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dlsys_checks import registry
from dlsys_helpers import judging

SEEDS = (0, 1, 2)
SECONDS = 10.0  # CPU limit for a mutant on the cases of one seed, far more than an answer needs

# Functions and words that are easily confused.
TWINS = {"all": "any", "any": "all", "sum": "mean", "mean": "sum", "max": "min", "min": "max",
         "amax": "amin", "amin": "amax", "ceil": "floor", "floor": "ceil", "sin": "cos",
         "cos": "sin", "copy": "deepcopy", "deepcopy": "copy", "softmax": "sigmoid",
         "sigmoid": "softmax", "parameters": "buffers", "modules": "children"}
OPPOSITES = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.FloorDiv: ast.Div, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}


class TooSlow(BaseException):
    """A mutant that never ends."""


# ---- making them

def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Name and source of every mutant of the last function in `source`; names are unique."""
    tree = ast.parse(source)
    for place, node in enumerate(ast.walk(tree)):
        node.place = place
    named: dict[str, int] = {}
    for name, mutant in [*_changed(tree), *_wrapped(source, _function(tree))]:
        named[name] = named.get(name, 0) + 1
        if mutant != source:
            yield name if named[name] == 1 else f"{name} ({named[name]})", mutant


def _function(tree: ast.Module) -> ast.FunctionDef:
    return [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)][-1]


def _changed(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each statement dropped or changed, each expression in it replaced."""
    for statement in _statements(_function(tree)):
        old = _line(statement)
        for other in _other_statements(statement):
            shown = "dropped" if isinstance(other, ast.Pass) else _line(other)
            yield f"{old} -> {shown}", _swapped(tree, statement.place, other)
        for node in _expressions(statement):
            for other in _others(node):
                new = _Swap(node.place, other).visit(copy.deepcopy(statement))
                yield f"{old} -> {_line(new)}", _swapped(tree, node.place, other)


def _statements(function: ast.AST) -> Iterator[ast.stmt]:
    """Every statement in the function's body except its docstring, including nested ones."""
    for node in ast.walk(function):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and node is not function and not is_text:
            yield node


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of one statement, except those of nested statements."""
    todo = [statement]
    while todo:
        for child in ast.iter_child_nodes(todo.pop(0)):
            if not isinstance(child, ast.stmt):
                todo.append(child)
                yield child


def _line(node: ast.AST) -> str:
    if isinstance(node, list):
        return "; ".join(map(_line, node))
    return ast.unparse(node).splitlines()[0]


class _Swap(ast.NodeTransformer):
    """Replace one node by another."""

    def __init__(self, place: int, other: Any) -> None:
        self.place, self.other = place, other

    def visit(self, node: ast.AST) -> Any:
        """The other node at the given place, else the node with its children visited."""
        if getattr(node, "place", None) == self.place:
            return self.other
        return self.generic_visit(node)


def _swapped(tree: ast.Module, place: int, other: Any) -> str:
    return ast.unparse(ast.fix_missing_locations(_Swap(place, other).visit(copy.deepcopy(tree))))


def _other_statements(node: ast.stmt) -> list[Any]:
    if isinstance(node, ast.Return | ast.FunctionDef):
        return []
    found: list[Any] = [ast.Pass()]
    if isinstance(node, ast.With):
        found.append(node.body)
    elif isinstance(node, ast.Break):
        found.append(ast.Continue())
    elif isinstance(node, ast.AugAssign):
        found.append(ast.Assign([node.target], node.value, lineno=0))
        if type(node.op) in OPPOSITES:
            found.append(ast.AugAssign(node.target, OPPOSITES[type(node.op)](), node.value))
    elif isinstance(node, ast.If | ast.While):
        found += [_with(node, test=ast.Constant(value)) for value in (True, False)]
    return found


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    new = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _others(node: ast.AST) -> list[ast.AST]:
    """The replacements for an expression, by its kind."""
    for kind, make in _MAKERS.items():
        if isinstance(node, kind):
            return make(node)
    return []


def _constants(node: ast.Constant) -> list[ast.AST]:
    if type(node.value) is bool:
        return [ast.Constant(not node.value)]
    if type(node.value) is int:
        wanted = {node.value + 1, node.value - 1, 0} - {node.value}
        return [ast.Constant(v) for v in sorted(wanted)]
    if type(node.value) is float:
        return [ast.Constant(v) for v in (node.value * 2 or 1.0, node.value / 2) if v != node.value]
    return [ast.Constant(TWINS[node.value])] if node.value in TWINS else []


def _comparisons(node: ast.Compare) -> list[ast.AST]:
    kinds = [OPPOSITES[type(node.ops[0])]]
    if isinstance(node.ops[0], ast.Eq):
        kinds += [ast.LtE, ast.GtE]
    return [_with(node, ops=[kind()]) for kind in kinds] if len(node.ops) == 1 else []


def _arithmetic(node: ast.BinOp) -> list[ast.AST]:
    found: list[ast.AST] = [node.left, node.right]
    if type(node.op) in OPPOSITES:
        found.append(_with(node, op=OPPOSITES[type(node.op)]()))
    if not isinstance(node.op, ast.Add | ast.Mult):
        found.append(_with(node, left=node.right, right=node.left))
    return found


def _logic(node: ast.BoolOp) -> list[ast.AST]:
    return [_with(node, op=OPPOSITES[type(node.op)]()), *node.values]


def _calls(node: ast.Call) -> list[ast.AST]:
    found: list[ast.AST] = []
    if len(node.args) >= 2:
        found.append(_with(node, args=[node.args[1], node.args[0], *node.args[2:]]))
    found += [_with(node, keywords=[k for k in node.keywords if k is not drop])
              for drop in node.keywords]
    if isinstance(node.func, ast.Attribute):
        found.append(node.func.value)  # leaves out the call of the method
        if node.func.attr in TWINS:
            found.append(_with(node, func=_with(node.func, attr=TWINS[node.func.attr])))
    elif len(node.args) == 1:
        found.append(node.args[0])
    return found


def _pairs(node: ast.Tuple) -> list[ast.AST]:
    return [_with(node, elts=node.elts[::-1])] if (
        len(node.elts) == 2 and isinstance(node.ctx, ast.Load)) else []


def _loops(node: ast.comprehension) -> list[ast.AST]:
    parts = [_with(node, iter=part) for part in _pieces(node.iter)]
    return parts + [_with(node, ifs=[i for i in node.ifs if i is not drop]) for drop in node.ifs]


def _pieces(iterated: ast.expr) -> list[ast.expr]:
    """Only the first item, only the last, all but the first, all but the last."""
    text = ast.unparse(iterated)
    return [ast.parse(f"list({text}){piece}", mode="eval").body
            for piece in ("[:1]", "[-1:]", "[1:]", "[:-1]")]


_MAKERS: dict[type, Callable[[Any], list[ast.AST]]] = {
    ast.Constant: _constants, ast.Compare: _comparisons, ast.BinOp: _arithmetic,
    ast.BoolOp: _logic, ast.Call: _calls, ast.Tuple: _pairs, ast.comprehension: _loops,
    ast.UnaryOp: lambda node: [node.operand],
    ast.IfExp: lambda node: [node.body, node.orelse],
}


def _wrapped(source: str, function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Mutants of the whole function: results or state cached between calls, loops cut short."""
    name, args = function.name, [a.arg for a in getattr(function, "args", ast.arguments(
        posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])).args]
    yield "the result of the first call kept", (
        f"{source}\n_inner, _kept = {name}, []\n\n\ndef {name}(*a):\n"
        f"    if not _kept:\n        _kept.append(_inner(*a))\n    return _kept[0]\n")
    if "state" in args:
        at = args.index("state")
        yield "one state for all", (
            f"{source}\n_inner, _state = {name}, dict()\n\n\ndef {name}(*a):\n"
            f"    return _inner(*a[:{at}], _state, *a[{at + 1}:])\n")
    for loop in [n for n in ast.walk(function) if isinstance(n, ast.For)]:
        for piece in _pieces(loop.iter):
            tree = ast.parse(source)
            twin = next(n for n in ast.walk(tree) if isinstance(n, ast.For)
                        and n.lineno == loop.lineno)
            twin.iter = piece
            yield f"{_line(loop)} -> {_line(twin)}", ast.unparse(tree)


# ---- trying them

def fate(exercise: judging.Exercise, code: str, papers: Sequence[list]) -> str:
    """"killed" if a mutant fails with every seed, "partly" with some, "survived" with none."""
    space: dict[str, Any] = {"__name__": "worksheet"}
    try:
        exec(compile(code, "<mutant>", "exec"), space)
    except Exception:  # it does not even define its function
        return "killed"
    failed = [_fails(exercise, space[exercise.function], cases) for cases in papers]
    return "killed" if all(failed) else "partly" if any(failed) else "survived"


def _fails(exercise: judging.Exercise, fn: Callable, cases: list) -> bool:
    def stop(*_: Any) -> None:
        raise TooSlow
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        for case in cases:  # one failure is enough
            outcomes = exercise.outcomes(fn, [case])
            if exercise.first_failure([case], outcomes).status != "pass":
                return True
        return False
    except TooSlow:
        return True
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def fates(id: str, setup: str, source: str) -> Iterator[tuple[str, str]]:
    """Name and fate of every mutant of one worked answer."""
    exercise = registry.find(id)
    papers = [exercise.arrange(seed) for seed in SEEDS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, mutant in mutants(source):
            yield name, fate(exercise, f"{setup}\n{mutant}", papers)


def tried(id: str, setup: str, source: str) -> dict[str, Any]:
    """The record of one exercise: how many mutants, how many killed, and which survived."""
    found = dict(fates(id, setup, source))
    known = registry.find(id).equivalents
    return {"mutants": len(found), "killed": sum(f == "killed" for f in found.values()),
            "equivalent": sorted(n for n in known if found.get(n) == "survived"),
            "unexplained": sorted(n for n, f in found.items()
                                  if f != "killed" and not (n in known and f == "survived")),
            "not_needed": sorted(n for n in known if found.get(n) != "survived")}
