"""Checks of record batches before they are appended: 61 bytes of header and one CRC for each batch.

`check_client_batches` is on the hot path of produce: one `unpack` and one CRC per batch, no objects per record.
`scan_replicated` does the same for batches that a leader sent.

Batches are decompressed and read only on compacted topics, where a record without a key would be accepted and then
lost, and to find the records because of which a batch is refused. A client can make decompression expensive: a batch of
61 KB may expand to 60 MiB. So `RecordChecks` reads only small batches on the event loop (`SMALL_*`). Other batches are
read on disk threads, one check at a time for the whole broker, so that the other threads stay free for the disk.
Partitions take turns, and each partition's produces keep their order. The size to which the batches of one produce may
expand is bounded (`expanded_bytes_max`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from msgspec.structs import replace

from odradek_broker.compiled import Value
from odradek_broker.log.log_config import LogConfig, TimestampKind
from odradek_broker.partition.events import ProducerBatch
from odradek_broker.replication.disk.disk_pool import Pool
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_MIN,
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TRANSACTIONAL_MASK,
    ByteBuffer,
    read_header,
)
from odradek_protocol.records.batch_reader import expanded_records, open_records
from odradek_protocol.records.codec import Record, usual_batch
from odradek_protocol.records.compression import BYTES_EXPANDED_MAX
from odradek_protocol.records.errors import CorruptBatch, ExpandedTooLarge
from odradek_protocol.records.hashes import crc32c

_COMPRESSION_CODE_MAX: Final = 4
_RECORD_BYTES_MIN: Final = 7
"""The size in bytes of a record without key, value and headers: its length, attributes, two deltas, two lengths and a
count.
"""
_EXPANSION_MAX: Final = (1, 1032, 32, 255, 32768)
"""The maximum number of bytes to which one compressed byte expands, by codec number: none, gzip, snappy, lz4, zstd."""
INVALID_RECORDS_MAX: Final = 10_000
_END_OFFSET_MAX: Final = (1 << 63) - 1
_RECORDS_AT_ONCE: Final = 1000
_UNUSUAL_MASK: Final = CONTROL_MASK | TRANSACTIONAL_MASK
_SEQUENCE_MODULUS: Final = 1 << 31

LARGE_BYTES_MIN: Final = 4 << 20
SMALL_BYTES_MAX: Final = 16 * 1024
SMALL_EXPANDED_BYTES_MAX: Final = 64 * 1024
EXPANSION_MAX: Final = 20


class CheckedBatches(Value, frozen=True):
    """Batches that may be appended. `positions` has, for each batch, the position of its first byte and its number of
    records.
    """

    positions: tuple[tuple[int, int], ...]
    record_count: int
    producer: ProducerBatch | None


class BatchRefused(Value, frozen=True):
    """The reason why the batches of a produce are refused.

    `invalid_records` are the indexes of the first `INVALID_RECORDS_MAX` invalid records, counted over all batches. The
    tuple is empty if a batch as a whole is invalid, or if the records were not read yet. In the second case
    `name_records(bytes_expanded_max)` reads the records and returns the refusal with their indexes.
    """

    error: ErrorCode
    message: str
    invalid_records: tuple[int, ...] = ()
    name_records: Callable[[int], BatchRefused] | None = None


_NO_KEY: Final = BatchRefused(
    ErrorCode.INVALID_RECORD,
    "a record without a key: the topic is compacted (cleanup.policy), which keeps the last record of"
    " each key; give every record a key",
)


NO_TRANSACTIONS: Final = BatchRefused(
    # If the batch were appended, nothing would ever end its transaction, and read_committed consumers could not
    # read past it.
    ErrorCode.INVALID_TXN_STATE,
    "transactions are not supported",
)
NO_TRANSACTIONAL_ID: Final = BatchRefused(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "the batch is transactional, but the request has no transactional id",
)


def check_client_batches(
    buffer: ByteBuffer,
    config: LogConfig,
    now_ms: int,
    is_internal: bool,
    transactional: BatchRefused | None = NO_TRANSACTIONS,
) -> CheckedBatches | BatchRefused:
    """Check complete batches that a client sent.

    `transactional` is the refusal of a transactional batch; None if such batches are accepted. `is_internal` accepts
    control batches, transactional batches, batches without sequence numbers, and any batch size.
    """
    size_bytes = len(buffer)
    usual = usual_batch(buffer)
    if usual is not None:
        checked = _check_usual(usual, size_bytes, config, now_ms)
        if checked is not None:
            return checked
    if size_bytes < HEADER_BYTES:
        return BatchRefused(
            ErrorCode.CORRUPT_MESSAGE, f"{size_bytes} bytes are too few for a record batch"
        )
    view = memoryview(buffer)
    positions: list[tuple[int, int]] = []
    record_count = position = 0
    producer: ProducerBatch | None = None
    while position < size_bytes:
        if size_bytes - position < HEADER_BYTES:
            return _corrupt(position, "the header is incomplete")
        (
            _,
            batch_length,
            _,
            magic,
            crc,
            attributes,
            last_offset_delta,
            _,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        ) = HEADER.unpack_from(buffer, position)
        end = position + LENGTH_PREFIX_BYTES + batch_length
        if magic != MAGIC:
            return BatchRefused(
                ErrorCode.INVALID_RECORD, f"record format {magic} is not supported, only {MAGIC} is"
            )
        if batch_length < BATCH_LENGTH_MIN or end > size_bytes:
            return _corrupt(position, f"the batch length {batch_length} is invalid")
        if end - position > config.max_message_bytes and not is_internal:
            return BatchRefused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {end - position} bytes is larger than max.message.bytes"
                f" ({config.max_message_bytes}): send smaller batches, or raise this limit of the topic",
            )
        if crc32c(view[position + ATTRIBUTES_AT : end]) != crc:
            return _corrupt(position, "the CRC32C is wrong")
        if attributes & COMPRESSION_MASK > _COMPRESSION_CODE_MAX:
            return BatchRefused(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"compression codec {attributes & COMPRESSION_MASK} is unknown",
            )
        if count <= 0 or last_offset_delta != count - 1:
            return BatchRefused(
                ErrorCode.INVALID_RECORD,
                f"the batch has {count} records, but its last offset delta is {last_offset_delta}",
            )
        records_max = _records_max(attributes, end - position - HEADER_BYTES)
        if count > records_max:
            return BatchRefused(
                ErrorCode.INVALID_RECORD,
                f"the batch has the record count {count}, but its {end - position} bytes hold at most"
                f" {records_max} records",
            )
        refused = None
        if attributes & _UNUSUAL_MASK and not is_internal:
            refused = _check_attributes(attributes, producer_id, transactional)
        if refused is None and max_timestamp_ms >= 0:
            refused = _check_timestamp(max_timestamp_ms, now_ms, config)
            if refused is not None:
                refused = replace(
                    refused,
                    name_records=partial(
                        _naming_records,
                        refused,
                        buffer,
                        position,
                        record_count,
                        lambda record: _is_out_of_range(record.timestamp_ms, now_ms, config),
                    ),
                )
        if refused is not None:
            return refused
        # A coordinator writes batches without sequence numbers, for a producer whose identity the coordinator has
        # checked (KIP-98).
        is_coordinators = is_internal and base_sequence < 0
        if producer_id >= 0 and not is_coordinators and not attributes & CONTROL_MASK:
            if positions or end != size_bytes:
                return BatchRefused(
                    ErrorCode.INVALID_RECORD,
                    "an idempotent producer must send one batch per partition",
                )
            if producer_epoch < 0 or base_sequence < 0:
                return BatchRefused(
                    ErrorCode.INVALID_RECORD,
                    f"the batch has invalid producer fields: id {producer_id}, epoch {producer_epoch},"
                    f" sequence {base_sequence}",
                )
            producer = ProducerBatch(
                producer_id=ProducerId(producer_id),
                producer_epoch=ProducerEpoch(producer_epoch),
                base_sequence=base_sequence,
                last_sequence=(base_sequence + last_offset_delta) % _SEQUENCE_MODULUS,
                is_transactional=attributes & TRANSACTIONAL_MASK != 0,
            )
        positions.append((position, count))
        record_count += count
        position = end
    return CheckedBatches(tuple(positions), record_count, producer)


def _check_usual(
    usual: tuple[int, int, int, int, int], size_bytes: int, config: LogConfig, now_ms: int
) -> CheckedBatches | None:
    """Return the result for a single valid batch of the most common form; None if the complete checks are needed."""
    count, max_timestamp_ms, producer_id, producer_epoch, base_sequence = usual
    if (
        size_bytes > config.max_message_bytes
        or max_timestamp_ms - now_ms > config.timestamp_after_max_ms
        or 0 <= max_timestamp_ms < now_ms - config.timestamp_before_max_ms
    ):
        return None
    if producer_id < 0:
        return CheckedBatches(((0, count),), count, None)
    if producer_epoch < 0 or base_sequence < 0:
        return None
    last_sequence = (base_sequence + count - 1) % _SEQUENCE_MODULUS
    return CheckedBatches(
        ((0, count),),
        count,
        ProducerBatch(
            ProducerId(producer_id), ProducerEpoch(producer_epoch), base_sequence, last_sequence
        ),
    )


def check_keys(
    buffer: ByteBuffer, batches: CheckedBatches, bytes_expanded_max: int
) -> BatchRefused | None:
    """Return a refusal if a record has no key. Compaction keeps only the last record of each key, so it would delete
    such records.

    Raises:
        ExpandedTooLarge: the batches together expand to more than `bytes_expanded_max`.
    """
    first_index = 0
    remaining_bytes = bytes_expanded_max
    for position, count in batches.positions:
        refused, size_bytes = _named(
            _NO_KEY, buffer, position, first_index, _has_no_key, remaining_bytes
        )
        if refused.error is not ErrorCode.INVALID_RECORD or refused.invalid_records:
            return refused
        remaining_bytes -= size_bytes
        first_index += count
    return None


class ScannedBatches(Value, frozen=True):
    """The result of reading the headers of batches from a leader: the end offset, the leader epochs with their start
    offsets, and whether all batches are valid (`is_intact`).
    """

    end_offset: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    is_intact: bool


def scan_replicated(records: bytes | memoryview, base_offset: Offset) -> ScannedBatches:
    """Read the headers and check the CRCs of batches that a leader sent. This never raises.

    The first batch may begin below `base_offset` if it ends above that offset.
    """
    size_bytes = len(records)
    view = memoryview(records)
    epochs: list[tuple[LeaderEpoch, Offset]] = []
    last_epoch = NO_LEADER_EPOCH
    position, end_offset = 0, base_offset
    while position < size_bytes:
        if size_bytes - position < HEADER_BYTES:
            return ScannedBatches(end_offset, tuple(epochs), False)
        fields = HEADER.unpack_from(records, position)
        base, batch_length, epoch, magic, crc, _, last_offset_delta = fields[:7]
        end = position + LENGTH_PREFIX_BYTES + batch_length
        if (
            magic != MAGIC
            or batch_length < BATCH_LENGTH_MIN
            or end > size_bytes
            or (base < end_offset and (epochs or base + last_offset_delta < base_offset))
            or last_offset_delta < 0
            or crc32c(view[position + ATTRIBUTES_AT : end]) != crc
        ):
            return ScannedBatches(end_offset, tuple(epochs), False)
        if epoch != last_epoch or not epochs:
            epochs.append((LeaderEpoch(epoch), Offset(base)))
            last_epoch = LeaderEpoch(epoch)
        end_offset = Offset(base + last_offset_delta + 1)
        position = end
    has_offsets = end_offset <= _END_OFFSET_MAX and (not epochs or epochs[0][1] >= 0)
    return ScannedBatches(end_offset, tuple(epochs), has_offsets)


def _records_max(attributes: int, size_bytes: int) -> int:
    """Return the maximum number of records that a batch of this many bytes can contain, compressed or not.

    Each record takes one offset, so a header with a false count would use up offsets and sequence numbers. Kafka reads
    every record of the batch. This check does not decompress the batch, so it can only bound the count.
    """
    compression = attributes & COMPRESSION_MASK
    expanded_bytes = size_bytes
    if compression:
        expanded_bytes = min(size_bytes * _EXPANSION_MAX[compression], BYTES_EXPANDED_MAX)
    return expanded_bytes // _RECORD_BYTES_MIN


def _check_attributes(
    attributes: int, producer_id: int, transactional: BatchRefused | None
) -> BatchRefused | None:
    if attributes & CONTROL_MASK:
        return BatchRefused(ErrorCode.INVALID_RECORD, "a client must not write control batches")
    if transactional is None and producer_id < 0:
        return BatchRefused(
            ErrorCode.INVALID_RECORD, "the batch is transactional, but has no producer id"
        )
    return transactional


def _has_no_key(record: Record) -> bool:
    return record.key is None


def _naming_records(
    refused: BatchRefused,
    buffer: ByteBuffer,
    position: int,
    first_index: int,
    is_invalid: Callable[[Record], bool],
    bytes_expanded_max: int,
) -> BatchRefused:
    """Return the refusal with the indexes of the batch's invalid records (KIP-467)."""
    return _named(refused, buffer, position, first_index, is_invalid, bytes_expanded_max)[0]


