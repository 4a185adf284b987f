"""The traps and exercises that the lessons declare, read from one generated file per stage.

The lessons are the source; ``make build`` writes the files. Nothing is read before the first call.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dlsys_helpers import stages
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import Stage

FOLDER = Path(__file__).with_name("catalog")


class CatalogError(UserError):
    """The catalog is missing, unreadable, or does not contain the requested id."""


@dataclass(frozen=True)
class Trap:
    """A trap and its exercise, as the lesson declares them.

    ``title`` is the situation, the trap's heading until the guess is made; ``fault`` is
    what goes wrong, in the words that people search for. ``function`` is the learner's;
    ``core`` marks a trap on the short route through a stage.
    """

    id: str
    title: str
    fault: str
    symptom: str
    function: str
    points: int
    difficulty: int
    minutes: int
    core: bool
    hints: tuple[str, ...]

    @property
    def name(self) -> str:
        """The fault as a heading or a list shows it."""
        return sentence_case(self.fault)


def sentence_case(text: str) -> str:
    """Capitalize a text's first letter, unless the text begins with code such as `view(-1)`."""
    first = text.partition(" ")[0].rstrip(".,:;")
    return text if set(first) & set("_.()=") else text[:1].upper() + text[1:]


def path(stage: int) -> Path:
    """Where the traps of a stage are stored."""
    return FOLDER / f"{stage:02d}.json"


@cache
def all_stages(folder: Path) -> dict[int, tuple[Trap, ...]]:
    """The traps of each written stage. Raises CatalogError with what to do."""
    files = sorted(folder.glob("[0-9][0-9].json"))
    if not files:
        raise CatalogError(f"{folder.name}/: not found beside the package, expected the generated "
                           "files. Run: make build")
    return {int(file.stem): _read(file) for file in files}


def _read(file: Path) -> tuple[Trap, ...]:
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return tuple(Trap(**{**entry, "hints": tuple(entry["hints"])}) for entry in entries)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CatalogError(
            f"{file.parent.name}/{file.name}: cannot be read ({type(error).__name__}), expected "
            "generated JSON. Run: git checkout -- src/dlsys_helpers/catalog, or make build"
        ) from None


def written() -> list[Stage]:
    """The stages whose lesson is written, in order. Raises CatalogError without a catalog."""
    return [stages.stage(number) for number in sorted(all_stages(FOLDER))]


def traps(stage: int | None = None) -> list[Trap]:
    """The traps of one stage, or of all stages, in the order of their lesson.

    A stage that is not written yet has none. Raises CatalogError if there is no catalog,
    ValueError for a number that no stage has.
    """
    if stage is not None:
        stages.stage(stage)
    return [trap for number, found in sorted(all_stages(FOLDER).items()) if stage in (None, number)
            for trap in found]


def as_id(text: str) -> str:
    """Normalize an id as people write it, "1.4" or " 01.4", to "01.4", whether known or not."""
    number, _, rest = text.strip().partition(".")
    return f"{number.zfill(2)}.{rest}"


def trap(id: str) -> Trap:
    """The trap with this id, such as ``"01.4"``. Raises CatalogError for an unknown one."""
    for one in traps():
        if one.id == id:
            return one
    raise CatalogError(f"trap: got {str(id)[:40]!r}, known ids {_known(str(id))}.")


def _known(id: str) -> str:
    """The ids of the same stage, or of all stages when the stage is unknown too."""
    ids = [one.id for one in traps()]
    near = [other for other in ids if other.partition(".")[0] == id.partition(".")[0]]
    if near or len(ids) <= 30:
        return ", ".join(near or ids) or "none yet"
    return f"{ids[0]} to {ids[-1]}"
