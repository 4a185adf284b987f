"""The course's files and a learner's: where they are, and how a notebook is read.

Nothing here runs a cell, and nothing writes. Importing the package sets the folders in
`dlsys_helpers.paths`.
"""

from dlsys_files import locations

locations.set_folders()
