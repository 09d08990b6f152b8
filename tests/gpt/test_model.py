"""The model against NumPy, against torch.nn, and against what a causal language model may and must depend on."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpt.config import ModelConfig
from gpt.model import GPT, MLP, Block, init_from, with_context
from tests.reference import model as reference
from tests.reference.models import ALL, SHIFT, SOME, fill, name, tiny, tolerance
from tests.reference.positions import sinusoidal

VOCABULARY = 11


def build(config: ModelConfig, seed: int = 0, vocabulary: int = VOCABULARY) -> GPT:
    """In float64, filled, and without dropout."""
    return fill(GPT(config, vocabulary).double(), seed).eval()


def draw(*shape: int, seed: int = 5, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def random(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The function


@pytest.mark.parametrize("config", ALL, ids=name)
def test_equals_numpy(config: ModelConfig) -> None:
    model, tokens = build(config), draw(2, config.context)
    expected = reference.gpt(model.state_dict(), config, tokens.numpy())
    assert expected.std() > 0.05
    np.testing.assert_allclose(model(tokens).detach().numpy(), expected, rtol=0, atol=tolerance(config))


@pytest.mark.parametrize("config", SOME, ids=name)
@pytest.mark.parametrize("time", [1, 4])
def test_equals_numpy_when_shorter_than_the_context(config: ModelConfig, time: int) -> None:
    model, tokens = build(config, seed=1), draw(3, time)
    expected = reference.gpt(model.state_dict(), config, tokens.numpy())
    np.testing.assert_allclose(model(tokens).detach().numpy(), expected, rtol=0, atol=tolerance(config))


@pytest.mark.parametrize("shape", [(1, 1, 2, 1), (1, 8, 8, 16), (3, 4, 16, 12)])
def test_equals_numpy_in_other_shapes(shape: tuple[int, int, int, int]) -> None:
    layers, heads, dim, context = shape
    config = ModelConfig(layers=layers, heads=heads, dim=dim, context=context, positions="learned")
    model, tokens = build(config), draw(1, context)
    expected = reference.gpt(model.state_dict(), config, tokens.numpy())
    np.testing.assert_allclose(model(tokens).detach().numpy(), expected, rtol=0, atol=1e-10)


def test_equals_numpy_in_single_precision() -> None:
    model, tokens = build(tiny()), draw(2, 7)
    expected = reference.gpt(model.state_dict(), tiny(), tokens.numpy())
    np.testing.assert_allclose(model.float()(tokens).detach().numpy(), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("activation", ["gelu", "relu2"])
@pytest.mark.parametrize("bias", [False, True])
def test_mlp_equals_numpy(activation: str, bias: bool) -> None:
    module = fill(MLP(tiny(activation=activation, bias=bias)).double()).eval()
    x = 2 * random(5, 12)
    up, down = (
        (layer.weight.detach().numpy(), layer.bias.detach().numpy() if bias else None)
        for layer in (module.up, module.down)
    )
    assert module.up.weight.shape == (48, 12)
    expected = reference.mlp(x.numpy(), up, down, activation)
    np.testing.assert_allclose(module(x[None]).detach().numpy()[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("activation", ["gelu", "relu2"])
@pytest.mark.parametrize("bias", [False, True])
def test_block_equals_torch_s_encoder_layer(norm: str, activation: str, bias: bool, kernel: str) -> None:
    """Outputs and the gradients of the input and of every parameter; RMSNorm and ReLU^2 are put into torch's layer."""
    config = tiny(
        heads=3, positions="learned", qk_norm=False, norm=norm, activation=activation, bias=bias, attention=kernel
    )
    ours = fill(Block(config).double()).train()
    theirs = nn.TransformerEncoderLayer(
        12, 3, 48, dropout=0.0, norm_first=True, batch_first=True, bias=bias, dtype=torch.float64,
        activation="gelu" if activation == "gelu" else lambda x: x.clamp(min=0) ** 2,
    )  # fmt: skip
    if norm == "rmsnorm":
        theirs.norm1, theirs.norm2 = (nn.RMSNorm(12, eps=1e-5, dtype=torch.float64) for _ in range(2))
    pairs = {
        "norm1.weight": "norm1.weight", "norm1.bias": "norm1.bias",
        "norm2.weight": "norm2.weight", "norm2.bias": "norm2.bias",
        "attention.qkv.weight": "self_attn.in_proj_weight", "attention.qkv.bias": "self_attn.in_proj_bias",
        "attention.proj.weight": "self_attn.out_proj.weight", "attention.proj.bias": "self_attn.out_proj.bias",
        "mlp.up.weight": "linear1.weight", "mlp.up.bias": "linear1.bias",
        "mlp.down.weight": "linear2.weight", "mlp.down.bias": "linear2.bias",
    }  # fmt: skip
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    theirs.load_state_dict({pairs[key]: value.detach() for key, value in mine.items()})

    x, y = (random(2, 7, 12).requires_grad_() for _ in range(2))
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected, out = theirs(x, src_mask=hidden, is_causal=True), ours(y)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-11)

    seed = random(2, 7, 12, seed=8)
    expected.backward(seed)
    out.backward(seed)
    torch.testing.assert_close(y.grad, x.grad, rtol=0, atol=1e-10)
    for key, value in mine.items():
        torch.testing.assert_close(value.grad, other[pairs[key]].grad, rtol=0, atol=1e-10, msg=key)


