"""The last few MiB appended to a directory's partitions, kept for those who read at the tail.

Followers and most consumers want what was just written; handing them the very buffer costs no
system call and no copy. One bound for all partitions of a directory: the oldest append goes first,
whosesoever it is.

A view keeps the whole message alive that it lies in, and the rest of it may have been refused. So a
small piece of a large message is copied: what is kept alive is at most 32 times the bound.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from odradek_protocol.identity import Offset

RECENT_BYTES_MAX: Final = 8 << 20
PINNED_RATIO_MAX: Final = 32


class RecentAppend:
    """One append's bytes; `data` is None once it is dropped."""

    __slots__ = ("base_offset", "data", "end_offset", "tail")

    def __init__(
        self, base_offset: Offset, end_offset: Offset, data: bytes | memoryview, tail: Tail
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.data: bytes | memoryview | None = data
        self.tail = tail


Tail: TypeAlias = dict[Offset, RecentAppend]
"""A partition's kept appends by base offset, oldest first; each begins where the last one ends."""


class RecentAppends:
    """The bound that all tails of a directory share."""

    __slots__ = ("_bytes_max", "_forgotten", "_queue", "size_bytes")

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._queue: deque[RecentAppend] = deque()
        self._forgotten = 0  # entries of the queue without data, at most
        self.size_bytes = 0

    def keep(
        self, tail: Tail, base_offset: Offset, end_offset: Offset, data: bytes | memoryview
    ) -> None:
        """Keep an append at the end of `tail`; older ones, of any tail, make room."""
        if len(data) > self._bytes_max:
            self.forget(tail)  # a gap would break the chain
            return
        if isinstance(data, memoryview):
            whole = data.obj
            assert isinstance(whole, bytes | bytearray), type(whole)
            if len(whole) > PINNED_RATIO_MAX * len(data):
                data = bytes(data)
        append = RecentAppend(base_offset, end_offset, data, tail)
        tail[base_offset] = append
        self._queue.append(append)
        self.size_bytes += len(data)
        while self.size_bytes > self._bytes_max:
            oldest = self._queue.popleft()
            if oldest.data is not None:
                self.size_bytes -= len(oldest.data)
                oldest.data = None
                del oldest.tail[oldest.base_offset]

    def forget(self, tail: Tail) -> None:
        """Drop all of one tail: its log was cut, or an append was not kept."""
        for append in tail.values():
            assert append.data is not None, append.base_offset
            self.size_bytes -= len(append.data)
            append.data = None
        self._forgotten += len(tail)
        tail.clear()
        if 2 * self._forgotten > len(self._queue):  # each costs one look, however long one waits
            self._queue = deque(append for append in self._queue if append.data is not None)
            self._forgotten = 0
