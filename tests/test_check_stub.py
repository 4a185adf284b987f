"""Messages to wrong answers come from the record and are judged again only if it is stale."""


import pytest

from dlsys_checks import registry
from dlsys_helpers import catalog
from tools import proof, records

ID = "01.4"


@pytest.fixture
def record(monkeypatch, tmp_path):
    """A record that answers "from the record" for the current exercise."""
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    proof.write(ID, {"rests_on": proof.rests_on(ID), "words": proof.words_of(ID),
                     "told": {"a mistake": "from the record"}})
    forget()
    yield
    forget()


def forget():
    proof.fresh.cache_clear()
    proof.has_fresh_feedback.cache_clear()


def test_a_fresh_record_is_not_judged_again(record, monkeypatch):
    monkeypatch.setattr(proof, "judged", lambda id: pytest.fail("judged again"))
    assert proof.feedback_by_mistake(ID) == {"a mistake": "from the record"}


@pytest.mark.parametrize("id", [ID, "01.2"])
def test_a_stale_record_and_none_are_judged(record, monkeypatch, id):
    monkeypatch.setattr(proof, "rests_on", lambda id: {"check": "changed"})
    monkeypatch.setattr(proof, "judged", lambda id: {"a mistake": "judged now"})
    assert proof.feedback_by_mistake(id) == {"a mistake": "judged now"}


def test_every_wrong_answer_is_judged():
    found = proof.judged(ID)
    assert list(found) == [wrong.name for wrong in registry.find(ID).wrong_answers]
    assert all(wrong.is_told(found[wrong.name]) for wrong in registry.find(ID).wrong_answers)


def test_a_record_is_written_beside_the_others(record):
    for id in ("01.1", ID):
        proof.write(id, {"rests_on": proof.rests_on(id), "words": proof.words_of(id),
                         "told": {"a mistake": id}})
    assert list(proof.RECORD.entries("01")) == ["01.1", ID]
    forget()
    assert proof.feedback_by_mistake(ID) == {"a mistake": ID}


@pytest.mark.parametrize("trap", catalog.traps(), ids=lambda trap: trap.id)
def test_a_fresh_record_names_what_the_registry_holds(trap):
    if proof.fresh(trap.id):
        found = proof.feedback_by_mistake(trap.id)
        assert list(found) == [wrong.name for wrong in registry.find(trap.id).wrong_answers]
        assert all(wrong.is_told(found[wrong.name])
                   for wrong in registry.find(trap.id).wrong_answers)
