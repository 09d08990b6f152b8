"""Mutation testing: plant small faults in the product, one at a time, and count those that a test finds.

    pip install coverage
    python benchmarks/mutation.py cover                 # run all tests once and note which lines each executes
    python benchmarks/mutation.py plant --count 300     # plant faults, run the tests that execute their lines
    python benchmarks/mutation.py show                  # the share found, and the faults that no test found

Five kinds of fault are planted equally often: a comparison is turned, a number or truth value is changed, a statement
is dropped, two arguments are exchanged, a condition is negated. Folders get faults in proportion to their lines. Which
faults are chosen depends on the seed and the code around them, not on file names: after a file has moved, the same
faults are planted again.

A fault counts as found when a test fails or does not end in time. The tests of the module's own file run first, then
the quickest. A fault that changes nothing a user could see is listed, with the reason, in
benchmarks/equivalent_mutants.txt. Results are kept in .mutation/; a fault that was found is not planted again.
"""

import argparse
import ast
import copy
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NOTES = ROOT / ".mutation"
PRODUCT = ("base", "conf", "data", "gpt", "reports", "sweeps", "training")
KINDS = ("comparison", "constant", "statement", "arguments", "condition")
FOUND = ("killed", "timeout")
TURNED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Mutant(NamedTuple):
    """A fault: bytes `start` to `end` of a file become `new`."""

    id: str
    path: str
    first: int  # lines of the code that it replaces
    last: int
    kind: str
    start: int
    end: int
    old: str
    new: str


class _Finder(ast.NodeVisitor):
    """Collect the faults that can be planted in a file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.scope: list[str] = []
        self.names: list[set[str]] = [set()]
        self.seen = Counter[str]()
        self.found: list[Mutant] = []
        self.visit(ast.parse(source))

    def add(self, kind: str, node: Any, new: str) -> None:
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        old = self.source[start:end].decode()
        key = "|".join([kind, ".".join(self.scope), " ".join(old.split()), new])
        self.seen[key] += 1
        name = hashlib.sha256(f"{key}|{self.seen[key]}".encode()).hexdigest()[:8]
        self.found.append(Mutant(name, self.path, node.lineno, node.end_lineno, kind, start, end, old, new))

    def visit_scope(self, node: Any) -> None:
        self.scope.append(node.name)
        self.names.append(set())
        for child in [*node.body, *getattr(node, "decorator_list", ())]:
            self.visit(child)
        if hasattr(node, "args"):
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self.visit(default)
        self.names.pop()
        self.scope.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_scope

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave f-strings alone: before Python 3.12 their parts have no positions."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.assigned(node, [node.target])
        if node.value:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.assigned(node, node.targets)
        self.generic_visit(node)

    def assigned(self, node: Any, targets: list[ast.expr]) -> None:
        names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        plain = all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        if node.value and self.scope and (not plain or names <= self.names[-1]):
            self.add("statement", node, "pass")
        self.names[-1] |= names

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("statement", node, "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add("statement", node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add("statement", node, "pass")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        turned = copy.deepcopy(node)
        turned.ops[0] = TURNED[type(node.ops[0])]()
        self.add("comparison", node, f"({ast.unparse(turned)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self.add("constant", node, str(node.value + 1))
        elif isinstance(node.value, float):
            self.add("constant", node, repr(node.value * 2 or 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        two = node.args[:2]
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        order_matters = name not in ("min", "max", "minimum", "maximum", "isinstance", "zip")
        if order_matters and len(two) == 2 and not any(isinstance(each, ast.Starred) for each in two):
            if ast.dump(two[0]) != ast.dump(two[1]):
                turned = copy.deepcopy(node)
                turned.args[:2] = [two[1], two[0]]
                self.add("arguments", node, ast.unparse(turned))
        self.generic_visit(node)

    def visit_test(self, node: Any) -> None:
        test = node.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.add("condition", test, f"({ast.unparse(test.operand)})")
        else:
            self.add("condition", test, f"(not ({ast.unparse(test)}))")
        self.generic_visit(node)

    visit_If = visit_IfExp = visit_While = visit_test

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        turned = copy.deepcopy(node)
        turned.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self.add("condition", node, f"({ast.unparse(turned)})")
        self.generic_visit(node)


def product_files() -> list[Path]:
    """Python files of the product, as they stand in git."""
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split() if "/" not in name or name.split("/")[0] in PRODUCT]


def choose(count: int, seed: int) -> list[Mutant]:
    """Choose faults: folders in proportion to their lines, kinds in equal parts."""
    lines = Counter[str]()
    candidates: dict[str, dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for file in product_files():
        path = file.relative_to(ROOT).as_posix()
        folder, source = path.split("/")[0] if "/" in path else "(commands)", file.read_bytes()
        lines[folder] += source.count(b"\n")
        for mutant in _Finder(path, source).found:
            candidates[folder][mutant.kind].append(mutant)
    chosen = []
    for folder, kinds in sorted(candidates.items()):
        for waiting in kinds.values():
            waiting.sort(key=lambda mutant: hashlib.sha256(f"{seed}|{mutant.id}".encode()).digest(), reverse=True)
        for number in range(round(count * lines[folder] / lines.total())):
            waiting = kinds[KINDS[number % len(KINDS)]]
            chosen += [waiting.pop()] if waiting else []
    return chosen


# Coverage: which tests execute which lines


def coverage_init(registry: Any, options: Any) -> None:
    """Let coverage label what is executed with the test that pytest names, also in the processes that a test starts."""
    from coverage import CoveragePlugin

    def current() -> str | None:
        return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0] or None

    # A fork server begins with the variables of the first test that needs it, not of the one that a child is for.
    stale = current() if "multiprocessing.forkserver" in " ".join(sys.orig_argv) else None

    class _Contexts(CoveragePlugin):
        def dynamic_context(self, frame: Any) -> str | None:
            # The end of a context that a thread has begun would end that of the main thread, too.
            main = threading.current_thread() is threading.main_thread()
            return current() if main and current() != stale else None

    registry.add_dynamic_context(_Contexts())


class _Durations:
    """Note how long each test takes, in seconds."""

    def __init__(self) -> None:
        self.seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            (NOTES / "durations.json").write_text(json.dumps(self.seconds))


def pytest_configure(config: Any) -> None:
    """Be a plug-in of pytest's: `-p benchmarks.mutation`."""
    config.pluginmanager.register(_Durations())


