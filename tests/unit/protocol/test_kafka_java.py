"""Apache Kafka's own codec, run by a JVM, reads the batches that we write, and we read those that
it writes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from odradek_protocol.records import (
    Compression,
    ControlRecord,
    ControlType,
    Record,
    check_crc,
    decode_batch,
    encode_batch,
    encode_marker,
    iter_headers,
    read_control,
)
from tests.tools import need

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]
SOURCES = Path(__file__).parent / "kafka_java"


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    need("Maven and a JDK")
    jars = tmp_path_factory.mktemp("jars")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), *goal], check=True)
    return f"{jars}{os.sep}*"


def oracle(class_path: str, mode: str, given: bytes = b"") -> bytes:
    command = ["java", "-cp", class_path, str(SOURCES / "BatchOracle.java"), mode]
    done = subprocess.run(command, input=given, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def hexed(data: bytes | None) -> str:
    return "null" if data is None else f"x{data.hex()}"


def line_of(record: Record, base_offset: int, index: int, timestamp_ms: int) -> str:
    headers = "".join(f" {hexed(key.encode())}={hexed(value)}" for key, value in record.headers)
    return (
        f"record {base_offset + index} {timestamp_ms} {hexed(record.key)} {hexed(record.value)}"
        + headers
    )


@pytest.mark.parametrize("compression", Compression)
def test_kafka_reads_our_batches(class_path: str, compression: Compression) -> None:
    records = [
        Record(
            None if i % 5 == 0 else b"key-%d" % i,
            None if i % 7 == 0 else os.urandom(10) + b"value " * (i % 40),
            (("ключ", b"\x00"), ("n", None))[: i % 3],
            1_000_000 + i,
        )
        for i in range(5_000)
    ]
    plain = encode_batch(
        records,
        base_offset=500,
        leader_epoch=6,
        compression=compression,
        producer_id=8,
        producer_epoch=2,
        base_sequence=(1 << 31) - 100,
        transactional=True,
    )
    appended = encode_batch(
        records[:9], base_offset=9_000, compression=compression, append_time_ms=2_000_000
    )
    lines = oracle(class_path, "read", plain + appended).decode().splitlines()
    name = compression.name.lower()
    wrapped = (1 << 31) - 100 + 4_999 - (1 << 31)
    assert lines == [
        f"batch 500 5499 6 {name} 8 2 {(1 << 31) - 100} {wrapped} true false CreateTime 1004999",
        *(line_of(record, 500, i, 1_000_000 + i) for i, record in enumerate(records)),
        f"batch 9000 9008 -1 {name} -1 -1 -1 -1 false false LogAppendTime 2000000",
        *(line_of(record, 9_000, i, 2_000_000) for i, record in enumerate(records[:9])),
    ]


def test_kafka_reads_our_markers(class_path: str) -> None:
    markers = b"".join(
        encode_marker(
            marker,
            producer_id=5,
            producer_epoch=3,
            coordinator_epoch=12,
            timestamp_ms=99,
            base_offset=7,
            leader_epoch=1,
        )
        for marker in (ControlType.COMMIT, ControlType.ABORT)
    )
    lines = oracle(class_path, "read", markers).decode().splitlines()
    assert [line for line in lines if line.startswith("batch")] == [
        "batch 7 7 1 none 5 3 -1 -1 true true CreateTime 99"
    ] * 2
    assert [line for line in lines if line.startswith("marker")] == [
        "marker COMMIT 12",
        "marker ABORT 12",
    ]


def test_we_read_what_kafka_writes(class_path: str) -> None:
    written = oracle(class_path, "write")
    batches = list(iter_headers(written))
    assert sum(header.size_bytes for _, header in batches) == len(written)
    for (position, header), compression in zip(batches, Compression, strict=False):
        check_crc(written, position, header)
        assert header.compression is compression
        assert (header.base_offset, header.partition_leader_epoch) == (100, 9)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 5)
        assert header.is_transactional
        decoded = decode_batch(written, position, header)
        assert [(r.key, r.value, r.headers, r.timestamp_ms, r.offset) for r in decoded] == [
            (
                None if i % 5 == 0 else b"key-%d" % i,
                None if i % 7 == 0 else b"value " * (i % 40),
                (("h0", None), ("h1", bytes([i & 0xFF])))[: i % 3],
                1_000 + i,
                100 + i,
            )
            for i in range(5_000)
        ]
    (commit, _), (abort, _) = batches[5:]
    assert read_control(written, commit) == ControlRecord(ControlType.COMMIT, 21)
    assert read_control(written, abort) == ControlRecord(ControlType.ABORT, 21)
    ours = encode_marker(
        ControlType.COMMIT,
        producer_id=77,
        producer_epoch=3,
        coordinator_epoch=21,
        timestamp_ms=60_000,
        base_offset=50,
        leader_epoch=4,
    )
    assert ours == written[commit:abort]
