"""Nobody gets in by a run's config.yaml: it is plain data, and what it may not decide is typed again."""

import http.server
import json
import os
import random
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

import train as train_script
from conf.defaults import typed_again
from conf.fields import InputError
from conf.overrides import CONF, apply_literals, split_literals
from conf.resume import read_config, untrusted
from conf.schema import MAX_YAML, Config, to_yaml
from gpt import runs
from tests.conftest import Ended
from tests.faults.processes import fork

Train = Callable[..., Ended]
MUTATIONS = 600
SECONDS = 10  # of the CPU for one config.yaml, which takes a tenth of one
ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
EVIL = {"_target_": "runs.evil.pwn.main"}
CALLED = "${oc.create:{_target_:runs.evil.pwn.main}}"
TENSORBOARD = {
    "_target_": "lightning.pytorch.loggers.TensorBoardLogger", "name": "", "version": "", "default_hp_metric": False,
}  # fmt: skip
EMA = {"_target_": "lightning.pytorch.callbacks.EMAWeightAveraging", "decay": 0.998, "use_buffers": False}
# Plug-ins that a config.yaml must not have made, each with what the refusal names.
PLUGGED: dict[str, tuple[str, dict[str, Any]]] = {
    "a class of one's own": ("logger", {"evil": EVIL}),
    "a class of one's own, as a callback": ("callbacks", {"evil": EVIL}),
    "a class under a name that is known": ("logger", {"tensorboard": EVIL}),
    "a class inside": ("logger", {"tensorboard": {**TENSORBOARD, "prefix": [EVIL]}}),
    "an interpolation": ("logger", {"tensorboard": {**TENSORBOARD, "prefix": CALLED}}),
    "an interpolation in a callback": ("callbacks", {"ema": {**EMA, "decay": CALLED}}),
    "a class by interpolation": ("logger", {"csv": {"_target_": "${oc.env:CLASS}", "name": "csv"}}),
    "a way out of the run": ("logger", {"tensorboard": {**TENSORBOARD, "version": "../../../escaped"}}),
    "an absolute way out": ("logger", {"csv": {"_target_": "lightning.pytorch.loggers.CSVLogger", "name": "/escaped"}}),
    "another directory": ("logger", {"tensorboard": {**TENSORBOARD, "save_dir": "escaped"}}),
    "a file's name": ("logger", {"../experiment/enwik8": TENSORBOARD}),
    "no class": ("logger", {"none": {}}),
    "a value out of range": ("callbacks", {"ema": {**EMA, "decay": 2}}),
    "a list for a mapping": ("callbacks", {"ema": [1]}),
}  # fmt: skip


@pytest.fixture
def run(train: Train) -> Path:
    """A run of ten steps, whose config.yaml it is."""
    assert train("name=a", "trainer.max_steps=10").status == 0
    return Path("runs/a/config.yaml")


def changed(path: Path, **values: Any) -> None:
    """Have a config.yaml hold other values."""
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))


def refused(ended: Ended, *said: str) -> None:
    assert ended.status == 2 and ended.err.count("\n") == 1 and len(ended.err) < 500, ended
    assert ended.err.strip().isprintable() and all(word in ended.err for word in said), ended


