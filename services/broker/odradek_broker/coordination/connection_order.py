"""Accepts the requests of one transactional id in the order in which the client opened its connections.

A client that gave a connection up, and has sent its request again over another one, may have the first copy still on
its way. For clients of transaction versions 0 and 1 the epoch does not change with each transaction, so a late EndTxn
would end the *next* transaction (KAFKA-17754). Connections are numbered as they open. A request that comes over a
connection with a lower number than that of the last accepted request is not decided; its connection is closed.

Requests of transaction version 2 need none of this, because their epochs say which transaction they mean.
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
    """The last connection of each transactional id, for one coordinator shard from its load to its end. What
    earlier shards have accepted is not known. So connections that were open before this shard was loaded count as
    given up; a live client connects again.
    """

    __slots__ = ("_at_begin", "_last")
    NAMES_MAX = 200_000  # what is forgotten beyond that counts as not accepted since the begin

    def __init__(self, last_number: int) -> None:
        self._at_begin = last_number
        self._last: dict[str, int] = {}

    def is_outdated(self, transactional_id: str, connection: int) -> bool:
        """Return whether a later connection has brought a request for this id."""
        return connection < self._last.get(transactional_id, self._at_begin)

    def accepted(self, transactional_id: str, connection: int) -> None:
        """Record the connection of a request whose producer id and epoch were accepted."""
        self._last.pop(transactional_id, None)
        self._last[transactional_id] = connection
        if len(self._last) > self.NAMES_MAX:
            del self._last[next(iter(self._last))]
