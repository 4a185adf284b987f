"""Whether two pieces of code compute the same and are only spelled differently.

    canonical("x = b * a") == canonical("x = a * b") is not None

Code is compared as a syntax tree in a canonical form. Only rewritings that hold for every value of
this repository count: the order of factors, terms that are numbers for sure, `>= 2` for `> 1` of
a whole number, the order of named arguments and of a dict's keys, the names of a comprehension's
variables, one assignment of a tuple for several, and independent assignments in another order.
"""

import ast
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from dlsys_diffs.repository import FOLDER

WHOLE_CALLS = {"len", "numel", "dim", "int"}
WHOLE_NAMES = {"ndim", "step", "updates", "epoch", "position", "good"}
DIGITS = 12  # two factors that agree to these digits are the same number
FLIPPED = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}
NEGATED = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
           ast.Is: ast.IsNot, ast.IsNot: ast.Is}
# For whole numbers only: with NaN, `not a < b` is true and `a >= b` is false.
ORDERED = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt}
Key = tuple | str


@cache
def canonical(code: str) -> Key | None:
    """The canonical form of a file; None if it is not Python."""
    try:
        return _body(ast.parse(code).body, {})
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# ---- statements

def _body(statements: list[ast.stmt], names: dict[str, str]) -> Key:
    found: list[tuple[ast.stmt, Key]] = []
    for statement in statements:
        if _is_docstring(statement):
            continue
        found += [(part, _any(part, names)) for part in _single(statement)]
    return ("body", *_in_order(found))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _single(statement: ast.stmt) -> Iterator[ast.stmt]:
    """`a, b = x, y` as two assignments, if none of the values reads a target."""
    if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
        yield statement
        return
    target, value = statement.targets[0], statement.value
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
            and not any(isinstance(one, ast.Starred) for one in (*target.elts, *value.elts))):
        yield statement
        return
    parts = [ast.Assign([one], other) for one, other in zip(target.elts, value.elts, strict=True)]
    if all(_independent(a, b) for n, a in enumerate(parts) for b in parts[:n]):
        yield from parts
    else:
        yield statement


def _in_order(found: list[tuple[ast.stmt, Key]]) -> list[Key]:
    """Sort each run of assignments in which none reads what another one sets."""
    keys: list[Key] = []
    run: list[tuple[ast.stmt, Key]] = []

    def close() -> None:
        keys.extend(sorted((key for _, key in run), key=repr))
        run.clear()
    for statement, key in found:
        if not (_plain(statement) and all(_independent(statement, one) for one, _ in run)):
            close()
        if _plain(statement):
            run.append((statement, key))
        else:
            keys.append(key)
    close()
    return keys


def _plain(statement: ast.stmt) -> bool:
    """An assignment that calls nothing, so that only what it names matters."""
    return (isinstance(statement, ast.Assign) and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name | ast.Attribute)
            and not any(isinstance(node, ast.Call | ast.Await | ast.NamedExpr)
                        for node in ast.walk(statement)))


def _independent(one: ast.Assign, other: ast.Assign) -> bool:
    """Whether two assignments may be swapped: neither reads or sets what the other one sets."""
    def touched(statement: ast.Assign) -> set[str]:
        return {ast.unparse(node) for node in ast.walk(statement)
                if isinstance(node, ast.Name | ast.Attribute | ast.Subscript)}
    return (ast.unparse(one.targets[0]) not in touched(other)
            and ast.unparse(other.targets[0]) not in touched(one))


# ---- expressions

def _any(node: object, names: dict[str, str]) -> Key:
    """A node of any kind. names: what a comprehension's variables are called here."""
    if isinstance(node, ast.expr):
        return _expression(node, names)
    if isinstance(node, ast.AST):
        return _as_it_is(node, names)
    if isinstance(node, list):
        return _body(node, names) if _is_block(node) else (
            "list", *(_any(one, names) for one in node))
    return repr(node)


def _as_it_is(node: ast.AST, names: dict[str, str]) -> Key:
    return (type(node).__name__, *((name, _any(value, names))
                                   for name, value in ast.iter_fields(node)
                                   if name not in ("ctx", "type_comment", "kind")))


def _expression(node: ast.expr, names: dict[str, str]) -> Key:
    match node:
        case ast.Name(id=name):
            return ("name", names.get(name, name))
        case ast.BinOp(op=ast.Mult() | ast.Div()) | ast.UnaryOp(op=ast.USub()):
            return _product(node, names)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return _sum(node, names)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(ops=[_]) as inside) if (
                negated := _negated(inside)):
            return _any(negated, names)
        case ast.Compare(ops=[_]):
            return _compared(node, names)
        case ast.Call():
            return ("call", _any(node.func, names), *(_any(one, names) for one in node.args),
                    *sorted((str(one.arg), _any(one.value, names)) for one in node.keywords))
        case ast.Dict() if all(isinstance(key, ast.Constant) for key in node.keys):
            return ("dict", *sorted(((_any(key, names), _any(value, names)) for key, value in
                                     zip(node.keys, node.values, strict=True)), key=repr))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return _comprehension(node, names)
    return _as_it_is(node, names)


