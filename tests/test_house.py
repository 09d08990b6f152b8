"""Importing a module does nothing else, and what starts fast loads nothing heavy.

Which folder may import which is in pyproject.toml, for import-linter (`make check`).
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT, needs

PACKAGES = ("base", "conf", "data", "gpt", "reports", "training", "sweeps")
# What must not be loaded, and by which modules, in this order.
LIGHT = {
    "torch numpy lightning hydra omegaconf": "base gpt.config data.config",
    "torch lightning": "conf gpt.model_file gpt.inference sweeps training.run train",
    # a resumed run is refused before Lightning is loaded
    "lightning": "training.resume gpt.checkpoint",
}


@pytest.fixture(scope="module")
def modules():
    """Our modules, and the packages that they import, wherever in them."""
    needs("grimp", extra="ci")
    import grimp

    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    others = {name for name in graph.modules if graph.is_module_squashed(name)}
    ours = [*(graph.modules - others), *(script.stem for script in ROOT.glob("*.py"))]
    return sorted(ours), sorted(others - sys.stdlib_module_names)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: [Requirement(each) for each in packages]
    for name, packages in PROJECT["optional-dependencies"].items()
}
REQUIREMENTS = [Requirement(each) for each in PROJECT["dependencies"]]


def test_every_package_that_is_imported_is_declared(modules):
    ordinary = [*REQUIREMENTS]
    for name in EXTRAS.keys() - {"dev", "ci"}:
        ordinary += EXTRAS[name]
    declared = {canonicalize_name(each.name) for each in ordinary}
    declared |= {"aiohttp" for each in ordinary if each.name == "fsspec" and "http" in each.extras}
    # module -> distributions; a module that is not installed has its own name
    installed = packages_distributions()
    for module in modules[1]:
        names = installed.get(module, [module])
        assert not declared.isdisjoint(map(canonicalize_name, names)), module


def test_every_package_that_is_declared_is_pinned_to_an_exact_version_of_a_public_index():
    pinned = {}
    pins = (ROOT / "constraints.txt").read_text()
    for pin in re.findall(r"^[^#].*", pins, re.MULTILINE):
        assert re.fullmatch(r"[\w.-]+==[0-9][0-9.]*(post\d+)?( ; .+)?", pin), pin
        name, version = pin.split(" ;")[0].split("==")
        pinned[canonicalize_name(name)] = version
    for each in sum(EXTRAS.values(), REQUIREMENTS):
        if each.name != PROJECT["name"]:  # extras name extras
            assert pinned[canonicalize_name(each.name)] in each.specifier


# Prints what importing the modules does besides.
PROBE = """
import importlib, io, json, os, signal, sys, threading
from contextlib import redirect_stderr, redirect_stdout, suppress
light, third, modules, root = json.loads(sys.argv[1])
sys.path.insert(0, root)
effects = []
for heavy, names in light.items():
    folders = tuple(f"{name}." for name in names.split())
    for name in modules:
        if f"{name}.".startswith(folders):
            importlib.import_module(name)
            effects += [f"{name} loads {each}" for each in heavy.split() if each in sys.modules]
for name in third:
    with suppress(ImportError), redirect_stdout(None), redirect_stderr(None):
        importlib.import_module(name)

def state():
    import torch
    return {
        "os.environ": dict(os.environ), "sys.path": list(sys.path), "threads": threading.active_count(),
        "signal handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "torch": [torch.get_rng_state().tolist(), torch.get_num_threads()],
    }

before = state()
with redirect_stdout(io.StringIO()) as printed, redirect_stderr(printed):
    for name in modules:
        importlib.import_module(name)
after = state()
effects += [f"changes {key}" for key in before if before[key] != after[key]]
print(json.dumps([*effects, printed.getvalue()]))
"""


@pytest.mark.slow
def test_importing_does_nothing_else(modules, tmp_path):
    needs("optuna", extra="search")  # of sweeps.search
    every, third = modules
    request = json.dumps([LIGHT, third, every, str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", PROBE, request],
        cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == '[""]\n' and os.listdir(tmp_path) == [], done


@pytest.mark.parametrize(
    ("program", "status"), [("import gpt.config, base", 0), ("import data", 1)]
)
def test_the_model_can_be_imported_in_any_folder(tmp_path, program, status):
    """The environment has `gpt`, and no package with a name such as `data`."""
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True)
    assert done.returncode == status, done
