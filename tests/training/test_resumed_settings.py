"""Each setting that a resumed run may change is the one that it then uses."""

import json
from pathlib import Path
from shutil import copytree, rmtree

import pytest
import torch
import yaml
from torch.nn.utils import get_total_norm

from conf.keys import CONF, KEYS, LAUNCH
from gpt import attention
from tests.conftest import last, summary
from tests.reference.optim import learning_rate
from training.module import LitGPT

# Text in which each byte of a Cyrillic letter occurs in each tenth: as koi8-r and as cp1251 it has
# the same characters in another order.
LETTERS = "".join(map(chr, range(0x410, 0x450)))
AS_KOI8 = LETTERS[:9]
AS_CP1251 = LETTERS.encode("koi8-r").decode("cp1251")[:3]
RUN = (
    "model.layers=2 model.heads=2 model.dim=16 model.context=8 model.dropout=0 data.batch=4 data.encoding=koi8-r "
    "optim.lr=0.006 optim.muon_beta2=0 trainer.val_check_interval=2 trainer.log_every_n_steps=1 "
    "trainer.precision=32-true trainer.accelerator=cpu trainer.max_steps=4 logger=none compile=false threads=1 "
    "data.path=letters.txt"
).split()
# `min_delta`: no validation but the first is better
CALLBACKS = (
    "callbacks=[early_stopping,ema] callbacks.early_stopping.patience=50 callbacks.early_stopping.min_delta=100"
).split()
CHANGED = Path("runs/changed")


class Seen:
    """What a resumed run has trained with."""

    def __init__(self, trainer, module):
        self.trainer = trainer
        self.module = module
        self.weights = {name: weight.clone() for name, weight in module.state_dict().items()}
        self.batch_sizes, self.clipped_norms = [], []
        self.explicit_calls = 0  # of the attention kernel, in training steps

    @property
    def text(self):
        return self.trainer.datamodule.text

    def group(self, by_muon):
        (optimizer,) = self.trainer.optimizers
        # matrices, and the embeddings
        return next(group for group in optimizer.param_groups if group["muon"] == by_muon)

    def callback(self, name):
        """The callback whose class is called so."""
        return {type(each).__name__: each for each in self.trainer.callbacks}[name]


def rates(seen):
    """Of AdamW and, with half of the blocks at each step at twice the rate, of Muon."""
    return seen.group(False)["lr"], seen.group(True)["lr"] / 2


def cosine(seen):
    config = seen.module.config.optim
    step = seen.trainer.max_steps - 1
    assert (config.schedule, config.min_lr) == ("cosine", 0.002)
    rate = learning_rate(step, seen.trainer.max_steps, config)
    return rates(seen)[0] == pytest.approx(rate) and rate < 0.003


def rows_from(split):
    return lambda seen: len(getattr(seen.text, split))


def micro_batches(seen):
    # `explicit_attention` runs once for each layer and micro-batch
    return seen.explicit_calls == len(seen.batch_sizes) * 2 * 6


