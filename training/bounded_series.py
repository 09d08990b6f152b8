"""Store a long series, such as the losses of a run, in bounded memory."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class BoundedSeries:
    """Stores at most `size` (an even number) of the entries that are added to it, equally spaced.

    Whenever the series is full, it drops every second stored entry, and from then on stores only half as many of the
    new ones. Which entries remain depends only on how many were added, so a resumed run stores the same ones. A
    checkpoint contains `vars(series)`.
    """

    size: int
    entries: list[Any] = field(default_factory=list)
    seen: int = 0  # entries added so far
    every: int = 1  # one in this many added entries is stored

    def add(self, entry: Any) -> None:
        """Add the next entry, which must be plain data because checkpoints contain it."""
        if self.seen % self.every == 0:
            if len(self.entries) == self.size:
                self.entries = self.entries[::2]
                self.every *= 2
            self.entries.append(entry)
        self.seen += 1
