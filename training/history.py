"""Series of a run that stay short, however long it goes on."""

from typing import Any


class History:
    """Entries of a series, at most so many: when it is full, every second one goes, and is not taken from then on.

    What is kept follows from the entries alone, so a run that was interrupted keeps the same.

    Args:
        most: entries at most; even, at least 2.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.entries: list[Any] = []
        self.seen = 0
        self.every = 1  # which of those seen are kept

    def add(self, entry: Any) -> None:
        """Add the next one, as plain data."""
        if self.seen % self.every == 0:
            if len(self.entries) == self.most:
                self.entries = self.entries[::2]
                self.every *= 2
            self.entries.append(entry)
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        """What is kept, for a checkpoint."""
        return {"entries": list(self.entries), "seen": self.seen, "every": self.every}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was kept."""
        self.entries, self.seen, self.every = list(state["entries"]), state["seen"], state["every"]
