"""A class's wheel: the course's, without the checks, questions and notebooks of other stages."""

import re
import zipfile
from collections.abc import Collection
from pathlib import Path

# Files that belong to one stage. The catalog stays: progress and finder name all traps.
OF_STAGE = re.compile(
    r"dlsys_checks/(?:s|questions/q)(\d\d)[./]|dlsys/course/\w+/(\d\d)_\w+\.ipynb$")
RECORD = ".dist-info/RECORD"


def write(wheel: Path, target: Path, stages: Collection[int]) -> None:
    """Copy a wheel to `target`, which must not exist, with the files of these stages only."""
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(
            target, "x", zipfile.ZIP_DEFLATED, compresslevel=9) as part:
        for member in whole.infolist():
            if belongs(member.filename, stages):
                held = whole.read(member)
                if member.filename.endswith(RECORD):
                    held = _listed(held, stages)
                part.writestr(member, held, zipfile.ZIP_DEFLATED, 9)


def belongs(name: str, stages: Collection[int]) -> bool:
    """Whether a file of the wheel, or a line of its list, is for one of these stages or for all."""
    found = OF_STAGE.search(name)
    return not found or int(found[1] or found[2]) in stages


def _listed(record: bytes, stages: Collection[int]) -> bytes:
    """The wheel's list of files, without those that are left out."""
    lines = record.decode().splitlines(keepends=True)
    return "".join(line for line in lines if belongs(line.partition(",")[0], stages)).encode()
