"""Accepts the requests of one transactional id in the order in which the client opened its connections.

A client may abandon a connection and repeat its request over another connection, while the first copy of the request is
still in transit. For clients of transaction versions 0 and 1 the epoch does not change with each transaction, so a late
EndTxn would end the *next* transaction (KAFKA-17754). Therefore connections are numbered when they open. If a request
arrives on a connection with a lower number than the connection of the last accepted request, the request is not
handled, and its connection is closed.

Clients of transaction version 2 do not need this, because the epoch in a request identifies the transaction.
"""

from __future__ import annotations


class ConnectionNumbers:
    """Numbers the connections of one broker process in the order in which they open."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """Return a number for a connection that has just been opened."""
        self.last += 1
        return self.last


class ConnectionOrder:
    """The last connection of each transactional id, for one coordinator shard.

    A shard does not know which requests earlier shards accepted. Therefore it treats all connections that were open
    when it was loaded as abandoned; a client that is alive connects again. The first shard of a partition in this
    process (`is_first`) still accepts the newest of these connections. In this case no earlier shard of this process
    has accepted a request, and the newest connection is often that of the client whose first request created the topic.
    """

    __slots__ = ("_first", "_last")
    NAMES_MAX = 200_000  # the maximum number of ids whose last connection is stored

    def __init__(self, last_number: int, *, is_first: bool) -> None:
        self._first = last_number if is_first else last_number + 1
        self._last: dict[str, int] = {}

    def is_outdated(self, transactional_id: str, connection: int) -> bool:
        """Return whether a request for this id has already been accepted on a later connection."""
        return connection < self._last.get(transactional_id, self._first)

    def accepted(self, transactional_id: str, connection: int) -> None:
        """Record the connection of a request whose producer id and epoch were accepted."""
        self._last.pop(transactional_id, None)
        self._last[transactional_id] = connection
        if len(self._last) > self.NAMES_MAX:
            del self._last[next(iter(self._last))]
