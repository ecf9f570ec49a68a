"""Puts answers on a connection: buffers through the transport, slices of files past it when that is free.

While the transport has nothing queued, what is to be written goes to the socket at once, and slices by
sendfile(2), from the page cache without a copy through this process. From the first byte that the
socket does not take, everything goes through the transport, so that bytes stay in order and
back-pressure is the transport's. With TLS, and without a socket, nothing else ever happens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final, TypeAlias

from odradek_broker.log.file_slice import FileSlice
from odradek_protocol.primitives import ByteBuffer

AnswerBuffer: TypeAlias = ByteBuffer | FileSlice
JOINED_BYTES_MAX: Final = 4096


class AnswerWriter:
    """One connection's."""

    __slots__ = ("_socket_fd", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket_fd = -1
        plain = transport.get_extra_info("socket")
        if plain is not None and transport.get_extra_info("ssl_object") is None:
            self._socket_fd = plain.fileno()

    def write(self, buffers: Sequence[AnswerBuffer]) -> None:
        """All of them, in order. Raises OSError when a file does not hold what it held."""
        plain = [one for one in buffers if not isinstance(one, FileSlice)]
        if len(plain) < len(buffers):
            plain = self._write_past_the_transport(buffers)
        if len(plain) == 2 and len(plain[1]) < JOINED_BYTES_MAX:
            self._transport.write(b"".join(plain))
        elif plain:
            self._transport.writelines(plain)

    def _write_past_the_transport(self, buffers: Sequence[AnswerBuffer]) -> list[ByteBuffer]:
        """Write as much as the socket takes; the rest, read, is for the transport."""
        transport = self._transport
        is_free = (
            self._socket_fd >= 0
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        )
        rest: list[ByteBuffer] = []
        for one in buffers:
            sent = self._send(one) if is_free else 0
            if sent < len(one):
                is_free = False
                rest.append(
                    one.read(sent) if isinstance(one, FileSlice) else memoryview(one)[sent:]
                )
        return rest

    def _send(self, one: AnswerBuffer) -> int:
        if isinstance(one, FileSlice):
            try:
                return one.send(self._socket_fd)
            except ConnectionError:
                return 0  # the transport will meet it
        try:
            return os.write(self._socket_fd, one)
        except (BlockingIOError, ConnectionError):
            return 0
