"""Checks of record batches: those that a leader accepts from a client, and a follower from its leader."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_broker.log.log_config import LogConfig, TimestampKind
from odradek_broker.replication.batch_checks import (
    INVALID_RECORDS_MAX,
    BatchRefused,
    CheckedBatches,
    check_client_batches,
    check_keys,
    scan_replicated,
)
from odradek_broker.replication.client_requests import stamp_batches
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import (
    Compression,
    TimestampType,
    check_crc,
    iter_headers,
)
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.records.hashes import crc32c

NOW_MS = 1_700_000_000_000


def _batch(count: int = 3, *, timestamp_ms: int = NOW_MS, **numbers: int | bool) -> bytes:
    builder = BatchBuilder()
    for n in range(count):
        builder.append(None, b"value %d" % n, None, timestamp_ms)
    return builder.build(**numbers)  # type: ignore[arg-type]  # ints and bools, by name


def _patched(position: int, value: bytes) -> bytes:
    """Return a batch with changed bytes, and the CRC that fits them."""
    data = bytearray(_batch())
    data[position : position + len(value)] = value
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def _check(data: bytes, config: LogConfig | None = None, *, is_internal: bool = False) -> object:
    config = config or LogConfig()
    checked = check_client_batches(data, config, now_ms=NOW_MS, is_internal=is_internal)
    if isinstance(checked, BatchRefused):
        return checked if checked.name_records is None else checked.name_records(1 << 20)
    if config.cleanup_compact and not is_internal:
        return check_keys(data, checked, 1 << 20) or checked
    return checked


def test_good_batches_are_counted() -> None:
    first, second = _batch(3), _batch(5)
    found = _check(first + second)
    assert isinstance(found, CheckedBatches)
    assert found.record_count == 8
    assert found.positions == ((0, 3), (len(first), 5))
    assert found.producer is None


def test_a_numbered_batch_names_its_producer() -> None:
    found = _check(_batch(3, producer_id=7, producer_epoch=2, base_sequence=(1 << 31) - 1))
    assert isinstance(found, CheckedBatches)
    assert found.producer is not None
    assert (found.producer.producer_id, found.producer.base_sequence) == (7, (1 << 31) - 1)
    assert found.producer.last_sequence == 1  # sequences wrap


NUMBERED = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
REFUSED: list[tuple[Callable[[], bytes], ErrorCode]] = [
    (lambda: b"", ErrorCode.CORRUPT_MESSAGE),
    (lambda: _batch()[:60], ErrorCode.CORRUPT_MESSAGE),
    (lambda: _batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
    (lambda: _batch() + b"\x00" * 10, ErrorCode.CORRUPT_MESSAGE),
    (lambda: _batch()[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
    (lambda: _patched(22, b"\x05"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (lambda: _patched(57, (0).to_bytes(4, "big")), ErrorCode.INVALID_RECORD),
    (lambda: _patched(23, (9).to_bytes(4, "big")), ErrorCode.INVALID_RECORD),
    (lambda: _batch()[:16] + b"\x01" + _batch()[17:], ErrorCode.INVALID_RECORD),
    (lambda: _batch(control=True), ErrorCode.INVALID_RECORD),
    (lambda: _batch(transactional=True), ErrorCode.INVALID_TXN_STATE),
    (lambda: _batch(transactional=True, **NUMBERED), ErrorCode.INVALID_TXN_STATE),
    (lambda: _batch() + _batch(transactional=True, **NUMBERED), ErrorCode.INVALID_TXN_STATE),
    (lambda: _batch(producer_id=7, producer_epoch=0), ErrorCode.INVALID_RECORD),
    (lambda: _batch(**NUMBERED) + _batch(), ErrorCode.INVALID_RECORD),
    (lambda: _batch(timestamp_ms=NOW_MS + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
]


@pytest.mark.parametrize(("make", "code"), REFUSED)
def test_what_is_wrong_is_refused_by_name(make: Callable[[], bytes], code: ErrorCode) -> None:
    found = _check(make())
    assert isinstance(found, BatchRefused)
    assert found.error is code
    assert found.message


def _mixed(keys: list[bytes | None], timestamps_ms: list[int]) -> bytes:
    builder = BatchBuilder()
    for key, timestamp_ms in zip(keys, timestamps_ms, strict=True):
        builder.append(key, b"v", None, timestamp_ms)
    return builder.build()


COMPACTED = LogConfig(cleanup_compact=True)


@pytest.mark.parametrize(
    ("data", "config", "invalid"),
    [
        (_mixed([b"k", None, b"k", None], [NOW_MS] * 4), COMPACTED, (1, 3)),
        (_mixed([b"k"], [NOW_MS]) + _mixed([b"k", None], [NOW_MS] * 2), COMPACTED, (2,)),
        (
            _mixed([b"k"] * 3, [NOW_MS + 3_600_001, NOW_MS, NOW_MS + 7_200_000]),
            LogConfig(),
            (0, 2),
        ),
        (_patched(57, (0).to_bytes(4, "big")), LogConfig(), ()),
    ],
    ids=["no key", "in the second batch", "timestamps", "the batch itself"],
)
def test_the_records_to_blame_are_named(
    data: bytes, config: LogConfig, invalid: tuple[int, ...]
) -> None:
    """Clients fail the named records with the reason, and report for the others that they were in the same batch."""
    refused = _check(data, config)
    assert isinstance(refused, BatchRefused)
    assert refused.invalid_records == invalid


def test_no_more_records_are_named_than_a_response_has_room_for() -> None:
    many = INVALID_RECORDS_MAX + 5
    refused = _check(_mixed([None] * many, [NOW_MS] * many), COMPACTED)
    assert isinstance(refused, BatchRefused)
    assert refused.invalid_records == tuple(range(INVALID_RECORDS_MAX))


def _claiming(count: int, compression: Compression, records: bytes) -> bytes:
    """Return a batch whose header claims this many records, with a correct CRC."""
    data = bytearray(_batch()[:61] + records)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[21:23] = int(compression).to_bytes(2, "big")
    data[23:27] = (count - 1).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("compression", list(Compression))
def test_a_count_that_the_bytes_cannot_hold_is_refused(compression: Compression) -> None:
    """Otherwise one small request would move the log end by two thousand million offsets."""
    refused = _check(_claiming((1 << 31) - 1, compression, bytes(40)))
    assert isinstance(refused, BatchRefused)
    assert refused.error is ErrorCode.INVALID_RECORD
    assert "record count 2147483647, but its 101 bytes" in refused.message


@pytest.mark.parametrize("compression", list(Compression))
def test_the_smallest_records_in_the_fewest_bytes_are_taken(compression: Compression) -> None:
    builder = BatchBuilder()
    for _ in range(50_000):
        builder.append(None, None, None, NOW_MS)
    checked = _check(builder.build(compression=compression))
    assert isinstance(checked, CheckedBatches)
    assert checked.record_count == 50_000


def test_one_record_more_than_the_bytes_hold_is_refused() -> None:
    assert isinstance(_check(_claiming(5, Compression.NONE, bytes(35))), CheckedBatches)
    assert isinstance(_check(_claiming(6, Compression.NONE, bytes(35))), BatchRefused)


def test_a_batch_over_the_topics_limit_is_refused_with_the_way_out() -> None:
    found = _check(_batch(), LogConfig(max_message_bytes=70))
    assert isinstance(found, BatchRefused)
    assert found.error is ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in found.message


def test_what_a_coordinator_writes_has_no_limit() -> None:
    found = _check(_batch(), LogConfig(max_message_bytes=70), is_internal=True)
    assert isinstance(found, CheckedBatches)


def test_old_records_are_refused_where_the_topic_says_so() -> None:
    config = LogConfig(timestamp_before_max_ms=1000)
    found = _check(_batch(timestamp_ms=NOW_MS - 1001), config)
    assert isinstance(found, BatchRefused)
    stamped = replace(config, timestamp_kind=TimestampKind.LOG_APPEND_TIME)
    assert isinstance(_check(_batch(timestamp_ms=NOW_MS - 1001), stamped), CheckedBatches)


def test_brokers_may_write_control_batches() -> None:
    control = _batch(control=True, producer_id=7, producer_epoch=0)
    assert isinstance(_check(control, is_internal=True), CheckedBatches)


def test_only_a_coordinator_writes_for_a_producer_without_sequence_numbers() -> None:
    """Offsets that a transaction commits have the producer id and epoch, but no sequence number
    (KIP-98).
    """
    offsets = _batch(transactional=True, producer_id=7, producer_epoch=1)
    refused = _check(offsets)
    assert isinstance(refused, BatchRefused)
    plain = _batch()
    checked = _check(plain + offsets + plain, is_internal=True)
    assert isinstance(checked, CheckedBatches)
    assert (checked.record_count, checked.producer) == (9, None)


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=4), base=st.integers(0, 1 << 40))
def test_stamped_batches_follow_each_other_and_stay_intact(counts: list[int], base: int) -> None:
    data = bytearray(b"".join(_batch(count) for count in counts))
    checked = _check(bytes(data))
    assert isinstance(checked, CheckedBatches)
    stamp_batches(
        data, checked, base_offset=base, leader_epoch=LeaderEpoch(4), log_append_time_ms=-1
    )
    scanned = scan_replicated(bytes(data), Offset(base))
    assert scanned.is_intact
    assert scanned.end_offset == base + sum(counts)
    assert scanned.epochs == ((4, base),)


def test_the_brokers_time_is_under_the_checksum() -> None:
    data = bytearray(_batch() + _batch())
    checked = _check(bytes(data))
    assert isinstance(checked, CheckedBatches)
    stamp_batches(
        data, checked, base_offset=0, leader_epoch=LeaderEpoch(0), log_append_time_ms=NOW_MS
    )
    for position, header in iter_headers(data):
        check_crc(data, position, header)
        assert header.max_timestamp_ms == NOW_MS
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME


@given(data=st.binary(max_size=300))
def test_any_bytes_from_a_leader_are_judged_without_an_error(data: bytes) -> None:
    scanned = scan_replicated(data, Offset(5))
    assert scanned.is_intact == (data == b"")


@given(at=st.integers(0, 400), bit=st.integers(0, 7))
def test_a_flipped_bit_under_the_checksum_is_found(at: int, bit: int) -> None:
    good = bytearray(_batch(20))
    stamp_batches(
        good,
        CheckedBatches(((0, 20),), 20, None),
        base_offset=0,
        leader_epoch=LeaderEpoch(1),
        log_append_time_ms=-1,
    )
    position = 16 + at % (len(good) - 16)
    good[position] ^= 1 << bit
    assert not scan_replicated(bytes(good), Offset(0)).is_intact


def test_batches_that_begin_below_the_log_end_are_not_intact() -> None:
    data = bytearray(_batch(3))
    checked = CheckedBatches(((0, 3),), 3, None)
    stamp_batches(data, checked, base_offset=10, leader_epoch=LeaderEpoch(1), log_append_time_ms=-1)
    assert scan_replicated(bytes(data), Offset(10)).is_intact
    assert scan_replicated(bytes(data), Offset(8)).is_intact  # compaction leaves gaps
    assert not scan_replicated(bytes(data), Offset(13)).is_intact
    assert not scan_replicated(bytes(data + data), Offset(11)).is_intact


def test_the_first_batch_may_begin_below_where_a_leaders_log_begins() -> None:
    data = bytearray(_batch(3))
    checked = CheckedBatches(((0, 3),), 3, None)
    stamp_batches(data, checked, base_offset=10, leader_epoch=LeaderEpoch(1), log_append_time_ms=-1)
    scanned = scan_replicated(bytes(data), Offset(12))
    assert scanned.is_intact
    assert scanned.end_offset == 13
    assert scanned.epochs == ((1, 10),)


@pytest.mark.parametrize("base", [-5, (1 << 63) - 1, (1 << 63) - 3])
def test_replicated_batches_have_offsets_that_a_log_can_have(base: int) -> None:
    data = bytearray(_batch())
    struct.pack_into(">q", data, 0, base)
    assert not scan_replicated(bytes(data), Offset(max(base, -3))).is_intact
    struct.pack_into(">q", data, 0, (1 << 63) - 4)
    assert scan_replicated(bytes(data), Offset((1 << 63) - 4)).is_intact
