"""An optimizer's groups, which hand-made ones share: each trainable tensor in its own, once.

An act hands groups on by names: that of the parameter, "buffer ..." or "a copy or another tensor".
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
    """Hold a list of {"params": names, setting: ...} to `wanted`.

    words: what each group is called. wanted: the place of each trainable tensor in the list, by
    its name. elsewhere: where to look when a tensor stands in another group. Raises Broken.
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
                     "A tensor stands in it twice.")


def _names_in(group: Any, word: str, setting: str) -> list[str]:
    """The sorted names of one group's tensors. Raises Broken for another form."""
    expect_parts(group, "params", setting, what=f"{word} group")
    expect_type(f"params of the {word} group", group["params"], list)
    for name in group["params"]:
        expect_type("name of a tensor in a group", name, str)
    return sorted(group["params"])


def _stray(name: str, wanted: Mapping[str, int], elsewhere: str) -> tuple[str, str]:
    """What was expected in place of this tensor in this group, and why."""
    if name.startswith(("a ", "buffer ")):
        return "a parameter of the model", "Hand over the parameters themselves, not a copy."
    if name not in wanted:
        return "no frozen tensor", "It is frozen."
    return "it elsewhere", elsewhere
