"""Export to a folder that `transformers` loads, if transformers has an equivalent architecture.

Models with rotary positions become Starcoder2, with or without an attention window; all others become GPT-2. GPT-2 has
learned positions, so sinusoidal ones are written as a learned table, and `positions=none` as a table of zeros. Neither
architecture has ALiBi, key_offset, token_shift, conv_taps or qk_norm.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from base.errors import InputError
from base.options import spell
from gpt.config import NORM_EPS, ModelConfig
from gpt.export.parity import check_table, largest_difference
from gpt.model import GPT
from gpt.positions import BASE

State = dict[str, Tensor]


def write_hf(model: GPT, meta: dict[str, Any], path: Path) -> float:
    """Write a folder for `AutoModelForCausalLM` and `AutoTokenizer`."""
    needed, convert = nearest(model.config)
    check(model.config, needed)
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    config, state = convert(model)
    theirs = AutoModelForCausalLM.from_config(config)
    # transformers has biases where a model without biases has none: those are zero.
    zeros = {key: torch.zeros_like(value) for key, value in theirs.state_dict().items() if key.endswith("bias")}
    theirs.load_state_dict(zeros | state)
    # The sampling defaults of sample.py. No token ends a text, so the length is limited to half of the context.
    theirs.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.8,
        top_k=0,
        max_new_tokens=(model.config.context + 1) // 2,
        use_cache=model.config.attention_window > 1,  # transformers does not limit the cache of a window of 1
    )
    theirs.save_pretrained(path)
    write_tokenizer(meta["vocabulary"], model.config.context, path)
    loaded = AutoModelForCausalLM.from_pretrained(path)
    return largest_difference(model, lambda tokens: loaded(tokens).logits)


def nearest(config: ModelConfig) -> tuple[dict[str, Any], Callable[[GPT], tuple[Any, State]]]:
    """Choose the most similar architecture; return the option values it needs and the function that converts to it."""
    needed = {"norm": "layernorm", "qk_norm": False, "key_offset": False, "token_shift": False, "conv_taps": 1}
    if config.positions == "rotary":
        return needed, starcoder2
    positions = "learned" if config.positions == "alibi" else config.positions
    # An attention window of the whole context is none.
    window = config.window if config.attention_window == config.context else None
    return needed | {"positions": positions, "window": window}, gpt2


def check(config: ModelConfig, needed: dict[str, Any]) -> None:
    """Raise `InputError` that names every option whose value differs from the needed one."""
    wrong = [
        f"model.{key}={spell(getattr(config, key))} (must be {spell(value)})"
        for key, value in needed.items()
        if getattr(config, key) != value
    ]
    if wrong:
        raise InputError(f"--to hf: no equivalent architecture in transformers: {', '.join(wrong)}")


def gpt2(model: GPT) -> tuple[Any, State]:
    """Convert to GPT-2: its blocks store transposed matrices, and its positions are learned."""
    from transformers import GPT2Config

    ours = model.config
    config = GPT2Config(
        n_positions=ours.context, n_embd=ours.dim, n_layer=ours.layers, n_head=ours.heads,
        activation_function=ours.activation, layer_norm_epsilon=NORM_EPS,
        resid_pdrop=ours.dropout, embd_pdrop=ours.dropout, attn_pdrop=ours.dropout,
        vocab_size=model.vocabulary, bos_token_id=None, eos_token_id=None, tie_word_embeddings=ours.tied,
    )  # fmt: skip
    names = {
        "embedding": "transformer.wte", "position_embedding": "transformer.wpe", "norm": "transformer.ln_f",
        "blocks": "transformer.h", "norm1": "ln_1", "attention.qkv": "attn.c_attn", "attention.proj": "attn.c_proj",
        "norm2": "ln_2", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj",
    }  # fmt: skip
    state = renamed(model, names)
    if ours.positions != "learned":
        check_table(model, ours.dim)
        sinusoidal = ours.positions == "sinusoidal"
        table = model.sinusoids(ours.context) if sinusoidal else torch.zeros(ours.context, ours.dim)
        state["transformer.wpe.weight"] = table  # (context, C)
    return config, {key: value.T if ".c_" in key and value.ndim == 2 else value for key, value in state.items()}


def starcoder2(model: GPT) -> tuple[Any, State]:
    """Convert to Starcoder2, whose sliding window treats long texts as gpt/inference/decoder.py does."""
    from transformers import Starcoder2Config

    ours = model.config
    config = Starcoder2Config(
        hidden_size=ours.dim, intermediate_size=4 * ours.dim, num_hidden_layers=ours.layers,
        num_attention_heads=ours.heads, num_key_value_heads=ours.heads, hidden_act=ours.activation,
        max_position_embeddings=ours.context, rope_parameters={"rope_type": "default", "rope_theta": BASE},
        sliding_window=ours.attention_window, norm_epsilon=NORM_EPS, use_bias=ours.bias,
        attention_dropout=ours.dropout, residual_dropout=ours.dropout, embedding_dropout=ours.dropout,
        vocab_size=model.vocabulary, bos_token_id=None, eos_token_id=None, tie_word_embeddings=ours.tied,
    )  # fmt: skip
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


def renamed(model: GPT, names: dict[str, str]) -> State:
    """Return the state dict with new names for `blocks`, the modules within a block and the other modules.

    The output head has no entry in `names`: it becomes `lm_head` in both architectures.
    """

    def rename(key: str) -> str:
        module, _, kind = key.rpartition(".")
        if not module.startswith("blocks."):
            return f"{names.get(module, 'lm_head')}.{kind}"
        _, layer, inner = module.split(".", 2)
        return f"{names['blocks']}.{layer}.{names[inner]}.{kind}"

    return {rename(key): value for key, value in model.state_dict().items()}


def write_tokenizer(vocabulary: dict[str, Any], context: int, path: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; transformers fails on a character outside the vocabulary."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    if vocabulary["kind"] == "byte":
        tokenizer = Tokenizer(models.BPE({letter: byte for byte, letter in bytes_to_unicode().items()}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        letters = {letter: token for token, letter in enumerate(vocabulary["characters"])}
        tokenizer = Tokenizer(models.WordLevel(letters, unk_token="no such character"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=context, clean_up_tokenization_spaces=False
    ).save_pretrained(path)
