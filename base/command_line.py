"""Options, output files and exit status of the commands. Imports nothing heavy."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from base import processes
from base.errors import InputError, describe_os_error, is_out_of_memory, nearest, one_line
from base.files import atomic
from base.progress import discard


def answer(program: str, work: Callable[[], None], *, out_of_memory: str) -> int:
    """Do the work of a command and report an error in one line; `out_of_memory` says what to try if memory runs out.

    Returns:
        The exit status: 0; 2 for wrong input or too little memory, 1 for a failed file or terminal, 130 for Ctrl-C.
    """
    processes.limit_spinning()
    try:
        work()
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        discard(sys.stdout)
        return 0
    except InputError as error:
        status, reason = 2, str(error)
    except OSError as error:
        discard(sys.stdout)
        status, reason = 1, describe_os_error(error, "standard output")
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        status, reason = 2, f"out of memory: {out_of_memory}"
    print(f"{program}: {one_line(reason)}", file=sys.stderr)
    return status


def output_path(name: str, option: str, inputs: Iterable[Path], *, overwrite: bool) -> Path:
    """Return the path of the output file `name`, with links resolved. Refuse it if it is one of `inputs`."""
    path = Path(name)
    if name in ("", "-") or path.is_dir():
        raise InputError(f"{option} {name or repr(name)}: must be the name of a file")
    if path.exists() and any(each.exists() and path.samefile(each) for each in inputs):
        raise InputError(f"{option} {name}: is being read; write to another file")
    if path.is_file() and not overwrite:
        raise InputError(f"{option} {name}: exists; give another name, or --overwrite to replace it")
    return path.resolve()


@contextmanager
def writing_to(name: str, option: str, inputs: Iterable[Path], *, overwrite: bool) -> Iterator[TextIO]:
    """Open a temporary text file and rename it to `name` when the block ends or Ctrl-C stops it.

    A device, such as /dev/stdout, is written to directly.
    """
    stopped, stack = False, ExitStack()
    try:
        path = output_path(name, option, inputs, overwrite=overwrite)
        device = path.exists() and not path.is_file()
        opened = path if device else stack.enter_context(atomic(path))
        file = stack.enter_context(open(opened, "w", encoding="utf-8", newline=""))
    except OSError as error:
        error.filename = name
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

    def error(self, message: str) -> Any:
        """Print the message and exit with status 2."""
        words = message.rpartition("unrecognized arguments: ")[2].split()
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        near = nearest(words[0], flags) if words and words[0].startswith("--") else ""
        self.exit(2, f"{self.prog}: {one_line(message)}{near}\n")


def add_overwrite(add: Callable[..., Any]) -> None:
    """Add the option `--overwrite`."""
    add("--overwrite", action="store_true", help="replace the output file if it exists")


def add_unknown(add: Callable[..., Any], what: str) -> None:
    """Add the option `--unknown`; `what` says in its help which characters it is about."""
    add(
        "--unknown",
        choices=("error", "skip", "replace"),
        default="error",
        help=f"stop at {what} outside the vocabulary, drop them or take the nearest ones (default error)",
    )


def about_unknown(option: str = "--unknown") -> str:
    """Return the advice at the end of an error about an unknown character."""
    return f"{option} skip drops it, {option} replace takes the nearest"


def number(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], Any]:
    """Return an argparse type for numbers from `least` to `most`."""
    what = "a whole number" if kind is int else "a number"

    def read(text: str) -> Any:
        with suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        raise argparse.ArgumentTypeError(f"{text}: must be {what}, at least {least} and at most {most}")

    return read


def device(text: str) -> str:
    """Check the name of a device (argparse type)."""
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,4})?", text):
        raise argparse.ArgumentTypeError(f"{text}: must be cpu, cuda, cuda:1 or mps")
    return text
