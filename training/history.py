"""Store a series in bounded memory."""

from typing import Any


class History:
    """A series of at most `size` entries, an even number. When it is full, it drops every second one, old and new.

    Which entries stay depends only on how many were added, so a resumed run has the same.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: list[Any] = []
        self.seen = 0  # entries added so far
        self.every = 1  # every how many entries one is stored

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
