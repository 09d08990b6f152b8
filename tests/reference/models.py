"""Tiny models for the oracles: every option, every parameter drawn from N(0, 0.3)."""

import dataclasses
import itertools

import torch

from gpt.config import ModelConfig

CHOICES = {
    field.name: field.metadata["choices"]
    for field in dataclasses.fields(ModelConfig)
    if field.metadata["choices"]
}


def fill(module, seed=0, std=0.3):
    """Draw every parameter from N(0, std), scales, biases and zero-initialised ones too, and return `module`."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(values * std)
    return module


def normal(*shape, seed=7):
    """Random numbers from N(0, 1), float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tiny(**changes):
    """A `ModelConfig` small enough for loops, with `changes`."""
    small = {"layers": 2, "heads": 2, "dim": 12, "context": 7}
    plain = {"key_offset": False, "token_shift": False, "conv_taps": 1}
    return ModelConfig(**small | plain | changes)


def tolerance(config):
    """How far a float64 model may be from its oracle: the tables of positions are stored in single precision."""
    return 1e-10 if config.positions in ("learned", "none") else 2e-6


def name(config):
    """A test id: what differs from `tiny()`."""
    changes = vars(config).items() - vars(tiny()).items()
    return "-".join(f"{field}={value}" for field, value in sorted(changes))


def _mixed(i):
    """Each option is a parity of some bits of `i`: an orthogonal array."""

    def pick(bits, even, odd):
        return odd if (i & bits).bit_count() % 2 else even

    positions, offset = pick(4, "learned", "rotary"), pick(14, False, True)
    return tiny(
        norm=pick(1, "layernorm", "rmsnorm"), activation=pick(2, "gelu", "relu2"), positions=positions,
        qk_norm=pick(8, False, True), tied=pick(7, False, True), bias=pick(11, False, True),
        attention=pick(13, "explicit", "sdpa"), key_offset=offset, token_shift=pick(19, False, True),
        conv_taps=pick(21, 1, 3),
        heads=(1, 3, 2, 6)[(i + i // 4) % (2 if offset and positions == "rotary" else 4)],
    )  # fmt: skip


# Any three values of these options meet in one of the models, any two in the first 16; the first
# and the last differ in every option but the heads.
MIXED = [_mixed(i) for i in range(32)]

# Each way for places to enter with each kind of window: of one place, as long as some blocks, as
# the context, longer. A block has 16 queries at least, so that the context of some is several of
# them.
PLACES = [
    tiny(
        positions=positions, window=window, context=context, heads=heads, attention=CHOICES["attention"][i // 2 % 3],
        norm=CHOICES["norm"][i % 2], activation=CHOICES["activation"][i % 2],
        qk_norm=i % 4 < 2, key_offset=i % 3 == 0, token_shift=i % 5 < 2, bias=i % 5 == 0, tied=i % 6 == 0,
        conv_taps=(1, 4, 2)[i % 3],
    )
    for i, (positions, (window, context, heads)) in enumerate(
        itertools.product(
            CHOICES["positions"],
            ((None, 7, 3), (1, 40, 1), (3, 7, 3), (5, 39, 3), (17, 48, 3), (7, 7, 1), (20, 7, 3)),
        )
    )
]  # fmt: skip


ALL = MIXED + PLACES
SOME = MIXED[:16] + PLACES[::3]
