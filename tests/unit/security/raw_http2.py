"""A gRPC client that can stop in the middle of a message, with HTTP/2 frames written by hand;
gRPC's own client cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Final

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_WINDOW: Final = 8
_FRAME_BYTES: Final = 16384


class RawHttp2:
    """One HTTP/2 connection. The caller numbers its streams 1, 3, 5, ..."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._moved = asyncio.Event()
        self._windows = {0: 65_535}
        self._stream_window = 65_535
        self.ended: set[int] = set()
        self.is_closed = False
        self.goodbye = b""
        """The reason that the server gave for closing the connection."""
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(_SETTINGS, 0, 0, b"")

    def begin(self, stream: int, method: str) -> None:
        """Begin a call."""
        headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        )
        block = b"".join(
            b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in headers
        )
        self._send(_HEADERS, 4, stream, block)
        self._windows[stream] = self._stream_window

    async def send_half(self, stream: int, *, announced_bytes: int, sent_bytes: int) -> int:
        """Send the beginning of a message as far as the server's flow control allows; return how
        many bytes were sent.

        It returns at the latest when the call has ended.
        """
        data = b"\0" + struct.pack(">I", announced_bytes)
        data += bytes(sent_bytes)
        sent = 0
        while sent < len(data) and stream not in self.ended and not self.is_closed:
            room = min(self._windows[stream], self._windows[0], _FRAME_BYTES, len(data) - sent)
            if room <= 0:
                self._moved.clear()
                await self._moved.wait()
                continue
            self._send(_DATA, 0, stream, data[sent : sent + room])
            self._windows[stream] -= room
            self._windows[0] -= room
            sent += room
            with contextlib.suppress(OSError):
                await self._writer.drain()
        return sent

    async def until_ended(self, stream: int) -> None:
        """Wait until the server has ended the call."""
        while stream not in self.ended and not self.is_closed:
            self._moved.clear()
            await self._moved.wait()

    async def until_closed(self) -> None:
        """Wait until the server has closed the connection."""
        while not self.is_closed:
            self._moved.clear()
            await self._moved.wait()

    def _send(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        self._writer.write(struct.pack(">I", len(content))[1:] + bytes([kind, flags]))
        self._writer.write(struct.pack(">I", stream) + content)

    async def run(self) -> None:
        """Respond to settings and pings until the connection ends."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await self._take(await self._reader.readexactly(9))
        self.is_closed = True
        self._moved.set()

    async def _take(self, head: bytes) -> None:
        kind, flags = head[3], head[4]
        (stream,) = struct.unpack(">I", head[5:])
        content = await self._reader.readexactly(int.from_bytes(head[:3]))
        if kind == _SETTINGS and not flags & 1:
            for key, value in struct.iter_unpack(">HI", content):
                if key == 4:
                    self._windows = {
                        number: window + (value - self._stream_window if number else 0)
                        for number, window in self._windows.items()
                    }
                    self._stream_window = value
            self._send(_SETTINGS, 1, 0, b"")
        elif kind == _PING and not flags & 1:
            self._send(_PING, 1, 0, content)
        elif kind == _WINDOW:
            (more,) = struct.unpack(">I", content)
            if stream in self._windows:
                self._windows[stream] += more
        elif kind == _RST_STREAM or (kind == _HEADERS and flags & 1):
            self.ended.add(stream)
        elif kind == _GOAWAY:
            self.goodbye = content
        self._moved.set()


@contextlib.asynccontextmanager
async def raw_http2(host: str, port: int) -> AsyncIterator[RawHttp2]:
    """Yield a connection, which is closed at the end of the `with` block."""
    reader, writer = await asyncio.open_connection(host, port)
    connection = RawHttp2(reader, writer)
    running = asyncio.create_task(connection.run())
    try:
        yield connection
    finally:
        running.cancel()
        writer.close()
        with contextlib.suppress(asyncio.CancelledError):
            await running
