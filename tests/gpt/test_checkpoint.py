"""Training checkpoints: the old file or the whole new one, opened by torch's defaults, one line when it cannot be."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from conf.resume import settings
from conf.schema import Config
from gpt.checkpoint import REQUIRED, CheckpointError, last_component, load_checkpoint, read, save, write_model
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model_file import FORMAT
from tests.reference.models import SOME, fill, name, tiny


def contents(config: ModelConfig | None = None, seed: int = 0, prefix: str = "net.") -> dict:
    """What a fitted model leaves, in the smallest form."""
    config = config or tiny(layers=1)
    state = fill(GPT(config, 11), seed).state_dict()
    return {
        "format": FORMAT,
        "model_config": dataclasses.asdict(config),
        "vocabulary": {"kind": "char", "characters": "abcdefghijk"},
        "data": {"name": "letters/b\udcffok.txt"},
        "state_dict": {prefix + key: value for key, value in state.items()},
        "global_step": 17,
        "val_loss": 1.5,
        "evaluation": {"mode": "disjoint", "context": 7, "stride": 7, "characters": 100},
    }


def one_line(caught: pytest.ExceptionInfo, *words: str) -> None:
    message = str(caught.value)
    assert message and "\n" not in message
    for word in words:
        assert word in message


class Unwritable:
    """Fails while it is being written, after what stands before it."""

    def __reduce__(self):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("config", SOME, ids=name)
def test_a_model_file_is_made_of_a_checkpoint(config: ModelConfig, tmp_path: Path) -> None:
    path, model_path = tmp_path / "step.ckpt", tmp_path / "last.safetensors"
    save(path, contents(config))
    write_model(model_path, read(path))
    torch.manual_seed(9)
    before = torch.get_rng_state()
    model, meta = load_checkpoint(model_path)
    assert torch.equal(torch.get_rng_state(), before)
    expected = fill(GPT(config, 11)).eval()
    tokens = torch.arange(14).reshape(2, 7) % 11
    assert torch.equal(model(tokens), expected(tokens))
    assert not any(module.training for module in model.modules())
    assert ModelConfig(**meta.pop("model_config")) == config
    assert meta == {
        "format": FORMAT,
        "vocabulary": {"kind": "char", "characters": "abcdefghijk"},
        "step": 17,
        "val_loss": 1.5,
        "evaluation": {"mode": "disjoint", "context": 7, "stride": 7, "characters": 100},
        "text": "b\ufffdok.txt",
    }
    assert sorted(os.listdir(tmp_path)) == ["last.safetensors", "step.ckpt"]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "alibi", "none"])
def test_a_model_that_is_read_is_one_that_is_made(positions: str, tied: bool, tmp_path: Path) -> None:
    """With its own memory for every weight, its head tied, and torch's generator where it was."""
    config = tiny(positions=positions, tied=tied, heads=3)
    write_model(tmp_path / "model.safetensors", contents(config))
    torch.manual_seed(9)
    before = torch.get_rng_state()
    model = load_checkpoint(tmp_path / "model.safetensors")[0]
    assert torch.equal(torch.get_rng_state(), before)
    made = fill(GPT(config, 11)).eval()
    assert (model.head.weight is model.embedding.weight) is tied
    assert [(*each, p.shape, p.requires_grad) for *each, p in model.named_parameters()] == [
        (*each, p.shape, p.requires_grad) for *each, p in made.named_parameters()
    ]
    assert {each.device.type for each in (*model.parameters(), *model.buffers())} == {"cpu"}
    tokens = torch.arange(14).reshape(2, 7) % 11
    assert torch.equal(model(tokens), made(tokens))
    model(tokens).sum().backward()


def test_others_learn_the_name_of_a_text_and_not_where_it_lies() -> None:
    for given, said in {
        "book.txt": "book.txt",
        "/letters/book.txt": "book.txt",
        "C:\\letters\\book.txt": "book.txt",
        "letters/": "letters",
        "https://host/books/a.txt?token=SECRET": "a.txt",
        "[a.txt,dir/b.txt]": "a.txt, b.txt",
        "Python 3.11.7 standard library": "Python 3.11.7 standard library",
    }.items():
        assert last_component(given) == said


