"""Checks that open a client's batches, off the event loop.

To find a record without a key, or the records that a batch is refused for, the batch is expanded,
which takes as long as its client likes: one of 61 KB may hold 60 MiB. So only what is small is looked
at on the event loop (`SMALL_*`). The rest goes to the pool, one check of the whole broker at a time,
which leaves the other threads to the disk; partitions take turns, and each keeps the order of its
produces. What one produce may expand to is bounded (`expanded_bytes_max`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from odradek_broker.replication.batch_checks import BatchRefused
from odradek_broker.replication.disk.disk_pool import Pool
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.compression import BYTES_EXPANDED_MAX
from odradek_protocol.records.errors import ExpandedTooLarge

SMALL_BYTES_MAX: Final = 16 * 1024
SMALL_EXPANDED_BYTES_MAX: Final = 64 * 1024
EXPANSION_MAX: Final = 20

Look = Callable[[int], BatchRefused | None]
"""What is wrong with the batches, given what they may expand to; raises ExpandedTooLarge."""
OnChecked = Callable[[BatchRefused | None], None]


def expanded_bytes_max(max_message_bytes: int) -> int:
    """What the batches of one produce may expand to, for a topic's largest batch."""
    return min(max(EXPANSION_MAX * max_message_bytes, SMALL_EXPANDED_BYTES_MAX), BYTES_EXPANDED_MAX)


class _Check:
    __slots__ = ("bytes_max", "look", "on_checked", "refused")

    def __init__(self, look: Look, bytes_max: int, on_checked: OnChecked) -> None:
        self.look = look
        self.bytes_max = bytes_max
        self.on_checked = on_checked
        self.refused: BatchRefused | None = None

    def run(self) -> None:
        try:
            self.refused = self.look(self.bytes_max)
        except ExpandedTooLarge:
            self.refused = BatchRefused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batches expand to more than {self.bytes_max} bytes, {EXPANSION_MAX} times"
                f" max.message.bytes: send smaller batches, or raise it for the topic",
            )


class RecordChecks:
    """All checks of a broker. For the event loop alone."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lines: dict[Hashable, deque[_Check]] = {}  # by partition, next in turn first
        self._is_running = False

    def is_busy(self, partition: Hashable) -> bool:
        """Whether produces of the partition wait: later ones must wait behind them."""
        return partition in self._lines

    def check(
        self,
        partition: Hashable,
        look: Look,
        *,
        size_bytes: int,
        max_message_bytes: int,
        on_checked: OnChecked,
    ) -> None:
        """Have `look` run on batches of so many bytes; `on_checked` once, perhaps at once, in the
        order of the partition's calls."""
        if size_bytes <= SMALL_BYTES_MAX and partition not in self._lines:
            try:
                refused = look(SMALL_EXPANDED_BYTES_MAX)
            except ExpandedTooLarge:
                pass
            else:
                on_checked(refused)
                return
        bytes_max = expanded_bytes_max(max_message_bytes)
        self._lines.setdefault(partition, deque()).append(_Check(look, bytes_max, on_checked))
        self._run_next()

    def _run_next(self) -> None:
        if self._is_running or not self._lines:
            return
        self._is_running = True
        partition = next(iter(self._lines))
        check = self._lines[partition][0]
        self._pool.run(check.run, lambda: self._done(partition, check))

    def _done(self, partition: Hashable, check: _Check) -> None:
        self._is_running = False
        line = self._lines.pop(partition)
        line.popleft()
        if line:
            self._lines[partition] = line  # others' turn comes first
        try:
            check.on_checked(check.refused)
        finally:
            self._run_next()
