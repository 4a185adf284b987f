"""The rules, one file each; a new file is found by itself."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from dlsys_watch.rule import Rule


@functools.cache
def all_rules() -> tuple[type[Rule], ...]:
    """The classes of all rules, by trap and name."""
    found = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found += [kind for kind in vars(module).values() if isinstance(kind, type)
                  and issubclass(kind, Rule) and kind.__module__ == module.__name__]
    return tuple(sorted(found, key=lambda kind: (kind.trap, kind.id)))
