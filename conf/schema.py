"""The configuration of `train.py` as dataclasses: every key with its default, meaning and range. Loads no torch."""

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from base.errors import InputError
from base.options import check, check_value, option, spell
from data.config import DataConfig
from gpt.config import ModelConfig, OptimConfig

# keys that map the names of files in conf/ to classes and their arguments
PLUGINS = ("callbacks", "logger")
PRECISIONS = ("auto", "32-true", "bf16-mixed")
MONITORED = ("val/loss", "val/bpc", "val/bpb")  # what each validation logs
# The arguments of `L.Trainer` that `trainer.more` accepts, because they break no promise.
MORE: dict[str, tuple[Any, dict[str, int]]] = {  # name -> type and range
    "min_steps": (int | None, {"least": 1}),
    "num_sanity_val_steps": (int | None, {"least": -1}),
    "sync_batchnorm": (bool | None, {}),
    "inference_mode": (bool | None, {}),
    "enable_model_summary": (bool | None, {}),
    "enable_autolog_hparams": (bool | None, {}),
}


@dataclass(frozen=True)
class TrainerConfig:
    """The options `trainer.*`, most of them arguments of `L.Trainer`."""

    max_steps: Any = option(
        1500, "optimizer steps; auto: 1500, fewer for a short text, or as many as fit into minutes", auto=int, least=1,
        most=10**9,
    )  # fmt: skip
    accelerator: str = option("auto", "device type", choices=("auto", "cpu", "gpu", "cuda", "mps"))
    devices: Any = option(
        "auto",
        "number of devices, or list of indices such as [0,1]; auto: 1, or as many as torchrun or srun started",
    )
    num_nodes: Any = option(
        "auto",
        "number of machines; auto: those that torchrun or srun has started",
        auto=int,
        least=1,
    )
    timeout: float = option(
        600.0,
        "seconds to wait for a process that does not respond before the run ends",
        above=0,
        most=10**6,
    )
    precision: str = option(
        "auto", "precision; auto: bf16-mixed where it is faster, else 32-true", choices=PRECISIONS,
        on_resume="allow",
    )  # fmt: skip
    val_check_interval: Any = option(
        300, "steps between validations, samples and checkpoints; auto: 300, fewer for a short text or with minutes",
        auto=int, least=1, most=10**9,
    )  # fmt: skip
    checkpoint_minutes: float = option(
        5.0,
        "minutes between timed checkpoints; the first comes within 1 minute",
        above=0,
        most=525_600,
    )
    log_every_n_steps: int = option(10, "steps between logged values", least=1, most=10**9)
    deterministic: Any = option(
        False,
        "use deterministic kernels; true: fail at an operation without one; warn: only print its name",
        choices=("true", "false", "warn"),
        on_resume="allow",
    )
    benchmark: bool | None = option(
        None, "let cuDNN time its algorithms and use the fastest", on_resume="allow"
    )
    detect_anomaly: bool = option(False, "name the operation that made a gradient NaN; slow")
    profiler: str | None = option(
        None,
        "pytorch: profile a few steps by operator; print a table and write trace.json",
        choices=("pytorch",),
    )
    more: dict[str, Any] = option(
        {},
        "other arguments of Lightning's Trainer, such as trainer.more.min_steps=100",
        on_resume="allow",
    )

    def __post_init__(self) -> None:
        check(self, "trainer")
        for name, value in self.more.items():
            key = f"trainer.more.{name}"
            if name not in MORE:
                raise InputError(f"{key}: must be one of {', '.join(MORE)}")
            check_value(key, value, *MORE[name])
        if self.devices and isinstance(self.devices, list):
            check_value("trainer.devices", self.devices, list[int], {"least": 0})
        else:
            check_value("trainer.devices", self.devices, Any, {"auto": int, "least": 1})


@dataclass(frozen=True)
class WatchConfig:
    """The options `watch.*`, which do not change training: samples and plots of the model in TensorBoard."""

    pictures: bool = option(True, "plot attention at each validation (logger=tensorboard)")
    sample_length: int | None = option(
        None,
        "characters of each sample; null: 100 at validations, 250 at the end",
        least=1,
        most=10**6,
    )

    def __post_init__(self) -> None:
        check(self, "watch")


@dataclass(frozen=True)
class SearchConfig:
    """The options `hparams_search.*` of a hyper-parameter search with Optuna."""

    trials: int = option(
        20, "total number of trials, including those of earlier commands", least=1, most=10_000
    )
    seed: int = option(0, "random seed of Optuna's sampler", least=0, most=2**32 - 1)
    startup: int = option(5, "random trials before Optuna's sampler starts", least=1)
    # key -> its values or interval, in Hydra's grammar
    space: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self, "hparams_search")


