import itertools
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from data.batches import TrainingWindows, batches_on_device
from gpt.analysis import attention_maps
from gpt.checkpoint import copy_weights, with_context
from gpt.config import ModelConfig, OptimConfig
from gpt.dropout import Dropout
from gpt.model import GPT
from gpt.optim import make_optimizer
from tests.conftest import refusal
from tests.reference import model as reference
from tests.reference.models import ALL, CHOICES, SOME, fill, name, normal, tiny, tolerance

V = 11


def build(config, seed=0, vocabulary=V):
    return fill(GPT(config, vocabulary).double(), seed).eval()


def draw(*shape, seed=5, vocabulary=V):
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def close(one, other, atol):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


# Heads of 9, 3 and 1 channels: the half that is offset is the smaller one, of one channel none.
ODD = [tiny(dim=9, heads=heads, positions="learned", key_offset=True) for heads in (1, 3, 9)]
EXTREMES = [ModelConfig(1, 1, 2, 1, positions="learned"), ModelConfig(3, 4, 16, 12)]


@pytest.mark.parametrize("config", ALL + ODD + EXTREMES, ids=name)
def test_equals_numpy(config):
    model = build(config)
    tokens = draw(2, config.context)
    expected = reference.gpt(model.state_dict(), config, tokens.numpy())
    assert expected.std() > 0.01
    found = model(tokens).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance(config))
    # Other texts and later tokens do not matter.
    alone = model(tokens[1:, :3]).detach().numpy()
    np.testing.assert_allclose(alone, expected[1:, :3], rtol=0, atol=tolerance(config))


@pytest.mark.parametrize("config", [*ALL[::10], tiny(heads=3, dropout=0.1)], ids=name)
def test_a_training_step_stays_on_its_device_and_reads_no_number(config):
    """On torch's meta device, which knows shapes only: to read a number, or to mix in a CPU's tensor, is an error."""
    text = torch.empty(500, dtype=torch.uint8, device="meta")
    windows = TrainingWindows(np.empty(500, np.uint8), 0, 8, config.context)
    batches = batches_on_device(text, windows, 3, slice(2, 5))
    with torch.device("meta"):
        trained, model = GPT(config, 7), GPT(config, V)
    copy_weights(model, trained, torch.arange(7, device="meta"))
    optimizer = make_optimizer(model, OptimConfig(name="muon"))
    for batch in itertools.islice(batches, 2):
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert loss.is_meta
    assert all(value.is_meta for state in optimizer.state.values() for value in state.values())


@pytest.mark.parametrize("config", SOME, ids=name)
@torch.no_grad()
def test_another_context_does_not_matter(config):
    model = build(config)
    tokens = draw(3, config.context)
    longest = config.context if config.positions == "learned" else 4 * config.context
    for context in (3, longest):
        other = with_context(model, context).eval()
        assert other.config.context == context
        close(other(tokens[:, :context]), model(tokens)[:, :context], 1e-11)


def test_dropout_is_on_the_embeddings_and_on_each_branch():
    model = build(tiny(dropout=0.3))
    layers = [module for module in model.modules() if isinstance(module, Dropout)]
    assert {layer.p for layer in layers} == {0.3}
    for layer in layers:
        layer.register_forward_hook(lambda layer, args, out: torch.zeros_like(out))
    x = normal(2, 7, 12)
    assert model.embed(draw(2, 7), ()).eq(0).all()
    assert model.blocks[0](x).equal(x), "nothing is added to the residual stream"


@pytest.mark.parametrize(("layers", "tied"), [(1, True), (8, False)])
def test_initialisation(layers, tied):
    """GPT-2's: N(0, 0.02), residual projections N(0, 0.02 / sqrt(2 layers)), biases and the token shift 0, scales 1."""
    torch.manual_seed(0)
    options = {"bias": True, "norm": "layernorm", "positions": "learned", "tied": tied}
    model = GPT(ModelConfig(layers, 4, 96, 128, **options), 100)
    for key, value in model.named_parameters():
        if value.ndim == 1:
            zero = key.endswith(("bias", "shift")) or ".taps." in key
            assert (value == (not zero)).all(), key
            continue
        residual = key.endswith(("attention.proj.weight", "mlp.down.weight"))
        variance = 0.02**2 / (2 * layers if residual else 1)
        tolerated = 5 * math.sqrt(2 / value.numel())
        assert value.square().mean().item() == pytest.approx(variance, rel=tolerated), key


@pytest.mark.parametrize(("tied", "positions"), [(True, "rotary"), (False, "learned")])
def test_flops_are_those_that_torch_counts(tied, positions):
    tokens = draw(5, 12)
    options = {"tied": tied, "positions": positions, "bias": not tied, "attention": "explicit"}
    model = build(tiny(layers=3, dim=16, context=12, **options))
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert counter.get_total_flops() == model.flops_per_token() * tokens.numel()


WRONG_TOKENS = {  # what the refusal names
    "8, 1 to 7": draw(1, 8), "0, 1 to 7": draw(1, 0), "11, 0 to 10": torch.tensor([[0, 11, 3]]),
    "-1, 0 to 10": torch.tensor([[0, -1, 3]]), "int64, float32": torch.zeros(1, 3), "(B, T), (3,)": draw(3),
}  # fmt: skip


@pytest.mark.parametrize("named", WRONG_TOKENS)
def test_wrong_tokens_are_named(named):
    message = refusal(ValueError, build(tiny()), WRONG_TOKENS[named])
    assert all(word in message for word in ["tokens", *named.split(", ")]), message


def test_heads_that_do_not_fit_rotary_positions_are_named():
    said = refusal(ValueError, tiny, heads=2, key_offset=True)
    assert re.match("model.heads=2: .*multiple of 4 .*try 1, model.dim=16", said)


@pytest.mark.parametrize("config", SOME[:16], ids=name)
@pytest.mark.parametrize("characters", ["bdf", "abcdefg"])
@torch.no_grad()
def test_a_larger_vocabulary_leaves_the_old_logits_as_they_are(config, characters):
    """Whatever is added before, between and after the old characters; a new one gets the mean of their logits."""
    trained = build(config, vocabulary=3)
    tokens = draw(4, config.context, vocabulary=3)
    old = trained(tokens)
    model = build(config, 1, len(characters))
    places = torch.tensor([characters.index(character) for character in "bdf"])
    copy_weights(model, trained, places)
    new = model(places[tokens])
    expected = old.mean(-1, keepdim=True).repeat(1, 1, len(characters))
    expected[..., places] = old
    close(new, expected, 1e-12)


@pytest.mark.parametrize("field", CHOICES)
def test_the_models_of_the_oracles_have_every_value_of_every_choice(field):
    """Each consumer is compared on some of these models, so that a value which one of them lacks fails there."""
    assert {getattr(config, field) for config in SOME} == set(CHOICES[field])


@pytest.mark.parametrize("config", ALL, ids=name)
def test_attention_maps_equal_loops(config):
    model = fill(GPT(config, V).double(), std=1.0)  # with less, they look everywhere alike
    tokens = draw(config.context)
    seen = []
    reference.gpt(model.state_dict(), config, tokens[None].numpy(), seen=seen)
    expected = np.reshape(seen, (config.layers, config.heads, config.context, config.context))
    found = attention_maps(model, tokens)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)  # scores in fp32
