"""Links that open a notebook elsewhere: each leads to a file, and none exists without a home.

No test uses the network. We follow a link to a host up to the file that the host would open.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

from dlsys import work_folder
from dlsys_helpers import catalog, paths
from dlsys_helpers.paths import EXERCISES, NOTEBOOKS, ROOT
from tools import book, book_doors, readme

URL = "https://github.com/owner/course"
HOMES = [book_doors.Home(URL, "main", ""), book_doors.Home(f"{URL}/", "v1.1.0", "v1.1")]
SHEETS = [(stage, folder) for stage in catalog.written() for folder in (NOTEBOOKS, EXERCISES)]
HOSTS = {"Colab", "Kaggle", "Binder", "Codespaces", "VS Code"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A website's root with folders of pages that contain only the copies."""
    site = tmp_path_factory.mktemp("site")
    for home in HOMES:
        for folder in (NOTEBOOKS, EXERCISES):
            (site / home.folder / "_sources" / folder.name).mkdir(parents=True)
        book_doors.write_copies(site / home.folder, catalog.written())
    return site


# The real script, with commands that only print their arguments or do nothing.
STUBS = 'dlsys() { echo "$@"; }; mkdir() { :; }; cp() { :; }; python() { :; }; . "$1"'


@pytest.fixture(scope="module")
def image():
    """The names of the files that postBuild puts into my-work/ of an image."""
    said = subprocess.run(["sh", "-c", STUBS, "sh", ROOT / "postBuild"], capture_output=True,
                          text=True, check=True).stdout
    numbers = [line.split()[1:] for line in said.splitlines()]
    assert numbers[0] == []
    stages = [work_folder.stage_of(number) for [number] in numbers[1:]]
    return {work_folder.START_PAGE,
            *(name for stage in stages for name in book_doors.files(stage).values())}


def lead_nowhere(links: dict[str, str], home: book_doors.Home, site: Path, image: set) -> list[str]:
    """The names of links to hosts that lead to no file."""
    dead = []
    for name, address in links.items():
        parts = urlsplit(address)
        asked = {key: value[0] for key, value in parse_qs(parts.query).items()}
        if name in ("Colab", "Kaggle"):
            path = parts.path if name == "Colab" else urlsplit(asked["src"]).path
            place, _, file = path.partition(f"/blob/{book_doors.BRANCH}/")
            found = place.endswith("/owner/course") and (site / file).is_file()
        elif name == "Binder":
            found = (parts.path == f"/v2/gh/owner/course/{home.branch}"
                     and asked["urlpath"].removeprefix("lab/tree/my-work/") in image)
        elif name == "Codespaces":
            found = (parts.path == f"/owner/course/tree/{home.branch}"
                     and (ROOT / ".devcontainer/devcontainer.json").is_file())
        else:
            found = asked == {"url": f"{URL}.git"}
        dead += [] if found else [name]
    return dead


@pytest.mark.parametrize("home", HOMES, ids=["root", "release"])
@pytest.mark.parametrize(("stage", "folder"), SHEETS,
                         ids=[f"{folder.name}/{stage.number}" for stage, folder in SHEETS])
def test_every_way_into_a_notebook_leads_to_its_copy(home, stage, folder, pages, image):
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title")],
                                    metadata={"dlsys": {"stage": stage.number}})
    shown = book.with_ways(made, folder.name, home).cells[0].source
    links = {a.get_text(): a["href"] for a in BeautifulSoup(shown, "html.parser").find_all("a")}
    download = links.pop("Download")
    assert links.keys() == HOSTS
    assert lead_nowhere(links, home, pages, image) == []
    copy = pages / home.folder / folder.name / download
    assert copy.resolve().is_file()
    nbformat.validate(nbformat.read(copy.resolve(), as_version=4))


def test_a_way_to_a_file_that_is_not_there_is_found(pages, image):
    wrong = book_doors.ways(HOMES[0], "01_lessons.ipynb")
    assert lead_nowhere(wrong, HOMES[0], pages, image) == ["Colab", "Kaggle", "Binder"]


def test_without_an_address_a_page_offers_the_file_alone():
    for address in ("", "https://gitlab.com/a/b"):
        home = book_doors.Home(address, "main", "")
        links = BeautifulSoup(book_doors.row(home, "01_lesson.ipynb"), "html.parser").find_all("a")
        assert [a.get_text() for a in links] == ["Download"]


def test_a_copy_of_the_pages_has_no_answer_and_leads_to_its_worksheet(pages):
    text = (pages / "open/01_lesson.ipynb").read_text("utf-8")
    below = [c for c in json.loads(text)["cells"]
             if c["metadata"]["dlsys"].get("role") in {"look", "why", "repair", "more", "folklore"}]
    assert below
    assert [c["id"] for c in below if c.get("outputs")] == []
    assert "](01_activations.ipynb#" in text
    assert (pages / "open/01_activations.ipynb").read_text("utf-8").count("(01_lesson.ipynb")
    assert (pages / "_sources/notebooks/01_activations.ipynb").read_text("utf-8") == text


