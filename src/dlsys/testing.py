"""For tests of your own: `from dlsys.testing import same`."""

from dlsys_same.testing import same

__all__ = ["same"]
