"""The links from a page to its notebook, on a web host or on the reader's own machine.

All of them open the learner's copy, which leaves out the answers to the guesses. They depend on one
setting, the repository's address in book/_config.yml. Without it a page offers only the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dlsys import work_folder
from dlsys_helpers import paths
from dlsys_helpers.paths import EXERCISES, NOTEBOOKS
from dlsys_helpers.stages import Stage

GITHUB = re.compile(r"https://github\.com/(?P<owner>[\w-]+)/(?P<name>[\w.-]+?)/?")
FOLDER = "open"  # for the copies, in the folder of a version's pages
BRANCH = "learner-copies"  # .ci/copies pushes them there: Colab opens notebooks from a repository
ROW = ('\n\n<p class="doors">{words} <a class="button" href="../' + FOLDER + '/{file}" download>'
       "Download</a></p>\n")
WORDS = ("Work on your own copy, in which every answer waits for your guess. Its first cell "
         "installs what is missing.")


class Home(NamedTuple):
    """A public home: the repository's address, the branch or tag of the pages, their folder."""

    repository: str
    branch: str
    folder: str


def ways(home: Home, file: str) -> dict[str, str]:
    """Where a copy opens, by the name of the host; empty without a home on GitHub."""
    found = GITHUB.fullmatch(home.repository)
    if not found:
        return {}
    place = f"{found['owner']}/{found['name']}"
    copy = f"{place}/blob/{BRANCH}/{home.folder}{'/' * bool(home.folder)}{FOLDER}/{file}"
    return {
        "Colab": f"https://colab.research.google.com/github/{copy}",
        "Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{copy}",
        "Binder": f"https://mybinder.org/v2/gh/{place}/{home.branch}?urlpath=lab/tree/my-work/{file}",
        "Codespaces": f"https://codespaces.new/{place}/tree/{home.branch}?quickstart=1",
        "VS Code": f"vscode://vscode.git/clone?url=https://github.com/{place}.git"}


def row(home: Home, file: str) -> str:
    """The line on a page that links to its notebook."""
    links = " ".join(f'<a class="button" href="{address}">{name}</a>'
                     for name, address in ways(home, file).items())
    return ROW.format(words=f"{WORDS} {links}".strip(), file=file)


def files(stage: Stage) -> dict[str, str]:
    """The file names of a stage's copies, by the folder of the original notebook."""
    return {NOTEBOOKS.name: paths.lesson_copy(stage.number).name,
            EXERCISES.name: f"{stage.stem}.ipynb"}


def write_copies(html: Path, stages: Iterable[Stage]) -> None:
    """The copies in the folder of the pages, where the theme's buttons lead."""
    (html / FOLDER).mkdir()
    for stage in stages:
        lesson, sheet = files(stage).values()
        made = {NOTEBOOKS.name: work_folder.lesson_copy(
                    work_folder.shipped(stage, NOTEBOOKS), stage, sheet),
                EXERCISES.name: work_folder.worksheet_copy(
                    work_folder.shipped(stage, EXERCISES), stage, lesson)}
        for folder, data in made.items():
            (html / FOLDER / files(stage)[folder]).write_bytes(data)
            (html / "_sources" / folder / f"{stage.stem}.ipynb").write_bytes(data)