def cover(arguments: list[str]) -> None:
    """Run the tests with coverage; further arguments are pytest's."""
    shutil.rmtree(NOTES / "coverage", ignore_errors=True)
    (NOTES / "coverage").mkdir(parents=True)
    settings = NOTES / "coveragerc"
    settings.write_text(
        f"[run]\ndata_file = {NOTES}/coverage/data\nparallel = true\npatch = subprocess\n    fork\n    _exit\n"
        f"source = {ROOT}\nomit = */tests/*\n    */benchmarks/*\n    */docs/*\n    */.venv/*\n"
        "plugins = mutation\n"
        "concurrency = thread\n    multiprocessing\ndisable_warnings = no-data-collected,module-not-measured\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/benchmarks", "COVERAGE_RCFILE": str(settings)}
    command = "-m pytest -n logical --dist worksteal -p benchmarks.mutation -p no:cacheprovider".split()
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "run", "--rcfile", settings, *command, *arguments], cwd=ROOT, env=environment)
    subprocess.run([*coverage, "combine", "-q", "--rcfile", settings], cwd=ROOT, env=environment, check=True)


def tests_of(mutants: list[Mutant]) -> dict[str, list[str]]:
    """Which tests execute the lines of each fault; where only importing does, those that execute the file."""
    from coverage import CoverageData

    data = CoverageData(str(NOTES / "coverage/data"))
    data.read()
    found = {}
    for path in {mutant.path for mutant in mutants}:
        lines = data.contexts_by_lineno(str(ROOT / path))
        everything = {name for names in lines.values() for name in names if name}
        for mutant in mutants:
            if mutant.path == path:
                tests = {name for line in range(mutant.first, mutant.last + 1) for name in lines.get(line, ()) if name}
                found[mutant.id] = sorted(tests or everything)
    return found


# Planting


class _InOrder:
    """Run tests in the order in which they were given."""

    def __init__(self, order: list[str]) -> None:
        self.order = {name: number for number, name in enumerate(order)}

    def pytest_collection_finish(self, session: Any) -> None:
        session.items.sort(key=lambda item: self.order.get(item.nodeid, len(self.order)))


def select(mutant: Mutant, tests: list[str], durations: dict[str, float], limit: float) -> list[str]:
    """Order the tests of a fault, the module's own and then the quickest first, up to so many seconds."""
    folder, name = Path(mutant.path).parent.as_posix(), Path(mutant.path).stem
    own = re.compile(rf"tests/({folder}/)?test_{name}\.py")
    ordered = sorted((not own.match(test), durations[test], test) for test in tests if test in durations)
    chosen, spent = [], 0.0
    for _, seconds, test in ordered:
        if spent + seconds <= limit or not chosen:
            chosen.append(test)
            spent += seconds
    return chosen


def run_tests(place: Path, chosen: list[str], limit: float) -> tuple[str, str]:
    """Run tests in a copy of the project, in a fork of this process, which has loaded what is not ours.

    Returns:
        `survived`, `killed` or `timeout`, and the first test that failed.
    """
    output, names = place.with_suffix(".out"), place.with_suffix(".tests")
    names.write_text("\n".join(chosen))
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            os.setsid()
            os.chdir(place)
            os.environ |= {"PYTEST_DEBUG_TEMPROOT": tempfile.mkdtemp(dir=place.parent), "MUTANT": str(place)}
            os.environ.pop("CI", None)
            for number, file in enumerate((os.devnull, output, output)):
                os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | (os.O_APPEND if number == 2 else os.O_TRUNC)), number)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            ours = (str(ROOT), str(ROOT / "benchmarks"))
            sys.path[:] = [str(place), *(each for each in sys.path if each not in ours)]
            import pytest

            options = ["-x", "-q", "--tb=line", "-rfE", "-p", "no:cacheprovider", "-p", "no:xdist", f"@{names}"]
            options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
            status = int(pytest.main(options, plugins=[_InOrder(chosen)]))
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    until, status = time.monotonic() + limit, None
    while status is None and time.monotonic() < until:
        ended, code = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if ended else None
        time.sleep(0.05)
    end_processes(place, pid)
    if status is None:
        os.waitpid(pid, 0)
    text = output.read_text(errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+.*?)(?: - |$)", text, re.M)
    outcome = {0: "survived", 5: "untested", None: "timeout"}.get(status, "killed")
    return outcome, (failed or text.splitlines()[-1:] or [""])[0]


