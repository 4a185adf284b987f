"""The course.toml to use if no option names one; `dlsys release` wrote it for the class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlsys.class_course import NAME
from dlsys.grading.books import due
from dlsys.grading.books.run_folder import COURSE, RunError
from dlsys.grading.options import GradeOptions


def looked_for(options: GradeOptions) -> tuple[GradeOptions, list[str]]:
    """The options with the course.toml found here or next to the submissions, and lines about it.

    A file inside a hand-in is never used. Raises RunError if two differ.
    """
    if options.course or not options.course_wanted:
        return options, []
    found = candidates(options.paths)
    kept = options.out / COURSE
    if options.resume:  # the run has its own copy, or was graded without any
        same = [path for path in found if _content(path) == _content(kept)]
        other = [path for path in found if path not in same and kept.exists()]
        return (replace(options, course=same[0]) if same else options,
                [f"{kept} counts, but {path} differs from it. To use that one: --course "
                 f"{path}" for path in other])
    if len({_content(path) for path in found}) > 1:
        raise RunError("found two course.toml and cannot tell which one counts: "
                       f"{found[0]}, {found[1]}. Say --course {found[0]}, or --no-course for none.")
    if not found:
        return options, []
    return replace(options, course=found[0]), [_said(found[0])]


def candidates(paths: Sequence[Path]) -> list[Path]:
    """Every course.toml in this folder and next to the given folders and zips, each once.

    A notebook or my_parts.py that is given by its path may be in its learner's folder, so files
    next to it do not count.
    """
    given = [path.absolute() for path in paths]
    folders = [Path.cwd(), *(path.parent for path in given
                             if path.is_dir() or path.suffix.lower() == ".zip")]
    handed_in = [path for path in given if path.is_dir()]
    return [folder / NAME for folder in dict.fromkeys(folders)
            if (folder / NAME).is_file()
            and not any(folder.is_relative_to(below) for below in handed_in)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _said(path: Path) -> str:
    course = due.read(path)
    what = [f"stage {stage}: {', '.join(ids)}" for stage, ids in sorted(course.asked.items())]
    return (f"{path} counts, because no other file was named"
            + (f" ({'; '.join(what)})" if what else "") + ". To grade without it: --no-course")
