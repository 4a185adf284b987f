"""The books of a run: who handed in what, what was judged, which points count, what goes where.

    submissions, submitted_notebook   find what was handed in, and read it
    people                     which learner a result belongs to
    journal                    the folder of a run: each result is on disk before the next
    budget                     how long one learner's submissions may take together
    scoring, due, overrides    turn verdicts into the points that count
    gradebooks                 the gradebooks of Canvas and Moodle: read once, filled in, kept
    reports, pages, hints      every other format, from the one JSON
    returns                    feedback pages as Canvas and Moodle hand them out
    term                       one page over several runs

No learner's code runs here, and nothing here imports dlsys.grading.walls.
"""
