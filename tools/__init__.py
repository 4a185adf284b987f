"""What builds, records and shows the course; a learner needs none of it."""

import dlsys  # noqa: F401  nbformat loads faster behind it
