"""Find what was handed in, and read it: notebooks, folders, zips, downloads of Canvas and Moodle.

Nothing is unpacked to disk, no link is followed, and every size is capped before it is used.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from dlsys_helpers import stages
from dlsys_helpers.grading.text import clean

LARGEST = 8 * 2**20       # bytes of one notebook
MOST_ENTRIES = 20_000     # files in one zip or folder
MOST_CELLS = 1000
LARGEST_RATIO = 200       # unpacked over packed; notebooks with text reach about 20
LARGEST_NESTED = 32 * 2**20  # bytes of a zip that a learner handed in

_CANVAS = re.compile(r"(?P<who>[^_/]+)_(?:LATE_)?(?P<id>\d+)_\d+_(?P<file>.+)", re.I)
_MOODLE = re.compile(r"(?P<who>.+)_(?P<id>\d+)_assignsubmission_file_?")
_CHECK = re.compile(r"""check\(\s*["'](\d\d\.\d+)["']\s*,\s*([A-Za-z_]\w*)\s*\)""")


class Refused(ValueError):
    """This submission cannot be graded. The message is the reason, fit to be shown."""


@dataclass(frozen=True)
class Learner:
    """Whose submission it is: a name to show, and the id that the download gave, if any."""

    name: str
    id: str = ""
    source: str = ""  # "canvas", "moodle" or ""


_ANYONE = Learner("")


@dataclass(frozen=True)
class Submission:
    """A file that was handed in. `name` is unique in a run; `entry` is its place in a zip."""

    name: str
    learner: Learner
    path: Path
    entry: tuple[str, ...] = ()
    problem: str = ""  # known before reading: a link, no notebook in it, ...

    def read(self) -> bytes:
        """The notebook's bytes. Raises Refused."""
        if self.problem:
            raise Refused(self.problem)
        if self.entry:
            return _read_entry(self.path, self.entry)
        return read_file(self.path, LARGEST)


@dataclass(frozen=True)
class Notebook:
    """What is taken from a notebook: its code by number, and what its own checks showed."""

    stage: int
    cells: list[tuple[int, str]]
    called: dict[str, str]                # exercise id: the function that its check cell names
    shown: dict[str, bool] = field(default_factory=dict)  # exercise id: its stored output passed
    notes: list[str] = field(default_factory=list)


# ---- finding

def find(paths: list[Path]) -> list[Submission]:
    """All submissions under the paths, in a stable order. Raises Refused for a path of no use."""
    found: list[Submission] = []
    for path in paths:
        found += _under(path)
    return _distinct(found)


def _under(path: Path) -> list[Submission]:
    try:
        mode = path.stat().st_mode  # a path of the instructor's own may be a link
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}. Give a notebook, a folder or a zip.") from None
    if stat.S_ISDIR(mode):
        return _in_folder(path)
    if path.suffix.lower() == ".zip":
        return _in_zip(path, (), None)
    if path.suffix.lower() == ".ipynb":
        return [Submission(clean(path.name), _learner((path.name,)), path.resolve())]
    raise Refused(f"{path}: is no notebook, folder or zip. Give one of these.")


def _in_folder(folder: Path) -> list[Submission]:
    files = sorted(_walk(folder))
    shared = _shared_folders([Path(name).parts for name, _ in files])
    found = [one for name, path in files for one in _from_file(name, path, shared)]
    handed_in = [(Path(name).parts[shared:], Submission(clean(name), _ANYONE, path))
                 for name, path in files]
    return found + _empty_handed(found, handed_in)


def _empty_handed(found: list[Submission],
                  files: list[tuple[tuple[str, ...], Submission]]) -> list[Submission]:
    """One submission for each learner of an LMS who handed in files, and no notebook."""
    seen, missing = {one.learner for one in found}, []
    for parts, one in files:
        learner = _learner(parts)
        if learner.source and learner not in seen:
            seen.add(learner)
            missing.append(replace(one, learner=learner, problem="is no notebook, and the only "
                                   "thing handed in; expected a file that ends in .ipynb."))
    return missing


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Relative names and paths of all files; links to folders are listed, never entered."""
    count = 0
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__MACOSX")))
        links = [f for f in folders if Path(here, f).is_symlink()]
        for name in [*files, *links]:
            count += 1
            if count > MOST_ENTRIES:
                raise Refused(f"{folder}: more than {MOST_ENTRIES} files. Give a smaller folder.")
            if not name.startswith("."):
                path = Path(here, name)
                yield str(path.relative_to(folder)), path


def _from_file(name: str, path: Path, shared: int) -> list[Submission]:
    parts = Path(name).parts[shared:]
    learner = _learner(parts)
    if path.is_symlink():
        return [Submission(clean(name), learner, path, problem="is a link, expected a file.")]
    if path.suffix.lower() == ".zip":
        return _in_zip(path, (), (name, learner))
    if path.suffix.lower() == ".ipynb":
        return [Submission(clean(name), learner, path)]
    return []


def _shared_folders(names: list[tuple[str, ...]]) -> int:
    """How many leading folders all names share: a download often has one around everything."""
    if len(names) < 2:
        return 0
    depth = 0
    while all(len(n) > depth + 1 for n in names) and len({n[depth] for n in names}) == 1:
        depth += 1
    return depth


def _learner(parts: tuple[str, ...]) -> Learner:
    """Whose file it is, by the naming of Canvas, Moodle, nbgrader, or its folder or own name."""
    for part in parts:
        if match := _MOODLE.fullmatch(part):
            return Learner(clean(match["who"], 80), match["id"], "moodle")
    if match := _CANVAS.fullmatch(parts[-1]):
        return Learner(clean(match["who"], 80), match["id"], "canvas")
    parts = parts[1:] if parts[0] == "submitted" and len(parts) > 2 else parts
    return Learner(clean(parts[0] if len(parts) > 1 else PurePosixPath(parts[0]).stem, 80))


def _distinct(found: list[Submission]) -> list[Submission]:
    """The submissions with unique names: a second "x.ipynb" becomes "x.ipynb (2)"."""
    seen: dict[str, int] = {}
    result = []
    for one in found:
        seen[one.name] = seen.get(one.name, 0) + 1
        number = f" ({seen[one.name]})" if seen[one.name] > 1 else ""
        result.append(Submission(one.name + number, one.learner, one.path, one.entry,
                                 one.problem))
    return result


# ---- zips

def _in_zip(path: Path, outer: tuple[str, ...],
            owner: tuple[str, Learner] | None) -> list[Submission]:
    """The notebooks in a zip. `owner`: whose it is, for a zip that a learner handed in."""
    label, learner = owner or (path.name, _learner((path.name,)))

    def refuse(problem: str) -> list[Submission]:
        return [Submission(clean(label), learner, path, problem=problem)]

    try:
        with _open(path, outer) as archive:
            infos = [i for i in archive.infolist() if not i.is_dir() and _visible(i.filename)]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError,
            OSError) as error:
        return refuse(str(error) if isinstance(error, Refused) else "is a damaged zip.")
    if len(infos) > MOST_ENTRIES:
        return refuse(f"holds {len(infos)} files, expected at most {MOST_ENTRIES}.")
    shared = _shared_folders([_parts(i.filename) for i in infos])
    found, files = [], []
    for info in sorted(infos, key=lambda i: i.filename):
        entry = (*outer, info.filename)
        parts = _parts(info.filename)[shared:]
        whose = owner[1] if owner else _learner(parts)
        name = clean(f"{label}/{info.filename}" if owner else info.filename)
        suffix = PurePosixPath(info.filename).suffix.lower()
        files.append((parts, Submission(name, _ANYONE, path, entry)))
        if suffix == ".ipynb":
            found.append(Submission(name, whose, path, entry, _entry_problem(info, LARGEST)))
        elif suffix == ".zip" and not outer:
            problem = _entry_problem(info, LARGEST_NESTED)
            found += ([Submission(name, whose, path, entry, problem)] if problem
                      else _in_zip(path, entry, (name, whose)))
    if not owner:
        found += _empty_handed(found, files)
    return found or refuse("holds no notebook.")


def _visible(name: str) -> bool:
    parts = _parts(name)
    return bool(parts) and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _parts(name: str) -> tuple[str, ...]:
    """An entry's folders and name; what would climb out of a folder is only left out."""
    return tuple(part for part in PurePosixPath(name).parts if part not in ("/", "//", ".."))


def _entry_problem(info: zipfile.ZipInfo, largest: int) -> str:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "is a link, expected a file."
    if info.flag_bits & 1:
        return "is encrypted; hand it in without a password."
    if info.file_size > largest:
        return f"has {_mib(info.file_size)}, expected at most {_mib(largest)}."
    if info.file_size > LARGEST_RATIO * max(info.compress_size, 1):
        return f"unpacks to more than {LARGEST_RATIO} times its size, as no notebook does."
    return ""


def _open(path: Path, outer: tuple[str, ...]) -> zipfile.ZipFile:
    """The zip at `path`, or the one inside it. Raises Refused, BadZipFile, OSError."""
    if not outer:
        return zipfile.ZipFile(path)
    return zipfile.ZipFile(io.BytesIO(_read_entry(path, outer, LARGEST_NESTED)))


def _read_entry(path: Path, entry: tuple[str, ...], largest: int = LARGEST) -> bytes:
    """One entry's bytes, never more than `largest`, whatever the zip says of itself."""
    try:
        with _open(path, entry[:-1]) as archive, archive.open(entry[-1]) as file:
            data = file.read(largest + 1)
    except Refused:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError,
            NotImplementedError, OSError) as error:
        raise Refused(f"cannot be read from the zip ({type(error).__name__}).") from None
    return _capped(data, largest)


