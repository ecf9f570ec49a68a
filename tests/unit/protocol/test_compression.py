"""Compression and decompression, frames of other libraries, damage, and decompression bombs, which
are refused.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import subprocess
import sys
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from odradek_protocol.records import (
    BatchBuilder,
    Compression,
    CorruptBatch,
    ExpandedTooLarge,
    Record,
    decode_batch,
    encode_batch,
)
from odradek_protocol.records.compression import (
    LEVELS,
    LZ4_PIECE_BYTES,
    compress,
    expand,
    lz4_bytes_max,
    zstd_bytes_max,
)
from tests.worlds import records as drawn

COMPRESSED = [codec for codec in Compression if codec is not Compression.NONE]
MIXED = os.urandom(70_000) + b"odradek " * 40_000 + os.urandom(70_000)

contents = st.one_of(
    st.binary(max_size=300),
    st.builds(bytes.__mul__, st.binary(min_size=1, max_size=40), st.integers(1, 30_000)),
)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=contents)
def test_what_was_compressed_expands_to_itself(codec: Compression, data: bytes) -> None:
    packed = compress(data, codec)
    assert expand(packed, codec, len(data)) == data
    assert expand(memoryview(bytearray(packed)), codec, len(data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_cap_is_exact(codec: Compression) -> None:
    for data in (MIXED, bytes(200_000)):
        packed = compress(data, codec)
        assert expand(packed, codec, len(data)) == data
        with pytest.raises(ExpandedTooLarge, match="expand to more than"):
            expand(packed, codec, len(data) - 1)


def test_lz4_lets_other_threads_run_within_a_large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []

    class Compressor:
        def __init__(self, **options: Any) -> None:
            self._frame = whole(**options)

        def compress(self, data: bytes) -> int:
            pieces.append(len(data))
            return int(self._frame.compress(data))

        def finish(self) -> Any:
            return self._frame.finish()

    whole: Any = cramjam.lz4.Compressor
    monkeypatch.setattr(cramjam.lz4, "Compressor", Compressor)
    data = MIXED * 4
    packed = compress(data, Compression.LZ4)
    assert expand(packed, Compression.LZ4) == data
    assert sum(pieces) == len(data)
    assert max(pieces) <= LZ4_PIECE_BYTES
    frame = whole(level=0, content_checksum=False, block_linked=False)
    frame.compress(data)
    assert packed == bytes(frame.finish())


@pytest.mark.parametrize("codec", LEVELS)
def test_levels_are_those_of_the_codec(codec: Compression) -> None:
    least, default, greatest = LEVELS[codec]
    assert len(compress(MIXED, codec, greatest)) <= len(compress(MIXED, codec, least))
    assert compress(MIXED, codec, default) == compress(MIXED, codec)
    for level in (least, greatest):
        assert expand(compress(MIXED, codec, level), codec) == MIXED
    for level in (least - 1, greatest + 1):
        with pytest.raises(ValueError, match=f"level {level} is not between"):
            compress(MIXED, codec, level)


def foreign_frames(data: bytes) -> list[tuple[Compression, bytes]]:
    stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    window = zstandard.ZstdCompressionParameters(window_log=23, write_content_size=False)
    wide = zstandard.ZstdCompressor(compression_params=window).compressobj()
    return [
        (Compression.GZIP, gzip.compress(data)),
        (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))),
        (Compression.LZ4, lz4.frame.compress(data)),  # linked blocks, content size
        (
            Compression.LZ4,
            lz4.frame.compress(
                data,
                block_size=lz4.frame.BLOCKSIZE_MAX256KB,
                block_linked=False,
                content_checksum=True,
                block_checksum=True,
                store_size=False,
            ),
        ),
        (Compression.ZSTD, zstandard.ZstdCompressor().compress(data)),  # content size
        (Compression.ZSTD, stream.compress(data) + stream.flush()),
        (Compression.ZSTD, wide.compress(data) + wide.flush()),
    ]


@given(contents)
def test_foreign_frames_expand(data: bytes) -> None:
    for codec, frame in foreign_frames(data):
        assert expand(frame, codec, max(len(data), 1)) == data


def test_large_foreign_frames_expand() -> None:
    data = MIXED * 8
    for codec, frame in foreign_frames(data):
        assert expand(frame, codec, len(data)) == data
        with pytest.raises(ExpandedTooLarge):
            expand(frame, codec, len(data) - 1)


@pytest.mark.parametrize("data", [b"", b"x", MIXED, bytes(3_000_000)], ids=len)
def test_bounds_are_near_the_truth(data: bytes) -> None:
    for codec, frame in foreign_frames(data):
        if codec is Compression.LZ4:
            bound = lz4_bytes_max(frame, 1 << 40)
            assert len(data) <= bound <= len(data) + 256 * 1024
        if codec is Compression.ZSTD:
            bound = zstd_bytes_max(frame, 1 << 40)
            assert len(data) <= bound <= len(data) + 128 * 1024


def test_our_lz4_frames_have_independent_blocks_as_kafka_demands() -> None:
    frame = compress(MIXED, Compression.LZ4)
    assert frame[4] >> 5 & 1 == 1
    assert lz4.frame.decompress(frame) == MIXED


def test_our_snappy_is_framed_as_xerial_does() -> None:
    framed = compress(MIXED, Compression.SNAPPY)
    assert framed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (length,) = struct.unpack_from(">i", framed, 16)
    assert bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + length])) == MIXED[: 32 * 1024]


def test_our_zstd_stays_in_the_window_that_readers_allow() -> None:
    data = os.urandom(1 << 20) * 20
    frame = compress(data, Compression.ZSTD, 19)
    assert expand(frame, Compression.ZSTD) == data


def test_a_zstd_window_beyond_8_mib_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=24, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(b"x" * 1000) + stream.flush()
    with pytest.raises(CorruptBatch, match="zstd window of 16777216 bytes is larger"):
        expand(frame, Compression.ZSTD)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=contents, damages=st.lists(drawn.damages, min_size=1, max_size=3))
def test_damaged_frames_are_corrupt_or_within_the_cap(
    codec: Compression, data: bytes, damages: list[drawn.Damage]
) -> None:
    packed = compress(data, codec)
    for damage in damages:
        packed = damage.apply(packed)
    with contextlib.suppress(CorruptBatch):
        assert len(expand(packed, codec, 100_000)) <= 100_000


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_frame_cut_anywhere_is_corrupt(codec: Compression) -> None:
    packed = compress(b"odradek " * 300, codec)
    for end in range(len(packed)):
        if codec is Compression.SNAPPY and end == 16:
            continue  # xerial's header alone is an empty stream
        with pytest.raises(CorruptBatch):
            expand(packed[:end], codec)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bytes_after_a_frame_are_corrupt(codec: Compression) -> None:
    with pytest.raises(CorruptBatch):
        expand(compress(b"odradek", codec) + b"garbage", codec)


def test_a_snappy_block_cannot_claim_more_than_it_can_hold() -> None:
    claim = b"\x80\x80\x80\x10" + b"\x00" * 20  # 32 MiB in 24 bytes
    with pytest.raises(CorruptBatch, match="claims to expand to 33554432"):
        expand(claim, Compression.SNAPPY)


BOMB = """
import resource, sys
from odradek_protocol.records import Compression, CorruptBatch, ExpandedTooLarge
from odradek_protocol.records.compression import expand
codec, cap = Compression(int(sys.argv[1])), int(sys.argv[2])
bomb = sys.stdin.buffer.read()
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
for _ in range(20):
    try:
        expand(bomb, codec, cap)
        sys.exit("it went off")
    except ExpandedTooLarge:
        pass
