"""Where does attention to a window pay? `python benchmarks/window_speed.py`: milliseconds, ratios to torch's kernel.

Forward and backward of the default model's heads (2 of 64 channels) on 4096 characters, cut into texts of T, in several
rounds, each with every kind in turn. `--forward` leaves the backward pass out and FlexAttention in: on a CPU, torch has
no backward pass of it.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpt.attention_kernels import explicit_attention, fused_attention, make_bias, windowed_attention  # noqa: E402

HEADS, SIZE, CHARACTERS = 2, 64, 4096
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def banded(attend: Callable[..., Tensor], window: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The whole square with a band of it left."""
    places = torch.arange(q.shape[2])
    return attend(q, k, v, make_bias(places, places, window))


def kinds(window: int) -> dict[str, Attend]:
    """Every way to compute attention to the last `window` places, and two to all of them."""
    return {
        "fused, all": fused_attention,
        "explicit, all": explicit_attention,
        "explicit, band": partial(banded, explicit_attention, window),
        "blocks, fused": partial(windowed_attention, fused_attention, window=window, slopes=None, dropout=0.0),
        "blocks, explicit": partial(windowed_attention, explicit_attention, window=window, slopes=None, dropout=0.0),
    }


def flex(window: int, length: int) -> Attend:
    """FlexAttention with a mask of blocks."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    mask = create_block_mask(seen, None, None, length, length, device="cpu")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def seconds(attend: Attend, length: int, dtype: torch.dtype, backward: bool) -> float:
    """Of one pass."""
    shape = (CHARACTERS // length, HEADS, length, SIZE)
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=backward) for _ in range(3))
    begun = time.perf_counter()
    out = attend(q, k, v)
    if backward:
        out.sum().backward()
    return time.perf_counter() - begun


def main() -> None:
    """Print a table for each window."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--windows", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--forward", action="store_true", help="without the backward pass, with FlexAttention")
    options = parser.parse_args()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
    torch.manual_seed(0)
    names = [*kinds(1), *["FlexAttention"] * options.forward]
    print(f"| window | T | {' | '.join(names)} |\n|---|---{'|---' * len(names)}|")
    for window in options.windows:
        for length in options.lengths:
            ways = kinds(window) | ({"FlexAttention": flex(window, length)} if options.forward else {})
            times: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(options.rounds + 1):
                for name, attend in ways.items():
                    took = seconds(attend, length, dtype, not options.forward)
                    if turn:  # the first is for warming up
                        times[name].append(took)
            middle = [statistics.median(each) for each in times.values()]
            cells = [f"{1e3 * each:.1f} ({middle[0] / each:.2f}x)" for each in middle]  # the first is torch's
            print(f"| {window} | {length} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
