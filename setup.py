"""What a wheel holds beside the modules: the worksheets, and the lessons without their outputs.

All else about the package stands in pyproject.toml. An editable installation copies nothing: it
finds the course in the folder around it.
"""

import json
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS, LOCK = ("exercises", "notebooks"), "requirements.lock"
# Mends of the exam's faults that pass: tools and tests alone read them.
LEFT_OUT = {("dlsys_checks.exam", "mends")}


class WithCourse(build_py):
    """The modules, then the course's notebooks as data of the package `dlsys`."""

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return found if self.editable_mode else [m for m in found if m[:2] not in LEFT_OUT]

    def run(self):
        super().run()
        if not self.editable_mode:
            course = Path(self.build_lib, "dlsys", "course")
            course.mkdir(parents=True, exist_ok=True)  # the lock: which versions were tried
            (course / LOCK).write_text(Path(LOCK).read_text("utf-8"), "utf-8")
            for folder in FOLDERS:
                target = course / folder
                target.mkdir(exist_ok=True)
                for path in sorted([*Path(folder).glob("[01][0-9]_*.ipynb"),
                                *Path(folder).glob("your_model.ipynb")]):
                    (target / path.name).write_text(bare(path.read_text("utf-8")), "utf-8")


def bare(notebook):
    """A notebook's text as a learner's copy begins: without outputs, which take nine tenths of a
    lesson, and without what they rested on, but for the code, by which `dlsys start` sees changes.
    """
    book = json.loads(notebook)
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    facts = book["metadata"]["dlsys"]
    facts.pop("outputs", None)
    if "rests_on" in facts:
        facts["rests_on"] = {"code": facts["rests_on"]["code"]}
    return json.dumps(book, ensure_ascii=False, separators=(",", ":")) + "\n"


setup(cmdclass={"build_py": WithCourse})
