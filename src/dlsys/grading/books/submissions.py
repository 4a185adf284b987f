"""Find submissions and read them: notebooks, folders, zips, downloads of Canvas and Moodle.

Nothing is unpacked to disk, no link is followed, and every size is checked before it is used.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from dlsys.grading.books import due
from dlsys.grading.books.submitted_notebook import Refused
from dlsys.grading.text import clean
from dlsys_files.notebook_reader import LARGEST, oversize
from dlsys_helpers import stages

MOST_ENTRIES = 20_000     # files in one zip or folder; those in a refused folder do not count
MOST_NAMES = 200_000      # files in one folder, all counted
DEEPEST = 40              # nested folders
MOST_EACH = 40            # notebooks of one learner
# A my_parts.py, as an LMS or a second download may rename it.
_PARTS = re.compile(r"(?:.*_)?my_parts(?:[-_ (]{1,2}\d+\)?)?\.py", re.I | re.A)
LARGEST_NESTED = 32 * 2**20  # bytes of a zip that a learner handed in
DIRECTORY = {True: 2**18, False: 2**22}  # bytes of the list of files in a learner's zip, and others
SUBMITTED = "submitted"   # nbgrader's folder of submissions
TIMESTAMP = "timestamp.txt"  # nbgrader's file that says when it was handed in
LARGEST_TIMESTAMP = 200   # bytes
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, LookupError, RuntimeError, ValueError,
               OSError)

CANVAS_NAME = re.compile(r"(?P<who>[^_/]+)_(?P<late>LATE_)?(?P<id>\d+)_"
                         r"(?:(?P<number>\d+)_.+|(?:text|link)\.html)", re.I | re.A)
_BLIND = re.compile(r"Participant|Teilnehmer(?:[/ _]?in(?:nen)?)?", re.I)
_MOODLE = re.compile(r"(?P<who>.+?)_(?P<id>\d+)_assignsubmission_[a-z]+(?:_.*)?", re.A)


@dataclass(frozen=True)
class Learner:
    """The author of a submission: a name to show, and the id that the download gave, if any.

    raw is a fingerprint of the name as it is on the disk or in the zip. It distinguishes people
    whose names look alike once they are shortened and cleaned.
    """

    name: str
    id: str = ""
    source: str = ""  # "canvas", "moodle", "nbgrader" or ""
    raw: str = ""


def learner_named(raw: str, id: str = "", source: str = "") -> Learner:
    """The learner with this name, as the file system or the zip has it."""
    return Learner(_shown(raw), id, source, digest(raw.encode("utf-8", "surrogatepass"))[:16])


def _shown(raw: str) -> str:
    """A name on one line of at most 80 characters; of a long one the start and the end."""
    line = clean(raw, len(raw) + 1)
    return (line if len(line) <= 80 else f"{line[:38]}...{line[-39:]}") or "(no visible name)"


_ANYONE = Learner("")


@dataclass(frozen=True)
class Submission:
    """A file that was handed in. `name` is unique in a run; `entry` is its number in a zip."""

    name: str
    learner: Learner
    path: Path
    entry: tuple[int, ...] = ()
    problem: str = ""  # known before reading: a link, no notebook in it, ...
    late: bool = False  # by the name that the LMS gave it
    handed_in: str = ""  # when, as ISO 8601 with an offset, where nbgrader noted it
    assignment: str = ""  # as nbgrader names it
    is_parts: bool = False  # a my_parts.py: the parts of *Your model*

    def read(self) -> bytes:
        """The notebook's bytes. Raises Refused."""
        if self.problem:
            raise Refused(self.problem)
        if self.entry:
            return _read_entry(self.path, self.entry)
        return read_file(self.path, LARGEST)


# ---- finding

@dataclass(frozen=True)
class Found:
    """The files under the paths: submissions to grade, and names of all other files."""

    submissions: list[Submission]
    left_out: list[str]


@dataclass(frozen=True)
class _File:
    """A file below one of the paths, by folders and name; `graded`: a notebook or a problem."""

    parts: tuple[str, ...]
    one: Submission
    graded: bool = True


