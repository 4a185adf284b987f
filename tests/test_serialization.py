"""What crosses the wire: every plain value survives, and bad bytes only raise WireError."""

from __future__ import annotations

import json
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlsys.grading.walls import framing, serialization
from dlsys_helpers.acting import Foreign, same

DTYPES = sorted(serialization.DTYPES)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return (values * 3).to(serialization.DTYPES[draw(st.sampled_from(DTYPES))])


leaves = (st.none() | st.booleans() | st.integers(-2**1000, 2**1000) | st.floats(allow_nan=False)
          | st.text() | tensors())
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4)
                      | st.lists(inner, max_size=4).map(tuple)
                      | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=12)


@settings(deadline=None, max_examples=120)
@given(values)
def test_plain_values_come_back_as_they_were(value):
    assert same(serialization.unpack(serialization.pack(value)), value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 5e-324])
def test_special_floats_keep_their_bits(value):
    back = serialization.unpack(serialization.pack(value))
    assert struct.pack("<d", back) == struct.pack("<d", value)


@settings(deadline=None, max_examples=600)
@given(st.binary(max_size=400))
def test_any_bytes_decode_or_raise_one_error(data):
    try:
        decoded = serialization.unpack_all(data)
    except serialization.WireError:
        return
    assert isinstance(decoded, list)


@settings(deadline=None, max_examples=300)
@given(values, st.data())
def test_a_damaged_message_decodes_or_raises_one_error(value, data):
    message = bytearray(serialization.pack(value))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = serialization.unpack_all(bytes(message))
    except serialization.WireError:
        return
    assert isinstance(decoded, list)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(
        ["f", "F", "l", "u", "d", "t", "x", "float32", "bool", "0x1p+0", "nan"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=15)


@settings(deadline=None, max_examples=400)
@given(json_values, st.binary(max_size=40))
def test_any_json_decodes_or_raises_one_error(tree, blob):
    try:
        decoded = serialization.unpack(message_of(tree, blob))
    except serialization.WireError:
        return
    assert decoded is None or type(decoded) in (
        bool, int, float, str, list, tuple, dict, torch.Tensor, Foreign)


def message_of(tree, blob: bytes = b"") -> bytes:
    head = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return serialization.HEAD.pack(len(head), len(blob)) + head + blob


@pytest.mark.parametrize("tree", [
    pytest.param(b"[" * 200_000, id="depth"), ["t", "float32", [2**40]],
    ["t", "float32", [-1]], ["t", "float32", [True]],
    ["t", "float32", [2**31 - 1] * 16], ["t", "float32", [0, 2**31 - 1, 2**31 - 1, 2**31 - 1]],
    ["F", 1], ["F", 0], ["F", -1], ["F", 2**40], ["F", 1.0], ["F", [1]],
    ["t", "float8", [1]], ["t", "float32", 3], ["f", "zz"], ["f", "0x1p+99999"], ["f", 1.0], 1.5,
    ["d", [["k"]]], ["d", [[1, 2]]], ["d", {"k": 1}], ["l"], [], ["q", []], {"f": 1, "0x1p+0": 2},
    ["l", "abc"], pytest.param(10**400, id="long int"), b"NaN", b"1e5", b'"\\ud800',
    b"\xff\xfe", b"",
])
def test_bytes_that_are_no_message(tree):
    with pytest.raises(serialization.WireError):
        serialization.unpack(message_of(tree))


@pytest.mark.parametrize("data", [
    b"\0", serialization.HEAD.pack(2**31, 0), serialization.HEAD.pack(4, 2**31) + b"null",
    serialization.HEAD.pack(4, 0) + b"nul", message_of(None, b"left over"),
    message_of(None) * 2, b"",
])
def test_sizes_that_do_not_fit(data):
    with pytest.raises(serialization.WireError):
        serialization.unpack(data)


def test_a_number_alone_makes_no_memory():
    claims = message_of(["t", "float64", [2**20, 2**9]])
    tracemalloc.start()
    with pytest.raises(serialization.WireError):
        serialization.unpack(claims)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_a_bool_tensor_holds_zeros_and_ones_whatever_was_sent():
    sent = serialization.unpack(message_of(["t", "bool", [3]], b"\x00\x07\xff"))
    assert sent.tolist() == [False, True, True]


@pytest.mark.parametrize("sent", [torch.ones(2, 3), torch.ones(()), torch.tensor([True, False]),
                                  torch.ones(3, 2, dtype=torch.bfloat16)])
def test_a_tensor_that_arrives_owns_its_memory(sent):
    came = serialization.unpack(serialization.pack(sent))

    assert came._base is None  # copying a view takes several times as long
    assert (came.shape, came.dtype, came.tolist()) == (sent.shape, sent.dtype, sent.tolist())


@pytest.mark.parametrize("value", [
    torch.eye(3).to_sparse(), torch.empty(2, device="meta"), object(), {1, 2}, b"x",
    pytest.param(10**5000, id="long int")])
def test_what_is_no_plain_data_arrives_as_foreign(value):
    assert isinstance(serialization.unpack(serialization.pack(value)), Foreign)


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [torch.zeros(1000), [0] * 300_000, nested(40), "x" * 10**7],
                         ids=["tensor", "list", "depth", "text"])