def test_plain_data_opens_with_torch_s_defaults(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    save(path, contents())
    assert torch.serialization.get_unsafe_globals_in_checkpoint(path) == []
    assert set(torch.load(path, weights_only=True)) == set(contents())


def test_path_may_be_text_and_hold_anything(tmp_path: Path) -> None:
    path = str(tmp_path / "my bücher, (1)=it's.ckpt")
    save(path, contents())
    assert read(path)["global_step"] == 17


def test_saving_over_a_file_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    for seed in (1, 2):
        save(path, contents(seed=seed))
    loaded = read(path)["state_dict"]["net.embedding.weight"]
    assert torch.equal(loaded, contents(seed=2)["state_dict"]["net.embedding.weight"])
    assert os.listdir(tmp_path) == ["model.ckpt"]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("failure", ["writing", "fsync", "replace", "interrupt"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    failure: str, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.ckpt"
    if before:
        save(path, contents(seed=1))
    old = path.read_bytes() if before else b""
    new = contents(seed=2)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt if failure == "interrupt" else OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if failure == "writing":
            new["rng"] = Unwritable()
        else:
            patch.setattr(os, {"fsync": "fsync", "replace": "replace", "interrupt": "fsync"}[failure], fail)
        with pytest.raises(KeyboardInterrupt if failure == "interrupt" else OSError):
            save(path, new)
    assert os.listdir(tmp_path) == (["model.ckpt"] if before else [])
    if before:
        assert path.read_bytes() == old


def test_the_name_is_taken_last_and_in_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the name is whole and on the disk already: written, then fsynced, then renamed."""
    path, events = tmp_path / "model.ckpt", []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(handle: int) -> None:
        events.append(("fsync", os.fstat(handle).st_ino))
        fsync(handle)

    def watched_replace(source: str | Path, target: str | Path) -> None:
        assert Path(source).parent == tmp_path and Path(target) == path
        whole = torch.load(source, weights_only=True)
        events.append(("replace", os.stat(source).st_ino))
        assert whole["global_step"] == 17
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    save(path, contents())
    file = path.stat().st_ino
    assert events.index(("fsync", file)) < events.index(("replace", file))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path / "none.ckpt")
    one_line(caught, "none.ckpt")


def test_a_directory_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path)
    one_line(caught, tmp_path.name)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_truncated_file(share: float, tmp_path: Path) -> None:
    path = tmp_path / "cut.ckpt"
    save(path, contents())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError) as caught:
        read(path)
    one_line(caught, "cut.ckpt")


@pytest.mark.parametrize("kind", ["text", "empty", "tensor", "list", "other", "object"])
def test_what_is_no_checkpoint(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "other.ckpt"
    if kind in ("text", "empty"):
        path.write_text("Friends, Romans, countrymen" if kind == "text" else "")
    else:
        torch.save(
            {"tensor": torch.zeros(3), "list": [1, 2], "other": {"weights": torch.zeros(3)}, "object": Path("x")}[kind],
            path,
        )
    with pytest.raises(CheckpointError) as caught:
        read(path)
    one_line(caught, "other.ckpt")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"format": FORMAT + 1}, str(FORMAT + 1)),
        ({"format": FORMAT - 1}, f"has format {FORMAT - 1}, this version reads format {FORMAT}"),
        ({"format": None}, "format"),
    ],
)
def test_parts_that_do_not_fit(changes: dict, named: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.ckpt"
    save(path, {**contents(), **changes})
    with pytest.raises(CheckpointError) as caught:
        read(path)
    one_line(caught, "odd.ckpt", named)


@pytest.mark.parametrize("key", sorted(REQUIRED))
def test_a_missing_part_is_named(key: str, tmp_path: Path) -> None:
    path = tmp_path / "part.ckpt"
    save(path, {other: value for other, value in contents().items() if other != key})
    with pytest.raises(CheckpointError) as caught:
        read(path)
    one_line(caught, "part.ckpt", key)


@pytest.mark.parametrize("limit", [10, 2000, 500_000, 1_200_000])
def test_a_full_disk_is_an_os_error(limit: int, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk; torch tells of it as a RuntimeError."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "model.ckpt"
    save(path, contents(seed=1))
    old = path.read_bytes()
    large = {**contents(seed=2), "optimizer_states": [torch.zeros(300_000)]}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        with pytest.raises(OSError) as caught:
            save(path, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    one_line(caught)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["model.ckpt"]


def test_another_model_is_another_format() -> None:
    """A file without a field would get today's default, and be another model than it was."""
    fields = (
        "layers heads dim context dropout bias norm activation positions window qk_norm key_offset token_shift tied "
        "attention"
    )
    assert (FORMAT, list(ModelConfig.__dataclass_fields__)) == (5, fields.split()), "give FORMAT a new number, too"


def test_other_settings_are_another_format() -> None:
    """A run is compared with the settings in its checkpoint: one that is not there counts as null."""
    names = (
        "seed init_from minutes compile data.encoding data.tokenizer data.split data.overfit data.batch "
        "data.micro_batch optim.name optim.lr "
        "optim.muon_lr optim.min_lr optim.warmup optim.schedule optim.cooldown optim.weight_decay optim.betas "
        "optim.clip trainer.precision trainer.deterministic trainer.benchmark callbacks"
    )
    model = [f"model.{name}" for name in ModelConfig.__dataclass_fields__]
    given = [name for name in settings(Config()) if name not in model]
    assert (FORMAT, given) == (5, names.split()), "give FORMAT a new number, too"


def test_a_flipped_bit_in_the_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flipped.ckpt"
    save(path, contents())
    whole = bytearray(path.read_bytes())
    weights = contents()["state_dict"]["net.blocks.0.mlp.up.weight"].numpy().tobytes()
    whole[whole.index(weights) + len(weights) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CheckpointError) as caught:
        read(path)
    one_line(caught, "flipped.ckpt")
