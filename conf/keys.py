"""The names that a command line may set: keys with their types, defaults and resume rules, and groups of presets."""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from base.errors import InputError, most_similar
from base.options import allowed
from conf.schema import Config, SearchConfig
from gpt.config import ModelConfig

CONF = Path(__file__).parent
FOLDERS: list[Path] = []  # of `--config-dir`


# What nanoGPT, transformers and Lightning call our keys.
ELSEWHERE = {
    "n_layer": "model.layers", "num_hidden_layers": "model.layers", "n_head": "model.heads",
    "num_attention_heads": "model.heads", "n_embd": "model.dim", "d_model": "model.dim",
    "hidden_size": "model.dim", "block_size": "model.context", "max_position_embeddings": "model.context",
    "batch_size": "data.batch", "gradient_accumulation_steps": "data.micro_batch",
    "accumulate_grad_batches": "data.micro_batch", "dataset": "data.path", "text": "data.path",
    "learning_rate": "optim.lr", "warmup_iters": "optim.warmup", "warmup_steps": "optim.warmup",
    "grad_clip": "optim.clip", "gradient_clip_val": "optim.clip", "max_grad_norm": "optim.clip",
    "beta1": "optim.betas", "beta2": "optim.betas", "max_iters": "trainer.max_steps",
    "max_epochs": "trainer.max_steps", "epochs": "trainer.max_steps", "num_train_epochs": "trainer.max_steps",
    "eval_interval": "trainer.val_check_interval", "eval_steps": "trainer.val_check_interval",
    "device": "trainer.accelerator", "gpus": "trainer.devices", "dtype": "trainer.precision",
    "max_time": "minutes", "time": "minutes", "out_dir": "name", "output_dir": "name", "ckpt_path": "resume",
}  # fmt: skip


@dataclass(frozen=True)
class Key:
    """A key of the configuration, such as `optim.lr`, as the dataclass field that it sets describes it."""

    kind: Any  # the type annotation of the field
    default: Any  # may be `auto`
    metadata: Mapping[str, Any]  # from `base.options.option`
    on_resume: str

    @property
    def allowed(self) -> str:
        return allowed(self.kind, self.metadata)


def _keys(
    kind: type, prefix: str = "", rule: str = "allow", values: Any = None
) -> Iterator[tuple[str, Key]]:
    """Yield (name, key) for each option in the dataclass `kind` and in those that it contains.

    `rule` applies to options without `on_resume`, and `values`, an instance of `kind`, has the
    defaults if they are not those of the fields.
    """
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = prefix + field.name
        on_resume = field.metadata.get("on_resume") or rule
        value = field.default_factory() if callable(field.default_factory) else field.default
        if dataclasses.is_dataclass(value):
            yield from _keys(type(value), f"{name}.", on_resume, value)
        elif field.metadata:  # a field without is no option: `space` of a search
            default = getattr(values, field.name) if values else value
            yield name, Key(hints[field.name], default, field.metadata, on_resume)


KEYS = dict(_keys(Config))  # of a run
SEARCH_KEYS = dict(_keys(SearchConfig, "hparams_search."))


def is_launch(key: str) -> bool:
    return key in KEYS and KEYS[key].metadata.get("launch", False)


def is_verbatim(key: str) -> bool:
    return key in KEYS and KEYS[key].metadata.get("verbatim", False)


def has_auto(value: Any) -> bool:
    """Return whether a value, or an argument of a plug-in, is `auto`."""
    if isinstance(value, Mapping):
        return any("auto" in arguments.values() for arguments in value.values())
    return value == "auto"


def add_folder(name: str) -> None:
    """Make the presets in the folder `name`, which has a folder for each group as conf/ has, available."""
    folder = Path(name).absolute()
    if not name or not folder.is_dir():
        raise InputError(f"--config-dir {name}: no such folder")
    files = [file for group in groups() for file in folder.glob(f"{group}/*.yaml")]
    if not files:
        raise InputError(
            f"--config-dir {name}: contains no preset, such as {Path(name) / 'model/mine.yaml'}"
        )
    for file in files:
        if (CONF / file.relative_to(folder)).exists():  # which Hydra would use instead
            raise InputError(f"{file}: conf/ has a preset of this name; rename the file")
    if folder not in FOLDERS:
        FOLDERS.append(folder)


def groups() -> dict[str, list[str]]:
    """Return the names of the presets by group."""
    files = [file for folder in (CONF, *FOLDERS) for file in folder.glob("*/*.yaml")]
    names = [folder.name for folder in CONF.iterdir() if any(folder.glob("*.yaml"))]
    return {
        group: sorted({file.stem for file in files if file.parent.name == group})
        for group in sorted(names)
    }


def choice_values(group: str, choice: str) -> dict[str, Any]:
    """Return the settings in the file of a preset, without those that it inherits."""
    (file,) = (
        file for folder in (CONF, *FOLDERS) for file in folder.glob(f"{group}/{choice}.yaml")
    )
    return OmegaConf.to_container(OmegaConf.load(file))  # type: ignore[return-value]


def nearest_key(key: str, others: Iterable[str] = ()) -> str:
    """Return the end of an error line, such as "; nearest: optim.lr" for `LR`, or "" if no name is similar."""
    group, _, last = key.replace("-", "_").rpartition(".")
    names = [*KEYS, *SEARCH_KEYS, *groups(), *others]
    if last in ELSEWHERE:
        return f"; nearest: {ELSEWHERE[last]}"
    # of the keys with the same last component, the first one counts
    full = {name.rpartition(".")[2]: name for name in reversed(names)}
    full |= {name: name for name in names}
    in_group = {last: name for last, name in full.items() if name.startswith(f"{group}.")}
    close = most_similar(last, in_group if group in groups() else full)
    return f"; nearest: {full[close]}" if close else ""


def presets() -> list[ModelConfig]:
    """Return the presets of `model=` that set only layers, heads and width, from small to large."""
    files = [choice_values("model", name) for name in groups()["model"]]
    sizes = [
        ModelConfig(**values) for values in files if values.keys() == {"layers", "heads", "dim"}
    ]
    return sorted(sizes, key=lambda size: size.layers * size.dim**2)
