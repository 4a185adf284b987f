"""Check the files for a public host against schemas: workflows, forms, the citation.

They cannot run here. No schema says whether their commands exist, so these tests compare them.
"""

import re
import shutil
import subprocess
import sys
import tomllib

import grading_samples
import pytest
import yaml

from dlsys_helpers import catalog
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import STAGES
from tools import book, lock, versions

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
SCHEMAS = {"vendor.github-workflows": WORKFLOWS,
           "vendor.github-issue-config": [form for form in FORMS if form.stem == "config"],
           "vendor.github-issue-forms": [form for form in FORMS if form.stem != "config"],
           "vendor.citation-file-format": [ROOT / "CITATION.cff"]}


def objections(schema, *files) -> str:
    """The errors that a schema bundled with check-jsonschema finds in files, or nothing."""
    done = subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema,
                           *map(str, files)], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode else ""


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_a_public_home_keep_to_their_schema(schema):
    assert SCHEMAS[schema]
    assert objections(schema, *SCHEMAS[schema]) == ""


def test_a_workflow_with_a_misspelt_key_is_refused(tmp_path):
    text = WORKFLOWS[0].read_text("utf-8")
    (tmp_path / "x.yml").write_text(text.replace("runs-on:", "run-on:"))
    assert "run-on" in objections("vendor.github-workflows", tmp_path / "x.yml")


def jobs(workflow: str) -> dict:
    return yaml.safe_load((ROOT / f".github/workflows/{workflow}.yml").read_text("utf-8"))["jobs"]


def commands(job: dict) -> list[list[str]]:
    """The words of each command that a job runs, without redirections."""
    return [step["run"].partition(" >>")[0].split() for step in job.get("steps", [])
            if "run" in step]


def test_the_commands_of_the_workflows_exist():
    named = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    targets = set(" ".join(named).split())
    found = [words for path in WORKFLOWS for job in jobs(path.stem).values()
             for words in commands(job)]
    assert len(found) > 8
    for program, *rest in found:
        files = [word for word in (program, *rest) if "/" in word and "*" not in word]
        assert [file for file in files if not (ROOT / file).is_file()] == []
        if program == "make":
            assert rest[0] in targets
        elif program == "pip":
            extras = set(re.fullmatch(r"\.\[(.*)\]", rest[-1])[1].split(","))
            assert extras == lock.LESSONS | {"points"}  # this job runs pytest
        elif program not in {"dlsys", "gh", "pipx", "python", "sudo"}:
            assert files == [program]


