"""What was sent to one voter and is not acknowledged: how much more may follow.

Entries that have left this node's queues still take memory where they arrive, until that disk has them.
A voter whose disk hangs acknowledges nothing, so the window counts until the acknowledgement and not
until the queue is empty. It forgets all of it when the connection ends, or when the voter says that its
log goes on elsewhere: then what was sent is gone, or comes again.
"""

from __future__ import annotations

from collections import deque

from odradek_metadata_quorum.quorum.storage.log_recovery import Entry


class SendWindow:
    """Bytes under way to one voter; lives on the leader."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, int]] = deque()  # (last index, bytes) of each message
        self.bytes = 0

    def sent(self, entries: list[Entry]) -> None:
        """A message with these entries is on its way."""
        size = sum(len(command) for command, _, _ in entries)
        self._sent.append((entries[-1][1], size))
        self.bytes += size

    def acknowledged(self, index: int) -> None:
        """The voter has the log up to `index` on its disk."""
        while self._sent and self._sent[0][0] <= index:
            self.bytes -= self._sent.popleft()[1]

    def clear(self) -> None:
        """Nothing of it is under way any more."""
        self._sent.clear()
        self.bytes = 0
