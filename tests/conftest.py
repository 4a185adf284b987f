"""Shared by all tests: the learner's own progress is never touched; drafts are left out, aloud."""

import os

os.environ.setdefault("DLSYS_PROGRESS", "off")


def pytest_terminal_summary(terminalreporter):
    from dlsys_helpers import paths
    left_out = [p.stem for p in paths.drafts() if p.stem[:2] != os.environ.get("DRAFT")]
    if left_out:
        terminalreporter.write_line(
            f"drafts left out: {', '.join(left_out)}. The checks of one: "
            f'make test DRAFT={left_out[0][:2]} TESTS="tests/test_checks.py -k {left_out[0][:2]}"')
