import copy
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from gpt.config import ModelConfig
from gpt.model import GPT, Block
from gpt.transfer import copy_weights, with_context
from tests.conftest import refusal
from tests.reference import model as reference
from tests.reference.models import ALL, SOME, fill, name, normal, tiny, tolerance
from tests.reference.positions import sinusoidal

V = 11


def build(config: ModelConfig, seed: int = 0, vocabulary: int = V) -> GPT:
    return fill(GPT(config, vocabulary).double(), seed).eval()


def draw(*shape: int, seed: int = 5, vocabulary: int = V) -> torch.Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def close(one: torch.Tensor, other: torch.Tensor, atol: float, config: object = None) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=atol, msg=lambda text: f"{config}: {text}")


def test_equals_numpy() -> None:
    shapes = [(1, 1, 2, 1), (1, 8, 8, 16), (3, 4, 16, 12)]
    others = [ModelConfig(*shape, positions="learned", key_offset=False, token_shift=False) for shape in shapes]
    for config in ALL + others:
        model, tokens = build(config), draw(2, config.context)
        expected = reference.gpt(model.state_dict(), config, tokens.numpy())
        assert expected.std() > 0.01
        found = model(tokens).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance(config), err_msg=name(config))


@pytest.mark.slow
def test_derivatives() -> None:
    for config in [*ALL[:32:6], *ALL[33::8]]:
        config = replace(config, layers=1, heads=1 if config.key_offset else 2, dim=4, context=3)
        model, tokens = build(config, vocabulary=3), draw(1, 3, vocabulary=3)
        names = [key for key, _ in model.named_parameters()]
        values = [value.detach().clone().requires_grad_() for value in model.parameters()]

        def function(*values: torch.Tensor, model=model, names=names, tokens=tokens) -> torch.Tensor:
            return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (tokens,))

        assert torch.autograd.gradcheck(function, tuple(values)), name(config)


def test_bfloat16_autocast_is_close() -> None:
    for positions, qk_norm, kernel in product(("learned", "rotary"), (False, True), ("explicit", "sdpa")):
        config = tiny(dim=48, heads=3, context=32, positions=positions, qk_norm=qk_norm, attention=kernel)
        model = fill(GPT(config, V), std=0.1).eval()
        tokens, targets = draw(8, 32), draw(8 * 32, seed=6)
        exact = model(tokens)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = model(tokens)
        assert not torch.equal(exact, rough.float())
        assert ((rough.float() - exact).norm() / exact.norm()).item() < 0.02, name(config)
        losses = [F.cross_entropy(logits.float().flatten(0, 1), targets).item() for logits in (exact, rough)]
        assert losses[0] == pytest.approx(losses[1], abs=5e-3), name(config)


@torch.no_grad()
def test_no_logit_sees_what_comes_after_it() -> None:
    """Changing token t changes the logits of its row from t on that a window reaches, and no other.
    A window of W places reaches W - 1 places back in each block, one more where a key is offset, K - 1 more through
    a convolution of K taps, and one more through a token shift.
    """
    for config in ALL:
        model, tokens = build(config), draw(2, config.context)
        offset = config.key_offset and config.head_dim > 1 and config.attention_window > 1
        reach = config.layers * (config.attention_window - 1 + offset + config.conv_taps - 1) + config.token_shift
        before = model(tokens)
        for t in range(config.context):
            changed = tokens.clone()
            changed[0, t] = (changed[0, t] + 1) % V
            difference = (model(changed) - before).abs().amax(-1)
            assert difference[0, :t].sum() < 1e-12 and difference[1].sum() < 1e-12, name(config)
            assert difference[0, t] > 1e-4, f"{name(config)}: a logit must see its own token"
            assert (difference[0, t : t + reach + 1] > 1e-9).all(), f"{name(config)}: every one before it that it can"
            assert not difference[0, t + reach + 1 :].any(), name(config)


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 3])
def test_a_longer_context_changes_nothing_within_the_shorter(window: int | None) -> None:
    tokens = draw(2, 28)
    for positions in ("sinusoidal", "rotary", "alibi", "none"):
        config = tiny(positions=positions, window=window)
        model = build(config)
        wide = with_context(model, 28).eval()(tokens)
        close(wide[:, :7], model(tokens[:, :7]), 1e-12, positions)
        expected = reference.gpt(model.state_dict(), config, tokens.numpy())
        np.testing.assert_allclose(wide.numpy(), expected, rtol=0, atol=tolerance(config), err_msg=positions)
    with pytest.raises(ValueError, match="must be at most 7, the number of learned positions"):
        with_context(build(tiny(positions="learned")), 8)