BOTH_RATES = (pytest.approx(0.02), pytest.approx(0.03))
# runs that resume -> key -> its new value, what has used it, and what that must be. The keys of a run are observed
# independently of each other.
CHANGES = {
    "optimizer": {
        "optim.lr": ("0.02", rates, BOTH_RATES),
        "optim.muon_lr": ("0.03", rates, BOTH_RATES),
        "optim.warmup": ("0", rates, BOTH_RATES),
        "optim.cooldown": ("0", rates, BOTH_RATES),
        "optim.muon_beta2": ("0.8", lambda seen: seen.group(True)["beta2"], 0.8),
        "optim.weight_decay": ("0.3", lambda seen: seen.group(True)["weight_decay"], 0.3),
        "optim.betas": ("[0.5,0.6]", lambda seen: tuple(seen.group(False)["betas"]), (0.5, 0.6)),
        "optim.clip": ("0.001", lambda seen: max(seen.clipped_norms), pytest.approx(1e-3, rel=1e-3)),
        "data.batch": ("12", lambda seen: set(seen.batch_sizes), {12}),
        "data.micro_batch": ("2", micro_batches, True),
        "trainer.deterministic": ("warn", lambda seen: seen.deterministic, 1),
        "trainer.detect_anomaly": ("true", lambda seen: seen.detects_anomalies, True),
        "trainer.max_steps": ("6", lambda seen: summary("changed")["steps"], 6),
        "trainer.log_every_n_steps": (
            "3", lambda seen: [step for step, _ in seen.module.history.losses.entries], [1, 2, 3, 4, 6]
        ),
        "trainer.checkpoint_minutes": ("2", lambda seen: seen.callback("Checkpoints").seconds, 120),
        "trainer.profiler": ("pytorch", lambda seen: (CHANGED / "trace.json").exists(), True),
    },
    "schedule": {
        "optim.schedule": ("cosine", cosine, True),
        "optim.min_lr": ("0.002", cosine, True),
        "optim.warmup": ("1", cosine, True),
        "model.dropout": ("0.25", lambda seen: seen.module.net.blocks[0].dropout.p, 0.25),
        "model.attention": ("sdpa", lambda seen: seen.explicit_calls, 0),
        "trainer.precision": (
            "bf16-mixed", lambda seen: (seen.trainer.precision, seen.trainer.optimizers[0].bf16), ("bf16-mixed", True)
        ),
        "trainer.more": ("{min_steps:5}", lambda seen: seen.trainer.fit_loop.min_steps, 5),
        "trainer.benchmark": ("true", lambda seen: seen.benchmark, True),
        "trainer.val_check_interval": (
            "1", lambda seen: [step for step, *_ in seen.module.history.validations.entries], [2, 4, 5, 6]
        ),
    },
    "threads": {"threads": ("2", lambda seen: seen.threads, 2)},
    "text": {
        "data.path": ("same.txt", lambda seen: Path(seen.text.name).name, "same.txt"),
        "data.documents": ("line", lambda seen: seen.text.mode, "documents"),
        "data.split": ("[0.5,0.25,0.25]", rows_from("validation"), 66 * 15),
        "data.val_tokens": ("50", lambda seen: seen.trainer.datamodule.num_validated, 50),
        "data.cache_dir": ("elsewhere", lambda seen: any(Path("elsewhere").iterdir()), True),
        "logger": ("csv", lambda seen: [type(logger).__name__ for logger in seen.trainer.loggers], ["Csv"]),
        "watch.sample_length": (
            "7", lambda seen: {len(text) for _, texts in seen.module.history.samples.entries for *_, text in texts}, {7}
        ),
    },
    "own validation": {
        "data.validation": ("other.txt", rows_from("validation"), 66 * 10),
        "data.test": ("same.txt", rows_from("test"), 66 * 60),
        "logger": ("tensorboard", lambda seen: len(seen.trainer.loggers), 1),
        "watch.pictures": ("false", lambda seen: seen.callback("Watch").config.pictures, False),
    },
    "few tokens": {
        "data.encoding": ("cp1251", lambda seen: seen.text.tokenizer.decode(seen.text.train[:3]), AS_CP1251),
        "data.overfit": ("40", rows_from("validation"), 40),
        "seed": ("5", lambda seen: seen.trainer.datamodule.windows.seed, 5),
    },
    "table": {
        "data.path": ("rows.jsonl", lambda seen: Path(seen.text.name).name, "rows.jsonl"),
        "data.field": ("b", lambda seen: AS_KOI8 in seen.text.tokenizer.decode(seen.text.train), True),
    },
    "callbacks": {
        "callbacks": ("[snapshots]", lambda seen: (CHANGED / "checkpoints/step-6.safetensors").exists(), True),
    },
    "arguments of callbacks": {
        # The count goes on: 1 before, 2 after step 6, which ends the run.
        "callbacks.early_stopping.patience": (
            "2", lambda seen: (seen.callback("EarlyStopping").wait_count, seen.trainer.global_step), (2, 6)
        ),
        "callbacks.early_stopping.min_delta": (
            "50", lambda seen: seen.callback("EarlyStopping").min_delta, -50
        ),
        "callbacks.ema.share": ("1", lambda seen: seen.callback("MovingAverage").share, 1),
        "trainer.max_steps": ("20", lambda seen: seen.trainer.max_steps, 20),
    },
    "other arguments of callbacks": {
        "callbacks.early_stopping.monitor": (
            "val/bpc", lambda seen: seen.callback("EarlyStopping").monitor, "val/bpc"
        ),
        "callbacks.early_stopping.check_on_train_epoch_end": (
            "true", lambda seen: seen.callback("EarlyStopping")._check_on_train_epoch_end, True
        ),
    },
}  # fmt: skip
# A process of one CPU shows nothing of these.
ELSEWHERE = {
    "compile",
    *(f"trainer.{key}" for key in ("accelerator", "devices", "num_nodes", "timeout")),
}