@dataclass(frozen=True)
class Config:
    """The whole configuration of a run. `training.choosing.choose` replaces each `auto`.

    `callbacks` and `logger` map the name of a file in conf/ to a class (`_target_`) and its
    arguments.
    """

    name: str | None = option(
        None,
        "name of the run directory in runs/; null: generate a name",
        verbatim=True,
        launch=True,
    )
    seed: int = option(0, "random seed of weights, batches and dropout", least=0, most=2**32 - 1)
    resume: str | None = option(
        None,
        "continue a run: its directory, a checkpoint, or auto for the newest",
        verbatim=True,
        launch=True,
    )
    init_from: str | None = option(
        None,
        "start from the weights of a trained model: a run or a model file",
        on_resume="fixed",
        verbatim=True,
    )
    minutes: float | None = option(
        None,
        "time budget in minutes, start to end, or until the text is learned; sets trainer.max_steps",
        above=0,
        most=525_600,
        on_resume="fixed",
    )
    allow: list[str] = option(
        [], "keys that resume= may change although the result changes", launch=True
    )
    workers: int = option(
        1,
        "trials of a sweep (-m) or search to run at the same time; they share the CPU threads",
        least=1,
        launch=True,
    )
    threads: Any = option(
        "auto", "CPU threads; auto: OMP_NUM_THREADS, or the cores that other programs leave free", auto=int, least=1,
        most=4096,
    )  # fmt: skip
    compile: Any = option(
        "auto",
        "use torch.compile; auto: if it saves more time than it costs",
        choices=("auto", "true", "false"),
    )
    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(
            layers="auto", heads="auto", dim="auto", dropout="auto"
        ),
        metadata={"on_resume": "fixed"},
    )
    data: DataConfig = field(default_factory=lambda: DataConfig(batch="auto"))
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(
            lr="auto", muon_lr="auto", warmup="auto", weight_decay="auto"
        )
    )
    trainer: TrainerConfig = field(
        default_factory=lambda: TrainerConfig(max_steps="auto", val_check_interval="auto"),
        metadata={"on_resume": "free"},
    )
    watch: WatchConfig = field(default_factory=WatchConfig, metadata={"on_resume": "free"})
    callbacks: dict[str, Any] = field(default_factory=dict, metadata={"plugins": True})
    logger: dict[str, Any] = field(
        default_factory=dict, metadata={"plugins": True, "on_resume": "free"}
    )

    def __post_init__(self) -> None:
        check(self)
        # Hydra and YAML read true and false as booleans; store the word.
        object.__setattr__(self, "compile", spell(self.compile))
        for name, arguments in (self.callbacks | self.logger).items():
            check_value(name, arguments, dict, {})
            if str(arguments.get("_target_")).endswith(".EarlyStopping"):
                check_value(
                    f"callbacks.{name}.monitor",
                    arguments.get("monitor"),
                    str,
                    {"choices": MONITORED},
                )
                patience = arguments.get("patience", 0)  # in validations
                check_value(f"callbacks.{name}.patience", patience, Any, {"auto": int, "least": 0})
        if self.name is None:
            return
        parts = self.name.split("/")
        # a part that begins with a dot is hidden or, such as "..", elsewhere
        is_name = all(re.fullmatch(r"[^.\\][^\\]*", part) and part.isprintable() for part in parts)
        if not is_name or len(parts) > 2 or max(len(os.fsencode(part)) for part in parts) > 200:
            raise InputError(
                f"name={self.name[:40]!r}: must be a name of 1 to 200 bytes in runs/, or SWEEP/TRIAL"
            )


def to_dict(config: Config) -> dict[str, Any]:
    """Return a configuration as nested dicts, without the classes (`_target_`) of callbacks and loggers."""
    values = dataclasses.asdict(config)
    for group in PLUGINS:
        for arguments in values[group].values():
            arguments.pop("_target_", None)
    return values


def by_key(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration, or nested dicts, as one dict, such as {"optim.lr": 0.003}; free ones stay dicts."""
    if isinstance(config, Config):
        config = to_dict(config)
    values = dict[str, Any]()
    for key, value in config.items():
        if isinstance(value, dict) and key not in (*PLUGINS, "more"):
            values |= {f"{key}.{inner}": setting for inner, setting in by_key(value).items()}
        else:
            values[key] = value
    return values


def to_yaml(config: Config) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(to_dict(config)))
