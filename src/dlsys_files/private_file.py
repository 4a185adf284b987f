"""Write a file that only its owner may read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_private(path: Path, content: str | bytes, encoding: str = "utf-8") -> None:
    """Write a file with mode 0600, whole or not at all; it replaces an existing file."""
    data = content.encode(encoding) if isinstance(content, str) else content
    temporary = path.with_name(path.name + ".part")
    with suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    temporary.replace(path)
