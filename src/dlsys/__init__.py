"""The command `dlsys`, the learner's worksheets, the start page and the grader.

No lesson imports it: what a lesson needs is in `dlsys_helpers`. A worksheet imports it before
anything else: it may be outside the course, and then the learner's work has a different folder.
"""

import sys

import dlsys_files  # noqa: F401, sets the folders of the course and of the learner
from dlsys import windows

# Block an optional dependency of jsonschema, which nbformat, JupyterLab and Jupyter Book import: at
# import it builds 38 parsers, which takes two seconds, to validate IRIs that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)

if windows.HERE:
    windows.guard()