@pytest.mark.parametrize("config", [config for config in SOME if config.attention == "explicit"], ids=name)
def test_kernels_agree_forward_and_backward(config: ModelConfig) -> None:
    results = []
    for kernel in ("explicit", "sdpa"):
        model = build(replace(config, attention=kernel)).train()
        logits = model(draw(3, 7))
        F.cross_entropy(logits.flatten(0, 1), draw(21, seed=6)).backward()
        results.append([logits, *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_auto_is_explicit_on_a_cpu() -> None:
    tokens = draw(2, 7)
    auto, explicit = (build(tiny(attention=kernel)).float()(tokens) for kernel in ("auto", "explicit"))
    assert torch.equal(auto, explicit)


@pytest.mark.parametrize("config", [*ALL[::11], *SHIFT[::3]], ids=name)
def test_derivatives(config: ModelConfig) -> None:
    """With respect to every parameter, the embedding among them, of the logits of a whole tiny model."""
    config = replace(config, layers=1, heads=1 if config.key_offset else 2, dim=4, context=3)
    model, tokens = build(config, vocabulary=3), draw(1, 3, vocabulary=3)
    names = [key for key, _ in model.named_parameters()]
    values = [value.detach().clone().requires_grad_() for value in model.parameters()]

    def function(*values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (tokens,))

    assert torch.autograd.gradcheck(function, tuple(values))


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_bfloat16_autocast_is_close(positions: str, qk_norm: bool, kernel: str) -> None:
    config = tiny(dim=48, heads=3, context=32, positions=positions, qk_norm=qk_norm, attention=kernel)
    model = fill(GPT(config, VOCABULARY), std=0.1).eval()
    tokens, targets = draw(8, 32), draw(8 * 32, seed=6)
    exact = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(tokens)
    assert not torch.equal(exact, rough.float())
    assert ((rough.float() - exact).norm() / exact.norm()).item() < 0.02
    losses = [F.cross_entropy(logits.float().flatten(0, 1), targets).item() for logits in (exact, rough)]
    assert losses[0] == pytest.approx(losses[1], abs=5e-3)


# What a logit depends on


@pytest.mark.parametrize("config", ALL, ids=name)
def test_no_logit_sees_what_comes_after_it(config: ModelConfig) -> None:
    """Changing token t changes no logit before t, in no other row, and does change all from t on that a window reaches.

    A window of W places reaches W - 1 places back in each block, one more where a key is offset, which nobody asks
    where there is but one, and one more through a token shift.
    """
    model, tokens = build(config), draw(2, config.context)
    offset = config.key_offset and config.head_dim > 1 and config.span > 1
    reach = config.layers * (config.span - 1 + offset) + config.token_shift
    with torch.no_grad():
        before = model(tokens)
        for t in range(config.context):
            changed = tokens.clone()
            changed[0, t] = (changed[0, t] + 1) % VOCABULARY
            difference = (model(changed) - before).abs().amax(-1)
            assert difference[0, :t].sum() < 1e-12 and difference[1].sum() < 1e-12
            assert difference[0, t] > 1e-4, "a logit must see its own token"
            assert (difference[0, t : t + reach + 1] > 1e-9).all(), "and every one before it that it can"
            assert not difference[0, t + reach + 1 :].any()


@pytest.mark.parametrize("config", ALL[::3] + [tiny(positions="none")], ids=name)
def test_order_matters(config: ModelConfig) -> None:
    """With a single block and no positions the last logit cannot tell the order of what came before."""
    model = build(replace(config, layers=1, window=None))
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7], [3, 2, 1, 4, 5, 6, 7], [6, 5, 4, 3, 2, 1, 7]])
    with torch.no_grad():
        last = model(tokens)[:, -1]
    for other in last[1:]:
        difference = (last[0] - other).abs().max()
        blind = config.positions == "none" and not config.key_offset and not config.token_shift
        assert difference < 1e-12 if blind else difference > 1e-4


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "alibi", "none"])
def test_some_know_places_and_others_distances(positions: str) -> None:
    """All characters equal, one block: distances weigh equal values, so all logits are equal; places differ."""
    config = tiny(layers=1, positions=positions)
    with torch.no_grad():
        logits = build(config)(torch.full((1, 7), 4))
    if config.absolute:
        assert (logits[:, 1:] - logits[:, :-1]).abs().amax(-1).min() > 1e-4
    else:
        torch.testing.assert_close(logits, logits[:, :1].expand_as(logits), rtol=0, atol=1e-10)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi", "none"])
