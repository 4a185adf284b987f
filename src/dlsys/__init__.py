"""The command `dlsys`, the learner's worksheets, the start page and the grader.

No lesson imports it: what a lesson needs is in `dlsys_helpers`. A worksheet does, first of all: it
may be on its own, and then its work has another folder.
"""

import sys

from dlsys import locations, windows

# Block an optional dependency of jsonschema, which nbformat, JupyterLab and Jupyter Book import: at
# import it builds 38 parsers, which takes two seconds, to validate IRIs that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)

locations.settle()
if windows.HERE:
    windows.guard()
