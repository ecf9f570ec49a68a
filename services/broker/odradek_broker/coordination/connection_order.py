"""Accepts the requests of one transactional id in the order in which the client opened its connections.

A client that abandoned a connection and sent its request again over another one may still have the first copy on its
way. For clients of transaction versions 0 and 1 the epoch does not change with each transaction, so a late EndTxn would
end the *next* transaction (KAFKA-17754). Connections are numbered as they open. If a request arrives over a connection
with a lower number than that of the last accepted request, it is not decided, and its connection is closed.

Requests of transaction version 2 need none of this, because their epochs identify the transaction that they mean.
"""

from __future__ import annotations


class ConnectionNumbers:
    """Numbers the connections of one broker process in the order in which they open."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """Return the number of a connection that has just opened."""
        self.last += 1
        return self.last


class ConnectionOrder:
    """The last connection of each transactional id, for one coordinator shard from its load to its end.

    A shard does not know what earlier shards have accepted. So all connections that were open before it was loaded are
    treated as abandoned; a client that is alive connects again. Only the first shard of a partition in this process
    (`is_first`) still takes the last of them, over which the client often came for which the topic was created: no
    earlier shard has taken requests that a delayed one could follow.
    """

    __slots__ = ("_first", "_last")
    NAMES_MAX = 200_000  # ids whose last connection is remembered

    def __init__(self, last_number: int, *, is_first: bool) -> None:
        self._first = last_number if is_first else last_number + 1
        self._last: dict[str, int] = {}

    def is_outdated(self, transactional_id: str, connection: int) -> bool:
        """Return whether a request for this id has already arrived over a later connection."""
        return connection < self._last.get(transactional_id, self._first)

    def accepted(self, transactional_id: str, connection: int) -> None:
        """Record the connection of a request whose producer id and epoch were accepted."""
        self._last.pop(transactional_id, None)
        self._last[transactional_id] = connection
        if len(self._last) > self.NAMES_MAX:
            del self._last[next(iter(self._last))]
