"""Export to a folder that `transformers` loads, if it has an equivalent architecture.

Learned positions are GPT-2's; sinusoidal ones or none are written as learned ones. Rotary positions are Starcoder2's,
with or without a window. Neither has ALiBi, key_offset, token_shift, conv_taps or qk_norm.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from base.errors import InputError
from base.options import shown
from gpt.config import NORM_EPS, ModelConfig
from gpt.export.parity import check_tables, largest_difference
from gpt.model import GPT
from gpt.positions import BASE

State = dict[str, Tensor]


def write_hf(model: GPT, meta: dict[str, Any], path: Path) -> float:
    """Write a folder for `AutoModelForCausalLM` and `AutoTokenizer`; return the `largest_difference` of its logits.

    Raises:
        InputError: transformers has no equivalent architecture; names all options that it lacks.
    """
    needed, convert = nearest(model.config)
    check(model.config, needed)
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        config, state = convert(model)
        theirs = AutoModelForCausalLM.from_config(config)
        biases = {key: torch.zeros_like(value) for key, value in theirs.state_dict().items() if key.endswith("bias")}
        theirs.load_state_dict(biases | state)
        # The sampling defaults of sample.py; no token ends a text, so its length is half of the context.
        length = (model.config.context + 1) // 2
        theirs.generation_config = GenerationConfig(
            do_sample=True,
            temperature=0.8,
            top_k=0,
            max_new_tokens=length,
            use_cache=model.config.attention_window > 1,  # with a window of 1, their cache would be unlimited
        )
        theirs.save_pretrained(path)
        write_tokenizer(meta["vocabulary"], model.config.context, path)
        loaded = AutoModelForCausalLM.from_pretrained(path)
        return largest_difference(model, lambda tokens: loaded(tokens).logits)
    finally:
        if bars:
            logging.enable_progress_bar()


def nearest(config: ModelConfig) -> tuple[dict[str, Any], Callable[[GPT], tuple[Any, State]]]:
    """Choose the most similar architecture: the options that it needs, and the function that converts to it."""
    needed: dict[str, Any] = {"norm": "layernorm", "qk_norm": False, "key_offset": False, "token_shift": False}
    needed["conv_taps"] = 1
    if config.positions == "rotary":
        return needed, starcoder2
    positions = "learned" if config.positions == "alibi" else config.positions
    window = config.window if config.attention_window == config.context else None  # one of the whole context is none
    return needed | {"positions": positions, "window": window}, gpt2


def check(config: ModelConfig, needed: dict[str, Any]) -> None:
    """Raise `InputError` with every option that has another value than the needed one."""
    wrong = [
        f"model.{key}={shown(getattr(config, key))} (must be {shown(value)})"
        for key, value in needed.items()
        if getattr(config, key) != value
    ]
    if wrong:
        raise InputError(f"--to hf: no equivalent architecture in transformers: {', '.join(wrong)}")


def gpt2(model: GPT) -> tuple[Any, State]:
    """Convert to GPT-2: the same layout, with the matrices of the blocks transposed, and learned positions."""
    from transformers import GPT2Config

    ours = model.config
    config = GPT2Config(
        n_positions=ours.context,
        n_embd=ours.dim,
        n_layer=ours.layers,
        n_head=ours.heads,
        activation_function=ours.activation,
        resid_pdrop=ours.dropout,
        embd_pdrop=ours.dropout,
        attn_pdrop=ours.dropout,
        layer_norm_epsilon=NORM_EPS,
        **common(model),
    )
    names = {
        "embedding": "transformer.wte", "position_embedding": "transformer.wpe", "norm": "transformer.ln_f",
        "blocks": "transformer.h", "norm1": "ln_1", "attention.qkv": "attn.c_attn", "attention.proj": "attn.c_proj",
        "norm2": "ln_2", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj",
    }  # fmt: skip
    state = renamed(model, names)
    if ours.positions != "learned":
        check_tables(model, ours.dim)
    if ours.positions == "none":
        state["transformer.wpe.weight"] = torch.zeros(ours.context, ours.dim)
    if ours.positions == "sinusoidal":
        state["transformer.wpe.weight"] = model.sinusoids(ours.context)
    return config, {key: value.T if ".c_" in key and value.ndim == 2 else value for key, value in state.items()}


def starcoder2(model: GPT) -> tuple[Any, State]:
    """Convert to Starcoder2, whose sliding window is the window rule of gpt/inference/decoder.py, for any length."""
    from transformers import Starcoder2Config

    ours = model.config
    config = Starcoder2Config(
        hidden_size=ours.dim,
        intermediate_size=4 * ours.dim,
        num_hidden_layers=ours.layers,
        num_attention_heads=ours.heads,
        num_key_value_heads=ours.heads,
        hidden_act=ours.activation,
        max_position_embeddings=ours.context,
        norm_epsilon=NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
        sliding_window=ours.attention_window,
        attention_dropout=ours.dropout,
        residual_dropout=ours.dropout,
        embedding_dropout=ours.dropout,
        use_bias=ours.bias,
        **common(model),
    )
    names = {
        "embedding": "model.embed_tokens", "norm": "model.norm", "blocks": "model.layers",
        "norm1": "input_layernorm", "attention.qkv": "self_attn.qkv", "attention.proj": "self_attn.o_proj",
        "norm2": "post_attention_layernorm", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj",
    }  # fmt: skip
    state = renamed(model, names)
    for key in [key for key in state if ".qkv." in key]:
        for name, part in zip("qkv", state.pop(key).chunk(3), strict=True):
            state[key.replace(".qkv.", f".{name}_proj.")] = part
    return config, state


def common(model: GPT) -> dict[str, Any]:
    """Return the arguments of every transformers configuration: no token is special."""
    return {
        "vocab_size": model.vocabulary,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": model.config.tied,
    }


def renamed(model: GPT, names: dict[str, str]) -> State:
    """Rename the weights: `names` of modules of the model, of its blocks and of modules within a block."""
    state = {}
    for key, value in model.state_dict().items():
        module, _, kind = key.rpartition(".")
        if module.startswith("blocks."):
            _, layer, inner = module.split(".", 2)
            state[f"{names['blocks']}.{layer}.{names[inner]}.{kind}"] = value
        else:
            state[f"{names.get(module, 'lm_head')}.{kind}"] = value
    return state


def write_tokenizer(vocabulary: dict[str, Any], context: int, path: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; a character outside the vocabulary is an error there."""
    if vocabulary["kind"] == "byte":
        # ByteLevel writes bytes as GPT-2 does: printable ones as themselves, the others from U+0100 on.
        printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printed]
        letters = {chr(byte): byte for byte in printed} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
        model: dict[str, Any] = {"type": "BPE", "vocab": letters, "merges": []}
        split: dict[str, Any] = {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False
        }  # fmt: skip
        decoder = split
    else:
        letters = {letter: token for token, letter in enumerate(vocabulary["characters"])}
        model = {"type": "WordLevel", "vocab": letters, "unk_token": "no such character"}
        split = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
        decoder = {"type": "Fuse"}
    described: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": split, "post_processor": None, "decoder": decoder, "model": model,
    }  # fmt: skip
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    for name, contents in (("tokenizer.json", described), ("tokenizer_config.json", settings)):
        (path / name).write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
