"""The error that a broken law raises, and the comparisons that raise it.

It shows measured and expected values in a few words, however large they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from dlsys_helpers import acting
from dlsys_helpers.acting import Foreign

LONGEST = 60  # characters of a value in a message


class Broken(Exception):
    """A law does not hold. `what` is measured; `look` says where to look or what to do.

    shown: `got` and `expected` in words, if the values themselves say too little.
    """

    def __init__(self, what: str, got: Any, expected: Any, look: str = "",
                 shown: tuple[str, str] | None = None) -> None:
        mine, wanted = shown or _told_apart(got, expected)
        super().__init__(f"{what}: got {mine}, expected {wanted}. {look}".strip())
        self.what, self.got = what, got


def _told_apart(got: Any, expected: Any) -> tuple[str, str]:
    """Both values in words, with all their digits if they would otherwise look the same."""
    mine, wanted = show(got), show(expected)
    if mine == wanted and type(got) is type(expected) is float:
        return repr(got), repr(expected)
    return mine, wanted


def show(value: Any) -> str:
    """A value in a few words, at most 60 characters; a large value takes no longer."""
    if isinstance(value, torch.Tensor):
        return _show_tensor(value)
    if isinstance(value, Foreign):
        return f"a {value.type_name[:LONGEST]}"
    if isinstance(value, float):
        return _number(value)
    text = value[:LONGEST + 1] if type(value) is str else _start(value)
    return text if len(text) <= LONGEST else text[:LONGEST - 3] + "..."


def _show_tensor(value: torch.Tensor) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    if value.numel() > 4 or value.layout is not torch.strided:
        return f"a {kind} tensor of shape {tuple(value.shape)}"
    return f"{[_number(v) for v in value.flatten().tolist()]} ({kind})".replace("'", "")


def _start(value: Any) -> str:
    """The start of str(value), longer than LONGEST if str(value) is."""
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > LONGEST:
            break
    return text


def _pieces(value: Any) -> Iterator[str]:
    """str(value) in pieces; each level yields its bracket first, so no nesting is too deep."""
    if type(value) in (list, tuple):
        yield "[" if type(value) is list else "("
        for place, item in enumerate(value):
            yield ", " if place else ""
            yield from _pieces(item)
        yield "]" if type(value) is list else ",)" if len(value) == 1 else ")"
    elif type(value) is dict:
        yield "{"
        for place, (key, item) in enumerate(value.items()):
            yield ", " if place else ""
            yield from _pieces(key)
            yield ": "
            yield from _pieces(item)
        yield "}"
    else:
        yield _atom(value)


def _atom(value: Any) -> str:
    """A value without parts, as it is shown in a list."""
    if type(value) is str:
        return repr(value[:LONGEST + 1])
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"  # str() refuses very long ones
    if isinstance(value, Foreign) or (isinstance(value, torch.Tensor) and value.numel() > 4):
        return show(value)
    return str(value)


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def expect_type(what: str, got: Any, kind: type | tuple[type, ...], look: str = "") -> None:
    """Raise Broken unless `type(got)` is exactly `kind` (or one of them)."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(got) not in kinds:
        names = " or ".join(k.__name__ for k in kinds)
        got_name = got.type_name if isinstance(got, Foreign) else type(got).__name__
        if got_name.startswith("numpy."):
            look = f"{look} Convert a numpy number with .item().".strip()
        raise Broken(f"type of the {what}", got_name, names, look)


def expect_equal(what: str, got: Any, expected: Any, look: str = "") -> None:
    """Raise Broken unless type and value agree exactly; tensors in shape and dtype as well."""
    if isinstance(expected, torch.Tensor):
        expect_close(what, got, expected, rtol=0.0, atol=0.0, look=look)
        return
    expect_type(what, got, type(expected), look)
    if not acting.same(got, expected):
        raise Broken(what, got, expected, look)


