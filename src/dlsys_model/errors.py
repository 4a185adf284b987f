"""The errors of a model: what a learner can set right, in one line, in a notebook, too."""

from dlsys_helpers.errors import UserError


class ModelError(UserError):
    """Something that a learner can set right. A notebook shows its one line, no traceback."""