def _named(
    refused: BatchRefused,
    buffer: ByteBuffer,
    position: int,
    first_index: int,
    is_invalid: Callable[[Record], bool],
    bytes_expanded_max: int,
) -> tuple[BatchRefused, int]:
    """Return the refusal with the indexes of the invalid records, and the expanded size of the batch in bytes.

    Raises:
        ExpandedTooLarge: the batch expands to more than `bytes_expanded_max`.
    """
    invalid: list[int] = []
    size_bytes = 0
    try:
        header = read_header(buffer, position)
        expanded = expanded_records(buffer, position, header, bytes_expanded_max=bytes_expanded_max)
        size_bytes = len(expanded)
        reader = open_records(expanded, header)
        while reader.remaining and len(invalid) < INVALID_RECORDS_MAX:
            records = reader.read(_RECORDS_AT_ONCE)
            if any(map(is_invalid, records)):
                invalid += [
                    index for index, record in enumerate(records, first_index) if is_invalid(record)
                ]
            first_index += len(records)
    except ExpandedTooLarge:
        raise
    except CorruptBatch as error:
        return _corrupt(position, str(error)), size_bytes
    return replace(refused, invalid_records=tuple(invalid[:INVALID_RECORDS_MAX])), size_bytes


def _check_timestamp(max_timestamp_ms: int, now_ms: int, config: LogConfig) -> BatchRefused | None:
    if config.timestamp_kind is TimestampKind.LOG_APPEND_TIME:
        return None
    if _is_out_of_range(max_timestamp_ms, now_ms, config):
        return BatchRefused(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {max_timestamp_ms} is outside what the topic accepts: at most"
            f" {config.timestamp_before_max_ms} ms before and {config.timestamp_after_max_ms} ms"
            f" after the broker's clock ({now_ms})",
        )
    return None


