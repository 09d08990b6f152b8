"""Importing a module does nothing else, and what starts fast loads nothing heavy.

Which folder may import which is in pyproject.toml, for import-linter (`make check`).
"""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("base", "conf", "data", "gpt", "reports", "training", "sweeps")
# What must not be loaded, and by which modules, in this order.
LIGHT = {
    "torch numpy lightning hydra omegaconf": ["base", "gpt.config", "data.config"],
    "torch lightning": ["conf", "gpt.model_file", "gpt.inference", "sweeps", "training.run", "train"],
    "lightning": ["training.checkpoint_files"],  # a resumed run is refused before Lightning is loaded
}


def module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def modules_of() -> list[str]:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")] + list(ROOT.glob("*.py"))
    return sorted(module(file.relative_to(ROOT).as_posix()) for file in files)


def imports() -> set[str]:
    """What all modules import, wherever in them."""
    found: set[str] = set()
    for name in modules_of():
        path = ROOT / name.replace(".", "/")
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_package_that_is_imported_is_declared_and_each_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    development = [Requirement(each) for each in project["optional-dependencies"].pop("dev")]
    ordinary = [Requirement(each) for each in sum(project["optional-dependencies"].values(), project["dependencies"])]
    declared = {canonicalize_name(each.name) for each in ordinary}
    ours = {*sys.stdlib_module_names, *PACKAGES, *modules_of()}
    installed = packages_distributions()  # module -> distributions; a module that is not installed has its own name
    for module in sorted({name.split(".")[0] for name in imports()} - ours):
        names = [canonicalize_name(name) for name in installed.get(module, [module])]
        assert set(names) & declared, f"{module}: pyproject.toml declares none of {', '.join(names)}"
    # To an exact version of a public index, so to no local one.
    pins = re.findall(r"^[^#].*", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[0-9][A-Za-z0-9.]*", pin)] == []
    pinned = {canonicalize_name(name): version for name, version in (pin.split("==") for pin in pins)}
    every = ordinary + development
    assert [str(each) for each in every if pinned[canonicalize_name(each.name)] not in each.specifier] == []


PROBE = """
import importlib, json, os, random, signal, sys, threading, warnings
light, third, modules, root = json.loads(sys.argv[1])
sys.path.insert(0, root)
effects = []
for heavy, names in light.items():
    for name in names:
        importlib.import_module(name)
        effects += [f"{name} loads {other}" for other in heavy.split() if other in sys.modules]
for name in third:
    try:
        importlib.import_module(name)
    except ImportError:
        pass

def state():
    import torch
    return {
        "os.environ": dict(os.environ), "working directory": os.getcwd(), "sys.path": list(sys.path),
        "warning filters": list(warnings.filters), "threads": threading.active_count(), "random": random.getstate(),
        "signal handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "torch": [torch.get_rng_state().tolist(), torch.get_num_threads(), torch.is_grad_enabled()],
    }

print("MARK", flush=True)  # what others print is not ours
print("MARK", file=sys.stderr, flush=True)
before = state()
for each in modules:
    importlib.import_module(each)
after = state()
print("MARK", file=sys.stderr, flush=True)
print("MARK")
print(json.dumps(effects + [f"changes {key}" for key in before if before[key] != after[key]]))
"""


@pytest.mark.slow
def test_importing_does_nothing_else(tmp_path: Path) -> None:
    every = modules_of()
    light = {
        heavy: [each for each in every for name in names if f"{each}.".startswith(f"{name}.")]
        for heavy, names in LIGHT.items()
    }
    used = {name for name in imports() if name.split(".")[0] not in (*sys.stdlib_module_names, *PACKAGES, *every)}
    third = sorted((used | {name.rpartition(".")[0] for name in used}) - {""})
    empty = tmp_path / "empty"
    empty.mkdir()
    request = json.dumps([light, third, every, str(ROOT)])
    own = {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(empty), "MPLCONFIGDIR": str(tmp_path / "mpl")}
    command = [sys.executable, "-c", PROBE, request]
    done = subprocess.run(command, cwd=empty, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (_, printed, effects), (_, complained, _) = (text.split("MARK\n") for text in (done.stdout, done.stderr))
    assert (json.loads(effects), printed, complained, os.listdir(empty)) == ([], "", "", [])
