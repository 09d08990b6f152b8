"""The baseline of the other benchmarks: a GPT and its training loop as commonly written in PyTorch.

    python benchmarks/plain_loop.py tinyshakespeare.txt
    python benchmarks/plain_loop.py tinyshakespeare.txt --speed --shape gpu --device cuda --compile

The shape and the settings are those that nanoGPT recommends for a CPU: 4 layers, 4 heads, 128
wide, context 64, batch 12, 2000 steps, fp32, fused attention, AdamW, windows stacked one by one,
and every 250 steps an estimate of both losses over 20 random batches. `train_speed.py --nanogpt
DIR` compares the loop with nanoGPT itself. `--shape long` has the context, batch and precision of
this project's default run. `--shape gpu` is nanoGPT's shape for a GPU: 6 layers, 6 heads, 384 wide,
context 256, batch 64, but without dropout. On a GPU, the loop autocasts to bf16, uses fused AdamW
and pinned memory, and reads the loss only every tenth step.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LR, WARMUP = 1e-3, 100


@dataclass(frozen=True)
class Shape:
    """Shape of the model and of a batch, and whether a CPU computes in bf16; a GPU always does."""

    layers: int
    heads: int
    dim: int
    context: int
    batch: int
    bf16: bool = False


SHAPES = {
    "cpu": Shape(4, 4, 128, 64, 12),
    "long": Shape(4, 4, 128, 256, 8, bf16=True),
    "gpu": Shape(6, 6, 384, 256, 64),
    "tiny": Shape(1, 1, 16, 16, 4),
}


class Block(nn.Module):
    """Attention and MLP, pre-norm: (B, T, C) -> (B, T, C)."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of attention and MLP, each added to its input: (B, T, C) -> (B, T, C)."""
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(C, dim=2)  # 3 x (B, T, C)
        # 3 x (B, H, T, D)
        q, k, v = (z.view(B, T, self.heads, C // self.heads).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, D)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))  # (B, T, C)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """GPT with learned positions and tied embeddings: tokens (B, T) -> logits (B, T, V)."""

    def __init__(self, vocabulary: int, shape: Shape) -> None:
        super().__init__()
        self.bf16 = shape.bf16
        self.embedding = nn.Embedding(vocabulary, shape.dim)
        self.positions = nn.Embedding(shape.context, shape.dim)
        self.blocks = nn.ModuleList(Block(shape.heads, shape.dim) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.dim, bias=False)
        self.head = nn.Linear(shape.dim, vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(
                    weight, 0, 0.02 / math.sqrt(2 * shape.layers) if residual else 0.02
                )
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the next character at each position."""
        x = self.embedding(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def prepare(path: str, folder: str | Path) -> int:
    """Write the first 90 % of a text as train.bin and the rest as val.bin, uint16, and return the vocabulary size."""
    text = Path(path).read_text("utf-8")
    index = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = np.array([index[character] for character in text], dtype=np.uint16)
    border = int(0.9 * len(tokens))
    tokens[:border].tofile(Path(folder, "train.bin"))
    tokens[border:].tofile(Path(folder, "val.bin"))
    return len(index)


def random_batch(tokens: np.ndarray, shape: Shape, device: str) -> tuple[Tensor, Tensor]:
    """Return (inputs, targets), each (B, T): random windows of `tokens`, stacked one by one."""
    starts, T = torch.randint(len(tokens) - shape.context, (shape.batch,)), shape.context
    x = torch.stack([torch.from_numpy(tokens[i : i + T].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + T].astype(np.int64)) for i in starts])
    if device == "cpu":
        return x, y
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(
        device, non_blocking=True
    )


def loss_of(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss in nats, computed in bf16 on a GPU, and on a CPU if the shape says so."""
    bf16 = model.bf16 or x.device.type != "cpu"
    with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
        return F.cross_entropy(model(x).view(-1, model.head.out_features), y.reshape(-1))


@torch.no_grad()
def estimate(model: Model, splits: list[np.ndarray], shape: Shape, device: str) -> list[float]:
    """Return, for each split, the mean loss in nats over 20 random batches."""
    losses = [
        [loss_of(model, *random_batch(split, shape, device)).item() for _ in range(20)]
        for split in splits
    ]
    return list(map(statistics.mean, losses))


@torch.no_grad()
def exact(model: Model, tokens: np.ndarray, context: int, device: str) -> float:
    """Return the loss in nats per character over a whole split, in disjoint windows of `context` tokens."""
    total = math.log(model.head.out_features)
    for start in range(0, len(tokens) - 1, context):
        window = torch.from_numpy(tokens[start : start + context + 1].astype(np.int64)).to(device)
        total += loss_of(model, window[None, :-1], window[None, 1:]).item() * (len(window) - 1)
    return total / len(tokens)


def rate(step: int, steps: int, highest: float) -> float:
    """Return the learning rate of a step: linear warm-up, then cosine decay from `highest` to a tenth of it."""
    if step < WARMUP:
        return highest * (step + 1) / (WARMUP + 1)
    fallen = math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP))
    return highest * (0.1 + 0.45 * (1 + fallen))


def load(path: str) -> list[np.ndarray]:
    """Return the training and the validation split of a text as memory-mapped arrays of tokens (N,), uint16."""
    with tempfile.TemporaryDirectory() as folder:
        # In another process, as in nanoGPT, which prepares token files beforehand. In this
        # process, the memory that it frees would be reused by the loop, which would then run 10 %
        # faster.
        preparing = multiprocessing.get_context("fork").Process(
            target=prepare, args=(path, folder)
        )
        preparing.start()
        preparing.join()
        return [
            np.memmap(Path(folder, f"{name}.bin"), np.uint16, "r") for name in ("train", "val")
        ]


def make_optimizer(model: Model, device: str) -> torch.optim.AdamW:
    """Return AdamW with weight decay only for matrices."""
    matrices, vectors = (
        [w for w in model.parameters() if (w.ndim == 2) == wanted] for wanted in (True, False)
    )
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=None if device == "cpu" else True)


