import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from data.batches import TrainingWindows, batches_on_device
from gpt.analysis import attention_maps
from gpt.checkpoint import copy_weights, with_context
from gpt.config import ModelConfig, OptimConfig
from gpt.model import GPT, Block
from gpt.optim import make_optimizer
from tests.conftest import refusal
from tests.reference import model as reference
from tests.reference.models import (
    ALL,
    CHOICES,
    MIXED,
    PLACES,
    SOME,
    fill,
    name,
    normal,
    third,
    tiny,
    tolerance,
)

V = 11


def build(config: ModelConfig, seed: int = 0, vocabulary: int = V) -> GPT:
    return fill(GPT(config, vocabulary).double(), seed).eval()


def draw(*shape: int, seed: int = 5, vocabulary: int = V) -> torch.Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def close(one: torch.Tensor, other: torch.Tensor, atol: float) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


# Heads of 9, 3 and 1 channels: the half that is offset is the smaller one, of one channel none.
ODD = [tiny(dim=9, heads=heads, positions="learned", key_offset=True) for heads in (1, 3, 9)]
EXTREMES = [ModelConfig(1, 1, 2, 1, positions="learned"), ModelConfig(3, 4, 16, 12)]


@pytest.mark.parametrize("config", ALL + ODD + EXTREMES, ids=name)
def test_equals_numpy(config: ModelConfig) -> None:
    model = build(config)
    tokens = draw(2, config.context)
    expected = reference.gpt(model.state_dict(), config, tokens.numpy())
    assert expected.std() > 0.01
    found = model(tokens).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance(config))


@pytest.mark.parametrize(
    "config", [MIXED[0], MIXED[-1], *PLACES[1::12], tiny(heads=3, dropout=0.1)], ids=name
)
def test_a_training_step_stays_on_its_device_and_reads_no_number(config: ModelConfig) -> None:
    """On torch's meta device, which knows shapes only: to read a number, or to mix in a CPU's tensor, is an error."""
    text = torch.empty(500, dtype=torch.uint8, device="meta")
    batches = batches_on_device(
        text, TrainingWindows(np.empty(500, np.uint8), 0, 8, config.context), 3, slice(2, 5)
    )
    with torch.device("meta"):
        trained, model = GPT(config, 7), GPT(config, V)
    copy_weights(model, trained, torch.arange(7, device="meta"))
    optimizer = make_optimizer(model, OptimConfig(name="muon"))
    for batch in itertools.islice(batches, 2):
        assert (
            batch.is_meta and batch.shape == (3, config.context + 1) and batch.dtype == torch.int64
        )
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert loss.is_meta
    assert all(value.is_meta for state in optimizer.state.values() for value in state.values())


@pytest.mark.parametrize("config", SOME, ids=name)
@torch.no_grad()
def test_other_rows_and_later_tokens_do_not_matter(config: ModelConfig) -> None:
    model = build(config)
    tokens = draw(3, config.context)
    close(model(tokens[1:2, :3]), model(tokens)[1:2, :3], 1e-11)


LONGER = [config for config in SOME if config.positions != "learned"]


@pytest.mark.parametrize(
    ("config", "context"),
    [(config, 3) for config in SOME] + [(config, 4 * config.context) for config in LONGER],
    ids=lambda value: name(value) if isinstance(value, ModelConfig) else None,
)
@torch.no_grad()
def test_another_context_does_not_matter(config: ModelConfig, context: int) -> None:
    model = build(config)
    tokens = draw(3, config.context)
    other = with_context(model, context).eval()
    assert other.config == replace(config, context=context)
    close(other(tokens[:, :context]), model(tokens)[:, :context], 1e-11)


@pytest.mark.parametrize("branch", ["attention", "mlp"])
def test_dropout_on_each_branch(branch: str) -> None:
    """With the other branch silenced, what a block adds is lost with probability p, else divided by 1 - p."""
    block = fill(Block(tiny(heads=1, dropout=0.2, context=1)).double())
    plain = copy.deepcopy(block).eval()
    with torch.no_grad():
        for each in (block, plain):
            (each.mlp.down if branch == "attention" else each.attention.proj).weight.zero_()
        x = normal(3000, 1, 12)
        torch.manual_seed(1)
        added, whole = block.train()(x) - x, plain(x) - x
    lost = (added == 0).all(-1).double().mean().item()
    # the only attention weight of one character is lost as often
    kept = 0.8**2 if branch == "attention" else 0.8
    assert (added == 0).double().mean().item() == pytest.approx(1 - kept, abs=0.03)
    assert lost == pytest.approx(0.2 if branch == "attention" else 0.0, abs=0.03)
    close(added[added != 0], whole[added != 0] / kept, 1e-10)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_dropout_on_the_embeddings(positions: str) -> None:
    model = build(tiny(dropout=0.3, positions=positions))
    tokens = draw(300, 7)
    plain = build(tiny(positions=positions))
    assert torch.equal(model(tokens), plain(tokens)), "none while it is not trained"
    seen = []
    model.train()
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    torch.manual_seed(1)
    model(tokens)
    kept = seen[0] != 0
    embedded = model.embedding.weight[tokens].detach()
    if positions == "learned":
        embedded = embedded + model.position_embedding.weight.detach()
    assert kept.double().mean().item() == pytest.approx(0.7, abs=0.02)
    close(seen[0][kept], embedded[kept] / 0.7, 1e-7)


