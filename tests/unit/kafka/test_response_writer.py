"""What goes past the transport and what through it: never out of order, never lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from odradek_broker.kafka.response_line import ResponseWriter
from odradek_broker.log.storage import DiskStorage, FileSlice

CONTENT = Random(11).randbytes(6 << 20)


class RecordingTransport:
    """A transport that queues, over a real socket."""

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
        return ResponseWriter(cast("asyncio.Transport", transport))

    def arrived(self) -> bytes:
        """What went past the transport."""
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


def test_what_the_socket_does_not_take_follows_through_the_transport(ends: Ends) -> None:
    transport = RecordingTransport(ends.ours)
    ends.writer(transport).write([b"head", FileSlice(ends.file, 0, len(CONTENT)), b"tail"])
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