def _is_out_of_range(timestamp_ms: int, now_ms: int, config: LogConfig) -> bool:
    return (
        timestamp_ms - now_ms > config.timestamp_after_max_ms
        or now_ms - timestamp_ms > config.timestamp_before_max_ms
    )


def _corrupt(position: int, reason: str) -> BatchRefused:
    return BatchRefused(ErrorCode.CORRUPT_MESSAGE, f"batch at byte {position}: {reason}")


Look = Callable[[int], BatchRefused | None]
"""A check of batches. It reads the batches, which may expand to as many bytes as its argument says, and returns a
refusal or None. Raises ExpandedTooLarge.
"""
OnChecked = Callable[[BatchRefused | None], None]


def expanded_bytes_max(max_message_bytes: int) -> int:
    """Return the maximum number of bytes to which the batches of one produce may expand, on a topic with this
    max.message.bytes.
    """
    return min(max(EXPANSION_MAX * max_message_bytes, SMALL_EXPANDED_BYTES_MAX), BYTES_EXPANDED_MAX)


_UNFINISHED: Final = BatchRefused(
    ErrorCode.UNKNOWN_SERVER_ERROR,
    "the check of the batches failed on an internal error, which is in the broker's log; nothing was appended",
)


class _Check:
    __slots__ = ("bytes_max", "look", "on_checked", "refused")

    def __init__(self, look: Look, bytes_max: int, on_checked: OnChecked) -> None:
        self.look = look
        self.bytes_max = bytes_max
        self.on_checked = on_checked
        # The batches stay refused if `look` raises an unexpected exception, such as MemoryError.
        self.refused: BatchRefused | None = _UNFINISHED

    def run(self) -> None:
        try:
            self.refused = self.look(self.bytes_max)
        except ExpandedTooLarge:
            self.refused = BatchRefused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batches expand to more than {self.bytes_max} bytes, {EXPANSION_MAX} times"
                f" max.message.bytes: send smaller batches, or raise this limit of the topic",
            )