def test_plug_ins_are_those_of_conf(run: Path, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made from the file with the values that conf/ gives them, and run no code, write nowhere else."""
    Path("runs/evil").mkdir()
    Path("runs/evil/pwn.py").write_text("def main(): open('got-in', 'w')\n")
    monkeypatch.syspath_prepend(Path.cwd())  # as in the project, whose runs/ it is
    monkeypatch.setenv("CLASS", "runs.evil.pwn.main")
    whole, files = run.read_text(), set(Path().rglob("*"))
    for what, (group, entries) in PLUGGED.items():
        run.write_text(whole)
        changed(run, **{group: entries})
        refused(train("resume=runs/a", "trainer.max_steps=20", defaults=False), "runs/a/config.yaml", group)
        assert {path for path in Path().rglob("*") if "__pycache__" not in path.parts} == files, what
    run.write_text(whole)
    assert train("resume=runs/a", "trainer.max_steps=20", defaults=False).status == 0


def test_what_is_bounded_need_not_be_typed_again(train: Train) -> None:
    typed = ["callbacks=[ema,early_stopping]", "callbacks.ema.decay=0.9", "callbacks.early_stopping.patience=9"]
    assert train("name=a", "trainer.max_steps=10", *typed).status == 0
    assert train("resume=runs/a", "trainer.max_steps=20", defaults=False).status == 0
    assert read_config(Path("runs/a")).callbacks["ema"]["decay"] == 0.9


def test_what_counts_only_where_it_is_typed_again(run: Path, train: Train) -> None:
    """A typed logger takes the place of the one in the file."""
    changed(run, logger={"evil": EVIL})
    refused(train("resume=runs/a", "trainer.max_steps=20", defaults=False), "its logger is not taken")
    assert train("resume=runs/a", "trainer.max_steps=20", "logger=csv", defaults=False).status == 0
    assert list(read_config(Path("runs/a")).logger) == ["csv"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ALIASES, "alias"),
        ("seed: &a 1\nname: *a\n", "anchor"),
        ("a: &a [*a]\n", "alias"),
        ("x: !!python/object/apply:os.system ['touch got-in']", "tag"),
        ("seed: !!bool x", "tag"),
        ("x: " + "[" * 100_000, "inside each other"),
        ("x: " + "{a: " * 30_000, "inside each other"),
        ("- " * 50_000, "inside each other"),
        ("a: 1\n" * MAX_YAML, "characters"),
        ("seed: " + "1" * 5_000, "digits"),
        ("seed: 0x" + "f" * 5_000, "digits"),
        ("minutes: " + "1:" * 5_000 + "1.0", "digits"),
        ("callbacks: []", "callbacks"),
        ("logger: text", "logger"),
        ("model: []", "config"),
        ("? [1, 2]\n: 3", "config.yaml"),
        ("compile: [[], {}]", "compile"),
        ("text", "holds no configuration"),
        ("", "holds no configuration"),
        ("seed: 1\n---\nseed: 2\n", "config.yaml"),
        ("seed: \x07", "config.yaml"),
    ],
    ids=lambda value: value[:12],
)
def test_what_is_no_plain_data(text: str, said: str, workplace: Path) -> None:
    """It is refused in a line, and in a process whose memory and seconds are few: a hang would be seen."""
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/config.yaml").write_text(text)
    assert within_limits(_read) == {"refused": 1}
    with pytest.raises(InputError) as refusal:
        read_config(Path("runs/a"))
    assert said in str(refusal.value) and str(refusal.value).isprintable() and len(str(refusal.value)) < 400


def test_what_is_no_file(workplace: Path) -> None:
    """A pipe, which would never end."""
    Path("runs/a").mkdir(parents=True)
    os.mkfifo("runs/a/config.yaml")
    with pytest.raises(InputError, match="has no config.yaml"):
        read_config(Path("runs/a"))


def test_a_run_names_no_place_for_compiled_code(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would be loaded and run: it is kept where whoever resumes wants it."""
    assert train("name=a", "trainer.max_steps=10", "data.cache_dir=theirs").status == 0
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    assert train("resume=runs/a", "trainer.max_steps=20", defaults=False).status == 0
    assert "theirs" not in os.environ["TORCHINDUCTOR_CACHE_DIR"]


# -- Addresses -------------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """The address of a web server, and what it was asked."""
    asked: list[str] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Listener)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/book.txt", asked
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("form", ["{}", "[{}]", "[book.txt,{}]", "simplecache::{}"])
def test_no_address_of_a_file_is_asked(form: str, run: Path, train: Train, listener: tuple[str, list[str]]) -> None:
    address, asked = listener
    changed(run, data={**yaml.safe_load(run.read_text())["data"], "path": form.format(address)})
    refused(train("resume=runs/a", "trainer.max_steps=20", defaults=False), "its data.path is not taken")
    assert asked == []


def test_a_run_on_remote_text_goes_on_by_the_command_that_it_prints(train: Train) -> None:
    address = f"file://{Path('book.txt').absolute()}"
    assert train("name=a", "trainer.max_steps=10", f"data.path={address}").status == 0
    refused(train("resume=runs/a", "trainer.max_steps=20", defaults=False), "its data.path is not taken")
    printed = shlex.split(train_script.way_on(Path("runs/a"), read_config(Path("runs/a"))).partition("train.py ")[2])
    assert printed == ["resume=runs/a", f"data.path={address}"]
    assert train(*printed, "trainer.max_steps=20", defaults=False).status == 0
    assert json.loads(Path("runs/a/summary.json").read_text())["steps"] == 20


@pytest.mark.parametrize(
    "typed",
    [
        [],
        ["callbacks=[early_stopping,ema]", "callbacks.ema.decay=0.9"],
        ["logger=wandb"],
        ["logger=wandb", "+logger.wandb.notes='a, b: it\\'s'"],
        ["logger=[csv,wandb]", "logger.wandb.project=mine", "data.path=s3://books/it's.txt"],
    ],
    ids=str,
)
def test_the_command_types_what_the_file_may_not_decide(typed: list[str]) -> None:
    config = composed(typed)
    again = typed_again(config)
    assert bool(again) == bool(untrusted(config)) == any("wandb." in each or "://" in each for each in typed)
    for group in untrusted(config):
        value = getattr(config, group, config.data.path)
        assert getattr(composed(again), group, composed(again).data.path) == value


