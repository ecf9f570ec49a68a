"""How many bytes of a partition readers may see, so that a waiting fetch sleeps until enough came."""

from __future__ import annotations

from collections import deque
from typing import Final

from odradek_protocol.identity import Offset

STEPS_MAX: Final = 1024


class VisibleBytes:
    """Counts appends until they are below the high watermark, in this process's life.

    While the watermark stands still (too few replicas in sync, with acks=1) appends may go on for
    hours: from STEPS_MAX on all of them count as one, which is seen when its end is.
    """

    __slots__ = ("_above_watermark", "_appended_bytes", "total_bytes")

    def __init__(self) -> None:
        self.total_bytes = 0
        self._appended_bytes = 0
        self._above_watermark: deque[tuple[Offset, int]] = deque()  # (end, appended bytes then)

    def appended(self, end_offset: Offset, size_bytes: int) -> None:
        self._appended_bytes += size_bytes
        above = self._above_watermark
        if len(above) < STEPS_MAX:
            above.append((end_offset, self._appended_bytes))
        else:
            above[-1] = (end_offset, self._appended_bytes)

    def committed(self, high_watermark: Offset) -> None:
        """All that ends at or below it can be seen now."""
        above = self._above_watermark
        while above and above[0][0] <= high_watermark:
            self.total_bytes = above.popleft()[1]

    def cut(self) -> None:
        """What was above the watermark is gone, or will be counted anew."""
        self._above_watermark.clear()
