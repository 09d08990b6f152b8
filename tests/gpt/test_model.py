import copy
import itertools
import math
import re
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


def close(one: torch.Tensor, other: torch.Tensor, atol: float, config: object = None) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=atol, msg=lambda text: f"{config}: {text}")


def test_equals_numpy() -> None:
    # Heads of 9, 3 and 1 channels: the half that is offset is the smaller one, of one channel
    # none.
    odd = [tiny(dim=9, heads=heads, positions="learned", key_offset=True) for heads in (1, 3, 9)]
    for config in [
        *ALL,
        *odd,
        ModelConfig(1, 1, 2, 1, positions="learned"),
        ModelConfig(3, 4, 16, 12),
    ]:
        model, tokens = build(config), draw(2, config.context)
        expected = reference.gpt(model.state_dict(), config, tokens.numpy())
        assert expected.std() > 0.01
        found = model(tokens).detach().numpy()
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=tolerance(config), err_msg=name(config)
        )


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


@torch.no_grad()
def test_rows_lengths_and_another_context_do_not_matter() -> None:
    for config in SOME:
        model, tokens = build(config), draw(3, config.context)
        whole = model(tokens)
        close(model(tokens[1:2, :3]), whole[1:2, :3], 1e-11, name(config))
        for context in (3, 4 * config.context):
            if context < config.context or config.positions != "learned":
                other = with_context(model, context).eval()
                assert other.config == replace(config, context=context)
                close(other(tokens[:, :context]), whole[:, :context], 1e-11, name(config))


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


def test_dropout_on_the_embeddings() -> None:
    for positions in ("learned", "rotary"):
        model, tokens, seen = build(tiny(dropout=0.3, positions=positions)), draw(300, 7), []
        assert torch.equal(model(tokens), build(tiny(positions=positions))(tokens)), (
            "none while it is not trained"
        )
        model.train()
        model.blocks[0].register_forward_pre_hook(
            lambda module, args, seen=seen: seen.append(args[0].detach())
        )
        torch.manual_seed(1)
        model(tokens)
        kept = seen[0] != 0
        embedded = model.embedding.weight[tokens].detach()
        if positions == "learned":
            embedded = embedded + model.position_embedding.weight.detach()
        assert kept.double().mean().item() == pytest.approx(0.7, abs=0.02), positions
        close(seen[0][kept], embedded[kept] / 0.7, 1e-7, positions)


def test_initialisation() -> None:
    """GPT-2's: N(0, 0.02), residual projections N(0, 0.02 / sqrt(2 layers)), biases and the token shift 0, scales 1."""
    for layers, tied in ((1, True), (8, False)):
        torch.manual_seed(0)
        model = GPT(
            ModelConfig(
                layers, 4, 96, 128, bias=True, norm="layernorm", positions="learned", tied=tied
            ),
            100,
        )
        for key, value in model.named_parameters():
            if value.ndim == 1:
                assert (
                    value == (not (key.endswith(("bias", "shift")) or ".taps." in key))
                ).all(), key
                continue
            residual = key.endswith(("attention.proj.weight", "mlp.down.weight"))
            count, unit = (
                value.numel(),
                value.detach().double() / (0.02 / math.sqrt(2 * layers) if residual else 0.02),
            )
            assert unit.std().item() == pytest.approx(1, abs=5 / math.sqrt(2 * count)), key
            assert unit.mean().item() == pytest.approx(0, abs=5 / math.sqrt(count)), key
            assert (unit**4).mean().item() == pytest.approx(3, abs=5 * math.sqrt(96 / count)), (
                f"{key}: not normal"
            )


def test_flops_are_those_that_torch_counts() -> None:
    tokens = draw(5, 12)
    for changes in ({"tied": True}, {"positions": "learned", "bias": True, "heads": 4}):
        model = build(
            tiny(**{"layers": 3, "dim": 16, "context": 12, "attention": "explicit", **changes})
        )
        with FlopCounterMode(display=False) as counter:
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        assert counter.get_total_flops() == model.flops_per_token() * tokens.numel(), changes


def test_wrong_tokens_and_wrong_configurations_are_named() -> None:
    zeros, model = torch.zeros, build(tiny())
    for tokens, named in (
        (zeros(1, 8).long(), "tokens: 8 per window, must be 1 to 7"), (zeros(1, 0).long(), "tokens: 0 per window"),
        (torch.tensor([[0, 11, 3]]), "tokens: 11 is outside the vocabulary, must be 0 to 10"),
        (torch.tensor([[0, -1, 3]]), "tokens: -1 is outside"), (zeros(1, 3), "float32"),
        (zeros(3).long(), r"must be \(B, T\) int64, not \(3,\)"),
    ):  # fmt: skip
        assert re.search(named, message := refusal(ValueError, model, tokens)), message
    for changes, *named in (
        ({"heads": 4}, "model.heads=4", "model.dim=12", "multiple of 2"),
        (
            {"heads": 2, "key_offset": True},
            "model.heads=2",
            "multiple of 4",
            "try 1, model.dim=16",
        ),
    ):
        message = refusal(ValueError, tiny, positions="rotary", **changes)
        assert all(word in message for word in named), message


@torch.no_grad()
def test_a_larger_vocabulary_leaves_the_old_logits_as_they_are() -> None:
    """Whatever is added before, between and after the old characters; a new one gets the mean of their logits."""
    for config in SOME[:16]:
        trained, tokens = build(config, vocabulary=3), draw(4, config.context, vocabulary=3)
        old = trained(tokens)
        for characters in ("bdf", "abcdefg"):
            model, places = (
                build(config, 1, len(characters)),
                torch.tensor([characters.index(old) for old in "bdf"]),
            )
            copy_weights(model, trained, places)
            new = model(places[tokens])
            for place, character in enumerate(characters):
                expected = old[..., "bdf".index(character)] if character in "bdf" else old.mean(-1)
                close(new[..., place], expected, 1e-12, (name(config), characters))
            assert (model.head.weight is model.embedding.weight) == config.tied
            dearer = new.logsumexp(-1) - old.logsumexp(-1)
            assert dearer.max() <= math.log(len(characters) / 3) + 1e-12, (
                "what is promised of the loss of old text"
            )


def test_the_models_of_the_oracles_have_every_value_of_every_choice() -> None:
    """Each consumer is compared on some of these models, so that a value which one of them lacks fails there."""
    for models in (ALL, SOME, third(PLACES)):
        for field, values in CHOICES.items():
            assert {getattr(config, field) for config in models} == set(values), field


def test_attention_maps_equal_loops() -> None:
    for config in ALL:
        model = fill(GPT(config, V).double(), std=1.0)  # with less, they look everywhere alike
        tokens, seen = draw(config.context), list[np.ndarray]()
        reference.gpt(model.state_dict(), config, tokens[None].numpy(), seen=seen)
        expected = np.reshape(seen, (config.layers, config.heads, config.context, config.context))
        found = attention_maps(model, tokens)
        assert found.dtype == torch.float32
        # scores in fp32
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=name(config))
