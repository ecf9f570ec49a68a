"""Planted bugs of the log on its disk; seeds whose logs are files find them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

from odradek_broker.log import recovery
from odradek_broker.log.segments.batch_walk import Header, walk_headers
from odradek_broker.log.storage import DirectoryHealth, File, StorageFailed
from odradek_protocol.records.errors import CorruptBatch
from tests.sim.planted.bug import Bug, replace_in


def _crc_not_checked(stack: ExitStack) -> None:
    def walk(file: File, position: int, end: int) -> Iterator[tuple[int, Header]]:
        with suppress(CorruptBatch):  # it ends there, as `walk_verified` does
            yield from walk_headers(file, position, end)

    replace_in(stack, recovery, "walk_verified", walk)


def _failed_sync_tried_again(stack: ExitStack) -> None:
    def fail(self: Any, what: str, error: OSError) -> StorageFailed:
        return StorageFailed(f"{what}: {error}")

    replace_in(stack, DirectoryHealth, "fail", fail)


DISK_BUGS = (
    Bug(number=17, name="CRC not checked at recovery", plant=_crc_not_checked),
    Bug(number=18, name="retry after a failed fsync", plant=_failed_sync_tried_again),
)