@pytest.mark.parametrize("window", [None, 3])
def test_a_longer_context_changes_nothing_within_the_shorter(positions: str, window: int | None) -> None:
    """Where places are not learned one by one, a model reads on beyond the context that it was trained with."""
    config = tiny(positions=positions, window=window)
    model = build(config)
    longer = with_context(model, 28).eval()
    tokens = draw(2, 28)
    with torch.no_grad():
        wide = longer(tokens)
        torch.testing.assert_close(wide[:, :7], model(tokens[:, :7]), rtol=0, atol=1e-12)
    expected = reference.gpt(model.state_dict(), config, tokens.numpy())
    np.testing.assert_allclose(wide.numpy(), expected, rtol=0, atol=tolerance(config))


@pytest.mark.parametrize("config", SOME[::7], ids=name)
def test_a_shorter_context_changes_nothing_within_it(config: ModelConfig) -> None:
    model, tokens = build(config), draw(2, 3)
    shorter = with_context(model, 3).eval()
    assert shorter.config == replace(config, context=3)
    with torch.no_grad():
        torch.testing.assert_close(shorter(tokens), model(tokens), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="4 per window, must be 1 to 3"):
        shorter(draw(2, 4))


def test_learned_places_end_with_the_context() -> None:
    with pytest.raises(ValueError, match="must be at most 7, the places that the model has learned"):
        with_context(build(tiny(positions="learned")), 8)


@pytest.mark.parametrize("config", SOME, ids=name)
def test_rows_and_lengths_do_not_matter(config: ModelConfig) -> None:
    model, tokens = build(config), draw(3, 7)
    with torch.no_grad():
        whole = model(tokens)
        for t in (1, 3, 6):
            torch.testing.assert_close(model(tokens[:, :t]), whole[:, :t], rtol=0, atol=1e-11)
        torch.testing.assert_close(model(tokens[1:2]), whole[1:2], rtol=0, atol=1e-11)


# Dropout


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
def test_dropout_is_active_in_training_only(kernel: str) -> None:
    tokens = draw(2, 7)
    model, plain = build(tiny(dropout=0.5, attention=kernel)), build(tiny(attention=kernel))
    assert torch.equal(model(tokens), plain(tokens))
    assert torch.equal(plain.train()(tokens), plain.eval()(tokens))
    model.train()
    assert not torch.allclose(model(tokens), model(tokens))


