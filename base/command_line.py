"""What the commands that work on a checkpoint share: sample.py, score.py and export.py. Imports nothing heavy."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from base.errors import InputError, is_out_of_memory, nearest, one_line
from base.files import atomic


def answer(program: str, work: Callable[[], None], *, out_of_memory: str) -> int:
    """Do the work of a command; what goes wrong is said in one line.

    Returns:
        The exit status: 0, 2 for what a person gave wrong, 1 for a file or terminal that failed, 130 for Ctrl-C.
    """
    try:
        work()
        sys.stdout.flush()
    except InputError as error:
        return refuse(program, error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _forget_output()
    except OSError as error:
        _forget_output()
        print(f"{program}: {one_line(error)}", file=sys.stderr)
        return 1
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return refuse(program, f"out of memory: {out_of_memory}")
    return 0


@contextmanager
def writing_to(name: str, option: str, inputs: Iterable[Path]) -> Iterator[TextIO]:
    """A text file that takes its name when all is written, and on Ctrl-C with what there is, if anything.

    Args:
        name: of the file; what a link names and a device are written to as they are.
        option: that named it.
        inputs: files that are being read.

    Raises:
        InputError: it cannot be written, or is one of `inputs`.
    """
    path, stopped, stack = Path(name), False, ExitStack()
    try:
        if name in ("", "-") or path.is_dir():
            raise InputError(f"{option} {name or repr(name)}: must be the name of a file")
        if path.exists() and any(each.exists() and path.samefile(each) for each in inputs):
            raise InputError(f"{option} {name}: is being read; write to another file")
        device = path.exists() and not path.is_file()
        opened = path if device else stack.enter_context(atomic(path.resolve()))
        file = stack.enter_context(open(opened, "w", encoding="utf-8", newline=""))
    except OSError as error:
        raise InputError(f"{option} {name}: {error.strerror}") from None
    with stack:
        try:
            yield file
        except KeyboardInterrupt:
            if device or not file.tell():
                raise
            stopped = True
    if stopped:
        raise KeyboardInterrupt


def _forget_output() -> None:
    """What standard output still holds is not written when Python ends: it would fail again."""
    with suppress(OSError):  # in a test, it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse(program: str, reason: object) -> int:
    """Answer wrong input in one line."""
    print(f"{program}: {one_line(reason)}", file=sys.stderr)
    return 2


class Parser(argparse.ArgumentParser):
    """An argument parser that answers in one line and names the nearest option."""

    def error(self, message: str) -> Any:
        """Leave with exit status 2."""
        words = message.rpartition("unrecognized arguments: ")[2].split()
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        near = nearest(words[0], flags) if words and words[0].startswith("--") else ""
        self.exit(2, f"{self.prog}: {one_line(message)}{near}\n")


def number(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], Any]:
    """A parser of numbers from `least` to `most`."""
    what = "a whole number" if kind is int else "a number"

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: must be {what}, at least {least} and at most {most}")
        return value

    return read


def device(text: str) -> str:
    """A parser of names of devices that can compute."""
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,4})?", text):
        raise argparse.ArgumentTypeError(f"{text}: must be cpu, cuda, cuda:1 or mps")
    return text


def to_device(thing: Any, name: str) -> Any:
    """Move a model or a tensor to the device that `--device` names.

    Raises:
        InputError: this machine does not have it.
    """
    try:
        return thing.to(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name}: cannot be used here: {reason}") from None
