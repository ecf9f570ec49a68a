"""The checks of one produce that must read records or large batches, and the conversion to the codec of its topic.

Such a produce leaves the hot path: `RecordChecks` runs the check on a disk thread, in the order of the partition's
produces. If the topic's `compression.type` names another codec than that of a batch, the same thread compresses the
batch with the topic's codec. The conversion decodes no record: it replaces the block of records, the length, the
attributes and the CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from odradek_broker.log.log_config import LogConfig
from odradek_broker.replication.batch_checks import (
    BatchRefused,
    CheckedBatches,
    RecordChecks,
    check_client_batches,
    check_keys,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import ByteBuffer, Compression, read_header
from odradek_protocol.records.builder import recompressed_batch
from odradek_protocol.records.errors import CorruptBatch, ExpandedTooLarge


class ProduceCheck:
    """The check of one produce request. Unless it refuses the request, `records` and `checked` are afterwards the
    batches to append.
    """

    def __init__(
        self,
        records: bytes | bytearray | memoryview,
        checked: CheckedBatches | BatchRefused | None,
        config: LogConfig,
        now_ms: int,
        is_internal: bool,
        transactional: BatchRefused | None,
    ) -> None:
        """`checked` is the result of `check_client_batches`. It is None for large batches, because checking their CRCs
        would block the event loop: 4 MiB take 1 ms.
        """
        self.records = records
        self.checked: CheckedBatches | None = None
        self._refused: BatchRefused | None = None
        if isinstance(checked, BatchRefused):
            self._refused = checked
        else:
            self.checked = checked
        self._config = config
        self._now_ms = now_ms
        self._is_internal = is_internal
        self._transactional = transactional

    def run(
        self,
        checks: RecordChecks,
        partition: Hashable,
        on_checked: Callable[[ProduceCheck, BatchRefused | None], None],
    ) -> None:
        """Run the check; `on_checked` is called exactly once, in the order of the partition's checks."""
        if self._refused is not None:
            checks.name(
                partition,
                self._refused,
                len(self.records),
                self._config,
                lambda refused: on_checked(self, refused),
            )
            return
        checks.check(
            partition,
            self._look,
            size_bytes=len(self.records),
            max_message_bytes=self._config.max_message_bytes,
            on_checked=lambda refused: on_checked(self, refused),
        )

    def _look(self, bytes_expanded_max: int) -> BatchRefused | None:
        checked = self.checked or check_client_batches(
            self.records, self._config, self._now_ms, self._is_internal, self._transactional
        )
        if isinstance(checked, BatchRefused):
            if checked.name_records is None:
                return checked
            try:
                return checked.name_records(bytes_expanded_max)
            except ExpandedTooLarge:
                return checked
        self.checked = checked
        if self._is_internal:
            return None
        if self._config.cleanup_compact:
            refused = check_keys(self.records, checked, bytes_expanded_max)
            if refused is not None:
                return refused
        if self._config.compression is not None:
            return self._compress(checked, self._config.compression, bytes_expanded_max)
        return None

    def _compress(
        self, checked: CheckedBatches, compression: Compression, bytes_expanded_max: int
    ) -> BatchRefused | None:
        """Compress all batches that have another codec. Raises ExpandedTooLarge. Returns a refusal, or None."""
        batches: list[ByteBuffer] = []
        positions: list[tuple[int, int]] = []
        size_bytes = 0
        for position, count in checked.positions:
            header = read_header(self.records, position)
            batch: ByteBuffer = memoryview(self.records)[position : position + header.size_bytes]
            if header.compression is not compression:
                try:
                    batch, expanded_bytes = recompressed_batch(
                        self.records,
                        position,
                        header,
                        compression,
                        bytes_expanded_max,
                        level=self._config.compression_level,
                    )
                except ExpandedTooLarge:
                    raise
                except CorruptBatch as error:
                    return BatchRefused(
                        ErrorCode.CORRUPT_MESSAGE, f"batch at byte {position}: {error}"
                    )
                bytes_expanded_max -= expanded_bytes
            if len(batch) > self._config.max_message_bytes:
                return BatchRefused(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"with compression.type={compression.name.lower()} of the topic, a batch has {len(batch)} bytes,"
                    f" more than max.message.bytes ({self._config.max_message_bytes}): send smaller batches, or raise"
                    " this limit of the topic",
                )
            batches.append(batch)
            positions.append((size_bytes, count))
            size_bytes += len(batch)
        self.records = bytearray().join(
            batches
        )  # a copy, because offsets and times are written into it
        self.checked = CheckedBatches(tuple(positions), checked.record_count, checked.producer)
        return None