print(peak() - before)
"""


def bomb(codec: Compression) -> bytes:
    """Return 10 GB of zeros, compressed to the smallest size that the format allows; the frames are
    written by hand.
    """
    if codec is Compression.GZIP:
        return gzip.compress(bytes(300_000_000), 9)  # 1000:1 is gzip's most
    if codec is Compression.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(bytes(10_000_000)))
        return compress(b"", Compression.SNAPPY) + (struct.pack(">i", len(block)) + block) * 1000
    if codec is Compression.LZ4:
        blocks = compress(bytes(4 << 20), Compression.LZ4)
        return blocks[:7] + blocks[7:-4] * 100 + blocks[-4:]
    rle_block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    return b"\x28\xb5\x2f\xfd\x00\x58" + rle_block * 80_000 + b"\x03\x00\x00\x00"


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_takes_no_more_memory_than_the_cap(codec: Compression) -> None:
    cap = 16 << 20
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(int(codec)), str(cap)],
        input=bomb(codec),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) <= 2 * cap + (8 << 20)


@pytest.mark.parametrize("codec", list(Compression))
def test_batches_respect_the_cap(codec: Compression) -> None:
    batch = encode_batch([Record(None, bytes(100_000))], compression=codec)
    assert len(decode_batch(batch, bytes_expanded_max=101_000)) == 1
    with pytest.raises(ExpandedTooLarge):
        decode_batch(batch, bytes_expanded_max=100_000)


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_that_compaction_emptied_keeps_its_codec(codec: Compression) -> None:
    batch = BatchBuilder().build(compression=codec, last_offset_delta=4, producer_id=9)
    assert len(batch) == 61
    assert decode_batch(batch) == []