@pytest.mark.parametrize("branch", ["attention", "mlp"])
def test_dropout_on_each_branch(branch: str) -> None:
    """With the other branch silenced, what a block adds is lost with probability p, else divided by 1 - p."""
    block = fill(Block(tiny(heads=1, dropout=0.2, context=1)).double())
    plain = copy.deepcopy(block).eval()
    with torch.no_grad():
        for each in (block, plain):
            (each.mlp.down if branch == "attention" else each.attention.proj).weight.zero_()
        x = random(3000, 1, 12)
        torch.manual_seed(1)
        added, whole = block.train()(x) - x, plain(x) - x
    lost = (added == 0).all(-1).double().mean().item()
    assert (added == 0).double().mean().item() == pytest.approx(
        1 - 0.8**2 if branch == "attention" else 0.2, abs=0.03
    )  # one character: its only attention weight is lost as often
    assert lost == pytest.approx(0.2 if branch == "attention" else 0.0, abs=0.03)
    scale = 0.8**2 if branch == "attention" else 0.8
    torch.testing.assert_close(added[added != 0], whole[added != 0] / scale, rtol=0, atol=1e-10)


@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal"])
def test_dropout_on_the_embeddings(positions: str) -> None:
    model = build(tiny(dropout=0.3, positions=positions)).train()
    tokens, seen = draw(300, 7), []
    model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    torch.manual_seed(1)
    model(tokens)
    kept = seen[0] != 0
    embedded = model.embedding.weight[tokens].detach()
    if positions == "learned":
        embedded = embedded + model.position_embedding.weight.detach()
    if positions == "sinusoidal":
        embedded = embedded + torch.from_numpy(sinusoidal(7, 12)) / 12**0.5
    assert kept.double().mean().item() == pytest.approx(0.7, abs=0.02)
    torch.testing.assert_close(seen[0][kept], embedded[kept] / 0.7, rtol=0, atol=1e-7)


# Parameters


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "config",
    [tiny(dim=64, context=32), tiny(dim=64, context=32, norm="layernorm", bias=True, positions="learned")],
    ids=name,
)
def test_loss_at_initialisation_is_that_of_guessing(config: ModelConfig, tied: bool) -> None:
    torch.manual_seed(0)
    model = GPT(replace(config, tied=tied), 65)
    logits = model(draw(16, 32, vocabulary=65))
    loss = F.cross_entropy(logits.flatten(0, 1), draw(16 * 32, seed=6, vocabulary=65)).item()
    assert loss == pytest.approx(math.log(65), abs=0.1)
    assert logits.std() > 0.01, "an untrained head that is all zeros would pass any test"


@pytest.mark.parametrize("layers", [1, 8])
@pytest.mark.parametrize("tied", [False, True])
def test_initialisation(layers: int, tied: bool) -> None:
    """GPT-2's: N(0, 0.02), residual projections N(0, 0.02 / sqrt(2 layers)), biases and the token shift 0, scales 1."""
    config = ModelConfig(
        layers=layers, heads=4, dim=96, context=128, bias=True, norm="layernorm", positions="learned", tied=tied
    )
    torch.manual_seed(0)
    model = GPT(config, 100)
    matrices = 0
    for key, value in model.named_parameters():
        if value.ndim == 1:
            expected = torch.zeros_like(value) if key.endswith(("bias", "shift")) else torch.ones_like(value)
            assert torch.equal(value, expected), key
            continue
        matrices += 1
        residual = key.endswith(("attention.proj.weight", "mlp.down.weight"))
        std = 0.02 / math.sqrt(2 * layers) if residual else 0.02
        count = value.numel()
        unit = value.detach().double() / std
        assert unit.std().item() == pytest.approx(1, abs=5 / math.sqrt(2 * count)), key
        assert unit.mean().item() == pytest.approx(0, abs=5 / math.sqrt(count)), key
        assert (unit**4).mean().item() == pytest.approx(3, abs=5 * math.sqrt(96 / count)), f"{key}: not normal"
    assert matrices == 4 * layers + (2 if tied else 3)


