"""The linter finds nothing; pyproject.toml has its rules, such as short functions."""

import subprocess
import sys

from dlsys_helpers.paths import ROOT


def test_ruff_finds_nothing():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format",
                           "concise", str(ROOT)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