def composed(typed: list[str]) -> Config:
    """What train.py makes of what was typed."""
    ConfigStore.instance().store("schema", node=Config)
    rest, literals = split_literals(typed)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return apply_literals(OmegaConf.to_object(hydra.compose("train", rest)), literals)  # type: ignore[arg-type]


# -- Any bytes -------------------------------------------------------------------------------------------


def within_limits(work: Callable[[str], None]) -> dict[str, int]:
    """Have `work` done in a process of few seconds and 1 GiB; what it counted."""
    process = fork(work, str(Path.cwd()))
    process.join(240)
    if process.is_alive():
        process.kill()
    last = Path("runs/a/config.yaml").read_bytes()
    assert process.exitcode == 0, f"ended with {process.exitcode} at {last[:2000]!r}"
    return json.loads(Path("seen.json").read_text())


def _limit() -> None:
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(spent.ru_utime + spent.ru_stime) + SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _resolved(seen: Counter[str]) -> Config | None:
    """Resume a run as far as its config.yaml goes, within limits."""
    _limit()
    try:
        config, _ = train_script.resolve(Config(resume="runs/a"), [])
    except InputError as error:
        text = str(error)
        seen["refused" if text.isprintable() and "runs/a" in text and len(text) < 400 else f"badly: {text}"] += 1
        return None
    finally:
        runs.let_go()
    return config


def _read(folder: str) -> None:
    os.chdir(folder)
    Path("runs/a/checkpoints").mkdir(exist_ok=True)
    Path("runs/a/checkpoints/step-00000010.ckpt").touch()
    seen = Counter[str]()
    if _resolved(seen):
        seen["taken"] += 1
    Path("seen.json").write_text(json.dumps(seen))


def mutated(text: str, rng: random.Random) -> bytes:
    """One to a few changes: of a value into something else, of lines, of bytes."""
    values = ["${oc.env:HOME}", "*x", "&x 1", "!!bool 1", "[", "{", "- ", "../../x", "http://x/y", "~", "1e999", "-1",
              ".nan", "0x" + "f" * 40, "9" * 25, "2001-99-99", "<<: {a: 1}", "''", "[[1], {a: b}]",
              "{_target_: os.abort}", "null", "true", "=", "1:1:1", "\"\\u0007\"", "x" * 3000]  # fmt: skip
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        key, colon, _ = lines[at].partition(":")
        lines[at : at + 1] = rng.choice([
            [f"{key}{colon} {rng.choice(values)}"], [f"{key}{colon} {rng.choice(values)}"], [key + rng.choice(values)],
            [], [lines[at]] * 2, [lines[other]], ["  " + lines[at]], [lines[at].strip()],
        ]) or [""]  # fmt: skip
    data = bytearray("\n".join(lines).encode())
    if rng.random() < 0.5:
        at = rng.randrange(len(data))
        size = rng.choice([1, 1, 8, 100])
        data[at : at + size] = rng.choice([rng.randbytes(size), b"", data[at : at + size] * 2, b"\n", b"\0"])
    return bytes(data)


def _mutate(folder: str) -> None:
    """What resuming makes of so many mutations of config.yaml is counted in a file."""
    os.chdir(folder)
    path = Path("runs/a/config.yaml")
    rng, seen, whole = random.Random(19), Counter[str](), path.read_text()
    for _ in range(MUTATIONS):
        path.write_bytes(mutated(whole, rng))
        if config := _resolved(seen):
            entries = [*config.callbacks.items(), *config.logger.items()]
            own = {"tensorboard": TENSORBOARD, "ema": EMA | {"decay": config.callbacks.get("ema", EMA)["decay"]}}
            plain = all(entry == own.get(name) for name, entry in entries) and "://" not in (config.data.path or "")
            seen["taken" if plain and isinstance(to_yaml(config), str) else f"wrongly taken: {config}"] += 1
    Path("seen.json").write_text(json.dumps(seen))


def test_many_mutations(workplace: Path) -> None:
    """Refused in one line, or a configuration whose plug-ins are those of conf/; none takes long or much memory."""
    Path("runs/a/checkpoints").mkdir(parents=True)
    Path("runs/a/checkpoints/step-00000010.ckpt").touch()
    config = composed(["callbacks=ema", "callbacks.ema.decay=0.9", "data.path=book.txt"])
    Path("runs/a/config.yaml").write_text(to_yaml(config))
    seen = within_limits(_mutate)
    assert sum(seen.values()) == MUTATIONS and set(seen) == {"refused", "taken"}, seen
    assert seen["refused"] > MUTATIONS / 2 and seen["taken"] > 10, seen
