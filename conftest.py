"""For every run of pytest here, that of a learner included."""

pytest_plugins = ["tools.nbval_numbers"]
