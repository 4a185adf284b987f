"""Grade notebooks that strangers wrote: answers run behind walls, verdicts are made outside.

    command, options, settings   what the instructor asks, and what a run is made of
    cohort, cluster            which submissions, in which order, on which machine
    judge, acts, tally         trusted: draw the cases, apply the laws, make the verdicts
    model_laws, in_model       the same for Your model: its checks, then its trials
    shapes                     what is left of an answer without names
    gradescope                 the same for one hand-in, in Gradescope's container
    walls                      isolate the learner's code, and carry data in and out
    books                      who handed in what, what counts, and every report about it
    text                       strangers' words as harmless text

It runs only on Linux. Windows lacks even modules that it imports, and the commands say so in one
line.
"""

from dlsys import windows
from dlsys_helpers.errors import UserError

ON_WINDOWS = ("grading: got Windows, expected Linux. Grade in WSL 2, a virtual machine or a "
              "container.")


def refuse_windows() -> None:
    """Raises UserError on Windows."""
    if windows.HERE:
        raise UserError(ON_WINDOWS)