def _is_block(value: list) -> bool:
    return any(isinstance(one, ast.stmt) for one in value)


def _comprehension(node, names: dict[str, str]) -> Key:
    names = {"": "", **names}
    parts: list[Key] = []
    for one in node.generators:
        source = _any(one.iter, names)
        for target in ast.walk(one.target):
            if isinstance(target, ast.Name):
                names[target.id] = f"variable {names['']}"
                names[""] += "'"
        parts.append((source, _any(one.target, names), _any(one.ifs, names), one.is_async))
    values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    return (type(node).__name__, *parts, *(_any(value, names) for value in values))


def _product(node: ast.expr, names: dict[str, str]) -> Key:
    """Factors and divisors in a canonical order, with one number in front."""
    above, below = [], []

    def collect(part: ast.expr, up: list, down: list) -> Fraction:
        match part:
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return collect(left, up, down) * collect(right, up, down)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                divisor = collect(right, down, up)
                if not divisor:
                    raise ValueError("a division by zero")
                return collect(left, up, down) / divisor
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -collect(operand, up, down)
            case ast.Constant(value=value) if type(value) in (int, float):
                return Fraction(value)
        up.append(_any(part, names))
        return Fraction(1)
    number = collect(node, above, below)
    real = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div) for one in _factors(node)
               ) or any(isinstance(one, ast.Constant) and type(one.value) is float
                        for one in _factors(node))
    if number == 1 and not real and len(above) == 1:
        return above[0]
    return ("product", f"{float(number):.{DIGITS}g}", real, tuple(sorted(above, key=repr)),
            tuple(sorted(below, key=repr)))


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    """A product and everything that is multiplied or divided in it."""
    yield node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        yield from _factors(node.left)
        yield from _factors(node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _factors(node.operand)


def _terms(node: ast.expr, sign: int = 1) -> Iterator[tuple[int, ast.expr]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _terms(node.left, sign)
        yield from _terms(node.right, sign if isinstance(node.op, ast.Add) else -sign)
    else:
        yield sign, node


def _sum(node: ast.expr, names: dict[str, str]) -> Key:
    """Terms in a canonical order if they are numbers; a sum of lists keeps its order."""
    terms = list(_terms(node))
    keys = [(sign, _any(part, names)) for sign, part in terms]
    if any(sign < 0 or _number(part) for sign, part in terms):
        keys.sort(key=repr)
    return ("sum", *keys)


def _number(node: ast.expr) -> bool:
    """Whether this is certainly a number or a tensor, not a list or text."""
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float)
        case ast.BinOp(op=ast.Sub() | ast.Div() | ast.Pow()) | ast.UnaryOp(op=ast.USub()):
            return True
        case ast.BinOp(left=left, op=ast.Mult() | ast.Add(), right=right):
            return all(map(_number, (left, right))) or all(map(_whole, (left, right)))
    return _whole(node)


def _whole(node: ast.expr) -> bool:
    """Whether this is certainly a whole number."""
    match node:
        case ast.Constant(value=value):
            return type(value) is int
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in WHOLE_NAMES | _whole_settings()
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in WHOLE_CALLS
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            return _whole(left) and _whole(right)
    return False


@cache
def _whole_settings() -> set[str]:
    """The settings that are whole numbers."""
    tree = ast.parse((FOLDER / "config.py").read_text("utf-8"))
    return {node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)
            and isinstance(node.annotation, ast.Name) and node.annotation.id == "int"}


def _negated(node: ast.Compare) -> ast.Compare | None:
    """The negated comparison, if it is a comparison as well."""
    op, whole = type(node.ops[0]), all(map(_whole, (node.left, node.comparators[0])))
    other = NEGATED.get(op) or (ORDERED.get(op) if whole else None)
    return ast.Compare(node.left, [other()], node.comparators) if other else None


def _compared(node: ast.Compare, names: dict[str, str]) -> Key:
    """`a > b` as `b < a`; for whole numbers `a < b` as `a <= b - 1`, by their difference."""
    left, op, right = node.left, type(node.ops[0]), node.comparators[0]
    if op in FLIPPED:
        left, op, right = right, FLIPPED[op], left
    if op in (ast.Lt, ast.LtE) and _whole(left) and _whole(right):
        terms = [*_terms(left), *_terms(right, -1)]
        number = sum(sign * part.value for sign, part in terms if isinstance(part, ast.Constant))
        rest = sorted(((sign, _any(part, names)) for sign, part in terms
                       if not isinstance(part, ast.Constant)), key=repr)
        return ("at most 0", number + (op is ast.Lt), *rest)
    sides = [_any(left, names), _any(right, names)]
    if op in (ast.Eq, ast.NotEq):
        sides.sort(key=repr)
    return (op.__name__, *sides)
