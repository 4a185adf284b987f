"""Grade notebooks that strangers wrote: answers run behind walls, verdicts are made outside.

Who does what, from the outside in:

    command, cohort, cluster   which submissions, in which order, on which machine
    budget                     how long one learner's submissions may take together
    options                    what the command was told about points and gradebooks
    judge, tally, model_laws   trusted: draws the cases, holds the laws, makes the verdicts
    sandbox                    trusted: the judge's handle on one sandbox
    zygote, supervisor, init   around the learner's code: start it, watch it, end it
    runner, crowds             beside the learner's code: run cells and acts
    walls, groups, seccomp     what that code may see, do and use
    frames, wire               what crosses the line: length-prefixed, typed, capped; no pickle
    submissions, text          reading what was handed in, and showing it as data
    scoring, due, overrides    from what was judged to the points that count
    reports, pages, hints      one JSON as the source of every other format
    gradebooks, returns        what Canvas and Moodle take back
    term                       one page over several runs

It runs on Linux alone. On Windows even what it imports is missing; the commands say so in one line.
"""

from dlsys import windows
from dlsys_helpers.errors import UserError

ON_WINDOWS = ("grading: got Windows, expected Linux. Grade in WSL 2, a virtual machine or a "
              "container.")


def refuse_windows() -> None:
    """Raises UserError on Windows."""
    if windows.HERE:
        raise UserError(ON_WINDOWS)
