"""Responses that are written to the socket directly and those that go through the transport stay in order, and none
is lost.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from odradek_broker.kafka.response_line import (
    PIECE_BYTES_MAX,
    WRITE_BUFFER_BYTES_MAX,
    ResponseWriter,
)
from odradek_broker.log.storage import DiskStorage, FileSlice

CONTENT = Random(11).randbytes(6 << 20)


class RecordingTransport:
    """A transport that queues all writes, over a real socket."""

    def __init__(self, plain: socket.socket, *, is_encrypted: bool = False) -> None:
        self.queued = bytearray()
        self._extra = {"socket": plain, "ssl_object": object() if is_encrypted else None}

    def get_extra_info(self, name: str) -> Any:
        return self._extra[name]

    def get_write_buffer_size(self) -> int:
        return len(self.queued)

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.queued += data

    def writelines(self, buffers: Iterable[bytes]) -> None:
        for one in buffers:
            self.queued += one


class Ends:
    """Both ends of a connection, and a file to send from."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(CONTENT)
        self.file = DiskStorage().open(path)
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)

    def writer(self, transport: RecordingTransport) -> ResponseWriter:
        return ResponseWriter(cast("asyncio.Transport", transport), lambda: None)

    def arrived(self) -> bytes:
        """Return the bytes that were written to the socket directly."""
        self.theirs.setblocking(False)
        came = bytearray()
        try:
            while part := self.theirs.recv(1 << 20):
                came += part
        except BlockingIOError:
            pass
        return bytes(came)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    made = Ends(tmp_path / "log")
    yield made
    made.file.close()
    made.ours.close()
    made.theirs.close()


def test_head_slice_and_tail_go_straight_to_a_free_socket(ends: Ends) -> None:
    transport = RecordingTransport(ends.ours)
    piece = FileSlice(ends.file, 10, 50_000)
    ends.writer(transport).write([b"head", piece, bytearray(b"tail")])
    assert ends.arrived() == b"head" + CONTENT[10:50_010] + b"tail"
    assert not transport.queued


async def test_what_the_socket_does_not_take_follows_through_the_transport(ends: Ends) -> None:
    transport = RecordingTransport(ends.ours)
    writer = ends.writer(transport)
    writer.write([b"head", FileSlice(ends.file, 0, len(CONTENT)), b"tail"])
    while writer.waiting_bytes:
        writer.write_on()
    straight = ends.arrived()
    assert len(straight) > 4
    assert transport.queued
    assert straight + transport.queued == b"head" + CONTENT + b"tail"


def test_nothing_overtakes_what_the_transport_has_queued(ends: Ends) -> None:
    transport = RecordingTransport(ends.ours)
    transport.write(b"before")
    ends.writer(transport).write([b"head", FileSlice(ends.file, 5, 100), b"tail"])
    assert ends.arrived() == b""
    assert transport.queued == b"before" + b"head" + CONTENT[5:105] + b"tail"


def test_encrypted_connections_send_nothing_past_their_transport(ends: Ends) -> None:
    transport = RecordingTransport(ends.ours, is_encrypted=True)
    ends.writer(transport).write([b"head", FileSlice(ends.file, 0, 1000)])
    assert ends.arrived() == b""
    assert transport.queued == b"head" + CONTENT[:1000]


def test_answers_without_files_are_the_transports(ends: Ends) -> None:
    transport = RecordingTransport(ends.ours)
    ends.writer(transport).write([b"head", b"body"])
    assert ends.arrived() == b""
    assert transport.queued == b"headbody"


def test_a_broken_connection_is_left_to_the_transport_to_meet(ends: Ends) -> None:
    transport = RecordingTransport(ends.ours)
    ends.theirs.close()
    ends.writer(transport).write([b"head", FileSlice(ends.file, 0, 100)])
    assert transport.queued == b"head" + CONTENT[:100]


async def test_a_long_response_reaches_the_transport_in_pieces_and_before_later_ones(
    ends: Ends,
) -> None:
    transport = RecordingTransport(ends.ours)
    written: list[None] = []
    writer = ResponseWriter(cast("asyncio.Transport", transport), lambda: written.append(None))
    writer.write([b"head", CONTENT])
    writer.write([b"next", b"response"])
    assert len(transport.queued) == PIECE_BYTES_MAX
    sizes = [len(transport.queued)]
    while writer.waiting_bytes:
        assert not written
        if len(transport.queued) > WRITE_BUFFER_BYTES_MAX:  # the transport's buffer is full
            await asyncio.sleep(0)
            assert len(transport.queued) == sizes[-1], "nothing more until it has room again"
            writer.write_on()
        else:
            await asyncio.sleep(0)
        sizes.append(len(transport.queued))
    assert max(after - before for before, after in pairwise(sizes)) <= PIECE_BYTES_MAX
    assert transport.queued == b"head" + CONTENT + b"nextresponse"
    assert len(written) == 1


class Buffer(bytearray):
    """A buffer that a weak reference may refer to."""


class KeepingTransport(RecordingTransport):
    """A transport that keeps the objects that it was given, as far as they have not been sent."""

    def __init__(self, plain: socket.socket) -> None:
        super().__init__(plain)
        self.kept: deque[bytes] = deque()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.kept))

    def writelines(self, buffers: Iterable[bytes]) -> None:
        self.kept.extend(buffers)


async def test_a_long_buffer_counts_until_its_last_byte_is_written_and_is_freed_then(
    ends: Ends,
) -> None:
    """The client has read all but the last bytes, which wait in the transport."""
    transport = KeepingTransport(ends.ours)
    transport.kept.append(bytes(WRITE_BUFFER_BYTES_MAX + 1))
    writer = ends.writer(transport)
    body = Buffer(CONTENT)
    size_bytes, is_alive = len(body), weakref.ref(body)
    writer.write([body])
    del body
    while writer.waiting_bytes:
        assert writer.held_bytes == size_bytes
        while transport.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX:
            transport.kept.popleft()
        writer.write_on()
    assert transport.kept
    assert writer.held_bytes == 0
    assert is_alive() is None


def test_a_connection_that_closes_still_sends_what_waits(ends: Ends) -> None:
    transport = RecordingTransport(ends.ours)
    transport.write(bytes(WRITE_BUFFER_BYTES_MAX + 1))
    writer = ends.writer(transport)
    writer.write([b"head", CONTENT])
    writer.write_rest()
    assert transport.queued.endswith(b"head" + CONTENT)
    assert not writer.waiting_bytes
