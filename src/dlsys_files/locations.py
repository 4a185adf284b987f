"""Where the course's notebooks are, and which folder a learner's work goes to.

In a learner's own checkout, work goes to ``my-work/``. With an installed wheel, or a checkout that
another user owns, it goes to ``~/dlsys-work``. ``DLSYS_WORK`` overrides both.
"""

import os
from pathlib import Path

from dlsys_helpers import paths

HOME_FOLDER = "dlsys-work"
# In a wheel: worksheets, and lessons without outputs.
SHIPPED = Path(__file__).parents[1] / "dlsys" / "course"


def is_checkout() -> bool:
    """Whether the package is in a checkout of the course, not installed from a wheel."""
    return not SHIPPED.is_dir() and (paths.ROOT / "exercises").is_dir()


def set_folders() -> None:
    """Set the folders in `paths`: the wheel's notebooks, and a work folder that can be written.

    Sets ``DLSYS_WORK`` unless it is set already, so that kernels and child processes agree.
    """
    if SHIPPED.is_dir():
        paths.EXERCISES, paths.NOTEBOOKS = SHIPPED / "exercises", SHIPPED / "notebooks"
    if not os.environ.get("DLSYS_WORK") and not (is_checkout() and is_mine(paths.MY_WORK)):
        paths.MY_WORK = Path(os.path.expanduser("~"), HOME_FOLDER).absolute()
        os.environ["DLSYS_WORK"] = str(paths.MY_WORK)


def is_mine(folder: Path) -> bool:
    """Whether this user can write the folder and owns it, or can create it."""
    if not folder.exists():
        return os.access(folder.parent, os.W_OK)
    if not hasattr(os, "geteuid"):  # Windows has no numeric owner
        return os.access(folder, os.W_OK)
    return os.access(folder, os.W_OK) and os.geteuid() in (folder.stat().st_uid, 0)
