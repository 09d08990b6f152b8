"""To safetensors and back: the weights in one file, all else in a JSON file beside it."""

import json
from pathlib import Path
from typing import Any

from conf.fields import one_line
from gpt.archive import REQUIRED, CheckpointError, check_parts, check_plain
from gpt.checkpoint import build
from gpt.model import GPT


def write_safetensors(model: GPT, meta: dict[str, Any], path: Path) -> None:
    """Write PATH.safetensors with the weights under their names in `GPT`, and PATH.json with the rest of a checkpoint.

    The format knows no shared tensors: of tied weights, `embedding.weight` is there and `head.weight` is not.
    """
    from safetensors.torch import save

    state = model.state_dict()
    if model.config.tied:
        del state["head.weight"]
    path.write_bytes(save(state))  # save_file would let nobody else read it
    described = {key: meta[key] for key in REQUIRED if key != "state_dict"}
    path.with_suffix(".json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def read_safetensors(path: Path) -> tuple[GPT, dict[str, Any]]:
    """Read what `write_safetensors` wrote, believing nothing that `load_checkpoint` would not.

    Returns:
        As `load_checkpoint`.

    Raises:
        CheckpointError: a file is missing or damaged, or the two do not fit together.
    """
    from safetensors.torch import load_file

    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: is no .safetensors file")
    described = path.with_suffix(".json")
    for file in (path, described):
        if not file.is_file():
            raise CheckpointError(f"{file}: no such file; the weights are in NAME.safetensors, the rest in NAME.json")
    try:
        text = described.read_text("utf-8")
        contents = json.loads(text)
        check_plain(contents, len(text))
        file = path
        state: dict[str, Any] = load_file(path)
        if other := {str(value.dtype) for value in state.values()} - {"torch.float32"}:
            raise ValueError(f"numbers of {min(other)}, must be torch.float32")
    except Exception as error:  # such as a tensor of a type that torch does not know
        raise CheckpointError(f"{file}: is damaged or no such file ({one_line(error)[:120]})") from error
    contents = {key: contents[key] for key in REQUIRED if key in contents} | {"state_dict": state}
    check_parts(described, contents)
    if contents["model_config"].get("tied") is True and "embedding.weight" in state:
        state["head.weight"] = state["embedding.weight"]
    return build(path, contents)