def test_what_is_too_large_is_not_sent(value):
    with pytest.raises(serialization.TooLarge):
        serialization.pack(value, largest=3999)


def test_many_small_messages_have_one_budget():
    one = message_of(["l", [["t", "bool", [0]]] * 1000])
    several = serialization.MOST_NODES // (1000 * (serialization.TENSOR_NODES + 1))
    assert len(serialization.unpack_all(one * several)) == several
    with pytest.raises(serialization.WireError):
        serialization.unpack_all(one * (several + 1))
    with pytest.raises(serialization.WireError):
        serialization.unpack_all(message_of(None) * (serialization.MOST_MESSAGES + 1))


def test_what_one_side_may_send_the_other_side_reads():
    """Both sides have the same budget, so an honest answer is never mistaken for a broken one."""
    budget, value = serialization.Budget(), [torch.zeros(0)] * 1000
    messages = [serialization.pack(value, budget) for _ in range(budget.nodes // (51 * 1000 + 1))]
    with pytest.raises(serialization.TooLarge):
        serialization.pack(value, budget)
    assert len(serialization.unpack_all(b"".join(messages))) == len(messages) == 3


@pytest.mark.parametrize("shape", [[0, 4097], [10**6, 0], [0, 2**31 - 1]])
def test_a_tensor_of_nothing_is_not_long(shape):
    """A tensor that takes no bytes to send must not become large when it is multiplied."""
    with pytest.raises(serialization.WireError):
        serialization.unpack(message_of(["t", "float32", shape]))
    assert isinstance(serialization.unpack(serialization.pack(torch.empty(shape))), Foreign)
    assert serialization.unpack(message_of(["t", "float32", [0, 4096]])).shape == (0, 4096)


@pytest.mark.parametrize(("view", "shown"), [
    (torch.arange(6.0).reshape(2, 3).T[1:], [[1.0, 4.0], [2.0, 5.0]]),
    (torch.ones(()).expand(1), [1.0]), (torch.ones(1).expand(2, 2), [[1.0, 1.0]] * 2),
    (torch.tensor([1 + 2j]).conj(), [1 - 2j]), (torch.tensor([1 + 2j]).conj().imag, [-2.0]),
])
def test_views_are_sent_as_what_they_show(view, shown):
    assert serialization.unpack(serialization.pack(view)).tolist() == shown


@given(st.binary(max_size=60))
def test_any_bytes_are_a_frame_or_one_error(data):
    rest = bytearray(data)

    def receive(n: int) -> bytes:
        piece = bytes(rest[:n])
        del rest[:n]
        return piece

    try:
        index, payload = framing.read(receive)
    except framing.FrameError as broken:
        kind = broken.kind
    else:
        kind = ""
        assert framing.frame(index, payload) == data[:framing.HEAD.size + len(payload)]
    assert kind in ("", "died", "broken")
