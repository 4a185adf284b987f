"""The watch in a test: `pytest_plugins = ["dlsys_watch.pytest_plugin"]` in conftest.py.

A test that takes the fixture `watched` ends in an error where the watch found something.
"""

from __future__ import annotations

import pytest

import dlsys_watch


@pytest.fixture
def watched():
    """The list of what is found. A test that expects a finding checks it and clears the list."""
    with dlsys_watch.watching() as found:
        yield found
    if found:
        pytest.fail("\n".join(["dlsys watch found:", *(f.text() for f in found)]), pytrace=False)
