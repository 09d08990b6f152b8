"""Options, output files and exit status of the commands. This module does not load torch."""

import argparse
import io
import os
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from base import processes, ranks
from base.errors import (
    InputError,
    RunFailed,
    describe_os_error,
    is_out_of_memory,
    nearest,
    one_line,
)
from base.files import atomic
from base.log import log, to_console
from base.options import NAMES
from base.progress import count, discard

# Rounds that a thread of GNU's OpenMP spins at a barrier before it sleeps, also in child processes.
# A spinning thread can occupy the core that the last thread needs. Beside one busy process,
# training keeps 6 to 30 % of its speed with GNU's default of 300,000 rounds, 35 % with 3,000 and
# 77 % with 100. But with 300 rounds or fewer it loses a third of its speed on a quiet machine
# (docs/experiments.md).
SPINS = "3000"
RANK_0_SECONDS = 5.0  # seconds that other ranks wait for rank 0 to print its error first
# advice for words without an option
ABOUT_WORDS = {"sample.py": "; is --prompt missing?", "score.py": "; is --compare missing?"}
ABOUT_UNKNOWN = "--unknown skip drops it, --unknown replace uses the nearest"


def main(program: str, work: Callable[[], int | None], *, out_of_memory: str = "") -> int:
    """Call `work`, report an expected error in one line on standard error, and return the exit status.

    The status is the result of `work` (None: 0) or that of its `InputError` or `RunFailed`; 2 if
    memory ran out, for which `out_of_memory` is the advice; 1 for an `OSError`; 130 for Ctrl-C.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # before torch is loaded
    # some job schedulers start processes without standard streams
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    to_console()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # print ? for a character outside the terminal's encoding
        sys.stdout.reconfigure(errors="replace")
    try:
        processes.cores()  # raises for an invalid OMP_NUM_THREADS before the work begins
        status = work() or 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        discard(sys.stdout)
        return 0
    except (InputError, RunFailed) as error:
        status = error.status
        reason = str(error)
        if isinstance(error, RunFailed) and ranks.local_rank() > 0:
            # Every rank raises nearly the same error, so one per machine prints it; if this
            # process ended first, the launcher would end that one.
            time.sleep(RANK_0_SECONDS)
            return status
        # After a JobError, the number of this rank cannot be read.
        is_later_rank = not isinstance(error, ranks.JobError) and ranks.rank() > 0
        if isinstance(error, InputError) and is_later_rank:
            # rank 0 may have the same error; then the launcher ends this process
            time.sleep(RANK_0_SECONDS)
            reason = f"rank {ranks.rank()} on {platform.node()}: {reason}"
    except OSError as error:
        discard(sys.stdout)  # if it could not be written, flushing it at exit would fail as well
        status = 1
        reason = describe_os_error(error)
    except RecursionError:
        status = 2
        reason = "a value or a file is nested too deeply"
    except (RuntimeError, MemoryError, ImportError) as error:
        if not is_out_of_memory(error):
            raise
        status = 2
        reason = f"out of memory: {out_of_memory}" if out_of_memory else "out of memory"
    log.error(f"{program}: {one_line(reason)}")
    return status


def output_path(name: str, option: str, inputs: Iterable[Path], *, overwrite: bool) -> Path:
    """Return the path of the output file that `option` names, after checking that it may be written.

    A file in `inputs` is never replaced, and an existing file only with `overwrite`.
    """
    path = Path(name)
    if name in ("", "-") or path.is_dir():
        raise InputError(f"{option} {name or repr(name)}: must be the name of a file")
    if path.exists() and any(file.exists() and path.samefile(file) for file in inputs):
        raise InputError(f"{option} {name}: is also an input; write to another file")
    if path.is_file() and not overwrite:
        raise InputError(
            f"{option} {name}: already exists; give another name, or --overwrite to replace it"
        )
    return path.resolve()


@contextmanager
def writing_to(
    name: str, option: str, inputs: Iterable[Path], *, overwrite: bool
) -> Iterator[TextIO]:
    """Write to the file that `option` names, atomically (see `output_path`), or to a device such as /dev/stdout.

    What was written before Ctrl-C is kept. After another exception the file is as before.
    """
    stack = ExitStack()
    stopped = False
    try:
        path = output_path(name, option, inputs, overwrite=overwrite)
        device = path.exists() and not path.is_file()
        if not device:
            path = stack.enter_context(atomic(path))
        file = stack.enter_context(
            open(path, "w", encoding="utf-8", errors="surrogateescape", newline="")
        )
    except OSError as error:
        error.filename = name  # not the resolved or the temporary path
        raise InputError(f"{option} {describe_os_error(error)}") from None
    with stack:
        try:
            yield file
        except KeyboardInterrupt:
            if device or not file.tell():
                raise
            stopped = True  # raised again below, once the file has its name
    if stopped:
        raise KeyboardInterrupt


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line and suggests the nearest option."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_argument(
            "--version", action=_PrintVersions, nargs=0, help="print the versions of the packages"
        )

    def error(self, message: str) -> Any:
        """Print `message` with advice, such as the nearest option, on one line, and exit with status 2."""
        unknown = re.split(r"[\s=]", message.partition("unrecognized arguments: ")[2])[0]
        advice = nearest(unknown, self._option_string_actions)
        if unknown and not unknown.startswith("-"):
            advice += ABOUT_WORDS.get(self.prog, "")
        self.exit(2, f"{self.prog}: {one_line(message)}{advice}\n")


class _PrintVersions(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # costs 10 ms, which only --version needs

        versions = [f"{name} {version(name)}" for name in ("chargpt", "torch", "lightning")]
        print(", ".join([*versions, f"Python {platform.python_version()}"]))
        parser.exit()


def add_unknown(add: Callable[..., Any], what: str) -> None:
    """Add the option `--unknown` by calling `add`, a parser's `add_argument`; `what`: such as `prompt characters`."""
    add(
        "--unknown",
        choices=("error", "skip", "replace"),
        default="error",
        help=f"how to handle {what} outside the vocabulary: stop with an error (default), skip them, or replace each "
        "with the nearest one",
    )


