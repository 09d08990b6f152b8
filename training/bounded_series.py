"""Store a series in bounded memory."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class BoundedSeries:
    """A series of at most `size` entries, an even number. When it is full, it drops every second one, old and new.

    Which entries stay depends only on how many were added, so a resumed run has the same. The state for a checkpoint
    is `vars(history)`.
    """

    size: int
    entries: list[Any] = field(default_factory=list)
    seen: int = 0  # entries added so far
    every: int = 1  # every how many entries one is stored

    def add(self, entry: Any) -> None:
        """Add the next entry, as plain data."""
        if self.seen % self.every == 0:
            if len(self.entries) == self.size:
                self.entries = self.entries[::2]
                self.every *= 2
            self.entries.append(entry)
        self.seen += 1
