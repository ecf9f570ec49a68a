"""aiokafka and kafka-python read the batches that we write, and we read theirs, in every
compression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from odradek_protocol.records import (
    Compression,
    Record,
    check_crc,
    decode_batch,
    encode_batch,
    read_header,
)
from tests.worlds import records as drawn

foreign_batches = pytest.mark.parametrize(
    "foreign", [AiokafkaBatch, KafkaPythonBatch], ids=["aiokafka", "kafka-python"]
)
foreign_builders = pytest.mark.parametrize(
    "foreign", [AiokafkaBuilder, KafkaPythonBuilder], ids=["aiokafka", "kafka-python"]
)
producers = st.one_of(
    st.just((-1, -1, -1)),
    st.tuples(
        st.integers(0, 1 << 62), st.integers(0, (1 << 15) - 1), st.integers(0, (1 << 31) - 1)
    ),
)


@foreign_batches
@given(drawn.records(gaps=True), drawn.compressions, producers, st.booleans(), st.integers(0, 9))
def test_foreign_codecs_read_our_batches(
    foreign: Callable[[bytes], Any],
    records: list[Record],
    compression: Compression,
    producer: tuple[int, int, int],
    transactional: bool,
    base_offset: int,
) -> None:
    producer_id, producer_epoch, base_sequence = producer
    encoded = encode_batch(
        [
            Record(r.key, r.value, r.headers, r.timestamp_ms, r.offset + base_offset)
            for r in records
        ],
        base_offset=base_offset,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    theirs = foreign(encoded)
    assert theirs.validate_crc()
    assert theirs.producer_id == producer_id
    assert theirs.producer_epoch == producer_epoch
    assert theirs.base_sequence == base_sequence
    assert bool(theirs.is_transactional) is transactional
    assert not theirs.is_control_batch
    assert theirs.next_offset == base_offset + records[-1].offset + 1
    read = [(r.key, r.value, tuple(r.headers), r.timestamp, r.offset) for r in theirs]
    assert read == [
        (r.key, r.value, r.headers, r.timestamp_ms, r.offset + base_offset) for r in records
    ]


@foreign_builders
@given(drawn.records(), drawn.compressions, producers, st.booleans())
def test_we_read_what_foreign_codecs_write(
    foreign: Callable[..., Any],
    records: list[Record],
    compression: Compression,
    producer: tuple[int, int, int],
    transactional: bool,
) -> None:
    producer_id, producer_epoch, base_sequence = producer
    builder = foreign(
        2, int(compression), transactional, producer_id, producer_epoch, base_sequence, 1 << 26
    )
    for record in records:
        timestamp_ms = max(record.timestamp_ms, 0)  # they refuse to write -1
        headers = list(record.headers)
        assert builder.append(record.offset, timestamp_ms, record.key, record.value, headers)
    encoded = bytes(builder.build())

    header = read_header(encoded)
    check_crc(encoded, 0, header)
    assert header.size_bytes == len(encoded)
    assert (header.producer_id, header.producer_epoch) == (producer_id, producer_epoch)
    assert header.base_sequence == base_sequence
    assert header.is_transactional is transactional
    assert header.record_count == len(records)
    assert header.max_timestamp_ms == max(max(r.timestamp_ms, 0) for r in records)
    assert [
        (r.key, r.value, r.headers, r.timestamp_ms, r.offset) for r in decode_batch(encoded)
    ] == [(r.key, r.value, r.headers, max(r.timestamp_ms, 0), r.offset) for r in records]


@foreign_batches
def test_foreign_codecs_see_log_append_time(foreign: Callable[[bytes], Any]) -> None:
    encoded = encode_batch([Record(b"k", b"v", (), 5)], append_time_ms=9_000)
    theirs = foreign(encoded)
    (record,) = theirs
    assert (record.timestamp, record.timestamp_type) == (9_000, 1)
    (ours,) = decode_batch(encoded)
    assert (ours.timestamp_ms, ours.timestamp_type) == (9_000, 1)