def add_device(add: Callable[..., Any]) -> None:
    """Add the option `--device` by calling `add`, a parser's `add_argument`."""
    add(
        "--device",
        type=device,
        default="cpu",
        metavar="D",
        help="device: cpu, cuda, cuda:1 or mps (default cpu)",
    )


def check_combinations(
    options: argparse.Namespace, excluded: Mapping[str, Iterable[str]], needed: Mapping[str, str]
) -> None:
    """Refuse an option beside those that it excludes, and without the one that it needs, each by its key."""
    for key, others in excluded.items():
        for other in others:
            if getattr(options, key) and getattr(options, other):
                reason = f"--{key}: cannot be combined with --{other}"
                raise InputError(reason.replace("_", "-"))
    for key, other in needed.items():
        value = getattr(options, key)
        if value not in (None, False) and not getattr(options, other):
            raise InputError(f"--{key}: needs --{other}".replace("_", "-"))


def replace_unknown(texts: Sequence[str], tokenizers: Sequence[Any], unknown: str) -> list[str]:
    """Skip or replace the characters that a tokenizer does not know, as `--unknown` says, and print them to stderr."""
    letters = Counter("".join(texts))
    forms = {letter: letter for letter in letters}  # what each letter becomes, "" if it is dropped
    # What replaces a letter for one tokenizer may be unknown to another, so a last pass drops it.
    replacing = [True, False] if unknown == "replace" else [False]
    for replace in replacing:
        for tokenizer in tokenizers:
            forms = {
                letter: tokenizer.adapt(form, replace=replace) for letter, form in forms.items()
            }
    described = []
    for letter, times in letters.most_common():
        form = f"replaced by {forms[letter]!r}" if forms[letter] else "dropped"
        if forms[letter] != letter:
            described.append(f"{letter!r} {form} ({count(times, 'time')})")
    if len(described) > 10:
        described[10:] = [f"{len(described) - 10} more"]
    if described:
        print(f"--unknown {unknown}: {', '.join(described)}", file=sys.stderr)
    table = str.maketrans(forms)
    return [text.translate(table) for text in texts]


def number(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], Any]:
    """Return an argparse type that reads a number from `least` to `most`."""

    def read(text: str) -> Any:
        with suppress(ValueError):
            value = kind(text)
            if least <= value <= most:
                return value
        raise argparse.ArgumentTypeError(
            f"{text}: must be {NAMES[kind]}, at least {least} and at most {most}"
        )

    return read


def device(text: str) -> str:
    """An argparse type: the name of a device, such as `cuda:1`."""
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,4})?", text):
        raise argparse.ArgumentTypeError(f"{text}: must be cpu, cuda, cuda:1 or mps")
    return text