def test_initialisation_follows_the_seed() -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(GPT(tiny(), VOCABULARY).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["embedding.weight"], states[2]["embedding.weight"])
    assert not torch.equal(states[0]["blocks.0.mlp.up.weight"], states[0]["blocks.1.mlp.up.weight"])


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        # embedding 7*8 + 2 blocks (norms 2*8, qkv 24*8, proj 8*8, up 32*8, down 8*32) + norm 8 + head 7*8
        ({}, 56 + 2 * (16 + 192 + 64 + 256 + 256) + 8 + 56),
        ({"tied": True}, 56 + 2 * 784 + 8),
        ({"positions": "learned"}, 56 + 5 * 8 + 2 * 784 + 8 + 56),
        ({"norm": "layernorm"}, 56 + 2 * 784 + 8 + 56),
        # biases: qkv 24, proj 8, up 32, down 8, and the layer norms' 8 each; none in an RMS norm or the head
        ({"bias": True, "norm": "rmsnorm"}, 56 + 2 * (784 + 72) + 8 + 56),
        ({"bias": True, "norm": "layernorm"}, 56 + 2 * (784 + 72 + 16) + 8 + 8 + 56),
        ({"qk_norm": False}, 56 + 2 * 784 + 8 + 56),
        ({"token_shift": True}, 56 + 8 + 2 * 784 + 8 + 56),
        ({"heads": 4}, 56 + 2 * 784 + 8 + 56),
    ],
)
def test_number_of_parameters(changes: dict, count: int) -> None:
    model = GPT(
        ModelConfig(
            **{"layers": 2, "heads": 2, "dim": 8, "context": 5, "key_offset": False, "token_shift": False, **changes}
        ),
        7,
    )
    assert model.num_parameters() == count


def test_gpt2_small_has_124_million_parameters() -> None:
    """The published count, without allocating them."""
    config = ModelConfig(
        layers=12, heads=12, dim=768, context=1024, bias=True, norm="layernorm", activation="gelu",
        positions="learned", qk_norm=False, tied=True, token_shift=False,
    )  # fmt: skip
    with torch.device("meta"):
        assert GPT(config, 50257).num_parameters() == 124_439_808


@pytest.mark.parametrize(
    "changes", [{}, {"tied": True}, {"positions": "learned", "bias": True}, {"heads": 4, "dim": 32}]
)
def test_flops_are_those_that_torch_counts(changes: dict) -> None:
    """Every product of forward and backward, counted by torch as they run."""
    model = build(
        ModelConfig(**{"layers": 3, "heads": 2, "dim": 16, "context": 12, "attention": "explicit", **changes})
    )
    tokens = draw(5, 12)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert counter.get_total_flops() == model.flops_per_token() * tokens.numel()


def test_tied_weights_are_one() -> None:
    """One storage, one parameter, and a gradient that is the sum of what the two places send."""
    tied, free = build(tiny(tied=True)), build(tiny())
    assert tied.head.weight.data_ptr() == tied.embedding.weight.data_ptr()
    assert free.head.weight.data_ptr() != free.embedding.weight.data_ptr()
    free.load_state_dict({**tied.state_dict(), "head.weight": tied.embedding.weight.detach().clone()})
    for model in (tied, free):
        F.cross_entropy(model(draw(2, 7)).flatten(0, 1), draw(14, seed=6)).backward()
    torch.testing.assert_close(
        tied.embedding.weight.grad, free.embedding.weight.grad + free.head.weight.grad, rtol=0, atol=1e-12
    )
    loaded = GPT(tiny(tied=True), VOCABULARY)
    loaded.load_state_dict(tied.state_dict())
    assert loaded.head.weight.data_ptr() == loaded.embedding.weight.data_ptr()


@pytest.mark.parametrize("config", SOME, ids=name)
def test_state_dict_is_the_parameters(config: ModelConfig) -> None:
    """Another model with these weights computes the same; what can be recomputed is not stored."""
    model = build(config)
    state = model.state_dict()
    assert set(state) - {"head.weight"} == {key for key, _ in model.named_parameters()} - {"head.weight"}
    other = GPT(config, VOCABULARY).double().eval()
    other.load_state_dict(state)
    assert torch.equal(other(draw(2, 7)), model(draw(2, 7)))


