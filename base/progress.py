"""Shows how far slow work is: in a terminal from its third second on. Imports nothing heavy."""

import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from base import processes


def clock(seconds: float) -> str:
    """Write a duration as people read it: 0:42, 12:05, 3:07:00."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


PATIENCE_SECONDS = 2.0  # seconds before anything is shown
LINE_SECONDS = 10.0  # seconds between lines where there is no terminal


class Progress:
    """A context in which something slow is done.

    In a terminal a bar, or where no end is known the time that has passed, is kept up to date by a thread and removed
    in the end; elsewhere there is a line on standard error every ten seconds, in the long run less often. Of several
    processes, the first shows.

    Args:
        what: is being done, in a word or two.
        total: how much there is to do; 0 where that is not known.
        unit: what `total` counts, such as `B`.
        lines: whether to write lines where there is no terminal; not where others say how far it is.
    """

    def __init__(self, what: str, total: float = 0, unit: str = "", lines: bool = True) -> None:
        self.what, self.total, self.unit, self.lines = what, total, unit, lines
        self.count = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> "Progress":
        self.begun = time.perf_counter()
        if processes.rank() == 0:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def update(self, done: float) -> None:
        """So much more is done; takes no time, in any thread."""
        self.count += done

    def reset(self) -> None:
        """Begin to count anew, as downloads do in the end."""
        self.count = 0.0

    def close(self) -> None:
        """Of downloads, which close what shows them; the context goes on."""

    def _show(self) -> None:
        if self._over.wait(PATIENCE_SECONDS):
            return
        with suppress(OSError):  # whoever was to see it is gone
            if sys.stderr.isatty():
                self._draw()
            elif self.lines:
                self._tell()

    def _draw(self) -> None:
        from tqdm import tqdm

        shape = "{desc}  {elapsed}"
        if self.total:
            shape = "{desc} {percentage:3.0f} % {bar} {n_fmt}/{total_fmt}{unit}  {elapsed}, {remaining} left"
        with tqdm(
            desc=self.what, total=self.total or None, unit=self.unit and f" {self.unit}", unit_scale=self.total >= 1000,
            leave=False, file=sys.stderr, dynamic_ncols=True, bar_format=shape,
            delay=1e-9,  # nothing is drawn before the time that has passed is right
        ) as bar:  # fmt: skip
            bar.start_t -= PATIENCE_SECONDS
            while True:
                bar.n, bar.total = self._done(), self.total or None
                bar.refresh()
                if self._over.wait(0.25):
                    return

    def _tell(self) -> None:
        passed = 0.0
        while not self._over.wait(max(LINE_SECONDS, passed / 10)):
            passed, done = time.perf_counter() - self.begun, self._done()
            far = f"{clock(passed)} so far"
            if self.total and done:
                far = f"{100 * done / self.total:.0f} %, {clock(passed * (self.total / done - 1))} left"
            print(f"{self.what}: {far}", file=sys.stderr, flush=True)

    def _done(self) -> float:
        return min(self.count, self.total) if self.total else self.count


def hidden() -> AbstractContextManager[None]:
    """A context in which text can be written to a terminal: what is shown there steps aside."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)  # loaded when there is something to show
    return bars.external_write_mode() if bars else nullcontext()
