"""Detect spikes of the loss from its running mean and spread."""

from dataclasses import dataclass

SPIKES_FROM = 20  # losses, before which none is unusual
SPIKES_SAID = 10  # spikes that get a line of their own; all are counted


@dataclass
class Spikes:
    """Counts losses that lie far above what has been usual lately.

    Attributes:
        count: spikes so far.
        usual: running mean of the loss, nats per token.
        spread: running mean of its distance from that.
        seen: losses so far.
    """

    count: int = 0
    usual: float = 0.0
    spread: float = 0.0
    seen: int = 0

    def see(self, loss: float) -> bool:
        """Take the loss of one step into account and say whether it is a spike."""
        spike = self.seen >= SPIKES_FROM and loss > self.usual + max(0.1 * self.usual, 6 * self.spread)
        distance = abs(loss - self.usual) if self.seen else 0.0
        self.seen += 1
        weight = max(1 / self.seen, 0.05)  # of a new loss
        self.spread += weight * (distance - self.spread)
        self.usual += weight * (loss - self.usual)
        self.count += spike
        return spike