def end_processes(place: Path, group: int) -> None:
    """End what a test has left behind."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"MUTANT={place}".encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


def read_results() -> dict[str, dict[str, Any]]:
    """What is known of each fault; the last word counts."""
    file = NOTES / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {row["id"]: row for row in rows}


def plant(count: int, seed: int, jobs: int, seconds: float) -> None:
    """Plant faults and write down what became of them, but for those known to be found or equivalent."""
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    for name in ("torch", "lightning.pytorch", "hydra.main", "torch.utils.tensorboard", "fsspec", "pooch"):
        __import__(name)
    mutants, durations, known = choose(count, seed), json.loads((NOTES / "durations.json").read_text()), read_results()
    tests = tests_of(mutants)
    chosen = {mutant.id: select(mutant, tests[mutant.id], durations, seconds) for mutant in mutants}
    waiting, same = [], dict(equivalents())
    for mutant in mutants:
        if mutant.id in same:
            continue
        row = known.get(mutant.id, {"outcome": "", "tests": []})
        if row["outcome"] not in FOUND and row["tests"] != chosen[mutant.id]:
            waiting.append(mutant)
    print(f"{len(mutants)} faults, {len(waiting)} to plant")
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()

    def work(place: Path, waiting: list[Mutant]) -> None:
        for number, mutant in enumerate(waiting):
            begun, run = time.monotonic(), chosen[mutant.id]
            target = place / mutant.path
            source = target.read_bytes()
            target.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
            limit = 90 + 5 * sum(durations[test] for test in run)
            outcome, by = run_tests(place, run, limit) if run else ("untested", "")
            target.write_bytes(source)
            row = mutant._asdict() | {"outcome": outcome, "by": by, "tests": run}
            row["seconds"] = round(time.monotonic() - begun, 1)
            with (NOTES / "results.jsonl").open("a") as notes:
                notes.write(json.dumps(row) + "\n")
            what = f"{mutant.path}:{mutant.first} {mutant.kind}"
            print(f"{len(waiting) - number - 1:4} left  {outcome:8} {what} {by}"[:150], flush=True)

    with tempfile.TemporaryDirectory(prefix="mutation") as folder:
        workers = []
        for number in range(jobs):
            place = Path(folder, str(number))
            for name in files:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, place / name)
            workers.append(os.fork())
            if workers[-1] == 0:
                try:
                    work(place, waiting[number::jobs])
                except BaseException:
                    traceback.print_exc()
                os._exit(0)
        for worker in workers:
            os.waitpid(worker, 0)


def equivalents() -> Iterator[tuple[str, str]]:
    """Faults that change nothing a user could see: name and reason."""
    file = ROOT / "benchmarks/equivalent_mutants.txt"
    for line in file.read_text().splitlines() if file.exists() else ():
        if line and not line.startswith("#"):
            name, _, reason = line.partition(" ")
            yield name, reason.strip()


def show(count: int, seed: int) -> None:
    """Print the share that was found, by folder and kind, and what was not."""
    known, same = read_results(), dict(equivalents())
    rows = [
        known[mutant.id] | {"path": mutant.path, "first": mutant.first}
        for mutant in choose(count, seed)
        if mutant.id in known
    ]
    real = [row for row in rows if row["id"] not in same]
    for title, key in (
        ("all", lambda row: "all"),
        ("folder", lambda row: row["path"].split("/")[0]),
        ("kind", lambda row: row["kind"]),
    ):
        groups: dict[str, list[bool]] = defaultdict(list)
        for row in real:
            groups[key(row)].append(row["outcome"] in FOUND)
        for name, found in sorted(groups.items()):
            print(f"{title:7} {name:12} {sum(found):4} of {len(found):4}  {sum(found) / len(found):.1%}")
    print(f"{len(rows)} faults, {len(rows) - len(real)} of them equivalent")
    for row in sorted(real, key=lambda row: (row["path"], row["first"])):
        if row["outcome"] not in FOUND:
            print(f"\n{row['id']} {row['path']}:{row['first']} {row['outcome']} ({len(row['tests'])} tests)")
            print("  - " + "\n    ".join(row["old"].splitlines()))
            print("  + " + row["new"])


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cover", "plant", "show"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="of tests for a fault, at most")
    options, rest = parser.parse_known_args()
    if options.what == "cover":
        cover(rest)
    elif options.what == "plant":
        plant(options.count, options.seed, options.jobs, options.seconds)
    else:
        show(options.count, options.seed)


if __name__ == "__main__":
    main()
