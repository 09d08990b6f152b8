"""Everything `train.py` can be told, as one typed whole. Imports nothing heavy."""

import dataclasses
import os
import re
import typing
from dataclasses import dataclass, field
from typing import Any

import yaml

from base.errors import InputError
from base.options import check, option, shown
from data.config import DataConfig
from gpt.config import ModelConfig, OptimConfig

# Arguments of `L.Trainer` that would break what this project promises, each with what to use instead.
REFUSED = {
    "accumulate_grad_batches": "use data.micro_batch",
    "gradient_clip_val": "use optim.clip",
    "gradient_clip_algorithm": "use optim.clip, which clips by norm",
    "max_epochs": "use trainer.max_steps",
    "min_epochs": "use trainer.max_steps",
    "max_time": "use minutes=N",
    "fast_dev_run": "use debug=fast",
    "limit_train_batches": "use trainer.max_steps",
    "limit_val_batches": "validation always covers its split; make the split smaller with data.split",
    "overfit_batches": "use debug=overfit",
    "check_val_every_n_epoch": "use trainer.val_check_interval, in steps",
    "reload_dataloaders_every_n_epochs": "batches are a function of the seed and the step",
    "use_distributed_sampler": "batches are a function of the seed and the step",
    "plugins": "use trainer.precision and trainer.strategy",
    "logger": "use the group logger=tensorboard|csv|wandb|none",
    "callbacks": "use the group callbacks=early_stopping|ema",
    "enable_checkpointing": "checkpoints are always kept",
    "enable_progress_bar": "progress is a bar in a terminal and plain lines elsewhere",
    "enable_model_summary": "train.py prints its own",
    "num_sanity_val_steps": "validation needs no rehearsal",
    "min_steps": "use trainer.max_steps",
    "barebones": "use logger=none",
    "limit_test_batches": "the test split is evaluated whole",
    "limit_predict_batches": "use sample.py --num-chars",
    "sync_batchnorm": "the model has no batch norm",
    "inference_mode": "evaluation needs no gradients",
    "model_registry": "checkpoints are kept in runs/<name>",
    "default_root_dir": "use name; runs are kept in runs/<name>",
    "enable_autolog_hparams": "every setting is logged",
}
MAX_YAML = 2**17  # characters of a config.yaml; most have 1,300
MAX_DEPTH, MAX_DIGITS = 20, 30  # in it: values inside each other; characters of a number
PRECISIONS = ("auto", "32-true", "bf16-mixed", "bf16-true", "64-true")


@dataclass
class TrainerConfig:
    """Where and how long a run trains: arguments of `L.Trainer`, and `timeout`."""

    max_steps: int = option(1200, "optimizer steps", least=1, most=10**9)
    accelerator: str = option("auto", "kind of device", choices=("auto", "cpu", "gpu", "cuda", "mps"))
    devices: Any = option("auto", "how many devices, or a list of their numbers")
    strategy: str = option(
        "auto", "how several devices work together; auto is ddp, fsdp shards the model", choices=("auto", "ddp", "fsdp")
    )
    num_nodes: int = option(1, "machines", least=1)
    timeout: float = option(600.0, "seconds after which devices give up one that is silent", above=0, most=10**6)
    precision: str = option(
        "auto", "arithmetic; auto takes bf16-mixed where it is fast", choices=PRECISIONS, on_resume="allow"
    )
    val_check_interval: int = option(300, "steps between validations, samples and checkpoints", least=1, most=10**9)
    log_every_n_steps: int = option(10, "steps between logged values", least=1, most=10**9)
    deterministic: Any = option(
        False,
        "refuse operations that differ from run to run; warn only names them",
        choices=("true", "false", "warn"),
        on_resume="allow",
    )
    benchmark: bool | None = option(None, "let cuDNN try which of its algorithms is fastest", on_resume="allow")
    detect_anomaly: bool = option(False, "say which operation made a gradient that is no number; slow")
    profiler: str | None = option(
        None,
        "time training by hook, by function, or by operator (a table, and trace.json)",
        choices=("simple", "advanced", "pytorch"),
    )

    def __post_init__(self) -> None:
        check(self, "trainer")
        devices = self.devices if isinstance(self.devices, list) else [self.devices]
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in devices)
        if self.devices != "auto" and not (
            devices and whole and (isinstance(self.devices, list) or self.devices >= 1) and min(devices) >= 0
        ):
            raise InputError(
                f"trainer.devices={shown(self.devices)}: must be auto, a whole number, at least 1, "
                "or a list of device numbers such as [0,1]"
            )
        if self.strategy == "fsdp" and self.precision == "64-true":
            raise InputError(
                "trainer.precision=64-true: must be auto, 32-true, bf16-mixed or bf16-true with trainer.strategy=fsdp"
            )


