"""Records of compacted topics need keys, and the check for keys delays no other work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.replication.batch_checks import (
    EXPANSION_MAX,
    LARGE_BYTES_MIN,
    SMALL_BYTES_MAX,
    BatchRefused,
    CheckedBatches,
    LargeBatches,
    RecordChecks,
    check_client_batches,
    check_keys,
    expanded_bytes_max,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import Compression
from odradek_protocol.records.builder import BatchBuilder

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
    large = LargeBatches(data, config, now_ms=NOW_MS, is_internal=False)
    found: list[tuple[CheckedBatches | None, BatchRefused | None]] = []
    pool = HeldPool()
    large.check(RecordChecks(pool), "p", lambda *result: found.append(result))
    assert not found
    pool.finish_one()
    ((checked, refused),) = found
    assert (ErrorCode.NONE if refused is None else refused.error) is code
    if refused is None:
        assert checked == check_client_batches(data, config, now_ms=NOW_MS, is_internal=False)
