"""The device, why we cannot use it, and the datasheet peaks against the hardware's limits."""

from __future__ import annotations

import warnings

import pytest
import torch

from dlsys_helpers import gpu


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(gpu, "_chosen", "auto")
    gpu.unusable.cache_clear()
    yield
    gpu.unusable.cache_clear()


def machine(monkeypatch, found=True, capability=(9, 0), built=("sm_75", "sm_90"), says=""):
    """A machine as torch sees it: a device or none, code for some, and perhaps a warning."""
    def is_available():
        if says:
            warnings.warn(says, stacklevel=1)
        return found
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(built))


@pytest.fixture
def cuda(monkeypatch):
    machine(monkeypatch)


# ---- the device

def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    machine(monkeypatch, found=False)
    assert gpu.device("auto") == torch.device("cpu")


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(("choice", "kind"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_a_choice_holds_for_later_calls(choice, kind):
    assert gpu.device(choice).type == kind
    assert gpu.device().type == kind


def test_cuda_that_is_absent_is_refused_and_not_remembered(monkeypatch):
    machine(monkeypatch, found=False)
    with pytest.raises(RuntimeError, match=r"sees no CUDA device\..*dlsys doctor"):
        gpu.device("cuda")
    assert gpu.device() == torch.device("cpu")


def test_another_word_is_refused():
    with pytest.raises(ValueError, match=r"got 'gpu', expected"):
        gpu.device("gpu")


@pytest.mark.parametrize(("capability", "built", "runs"), [
    ((9, 0), ["sm_90a"], True), ((8, 9), ["sm_80"], True), ((6, 1), ["sm_75", "sm_90"], False),
    ((9, 0), ["sm_80"], False), ((9, 0), ["compute_80"], True), ((7, 0), ["compute_75"], False),
    ((12, 1), ["sm_120"], True), ((8, 0), ["sm_86"], False), ((6, 1), [], True)])
def test_code_runs_within_its_major_version_and_ptx_from_there_on(monkeypatch, capability, built,
                                                                  runs):
    machine(monkeypatch, capability=capability, built=built)
    assert (gpu.unusable() == "") is runs
    assert gpu.device().type == ("cuda" if runs else "cpu")
    if not runs:
        assert f"NVIDIA H200 (sm_{capability[0]}{capability[1]})" in gpu.unusable()


def test_a_driver_that_is_too_old_is_named_and_nothing_reaches_the_page(monkeypatch):
    machine(monkeypatch, found=False, says="CUDA initialization: The NVIDIA driver on your system "
            "is too old (found version 12040). Please update your GPU driver by downloading it.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gpu.device() == torch.device("cpu")
    assert "driver on your system is too old (found version 12040)." in gpu.unusable()
    assert "download" not in gpu.unusable()


def test_what_torch_compile_needs_is_named(monkeypatch):
    monkeypatch.setenv("CC", "cc")
    assert gpu.no_compiler() == ""
    monkeypatch.delenv("CC")
    monkeypatch.setattr(gpu.shutil, "which", lambda _: None)
    assert "no C compiler" in gpu.no_compiler()
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda _: None)
    assert "triton is not installed" in gpu.no_compiler()


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_half_dtype_on_cuda_follows_the_hardware(monkeypatch, native, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: native)
    assert gpu.half_dtype("cuda") == expected
    assert gpu.half_dtype("meta") == torch.bfloat16


# ---- peaks: fp32 = SMs x lanes x 2 x boost clock, memory = bus width x data rate

@pytest.mark.parametrize(("name", "sms", "lanes", "ghz"), [
    ("NVIDIA H200", 132, 128, 1.98), ("NVIDIA H100 80GB HBM3", 132, 128, 1.98),
    ("NVIDIA A100-SXM4-80GB", 108, 64, 1.41), ("NVIDIA L4", 58, 128, 2.04),
    ("NVIDIA L40S", 142, 128, 2.52), ("Tesla T4", 40, 64, 1.59),
    ("Tesla V100-SXM2-16GB", 80, 64, 1.53)])
def test_fp32_peak_is_what_the_lanes_can_do(name, sms, lanes, ghz):
    assert gpu.datasheet(name).fp32_tflops == pytest.approx(sms * lanes * 2 * ghz / 1e3, rel=0.02)


@pytest.mark.parametrize(("name", "bits", "gbit_per_s"), [
    ("NVIDIA H200", 6144, 6.25), ("NVIDIA H100 80GB HBM3", 5120, 5.23),
    ("NVIDIA A100-SXM4-40GB", 5120, 2.43), ("NVIDIA A100-SXM4-80GB", 5120, 3.19),
    ("NVIDIA L4", 192, 12.5), ("NVIDIA L40S", 384, 18), ("Tesla T4", 256, 10),
    ("NVIDIA A10", 384, 12.5)])
def test_memory_peak_is_bus_width_times_rate(name, bits, gbit_per_s):
    assert gpu.datasheet(name).memory_gbs == pytest.approx(bits / 8 * gbit_per_s, rel=0.01)


def test_every_peak_is_dense_ordered_and_sourced():
    for name, peak in gpu.PEAKS.items():
        assert peak.name == name
        assert "datasheet" in peak.source
        # Tensor cores give 2 (GeForce) or 4 (Ada, Ampere) to 17 (A100, Hopper) times fp32.
        assert 1.9 < peak.half_tflops / peak.fp32_tflops < 17


def test_the_ridges_of_an_h200():
    assert gpu.datasheet("NVIDIA H200").ridge == pytest.approx(206.1, abs=0.1)
    assert gpu.datasheet("NVIDIA H200").fp32_ridge == pytest.approx(13.96, abs=0.01)


@pytest.mark.parametrize("name", [None, "NVIDIA GeForce RTX 4090"])
def test_without_a_datasheet_of_its_own_the_prediction_is_the_h200s(name):
    assert gpu.datasheet(name).name == "NVIDIA H200"


def test_a_step_is_as_slow_as_its_slower_half():
    sheet = gpu.Peak("x", half_tflops=100, fp32_tflops=10, memory_gbs=1000, source="")
    assert sheet.least_us(1e9, 1e3) == 10                       # 1 GFLOP at 100 TFLOP/s
    assert sheet.least_us(1e9, 1e3, tensor_cores=False) == 100
    assert sheet.least_us(1e9, 1e9) == 1000                     # 1 GB at 1 TB/s
    assert sheet.ceiling(50) == 50
    assert (sheet.ceiling(1e6), sheet.ceiling(1e6, tensor_cores=False)) == (100, 10)