def test_every_action_is_pinned_by_commit_and_says_its_version():
    used = [line.split("uses:")[1].strip() for path in WORKFLOWS
            for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    others = [line for line in used if not line.startswith("./")]
    assert len(others) > 20
    pinned = r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+"
    assert [line for line in others if not re.fullmatch(pinned, line)] == []
    # One version of each action, wherever it is used.
    assert len({line.partition("@")[0] for line in others}) == len(set(others))


def test_the_audit_reads_the_lock_each_day_and_fails_where_it_cannot_look_a_package_up():
    assert triggers("audit").keys() == {"schedule", "push", "pull_request", "workflow_dispatch"}
    (program, run, tool, *words), = commands(jobs("audit")["audit"])
    assert (program, run) == ("pipx", "run")
    assert re.fullmatch(r"pip-audit==[\d.]+", tool)
    assert {"--strict", "--no-deps", "requirements.lock"} <= {*words}


@pytest.mark.parametrize(("workflow", "command"), [
    ("tests", [".ci/run"]), ("nightly", [".ci/run", "nightly"])])
def test_ci_cannot_pass_with_the_hostile_tests_skipped(monkeypatch, workflow, command):
    job = jobs(workflow)[workflow]
    allow, run = commands(job)
    assert allow == ["sudo", "sysctl", "-w", "kernel.apparmor_restrict_unprivileged_userns=0"]
    assert run == command
    monkeypatch.delenv("DLSYS_MUST_RUN_WALLS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no sandbox on this machine: refused"):
        grading_samples.without_sandbox("refused")
    for name, value in job["env"].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(pytest.fail.Exception, match=r"refused.*these tests have to run"):
        grading_samples.without_sandbox("refused")


def test_everything_runs_each_night_and_a_release_needs_it_green():
    assert triggers("nightly").keys() == {"schedule", "workflow_dispatch", "workflow_call"}
    night, wheel = (jobs("release")[name] for name in ("nightly", "wheel"))
    assert (ROOT / night["uses"]).samefile(ROOT / ".github/workflows/nightly.yml")
    assert wheel["needs"] == "nightly"
    pythons = [jobs(name)[name]["strategy"]["matrix"]["python"] for name in ("tests", "nightly")]
    assert pythons[0] == pythons[1]


def test_learners_of_other_systems_are_tested_with_what_learners_install():
    systems = jobs("tests")["learner"]["strategy"]["matrix"]["system"]
    assert {name.partition("-")[0] for name in systems} == {"windows", "macos"}
    *_, (python, _m, pytest_, _q, *files) = commands(jobs("tests")["learner"])
    assert (python, pytest_) == ("python", "pytest")
    assert len(files) > 2
    later = {name.replace("-", "_") for name in lock.LOCK.read_text("utf-8").split("# Besides")[1]
             .replace("==", " ").split()} - {"pytest"} | {"fcntl", "resource", "yaml", "bs4"}
    assert [name for name in files if later & set(re.findall(
        r"^\s*(?:import|from) (\w+)", (ROOT / name).read_text("utf-8"), re.MULTILINE))] == []


def test_every_python_of_the_matrix_is_one_that_the_course_runs_on():
    pythons = jobs("tests")["tests"]["strategy"]["matrix"]["python"]
    assert "continue-on-error" not in jobs("tests")["tests"]
    assert pythons[0] == PROJECT["requires-python"].removeprefix(">=")
    assert pythons[1:] == ["3.12", "3.13", "3.14"]


def test_the_citation_names_version_date_and_licence_of_the_release():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    (version, date), *_ = RELEASE.findall(CHANGES)
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert (version, date) == (citation["version"], str(citation["date-released"]))


# ---- what changed

CHANGES = (ROOT / "CHANGELOG.md").read_text("utf-8")
RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", re.MULTILINE)
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # from Keep a Changelog


def test_the_changelog_keeps_its_form_and_begins_with_the_version_of_the_package():
    headings = re.findall(r"^## (.*)$", CHANGES, re.MULTILINE)
    found = RELEASE.findall(CHANGES)
    if headings[0] == "[Unreleased]":
        del headings[0]
    assert len(found) == len(headings)
    assert found[0][0] == PROJECT["version"]
    numbers = [tuple(map(int, version.split("."))) for version, _ in found]
    assert numbers == sorted(numbers, reverse=True)
    assert [date for _, date in found] == sorted((date for _, date in found), reverse=True)
    assert set(re.findall(r"^### (.*)$", CHANGES, re.MULTILINE)) <= KINDS


def test_the_first_version_names_each_stage():
    first = " ".join(CHANGES.rpartition("\n## [1.0.0]")[2].split())
    assert [s.title for s in STAGES[:12] if f"- Stage {s.number}, *{s.title}*: " not in first] == []
    traps = re.findall(r"- Stage \d+, \*[^*]*\*: (\d+) traps", first)
    assert f"twelve stages, {sum(map(int, traps))} traps" in first
    assert sum(map(int, traps)) <= len(catalog.traps())


# ---- versions of the website

def release(tag, date="2026-11-22"):
    return versions.Release(tag, date, "0123456789ab")


def test_of_a_minor_version_the_highest_is_shown_and_other_tags_are_none():
    lines = [f"{tag} 2026-01-01 abc" for tag in
             ("v1.0.9", "v1.0.10", "v0.9.0", "v1.10.0", "v1.9.0", "v2.0.0rc1", "1.0.11", "draft")]
    found = versions.releases(lines)
    assert [(r.tag, r.folder) for r in found] == [
        ("v1.10.0", "v1.10"), ("v1.9.0", "v1.9"), ("v1.0.10", "v1.0"), ("v0.9.0", "v0.9")]


def test_files_that_disagree_and_a_version_that_is_out_are_not_released(tmp_path, monkeypatch):
    mine = f"v{PROJECT['version']}"
    assert versions.disagreement(["v0.0.1"]) == ""
    assert f"got the tag {mine}, which is there" in versions.disagreement(["v0.0.1", mine])
    for name in versions.stated_versions():
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    cited = tmp_path / "CITATION.cff"
    cited.write_text(cited.read_text("utf-8").replace(f"version: {PROJECT['version']}",
                                                      "version: 0.9.9"), "utf-8")
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    assert "CITATION.cff has 0.9.9" in versions.disagreement([])
    (words,) = [words for words in commands(jobs("release")["wheel"]) if words[0] == "python"]
    assert words == ["python", "tools/versions.py", "next"]


def triggers(workflow: str) -> dict:
    text = (ROOT / f".github/workflows/{workflow}.yml").read_text("utf-8")
    return yaml.load(text, yaml.BaseLoader)["on"]  # in plain YAML "on" is a boolean


def test_pages_are_deployed_from_the_default_branch_after_tests_that_passed(monkeypatch):
    """A tag may not deploy to the environment github-pages, and nothing else starts the site."""
    assert triggers("site").keys() == {"workflow_run", "workflow_dispatch"}
    assert triggers("site")["workflow_run"] == {
        "workflows": ["tests", "release"], "branches": ["main"], "types": ["completed"]}
    assert "workflow_run.conclusion == 'success'" in jobs("site")["versions"]["if"]
    monkeypatch.setenv("TESTED", "")
    with pytest.raises(SystemExit, match="expected one that has passed its tests"):
        versions.tested_commit()


def test_only_what_has_a_release_is_shown(monkeypatch):
    monkeypatch.setattr(versions, "tags", lambda: ["v1.0.0 2026-01-01 a", "v1.1.0 2026-02-02 b"])
    monkeypatch.setenv("RELEASED", "v1.0.0")
    assert [r.tag for r in versions.tagged_releases()] == ["v1.0.0"]
    monkeypatch.delenv("RELEASED")
    assert [r.tag for r in versions.tagged_releases()] == ["v1.1.0", "v1.0.0"]


def test_tags_are_read_from_the_clone(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    assert versions.tagged_releases() == []
    for command in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
                    "tag v1.0.0", "-c user.name=a -c user.email=a@b tag -a v1.1.0 -m x", "tag x"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    found = versions.tagged_releases()
    assert [r.tag for r in found] == ["v1.1.0", "v1.0.0"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", r.date) for r in found)


def test_the_workflow_builds_main_always_and_a_release_under_a_key():
    main, old = versions.builds([release("v1.0.2")], "0a1b2c")
    assert main == {"ref": "0a1b2c", "folder": "", "key": ""}
    assert old == {"ref": "v1.0.2", "folder": "v1.0", "key": "v1.0.2-0123456789ab"}
    asked = set(re.findall(r"matrix\.(\w+)", str(jobs("site"))))
    assert asked == main.keys()


@pytest.mark.parametrize(("folder", "hrefs"), [
    (None, []), ("v1.0", ["../index.html", "../versions.html"]),
    ("", ["index.html", "v1.1/index.html", "v1.0/index.html"])])
def test_the_page_of_versions_leads_to_what_stands_beside_it(folder, hrefs):
    text = versions.page("1.1.0", folder, [release("v1.1.0"), release("v1.0.2")])
    assert "This is version 1.1.0" in text
    assert re.findall(r'href="([^"]+)"', text) == hrefs


@pytest.mark.parametrize(("repository", "own", "address"), [
    ("", "", ""), ("", "https://a.example/b", "https://a.example/b/"),
    ("https://github.com/Some-One/course", "", "https://some-one.github.io/course/"),
    ("https://github.com/o/o.github.io/", "", "https://o.github.io/"),
    ("https://github.com/o/r", "https://a.example/", "https://a.example/"),
    ("https://git.example/o/r", "https://a.example/", "https://a.example/")])
def test_the_address_of_the_pages_follows_from_that_of_the_repository(repository, own, address):
    config = {"repository": {"url": repository}, "html": {"baseurl": own}}
    assert book.address(config) == address


def test_a_repository_elsewhere_asks_for_the_address_of_its_pages():
    with pytest.raises(book.BookError, match=r"got the repository 'git@h:o/r', expected https://g"):
        book.address({"repository": {"url": "git@h:o/r"}, "html": {"baseurl": ""}})


def settings(folder):
    return book.settings({"repository": {"url": "https://github.com/o/r", "branch": "main"},
                          "html": {"baseurl": "https://a.example/"}}, folder)


def test_the_buttons_of_a_release_open_its_tag_and_its_canonical_pages_are_the_newest():
    assert settings("")["repository"]["branch"] == "main"
    mine = settings(versions.folder_of(PROJECT["version"]))
    assert mine["repository"]["branch"] == f"v{PROJECT['version']}"
    assert mine["html"]["baseurl"] == settings("")["html"]["baseurl"] == "https://a.example/"


def test_pages_go_into_the_folder_of_their_version_and_over_no_others(tmp_path, monkeypatch):
    built, mine = tmp_path / "html", versions.folder_of(PROJECT["version"])
    built.mkdir()
    (built / "index.html").write_text("new")
    monkeypatch.setattr(book, "build", lambda folder: built)
    for folder in ("", mine):
        target = book.publish(folder, tmp_path / "site")
        assert target == tmp_path / "site" / folder
        assert (target / "index.html").read_text() == "new"
    with pytest.raises(book.BookError, match="pages stand there"):
        book.publish(mine, tmp_path / "site")
    with pytest.raises(book.BookError, match=f"got 'v7.7', expected '{mine}'"):
        book.publish("v7.7", tmp_path / "site")


def test_the_versions_are_listed_before_anything_is_set_up(tmp_path):
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "tools/versions.py", tmp_path / "tools")
    done = subprocess.run(["make", "--no-print-directory", "versions"], cwd=tmp_path, text=True,
                          capture_output=True, check=True, timeout=60)
    assert done.stdout == 'versions=[{"ref": "main", "folder": "", "key": ""}]\n'


# ---- the package index

WATCH = tomllib.loads((ROOT / "src/dlsys_watch/pyproject.toml").read_text("utf-8"))["project"]


@pytest.mark.parametrize(("project", "folder"), [
    (PROJECT, ROOT), (WATCH, ROOT / "src/dlsys_watch")], ids=["dlsys-helpers", "dlsys-watch"])
def test_a_package_has_readme_licence_and_the_address_of_the_course(project, folder):
    assert (folder / project["readme"]).is_file()
    assert "MIT License" in (folder / project["license-files"][0]).read_text("utf-8")
    config = book.written_settings()
    home = {"Repository": config["repository"]["url"], "Documentation": book.address(config)}
    assert project.get("urls", {}) == {name: url for name, url in home.items() if url}


def test_the_licence_of_the_watch_is_that_of_the_code():
    own = (ROOT / "src/dlsys_watch/LICENSE").read_text("utf-8")
    assert (ROOT / "LICENSE").read_text("utf-8").endswith(own)


INSTALLS = re.compile(r"\b(?:pip3? install|pip download|uv add|uv tool (?:install|run)|uvx|"
                      r"pipx (?:run|install))\b[^\n`]*")


def strangers(text: str) -> list[str]:
    """Commands of a text that would install or run the package `dlsys`, which others own."""
    found = []
    for command in INSTALLS.findall(text):
        words = [word.strip("'\"().,;") for word in command.split()]
        if re.search(r"--from[ =]+['\"]?dlsys-helpers", command):
            continue
        if any(re.fullmatch(r"dlsys(?:\[.*\])?(?:[=<>~!].*)?", word) for word in words):
            found.append(command)
    return found


def test_commands_that_would_run_a_stranger_s_package_are_found():
    assert len(strangers("pip install dlsys\nuvx dlsys start 1\npip install 'dlsys[lab]>=1'")) == 3
    assert strangers('pip install "dlsys-helpers[lab]"\nuvx --from dlsys-helpers dlsys start 1\n'
                     "pip install -e . && dlsys start 1".replace("&& dlsys", "\ndlsys")) == []


def test_no_page_prints_a_command_that_would_run_a_stranger_s_package():
    pages = [*ROOT.glob("*.md"), *(ROOT / "book").glob("*.md"), *(ROOT / "lessons").glob("*.py"),
             *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.md"),
             *(ROOT / "tools").rglob("*.py")]
    assert len(pages) > 200
    assert {str(path.relative_to(ROOT)): found for path in pages
            if (found := strangers(path.read_text("utf-8")))} == {}


def test_a_name_that_the_index_does_not_have_yet_is_in_no_command():
    """pyproject's on_index says whether the index has it; the test does not ask the index."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["dlsys"]
    pages = [ROOT / "README.md", *(ROOT / "book").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = [command for path in pages for command in INSTALLS.findall(path.read_text("utf-8"))
             if re.search(r"\bdlsys-(?:helpers|watch)\b", command)]
    assert settings["on_index"] or named == []
