"""Series of bounded length."""

from typing import Any


class History:
    """A series of at most `size` entries (even): when it is full, every second entry is dropped, old and new.

    Which entries stay depends on their number alone, so a resumed run has the same.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: list[Any] = []
        self.seen = 0
        self.every = 1  # one in this many of those seen is stored

    def add(self, entry: Any) -> None:
        """Add the next entry, as plain data."""
        if self.seen % self.every == 0:
            if len(self.entries) == self.size:
                self.entries = self.entries[::2]
                self.every *= 2
            self.entries.append(entry)
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"entries": list(self.entries), "seen": self.seen, "every": self.every}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self.entries, self.seen, self.every = list(state["entries"]), state["seen"], state["every"]
