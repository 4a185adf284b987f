"""The command `dlsys`, the learner's worksheets, the start page and the grader.

No lesson imports it: what a lesson needs is in `dlsys_helpers`. A worksheet does, first of all: it
may be on its own, and then its work has another folder.
"""

import sys

from dlsys import place, windows

# jsonschema, which nbformat, JupyterLab and Jupyter Book import, takes this package where it finds
# it. At import it builds 38 parsers, two seconds' work, for a check of IRIs that no notebook needs;
# jsonschema does without.
sys.modules.setdefault("rfc3987_syntax", None)

place.settle()
if windows.HERE:
    windows.guard()
