"""Export to a folder for transformers: weights, configuration, tokenizer, and the model's code.

Source of the format of tokenizer.json: tokenizers (https://github.com/huggingface/tokenizers),
"Components".
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.tokenizer import Tokenizer, tokenizer_from

if TYPE_CHECKING:
    from gpt.model import GPT

ROOT = Path(__file__).parents[2]
WRAPPER = Path(__file__).with_name("hf_model") / "modeling_chargpt.py"
OURS = re.compile(r"^( *from )(gpt|base)\.(\w+) import", re.MULTILINE)
# torch's instead of ours, which registers an operator: two folders in one process would do so
# twice
DROPOUT = {
    "from gpt.dropout import Dropout\n": "from torch.nn import Dropout\n",
    "from gpt.dropout import dropout as drop\n": "from torch.nn.functional import dropout as drop\n",
}
HEADER = (
    "# Part of chargpt. Copyright (c) 2026 the chargpt authors. SPDX-License-Identifier: MIT\n"
)


def write(model: "GPT", meta: dict[str, Any], path: Path) -> None:
    """Write weights, configuration, tokenizer and `code` into the empty folder `path`."""
    from safetensors.numpy import save

    from gpt.checkpoint import model_state

    shape = model.config
    module = WRAPPER.stem
    tokenizer = tokenizer_from(meta["vocabulary"])
    mark: list[int] = []
    ids: dict[str, int] = {}
    special: dict[str, str] = {}
    if meta["documents"]:
        end = meta["documents"]["end"]
        mark = tokenizer.encode(end).tolist()
        ids["pad_token_id"] = mark[-1]  # what `generate` appends to texts that have ended
        if len(mark) == 1:  # `Ended` in the wrapper finds a mark of several tokens
            ids |= {"bos_token_id": mark[0], "eos_token_id": mark[0]}
        # With a byte tokenizer, a special token would match the text that spells the byte instead
        # of the byte itself.
        if len(mark) == 1 and tokenizer.unit == "character":
            special = {"bos_token": end, "eos_token": end}
    # `net` is the attribute of the wrapper.
    state = {f"net.{name}": weight for name, weight in model_state(model.state_dict()).items()}
    if shape.tied:
        del state["net.head.weight"]
    (path / "model.safetensors").write_bytes(save(state, {"format": "pt"}))
    config = {
        "architectures": ["CharGPTForCausalLM"], "model_type": "chargpt", "dtype": "float32", "use_cache": False,
        "auto_map": {
            "AutoConfig": f"{module}.CharGPTConfig", "AutoModelForCausalLM": f"{module}.CharGPTForCausalLM",
        },
        "model_config": meta["model_config"], "vocab_size": model.vocabulary, "tie_word_embeddings": shape.tied,
        "hidden_size": shape.dim, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "end_mark": mark,
    }  # fmt: skip
    contents = {
        "config.json": config,
        "generation_config.json": {"use_cache": False} | ids,
        "tokenizer.json": describe(tokenizer, mark),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **special,
        },
    }
    texts = code()
    for name, content in contents.items():
        texts[name] = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    for name, text in texts.items():
        (path / name).write_text(text, encoding="utf-8", newline="\n")


def describe(tokenizer: Tokenizer, mark: list[int]) -> dict[str, Any]:
    """Return the contents of tokenizer.json, whose texts begin with the tokens `mark`, as with a BOS token.

    The tokenizer leaves out characters outside the vocabulary.
    """
    split: dict[str, Any] = {
        "type": "Split",
        "pattern": {"Regex": r"[\s\S]"},
        "behavior": "Isolated",
        "invert": False,
    }
    normalizer: dict[str, Any] | None
    if tokenizer.unit == "byte":
        # The characters of the bytes in tokenizers' `ByteLevel`, as GPT-2's `bytes_to_unicode`.
        visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
        others = iter(range(0x100, 0x200))
        names = [chr(value if value in visible else next(others)) for value in range(256)]
        normalizer = None
        decoder = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        # A ByteLevel object serves as a pre-tokenizer, too.
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [decoder, split]}
    else:
        names = tokenizer.names
        known = "".join(f"\\x{{{ord(name):x}}}" for name in names)
        normalizer = {"type": "Replace", "pattern": {"Regex": f"[^{known}]"}, "content": ""}
        decoder = {"type": "Fuse"}
        pre_tokenizer = split
    vocabulary = {name: token for token, name in enumerate(names)}
    post_processor: dict[str, Any] | None = None
    if mark:
        name = "end mark"  # in this template only
        begin = {"SpecialToken": {"id": name, "type_id": 0}}
        first = {"Sequence": {"id": "A", "type_id": 0}}
        second = {"Sequence": {"id": "B", "type_id": 0}}
        spelled = [names[token] for token in mark]
        post_processor = {
            "type": "TemplateProcessing",
            "single": [begin, first],
            "pair": [begin, first, begin, second],
            "special_tokens": {name: {"id": name, "ids": mark, "tokens": spelled}},
        }
    # `unk_token` must be there, but what is not in the vocabulary never reaches the model.
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }  # fmt: skip


def code() -> dict[str, str]:
    """Return the source of `WRAPPER` and of every file of this project that it imports, by name, for one folder."""
    sources: dict[str, str] = {}
    waiting = [WRAPPER]
    while waiting:
        path = waiting.pop()
        source = path.read_text("utf-8")
        for ours, torchs in DROPOUT.items():
            source = source.replace(ours, torchs)
        sources[path.name] = HEADER + OURS.sub(r"\1.\3 import", source)
        for _, package, name in OURS.findall(source):
            if f"{name}.py" not in sources:
                waiting.append(ROOT / package / f"{name}.py")
    # From a local folder, transformers loads only the files that the wrapper itself imports.
    others = sorted(name.removesuffix(".py") for name in sources if name != WRAPPER.name)
    for name in others:
        sources[WRAPPER.name] += f"from .{name} import __name__ as _  # noqa: E402\n"
    return sources
