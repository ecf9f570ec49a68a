"""Damage on a simulated disk: one byte of a log differs from what was written."""

from __future__ import annotations

from pathlib import Path

from odradek_broker.log.partition_log import PartitionLog
from odradek_protocol.records import iter_headers
from odradek_protocol.records.batch_header import HEADER_BYTES
from tests.sim.scheduler import Scheduler
from tests.worlds.memory_storage import Inode, MemoryStorage

BITS = 0x55


class Damage:
    """A byte in the records of a batch that the disk has changed. The headers of batches stay intact, because the CRC
    does not cover all of their fields.
    """

    def __init__(self, directory: Path, inode: Inode, position: int, base_offset: int) -> None:
        self.directory = directory
        self.base_offset = base_offset  # base offset of the damaged batch
        self.is_marked = False  # whether the log was marked as damaged when this process started
        self.is_cut = False  # whether the log was truncated before the damage
        self._inode = inode
        self._position = position

    def flip(self) -> None:
        """Change the byte, or change it back, unless the log was truncated below it."""
        inode, at = self._inode, self._position
        if self.is_cut or len(inode.data) <= at or len(inode.durable) <= at:
            return
        inode.data[at] ^= BITS
        inode.durable = inode.durable[:at] + bytes([inode.data[at]]) + inode.durable[at + 1 :]


def damage_log(storage: MemoryStorage, log: PartitionLog, scheduler: Scheduler) -> Damage | None:
    """Damage a batch in a closed segment of a log. Return None if there is no such batch."""
    names = [name for name in storage.names(log.directory) if name.endswith(".log")]
    if len(names) < 2:
        return None
    inode = storage.inode(log.directory / scheduler.random.choice(names[:-1]))
    batches = [
        (position, header)
        for position, header in iter_headers(inode.durable)
        if header.base_offset >= log.log_start_offset
    ]
    if not batches or inode.changes:
        return None
    position, header = scheduler.random.choice(batches)
    damage = Damage(log.directory, inode, position + HEADER_BYTES, header.base_offset)
    damage.flip()
    return damage
