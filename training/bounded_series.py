"""Store a long series, such as the losses of a run, in bounded memory."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class BoundedSeries:
    """A list that stores at most `size` of the entries added to it: first all, then every second, then every fourth.

    Whenever the list is full, every second stored entry is removed, and from then on only half as many of the added
    entries are stored. The stored entries depend only on the number of added entries, so a resumed run stores the same
    entries as an uninterrupted one. A checkpoint contains `vars(series)`.
    """

    size: int  # maximum number of stored entries, an even number
    entries: list[Any] = field(default_factory=list)  # the stored entries
    seen: int = 0  # number of entries added so far
    every: int = 1  # one in this many added entries is stored

    def add(self, entry: Any) -> None:
        """Count `entry` as added, and store it unless it is skipped because only one in `every` entries is stored."""
        if self.seen % self.every == 0:
            if len(self.entries) == self.size:
                self.entries = self.entries[::2]
                self.every *= 2
            self.entries.append(entry)
        self.seen += 1
