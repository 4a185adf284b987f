"""Where a learner's work goes: with their own checkout, a shared one, or a wheel."""

import os
from types import SimpleNamespace

import pytest

from dlsys import doctor, needed
from dlsys_files import locations
from dlsys_helpers import paths


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A course in a separate folder; each test decides who may write to it."""
    (tmp_path / "exercises").mkdir()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    for name, folder in (("MY_WORK", "my-work"), ("EXERCISES", "exercises"),
                         ("NOTEBOOKS", "notebooks")):
        monkeypatch.setattr(paths, name, tmp_path / folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DLSYS_WORK", "")
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    return tmp_path


def test_a_checkout_of_ones_own_holds_the_work(checkout):
    locations.set_folders()
    assert checkout / "my-work" == paths.MY_WORK
    assert os.environ["DLSYS_WORK"] == ""


def test_a_checkout_that_cannot_be_written_sends_it_home(checkout, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    locations.set_folders()
    assert checkout / "home/dlsys-work" == paths.MY_WORK
    assert os.environ["DLSYS_WORK"] == str(paths.MY_WORK)


@pytest.mark.parametrize(("me", "mine"), [(1001, False), (1000, True), (0, True)])
def test_a_folder_that_another_user_began_is_not_mine_unless_i_am_root(monkeypatch, me, mine):
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    monkeypatch.setattr(os, "geteuid", lambda: me)
    begun = SimpleNamespace(exists=lambda: True, stat=lambda: SimpleNamespace(st_uid=1000))
    assert locations.is_mine(begun) is mine


@pytest.mark.parametrize("writable", [True, False])
def test_where_users_have_no_numbers_a_folder_is_mine_if_i_can_write_it(monkeypatch, writable):
    monkeypatch.delattr(os, "geteuid")
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    assert locations.is_mine(SimpleNamespace(exists=lambda: True)) is writable


def test_a_named_folder_has_the_last_word(checkout, monkeypatch):
    monkeypatch.setenv("DLSYS_WORK", str(checkout / "desk"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    before = paths.MY_WORK
    locations.set_folders()
    assert before == paths.MY_WORK


def test_a_wheel_has_the_course_inside_and_its_work_at_home(checkout, monkeypatch):
    (checkout / "course").mkdir()
    monkeypatch.setattr(locations, "SHIPPED", checkout / "course")
    locations.set_folders()
    assert not locations.is_checkout()
    assert checkout / "course/exercises" == paths.EXERCISES
    assert checkout / "course/notebooks" == paths.NOTEBOOKS
    assert checkout / "home/dlsys-work" == paths.MY_WORK


def test_doctor_of_a_wheel_asks_only_for_what_checks_need(checkout, monkeypatch):
    """Without pyproject.toml, the requirements come from the installed package itself."""
    monkeypatch.setattr(needed, "installed", lambda name: None if name in ("rich", "jax") else "1")
    missing, untried, rest = doctor.few_packages()
    assert (missing.state, missing.text) == (doctor.FAIL, "packages: missing rich.")
    assert missing.remedy == "Run: pip install rich"
    assert untried.state == doctor.WARN
    assert "torch 1 (tested: 2." in untried.text
    assert (rest.state, rest.text.partition(".")[0]) == (doctor.OK, "not installed: jax")
