"""Passes damaged batches to every decoder: 10^6 cases in one or two minutes.

Whatever the bytes are, decoding must end within a second with records, columns or CorruptBatch, and must not leak
memory. The Python codec must accept and refuse the same bytes as the C codec, which is checked for one case in 20. All
cases are drawn from the seed. `asan.py` runs this file as a program, with an instrumented codec:

    python -m tests.unit.protocol.fuzz CASES [SEED]
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from odradek_protocol.kafka import fetch, frames, group_messages, produce
from odradek_protocol.kafka.request_decoding import all_steps
from odradek_protocol.records import (
    Compression,
    ControlType,
    CorruptBatch,
    Record,
    check_records,
    decode_batch,
    decode_to_arrow,
    encode_batch,
    encode_marker,
    iter_headers,
    open_batch,
    read_control,
    read_header,
)
from odradek_protocol.records.batch_reader import append_time_ms, expanded_records
from tests.unit.protocol.codecs import PYTHON, C, _codec, columns_of, read_all, with_crc
from tests.unit.protocol.fetch_requests import fetch_body
from tests.unit.protocol.produce_requests import damaged, produce_body

BYTES_EXPANDED_MAX = 1 << 20
SHAPES = [
    shape
    for shapes in (
        group_messages.COMMIT_SHAPES,
        group_messages.COMMITTED_SHAPES,
        group_messages.HEARTBEAT_SHAPES,
        group_messages.CONSUMER_HEARTBEAT_SHAPES,
        group_messages.CONSUMER_BEATEN_SHAPES,
        fetch.FETCH_SHAPES,
    )
    for shape in shapes.values()
]
CASE_NS_MAX = 1_000_000_000
COMPARED_EVERY = 20
BLOCKS_LEFT_MAX = 200
NASTY = [
    b"\xff" * 5,
    b"\xff" * 10,
    b"\x80" * 4,
    b"\x80\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\x01",
    b"\x00",
]


@dataclass(slots=True)
class Findings:
    """The results of a run: how often decoding succeeded and failed, the slowest case, and the violations."""

    decoded: int = 0
    refused: int = 0
    slowest_ns: int = 0
    blocks_left: int = 0
    problems: list[str] = field(default_factory=list)


def fuzz(cases: int, seed: int) -> Findings:
    """Run this many cases. Never raises; `problems` of the result has at most 10 violations."""
    draw = random.Random(seed)
    seeds = list(_seed_batches(draw))
    findings = Findings()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for number in range(cases):
        batch = _mutated(draw, seeds)
        started_ns = time.thread_time_ns()
        try:
            _decode_every_way(batch)
            findings.decoded += 1
        except CorruptBatch:
            findings.refused += 1
        except Exception as error:
            findings.problems.append(f"case {number}: {error!r} from {batch.hex()}")
        if number % COMPARED_EVERY == 1 and not _requests_agree(draw, batch):
            findings.problems.append(f"case {number}: C and Python differ on a request")
        took_ns = time.thread_time_ns() - started_ns
        findings.slowest_ns = max(findings.slowest_ns, took_ns)
        if took_ns > CASE_NS_MAX:
            findings.problems.append(f"case {number}: {took_ns} ns for {batch.hex()}")
        if number % COMPARED_EVERY == 0 and not _codecs_agree(batch):
            findings.problems.append(f"case {number}: C and Python differ on {batch.hex()}")
        if len(findings.problems) >= 10:
            break
    gc.collect()
    findings.blocks_left = sys.getallocatedblocks() - blocks
    if findings.blocks_left > BLOCKS_LEFT_MAX:
        findings.problems.append(f"{findings.blocks_left} allocated blocks are left")
    return findings


def _seed_batches(draw: random.Random) -> Iterator[bytes]:
    headers = (("trace-id", b"4711"), ("", None), ("ключ", b""))
    for compression in (*Compression, *[Compression.NONE] * 5):  # those reach the record parser
        for count in (1, 3, 20):
            records = [
                Record(
                    draw.choice([None, b"", b"key-%d" % i]),
                    draw.choice([None, b"", draw.randbytes(30), b"x" * draw.randrange(300)]),
                    headers[: draw.randrange(4)],
                    1_700_000_000_000 + i,
                )
                for i in range(count)
            ]
            yield encode_batch(records, compression=compression)
    yield encode_batch([Record(b"k", b"v")], append_time_ms=5, producer_id=1, transactional=True)
    latest_ms = (1 << 63) - 1
    yield encode_batch([Record(None, b"v", (), latest_ms - i) for i in range(9)])
    yield encode_marker(
        ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )


def _mutated(draw: random.Random, seeds: list[bytes]) -> bytes:
    batch = bytearray(draw.choice(seeds))
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        _mutate(draw, batch, seeds)
    if draw.random() < 0.9:  # or else nothing gets past the checksum
        return with_crc(bytes(batch))
    return bytes(batch)


def _mutate(draw: random.Random, batch: bytearray, seeds: list[bytes]) -> None:
    # mostly in the records: the header is small and soon exhausted
    low = 61 if len(batch) > 62 and draw.random() < 0.8 else 0
    at = draw.randrange(low, len(batch)) if low < len(batch) else 0
    kind = draw.randrange(7)
    if kind == 0 and batch:
        batch[min(at, len(batch) - 1)] ^= 1 << draw.randrange(8)
    elif kind == 1 and batch:
        batch[min(at, len(batch) - 1)] = draw.randrange(256)
    elif kind == 2:
        del batch[at : at + draw.randrange(1, 9)]
    elif kind == 3:
        batch[at:at] = draw.choice(NASTY)
    elif kind == 4:
        nasty = draw.choice(NASTY)
        batch[at : at + len(nasty)] = nasty
    elif kind == 5:
        other = draw.choice(seeds)
        start = draw.randrange(len(other))
        batch[at : at + draw.randrange(40)] = other[start : start + draw.randrange(40)]
    else:
        del batch[at:]


def _decode_every_way(batch: bytes) -> None:
    failure: CorruptBatch | None = None
    for way in _WAYS:
        try:
            way(batch)
        except CorruptBatch as error:
            failure = error
    if failure is not None:
        raise failure


def _in_pieces(batch: bytes) -> None:
    reader = open_batch(batch, check_crc=False, bytes_expanded_max=BYTES_EXPANDED_MAX)
    while reader.remaining:
        reader.read(2)


_WAYS: list[Callable[[bytes], object]] = [
    lambda batch: decode_batch(batch, bytes_expanded_max=BYTES_EXPANDED_MAX),
    lambda batch: decode_to_arrow(
        batch, timestamp_unit="us", check_crc=False, bytes_expanded_max=BYTES_EXPANDED_MAX
    ),
    lambda batch: list(iter_headers(batch)),
    lambda batch: check_records(
        batch, 0, read_header(batch), bytes_expanded_max=BYTES_EXPANDED_MAX
    ),
    _in_pieces,
    lambda batch: read_control(batch) if read_header(batch).is_control else None,
]


def _codecs_agree(batch: bytes) -> bool:
    try:
        header = read_header(batch)
        records = expanded_records(batch, 0, header, bytes_expanded_max=BYTES_EXPANDED_MAX)
        arguments = (
            bytes(records),
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp_ms,
            append_time_ms(header),
            0,
        )
    except CorruptBatch:
        return True
    return bool(
        read_all(C, *arguments) == read_all(PYTHON, *arguments)
        and columns_of(C, *arguments) == columns_of(PYTHON, *arguments)
    )


def _requests_agree(draw: random.Random, batch: bytes) -> bool:
    """Pass a drawn Produce request, and the batch as if it were one, to the C code; return whether
    Python agrees with what C accepts.
    """
    version = draw.randrange(3, 14)
    for data in (damaged(draw, produce_body(draw, version)), batch):
        body = memoryview(bytearray(data))
        usual = _codec.usual_produce(version, body)
        if usual is not None:
            steps = produce.decode_produce_steps(version, body)
            if produce.ProduceRequest(*usual) != all_steps(steps):
                return False
        header = _codec.usual_header(data, frames._VERSIONS)
        if header is not None and header != frames.read_request_header(data):
            return False
    _codec.usual_batch(batch)
    return _fetches_agree(draw) and _shapes_agree(draw, batch)


def _fetches_agree(draw: random.Random) -> bool:
    """Pass a drawn Fetch request to the C code; return whether Python agrees with what C accepts."""
    version = draw.choice(list(fetch.FETCH_SHAPES))
    body = damaged(draw, fetch_body(draw, version))
    fields = _codec.usual_message(fetch.FETCH_SHAPES[version], body)
    if fields is None:
        return True
    steps = fetch.decode_fetch_steps(version, body)
    return bool(fetch.request_of(version, fields) == all_steps(steps))


def _shapes_agree(draw: random.Random, batch: bytes) -> bool:
    """Give the batch, or drawn bytes, to the C code as requests of groups; whether both directions agree."""
    shape = draw.choice(SHAPES)
    small = bytes(draw.choices((0, 0, 0, 1, 2, 3, 255), k=draw.randrange(60)))
    for data in (batch, damaged(draw, small)):
        fields = _codec.usual_message(shape, data)
        if fields is None:
            continue
        again = _codec.usual_encoding(shape, fields)
        if again is not None and _codec.usual_message(shape, again) != fields:
            return False
    return True


if __name__ == "__main__":
    result = fuzz(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0)
    print(
        f"{result.decoded} decoded, {result.refused} refused, slowest {result.slowest_ns} ns,"
        f" {result.blocks_left} blocks left"
    )
    sys.exit("\n".join(result.problems) or 0)
