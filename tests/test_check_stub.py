"""What wrong answers are told: recorded, and judged again only where the record is stale."""

import json

import pytest

from dlsys_checks import registry
from dlsys_helpers import catalog
from tools import proof

ID = "01.4"


@pytest.fixture
def record(monkeypatch, tmp_path):
    """A record that says "from the record" of the exercise as it stands."""
    monkeypatch.setattr(proof, "RECORDS", tmp_path)
    facts = {"rests_on": proof.rests_on(ID), "says_by": proof.says_by(ID),
             "told": {"a mistake": "from the record"}}
    (tmp_path / "01.json").write_text(json.dumps({ID: facts}), "utf-8")
    forget()
    yield
    forget()


def forget():
    proof.fresh.cache_clear()
    proof.well_told.cache_clear()


def test_a_fresh_record_is_not_judged_again(record, monkeypatch):
    monkeypatch.setattr(proof, "judged", lambda id: pytest.fail("judged again"))
    assert proof.told(ID) == {"a mistake": "from the record"}


@pytest.mark.parametrize("id", [ID, "01.2"])
def test_a_stale_record_and_none_are_judged(record, monkeypatch, id):
    monkeypatch.setattr(proof, "rests_on", lambda id: "something else")
    monkeypatch.setattr(proof, "judged", lambda id: {"a mistake": "judged now"})
    assert proof.told(id) == {"a mistake": "judged now"}


def test_every_wrong_answer_is_judged():
    found = proof.judged(ID)
    assert list(found) == [wrong.name for wrong in registry.find(ID).wrong_answers]
    assert all(wrong.is_told(found[wrong.name]) for wrong in registry.find(ID).wrong_answers)


def test_a_record_is_written_beside_the_others(record):
    for id in ("01.1", ID):
        proof.write(id, {"rests_on": proof.rests_on(id), "says_by": proof.says_by(id),
                         "told": {"a mistake": id}})
    assert list(proof.stored("01")) == ["01.1", ID]
    forget()
    assert proof.told(ID) == {"a mistake": ID}


@pytest.mark.parametrize("trap", catalog.traps(), ids=lambda trap: trap.id)
def test_a_fresh_record_names_what_the_registry_holds(trap):
    if proof.fresh(trap.id):
        found = proof.told(trap.id)
        assert list(found) == [wrong.name for wrong in registry.find(trap.id).wrong_answers]
        assert all(wrong.is_told(found[wrong.name])
                   for wrong in registry.find(trap.id).wrong_answers)
