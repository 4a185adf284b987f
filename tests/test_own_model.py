"""The command that trains the website's model: stopped and resumed, recorded, and packed."""

import json

import pytest
import torch

from dlsys_model import text
from dlsys_model.network import Network, Shape
from dlsys_model.pack import unpack
from dlsys_model.part_table import CATALOGUE
from dlsys_model.parts import Parts
from dlsys_model.training import Plan, Training
from tools import own_model

PLAN = Plan(steps=6, rows=2, warm=1, every=2)


@pytest.fixture(scope="module")
def prose():
    return text.prose()


@pytest.fixture
def begin(prose):
    def made():
        torch.manual_seed(PLAN.seed)
        return Training(Network(Shape(len(prose.letters), 32, 1, 2, 8), Parts()), prose, PLAN)
    return made


class Stopped(Exception):
    pass


def test_a_run_that_was_stopped_goes_on_and_ends_where_a_whole_one_does(begin, tmp_path, capsys,
                                                                       monkeypatch):
    whole = begin()
    own_model.train(whole, tmp_path / "whole.pt", 4, 6)
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in told] == [f"step {n} of 6" for n in (2, 4, 6)]

    stopped, real = begin(), Training.one_step

    def stopping(run):
        if run.step == 5:
            raise Stopped
        return real(run)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "one_step", stopping)
        with pytest.raises(Stopped):
            own_model.train(stopped, tmp_path / "run.pt", 4, 6)
    clock = tmp_path / "run.seconds"
    clock.write_text("100.0")
    resumed = begin()
    seconds = own_model.train(resumed, tmp_path / "run.pt", 4, 6)
    assert 100 < seconds < 200
    assert resumed.step == 6
    for (name, a), b in zip(whole.model.state_dict().items(),
                            resumed.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    capsys.readouterr()
    assert own_model.train(begin(), tmp_path / "run.pt", 4, 6) == pytest.approx(seconds, abs=0.1)
    assert capsys.readouterr().out == ""  # nothing is left to do


def test_the_weights_are_the_mean_of_those_at_the_last_entries(begin, tmp_path):
    alone = {}
    for step in (2, 4, 6):
        run = begin()
        list(run.run(step))
        alone[step] = {name: w.clone() for name, w in run.model.state_dict().items()}
    mixed = begin()
    own_model.train(mixed, tmp_path / "run.pt", first=4, until=6)
    for name, weight in mixed.model.state_dict().items():
        torch.testing.assert_close(weight, (alone[4][name] + alone[6][name]) / 2)
    assert not torch.equal(alone[2]["head.weight"], alone[4]["head.weight"])


def test_what_it_writes_is_the_packed_model_and_how_it_came_about(begin, tmp_path, monkeypatch,
                                                                  prose):
    places = {"ROOT": "", "FOLDER": "book", "PACKED": "packed.bin", "RECORD": "record.json",
              "CHECKPOINT": "a.pt"}
    for name, path in places.items():
        monkeypatch.setattr(own_model, name, tmp_path / path)
    run = begin()
    seconds = own_model.train(run, tmp_path / "a.pt", 6, 6)
    own_model.finish(run, seconds)
    record = json.loads((tmp_path / "record.json").read_text())
    header, state = unpack((tmp_path / "packed.bin").read_bytes())
    assert [step for step, *_ in record["curve"]] == [2, 4, 6]
    assert record["validation"] == header["validation"]
    assert record["weights"] == sum(w.numel() for w in state.values())
    assert record["text"] == own_model.fingerprint(prose)
    assert not (tmp_path / "a.pt").exists()
    losses = record["validation"]
    run.model.load_state_dict(state)
    assert own_model.validation(run.model, prose) == pytest.approx(losses["8"], abs=1e-3)
    assert abs(losses["8"] - losses["32"]) < abs(losses["3"] - losses["32"])


def test_a_part_counts_as_called_only_where_it_is(prose):
    found = own_model.called_parts(Parts(), prose)
    assert {"08.10", "04.8", "11.1", "12.8"} <= set(found) < {part.id for part in CATALOGUE}
    assert "04.9" not in found  # Lion