def _capped(data: bytes, largest: int) -> bytes:
    if len(data) > largest:
        raise Refused(f"is larger than {_mib(largest)}. Clear its outputs and save it.")
    return data


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


# ---- reading

def read_file(path: Path, largest: int) -> bytes:
    """A regular file's bytes; links, pipes, devices and what is too large are Refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "is a link" if error.errno == errno.ELOOP else f"cannot be read ({error.strerror})"
        raise Refused(f"{reason}, expected a file.") from None
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise Refused("is no regular file.")
        if facts.st_size > largest:
            raise Refused(f"has {_mib(facts.st_size)}, expected at most {_mib(largest)}. "
                          "Clear its outputs and save it.")
        return _capped(file.read(largest + 1), largest)


def digest(data: bytes) -> str:
    """SHA-256 of a submission's bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def parse(data: bytes, stage: int | None = None) -> Notebook:
    """The notebook in these bytes; `stage` overrides what it says itself. Raises Refused."""
    notebook = _json(data)
    if notebook.get("nbformat") != 4:
        raise Refused(f"has notebook format {clean(notebook.get('nbformat'), 20)}, expected 4.")
    _python_only(notebook)
    cells = notebook.get("cells")
    if type(cells) is not list or not all(type(cell) is dict for cell in cells):
        raise Refused("has no list of cells.")
    if len(cells) > MOST_CELLS:
        raise Refused(f"has {len(cells)} cells, expected at most {MOST_CELLS}.")
    code = [cell for cell in cells if cell.get("cell_type") == "code"]
    sources = [_source(cell) for cell in code]
    called = dict(call for source in sources for call in _CHECK.findall(source))
    said = _stage(notebook, called)
    notes = _notes(cells, said, stage)
    return Notebook(stage or _known(said), list(enumerate(sources, 1)), called,
                    _shown(code, sources), notes)


