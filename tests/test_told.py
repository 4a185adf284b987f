"""What wrong answers are told: recorded, and judged again only where the record is stale."""

import json

import pytest

from dlsys_helpers import catalog, checking
from tools import proof, told

ID = "01.4"


@pytest.fixture
def record(monkeypatch, tmp_path):
    """A record that says "from the record" of the exercise as it stands."""
    monkeypatch.setattr(told, "RECORDS", tmp_path)
    facts = {"rests_on": proof.rests_on(ID), "told": {"a mistake": "from the record"}}
    told.path(ID).write_text(json.dumps({ID: facts}), "utf-8")


def test_a_fresh_record_is_not_judged_again(record, monkeypatch):
    monkeypatch.setattr(told, "judged", lambda id: pytest.fail("judged again"))
    assert told.of(ID) == {"a mistake": "from the record"}


@pytest.mark.parametrize("id", [ID, "01.2"])
def test_a_stale_record_and_none_are_judged(record, monkeypatch, id):
    monkeypatch.setattr(proof, "rests_on", lambda id: "something else")
    monkeypatch.setattr(told, "judged", lambda id: {"a mistake": "judged now"})
    assert told.of(id) == {"a mistake": "judged now"}


def test_every_wrong_answer_is_judged_and_recorded_beside_the_others(record):
    told.write(ID)
    assert list(told.stored(ID)) == [ID]
    told.path(ID).write_text(json.dumps({"01.1": {}, **told.stored(ID)}), "utf-8")
    told.write(ID)
    assert list(told.stored(ID)) == ["01.1", ID]
    for wrong in checking.find(ID).wrong_answers:
        assert wrong.says in told.recorded(ID)[wrong.name]


@pytest.mark.parametrize("trap", catalog.traps(), ids=lambda trap: trap.id)
def test_a_fresh_record_names_what_the_registry_holds(trap):
    if found := told.recorded(trap.id):
        assert list(found) == [wrong.name for wrong in checking.find(trap.id).wrong_answers]
        assert all(wrong.says in found[wrong.name]
                   for wrong in checking.find(trap.id).wrong_answers)
