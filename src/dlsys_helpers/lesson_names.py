"""How commands and files name a lesson: the stages, and *Your model* after them."""

from pathlib import Path

YOUR_MODEL = "your_model"  # a lesson after the stages, without traps


def with_model(found: list[Path]) -> list[Path]:
    """These lesson files and the lesson of *Your model*, from the folder of the first."""
    return [*found, *(path.with_stem(YOUR_MODEL) for path in found[:1])]


def key(path: Path) -> str:
    """How commands name a lesson: "05", or "your_model"."""
    return path.stem if path.stem == YOUR_MODEL else path.stem[:2]