@torch.no_grad()
def test_rows_lengths_and_a_shorter_context_do_not_matter() -> None:
    tokens = draw(3, 7)
    for config in SOME:
        model = build(config)
        whole = model(tokens)
        close(model(tokens[1:2, :3]), whole[1:2, :3], 1e-11, name(config))
        shorter = with_context(model, 3).eval()
        assert shorter.config == replace(config, context=3)
        close(shorter(tokens[:, :3]), whole[:, :3], 1e-11, name(config))
        with pytest.raises(ValueError, match="4 per window, must be 1 to 3"):
            shorter(tokens[:, :4])


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
    # One character: its only attention weight is lost as often.
    kept = 0.8**2 if branch == "attention" else 0.8
    assert (added == 0).double().mean().item() == pytest.approx(1 - kept, abs=0.03)
    assert lost == pytest.approx(0.2 if branch == "attention" else 0.0, abs=0.03)
    close(added[added != 0], whole[added != 0] / kept, 1e-10)


def test_dropout_on_the_embeddings() -> None:
    for positions in ("learned", "rotary", "sinusoidal"):
        model, tokens, seen = build(tiny(dropout=0.3, positions=positions)), draw(300, 7), []
        assert torch.equal(model(tokens), build(tiny(positions=positions))(tokens)), "none while it is not trained"
        model.train()
        model.blocks[0].register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0].detach()))
        torch.manual_seed(1)
        model(tokens)
        kept = seen[0] != 0
        embedded = model.embedding.weight[tokens].detach()
        if positions == "learned":
            embedded = embedded + model.position_embedding.weight.detach()
        if positions == "sinusoidal":
            embedded = embedded + torch.from_numpy(sinusoidal(7, 12)) / 12**0.5
        assert kept.double().mean().item() == pytest.approx(0.7, abs=0.02), positions
        close(seen[0][kept], embedded[kept] / 0.7, 1e-7, positions)


def test_initialisation() -> None:
    """GPT-2's: N(0, 0.02), residual projections N(0, 0.02 / sqrt(2 layers)), biases and the token shift 0, scales 1."""
    for layers, tied in ((1, True), (8, False)):
        torch.manual_seed(0)
        model = GPT(ModelConfig(layers, 4, 96, 128, bias=True, norm="layernorm", positions="learned", tied=tied), 100)
        matrices = 0
        for key, value in model.named_parameters():
            if value.ndim == 1:
                expected = (
                    torch.zeros_like(value)
                    if key.endswith(("bias", "shift")) or ".taps." in key
                    else torch.ones_like(value)
                )
                assert torch.equal(value, expected), key
                continue
            matrices += 1
            residual = key.endswith(("attention.proj.weight", "mlp.down.weight"))
            count, unit = value.numel(), value.detach().double() / (0.02 / math.sqrt(2 * layers) if residual else 0.02)
            assert unit.std().item() == pytest.approx(1, abs=5 / math.sqrt(2 * count)), key
            assert unit.mean().item() == pytest.approx(0, abs=5 / math.sqrt(count)), key
            assert (unit**4).mean().item() == pytest.approx(3, abs=5 * math.sqrt(96 / count)), f"{key}: not normal"
        assert matrices == 4 * layers + (2 if tied else 3)


def test_number_of_parameters() -> None:
    # 2 blocks: norms 2*8, qkv 24*8, proj 8*8, up 32*8, down 8*32; biases qkv 24, proj 8, up 32, down 8, norms 2*8
    for changes, count in (
        ({"token_shift": False, "conv_taps": 1}, 56 + 2 * 784 + 8 + 56),
        ({"token_shift": True, "tied": True}, 56 + 8 + 2 * (784 + 3 * 8) + 8),
        ({"bias": True, "token_shift": False, "positions": "learned"}, 56 + 5 * 8 + 2 * (784 + 24 + 72 + 16) + 16 + 56),
        ({"bias": True, "token_shift": False, "norm": "rmsnorm"}, 56 + 2 * (784 + 24 + 72) + 8 + 56),
    ):
        assert GPT(ModelConfig(2, 2, 8, 5, **changes), 7).num_parameters() == count, changes
    options = {"positions": "learned", "qk_norm": False, "tied": True, "token_shift": False, "conv_taps": 1}
    with torch.device("meta"):
        gpt2 = GPT(ModelConfig(12, 12, 768, 1024, bias=True, norm="layernorm", activation="gelu", **options), 50257)
    assert gpt2.num_parameters() == 124_439_808


