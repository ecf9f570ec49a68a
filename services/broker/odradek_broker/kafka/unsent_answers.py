"""What clients were answered and have not taken yet, on all connections together.

An answer to a fetch may be 50 MiB, and what a socket does not take of it is in memory until it does. One connection is
bounded, as nothing more is begun on it; many slow ones are bounded by this: the more is unsent, the less records go
into a next answer, down to `LEAST_BYTES`, which is what a connection may leave unsent anyway and lets the others go on.
"""

from __future__ import annotations

from typing import Final

UNSENT_BYTES_MAX: Final = 32 << 20
LEAST_BYTES: Final = 1 << 20


class UnsentAnswers:
    """Connections tell of it when they stop taking, and when they take again."""

    __slots__ = ("_bytes_max", "_unsent", "total_bytes")

    def __init__(self, bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._unsent: dict[object, int] = {}
        self.total_bytes = 0

    def hold(self, connection: object, size_bytes: int) -> None:
        """So much waits for that connection now."""
        self.total_bytes += size_bytes - self._unsent.pop(connection, 0)
        if size_bytes:
            self._unsent[connection] = size_bytes

    def room_for(self, wanted_bytes: int) -> int:
        """How many bytes of records an answer may have."""
        return min(wanted_bytes, max(self._bytes_max - self.total_bytes, LEAST_BYTES))
