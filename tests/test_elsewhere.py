"""Environments of `make colab` and `make newest`: their lists, and how uv gets pip's settings.

The runs themselves need minutes and the network, so only the nightly workflow does them.
"""

import subprocess
import sys

import pytest

from dlsys import needed
from dlsys_helpers.paths import NOTEBOOKS, ROOT
from tools import elsewhere


class Programs:
    """A replacement for pip and uv: prints what it is told to, and records its calls."""

    def __init__(self, printed: str = "", code: int = 0):
        self.printed, self.code, self.asked = printed, code, []

    def __call__(self, command, **how):
        self.asked.append((command, how))
        return subprocess.CompletedProcess(command, self.code, self.printed, "no such version")


@pytest.fixture
def programs(monkeypatch):
    fake = Programs()
    monkeypatch.setattr(elsewhere.subprocess, "run", fake)
    for name in elsewhere.UV_NAMES.values():
        monkeypatch.delenv(name, raising=False)
    return fake


def test_uv_is_told_what_pip_was_told_unless_it_knows_better(programs, monkeypatch):
    programs.printed = ("global.cert='/etc/a file.crt'\nglobal.find-links='/wheels'\n"
                        "install.extra-index-url='https://a/simple\\nhttps://b/simple'\n"
                        ":env:.disable-pip-version-check='1'\n")
    monkeypatch.setenv("UV_FIND_LINKS", "/mine")
    assert elsewhere.as_pip_is_told() == {
        "SSL_CERT_FILE": "/etc/a file.crt", "UV_INDEX": "https://a/simple https://b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match"}


def test_the_newest_versions_are_what_the_floors_allow_today(programs):
    programs.printed = "torch==9.9\n"
    assert elsewhere.versions(elsewhere.PLACES["newest"], {}) == "torch==9.9\n"
    [(command, how)] = programs.asked
    assert command[1:3] == ["pip", "compile"]
    assert how["input"].splitlines() == needed.project()["dependencies"]


def test_floors_that_cannot_be_resolved_are_said(programs):
    programs.code = 1
    with pytest.raises(SystemExit, match=r"floors .* cannot be resolved\.\nno such"):
        elsewhere.versions(elsewhere.PLACES["newest"], {})


def test_colabs_versions_are_the_recorded_ones(programs):
    found = elsewhere.versions(elsewhere.PLACES["colab"], {})
    assert "\ntorch==2.11.0\n" in found
    assert programs.asked == []


def test_an_environment_is_made_anew_only_for_another_list(programs, monkeypatch, tmp_path):
    monkeypatch.setattr(elsewhere, "ROOT", tmp_path)
    monkeypatch.setattr(elsewhere, "versions", lambda place, settings: "a==1\n")
    place = elsewhere.PLACES["newest"]
    place.home.mkdir()
    (place.home / "made-for").write_text("a==1\n")
    elsewhere.set_up(place)
    assert [command[2:4] for command, _ in programs.asked] == [["pip", "config"]]
    (place.home / "made-for").write_text("a==0\n")
    programs.code = 1
    with pytest.raises(SystemExit, match=r"newest: the environment cannot be made.*Python 3\.14"):
        elsewhere.set_up(place)


def test_each_place_has_a_target_and_is_ignored_by_git():
    made = (ROOT / "Makefile").read_text("utf-8")
    for name, place in elsewhere.PLACES.items():
        assert f"make {name} " in made
        assert subprocess.run(["git", "check-ignore", "-q", place.home], cwd=ROOT,
                              check=False).returncode == 0


def test_another_place_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["elsewhere", "moon"])
    with pytest.raises(SystemExit, match="expected one of colab, newest"):
        elsewhere.main()


def test_all_lessons_run_unless_some_are_named(monkeypatch, capsys):
    """The nightly run names none, and once ran only five of fifteen."""
    ran = []
    listed = '[{"name": "torch", "version": "2"}, {"name": "ipython", "version": "9"},' \
             ' {"name": "numpy", "version": "2"}]'
    monkeypatch.setattr(elsewhere, "set_up", lambda place: None)
    monkeypatch.setattr(elsewhere, "wheel", lambda folder: folder / "x.whl")
    monkeypatch.setattr(elsewhere, "run", lambda place, path, *_: (
        ran.append(path.stem), elsewhere.nbformat.read(path, as_version=4))[1])
    monkeypatch.setattr(elsewhere.subprocess, "run", Programs(listed))
    for asked, expected in (([], sorted(p.stem for p in NOTEBOOKS.glob("[01][0-9]_*.ipynb")
                                        if p.stem[:2] != "00")), (["01"], ["01_activations"])):
        ran.clear()
        monkeypatch.setattr(sys, "argv", ["elsewhere", "colab", *asked])
        with pytest.raises(SystemExit):
            elsewhere.main()
        assert ran == expected
    assert "With torch 2, ipython 9" in capsys.readouterr().out
