"""What devices could reach: the table of known ones, and the measurement of a CPU on a clock of the test's own."""

from types import SimpleNamespace

import pytest
import torch

from gpt.fit import peak
from gpt.fit.peak import TFLOPS, known_peak, measured_peak, peak_flops


@pytest.mark.parametrize(
    ("name", "bf16", "fp32"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 66.9),
        ("NVIDIA H100 PCIe", 756, 51),
        ("NVIDIA H200", 989.4, 66.9),
        ("NVIDIA A100-SXM4-80GB", 312, 19.5),
        ("NVIDIA A100 80GB PCIe", 312, 19.5),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6),
        ("NVIDIA GeForce RTX 3090", 71, 35.6),
        ("NVIDIA A10", 125, 31.2),
        ("NVIDIA L4", 121, 30.3),
        ("NVIDIA L40S", 362, 91.6),
        ("NVIDIA B200", 2250, None),
        ("Tesla V100-SXM2-16GB", None, 15.7),
        ("Tesla T4", None, 8.1),
        # Slower ones with like names, a part of one, and what nobody has heard of.
        ("NVIDIA A10G", None, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA GeForce RTX 4090 D", None, None),
        ("NVIDIA H20", None, None),
        ("AMD Instinct MI300X", None, None),
    ],
)
def test_known_by_their_whole_name(name: str, bf16: float | None, fp32: float | None) -> None:
    for dtype, tflops in ((torch.bfloat16, bf16), (torch.float32, fp32)):
        assert known_peak(name, dtype) == (tflops and tflops * 1e12)


def test_dense_figures_are_not_those_for_sparse_matrices() -> None:
    """The bf16 figures printed with sparsity, none of which is in the table."""
    sparse = {4500, 1979, 1978.9, 1671, 1513, 624, 733, 242, 250, 419, 330.3, 142}
    assert not sparse & {bf16 for bf16, _ in TFLOPS.values()}


def test_other_devices_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_flops(torch.device("mps"), "32-true") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    gpu = torch.device("cuda:1")
    assert peak_flops(gpu, "bf16-mixed") == peak_flops(gpu, "bf16-true") == pytest.approx(989.4e12)
    assert peak_flops(gpu, "32-true") == pytest.approx(66.9e12) and peak_flops(gpu, "64-true") is None


@pytest.mark.parametrize(("rate", "largest"), [(5e9, 512), (2e11, 1024), (3e12, 2048), (1e14, 4096)])
def test_a_cpu_reaches_what_its_products_reach(rate: float, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that products move on: small ones are slower, and of each size the first takes three times as long."""
    now, sizes = [100.0], []

    def seconds(size: int) -> float:
        return 2 * size**3 / (rate * (1 - 100 / size))

    def product(matrix: torch.Tensor, other: torch.Tensor) -> None:
        assert matrix.shape == other.shape and matrix.dtype == torch.bfloat16
        now[0] += seconds(len(matrix)) * (1 if len(matrix) in sizes[-1:] else 3)
        sizes.append(len(matrix))

    monkeypatch.setattr(peak, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(torch, "mm", product)
    before = torch.get_rng_state()
    found = measured_peak(torch.bfloat16, 0.1)
    assert torch.equal(torch.get_rng_state(), before), "training draws the same numbers"
    assert sizes[-1] == max(sizes) == largest
    first_only = sizes.count(largest) == 1
    assert found == pytest.approx(rate * (1 - 100 / largest) / (3 if first_only else 1))
    assert now[0] - 100 <= (3 * seconds(512) if first_only else 0.1)
    assert first_only == (rate == 5e9)


def test_it_is_measured_in_the_precision_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    types = []
    real = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: (types.append(a.dtype), real(a, b))[1])
    monkeypatch.setattr(peak, "LARGEST", 512)
    for precision, dtype in (
        ("32-true", torch.float32), ("bf16-mixed", torch.bfloat16), ("bf16-true", torch.bfloat16),
        ("64-true", torch.float64),
    ):  # fmt: skip
        types.clear()
        found = peak_flops(torch.device("cpu"), precision)
        assert set(types) == {dtype} and found is not None and found > 1e6
