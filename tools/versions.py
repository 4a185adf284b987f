"""The versions on the website: the main line in its root, each release in a folder.

    python3 tools/versions.py         one line for the site's workflow: versions=[{"ref": ..}, ..]
    python3 tools/versions.py next    one line for that of a release: TAG=v1.1.0, if pyproject.toml,
                                      CITATION.cff and CHANGELOG.md agree and the tag is not there

A release is a tag like v1.0.2, in the folder v1.0: of tags that differ only in the last number, the
website shows the highest. Two variables of the workflows limit what they may publish: TESTED, a
commit of the main line that has passed its tests, and RELEASED, the tags that have a release. Uses
only the standard library, so it needs no set-up.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MAIN = "main"
TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
FORMAT = "%(refname:short) %(creatordate:short) %(objectname:short=12)"


class Release(NamedTuple):
    tag: str
    date: str  # of the tag, such as 2026-11-22
    commit: str

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(map(int, TAG.fullmatch(self.tag).groups()))

    @property
    def folder(self) -> str:
        return folder_of(self.tag.removeprefix("v"))


def current() -> str:
    """The version in pyproject.toml, which is the source."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def stated_versions() -> dict[str, str]:
    """The version in each file that must agree; for the changelog, the newest one."""
    found = {name: re.search(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)
             for name, pattern in (("CITATION.cff", r"^version: (.+)$"),
                                   ("CHANGELOG.md", r"^## \[(\d.*)\]"))}
    return {"pyproject.toml": current(), **{name: match[1] if match else "none"
                                            for name, match in found.items()}}


def disagreement(taken: Iterable[str]) -> str:
    """A line on why today's version cannot be released; "" if it can.

    taken: the existing tags.
    """
    found = stated_versions()
    if len({*found.values()}) > 1:
        told = ", ".join(f"{name} has {version}" for name, version in found.items())
        return f"versions: {told}. Expected one version in all: correct the files."
    if f"v{current()}" in taken:
        return (f"versions: got the tag v{current()}, which is there. Expected a version that is "
                "not released: raise it in pyproject.toml, CITATION.cff and CHANGELOG.md.")
    return ""


def folder_of(version: str) -> str:
    """The folder of a version in the website: ``v1.0`` for 1.0.2."""
    return "v" + version.rpartition(".")[0]


def releases(lines: Iterable[str]) -> list[Release]:
    """The releases to show, newest first, from lines of tag, date and commit; drops other tags."""
    found = [Release(*line.split()) for line in lines if TAG.fullmatch(line.partition(" ")[0])]
    highest = {release.folder: release for release in sorted(found, key=lambda r: r.numbers)}
    return sorted(highest.values(), key=lambda r: r.numbers, reverse=True)


def tags() -> list[str]:
    """A line for each tag of this clone: tag, date, commit; none outside of a clone."""
    done = subprocess.run(["git", "tag", "--list", f"--format={FORMAT}"], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def tagged_releases() -> list[Release]:
    """The releases of this clone, or only those in RELEASED if a workflow sets it."""
    allowed = os.environ.get("RELEASED")
    return releases(line for line in tags()
                    if allowed is None or line.split()[0] in allowed.split())


def tested_commit() -> str:
    """The commit of the main line to build. Raises SystemExit if none has passed its tests."""
    commit = os.environ.get("TESTED", MAIN)
    if not commit:
        sys.exit("versions: got no commit in TESTED, expected one that has passed its tests. "
                 "Mend the tests, or run their workflow again.")
    return commit


def builds(found: Iterable[Release], main: str = MAIN) -> list[dict[str, str]]:
    """The builds of the workflow: a ref, its folder, and a key that changes if the ref moves.

    main: the main line, or a commit of it. It has no key, because it is always built.
    """
    return [{"ref": main, "folder": "", "key": ""},
            *({"ref": r.tag, "folder": r.folder, "key": f"{r.tag}-{r.commit}"} for r in found)]


def page(version: str, folder: str | None, found: Iterable[Release]) -> str:
    """The page of versions, as Markdown.

    folder: where these pages will be in the website, "" for its root; None for a book that is
    published alone. Links are relative, so that they work in a copy of the website.
    """
    head = f"# Versions\n\nThis is version {version} of the course. [What changed](changelog.md)."
    if folder is None:
        return (f"{head}\n\nThese pages were built alone. In a copy of the repository, `git tag` "
                "lists the releases; `git checkout v1.0.0` and `make book` build the pages of "
                "one.\n")
    if folder:
        places = [("../index.html", "The newest pages"), ("../versions.html", "All versions")]
        return (f"{head}\n\nThese are the pages of a release; the course has gone on since.\n\n"
                f"{_links(places)}\n")
    rows = [(f"{r.folder}/index.html", f"{r.tag.removeprefix('v')}, released {r.date}")
            for r in found]
    told = ("Each release keeps its pages in a folder of its own." if rows
            else "No version has been released before this one.")
    return (f"{head}\n\nThese are the newest pages. {told}\n\n"
            f"{_links([('index.html', f'{version}, the newest'), *rows])}\n")


def _links(pairs: Iterable[tuple[str, str]]) -> str:
    """An HTML list of links to pages outside of this book."""
    items = "\n".join(f'<li><a href="{href}">{text}</a></li>' for href, text in pairs)
    return f"```{{raw}} html\n<ul>\n{items}\n</ul>\n```"


if __name__ == "__main__":
    commit = tested_commit()
    if sys.argv[1:] == ["next"]:
        if told := disagreement(line.split()[0] for line in tags()):
            sys.exit(told)
        print(f"TAG=v{current()}")
    else:
        print(f"versions={json.dumps(builds(tagged_releases(), commit))}")
