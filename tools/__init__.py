"""Code that builds, records and shows the course; learners do not need it."""

import sys
from pathlib import Path

# A GPU machine that records has the checkout but not the package: `python3 -m tools.record`.
sys.path.append(str(Path(__file__).resolve().parents[1] / "src"))

import dlsys  # noqa: F401  nbformat loads faster behind it
