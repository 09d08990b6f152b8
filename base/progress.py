"""Show the progress of slow work. This module does not load torch."""

import os
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any, TextIO

from base import ranks


def clock(seconds: float) -> str:
    """Return a duration in seconds as text, such as 0:42, 12:05 or 3:07:00."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{seconds:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def count(number: int, what: str) -> str:
    """Return a number of things as text, such as `1 byte` or `2,000 bytes` if `what` is `byte`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


PATIENCE_SECONDS = 2.0  # seconds before anything is shown
LINE_SECONDS = 5.0  # seconds between lines where there is no terminal


class Progress:
    """Context manager that shows the progress of its block after `patience` seconds, on rank 0 only.

    In a terminal, a thread shows a bar or, if `total` is 0, the elapsed time. Elsewhere it prints
    lines.
    """

    def __init__(
        self, what: str, total: float = 0, unit: str = "", patience: float | None = None
    ) -> None:
        self.what = what
        self.patience = PATIENCE_SECONDS if patience is None else patience
        self.total = total
        self.unit = unit
        self.count = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> "Progress":
        self.begun = time.perf_counter()
        if ranks.rank() == 0:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def update(self, done: float) -> None:
        self.count += done

    def _show(self) -> None:
        if self._over.wait(self.patience):
            return
        with suppress(OSError):  # the reader of standard error has left
            if sys.stderr.isatty():
                self._show_bar()
                return
            passed = 0.0
            while not self._over.wait(max(LINE_SECONDS, passed / 10)):
                passed = time.perf_counter() - self.begun
                progress = f"{clock(passed)} so far"
                if self.total:
                    progress = f"{100 * min(1, self.count / self.total):.0f} %, {progress}"
                print(f"{self.what}: {progress}", file=sys.stderr, flush=True)

    def _show_bar(self) -> None:
        shape = "{desc}  {elapsed}"
        if self.total:
            shape = "{desc} {percentage:3.0f} % {bar} {n_fmt}/{total_fmt}{unit}  {elapsed}, {remaining} left"
        with load_tqdm()(
            desc=self.what, total=self.total or None, unit=self.unit and f" {self.unit}", unit_scale=self.total >= 1000,
            leave=False, file=sys.stderr, dynamic_ncols=True, bar_format=shape,
            delay=1e-9,  # no first bar with a wrong elapsed time
        ) as bar:  # fmt: skip
            bar.start_t -= self.patience  # the work began before the wait
            while True:
                bar.n = min(self.count, self.total or self.count)
                bar.refresh()
                if self._over.wait(0.25):
                    return


@cache
def load_tqdm() -> Any:
    """Return the class `tqdm` with a thread lock: on Python 3.14, its default lock starts another process."""
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())
    return tqdm


def hidden() -> AbstractContextManager[None]:
    """Return a context manager that hides progress bars while lines are printed."""
    if "tqdm" not in sys.modules:  # without tqdm, there is no bar
        return nullcontext()
    return load_tqdm().external_write_mode()


def discard(out: TextIO) -> None:
    """Redirect `out`, whose reader has closed it, to /dev/null, and drop the text in its buffer."""
    with suppress(OSError):  # in tests a stream may have no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
