"""Look up the peak FLOP/s of a GPU, for the model FLOPs utilization (MFU) of training."""

import re

import torch

# Dense TFLOP/s by CUDA's device name: bf16 with fp32 accumulation, and fp32 without TF32. Data sheets print twice the
# bf16 figure, for sparse matrices. None: the device has no bf16, or several official figures exist.
# Source: NVIDIA's data sheets H100 (2023), H200, HGX B200, A100, A10, L4, L40S, V100 and T4; for GeForce the white
# papers on GA102 and Ada, appendix A.
TFLOPS: dict[str, tuple[float | None, float | None]] = {
    r"B200": (2250, None),
    r"H200|GH200 480GB|H100 80GB HBM3": (989.4, 66.9),
    r"H100 PCIe": (756, 51),
    r"A100-SXM4-(40|80)GB|A100-PCIE-40GB|A100 80GB PCIe": (312, 19.5),
    r"L40S": (362, 91.6),
    r"L4": (121, 30.3),
    r"A10": (125, 31.2),
    r"GeForce RTX 4090": (165.2, 82.6),
    r"GeForce RTX 3090": (71, 35.6),
    r"Tesla V100-SXM2-(16|32)GB": (None, 15.7),
    r"Tesla V100-PCIE-(16|32)GB": (None, 14),
    r"Tesla T4": (None, 8.1),
}


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the peak FLOP/s of matrix products on a device, from its data sheet; None if unknown."""
    dtype = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "bf16-true": torch.bfloat16}.get(precision)
    if device.type == "cuda" and dtype:
        return known_peak(torch.cuda.get_device_name(device), dtype)
    return None


def known_peak(name: str, dtype: torch.dtype) -> float | None:
    """Return the peak FLOP/s of a GPU in bf16 or fp32. The whole name must match: a MIG slice is unknown."""
    for pattern, (bf16, fp32) in TFLOPS.items():
        if re.fullmatch(rf"(NVIDIA )?({pattern})", name):
            tflops = bf16 if dtype == torch.bfloat16 else fp32
            return tflops and tflops * 1e12
    return None