def _json(data: bytes) -> dict:
    if not data.strip():
        raise Refused("is empty.")
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refused(f"is not UTF-8 text (byte {error.start}).") from None
    except RecursionError:
        raise Refused("is nested too deep for a notebook.") from None
    except json.JSONDecodeError as error:
        raise Refused(f"is no JSON, or cut off (line {error.lineno}: {error.msg}).") from None
    except ValueError:
        raise Refused("holds a number too long to read.") from None
    if type(notebook) is not dict:
        raise Refused("is JSON but no notebook.")
    return notebook


def _python_only(notebook: dict) -> None:
    metadata = _dict(notebook.get("metadata"))
    spec, info = _dict(metadata.get("kernelspec")), _dict(metadata.get("language_info"))
    language = str(spec.get("language") or info.get("name") or "python")
    if not language.lower().startswith(("python", "ipython")):
        raise Refused(f"its kernel speaks {clean(language, 30)}, expected Python.")


def _source(cell: dict) -> str:
    source = cell.get("source", "")
    parts = source if type(source) is list else [source]
    if not all(type(part) is str for part in parts):
        raise Refused("has a cell whose source is no text.")
    return "".join(parts)


def _stage(notebook: dict, called: dict[str, str]) -> int | None:
    said = _dict(_dict(notebook.get("metadata")).get("dlsys")).get("stage")
    if said is None and called:
        return int(min(called).partition(".")[0])
    return said if type(said) is int else None


def _known(said: int | None) -> int:
    if said is None or not 1 <= said <= len(stages.STAGES):
        raise Refused("is no worksheet of this course: no stage in its metadata, no check. "
                      "If it is one, name its stage: --stage N")
    return said


def _notes(cells: list[dict], said: int | None, wanted: int | None) -> list[str]:
    notes = []
    ids = [cell["id"] for cell in cells if type(cell.get("id")) is str]
    if len(ids) != len(set(ids)):
        notes.append("Some cells have the same id; each was run all the same.")
    if wanted and said and said != wanted:
        notes.append(f"It says stage {said}; graded as stage {wanted}.")
    return notes


def _shown(code: list[dict], sources: list[str]) -> dict[str, bool]:
    """What the stored outputs of the check cells claim, by exercise; nothing for one not run."""
    shown = {}
    for cell, source in zip(code, sources, strict=True):
        outputs = cell.get("outputs")
        ids = [id for id, _ in _CHECK.findall(source)]
        if ids and type(outputs) is list and outputs:
            failed = any(_dict(output).get("output_type") == "error" for output in outputs)
            text = json.dumps(outputs)
            shown |= {id: not failed and f"Exercise {id}: passed" in text for id in ids}
    return shown


def _dict(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def calls(source: str, names: Iterable[str]) -> list[str]:
    """Those of the names that a source seems to call; one in a comment counts, too."""
    return [name for name in names if re.search(rf"\b{re.escape(name)}\s*\(", source)]


def defines(source: str, function: str) -> bool:
    """Whether the source of a cell, broken or not, means to define this function."""
    return re.search(rf"^\s*(async\s+)?def\s+{re.escape(function)}\b", source, re.M) is not None