@dataclass
class WatchConfig:
    """What is drawn and written beside the curves; nothing of it changes what is learned."""

    pictures: bool = option(
        True, "at each validation draw attention, surprisal and calibration (with logger=tensorboard)"
    )
    attention_heads: list[str] = option(
        [], "heads whose attention is drawn, counted from 0, as in [L0H1,L3H0]; [] takes up to 4 across the layers"
    )
    histograms: bool = option(
        False, "at each validation write histograms of weights and activations (with logger=tensorboard)"
    )

    def __post_init__(self) -> None:
        check(self, "watch")
        for head in self.attention_heads:
            if not re.fullmatch(r"L(0|[1-9]\d{0,3})H(0|[1-9]\d{0,3})", head):
                raise InputError(
                    f"watch.attention_heads: {head} is no head; must be layer and head from 0, such as L0H1"
                )

    def heads(self) -> list[tuple[int, int]]:
        """Layer and head of each of `attention_heads`."""
        return [
            (int(layer), int(head))
            for layer, _, head in (each[1:].partition("H") for each in dict.fromkeys(self.attention_heads))
        ]


@dataclass
class EarlyStopping:
    """What can be typed about `callbacks=early_stopping`."""

    monitor: str = option("val/loss", "the value watched", choices=("val/loss", "val/bpc", "val/bpb"))
    patience: int = option(5, "validations without a better value", least=0)
    min_delta: float = option(0.0, "by how much a value must be better", least=0)


@dataclass
class Ema:
    """What can be typed about `callbacks=ema`."""

    decay: float = option(0.998, "share of the average that each step keeps", least=0, below=1)


@dataclass
class SearchConfig:
    """How a search for settings goes about (`hparams_search=`); its trials are runs like any other."""

    trials: int = option(20, "trials of the search in all, those of earlier calls included", least=1, most=10_000)
    seed: int = option(0, "seed of what is proposed", least=0, most=2**32 - 1)
    startup: int = option(5, "trials drawn at random, and not pruned by the median, before enough is known", least=1)
    pruner: str = option(
        "median", "what gives a hopeless trial up after a validation", choices=("median", "hyperband", "none")
    )
    space: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self, "hparams_search")


