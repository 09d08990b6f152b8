"""Tiny models for the oracles: every option, every parameter drawn from N(0, 0.3)."""

import itertools

import torch
from torch import nn

from gpt.config import ModelConfig


def fill(module: nn.Module, seed: int = 0, std: float = 0.3) -> nn.Module:
    """Draw every parameter from N(0, std), scales, biases and zero-initialised ones too, and return `module`."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)
    return module


def tiny(**changes) -> ModelConfig:
    """A `ModelConfig` small enough for loops, with `changes`."""
    return ModelConfig(
        **{"layers": 2, "heads": 2, "dim": 12, "context": 7, "key_offset": False, "token_shift": False, **changes}
    )


def tolerance(config: ModelConfig) -> float:
    """How far a float64 model may be from its oracle: the tables of positions are stored in single precision."""
    return 1e-10 if config.positions in ("learned", "none") else 2e-6


def name(config: ModelConfig) -> str:
    """A test id: what was chosen."""
    flags = [f"window{config.window}"] * (config.window is not None)
    flags += [flag for flag in ("qk_norm", "key_offset", "token_shift", "tied", "bias") if getattr(config, flag)]
    parts = [config.norm, config.activation, config.positions, *flags, f"{config.heads}heads", config.attention]
    return "-".join(parts)


# Key offsets with all that they meet in attention; head sizes 12 and 4.
OFFSET = [
    tiny(positions=positions, qk_norm=qk_norm, attention=kernel, heads=heads, key_offset=True)
    for positions, qk_norm, kernel, heads in itertools.product(
        ("learned", "rotary"), (False, True), ("explicit", "sdpa"), (1, 3)
    )
]

# Token shifts with all that they meet on their way to the first block.
SHIFT = [
    tiny(positions=positions, tied=tied, key_offset=offset, heads=3, token_shift=True)
    for positions, tied, offset in itertools.product(("learned", "rotary"), (False, True), (False, True))
]

# Each way for places to enter with each kind of window: of one place, as long as some blocks, as the context, longer.
# A block has 16 queries at least, so that the context of some is several of them.
PLACES = [
    tiny(
        positions=positions,
        window=window,
        context=context,
        heads=heads,
        attention=kernel,
        qk_norm=i % 2 == 0,
        key_offset=i % 3 == 0,
        token_shift=i % 4 == 0,
        bias=i % 5 == 0,
        tied=i % 7 == 0,
    )
    for i, (positions, (window, context, heads), kernel) in enumerate(
        itertools.product(
            ("learned", "sinusoidal", "rotary", "alibi", "none"),
            ((None, 7, 3), (1, 40, 1), (3, 7, 3), (5, 39, 3), (17, 48, 3), (7, 7, 1), (20, 7, 3)),
            ("explicit", "sdpa"),
        )
    )
]

# Slopes of ALiBi for numbers of heads that are a power of two, and that are not.
PLACES += [tiny(positions="alibi", heads=heads) for heads in (2, 6, 12)] + [tiny(positions="alibi", heads=4, dim=16)]

# Every combination of the other options; the number of heads goes round with them.
ALL = OFFSET + [
    tiny(
        norm=norm, activation=activation, positions=positions, qk_norm=qk_norm, tied=tied, bias=bias,
        attention=kernel, heads=(1, 2, 3, 6)[(i + i // 4) % 4],
    )
    for i, (norm, activation, positions, qk_norm, tied, bias, kernel) in enumerate(
        itertools.product(
            ("layernorm", "rmsnorm"), ("gelu", "relu2"), ("learned", "rotary"),
            (False, True), (False, True), (False, True), ("explicit", "sdpa"),
        )
    )
] + SHIFT + PLACES  # fmt: skip

# Each value of each option at least once, and those that meet in attention in every combination.
SOME = [config for i, config in enumerate(ALL) if i % 5 == 0 or i < len(OFFSET) // 2 or config.token_shift] + [
    tiny(positions=positions, qk_norm=qk_norm, attention=kernel, heads=3)
    for positions, qk_norm, kernel in itertools.product(("learned", "rotary"), (False, True), ("explicit", "sdpa"))
]