def find(paths: Sequence[Path], out: Path | None = None, model: bool = False) -> Found:
    """All submissions under the paths, in a stable order. Raises Refused for an unusable path.

    out: the folder of the run, which holds no submissions. model: a my_parts.py is a submission.
    Notebooks that are named one by one form one group, below the folder that they share. Each
    folder and each zip is a separate group.
    """
    base = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    groups, single = [], []
    for path in paths:
        label = path.absolute().relative_to(base)
        parts = model and _is_parts(path.name)
        if len(paths) > 1 and not parts and (odd := _not_gradable(path, label)):
            single.append(odd)
        elif (path.suffix.lower() == ".ipynb" or parts) and not path.is_dir():
            single.append(_File(label.parts, replace(_notebook_at(path, label), is_parts=parts)))
        else:
            groups.append((label, _with_learners(_under(path, out, model))))
    if single:
        groups.append((Path(), _with_learners(single)))
    found = _with_unique_names(_number_equal_names(_separate_groups(groups)))
    return Found(found, [name for _, (_, names) in groups for name in names])


def _is_parts(name: str) -> bool:
    return _PARTS.fullmatch(name) is not None


def _notebook_at(path: Path, label: Path) -> Submission:
    _mode(path)
    return Submission(clean(label), _ANYONE, path.resolve())


def _not_gradable(path: Path, label: Path) -> _File | None:
    """A path from a shell's `*` that cannot be graded: it is reported, and the run goes on."""
    one = Submission(clean(label), _ANYONE, path)
    if path.is_symlink() and not path.exists():
        return _File(label.parts, replace(one, problem="is a broken link, expected a file."))
    if path.exists() and not path.is_dir() and path.suffix.lower() not in (".ipynb", ".zip"):
        return _File(label.parts, one, graded=False)
    return None


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode  # a path of the instructor's own may be a link
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}. Give a notebook, a folder or a zip.") from None


def _under(path: Path, out: Path | None, model: bool) -> list[_File]:
    if stat.S_ISDIR(_mode(path)):
        files = _in_folder(path, sorted(_walk(path, out), key=str), model)
        if path.absolute().name == SUBMITTED:  # the path is nbgrader's own folder
            return [replace(file, parts=(SUBMITTED, *file.parts)) for file in files]
        return files
    if path.suffix.lower() == ".zip":
        return _in_zip(path.resolve(), (), path.name, None, model)
    raise Refused(f"{path}: is not a notebook, a folder or a zip. Give one of these.")


def _walk(folder: Path, out: Path | None) -> Iterator[Path]:
    """Paths of all files relative to the folder, except for those in `out`.

    A link to a folder is listed and never entered. So is a folder that cannot be read, or is nested
    too deep.
    """
    met = 0
    closed: list[OSError] = []
    for here, folders, files in os.walk(folder, onerror=closed.append):
        above = Path(here).relative_to(folder)
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__MACOSX"))
                            and (out is None or Path(here, f).resolve() != out.resolve()))
        deep = len(above.parts) == DEEPEST
        listed = [f for f in folders if deep or Path(here, f).is_symlink()]
        if deep:
            folders[:] = []
        met += len(files) + len(listed)
        if met > MOST_NAMES:
            raise Refused(f"{folder}: more than {MOST_NAMES:,} files, the last of them in "
                          f"{clean(above)}. Give a folder without it.")
        yield from (above / name for name in [*files, *listed] if not name.startswith("."))
    for path in (Path(error.filename) for error in closed):
        if path == folder:
            raise Refused(f"{folder}: {closed[0].strerror}. Give a folder that you may read.")
        yield path.relative_to(folder)


def _in_folder(folder: Path, names: list[Path], model: bool) -> list[_File]:
    """The files with these names; each crowded folder is replaced by one refusal."""
    crowded = _crowded([name.parts for name in names])
    kept = [name for name in names if not _is_below(name.parts, crowded)]
    if len(kept) > MOST_ENTRIES:
        raise Refused(f"{folder}: more than {MOST_ENTRIES:,} files. Give a smaller folder.")
    return [*_refused(folder, crowded),
            *(file for name in kept for file in _from_file(str(name), folder / name, model))]


