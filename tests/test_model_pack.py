"""Weights in 8 bits: packing and unpacking, what the bytes mean, and what is refused."""

import json
import struct

import numpy as np
import pytest
import torch

from dlsys_checks import checking
from dlsys_model.network import Network, Shape
from dlsys_model.pack import GROUP, PackError, grid, halved, in_bits, pack, sizes, unpack
from dlsys_model.parts import Parts

SHAPE = Shape(letters=7, width=64, layers=2, heads=2, length=16)
LETTERS = "\n abcde"


def network(seed=0, shape=SHAPE):
    torch.manual_seed(seed)
    made = Network(shape, Parts())
    for weight in made.parameters():  # also norms and biases no longer have their initial values
        torch.nn.init.normal_(weight, 0.1, 0.3)
    return made


def packed(state, shape=SHAPE, letters=LETTERS, **notes):
    return pack(state, shape._asdict(), letters, **notes)


def test_the_header_and_each_vector_come_back_and_each_weight_within_half_a_level():
    state = network().state_dict()
    header, back = unpack(packed(state, validation={"8": 1.25}))
    assert header["letters"] == LETTERS
    assert header["shape"] == SHAPE._asdict()
    assert header["validation"] == {"8": 1.25}
    assert back.keys() == state.keys()
    for name, weight in state.items():
        if weight.dim() == 1:
            assert torch.equal(back[name], weight), name
            continue
        groups, mine = weight.reshape(-1, GROUP), back[name].reshape(-1, GROUP)
        spread = groups.amax(1).clamp(min=0) - groups.amin(1).clamp(max=0)
        # Half a level; zero is also rounded; a float16 scale is off by a two-thousandth.
        assert ((groups - mine).abs().amax(1) <= 1.15 * spread / 255).all(), name
        assert not torch.equal(mine, groups), name


