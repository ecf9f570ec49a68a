"""Reading fetched batches: aborted transactions, control batches, and decoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.consumer.fetched_chunk import FetchedChunk
from odradek.partitions import TopicPartition
from odradek_protocol.record_messages import decode_fetch_response
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.records.columns import ColumnBuilder
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb


def batch(
    offset: int, count: int, *, producer: int = -1, control: bool = False, epoch: int = 3
) -> bytes:
    """Return a batch whose records have their offsets as values; it is transactional if it has a
    producer.
    """
    builder = BatchBuilder()
    for number in range(count):
        key = b"\0\0\0\0" if control else None
        builder.append(key, b"%d" % (offset + number), None, 1)
    return builder.build(
        base_offset=offset,
        leader_epoch=epoch,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        transactional=producer >= 0,
        control=control,
    )


# offsets: 0-1 of 7, 2-3 of 8, 4 plain, 5 of 7, 6 abort of 7, 7 of 7 again, 8 commit of 8, 9 commit of 7
LOG = b"".join(
    [
        batch(0, 2, producer=7),
        batch(2, 2, producer=8),
        batch(4, 1),
        batch(5, 1, producer=7),
        batch(6, 1, producer=7, control=True),
        batch(7, 1, producer=7),
        batch(8, 1, producer=8, control=True),
        batch(9, 1, producer=7, control=True),
    ]
)
UNCOMMITTED = [0, 1, 2, 3, 4, 5, 7]


def chunk(aborted: list[tuple[int, int]] | None) -> FetchedChunk:
    return FetchedChunk(
        TopicPartition("t", 0), memoryview(LOG), next_offset=10, source=1, aborted=aborted
    )


@pytest.mark.parametrize(
    ("aborted", "expected"),
    [
        (None, UNCOMMITTED),
        ([], UNCOMMITTED),
        ([(7, 0)], [2, 3, 4, 7]),
        ([(8, 2)], [0, 1, 4, 5, 7]),
        ([(8, 2), (7, 0)], [4, 7]),
        ([(7, 0), (7, 7)], [2, 3, 4]),
    ],
)
@pytest.mark.parametrize("records_max", [1, 3, 100])
def test_records_of_aborted_transactions_and_markers_are_passed_over(
    aborted: list[tuple[int, int]] | None, expected: list[int], records_max: int
) -> None:
    piece, seen = chunk(aborted), []
    while records := piece.read(records_max, 0):
        assert len(records) <= records_max
        seen += [int(record.value or b"") for record in records]
    assert seen == expected
    builder = ColumnBuilder()
    chunk(aborted).read_columns(builder, 0)
    assert builder.row_count == len(expected)


@pytest.mark.parametrize("start", range(11))
def test_records_before_the_position_are_passed_over(start: int) -> None:
    piece, seen = chunk(None), []
    while records := piece.read(2, start):
        seen += [record.offset for record in records]
    assert seen == [offset for offset in UNCOMMITTED if offset >= start]


def test_columns_go_on_where_objects_stopped() -> None:
    piece = chunk(None)
    assert [record.offset for record in piece.read(1, 0)] == [0]
    builder = ColumnBuilder()
    piece.read_columns(builder, 1)
    assert builder.row_count == len(UNCOMMITTED) - 1


@pytest.mark.parametrize("aborted", [None, [(7, 1)]])
def test_the_epoch_of_batches_that_are_passed_over_counts(
    aborted: list[tuple[int, int]] | None,
) -> None:
    """Otherwise a position after these batches would look as if their epoch had been truncated."""
    log = batch(0, 1) + batch(1, 1, producer=7, control=True, epoch=4)
    if aborted is not None:
        log = batch(0, 1) + batch(1, 1, producer=7, epoch=4)
    piece = FetchedChunk(
        TopicPartition("t", 0), memoryview(log), next_offset=2, source=1, aborted=aborted
    )
    assert [record.offset for record in piece.read(10, 0)] == [0]
    assert piece.read(10, 1) == []
    assert piece.leader_epoch == 4


entries = st.builds(
    pb.FetchPartitionData,
    topic=st.text(max_size=5),
    partition=st.integers(0, 1 << 20),
    error_code=st.integers(-1, 130),
    records=st.binary(max_size=300),
    next_offset=st.integers(-1, 1 << 62),
    high_watermark=st.integers(-1, 1 << 62),
    aborted_transactions=st.lists(
        st.builds(pb.AbortedTransaction, producer_id=st.integers(0, 1 << 40)), max_size=3
    ),
    end_reached=st.booleans(),
    fetch_id=st.integers(0, 1 << 40),
    preferred_read_replica=st.integers(-1, 5),
)


@given(st.lists(entries, max_size=5), st.integers(0, 1000))
def test_a_fetch_response_is_read_as_protobuf_reads_it(
    partitions: list[pb.FetchPartitionData], throttle_time_ms: int
) -> None:
    response = pb.FetchResponse(partitions=partitions, throttle_time_ms=throttle_time_ms)
    decoded = decode_fetch_response(response.SerializeToString())
    assert decoded.throttle_ms == throttle_time_ms
    assert [bytes(entry.records) for entry in decoded] == [p.records for p in partitions]
    for entry, expected in zip(decoded, partitions, strict=True):
        expected.records = b""
        assert entry.header == expected


@given(st.lists(entries, min_size=1, max_size=2), st.data())
def test_damaged_answers_are_errors_never_crashes(
    partitions: list[pb.FetchPartitionData], data: st.DataObject
) -> None:
    message = bytearray(pb.FetchResponse(partitions=partitions).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(message)))
    try:
        for entry in decode_fetch_response(bytes(message[:cut])):
            assert len(entry.records) <= cut
    except ValueError:
        pass  # what it says it raises


def test_fields_of_a_newer_broker_are_passed_over() -> None:
    entry = pb.FetchPartitionData(topic="t", records=b"xyz", next_offset=5).SerializeToString()
    newer = entry + bytes([0xF8, 0x07, 0x01]) + bytes([0xFD, 0x07, 1, 2, 3, 4])
    message = bytes([0x0A, len(newer)]) + newer + bytes([0xF1, 0x07]) + bytes(8)
    (decoded,) = decode_fetch_response(message)
    assert bytes(decoded.records) == b"xyz"
    assert decoded.header.next_offset == 5
