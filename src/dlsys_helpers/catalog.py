"""What the lessons declare: traps and exercises, read from the generated ``catalog.json``.

The lessons are the source; ``make build`` writes the file. Nothing is read before the first call.
"""

import json
from functools import cache
from pathlib import Path

from dlsys_helpers import stages

CATALOG = Path(__file__).with_name("catalog.json")


class CatalogError(LookupError):
    """The catalog is missing, unreadable, or does not hold the id asked for."""


@cache
def _load(path: Path) -> list[dict]:
    """The catalog's stages. Raises CatalogError with what to do."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["stages"]
    except FileNotFoundError:
        raise CatalogError(
            f"{path.name}: not found beside the package, expected the generated file. "
            "Run: make build"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CatalogError(
            f"{path.name}: cannot be read ({type(error).__name__}), expected generated JSON. "
            "Run: git checkout -- src/dlsys_helpers/catalog.json, or make build"
        ) from None


def traps(stage: int | None = None) -> list[dict]:
    """The traps of one stage in lesson order, or of all stages.

    Each is a dict with id, title, symptom, function, points, difficulty, minutes, hints.
    A stage that is not written yet has none. Raises CatalogError when there is no catalog,
    ValueError for a stage outside 1 to 12.
    """
    if stage is not None:
        stages.stage(stage)
    found = [s for s in _load(CATALOG) if stage in (None, s["number"])]
    return [trap for s in found for trap in s["traps"]]


def trap(id: str) -> dict:
    """The trap with this id, such as ``"01.4"``. Raises CatalogError for an unknown one."""
    for one in traps():
        if one["id"] == id:
            return one
    raise CatalogError(f"trap: got {str(id)[:40]!r}, known ids {_known(str(id))}.")


def _known(id: str) -> str:
    """The ids of the same stage, or of all stages when the stage is unknown too."""
    ids = [one["id"] for one in traps()]
    near = [other for other in ids if other.partition(".")[0] == id.partition(".")[0]]
    if near or len(ids) <= 30:
        return ", ".join(near or ids) or "none yet"
    return f"{ids[0]} to {ids[-1]}"
