import re

import pytest
import torch

from tests.conftest import ROOT

FILES = [ROOT / folder / "torch_private.py" for folder in ("gpt", "training")]
NAMES = [(file, *use) for file in FILES for use in re.findall(r"= (\w+)\.(_\w+)$", file.read_text("utf-8"), re.M)]
MODULES = {"torch": torch, "distributed_c10d": torch.distributed.distributed_c10d}


@pytest.mark.parametrize(("file", "module", "name"), NAMES, ids=[name for *_, name in NAMES])
def test_torch_still_has_the_private_names_that_are_used(file, module: str, name: str) -> None:
    where = f"{file.parent.name}/{file.name}"
    assert hasattr(MODULES[module], name), f"torch {torch.__version__} has no {module}.{name}: replace it in {where}"


def test_every_private_name_is_looked_at() -> None:
    for file in FILES:
        used = re.findall(r"\._\w+", file.read_text("utf-8"))
        assert used == [f".{name}" for each, _, name in NAMES if each == file], file
