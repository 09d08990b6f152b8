"""The names that a command line may set: keys with their types, defaults and resume rules, and groups of presets."""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from base.errors import most_similar
from base.options import allowed
from base.processes import command
from conf.schema import Config, SearchConfig

CONF = Path(__file__).parent
FOLDERS: list[Path] = []  # of `--config-dir`, each with folders of groups, as conf/ has them


# What nanoGPT, transformers and Lightning call our keys, or what is done here by the key.
ELSEWHERE = {
    "model.layers": "n_layer num_hidden_layers",
    "model.heads": "n_head num_attention_heads",
    "model.dim": "n_embd d_model hidden_size",
    "model.context": "block_size max_position_embeddings",
    "data.path": "text dataset",
    "data.batch": "batch_size per_device_train_batch_size",
    "data.micro_batch": "gradient_accumulation_steps accumulate_grad_batches",
    "data.overfit": "overfit_batches",
    "data.val_tokens": "limit_val_batches eval_iters",
    "data.split": "limit_test_batches",
    "optim.lr": "learning_rate",
    "optim.warmup": "warmup_iters warmup_steps",
    "optim.betas": "beta1 beta2 adam_beta1 adam_beta2",
    "optim.clip": "grad_clip max_grad_norm gradient_clip_val gradient_clip_algorithm",
    "trainer.max_steps": "max_iters max_epochs epochs num_train_epochs limit_train_batches "
    "reload_dataloaders_every_n_epochs lr_decay_iters",
    "trainer.more.min_steps": "min_epochs",
    "trainer.val_check_interval": "eval_interval eval_steps check_val_every_n_epoch",
    "trainer.checkpoint_minutes": "save_steps enable_checkpointing",
    "trainer.log_every_n_steps": "log_interval logging_steps enable_progress_bar",
    "trainer.precision": "dtype fp16 bf16 plugins",
    "trainer.accelerator": "device",
    "trainer.devices": "gpus strategy use_distributed_sampler",
    "watch.sample_length": "limit_predict_batches",
    "debug": "fast_dev_run",
    "logger": "barebones wandb_log",
    "minutes": "max_time time",
    "name": "out_dir output_dir default_root_dir model_registry",
    "resume": "ckpt_path resume_from_checkpoint",
}


class Key(typing.NamedTuple):
    """A key of the configuration, such as `optim.lr`, as the dataclass field that it sets describes it."""

    kind: Any  # the type annotation of the field
    default: Any  # may be `auto`
    metadata: Mapping[str, Any]  # from `base.options.option`
    on_resume: str

    @property
    def allowed(self) -> str:
        return allowed(self.kind, self.metadata)


def _keys(config: Any, prefix: str = "", rule: str = "allow") -> Iterator[tuple[str, Key]]:
    """Yield (name, key) for each option of a configuration; `rule` applies to options without `on_resume`."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name = prefix + field.name
        on_resume = field.metadata.get("on_resume") or rule
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _keys(value, f"{name}.", on_resume)
        elif field.metadata:  # a field without is no option: `space` of a search
            yield name, Key(hints[field.name], value, field.metadata, on_resume)


KEYS = dict(_keys(Config()))  # of a run
SEARCH_KEYS = dict(_keys(SearchConfig(), "hparams_search."))


LAUNCH = {name for name, key in KEYS.items() if key.metadata.get("launch")}
VERBATIM = {name for name, key in KEYS.items() if key.metadata.get("verbatim")}
# free on resume, which compares the text's fingerprint
PATHS = ("data.path", "data.validation", "data.test")


def with_folders(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a command to which the presets of this command's `--config-dir` are available."""
    return [*(f"--config-dir={folder}" for folder in FOLDERS), *arguments]


def train_command(*arguments: str) -> str:
    """Return a command of train.py to print, to which the presets of this command are available."""
    return command("python", "train.py", *with_folders(arguments))


def groups() -> dict[str, list[str]]:
    """Return the names of the presets by group."""
    files = [file for folder in (CONF, *FOLDERS) for file in folder.glob("*/*.yaml")]
    names = dict[str, list[str]]()
    for file in sorted(files):
        names.setdefault(file.parent.name, []).append(file.stem)
    return names


def nearest_key(key: str, others: Iterable[str] = ()) -> str:
    """Return the end of an error line, such as "; nearest: optim.lr" for `LR`, or "" if no name is similar."""
    group, _, last = key.replace("-", "_").rpartition(".")
    names = [*KEYS, *SEARCH_KEYS, *groups(), *others]
    for ours, theirs in ELSEWHERE.items():
        if last in theirs.split():
            return f"; nearest: {ours}"
    if group in groups():
        names = [name for name in names if name.startswith(f"{group}.")]
    # of the keys with the same last component, the first one counts
    full = {name.rpartition(".")[2]: name for name in reversed(names)}
    full |= {name: name for name in names}
    close = most_similar(last, full)
    return f"; nearest: {full[close]}" if close else ""
