"""A class's wheel: the course's, without what belongs to other stages or was not handed out."""

import base64
import hashlib
import json
import re
import zipfile
from collections.abc import Collection
from pathlib import Path

# Files that belong to one stage. The catalog stays, because progress and finder name all traps. So
# do files that several checks share: those of stage 9 import some of stage 2's.
OF_STAGE = re.compile(r"dlsys_checks/(?:s(\d\d)/e\d|questions/q(\d\d)\.)"
                      r"|dlsys_helpers/recorded/(\d\d)/|dlsys/course/\w+/(\d\d)_\w+\.ipynb$")
CATALOG = re.compile(r"dlsys_helpers/catalog/(\d\d)\.json$")
EXPLORER = re.compile(r"dlsys_helpers/explorers/([a-z]\w*)\.py$")
IMPORTED = re.compile(rb"dlsys_helpers\.explorers\.(\w+)")
# *Your model*, except for the list of its parts: `dlsys parts` runs without the rest.
MODEL = re.compile(r"dlsys_model/(?!(?:__init__|answers|errors|part_table)\.py$)"
                   r"|dlsys/course/\w+/your_model\.ipynb$")
# Files for the instructor only: they name mistakes of all stages, or an exam is made of them. A
# class uses its instructor's desk; its wheel has the sheet's form and the names of the looks.
INSTRUCTORS = re.compile(r"dlsys_checks/aims\.json$"
                         r"|dlsys_checks/exam/(?!(?:__init__|sheet|ledger|numbers)\.py$)"
                         r"|dlsys/exam_(?:desk|names|served)\.py$")
RECORD = ".dist-info/RECORD"


def write(wheel: Path, target: Path, stages: Collection[int], model: bool = False) -> None:
    """Copy a wheel to `target`, which must not exist, with the files of these stages only.

    model: with *Your model*, whose stand-ins solve some of the exercises.
    """
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(
            target, "x", zipfile.ZIP_DEFLATED, compresslevel=9) as part:
        members = [m for m in whole.infolist() if belongs(m.filename, stages, model)]
        used = {name.decode() for m in members if m.filename.endswith(".ipynb")
                for name in IMPORTED.findall(whole.read(m))}
        listed = []
        for member in members:
            name, held = member.filename, whole.read(member)
            explorer = EXPLORER.search(name)
            if explorer and explorer[1] not in used:
                continue
            if (found := CATALOG.search(name)) and int(found[1]) not in stages:
                held = _without_hints(held)
            listed.append(_row(name, held))
            if name.endswith(RECORD):
                listed[-1] = f"{name},,\n"
                held = "".join(listed).encode()  # RECORD is a wheel's last file
            part.writestr(member, held, zipfile.ZIP_DEFLATED, 9)


def belongs(name: str, stages: Collection[int], model: bool) -> bool:
    """Whether a file of the wheel is for one of these stages, for all, or for *Your model*."""
    if MODEL.search(name):
        return model
    if INSTRUCTORS.search(name):
        return False
    found = OF_STAGE.search(name)
    return not found or int(next(filter(None, found.groups()))) in stages


def _without_hints(catalog: bytes) -> bytes:
    """The catalog without hints, which finder and progress do not show: half the bytes."""
    traps = [trap | {"hints": []} for trap in json.loads(catalog)]
    return (json.dumps(traps, indent=1, ensure_ascii=False) + "\n").encode()


def _row(name: str, held: bytes) -> str:
    """A file's line in the wheel's RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(held).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(held)}\n"
