"""The linter is quiet; what it asks for, short functions among it, pyproject.toml says."""

import subprocess
import sys

from dlsys_helpers.paths import ROOT


def test_ruff_finds_nothing():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format",
                           "concise", str(ROOT)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
