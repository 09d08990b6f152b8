import pytest
import torch

from training.peak_flops import known_peak, peak_flops


def test_of_other_devices_none_is_known() -> None:
    for name in ("NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H20", "AMD Instinct MI300X"):
        assert known_peak(name, torch.bfloat16) is known_peak(name, torch.float32) is None, name


def test_by_device_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("cpu", "mps"):
        assert peak_flops(torch.device(kind), "32-true") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    gpu = torch.device("cuda:1")
    assert peak_flops(gpu, "bf16-mixed") == peak_flops(gpu, "bf16-true") == pytest.approx(989.4e12)
    assert peak_flops(gpu, "32-true") == pytest.approx(66.9e12) and peak_flops(gpu, "64-true") is None