@dataclass
class Config:
    """The whole configuration of a run."""

    name: str | None = option(
        None, "directory of the run below runs/; null makes one up", literal=True, per_trial=False
    )
    seed: int = option(0, "seed of weights, batches and dropout", least=0, most=2**32 - 1)
    resume: str | None = option(
        None, "go on with a run: a run directory, a checkpoint, or auto", literal=True, per_trial=False
    )
    init_from: str | None = option(
        None, "start from a trained model: a run or a model file", on_resume="fixed", literal=True
    )
    minutes: float | None = option(
        None,
        "instead of trainer.max_steps: the best training that fits into so many minutes, start to end",
        above=0,
        most=525_600,
        on_resume="fixed",
    )
    allow: list[str] = option([], "keys that may differ from the run that is resumed", per_trial=False)
    workers: int = option(
        1, "trials of a sweep (-m) at a time; each gets its share of the CPU's threads", least=1, per_trial=False
    )
    compile: Any = option(
        "auto",
        "torch.compile the training step; graph also captures it whole as a CUDA graph, on one GPU",
        choices=("auto", "true", "false", "graph"),
    )
    model: ModelConfig = field(default_factory=ModelConfig, metadata={"on_resume": "fixed"})
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig, metadata={"on_resume": "free"})
    watch: WatchConfig = field(default_factory=WatchConfig, metadata={"on_resume": "free"})
    callbacks: dict[str, Any] = field(default_factory=dict)
    logger: dict[str, Any] = field(default_factory=dict, metadata={"on_resume": "free"})
    launcher: dict[str, Any] = field(default_factory=dict, metadata={"per_trial": False})

    def __post_init__(self) -> None:
        check(self)
        for group in ("callbacks", "logger", "launcher"):
            if not isinstance(getattr(self, group), dict):
                raise InputError(f"{group}: must be a mapping")
        # Hydra and YAML read true and false as truth values; what is kept is the word.
        self.compile = shown(self.compile)
        parts = [] if self.name is None else self.name.split("/")
        if len(parts) > 2 or any(part == "" or part.startswith(".") or set(part) & set("\\\0\n\r") for part in parts):
            raise InputError(f"name={self.name!r}: must be the name of a directory below runs/, or SWEEP/TRIAL")
        if any(len(os.fsencode(part)) > 200 or not part.isprintable() for part in parts):
            raise InputError(f"name={str(self.name)[:40]}: must be printable and at most 200 bytes long")
        for layer, head in self.watch.heads():
            if layer >= self.model.layers or head >= self.model.heads:
                raise InputError(
                    f"watch.attention_heads: L{layer}H{head} is not in the model, which has "
                    f"model.layers={self.model.layers} and model.heads={self.model.heads}, counted from 0"
                )
        for name, entry in self.callbacks.items():
            averages = isinstance(entry, dict) and str(entry.get("_target_")).endswith("WeightAveraging")
            if averages and self.trainer.strategy == "fsdp":  # a second model, which Lightning copies from the first
                raise InputError(
                    f"callbacks={name}: averages whole models; with trainer.strategy=fsdp no device has one"
                )


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as plain nested dicts."""
    return dataclasses.asdict(config)


def from_dict(values: dict[str, Any]) -> Config:
    """The inverse of `to_dict`.

    Raises:
        ValueError: a value that is not allowed, or a key that no field has.
    """
    hints = typing.get_type_hints(Config)
    try:
        return Config(
            **{
                key: hints[key](**value) if dataclasses.is_dataclass(hints.get(key)) else value
                for key, value in values.items()
            }
        )
    except TypeError as error:
        raise InputError(f"config: {error}") from None


def to_yaml(config: Config) -> str:
    """The configuration as YAML that `from_yaml` reads back."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


class _PlainLoader(yaml.SafeLoader):
    """Reads plain data alone, in time and memory that the length of the text bounds."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        wrong = (
            "an anchor, an alias or a tag" if isinstance(event, yaml.AliasEvent) or event.anchor or event.tag else ""
        )
        self.depth += 1
        node = None if wrong or self.depth > MAX_DEPTH else super().compose_node(parent, index)
        self.depth -= 1
        if node is None:
            wrong = wrong or f"more than {MAX_DEPTH} values inside each other"
        elif node.tag.endswith((":int", ":float")) and len(node.value) > MAX_DIGITS:
            wrong = f"a number of more than {MAX_DIGITS} digits"
        if wrong:
            raise yaml.YAMLError(f"line {event.start_mark.line + 1} has {wrong}")
        return node


def from_yaml(text: str) -> Config:
    """Read what `to_yaml` wrote.

    Raises:
        ValueError: the text is no YAML, or not that of a configuration.
    """
    if len(text) > MAX_YAML:
        raise InputError(f"config.yaml: has more than {MAX_YAML:,} characters")
    try:
        values = yaml.load(text, _PlainLoader)
    except yaml.YAMLError as error:
        raise InputError(f"config.yaml: cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise InputError("config.yaml: holds no configuration")
    return from_dict(values)