def test_a_network_takes_what_comes_back_and_answers_almost_the_same():
    model, twin = network(), network(1)
    twin.load_state_dict(unpack(packed(model.state_dict()))[1])
    ids = torch.randint(7, (4, 16), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        gap = (model.eval()(ids) - twin.eval()(ids)).abs().max()
    assert 0 < gap < 0.5


def by_hand(data, name):
    """A tensor from packed bytes, in float64, following only the description of the format."""
    (length,) = struct.unpack_from("<I", data)
    header = json.loads(data[4:4 + length])
    size, at = sizes(header["shape"])[name], 4 + length + header["tensors"][name]
    count = int(np.prod(size))
    if len(size) == 1:
        return np.array(struct.unpack_from(f"<{count}f", data, at))
    groups = count // 32
    zeros = struct.unpack_from(f"<{groups}B", data, at + count)
    scales = struct.unpack_from(f"<{groups}e", data, at + count + groups)
    values = [scales[i // 32] * (data[at + i] - zeros[i // 32]) for i in range(count)]
    return np.array(values).reshape(size)


def test_the_bytes_mean_what_the_format_says():
    data = packed(network().state_dict())
    for name, back in unpack(data)[1].items():
        np.testing.assert_allclose(back.numpy(), by_hand(data, name), rtol=1e-6, atol=1e-9)


def test_the_bytes_are_a_byte_a_weight_and_three_a_group_and_four_for_each_of_a_vector():
    state = network().state_dict()
    data = packed(state)
    body = len(data) - 4 - int.from_bytes(data[:4], "little")
    matrices = sum(w.numel() for w in state.values() if w.dim() == 2)
    vectors = sum(w.numel() for w in state.values() if w.dim() == 1)
    assert body == matrices * 35 // 32 + 4 * vectors
    assert data == packed(state)


def test_the_sizes_are_those_of_a_network():
    for shape in (SHAPE, Shape(92), Shape(5, 32, 1, 4, 8)):
        found = {name: tuple(w.shape) for name, w in Network(shape, Parts()).state_dict().items()}
        assert found == sizes(shape._asdict())


@pytest.mark.parametrize("values", [
    torch.zeros(2, 64), torch.full((2, 64), -3.0), torch.full((2, 64), 0.5),
    torch.linspace(1, 2, 128).view(2, 64), torch.eye(64)[:2]])
def test_groups_of_zeros_of_one_value_and_of_one_sign(values):
    codes, scales, zeros = grid(values, 8, GROUP)
    back = (codes.view(2, 2, 32) - zeros[..., None].float()) * scales[..., None]
    assert (back.view(2, 64) - values).abs().max() <= values.abs().max() / 255
    assert torch.equal(back.view(2, 64)[values == 0], values[values == 0])


def test_the_grid_passes_the_check_of_its_exercise():
    assert checking.run_check("11.1", grid).status == "pass"


@pytest.mark.parametrize("bits", [1, 3, 4, 8])
def test_in_fewer_bits_a_group_has_fewer_levels(bits):
    weights = network().state_dict()
    few = in_bits(weights, bits)
    levels = {len(row.unique()) for row in few["head.weight"].reshape(-1, GROUP)}
    assert max(levels) <= 2**bits
    assert torch.equal(few["norm.bias"], weights["norm.bias"])


def test_weights_in_half_precision_are_packed_as_float32():
    state = network().bfloat16().state_dict()
    whole = {name: w.float() for name, w in state.items()}
    assert packed(state) == packed(whole)


def without(state, name):
    return {key: w for key, w in state.items() if key != name}


SPOILT = {
    "head.weight is missing": lambda s: (without(s, "head.weight"), SHAPE, LETTERS),
    "got blocks.0.qkv.lora_A": lambda s: (s | {"blocks.0.qkv.lora_A": s["norm.bias"]}, SHAPE,
                                          LETTERS),
    r"emb.weight: got shape \(7, 64\), expected \(8, 64\)": lambda s: (
        s, SHAPE._replace(letters=8), LETTERS + "f"),
    "norm.bias: holds NaN": lambda s: (s | {"norm.bias": s["norm.bias"] / 0}, SHAPE, LETTERS),
    "letters: got 6 different ones of 6, expected 7": lambda s: (s, SHAPE, LETTERS[1:]),
    "letters: got 6 different ones of 7, expected 7": lambda s: (s, SHAPE, "\n abcdd"),
    "got 48 with 2 heads": lambda s: (s, SHAPE._replace(width=48), LETTERS),
    "got 64 with 3 heads": lambda s: (s, SHAPE._replace(heads=3), LETTERS),
    "a scale of .* is too large": lambda s: (s | {"head.weight": 1e8 * s["head.weight"]}, SHAPE,
                                             LETTERS),
    "got blocks.1.norm1.weight, .* 1 layers": lambda s: (s, SHAPE._replace(layers=1), LETTERS),
}


@pytest.mark.parametrize("message", SPOILT)
def test_what_does_not_fit_is_refused_by_name(message):
    state, shape, letters = SPOILT[message](network().state_dict())
    with pytest.raises(PackError, match=message) as error:
        packed(state, shape, letters)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("spoil", [lambda d: b"", lambda d: d[:-1], lambda d: d[:300],
                                   lambda d: d[4:], lambda d: b"<html>" * 100])
def test_bytes_that_are_cut_or_of_another_kind_are_refused(spoil):
    with pytest.raises(PackError, match=r"packed model: [\d,]+ bytes that cannot be read"):
        unpack(spoil(packed(network().state_dict())))


@pytest.mark.parametrize("size", [1e-3, 1e-5, 3e-7])
def test_a_group_of_small_weights_keeps_them_within_a_step_of_float16(size):
    """Below float16's normal range a rounded scale would be off by half, or 0."""
    state = network().state_dict()
    sign = torch.tensor([1.0, -1.0]).repeat(16)
    state["head.weight"][0, :GROUP] = size
    state["head.weight"][0, GROUP:2 * GROUP] = size * sign
    back = unpack(packed(state))[1]["head.weight"]
    off = (back[0] - state["head.weight"][0])[:2 * GROUP].abs().max()
    assert off <= max(1.01 * size / 255, 2.0**-25)


def test_scales_of_an_ordinary_size_are_rounded_and_nothing_else():
    w = network().state_dict()["head.weight"]
    codes, scales, zeros = grid(w, 8, GROUP)
    mine = halved(w, 8, (codes, scales, zeros))
    assert torch.equal(mine[0], codes)
    assert torch.equal(mine[1], scales.half())
    assert torch.equal(mine[2], zeros)
