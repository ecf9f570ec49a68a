"""Measures the record codec alone: records of 100 bytes per second on one core, as JSON lines.

    python -m tests.bench.records                         measures the codec in C
    ODRADEK_PURE_PYTHON=1 python -m tests.bench.records   measures the reference in Python

For comparison, each measurement of batches with a counterpart in aiokafka (Cython) is followed by that counterpart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator

from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

from odradek_protocol.records import (
    IMPLEMENTATION,
    BatchBuilder,
    Column,
    crc32c,
    decode_batch,
    decode_to_arrow,
    iter_headers,
    partition_for_key,
    read_header,
)

RECORDS = 300_000 if IMPLEMENTATION == "c" else 30_000
BATCH_BYTES = 64 * 1024
KEY = b"12345678"
VALUES = [os.urandom(92) for _ in range(1_000)]
ROUNDS = 5


def measure() -> Iterator[dict[str, object]]:
    """Return one result for each path: the best of several rounds, since other work on the machine
    only makes it slower.
    """
    batches = build_batches()
    log = b"".join(batches)
    foreign = build_foreign_batches()
    paths: list[tuple[str, Callable[[], object]]] = [
        ("append and build", build_batches),
        ("append and build, aiokafka", build_foreign_batches),
        ("decode to objects", lambda: [decode_batch(log, p, h) for p, h in iter_headers(log)]),
        ("decode to objects, aiokafka", lambda: [list(AiokafkaBatch(batch)) for batch in foreign]),
        ("decode to columns", lambda: decode_to_arrow(log)),
        ("decode values only to a column", lambda: decode_to_arrow(log, columns=Column.VALUE)),
        ("partition of a key", lambda: [partition_for_key(KEY, 6) for _ in range(RECORDS)]),
    ]
    for name, run in paths:
        seconds = best_of(run)
        yield {
            "bench": "records",
            "path": name,
            "codec": IMPLEMENTATION,
            "records_per_s": round(RECORDS / seconds),
            "mb_per_s": round(RECORDS / 1e4 / seconds),
        }
    for name, call in [
        ("read a header", lambda: read_header(log)),
        ("checksum of 64 KiB", lambda: crc32c(log[:BATCH_BYTES])),
    ]:
        seconds = best_of(lambda call=call: [call() for _ in range(1_000)])  # type: ignore[misc]
        yield {
            "bench": "records",
            "path": name,
            "codec": IMPLEMENTATION,
            "us": round(seconds * 1e3, 2),
        }


def build_batches() -> list[bytes]:
    batches: list[bytes] = []
    builder = BatchBuilder(BATCH_BYTES)
    for number in range(RECORDS):
        value = VALUES[number % 1_000]
        if not builder.append(KEY, value, None, 1_000):
            batches.append(builder.build())
            builder = BatchBuilder(BATCH_BYTES)
            builder.append(KEY, value, None, 1_000)
    batches.append(builder.build())
    return batches


def build_foreign_batches() -> list[bytes]:
    batches: list[bytes] = []
    builder = AiokafkaBuilder(2, 0, False, -1, -1, -1, BATCH_BYTES)
    offset = 0
    for number in range(RECORDS):
        value = VALUES[number % 1_000]
        if builder.append(offset, 1_000, KEY, value, []) is None:
            batches.append(bytes(builder.build()))
            builder = AiokafkaBuilder(2, 0, False, -1, -1, -1, BATCH_BYTES)
            offset = 0
            builder.append(offset, 1_000, KEY, value, [])
        offset += 1
    batches.append(bytes(builder.build()))
    return batches


def best_of(run: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best


if __name__ == "__main__":
    for result in measure():
        print(json.dumps(result))