class RecordChecks:
    """Runs all checks of a broker that decompress batches and read their records. Only the event loop uses
    this object.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        # The waiting checks of each partition, oldest first. The first partition in the dict is the next one to be
        # checked.
        self._lines: dict[Hashable, deque[_Check]] = {}
        self._is_running = False

    def is_busy(self, partition: Hashable) -> bool:
        """Return whether checks of the partition are queued. Later produce requests must then be queued after them."""
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
        """Run the check `look` on batches of `size_bytes`: on a disk thread, or at once if the batches are small.

        `on_checked` is called exactly once, possibly before this returns, in the order in which the partition's checks
        were requested.
        """
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

    def name(
        self,
        partition: Hashable,
        refused: BatchRefused,
        size_bytes: int,
        config: LogConfig,
        on_named: Callable[[BatchRefused], None],
    ) -> None:
        """Find the invalid records of refused batches, if their records were not read yet. These checks and those of
        `check` run in the order in which they were requested.
        """
        if refused.name_records is None:
            on_named(refused)
            return
        self.check(
            partition,
            refused.name_records,
            size_bytes=size_bytes,
            max_message_bytes=config.max_message_bytes,
            on_checked=lambda named: on_named(
                refused if named is None or named.error is ErrorCode.MESSAGE_TOO_LARGE else named
            ),
        )

    def _run_next(self) -> None:
        if self._is_running or not self._lines:
            return
        self._is_running = True
        partition = next(iter(self._lines))
        check = self._lines[partition][0]
        self._pool.run(check.run, lambda: self._done(partition, check))

    def _done(self, partition: Hashable, check: _Check) -> None:
        self._is_running = False
        queue = self._lines.pop(partition)
        queue.popleft()
        if queue:
            # The partition goes to the end, so that all others have their turn first.
            self._lines[partition] = queue
        try:
            check.on_checked(check.refused)
        finally:
            self._run_next()
