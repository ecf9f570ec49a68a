"""Computes the committed and pending offsets from a log of `__consumer_offsets`, without code of the broker's group
coordinator.
"""

from __future__ import annotations

from collections import defaultdict

from odradek_broker.groups.formats import record_codec
from odradek_broker.groups.records import OffsetCommitRecord
from odradek_broker.log.partition_log import PartitionLog
from odradek_protocol.records import ControlType, decode_batch, read_control
from tests.sim.transactions.log_fold import batches


class FoldedOffsets:
    """The committed and pending offsets in one partition of `__consumer_offsets`, computed only from the order of its
    records.

    The record of an offset counts unless a later record has the same key (group, topic, partition), because compaction
    keeps only the last record of a key.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.committed: dict[tuple[str, str], int] = {}
        self._counts: dict[tuple[str, str], int] = {}  # the order of the record that counts
        self._pending: dict[int, dict[tuple[str, str], tuple[int, int]]] = defaultdict(dict)
        order = 0
        for data, at, header in batches(log, log.log_start_offset, log.log_end_offset):
            if header.is_control:
                ended = self._pending.pop(header.producer_id, {})
                if read_control(data, at).type is ControlType.COMMIT:
                    for key, (offset, written) in ended.items():
                        self._count(key, offset, written)
                continue
            for raw in decode_batch(data, at):
                record = record_codec.decode(raw.key or b"", raw.value)
                if not isinstance(record, OffsetCommitRecord):
                    continue
                order += 1
                key = (record.group_id, str(record.partition))
                offset = -1 if record.committed is None else record.committed.offset
                if header.is_transactional:
                    self._pending[header.producer_id][key] = (offset, order)
                else:
                    self._count(key, offset, order)

    def _count(self, key: tuple[str, str], offset: int, order: int) -> None:
        if order < self._counts.get(key, 0):
            return
        self._counts[key] = order
        if offset < 0:
            self.committed.pop(key, None)
        else:
            self.committed[key] = offset

    @property
    def pending(self) -> set[tuple[str, str]]:
        return {
            key
            for offsets in self._pending.values()
            for key, (_, order) in offsets.items()
            if order > self._counts.get(key, 0)
        }