# ---- what a host does

def test_the_devcontainer_ends_on_the_start_page():
    text = (ROOT / ".devcontainer/devcontainer.json").read_text("utf-8")
    asked = json.loads(re.sub(r"^//.*$", "", text, flags=re.MULTILINE))
    assert asked["onCreateCommand"] == "TORCH=cpu sh tools/setup.sh lab"
    assert (ROOT / "tools/setup.sh").is_file()
    assert asked["postCreateCommand"] == ".venv/bin/dlsys start"
    assert asked["postAttachCommand"] == f"code my-work/{work_folder.START_PAGE}"
    settings = asked["customizations"]["vscode"]["settings"]
    assert settings["python.defaultInterpreterPath"].endswith("/.venv/bin/python")


def test_the_image_of_binder_has_no_cuda():
    """torch comes from conda's CPU build, and no pin makes pip fetch a different one."""
    asked = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))["dependencies"]
    names = [one for one in asked if isinstance(one, str)]
    assert "pytorch-cpu>=2.11" in names
    [pip] = [one["pip"] for one in asked if isinstance(one, dict)]
    assert [line for line in pip if re.match(r"torch|nvidia|cuda|-c\b", line)] == []


@pytest.fixture
def checkout(tmp_path):
    """A clone with two versions of the website in site/, and its origin."""
    origin, clone = tmp_path / "origin.git", tmp_path / "a clone"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
    subprocess.run([*git, "init", "-q", "--bare", origin], check=True)
    subprocess.run([*git, "init", "-q", clone], check=True)
    (clone / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/copies", clone / ".ci")
    (clone / ".gitignore").write_text("/site/\n")
    subprocess.run([*git, "add", "."], cwd=clone, check=True)
    subprocess.run([*git, "commit", "-qm", "x"], cwd=clone, check=True)
    subprocess.run([*git, "remote", "add", "origin", origin], cwd=clone, check=True)
    (clone / "site").mkdir()
    return clone


def in_git(folder: Path, *words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True,
                          check=True).stdout.splitlines()


def test_the_copies_become_a_branch_and_nothing_else_changes(checkout):
    for name in ("open/01_lesson.ipynb", "v1.0/open/01_lesson.ipynb", "index.html"):
        (checkout / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / "site" / name).write_text(name)
    for _ in range(2):  # the second run replaces the first
        done = subprocess.run([".ci/copies", "origin"], cwd=checkout, text=True,
                              capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    origin = checkout.parent / "origin.git"
    assert in_git(origin, "ls-tree", "-r", "--name-only", book_doors.BRANCH) == [
        "open/01_lesson.ipynb", "v1.0/open/01_lesson.ipynb"]
    assert in_git(origin, "rev-list", "--count", book_doors.BRANCH) == ["1"]
    assert in_git(checkout, "status", "--short") == []


def test_a_website_without_copies_is_said(checkout):
    done = subprocess.run([".ci/copies", "origin"], cwd=checkout, text=True, capture_output=True,
                          check=False)
    assert done.returncode == 1
    assert "none in site/, expected site/open/*.ipynb" in done.stderr


# ---- the whole

def files_of_the_repository(text: str) -> set[str]:
    """The paths in links to the repository's own files on the main branch."""
    return {unquote(path) for path in re.findall(rf"{URL}/(?:blob|tree)/main/([^\"#?) ]+)", text)}


def test_readme_with_an_address_leads_to_files():
    text = readme.filled((ROOT / "README.md").read_text("utf-8"), "way in",
                         readme.way_in(URL, "https://owner.github.io/course/"))
    targets = {target for target in re.findall(r"\]\(([^)#]+)", text) if ":" not in target}
    assert len(targets) > 20
    assert [t for t in targets if not (ROOT / t).exists()] == []
    assert f"git clone {URL}" in text


@pytest.mark.nightly  # build the whole book again
def test_every_link_of_a_site_with_an_address_leads_to_a_file(tmp_path, monkeypatch, image):
    config = book.written_settings()
    config["repository"]["url"] = URL
    monkeypatch.setattr(book, "written_settings", lambda: config)
    site = book.build(tmp_path)
    dead, seen = [], set()
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        dead += [path for path in files_of_the_repository(text) if not (ROOT / path).exists()]
        for a in BeautifulSoup(text, "html.parser").find_all("a", href=True):
            parts = urlsplit(a["href"])
            if a.get_text() in HOSTS and a.get("class") == ["button"]:
                seen.add(a.get_text())
                dead += lead_nowhere({a.get_text(): a["href"]}, HOMES[0], site, image)
            elif not parts.scheme and parts.path:
                target = os.path.normpath(page.parent / unquote(parts.path))
                dead += [] if Path(target).is_file() else [f"{page.name}: {a['href']}"]
    assert seen == HOSTS
    assert dead == []


def test_a_lesson_keeps_its_name_wherever_it_is_copied():
    assert {book_doors.files(stage)["notebooks"] for stage in catalog.written()} == {
        paths.lesson_copy(stage.number).name for stage in catalog.written()}