@pytest.mark.parametrize(("layers", "tied"), [(1, True), (8, False)])
def test_initialisation(layers: int, tied: bool) -> None:
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
        std = 0.02 / math.sqrt(2 * layers) if residual else 0.02
        count = value.numel()
        unit = value.detach().double() / std
        assert unit.std().item() == pytest.approx(1, abs=5 / math.sqrt(2 * count)), key
        assert unit.mean().item() == pytest.approx(0, abs=5 / math.sqrt(count)), key
        fourth = (unit**4).mean().item()  # 3 of a normal distribution
        assert fourth == pytest.approx(3, abs=5 * math.sqrt(96 / count)), key


@pytest.mark.parametrize(
    "changes",
    [{"tied": True}, {"positions": "learned", "bias": True, "heads": 4}],
    ids=["tied", "learned positions"],
)
def test_flops_are_those_that_torch_counts(changes: dict) -> None:
    tokens = draw(5, 12)
    model = build(tiny(layers=3, dim=16, context=12, attention="explicit", **changes))
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert counter.get_total_flops() == model.flops_per_token() * tokens.numel()


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        pytest.param(draw(1, 8), ["8", "1 to 7"], id="beyond the context"),
        pytest.param(draw(1, 0), ["0", "1 to 7"], id="none"),
        pytest.param(torch.tensor([[0, 11, 3]]), ["11", "0 to 10"], id="beyond the vocabulary"),
        pytest.param(torch.tensor([[0, -1, 3]]), ["-1", "0 to 10"], id="negative"),
        pytest.param(torch.zeros(1, 3), ["int64", "float32"], id="floats"),
        pytest.param(draw(3), ["(B, T)", "(3,)"], id="no batch"),
    ],
)
def test_wrong_tokens_are_named(tokens: torch.Tensor, named: list[str]) -> None:
    message = refusal(ValueError, build(tiny()), tokens)
    assert all(word in message for word in ["tokens", *named]), message


@pytest.mark.parametrize(
    ("heads", "key_offset", "named"),
    [
        (4, False, ["model.heads=4", "model.dim=12", "multiple of 2"]),
        (2, True, ["model.heads=2", "multiple of 4", "try 1, model.dim=16"]),
    ],
    ids=["rotary", "an offset half"],
)
def test_heads_that_do_not_fit_are_named(heads: int, key_offset: bool, named: list[str]) -> None:
    options = {"positions": "rotary", "heads": heads, "key_offset": key_offset}
    message = refusal(ValueError, tiny, **options)
    assert all(word in message for word in named), message


@pytest.mark.parametrize("config", SOME[:16], ids=name)
@pytest.mark.parametrize("characters", ["bdf", "abcdefg"])
@torch.no_grad()
def test_a_larger_vocabulary_leaves_the_old_logits_as_they_are(
    config: ModelConfig, characters: str
) -> None:
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
    assert (model.head.weight is model.embedding.weight) == config.tied
    # What is promised of the loss of old text.
    dearer = new.logsumexp(-1) - old.logsumexp(-1)
    assert dearer.max() <= math.log(len(characters) / 3) + 1e-12


@pytest.mark.parametrize("field", CHOICES)
@pytest.mark.parametrize("models", [ALL, SOME, third(PLACES)], ids=["all", "some", "third"])
def test_the_models_of_the_oracles_have_every_value_of_every_choice(
    models: list[ModelConfig], field: str
) -> None:
    """Each consumer is compared on some of these models, so that a value which one of them lacks fails there."""
    assert {getattr(config, field) for config in models} == set(CHOICES[field])


@pytest.mark.parametrize("config", ALL, ids=name)
def test_attention_maps_equal_loops(config: ModelConfig) -> None:
    model = fill(GPT(config, V).double(), std=1.0)  # with less, they look everywhere alike
    tokens = draw(config.context)
    seen: list[np.ndarray] = []
    reference.gpt(model.state_dict(), config, tokens[None].numpy(), seen=seen)
    expected = np.reshape(seen, (config.layers, config.heads, config.context, config.context))
    found = attention_maps(model, tokens)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)  # scores in fp32
