"""Stage 15's explorer: bytes against counted tensors, seconds by hand, and bad combinations."""

import numpy as np
import pytest
import torch
from torch import nn

from dlsys_helpers.explorers.plan_a_run import (
    BATCH,
    CARDS,
    GPUS,
    LATENCY,
    MODELS,
    PEAK,
    REACH,
    SPLITS,
    TOKENS,
    VOCAB,
    Model,
    Split,
    a_pass,
    fitting,
    memory,
    plan_a_run,
    plans,
    seconds,
    way_out,
    weights,
)

ZERO_1, STAGES = "2: copies, ZeRO-1", "6: stages over all"


# ---- bytes --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_layers_on_the_meta_device(name):
    layers, width, hidden, _ = MODELS[name]
    shapes = [(width, width)] * 4 + [(width, hidden)] * 3
    with torch.device("meta"):
        each = [nn.Linear(*shape, bias=False) for shape in shapes] + [nn.RMSNorm(width)] * 2
        ends = [nn.Embedding(VOCAB, width), nn.RMSNorm(width), nn.Linear(width, VOCAB, bias=False)]
    assert weights(MODELS[name]) == layers * sum(p.numel() for m in each for p in m.parameters()
                                                 ) + sum(m.weight.numel() for m in ends)


def test_the_seven_billion_by_hand():
    n = 6_738_415_616
    assert weights(MODELS["7B"]) == n
    kept = 32 * TOKENS * (16 * 4096 + 8 * 11_008 + 4 * 32 + 8)
    got = memory(MODELS["7B"], Split(dp=8, zero=1), checkpoint=False)
    assert got == pytest.approx([2 * n, 2 * n, 12 * n / 8, kept, 10 * TOKENS * VOCAB])
    assert sum(got) / 1e9 == pytest.approx(58.5, abs=0.1)


@pytest.mark.parametrize("split", [Split(dp=8), Split(dp=4, tp=2, zero=1), Split(tp=8),
                                   Split(dp=8, zero=3)])
def test_no_number_of_copies_divides_activations_or_logits(split):
    one = memory(MODELS["7B"], split._replace(dp=1), checkpoint=False)
    assert memory(MODELS["7B"], split, checkpoint=False)[3:] == one[3:]


def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages():
    alone, eight = (memory(MODELS["7B"], Split(pp=p), checkpoint=False) for p in (1, 8))
    assert eight[3] == pytest.approx(alone[3])
    assert eight[0] == pytest.approx(alone[0] / 8)


def test_tensor_ranks_leave_the_norms_whole():
    whole = 8 * 4096 + 8
    alone, eight = (memory(MODELS["7B"], Split(tp=t), checkpoint=False)[3] for t in (1, 8))
    per_token = alone / 32 / TOKENS
    assert eight / 32 / TOKENS == pytest.approx(whole + (per_token - whole) / 8)


# ---- seconds ------------------------------------------------------------------------------------
def test_seconds_of_copies_by_hand():
    n, square = 32 * (4 * 4096**2 + 3 * 4096 * 11_008) + VOCAB * 4096, 32 * 4096 * TOKENS
    computed, tensor, copies, bubble = seconds(MODELS["7B"], Split(dp=8, zero=1), False, 4e11)
    assert computed == pytest.approx((6 * n + 6 * square) * TOKENS * BATCH / 8 / PEAK / REACH)
    assert copies == pytest.approx(
        14 * LATENCY + 2 * 7 / 8 * 2 * weights(MODELS["7B"]) / 4e11)
    assert tensor == bubble == 0


def test_a_pipeline_waits_for_p_minus_one_of_m_and_zero_three_passes_three_times_a_micro_batch():
    computed, _, _, bubble = seconds(MODELS["7B"], Split(pp=8), False, 4e11)
    assert bubble == pytest.approx(computed * 7 / BATCH)
    plain, three = (seconds(MODELS["7B"], Split(dp=8, zero=zero), False, 4e11)[2]
                    for zero in (0, 3))
    assert three == pytest.approx(plain / 2 * 3 * BATCH / 8)


