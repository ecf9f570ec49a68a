"""Frames are assembled from arbitrary pieces, headers are decoded from arbitrary bytes, and invalid ones are
refused.
"""

from __future__ import annotations

import contextlib
import random
import struct

import pytest

from odradek_broker.kafka.frames import SCRATCH_BYTES, FrameAssembler, FrameRefused
from odradek_protocol.kafka.api_keys import SUPPORTED
from odradek_protocol.kafka.frames import read_request_header
from odradek_protocol.kafka.messages import MESSAGES
from odradek_protocol.kafka.request_decoding import decode_request
from odradek_protocol.primitives import Malformed
from tests.unit.kafka.foreign_messages import every_version, foreign_bytes, some

FRAME_BYTES_MAX = 100 << 20


def receive(assembler: FrameAssembler, data: bytes) -> list[bytes]:
    """Pass bytes on as the event loop and the connection do; all connections share the scratch buffer."""
    frames = []
    while data:
        buffer = assembler.buffer()
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        buffer.release()
        assembler.received(size)
        data = data[size:]
        while (frame := assembler.next_frame()) is not None:
            frames.append(bytes(frame))
        assembler.settle()
    return frames


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def test_a_frame_that_arrives_alone_and_whole_is_taken_at_once() -> None:
    assembler = FrameAssembler(bytearray(SCRATCH_BYTES), frame_bytes_max=100)

    def arrives(data: bytes) -> bytearray | None:
        assembler.buffer()[: len(data)] = data
        return assembler.received_alone(len(data))

    assert arrives(framed(b"alone")) == b"alone"
    for data in (
        framed(b"first") + framed(b"second"),
        framed(b"cut")[:-1],
        framed(b"long") + b"\0",
        framed(bytes(101)),
        framed(b""),
        b"\0\0\0",
    ):
        assert arrives(data) is None, data
        assert not assembler.held_bytes, "nothing is recorded"
    assert receive(assembler, framed(b"begun")[:6]) == []
    assert assembler.received_alone(9) is None, "these bytes belong to a frame that was begun"


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(seed: int) -> None:
    draw = random.Random(seed)
    scratch = bytearray(SCRATCH_BYTES)
    streams = []
    for _ in range(3):  # three connections with one scratch buffer, interleaved
        sizes = [draw.choice((1, 3, 100, 5_000, 70_000, 400_000)) for _ in range(8)]
        contents = [draw.randbytes(size) for size in sizes]
        data = b"".join(map(framed, contents))
        assembler = FrameAssembler(scratch, frame_bytes_max=FRAME_BYTES_MAX)
        streams.append((contents, data, assembler, list[bytes]()))
    positions = [0, 0, 0]
    while any(at < len(streams[n][1]) for n, at in enumerate(positions)):
        n = draw.randrange(3)
        step = draw.choice((1, 2, 3, 4, 5, 4096, 65_536, 200_000))
        piece = streams[n][1][positions[n] : positions[n] + step]
        streams[n][3].extend(receive(streams[n][2], piece))
        positions[n] += len(piece)
    for contents, _, assembler, frames in streams:
        assert frames == contents
        assert not assembler.is_mid_frame


def test_frames_that_are_not_taken_wait_outside_of_the_shared_buffer() -> None:
    scratch = bytearray(SCRATCH_BYTES)
    assembler = FrameAssembler(scratch, frame_bytes_max=100)
    data = framed(b"first") + framed(b"second") + framed(b"third")[:6]
    assembler.buffer()[: len(data)] = data
    assembler.received(len(data))
    assert assembler.next_frame() == b"first"
    assembler.settle()
    scratch[:] = bytes(SCRATCH_BYTES)  # another connection receives
    assert assembler.next_frame() == b"second"
    assert assembler.next_frame() is None
    assembler.settle()
    assert receive(assembler, framed(b"third")[6:]) == [b"third"]


def test_memory_follows_what_arrived_not_what_was_announced() -> None:
    assembler = FrameAssembler(bytearray(SCRATCH_BYTES), frame_bytes_max=FRAME_BYTES_MAX)
    received = 0
    assert receive(assembler, struct.pack(">i", FRAME_BYTES_MAX)) == []
    for _ in range(40):
        receive(assembler, bytes(10_000))
        received += 10_000
        frame = assembler._frame
        assert frame is not None
        assert len(frame) <= max(4 * received, 16 * 1024)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 101, 2**31 - 1])
def test_a_length_beyond_the_limit_is_refused_at_once(size: int) -> None:
    assembler = FrameAssembler(bytearray(SCRATCH_BYTES), frame_bytes_max=100)
    with pytest.raises(FrameRefused):
        receive(assembler, struct.pack(">i", size))


def mutated(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 5)):
        match draw.randrange(4):
            case 0 if changed:
                changed[draw.randrange(len(changed))] = draw.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
            case 1 if changed:
                del changed[draw.randrange(len(changed)) :]
            case 2:
                changed += draw.randbytes(draw.randint(1, 20))
            case _:
                at = draw.randrange(len(changed) + 1)
                changed[at:at] = draw.choice(
                    (b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\x80" * 9)
                )
    return bytes(changed)


def fuzz(count: int, seed: int) -> None:
    draw = random.Random(seed)
    corpus = [
        (key, version, foreign_bytes(message))
        for key, version in every_version()
        for message in some(key, version, "request")
    ]
    for _ in range(count):
        key, version, body = draw.choice(corpus)
        head = struct.pack(">hhih", key, version, 1, 2) + b"me"
        tags = b"\0" if version >= SUPPORTED[key].flexible else b""
        frame = memoryview(bytearray(mutated(draw, head + tags + body)))
        with contextlib.suppress(Malformed):
            header = read_request_header(frame)
            if header.api_key in MESSAGES and header.api_key > 1:
                found = SUPPORTED[MESSAGES_KEYS[header.api_key]]
                if found.lowest <= header.version <= found.highest:
                    decode_request(
                        MESSAGES_KEYS[header.api_key], header.version, frame[header.body :]
                    )


MESSAGES_KEYS = {int(key): key for key in MESSAGES}


def test_no_frame_does_anything_but_decode_or_be_refused() -> None:
    fuzz(20_000, seed=7)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_million_frames() -> None:
    fuzz(1_000_000, seed=11)


@pytest.mark.parametrize(("key", "version"), every_version(), ids=str)
def test_every_message_is_refused_when_cut(key: object, version: int) -> None:
    if key in (0, 1):
        return  # by hand, and tested beside their own codecs
    data = foreign_bytes(next(some(key, version, "request")))  # type: ignore[arg-type]
    for end in range(0, len(data), max(1, len(data) // 50)):
        with pytest.raises(Malformed):
            decode_request(key, version, memoryview(data[:end]))  # type: ignore[arg-type]
    with pytest.raises(Malformed):
        decode_request(key, version, memoryview(data + bytes(9)))  # type: ignore[arg-type]
