"""Where the checkout lies: the package is installed editable, the repository two levels up."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
EXERCISES = ROOT / "exercises"
SOLUTIONS = ROOT / "solutions"
MY_WORK = ROOT / "my-work"
