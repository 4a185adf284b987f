"""How long a learner's code may take: one fact for notebooks, commands and the grader."""

SECONDS = 30  # for one cell, and for one answer, unless an option changes it
