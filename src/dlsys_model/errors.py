"""The errors of a model: what a learner can fix, in one line, in a notebook as well."""

from dlsys_helpers.errors import UserError


class ModelError(UserError):
    """Something that a learner can fix. A notebook shows its one line, no traceback."""


def not_written(error: Exception) -> str:
    """Why a file could not be written, in words: torch says only at which byte it stopped."""
    return getattr(error, "strerror", None) or "not all of it was written"