def test_checkpoints_add_less_than_a_third_and_a_call_a_layer():
    plain, again = (seconds(MODELS["7B"], Split(tp=8), on, 4e11) for on in (False, True))
    assert 1.2 < again[0] / plain[0] < 4 / 3
    assert again[1] / plain[1] == pytest.approx(5 / 4)
    assert a_pass(1, 1e9, 1e9) == 0


# ---- its sentence -------------------------------------------------------------------------------
def test_sentence_and_drawing_agree_about_what_fits():
    for setting in list(plan_a_run.grid().values())[::37]:
        arrays, sentence = plan_a_run(**setting)
        place = int(setting["split"][0]) - 1
        assert (" fit into " in sentence and " do not " not in sentence) == (
            arrays["fits"][place] > 0), setting
        assert not (arrays["fits"] * arrays["large"]).any()
        top = (arrays["stacks"][:, 4 * place] > 0).mean() * 2      # the drawing has two cards
        if arrays["fits"][place]:
            assert top <= 1.05


def test_the_fastest_that_fits_is_told():
    _, sentence = plan_a_run(split=STAGES)
    best = fitting(MODELS["7B"], 8, 80, 4e11)[0]
    assert f"{best[2]} takes {best[0]:.3g} s" in sentence
    assert "nothing here is faster" in plan_a_run(split=ZERO_1)[1]


@pytest.mark.parametrize(("setting", "says"), [
    ({"gpus": 0}, "0 GPUs hold nothing, and the state alone is 108 GB: 2 GPUs"),
    ({"gpus": 64, "split": "5: tensor over all"}, "more than a box of 8: take 8 or fewer"),
    ({"gpus": 64, "split": STAGES}, "64 stages do not divide 32 layers: 1, 2"),
    ({"gpus": 1, "split": "4: tensor by two, copies, ZeRO-1"}, "take an even number of GPUs"),
    ({"model": "65B", "gpus": 1, "card": 24}, "none here does, up to 64 GPUs"),
    ({"model": "65B", "gpus": 1}, "64 GPUs, split 3 with checkpoints, would at"),
    ({"split": ZERO_1}, "split 2 (copies, ZeRO-1): 58.5 GB fit into 80 less a tenth"),
    ({"split": "1: copies", "card": 24}, "129 GB do not fit into 24"),
])
def test_a_bad_combination_gets_one_sentence_and_an_empty_column(setting, says):
    arrays, sentence = plan_a_run(**setting)
    assert says in sentence
    assert sentence.endswith(".")
    assert len(sentence) < 200
    assert np.isfinite(arrays["fits"]).all()


@pytest.mark.parametrize(("gpus", "bandwidth", "says"), [
    (128, 4e11, "divides 64 sequences"), (3, 4e11, "divides 64 sequences"),
    (-1, 4e11, "from 1 to 64"), (2.5, 4e11, "from 1 to 64"), (8, 0, "more than 0 bytes a second")])
def test_what_cannot_be_planned_gets_one_sentence(gpus, bandwidth, says):
    with pytest.raises(ValueError, match=says):
        plans(MODELS["7B"], gpus, False, bandwidth)


def test_a_zero_that_is_not_in_the_sum_is_refused():
    with pytest.raises(ValueError, match="zero 0, 1 or 3"):
        memory(MODELS["7B"], Split(dp=8, zero=2), False)


def test_a_tenth_of_the_card_stays_free():
    sizes = [plan[1] for card in CARDS for plan in fitting(MODELS["7B"], 8, card, 4e11)
             if plan[1] > 0.9e9 * card]
    assert sizes == []
    assert fitting(MODELS["7B"], 8, 66, 4e11)[0][0] < fitting(MODELS["7B"], 8, 64, 4e11)[0][0]


def test_what_fits_nowhere_says_so():
    giant = Model(layers=100, width=65_536, hidden=200_000, heads=64)
    assert not any(fitting(giant, gpus, CARDS[0], 4e11) for gpus in GPUS[1:])
    assert way_out(giant, 8, CARDS[0], 4e11).startswith("none here does")


def test_every_split_is_made_of_all_gpus_or_told_apart():
    for name, make in SPLITS.items():
        split = make(8)
        assert split.dp * split.tp * split.pp == 8, name
    assert set(plans(MODELS["7B"], 1, False, 4e11)) == {n for n in SPLITS if "by two" not in n}