# What is refused


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        (torch.zeros(1, 8, dtype=torch.int64), ["8", "7"]),
        (torch.zeros(1, 0, dtype=torch.int64), ["0"]),
        (torch.tensor([[0, 11, 3]]), ["11"]),
        (torch.tensor([[0, 3], [4, 500]]), ["500", "10"]),
        (torch.tensor([[0, -1, 3]]), ["-1", "10"]),
        (torch.zeros(3, dtype=torch.int64), ["(3,)"]),
        (torch.zeros(1, 3, 2, dtype=torch.int64), ["(1, 3, 2)"]),
        (torch.zeros(1, 3), ["float32"]),
        (torch.zeros(1, 3, dtype=torch.bool), ["bool"]),
        (torch.zeros(1, 3, dtype=torch.uint8), ["uint8"]),
    ],
    ids=[
        "long",
        "empty",
        "above",
        "far-above",
        "negative",
        "one-dimension",
        "three-dimensions",
        "float",
        "bool",
        "uint8",
    ],
)
def test_wrong_tokens_are_named(tokens: torch.Tensor, named: list[str], positions: str) -> None:
    model = build(tiny(positions=positions))
    with pytest.raises(ValueError) as caught:
        model(tokens)
    message = str(caught.value)
    assert "\n" not in message
    for word in named:
        assert word in message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heads": 5}, ["model.heads=5", "model.dim=12"]),
        ({"heads": 24}, ["model.heads=24", "model.dim=12"]),
        ({"heads": 4, "positions": "rotary"}, ["rotary", "model.heads=4", "model.dim=12", "3"]),
        ({"heads": 12, "positions": "rotary"}, ["rotary", "1"]),
        (
            {"heads": 2, "positions": "rotary", "key_offset": True},
            ["multiple of 4", "key_offset", "model.heads=2", "6"],
        ),
        ({"heads": 5, "positions": "rotary", "key_offset": True}, ["must divide model.dim=12: 1;"]),
        ({"layers": 0}, ["model.layers=0"]),
        ({"dropout": 1.0}, ["model.dropout=1"]),
        ({"norm": "layer_norm"}, ["model.norm=layer_norm", "layernorm", "rmsnorm"]),
    ],
)
def test_wrong_configuration_is_named(changes: dict, named: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        tiny(**changes)
    message = str(caught.value)
    assert "\n" not in message
    for word in named:
        assert word in message


def test_odd_heads_are_fine_without_rotary() -> None:
    assert tiny(heads=4, positions="learned").head_dim == 3


# Starting from a trained model


@pytest.mark.parametrize("config", SOME, ids=name)
@pytest.mark.parametrize("characters", ["bdf", "abdf", "bcdf", "bdfg", "abcdefg"], ids=str)
def test_a_larger_vocabulary_leaves_the_old_logits_as_they_are(config: ModelConfig, characters: str) -> None:
    """Whatever is added before, between and after the old characters; a new one gets the mean of their logits."""
    trained, model = build(config, vocabulary=3), build(config, seed=1, vocabulary=len(characters))
    init_from(model, trained, torch.tensor([characters.index(old) for old in "bdf"]))
    tokens = draw(4, config.context, vocabulary=3)
    renumbered = torch.tensor([[characters.index("bdf"[token]) for token in row] for row in tokens])
    with torch.no_grad():
        old, new = trained(tokens), model(renumbered)
    assert old.std() > 0.05
    for place, character in enumerate(characters):
        expected = old[..., "bdf".index(character)] if character in "bdf" else old.mean(-1)
        torch.testing.assert_close(new[..., place], expected, rtol=0, atol=1e-12)
    dearer = new.logsumexp(-1) - old.logsumexp(-1)
    assert dearer.max() <= math.log(len(characters) / 3) + 1e-12, "what is promised of the loss of old text"


@pytest.mark.parametrize(("positions", "context"), [("learned", 4), ("rotary", 4), ("rotary", 20)])
def test_another_context_leaves_the_logits_as_they_are(positions: str, context: int) -> None:
    config = tiny(positions=positions, context=7)
    trained, model = build(config), build(replace(config, context=context), seed=1)
    init_from(model, trained, torch.arange(VOCABULARY))
    tokens = draw(2, min(context, 7))
    torch.testing.assert_close(model(tokens), trained(tokens), rtol=0, atol=1e-12)


def test_starting_from_a_model_leaves_it_alone() -> None:
    trained, model = build(tiny(tied=True)), build(tiny(tied=True), seed=1, vocabulary=VOCABULARY + 2)
    before = copy.deepcopy(trained.state_dict())
    init_from(model, trained, torch.arange(VOCABULARY) + 1)
    assert model.head.weight is model.embedding.weight
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    for key, value in trained.state_dict().items():
        assert torch.equal(value, before[key]), key
