"""Holds the house's directions: who may import what, and that importing does nothing else."""

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("base", "conf", "data", "gpt")
LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
HYDRA = ("hydra", "omegaconf")
DECODING = ("numpy", "threadpoolctl", "safetensors", "torch", "gpt", "conf.fields", "conf.commandline")


def sources() -> dict[str, str]:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")] + list(ROOT.glob("*.py"))
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in sorted(files)}


def module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports(path: str, source: str) -> list[str]:
    found, package = [], path.split("/")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join(base + ([node.module] if node.module else []))
            found += [f"{prefix}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            if getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "__import__"):
                found.append(str(node.args[0].value))
    return found


def within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == each or name.startswith(each + ".") for each in modules)


# What a module may import besides the standard library and base: that of the first name that its path begins with; None
# where just the other rules hold.
ONLY: dict[str, tuple[str, ...] | None] = {
    "base/": (),
    **dict.fromkeys(("gpt/config.py", "data/config.py", "conf/fields.py"), ("conf.fields",)),
    "conf/progress.py": ("conf.fields", "gpt.job", "tqdm"),
    **dict.fromkeys(("conf/sweep.py", "conf/launch.py"), ("conf", "gpt.runs", "gpt.job", "submitit", *HYDRA)),
    "conf/search.py": ("conf", "gpt.runs", "yaml", "optuna", "sqlalchemy", *HYDRA),
    "conf/": ("conf", "gpt.config", "data.config", "yaml", *HYDRA),
    **dict.fromkeys(("gpt/runs.py", "gpt/job.py"), ("conf.fields", "filelock", "gpt.job")),
    **dict.fromkeys(("gpt/model_file.py", "gpt/decode.py", "gpt/generate.py"), DECODING),
    "gpt/export/": ("torch", "numpy", "gpt", "conf.fields", "onnx", "onnxscript", "onnxruntime", "transformers"),
    "gpt/fit/": None,
    "gpt/checkpoint.py": ("torch", "gpt", "conf.fields", "numpy"),
    "gpt/": ("torch", "gpt", "conf.fields"),
    "": None,
}


def only(path: str) -> tuple[str, ...] | None:
    return next(allowed for begin, allowed in ONLY.items() if path.startswith(begin))


def violations(path: str, source: str) -> list[str]:
    """One line for each import that goes the wrong way."""
    found, fit = [], path.startswith("gpt/fit/")
    for name in imports(path, source):
        rules = {
            "gpt never imports data": path.startswith("gpt/") and within(name, ("data",)),
            "data never imports gpt": path.startswith("data/") and within(name, ("gpt",)),
            "only gpt/fit, data/datamodule.py and train.py import lightning": within(name, LIGHTNING)
            and not (fit or path in ("data/datamodule.py", "train.py")),
            "only train.py and conf import hydra and omegaconf": within(name, HYDRA)
            and not (path.startswith("conf/") or path == "train.py"),
            "gpt/fit is not imported from gpt": path.startswith("gpt/") and not fit and within(name, ("gpt.fit",)),
            "tests are not imported": within(name, ("tests",)),
            "only gpt/fit/draw.py, a process of its own, draws": within(name, ("matplotlib", "gpt.fit.draw"))
            and path != "gpt/fit/draw.py",
        }
        allowed = only(path)
        if allowed is not None and name.split(".")[0] not in (*sys.stdlib_module_names, "base"):
            rules[f"only the standard library and {', '.join(allowed) or 'nothing else'}"] = not within(name, allowed)
        found += [f"{path}: imports {name}: {rule}" for rule, broken in rules.items() if broken]
    return found


def light(files: dict[str, str]) -> list[str]:
    """Paths of the modules that load neither lightning nor hydra, not through others either."""
    names = {path: imports(path, source) for path, source in files.items()}
    heavy: set[str] = set()
    while more := {
        path
        for path in files.keys() - heavy
        if any(within(name, (*LIGHTNING, *HYDRA, *map(module, heavy))) for name in names[path])
    }:
        heavy |= more
    return [path for path in files if path not in heavy]


