"""The linter is quiet, and functions are short."""

import ast
import statistics
import subprocess
import sys

from dlsys_helpers.paths import ROOT


def test_ruff_finds_nothing():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format",
                           "concise", str(ROOT)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_functions_are_short():
    """Half of all functions have at most ten lines, nine of ten at most 35."""
    lengths = [node.end_lineno - node.lineno + 1
               for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").glob("*.py")]
               for node in ast.walk(ast.parse(path.read_text("utf-8")))
               if isinstance(node, ast.FunctionDef)]
    assert statistics.median(lengths) <= 10
    assert statistics.quantiles(lengths, n=10)[-1] <= 35
