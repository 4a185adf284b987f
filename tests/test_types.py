"""The annotations are right: mypy checks the files that pyproject.toml names."""

import subprocess
import sys

from dlsys_helpers.paths import ROOT


def checked(*arguments: object) -> str:
    """What mypy says; "" if it finds nothing. Its cache is in a folder that git ignores."""
    done = subprocess.run([sys.executable, "-m", "mypy", "--no-error-summary",
                           *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_the_annotations_hold():
    assert checked() == ""


def test_a_slip_is_found(tmp_path):
    slip = tmp_path / "slip.py"
    slip.write_text("from dlsys.grading.settings import Limits\nlimits = Limits(seconds='3')\n")
    assert 'incompatible type "str"; expected "float"' in checked(slip)
