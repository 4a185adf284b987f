"""What a run of `dlsys grade` is made of: its key, its limits, whether it has walls, its stage.

Judges, walls and books all read it, so it imports none of them.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Any

from dlsys_helpers.timeouts import SECONDS

TIMES = 20  # a submission may take this many times the limit of one cell or exercise


@dataclass(frozen=True)
class Limits:
    """What one submission may use. Bytes and seconds; `seconds` is for a cell or an exercise."""

    seconds: float = SECONDS
    total: float = TIMES * SECONDS  # seconds for all of it, whatever its parts do
    memory: int = 2 * 2**30
    processes: int = 32  # the kernel's memory grows with it, and the watch does not see that
    disk: int = 64 * 2**20
    files: int = 4096
    open_files: int = 256

    def plain(self) -> dict[str, Any]:
        """The limits as JSON, for the record and for the zygote."""
        return asdict(self)


@dataclass(frozen=True)
class Settings:
    """What a run is made of, as it goes to the workers and into the record.

    key: hex; all cases follow from it. stage: overrides what the notebooks say, or None. exam: the
    folder of the desk at which exam sheets were sat, "" for none.
    """

    key: str
    limits: Limits
    walled: bool = True
    stage: int | None = None
    exam: str = ""

    def plain(self) -> dict[str, Any]:
        """The settings as JSON."""
        return asdict(self)

    @staticmethod
    def read(facts: dict[str, Any]) -> Settings:
        """The settings from what `plain` returned."""
        return Settings(**{**facts, "limits": Limits(**facts["limits"])})


def fresh_key() -> str:
    """A new secret for a run."""
    return secrets.token_hex(16)
