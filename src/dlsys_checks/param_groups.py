"""Judge the parameter groups of an optimizer: each trainable tensor in the right group, once.

An act describes each tensor in a group by a name: the parameter's name, "buffer ..." or "a copy or
another tensor".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlsys_helpers.expect import (
    Broken,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
    show,
)


def expect_groups(groups: Any, words: Sequence[str], setting: str, wanted: Mapping[str, int],
                  elsewhere: str) -> None:
    """Compare a list of {"params": names, setting: ...} with `wanted`.

    words: what each group is called. wanted: for each trainable tensor, by name, the
    position of its group in the list. elsewhere: where to look when a tensor is
    in the wrong group. Raises Broken.
    """
    expect_type("list of groups", groups, list)
    expect_length("groups", groups, len(words))
    held = [_names_in(group, word, setting) for group, word in zip(groups, words, strict=True)]
    for place, word in enumerate(words):
        mine = [name for name, where in wanted.items() if where == place]
        for name in [name for name in held[place] if name not in mine][:1]:
            expected, why = _stray(name, wanted, elsewhere)
            raise Broken(f"{word} group", f"{show(name)} in it", expected, why)
        for name in [name for name in mine if name not in held[place]][:1]:
            raise Broken(f"{word} group", f"{name} missing", "every trainable tensor")
        expect_equal(f"size of the {word} group", len(held[place]), len(mine),
                     "One tensor is in it twice.")


def _names_in(group: Any, word: str, setting: str) -> list[str]:
    """The sorted names of one group's tensors. Raises Broken if the group has the wrong form."""
    expect_parts(group, "params", setting, what=f"{word} group")
    expect_type(f"params of the {word} group", group["params"], list)
    for name in group["params"]:
        expect_type("name of a tensor in a group", name, str)
    return sorted(group["params"])


def _stray(name: str, wanted: Mapping[str, int], elsewhere: str) -> tuple[str, str]:
    """What was expected instead of this tensor in this group, and why."""
    if name.startswith(("a ", "buffer ")):
        return "a parameter of the model", "Pass the parameters themselves, not a copy."
    if name not in wanted:
        return "no frozen tensor", "This tensor is frozen."
    return "it in a different group", elsewhere