def _crowded(places: list[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    """Folders to refuse so that at most MOST_ENTRIES files are left, each with its number of files.

    One learner's heap of files must not stop the class. A folder that holds more files than all
    others together is assumed to be one learner's. Without such a folder there are just too many.
    """
    found: dict[tuple[str, ...], int] = {}
    while len(places) > MOST_ENTRIES:
        inside = Counter(place[:k] for place in places for k in range(1, len(place)))
        large = [folder for folder, n in inside.items() if len(places) / 2 < n < len(places)]
        if not large:
            break
        heap = max(large, key=len)  # these folders are nested
        found[heap] = inside[heap]
        places = [place for place in places if place[:len(heap)] != heap]
    return found


def _is_below(place: tuple[str, ...], folders: dict[tuple[str, ...], int]) -> bool:
    return any(place[:len(folder)] == folder for folder in folders)


def _refused(path: Path, crowded: dict[tuple[str, ...], int]) -> list[_File]:
    """A refusal for each of these folders."""
    return [_File(folder, Submission(
        clean("/".join(folder)), _ANYONE, path, problem=f"is a folder of {n:,} files, more than "
        f"all others together; expected at most {MOST_ENTRIES:,} in all."))
        for folder, n in crowded.items()]


def _from_file(name: str, path: Path, model: bool) -> list[_File]:
    parts, one = Path(name).parts, Submission(clean(name), _ANYONE, path)
    if path.is_symlink():
        return [_File(parts, replace(one, problem="is a link, expected a file."))]
    if path.is_dir():
        problem = f"lies in {DEEPEST} folders" if len(parts) > DEEPEST else "cannot be read"
        return [_File(parts, replace(one, problem=f"is a folder that {problem}."))]
    if path.suffix.lower() == ".zip":
        return _in_zip(path, (), name, parts, model)
    is_parts = model and _is_parts(parts[-1])
    return [_File(parts, replace(one, is_parts=is_parts),
                  is_parts or path.suffix.lower() == ".ipynb")]


def _separate_groups(
        groups: list[tuple[Path, tuple[list[Submission], list[str]]]]) -> list[Submission]:
    """All submissions; learners without ids and with equal names in two groups are two people."""
    where: dict[Learner, set[Path]] = {}
    for label, (found, _) in groups:
        for one in found:
            where.setdefault(one.learner, set()).add(label)
    return [replace(one, learner=_in_group(one.learner, label))
            if len(where[one.learner]) > 1 and not one.learner.source and label.parts else one
            for label, (found, _) in groups for one in found]


def _in_group(learner: Learner, label: Path) -> Learner:
    inside = learner_named(f"{label.with_suffix('')}/{learner.name}")
    return replace(inside, raw=digest(f"{inside.raw}/{learner.raw}".encode())[:16])


def _number_equal_names(found: list[Submission]) -> list[Submission]:
    """Append a number to learners' names that are equal after cleaning."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in found:
        raws = alike.setdefault((one.learner.name, one.learner.id), [])
        if one.learner.raw not in raws:
            raws.append(one.learner.raw)

    def named(learner: Learner) -> Learner:
        place = alike[learner.name, learner.id].index(learner.raw)
        return replace(learner, name=f"{learner.name} ({place + 1})") if place else learner
    return [replace(one, learner=named(one.learner)) for one in found]


def _with_unique_names(found: list[Submission]) -> list[Submission]:
    """The submissions with unique names: a second "x.ipynb" becomes "x.ipynb (2)"."""
    own = {one.name for one in found}  # a file may itself be called "x.ipynb (2)"
    more: dict[str, Iterator[str]] = {}
    result = []
    for one in found:
        names = more.setdefault(one.name, chain([one.name], _numbered(one.name, own)))
        result.append(replace(one, name=next(names)))
    return result


def _numbered(name: str, taken: set[str]) -> Iterator[str]:
    return (made for k in count(2) if (made := f"{name} ({k})") not in taken)


# ---- whose it is

def _with_learners(files: list[_File]) -> tuple[list[Submission], list[str]]:
    """The submissions of a group with their learners, and the names of the files left out.

    Only names from the instructor or the LMS decide whose file it is, never a name by a learner.
    """
    level = _shared_folders([file.parts for file in files])
    learners = _by_lms(files, level) or _by_nbgrader(files, level)
    rest = [file for file in files if file not in learners]
    learners |= _by_folder(rest, _shared_folders([file.parts for file in rest], anything=True))
    stamps = {file.parts[:-1]: _stamp(file.one) for file in files if _is_stamp(file, learners)}
    found = [_handed_in_by(learners[file], file, level, stamps) for file in files if file.graded]
    seen, left_out = {one.learner for one in found}, []
    for file in sorted(files, key=lambda file: file.parts[-1] == TIMESTAMP):
        learner = learners[file]
        if learner.source and learner not in seen:
            seen.add(learner)
            found.append(replace(file.one, learner=learner, problem="is not a notebook, and no "
                                 "other file was handed in; expected a file that ends in .ipynb."))
        elif not file.graded and not learner.source:
            left_out.append(file.one.name)
    return _limit_each(found), left_out


def _limit_each(found: list[Submission]) -> list[Submission]:
    """The submissions; a learner with too many gets one refusal in place of all."""
    counts = Counter(one.learner for one in found)
    kept, refused = [], set()
    for one in found:
        if (n := counts[one.learner]) <= MOST_EACH:
            kept.append(one)
        elif one.learner not in refused:
            refused.add(one.learner)
            kept.append(replace(one, problem=f"is one of {n} notebooks of one learner, expected "
                                f"at most {MOST_EACH}."))
    return kept


def _shared_folders(names: list[tuple[str, ...]], anything: bool = False) -> int:
    """How many leading folders all names share: a download often has one around everything.

    A folder of Moodle or nbgrader names somebody, so it stays, unless `anything` is set.
    """
    depth = 0
    while names and all(len(n) > depth + 1 for n in names) and len({n[depth] for n in names}) == 1:
        if not anything and (_MOODLE.fullmatch(names[0][depth]) or names[0][depth] == SUBMITTED):
            return depth
        depth += 1
    return depth if len(names) > 1 else 0


def _by_lms(files: list[_File], level: int) -> dict[_File, Learner]:
    """The learners in a download of Canvas or Moodle, if half of the graded files look like one."""
    best: dict[_File, Learner] = {}
    for source, matches in (("canvas", _canvas(files, level)), ("moodle", _moodle(files, level))):
        known = {file: learner_named(_who(match), match["id"], source)
                 for file, match in matches.items()}
        if len(known) > len(best):
            best = known
    graded = [file for file in files if file.graded]
    enough = 2 * sum(file in best for file in graded) >= len(graded)
    return best if enough else {}


def _who(match: re.Match) -> str:
    """The name that an LMS gave; where people are marked blindly, their number is their name.

    Moodle writes a name with blanks, and a folder made by hand may have underscores.
    """
    who = match["who"].replace("_", " ")
    return f"{who} {match['id']}" if _BLIND.fullmatch(who) else who


def _canvas(files: list[_File], level: int) -> dict[_File, re.Match]:
    """Files directly in a download of Canvas. Canvas numbers uploads, so no number comes twice."""
    matches = {file: match for file in files if len(file.parts) == level + 1
               and (match := CANVAS_NAME.fullmatch(file.parts[level]))}
    places = {file.parts: match for file, match in matches.items()}  # one for all files of a zip
    uploads = Counter((m["id"], m["number"]) for m in places.values() if m["number"])
    one_person = len(uploads) > 2 and len({id for id, _ in uploads}) == 1
    return {} if one_person or any(n > 1 for n in uploads.values()) else matches


def _moodle(files: list[_File], level: int) -> dict[_File, re.Match]:
    """Folders, or files, directly in a download of Moodle."""
    return {file: match for file in files if len(file.parts) > level
            and (match := _MOODLE.fullmatch(file.parts[level]))}


def _by_nbgrader(files: list[_File], level: int) -> dict[_File, Learner]:
    """nbgrader's folder layout: submitted/NAME/ASSIGNMENT/file."""
    return {file: learner_named(file.parts[level + 1], source="nbgrader") for file in files
            if len(file.parts) >= level + 4 and file.parts[level] == SUBMITTED}


def _is_stamp(file: _File, learners: dict[_File, Learner]) -> bool:
    return file.parts[-1] == TIMESTAMP and learners[file].source == "nbgrader"


def _stamp(one: Submission) -> str:
    """The time in a file of nbgrader as ISO 8601, "" if it holds none."""
    try:
        data = (_read_entry(one.path, one.entry, LARGEST_TIMESTAMP) if one.entry
                else read_file(one.path, LARGEST_TIMESTAMP))
    except Refused:
        return ""
    return due.nbgrader_time(data.decode("utf-8", "replace"))


def _handed_in_by(learner: Learner, file: _File, level: int,
                  stamps: dict[tuple[str, ...], str]) -> Submission:
    """A file as this learner's; nbgrader's folders also name the assignment and the time."""
    one = replace(file.one, learner=learner, late=_late(file.parts[-1]))
    if learner.source != "nbgrader":
        return one
    return replace(one, assignment=clean(file.parts[level + 2], 80),
                   handed_in=stamps.get(file.parts[:level + 3], ""))


def _by_folder(files: list[_File], level: int, above: str = "") -> dict[_File, Learner]:
    """A folder for each learner, or a file for each."""
    groups: dict[tuple[str, bool], list[_File]] = {}
    for file in files:
        groups.setdefault((file.parts[level], len(file.parts) == level + 1), []).append(file)
    learners: dict[_File, Learner] = {}
    for (name, is_file), inside in groups.items():
        if is_file:
            learners |= dict.fromkeys(inside, learner_named(above + PurePosixPath(name).stem))
        elif _several_people([f.parts[level + 1:] for f in inside if f.graded]):
            learners |= _by_folder(inside, level + 1, f"{above}{name}/")
        else:
            learners |= dict.fromkeys(inside, learner_named(above + name))
    return learners


def _several_people(tails: list[tuple[str, ...]]) -> bool:
    """Whether a folder with these files is a section of the class and not one learner.

    In a section, one file name occurs in several folders, or several files that are not named after
    worksheets are in one folder. In doubt it is a section: an instructor notices two files of one
    learner that are kept apart, but not two learners who are taken for one.
    """
    tails = list(dict.fromkeys(tails))
    names = Counter(tail[-1] for tail in tails)
    if max(names.values(), default=0) > 1:
        return True
    stems = [*(stage.stem for stage in stages.STAGES), "my_parts"]
    ours = any(stem in name for name in names for stem in stems)
    return len(tails) > 1 and all(len(tail) == 1 for tail in tails) and not ours


def _late(name: str) -> bool:
    match = CANVAS_NAME.fullmatch(name)
    return bool(match and match["late"])


# ---- zips

def _in_zip(path: Path, outer: tuple[int, ...], label: str, whose: tuple[str, ...] | None,
            model: bool) -> list[_File]:
    """The files in a zip. whose: the path of the zip itself, if a learner handed it in."""
    def refuse(problem: str) -> list[_File]:
        return [_File(whose or (label,), Submission(clean(label), _ANYONE, path, problem=problem))]

    try:
        if whose and not outer and (size := path.stat().st_size) > LARGEST_NESTED:
            return refuse(oversize(size, LARGEST_NESTED))
        with _open(path, outer, whose is not None) as archive:
            infos = [(k, i) for k, i in enumerate(archive.infolist())
                     if not i.is_dir() and _visible(i.filename)]
    except Refused as error:
        return refuse(str(error))
    except _ZIP_ERRORS:
        return refuse("is a damaged zip.")
    crowded = {} if whose else _crowded([_parts(info.filename) for _, info in infos])
    infos = [(k, i) for k, i in infos if not _is_below(_parts(i.filename), crowded)]
    if len(infos) > MOST_ENTRIES:
        return refuse(f"holds {len(infos):,} files, expected at most {MOST_ENTRIES:,}.")
    nested = sum(info.filename.lower().endswith(".zip") for _, info in infos)
    if whose and nested > MOST_EACH:
        return refuse(f"holds {nested} zips, expected at most {MOST_EACH}.")
    found = _refused(path, crowded)
    for number, info in sorted(infos, key=lambda pair: pair[1].filename):
        found += _from_entry(path, (*outer, number), info, label, whose, model)
    return found if any(file.graded for file in found) else [*found, *refuse("holds no notebook.")]


def _from_entry(path: Path, entry: tuple[int, ...], info: zipfile.ZipInfo, label: str,
                whose: tuple[str, ...] | None, model: bool) -> list[_File]:
    name = f"{label}/{info.filename}" if whose else info.filename
    parts, one = whose or _parts(info.filename), Submission(clean(name), _ANYONE, path, entry)
    suffix = PurePosixPath(info.filename).suffix.lower()
    if len(parts) > DEEPEST + 1:
        problem = f"lies in more than {DEEPEST} folders."
        return [_File(parts[:DEEPEST], replace(one, problem=problem), suffix == ".ipynb")]
    is_parts = model and _is_parts(PurePosixPath(info.filename).name)
    if suffix == ".ipynb" or is_parts:
        return [_File(parts, replace(one, problem=_entry_problem(info, LARGEST),
                                     is_parts=is_parts))]
    if suffix == ".zip" and len(entry) == 1:
        problem = _entry_problem(info, LARGEST_NESTED)
        return ([_File(parts, replace(one, problem=problem))] if problem
                else _in_zip(path, entry, name, parts, model))
    return [] if whose else [_File(parts, one, graded=False)]


def _visible(name: str) -> bool:
    parts = _parts(name)
    return bool(parts) and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _parts(name: str) -> tuple[str, ...]:
    """An entry's folders and name, without parts that would lead out of a folder."""
    return tuple(part for part in PurePosixPath(name.replace("\\", "/")).parts
                 if part not in ("/", "//", ".."))


def _entry_problem(info: zipfile.ZipInfo, largest: int) -> str:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "is a link, expected a file."
    if info.flag_bits & 1:
        return "is encrypted; hand it in without a password."
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is packed in an unusual way (method {info.compress_type}); zip it the usual way."
    if info.file_size > largest:
        return oversize(info.file_size, largest)
    return ""


@contextlib.contextmanager
def _open(path: Path, outer: tuple[int, ...], learners: bool) -> Iterator[zipfile.ZipFile]:
    """The zip at `path`, or the one inside it. Raises Refused and _ZIP_ERRORS.

    learners: a learner made this zip. Python reads a zip's whole list of files when it opens it;
    a list that is too long is refused before it costs anything.
    """
    if outer:
        file: BinaryIO = io.BytesIO(_read_entry(path, outer, LARGEST_NESTED))
    else:
        file = _open_regular(path)
    with file:
        opening = _Opening(file, DIRECTORY[learners])
        with zipfile.ZipFile(opening) as archive:
            opening.most = LARGEST_NESTED + 1
            yield archive


class _Opening:
    """A file that refuses to read more than `most` bytes at a time."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self.file, self.most = file, most
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > self.most:
            raise Refused(f"is a zip whose list of files has {size:,} bytes, expected at most "
                          f"{self.most:,}.")
        return self.file.read(size)


def _read_entry(path: Path, entry: tuple[int, ...], largest: int = LARGEST) -> bytes:
    """One entry's bytes, never more than `largest`, whatever sizes the zip claims."""
    try:
        with _open(path, entry[:-1], False) as archive, archive.open(
                archive.infolist()[entry[-1]]) as file:
            data = file.read(largest + 1)
    except Refused:
        raise
    except _ZIP_ERRORS as error:
        raise Refused(f"cannot be read from the zip ({type(error).__name__}).") from None
    return _capped(data, largest)


def _capped(data: bytes, largest: int) -> bytes:
    if len(data) > largest:
        raise Refused(f"{oversize(len(data), largest)} Clear its outputs and save it.")
    return data


# ---- reading

def _open_regular(path: Path) -> BinaryIO:
    """A regular file, open. Raises Refused for links, pipes and devices."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "is a link" if error.errno == errno.ELOOP else f"cannot be read ({error.strerror})"
        raise Refused(f"{reason}, expected a file.") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused("is not a regular file.")
    return open(fd, "rb")


def read_file(path: Path, largest: int) -> bytes:
    """A regular file's bytes. Raises Refused for links, pipes, devices and large files."""
    with _open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > largest:
            raise Refused(f"{oversize(size, largest)} Clear its outputs and save it.")
        return _capped(file.read(largest + 1), largest)


def digest(data: bytes) -> str:
    """SHA-256 of a submission's bytes, in hex."""
    return hashlib.sha256(data).hexdigest()
