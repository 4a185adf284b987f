"""What the user asked for: on the command line, or in [tool.dlsys.watch] of a pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

KEYS = {"silence": list, "hints": bool}


class SettingsError(Exception):
    """A setting that cannot be used, in one line: what, got, expected, what to do."""


@dataclass(frozen=True)
class Settings:
    """hints: also guesses; silence: rules left out; json, output: files for the findings.

    steps: how many optimizer steps are watched, None for all. form: of the lines, or of `output`
    where there is one. baseline: what is known; new_baseline: where to write that.
    """

    hints: bool = False
    strict: bool = False
    debug: bool = False
    silence: frozenset[str] = field(default_factory=frozenset)
    json: Path | None = None
    steps: int | None = None
    form: str = "text"
    output: Path | None = None
    baseline: Path | None = None
    new_baseline: Path | None = None
    on_finding: Callable | None = None

    @property
    def line_form(self) -> str:
        """The form of the lines on stderr."""
        return self.form if self.output is None else "text"

    def with_file(self, folder: Path) -> Settings:
        """These settings and those of the nearest pyproject.toml at or above `folder`."""
        for parent in (folder, *folder.parents):
            if (file := parent / "pyproject.toml").is_file():
                found = read(file)
                return replace(self, hints=self.hints or found.get("hints", False),
                               silence=self.silence | frozenset(found.get("silence", ())))
        return self


def read(file: Path) -> dict:
    """The table [tool.dlsys.watch] of a file, {} where it has none. Raises SettingsError."""
    import tomllib

    try:
        table = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("dlsys", {})
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file}: cannot be read as TOML: {error}. Mend the file.") from None
    table = table.get("watch", {})
    for key, value in table.items():
        if not isinstance(value, KEYS.get(key, ())):
            wanted = ", ".join(f"{name} ({kind.__name__})" for name, kind in KEYS.items())
            raise SettingsError(f"{file}: [tool.dlsys.watch] has {key} = {value!r}, expected "
                                f"{wanted}. Correct the entry or remove it.")
    return table