PROBE = """
import importlib, json, logging, os, random, signal, sys, threading, warnings
first, third, modules, root = json.loads(sys.argv[1])
sys.path.insert(0, root)
for name in first:
    importlib.import_module(name)
heavy = ("torch", "numpy", "lightning", "hydra", "omegaconf")
effects = [f"{', '.join(first)} loads {name}" for name in heavy if name in sys.modules]
for name in third:
    try:
        importlib.import_module(name)
    except ImportError:
        pass

def state():
    import torch
    return {
        "os.environ": dict(os.environ), "working directory": os.getcwd(), "sys.path": list(sys.path),
        "warning filters": list(warnings.filters), "log handlers": list(logging.root.handlers),
        "threads": threading.active_count(), "random state": random.getstate(),
        "signal handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "torch": [
            torch.get_rng_state().tolist(), torch.get_num_threads(), torch.get_default_dtype(),
            torch.get_float32_matmul_precision(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
        ],
    }

ACTS = ("os.mkdir", "os.r", "os.link", "os.symlink", "os.truncate", "os.system", "os.putenv", "socket.connect",
        "socket.getaddrinfo", "subprocess", "urllib")
loading = ""

def watch(event, args):
    writes = event == "open" and (
        set(args[1] or "") & set("wax+") or (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if loading and (writes and args[0] != os.devnull or event.startswith(ACTS)):
        effects.append(f"{loading}: {event}{args}")

for stream in (sys.stdout, sys.stderr):  # what others print is not ours
    print("MARK", file=stream, flush=True)
before = state()
sys.addaudithook(watch)
for loading in modules:
    importlib.import_module(loading)
loading = ""
after = state()
for stream in (sys.stdout, sys.stderr):
    print("MARK", file=stream, flush=True)
print(json.dumps(effects + [f"changes {key}" for key in before if before[key] != after[key]]))
"""


def test_imports_go_one_way_and_what_starts_fast_is_light() -> None:
    files = sources()
    assert {"gpt/model.py", "conf/fields.py", "sample.py", "score.py", "export.py"} <= set(files)
    assert [line for path, source in files.items() for line in violations(path, source)] == []
    fast = [path for path in files if path.startswith("gpt/") and not path.startswith("gpt/fit/")]
    assert {*fast, "sample.py", "score.py", "export.py"} - set(light(files)) == set()
    # What is wrong is seen, also through others.
    assert len(violations("gpt/optim.py", "from . import fit\n__import__('lightning')")) == 3
    files = {"sample.py": "from gpt.runs import newest", "gpt/runs.py": "import gpt.fit", "gpt/fit.py": "import hydra"}
    assert light(files) == [] and light(files | {"gpt/fit.py": ""}) == list(files)


@pytest.mark.slow
def test_importing_does_nothing_else(tmp_path: Path) -> None:
    files = sources()
    first = [module(path) for path in files if only(path) == ("conf.fields",)]
    ours = {*sys.stdlib_module_names, *map(module, files), *PACKAGES}
    used = {name for path in files for name in imports(path, files[path]) if name.split(".")[0] not in ours}
    third = sorted((used | {name.rpartition(".")[0] for name in used}) - {""})
    empty = tmp_path / "empty"
    empty.mkdir()
    request = json.dumps([first, third, [module(path) for path in files], str(ROOT)])
    own = {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(empty), "MPLCONFIGDIR": str(tmp_path / "mpl")}
    command = [sys.executable, "-c", PROBE, request]
    done = subprocess.run(command, cwd=empty, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (_, printed, effects), (_, complained, _) = (text.split("MARK\n") for text in (done.stdout, done.stderr))
    assert (json.loads(effects), printed, complained, os.listdir(empty)) == ([], "", "", [])