def train(options: argparse.Namespace) -> dict[str, float | None]:
    """Train, and return the speed of the median step and the exact validation loss in nats (None with `--speed`)."""
    shape, device, steps, evaluate = (
        SHAPES[options.shape],
        options.device,
        options.steps,
        not options.speed,
    )
    torch.manual_seed(options.seed)
    training, validation = load(options.text)
    model = Model(int(max(training.max(), validation.max())) + 1, shape).to(device)
    if options.compile:
        model.compile()
    optimizer = make_optimizer(model, device)
    often = 1 if device == "cpu" else 10  # as most loops do; on a GPU, reading the loss blocks
    times = []
    x, y = random_batch(training, shape, device)
    for step in range(steps):
        if evaluate and step % 250 == 0:
            print(
                "step", step, *estimate(model, [training, validation], shape, device), flush=True
            )
        if step % often == 0:
            started = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, options.lr)
        loss = loss_of(model, x, y)
        x, y = random_batch(training, shape, device)  # for the next step
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % often == 0:
            loss.item()
            times.append((time.perf_counter() - started) / often)
    return {
        "characters_per_second": shape.batch * shape.context / statistics.median(times),
        "loss": exact(model, validation, shape.context, device) if evaluate else None,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", help="text file, such as tiny Shakespeare")
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    parser.add_argument(
        "--speed",
        action="store_true",
        help="only measure speed, without computing validation losses",
    )
    parser.add_argument(
        "--shape", choices=SHAPES, default="cpu", help="of model and batch (default cpu)"
    )
    parser.add_argument(
        "--lr", type=float, default=LR, help=f"highest learning rate (default {LR})"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--compile", action="store_true", help="compile the whole model")
    print(json.dumps(train(parser.parse_args())))
