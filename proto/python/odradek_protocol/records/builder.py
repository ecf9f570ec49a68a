"""Builds one record batch: records are encoded as they come, the header is made at the end."""

from __future__ import annotations

from odradek_protocol.records.attributes import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Compression,
)
from odradek_protocol.records.batch_header import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_MIN,
    HEADER,
    HEADER_BYTES,
    MAGIC,
)
from odradek_protocol.records.codec import RecordBuffer
from odradek_protocol.records.compression import compress
from odradek_protocol.records.crc32c import crc32c


class BatchBuilder(RecordBuffer):
    """One batch of a producer: `append` until it is full or its time is up, then `build`.

    `append(key, value, headers=None, timestamp_ms=-1, offset_delta=-1)`, positional only, returns
    the size of the batch so far, uncompressed, or 0 when the record does not fit into
    `size_bytes_max` any more and was not added; the first record always fits. It costs about
    0.1 us in C. The numbers of an idempotent producer are given to `build`, not before: they are
    known when the batch is sent.
    """

    __slots__ = ()

    def build(
        self,
        *,
        compression: Compression = Compression.NONE,
        compression_level: int | None = None,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        append_time_ms: int | None = None,
        delete_horizon_ms: int | None = None,
        last_offset_delta: int | None = None,
    ) -> bytes:
        """The whole batch. The builder stays as it is, so it may be built again.

        `append_time_ms` makes it the timestamp of all records (LOG_APPEND_TIME).
        `delete_horizon_ms` and `last_offset_delta` are for compaction: the first is kept in place
        of the base timestamp, so it needs records whose first timestamp is that (KIP-534); the
        second is the original one, which may be beyond the last record that is left.
        """
        if last_offset_delta is None:
            last_offset_delta = self.last_offset_delta
        elif last_offset_delta < self.last_offset_delta:
            raise ValueError(f"last offset delta {last_offset_delta} < {self.last_offset_delta}")
        if last_offset_delta < 0:
            raise ValueError("a batch without records")
        attributes = int(compression)
        base_timestamp_ms, max_timestamp_ms = self.base_timestamp_ms, self.max_timestamp_ms
        if append_time_ms is not None:
            attributes |= TIMESTAMP_TYPE_MASK
            max_timestamp_ms = append_time_ms
        if transactional:
            attributes |= TRANSACTIONAL_MASK
        if control:
            attributes |= CONTROL_MASK
        if delete_horizon_ms is not None:
            attributes |= DELETE_HORIZON_MASK
            base_timestamp_ms = delete_horizon_ms
        records = self.records()
        if compression is not Compression.NONE:
            records = compress(records, compression, compression_level)
        header = bytearray(HEADER_BYTES)
        HEADER.pack_into(
            header,
            0,
            base_offset,
            BATCH_LENGTH_MIN + len(records),
            leader_epoch,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            base_timestamp_ms,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            self.record_count,
        )
        crc = crc32c(records, crc32c(bytes(header[ATTRIBUTES_AT:])))
        header[ATTRIBUTES_AT - 4 : ATTRIBUTES_AT] = crc.to_bytes(4, "big")
        return b"".join((header, records))
