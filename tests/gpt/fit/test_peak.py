import pytest
import torch

from gpt.fit.peak import TFLOPS, known_peak, peak_flops

KNOWN = {
    "NVIDIA H100 80GB HBM3": (989.4, 66.9), "NVIDIA H100 PCIe": (756, 51), "NVIDIA H200": (989.4, 66.9),
    "NVIDIA A100-SXM4-80GB": (312, 19.5), "NVIDIA A100 80GB PCIe": (312, 19.5), "NVIDIA A10": (125, 31.2),
    "NVIDIA GeForce RTX 4090": (165.2, 82.6), "NVIDIA GeForce RTX 3090": (71, 35.6), "NVIDIA L4": (121, 30.3),
    "NVIDIA L40S": (362, 91.6), "NVIDIA B200": (2250, None), "Tesla V100-SXM2-16GB": (None, 15.7),
    "Tesla V100-PCIE-32GB": (None, 14), "Tesla T4": (None, 8.1),
}  # fmt: skip
# Slower ones with like names, a part of one, and what nobody has heard of.
UNKNOWN = (
    "NVIDIA A10G", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D", "NVIDIA H20", "AMD Instinct MI300X",
)  # fmt: skip


def test_known_by_their_whole_name() -> None:
    for name, known in (KNOWN | dict.fromkeys(UNKNOWN, (None, None))).items():
        for dtype, tflops in zip((torch.bfloat16, torch.float32), known, strict=True):
            assert known_peak(name, dtype) == (tflops and tflops * 1e12), name
    # None of the table is a bf16 figure that is printed for sparse matrices.
    sparse = {4500, 1979, 1978.9, 1671, 1513, 624, 733, 242, 250, 419, 330.3, 142}
    assert not sparse & {bf16 for bf16, _ in TFLOPS.values()}


def test_by_device_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("cpu", "mps"):
        assert peak_flops(torch.device(kind), "32-true") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    gpu = torch.device("cuda:1")
    assert peak_flops(gpu, "bf16-mixed") == peak_flops(gpu, "bf16-true") == pytest.approx(989.4e12)
    assert peak_flops(gpu, "32-true") == pytest.approx(66.9e12) and peak_flops(gpu, "64-true") is None