def test_every_setting_that_may_change_is_tried():
    changeable = {
        key for key, option in KEYS.items() if option.on_resume != "fixed" and key not in LAUNCH
    }
    for file in CONF.glob("callbacks/*.yaml"):
        for callback, arguments in yaml.safe_load(file.read_text()).items():
            if "_target_" in arguments:
                names = arguments.keys() - {"_target_"}
                changeable |= {f"callbacks.{callback}.{argument}" for argument in names}
    tried = {key for changes in CHANGES.values() for key in changes}
    assert tried == changeable - ELSEWHERE


@pytest.fixture
def as_before():
    """Restores what a run sets for its whole process."""
    threads = torch.get_num_threads()
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def runs(monkeypatch):
    """What each run of this process trains with, the newest last."""
    seen = []
    step, gradients = LitGPT.training_step, LitGPT.gradients
    explicit = attention.explicit_attention

    def watched_step(self, batch, index):
        if not seen or seen[-1].module is not self:
            seen.append(Seen(self.trainer, self))
        now = seen[-1]
        now.batch_sizes.append(len(batch))
        now.threads = torch.get_num_threads()
        now.deterministic = torch.get_deterministic_debug_mode()  # 1: it warns
        now.benchmark = torch.backends.cudnn.benchmark
        now.detects_anomalies = torch.is_anomaly_enabled()
        return step(self, batch, index)

    def watched_gradients(self, batch):
        outcome = gradients(self, batch)
        norm = get_total_norm([parameter.grad for parameter in self.net.parameters()])
        seen[-1].clipped_norms.append(float(norm))
        return outcome

    def watched_explicit(*given):
        if seen and seen[-1].module.net.training:
            seen[-1].explicit_calls += 1
        return explicit(*given)

    monkeypatch.setattr(LitGPT, "training_step", watched_step)
    monkeypatch.setattr(LitGPT, "gradients", watched_gradients)
    monkeypatch.setattr(attention, "explicit_attention", watched_explicit)
    return seen


@pytest.fixture(scope="module")
def resumable(tmp_path_factory):
    """A directory with the texts, and the run `base` once it is trained."""
    folder = tmp_path_factory.mktemp("resumable")
    lines = [LETTERS[i:] + LETTERS[:i] + "\n" for i in range(60)]
    rows = [json.dumps({"a": "", "b": line}) for line in lines]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    for name, part in {"letters": lines, "same": lines, "other": lines[:10]}.items():
        # with the end mark of rows, so that a table has the same vocabulary
        text = "".join(part).replace("\n", "\x03\n")
        (folder / f"{name}.txt").write_text(text, "koi8-r")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_used(name, runs, resumable, train, workplace, monkeypatch):
    monkeypatch.chdir(resumable)
    if not Path("runs/base").exists():
        ended = train(*RUN, *CALLBACKS, "name=base", defaults=False)
        assert ended.status == 0, ended
    rmtree(CHANGED, ignore_errors=True)
    copytree("runs/base", CHANGED)
    changes = CHANGES[name]
    typed = [f"{key}={value}" for key, (value, _, _) in changes.items()]
    if "trainer.max_steps" not in changes:
        typed.append("trainer.max_steps=6")
    allowed = ["text", *(key for key, option in KEYS.items() if option.on_resume == "allow")]
    ended = train("resume=changed", *typed, f"allow=[{','.join(allowed)}]", defaults=False)
    assert ended.status == 0, ended
    in_training = last("base")["current_model_state"]
    torch.testing.assert_close(runs[-1].weights, in_training, rtol=0, atol=0)  # not their average
    for key, (_, used, expected) in changes.items():
        assert used(runs[-1]) == expected, key
