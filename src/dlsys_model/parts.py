"""A model's parts: the learner's functions where their exercises pass, stand-ins for the others.

A part is *yours* where the last check of its exercise passed. Otherwise the named stand-in takes
its place, whatever the worksheet holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

from dlsys_helpers import paths
from dlsys_model import answers
from dlsys_model.errors import ModelError
from dlsys_model.part_table import BY_ID, CATALOGUE, OURS, Part


class PartBroke(ModelError):
    """A learner's answer failed inside the model. The message names part, shapes and exercise."""

    def __init__(self, part: Part, what: str) -> None:
        super().__init__(f"part {part.id} {part.function} {what} To go on with "
                         f"{_in_place(part)} in its place: parts.without(\"{part.id}\"); your "
                         f"answer stays as it is. Its check: dlsys check {part.id}")
        self.part, self.what = part, what.rstrip(".")


def _in_place(part: Part) -> str:
    return "the stand-in" if part.standin == OURS else part.standin


class Parts:
    """The parts by name: `parts.decode_step(...)`; `parts.mine` holds the ids that are yours.

    An error in a learner's part becomes PartBroke; so does a result whose shape, dtype or device
    differs from those of the argument it must match.
    """

    def __init__(self, own: dict[str, Callable] | None = None, notes: Iterable[str] = (),
                 folder: Path | None = None) -> None:
        """own: the learner's functions by exercise id. notes: why others are not among them.

        folder: of the worksheets that they come from, for another process to load.
        """
        from dlsys_model import standins

        self._own, self.notes, self.folder = dict(own or {}), tuple(notes), folder
        self.mine = frozenset(self._own)
        for part in CATALOGUE:
            fn = self._own.get(part.id)
            setattr(self, part.function,
                    guarded(part, fn) if fn else getattr(standins, part.function))

    def without(self, *ids: str) -> Parts:
        """The same parts with stand-ins for these exercises. Raises PartsError for a wrong id."""
        _known(ids)
        return Parts({id: fn for id, fn in self._own.items() if id not in ids}, self.notes,
                     self.folder)

    def only(self, *ids: str) -> Parts:
        """The same parts with stand-ins for all but these exercises."""
        _known(ids)
        return Parts({id: fn for id, fn in self._own.items() if id in ids}, self.notes,
                     self.folder)

    def origin(self) -> tuple[str, list[str]]:
        """What `load` needs to make the same parts elsewhere: folder and ids."""
        return str(self.folder or paths.MY_WORK), sorted(self.mine)


class PartsError(ModelError):
    """No such part."""


def _known(ids: Iterable[str]) -> None:
    for id in ids:
        if id not in BY_ID:
            raise PartsError(f"part: got {str(id)[:40]!r}, expected an exercise that is one, such "
                             "as 08.10. All of them: dlsys parts")


def guarded(part: Part, fn: Callable) -> Callable:
    """The learner's function, whose failures name the part, what it got, and what to do."""
    @wraps(fn)
    def call(*args, **kwargs):
        try:
            result = fn(*args, **kwargs)
        except (PartBroke, KeyboardInterrupt):
            raise
        except Exception as error:
            raise PartBroke(part, f"broke in the model, with {_seen(args)}: "
                                  f"{type(error).__name__}: {_line(error)}.") from error
        if part.like is not None:
            _alike(part, args, result)
        return result
    return call


def _alike(part: Part, args: tuple, result: Any) -> None:
    """Compare the result's shape, dtype and device with those of the argument it must match."""
    wanted, got = _looks(args[part.like]), _looks(result)
    if wanted != got:
        raise PartBroke(part, f"returned {got} in the model, expected {wanted}, with "
                              f"{_seen(args)}.")


def _looks(value: Any) -> str:
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return type(value).__name__
    where = "" if value.device.type == "cpu" else f" on {value.device}"
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}{where}"


def _seen(args: tuple) -> str:
    """The tensors among the arguments, as shapes and dtypes."""
    found = [_looks(arg) for arg in args if hasattr(arg, "shape")]
    return ", ".join(found[:4]) or "no tensor"


def _line(error: Exception) -> str:
    """The first line of an error's text, short."""
    return (str(error).strip().split("\n") or [""])[0][:120].rstrip(". ")


def load(folder: Path | str | None = None, passed: Iterable[str] | None = None) -> Parts:
    """The parts of this learner: answers in my-work/ whose last check passed, else stand-ins.

    folder: another folder of worksheets. passed: ids that count as passed instead of the progress
    file's. An answer that cannot be read is replaced, and `notes` says why.
    """
    where = Path(folder) if folder else paths.MY_WORK
    own, notes = answers.functions(where, passed)
    return Parts(own, notes, where)