def expect_close(what: str, got: Any, expected: Any, *, rtol: float = 1e-4,
                 atol: float | None = None, look: str = "") -> None:
    """Raise Broken unless `got` is near `expected` (float or tensor); NaN never agrees.

    Type, shape and dtype are compared first, so nothing is broadcast into agreement. atol: by
    default a hundredth of rtol times the largest absolute entry of `expected`, so that the
    tolerance follows the size of what is compared.
    """
    if atol is None:
        atol = 0.01 * rtol * _largest(expected)
    if not _is_like(got, expected):
        expect_like(what, got, expected, _only_form(got, expected, rtol, atol) or look)
    if not isinstance(expected, torch.Tensor):
        # A NaN in `got` makes this comparison false, so it cannot slip through.
        if not abs(got - expected) <= atol + rtol * abs(expected):
            raise Broken(what, got, expected, look)
    elif not torch.allclose(got, expected, rtol=rtol, atol=atol):
        raise Broken(what, got, expected, look, shown=_worst(got, expected))


def _largest(expected: Any) -> float:
    if not isinstance(expected, torch.Tensor):
        return abs(expected)
    return float(expected.abs().max()) if expected.numel() else 0.0


RIGHT_NUMBERS = "The numbers are right; only the form is not."


def _only_form(got: Any, expected: Any, rtol: float, atol: float) -> str:
    """RIGHT_NUMBERS when `got` differs from `expected` only in type, shape or dtype, else ""."""
    mine, wanted = (torch.as_tensor(v) if type(v) in (int, float) and abs(v) < 2**53 else v
                    for v in (got, expected))
    tensors = all(type(v) is torch.Tensor and v.layout is torch.strided and not v.is_complex()
                  for v in (mine, wanted))
    if not tensors or mine.numel() != wanted.numel():
        return ""
    near = torch.allclose(mine.flatten().double(), wanted.flatten().double(), rtol=rtol, atol=atol)
    return RIGHT_NUMBERS if near else ""


def expect_like(what: str, got: Any, expected: Any, look: str = "") -> None:
    """Raise Broken unless `got` has the type of `expected`; tensors shape and dtype as well.

    Check every value here before a law calculates with it: multiplying small tensors of a wrong
    shape, or without elements, can take gigabytes.
    """
    expect_type(what, got, type(expected), look)
    for aspect in ("shape", "dtype") if isinstance(expected, torch.Tensor) else ():
        mine, wanted = getattr(got, aspect), getattr(expected, aspect)
        if mine != wanted:
            pair = (tuple(mine), tuple(wanted)) if aspect == "shape" else (
                str(mine), str(wanted))
            raise Broken(f"{aspect} of the {what}", *pair, look)


def _is_like(got: Any, expected: Any) -> bool:
    """Whether `expect_like` would raise nothing."""
    return type(got) is type(expected) and (type(got) is not torch.Tensor or (
        got.shape == expected.shape and got.dtype == expected.dtype))


def expect_length(what: str, got: Any, length: int, look: str = "") -> None:
    """Raise Broken unless `got` is a list of this length."""
    expect_type(what, got, list)
    if len(got) != length:
        raise Broken(f"number of {what}", len(got), length, look)


def expect_parts(out: Any, *names: str, what: str = "data from the exercise's run") -> None:
    """Raise Broken unless `out` is a dict of exactly these parts.

    An act returns exactly these, so anything else did not come from the act.
    """
    expect_type(what, out, dict)
    if set(out) != set(names):
        raise Broken(f"parts of the {what}", list(out), list(names))


def _worst(got: torch.Tensor, expected: torch.Tensor) -> tuple[str, str]:
    """The entry with the largest error, as text: where, got and expected."""
    error = (got.double() - expected.double()).abs().nan_to_num(nan=math.inf).flatten()
    at = int(error.argmax())
    place = [int(i) for i in np.unravel_index(at, got.shape)]  # torch's own imports sympy
    where = f" at {place}" if place else ""
    mine, wanted = _told_apart(*(v.flatten()[at].item() for v in (got, expected)))
    return f"{mine}{where}", wanted
