"""Attributes that are replaced while the watch runs, and put back when it ends."""

from __future__ import annotations

import builtins
import functools
import sys
import types

from torch.jit import _builtins as scripts

from dlsys_watch.frames import hidden

ABSENT = object()


class Patches:
    """Replaced attributes of modules and classes, to be undone together."""

    def __init__(self):
        self._done = []
        self._made = {}   # (owner, name) -> (value, maker, wrapper): to make one takes 20 us

    def replace(self, owner, name: str, make) -> None:
        """Set `owner.name` to `make(its present value)`, which looks the same from outside.

        What the same maker has made of the same value before is used again. A builtin is known to
        torch.jit by its id, under which the wrapper is registered as well.
        """
        real = getattr(owner, name)
        value, maker, new = self._made.get((owner, name), (None, None, None))
        if value is not real or maker is not make:
            new = wrapper(owner, name, real, make)
            self._made[owner, name] = real, make, new
        if isinstance(owner, types.ModuleType) and not hasattr(real, "__code__") and (
                known := scripts._find_builtin(real)):
            scripts._register_builtin(new, known)
        for place in (owner, *home(real, name, owner)):
            self._done.append((place, name, vars(place).get(name, ABSENT), new))
            setattr(place, name, new)

    def undo(self) -> None:
        """Put back what stood there, except where somebody else has patched since."""
        while self._done:
            owner, name, own, new = self._done.pop()
            scripts._get_builtin_table().pop(id(new), None)  # a later function may have this id
            if vars(owner).get(name) is not new:
                continue
            if own is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def wrapper(owner, name: str, real, make):
    """What `make` makes of a value, in the looks of that value.

    Its frame is hidden, and it has the globals of what it wraps, as torch.jit.script and doctest
    expect: it may use only what it closes over.
    """
    new = make(real)
    names = getattr(real, "__globals__", {"__builtins__": builtins})
    new = hidden(types.FunctionType(new.__code__, names, name, new.__defaults__, new.__closure__))
    functools.update_wrapper(new, real)
    if not hasattr(real, "__code__"):  # a builtin: pickle finds it by its place
        new.__name__, new.__module__, new.__qualname__ = located(owner, name)
    return new


def located(owner, name: str) -> tuple[str, str, str]:
    """Name, module and qualified name under which `owner.name` is found."""
    if isinstance(owner, types.ModuleType):
        return name, owner.__name__, name
    return name, owner.__module__, f"{owner.__qualname__}.{name}"


def home(real, name: str, owner) -> list:
    """The module in which pickle looks for a function that `owner` has imported from there."""
    module = sys.modules.get(getattr(real, "__module__", None) or "")
    found = module is not None and module is not owner and vars(module).get(name) is real
    return [module] if found and hasattr(real, "__code__") else []
