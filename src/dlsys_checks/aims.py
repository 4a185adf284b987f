"""What an exercise is about, and which hint belongs to which mistake: `aims.json`, read once.

    "08.4": {"promise": "memory", "hints": {
        "1": ["leaving out the causal mask", ...], ...}}

promise: the key of the trap's own promise, which has a fixed share of the partial points. hints:
the number of a hint in the worksheet, and the registered mistakes that it helps with. A person
chose both; a test compares every word with the checks and the lessons.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _aims() -> dict[str, dict[str, Any]]:
    path = Path(__file__).with_suffix(".json")  # a class's wheel has none
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def own_promise(id: str) -> str:
    """The key of the promise that an exercise's trap is about, "" if none is named."""
    return _aims().get(id, {}).get("promise", "")


def hint_for(id: str, mistake: str, hints: tuple[str, ...]) -> str:
    """The hint of an exercise that belongs to a registered mistake, "" if none does."""
    for number, mistakes in _aims().get(id, {}).get("hints", {}).items():
        if mistake in mistakes and int(number) <= len(hints):
            return hints[int(number) - 1]
    return ""
