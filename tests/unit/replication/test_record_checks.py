"""Records of compacted topics need keys, batches get the codec of the topic, and neither delays other work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.replication.batch_checks import (
    EXPANSION_MAX,
    LARGE_BYTES_MIN,
    NO_TRANSACTIONS,
    SMALL_BYTES_MAX,
    BatchRefused,
    CheckedBatches,
    RecordChecks,
    check_client_batches,
    check_keys,
    expanded_bytes_max,
)
from odradek_broker.replication.produce_check import ProduceCheck
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_BYTES,
    Compression,
    read_header,
)
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.records.hashes import crc32c

NOW_MS = 1_700_000_000_000
MAX_MESSAGE_BYTES = 1 << 20


class HeldPool:
    """Disk threads that run work in order, when the test says so."""

    def __init__(self) -> None:
        self.given: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def run(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        self.given.append((work, on_done))

    def finish_one(self) -> None:
        work, on_done = self.given.pop(0)
        work()
        on_done()


class Checked:
    """The results of the checks, in order."""

    def __init__(self) -> None:
        self.pool = HeldPool()
        self.checks = RecordChecks(self.pool)
        self.told: list[tuple[str, ErrorCode]] = []

    def check(self, partition: str, data: bytes) -> None:
        batches = check_client_batches(data, LogConfig(), now_ms=NOW_MS, is_internal=False)
        assert isinstance(batches, CheckedBatches)

        def on_checked(refused: BatchRefused | None) -> None:
            code = ErrorCode.NONE if refused is None else refused.error
            self.told.append((partition, code))

        self.checks.check(
            partition,
            partial(check_keys, data, batches),
            size_bytes=len(data),
            max_message_bytes=MAX_MESSAGE_BYTES,
            on_checked=on_checked,
        )


def batch(key: bytes | None, value: bytes, codec: Compression = Compression.NONE) -> bytes:
    builder = BatchBuilder()
    builder.append(key, value, None, NOW_MS)
    return bytes(builder.build(compression=codec))


@pytest.mark.parametrize("codec", list(Compression))
def test_a_compacted_topic_takes_no_record_without_a_key(codec: Compression) -> None:
    checked = Checked()
    keyed, unkeyed = batch(b"k", b"v", codec), batch(None, b"v", codec)
    for data in (keyed, unkeyed, keyed + unkeyed):
        checked.check("p", data)
    refused = ("p", ErrorCode.INVALID_RECORD)
    assert checked.told == [("p", ErrorCode.NONE), refused, refused]
    assert not checked.pool.given, "small batches are looked at where they are"


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD, Compression.LZ4])
def test_a_batch_that_expands_to_much_is_left_to_the_pool(codec: Compression) -> None:
    checked = Checked()
    checked.check("p", batch(None, bytes(8 << 20), codec))
    assert checked.told == []
    checked.pool.finish_one()
    assert checked.told == [("p", ErrorCode.INVALID_RECORD)]


def test_a_check_that_fails_on_an_internal_error_lets_nothing_in() -> None:
    def fail(_bytes_expanded_max: int) -> None:
        raise MemoryError

    told: list[BatchRefused | None] = []
    pool = HeldPool()
    checks = RecordChecks(pool)
    checks.check(
        "p",
        fail,
        size_bytes=SMALL_BYTES_MAX + 1,
        max_message_bytes=MAX_MESSAGE_BYTES,
        on_checked=told.append,
    )
    work, on_done = pool.given.pop()
    with contextlib.suppress(MemoryError):  # a disk thread logs it
        work()
    on_done()
    (refused,) = told
    assert refused is not None
    assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_one_produce_expands_to_is_bounded_in_all() -> None:
    half = batch(b"k", bytes(EXPANSION_MAX * MAX_MESSAGE_BYTES // 2 - 1000), Compression.ZSTD)
    checked = Checked()
    for data in (half, half + half, half + half + half):
        checked.check("p", data)
        checked.pool.finish_one()
    assert [code for _, code in checked.told] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.MESSAGE_TOO_LARGE,
    ]


def test_an_honest_batch_of_the_largest_size_is_taken() -> None:
    checked = Checked()
    checked.check("p", batch(b"k", bytes(MAX_MESSAGE_BYTES - 200)))
    checked.pool.finish_one()
    assert checked.told == [("p", ErrorCode.NONE)]
    assert expanded_bytes_max(1) >= SMALL_BYTES_MAX


def test_a_partition_keeps_its_order_and_partitions_take_turns() -> None:
    checked = Checked()
    large = batch(b"k", bytes(SMALL_BYTES_MAX))
    for partition in ("p", "p", "p", "q"):
        checked.check(partition, large)
    checked.check("p", batch(None, b"small"))
    assert checked.checks.is_busy("p")
    assert len(checked.pool.given) == 1, "one check of the whole broker at a time"
    for _ in range(5):
        checked.pool.finish_one()
    assert [partition for partition, _ in checked.told] == ["p", "q", "p", "p", "p"]
    assert checked.told[-1] == ("p", ErrorCode.INVALID_RECORD)
    assert not checked.checks.is_busy("p")


def large_batches(*, key: bytes | None = b"key") -> bytearray:
    builder = BatchBuilder()
    for _ in range(LARGE_BYTES_MIN // (1 << 16)):
        builder.append(key, bytes(1 << 16), None, NOW_MS)
    return bytearray(builder.build())


@pytest.mark.parametrize(
    ("data", "is_compacted", "code"),
    [
        (large_batches(), True, ErrorCode.NONE),
        (large_batches(key=None), False, ErrorCode.NONE),
        (large_batches(key=None), True, ErrorCode.INVALID_RECORD),
        (large_batches()[:-1] + b"?", False, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_large_batches_are_checked_as_a_whole_in_the_pool(
    data: bytearray, is_compacted: bool, code: ErrorCode
) -> None:
    """A CRC of 64 MiB would block the event loop for 15 ms."""
    config = LogConfig(cleanup_compact=is_compacted, max_message_bytes=len(data))
    large = ProduceCheck(data, None, config, NOW_MS, False, NO_TRANSACTIONS)
    refusals: list[BatchRefused | None] = []
    pool = HeldPool()
    large.run(RecordChecks(pool), "p", lambda _, refused: refusals.append(refused))
    assert not refusals
    pool.finish_one()
    (refused,) = refusals
    assert (ErrorCode.NONE if refused is None else refused.error) is code
    if refused is None:
        assert large.checked == check_client_batches(data, config, NOW_MS, is_internal=False)


RECORDS = [(b"k%d" % number, b"value " * 20) for number in range(50)]


def batch_of(compression: Compression, *, sequence: int = -1) -> bytes:
    builder = BatchBuilder()
    for key, value in RECORDS:
        builder.append(key, value, [("h", b"1")], NOW_MS)
    producer_id = 7 if sequence >= 0 else -1
    return builder.build(
        compression=compression,
        producer_id=producer_id,
        producer_epoch=min(producer_id, 0),
        base_sequence=sequence,
    )


def produced(
    data: bytes, compression: Compression, **config: Any
) -> tuple[ProduceCheck, list[BatchRefused | None]]:
    """Check a produce to a topic with this compression.type."""
    settings = LogConfig(compression=compression, **config)
    checked = check_client_batches(data, settings, NOW_MS, is_internal=False)
    check = ProduceCheck(data, checked, settings, NOW_MS, False, NO_TRANSACTIONS)
    refusals: list[BatchRefused | None] = []
    pool = HeldPool()
    check.run(RecordChecks(pool), "p", lambda _, refused: refusals.append(refused))
    if not refusals:
        pool.finish_one()
    return check, refusals


@pytest.mark.parametrize("wanted", list(Compression))
@pytest.mark.parametrize("sent", list(Compression))
def test_batches_are_stored_in_the_codec_of_the_topic(
    sent: Compression, wanted: Compression
) -> None:
    data = batch_of(sent) + batch_of(Compression.NONE)
    check, refusals = produced(data, wanted)
    assert refusals == [None]
    assert check.checked is not None
    assert check.checked.record_count == 100
    assert check.checked == check_client_batches(
        bytes(check.records), LogConfig(), NOW_MS, is_internal=False
    )
    for position, _ in check.checked.positions:
        header = read_header(check.records, position)
        assert header.compression is wanted
        records = decode_batch(check.records, position)
        assert [(record.key, record.value) for record in records] == RECORDS
        assert {record.headers for record in records} == {(("h", b"1"),)}
        assert {record.timestamp_ms for record in records} == {NOW_MS}


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [
        (Compression.GZIP, {"gzip_level": 1}, {"gzip_level": 9}),
        (Compression.LZ4, {"lz4_level": 9}, {"lz4_level": 17}),  # 9 is the fast variant
        (Compression.ZSTD, {"zstd_level": -100}, {"zstd_level": 19}),
    ],
)
def test_batches_are_compressed_at_the_level_of_the_topic(
    codec: Compression, low: dict[str, int], high: dict[str, int]
) -> None:
    builder = BatchBuilder()
    for number in range(300):
        builder.append(b"%d" % (number * 7919), b"%d values of %d" % (number, number % 7), None, 0)
    data = builder.build()
    loosely, _ = produced(data, codec, **low, timestamp_after_max_ms=NOW_MS)
    tightly, _ = produced(data, codec, **high, timestamp_after_max_ms=NOW_MS)
    assert len(tightly.records) < len(loosely.records) < len(data)
    assert decode_batch(tightly.records, 0) == decode_batch(loosely.records, 0)


def test_compressing_again_keeps_the_sequence_numbers_of_a_producer() -> None:
    data = batch_of(Compression.NONE, sequence=5)
    check, refusals = produced(data, Compression.ZSTD)
    assert refusals == [None]
    plain = check_client_batches(data, LogConfig(), NOW_MS, is_internal=False)
    assert isinstance(plain, CheckedBatches)
    assert check.checked is not None
    assert check.checked.producer == plain.producer is not None
    assert len(check.records) < len(data)


def test_a_batch_that_is_too_large_in_the_codec_of_the_topic_is_refused() -> None:
    data = batch_of(Compression.ZSTD)
    _, (refused,) = produced(data, Compression.NONE, max_message_bytes=len(data) + 1)
    assert refused is not None
    assert refused.error is ErrorCode.MESSAGE_TOO_LARGE
    assert "compression.type=none" in refused.message


def test_a_batch_that_does_not_expand_is_refused() -> None:
    data = bytearray(batch_of(Compression.ZSTD))
    data[HEADER_BYTES + 3] ^= 0xFF
    data[CRC_AT:ATTRIBUTES_AT] = crc32c(bytes(data[ATTRIBUTES_AT:])).to_bytes(4, "big")
    _, (refused,) = produced(bytes(data), Compression.LZ4)
    assert refused is not None
    assert refused.error is ErrorCode.CORRUPT_MESSAGE


def test_batches_of_the_broker_itself_keep_their_codec() -> None:
    data = batch_of(Compression.NONE)
    settings = LogConfig(compression=Compression.ZSTD)
    check = ProduceCheck(data, None, settings, NOW_MS, True, NO_TRANSACTIONS)
    pool = HeldPool()
    check.run(RecordChecks(pool), "p", lambda _, refused: None)
    assert check.records is data