def test_flops_are_those_that_torch_counts() -> None:
    tokens = draw(5, 12)
    for changes in ({}, {"tied": True}, {"positions": "learned", "bias": True}, {"heads": 4, "dim": 32}):
        model = build(tiny(**{"layers": 3, "dim": 16, "context": 12, "attention": "explicit", **changes}))
        with FlopCounterMode(display=False) as counter:
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        assert counter.get_total_flops() == model.flops_per_token() * tokens.numel(), changes


def test_tied_weights_are_one() -> None:
    tied, free = build(tiny(tied=True)), build(tiny())
    assert tied.head.weight.data_ptr() == tied.embedding.weight.data_ptr()
    assert free.head.weight.data_ptr() != free.embedding.weight.data_ptr()
    free.load_state_dict({**tied.state_dict(), "head.weight": tied.embedding.weight.detach().clone()})
    for model in (tied, free):
        F.cross_entropy(model(draw(2, 7)).flatten(0, 1), draw(14, seed=6)).backward()
    close(tied.embedding.weight.grad, free.embedding.weight.grad + free.head.weight.grad, 1e-12)


def test_wrong_tokens_and_wrong_configurations_are_named() -> None:
    zeros, model = torch.zeros, build(tiny())
    for tokens, named in (
        (zeros(1, 8).long(), "tokens: 8 per window, must be 1 to 7"), (zeros(1, 0).long(), "tokens: 0 per window"),
        (torch.tensor([[0, 11, 3]]), "tokens: 11 is outside the vocabulary, must be 0 to 10"),
        (torch.tensor([[4, 500]]), "tokens: 500 is outside"), (torch.tensor([[0, -1, 3]]), "tokens: -1 is outside"),
        (zeros(3).long(), r"must be \(B, T\) int64, not \(3,\)"), (zeros(1, 3, 2).long(), r"not \(1, 3, 2\)"),
        (zeros(1, 3), "float32"), (zeros(1, 3).bool(), "bool"), (zeros(1, 3, dtype=torch.uint8), "uint8"),
    ):  # fmt: skip
        assert re.search(named, message := refusal(ValueError, model, tokens)), message
    rotary = {"positions": "rotary"}
    for changes, *named in (
        ({"heads": 5}, "model.heads=5: must divide model.dim=12: 1"), ({"heads": 24}, "model.heads=24", "model.dim=12"),
        ({"heads": 4, **rotary}, "rotary", "model.heads=4", "model.dim=12", "= 3; the other positions take any"),
        ({"heads": 12, **rotary}, "rotary", "= 1;"),
        ({"heads": 2, "key_offset": True, **rotary}, "multiple of 4 (2 with model.key_offset=false)", "= 6;"),
        ({"heads": 5, "key_offset": True, **rotary}, "must divide model.dim=12: 1;"),
        ({"layers": 0}, "model.layers=0"), ({"dropout": 1.0}, "model.dropout=1"),
        ({"norm": "layer_norm"}, "model.norm=layer_norm", "layernorm", "rmsnorm"),
    ):  # fmt: skip
        assert all(word in (message := refusal(ValueError, tiny, **changes)) for word in named), message
    assert tiny(heads=4, positions="learned").head_dim == 3


@torch.no_grad()
def test_a_larger_vocabulary_leaves_the_old_logits_as_they_are() -> None:
    """Whatever is added before, between and after the old characters; a new one gets the mean of their logits."""
    for config in SOME:
        trained, tokens = build(config, vocabulary=3), draw(4, config.context, vocabulary=3)
        old = trained(tokens)
        for characters in ("bdf", "abdf", "bcdf", "bdfg", "abcdefg"):
            model, places = build(config, 1, len(characters)), torch.tensor([characters.index(old) for old in "bdf"])
            copy_weights(model, trained, places)
            new = model(places[tokens])
            assert old.std() > 0.05
            for place, character in enumerate(characters):
                expected = old[..., "bdf".index(character)] if character in "bdf" else old.mean(-1)
                close(new[..., place], expected, 1e-12, (name(config), characters))
            assert torch.equal(trained(tokens), old) and (model.head.weight is model.embedding.weight) == config.tied
            dearer = new.logsumexp(-1) - old.logsumexp(-1)
            assert dearer.max() <= math.log(len(characters) / 3) + 1e-12, "what is promised of the loss of old text"
