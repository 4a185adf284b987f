"""What a public home of the course reads: workflows and the citation, held to their schemas.

They cannot run here. What a schema does not hold, that their commands exist, is compared by hand.
"""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from dlsys_helpers.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SCHEMAS = {"vendor.github-workflows": WORKFLOWS,
           "vendor.citation-file-format": [ROOT / "CITATION.cff"]}


def objections(schema, *files) -> str:
    """What the schema, one that check-jsonschema brings along, says against files, or nothing."""
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


def test_the_commands_of_the_workflows_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    steps = [step for path in WORKFLOWS
             for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
             for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands
    for command in commands:
        assert (ROOT / command).is_file() or command.removeprefix("make ") in targets, command


def test_every_python_of_the_matrix_is_one_that_the_course_runs_on():
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
    pythons = tests["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert pythons[0] == PROJECT["requires-python"].removeprefix(">=")
    assert len(pythons) == 3


def test_the_citation_names_the_version_and_licence_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
