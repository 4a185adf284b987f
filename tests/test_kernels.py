"""Kernels compiled for a device that this machine lacks, and the arithmetic of occupancy."""

import importlib.util
import os

import pytest

from dlsys_helpers.kernels import LIMITS, RECORDED, Compiled, absent, compiled, occupancy, recorded
from dlsys_helpers.paths import NOTEBOOKS

LINUX_ONLY = pytest.mark.skipif(importlib.util.find_spec("triton") is None,
                                reason="triton exists for Linux only")
ADD = '''
@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
'''


class Source:
    """Represents a jitted function: `compiled` reads only its name and its source."""

    def __init__(self, name):
        self.__name__, self.fn = name, self


@pytest.fixture
def source(monkeypatch):
    def use(text, name="add"):
        monkeypatch.setattr("dlsys_helpers.kernels.inspect.getsource", lambda _: text)
        return Source(name)
    return use


@LINUX_ONLY
def test_an_elementwise_kernel_has_registers_and_no_tensor_cores(source, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # for this process only
    [code] = compiled(source(ADD), signature={"x": "*fp32", "y": "*fp32", "n": "i32"},
                      constants={"BLOCK": 256}, capabilities=[80])
    assert code.capability == 80
    assert 8 <= code.registers <= 64
    assert code[2:] == (0, 0, 0, 0)
    assert os.environ["TRITON_INTERPRET"] == "1"


@LINUX_ONLY
def test_a_kernel_that_does_not_compile_says_why(source, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match="nowhere is not defined"):
        compiled(source(ADD.replace("BLOCK + tl", "nowhere + tl")),
                 signature={"x": "*fp32", "y": "*fp32", "n": "i32"}, constants={"BLOCK": 256},
                 capabilities=[80])


def test_without_triton_a_kernel_is_read_and_a_record_says_that_it_is_one(capsys):
    def kernel(n: absent.constexpr):
        return n

    assert absent.jit(kernel) is kernel
    assert recorded("guards") == {False: 28, True: 0}
    assert "Recorded there with 3." in capsys.readouterr().out


def test_the_record_is_what_the_notebook_of_lesson_8_shows():
    text = (NOTEBOOKS / "08_transformers.ipynb").read_text("utf-8")
    for code in RECORDED["flash"]:
        assert (f"sm_{code.capability}: {code.registers} registers, {code.shared} bytes shared, "
                f"{code.spills} spills, {code.tensor_cores} on tensor cores") in text


@pytest.mark.parametrize(("code", "warps", "expected"), [
    (Compiled(90, 32, 0, 0, 0, 0), 4, 1.0),        # 2,048 threads of 32 registers: all 64 warps
    (Compiled(80, 255, 0, 0, 0, 0), 4, 8 / 64),    # 8,192 registers a warp: 8 warps
    (Compiled(80, 33, 0, 0, 0, 0), 4, 48 / 64),    # 40 x 32 registers: 51 warps, 12 blocks of 4
    (Compiled(80, 255, 0, 0, 0, 0), 3, 6 / 64),    # 2 warps in each quarter: two blocks of 3
    (Compiled(80, 72, 0, 0, 0, 0), 1, 28 / 64),    # 7 warps in each quarter: 28 of 64
    (Compiled(75, 32, 0, 0, 0, 0), 4, 1.0),        # no shared memory at all
    (Compiled(75, 32, 32768, 0, 0, 0), 4, 8 / 32),  # two blocks of 32 KiB
    (Compiled(80, 32, 163 * 1024, 0, 0, 0), 4, 4 / 64),  # one KiB is the system's
    (Compiled(90, 16, 0, 0, 0, 0), 1, 32 / 64)])   # 32 blocks at most
def test_occupancy_is_what_the_scarcest_resource_allows(code, warps, expected):
    assert occupancy(code, warps) == expected
    assert code.capability in LIMITS
