"""The requests of a connection that are in progress, in order of arrival. Their responses are sent in the same order.

While the transport's buffer is empty, responses are written directly to the socket. Slices of files are sent by
sendfile(2), from the page cache without a copy through this process. From the first byte that the socket does not
accept, everything goes through the transport, so that the bytes stay in order and the transport's back-pressure
applies. With TLS, or if the transport has no socket, everything always goes through the transport.

A transport buffers all bytes that are written to it. Therefore a long response is written to it in pieces of
`PIECE_BYTES_MAX`, one in each iteration of the event loop, and further pieces follow when the transport has sent most
of the earlier ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from time import perf_counter
from types import coroutine
from typing import Final, TypeVar

from odradek_broker.compiled import TrackedMutable
from odradek_broker.kafka.registry import Response
from odradek_broker.kafka.request import AnyRequest, ResponseBuffer
from odradek_broker.log.storage import FileSlice
from odradek_protocol.kafka.frames import response_head
from odradek_protocol.primitives import ByteBuffer

T = TypeVar("T")
JOINED_BYTES_MAX: Final = 4096
PIECE_BYTES_MAX: Final = 256 << 10
WRITE_BUFFER_BYTES_MAX: Final = 1 << 20
PINNED_BYTES_MAX: Final = 4 << 20
"""The last pieces of a longer buffer are copied for the transport, because views would keep the whole buffer in
memory.
"""


class Slot(TrackedMutable):
    """One request in progress, and its response when there is one. Only the connection and the request's task change
    a slot.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None = None
    request: AnyRequest | None = None
    is_unordered: bool = False  # True: later requests begin only after the response to this one
    buffers: Sequence[ResponseBuffer] | None = None  # None: there is no response yet
    work: asyncio.Future[None] | asyncio.Future[Response] | None = None
    began: float = 0.0
    seconds: float = 0.0


class ResponseLine:
    """The slots of one connection, in order. The connection appends to `slots`; only this class removes from it."""

    __slots__ = ("_writer", "slots")

    def __init__(self) -> None:
        self.slots: deque[Slot] = deque()
        self._writer: ResponseWriter | None = None

    def opened(
        self, transport: asyncio.Transport, on_written: Callable[[], None]
    ) -> ResponseWriter:
        """Set the transport on which responses are sent from now on, and return their writer."""
        self._writer = ResponseWriter(transport, on_written)
        return self._writer

    def fill(self, slot: Slot, buffers: Sequence[ResponseBuffer], size_bytes: int) -> None:
        """Put the response to a request into its slot. `buffers` have `size_bytes` in all, without the header."""
        head = response_head(slot.api_key, slot.version, slot.correlation_id, size_bytes)
        if size_bytes < JOINED_BYTES_MAX and len(buffers) == 1:
            (body,) = buffers
            if not isinstance(body, FileSlice):
                slot.buffers = (b"".join((head, body)),)  # the usual case
                return
        filled = [head, *buffers]
        # A response that must wait for earlier ones is copied from the log files, because the files may be truncated
        # before the response is sent.
        if slot is self.slots[0]:
            slot.buffers = filled
        else:
            slot.buffers = [
                buffer.read() if isinstance(buffer, FileSlice) else buffer for buffer in filled
            ]

    def flush(self) -> bool:
        """Send all responses before the first one that is not ready. Return whether any response was sent.

        Raises:
            OSError: a slice of a log file can no longer be read.
        """
        slots = self.slots
        if len(slots) == 1 and self._writer is not None:
            buffers = slots[0].buffers
            if buffers is not None:
                slots.popleft()
                if buffers:
                    self._writer.write(buffers)
                    return True
            return False
        ready: list[ResponseBuffer] = []
        while slots and slots[0].buffers is not None:
            ready.extend(slots.popleft().buffers or ())
        if not ready or self._writer is None:
            return False
        self._writer.write(ready)
        return True

    def write_on(self) -> None:
        """Write more of the waiting responses, because the transport can buffer more."""
        if self._writer is not None:
            self._writer.write_on()

    def write_rest(self) -> None:
        """Pass all waiting bytes, and all responses before the first one that is not ready, to the transport, which is
        about to close.
        """
        with contextlib.suppress(OSError):  # a slice of a log file can no longer be read
            self.flush()
        if self._writer is not None:
            self._writer.write_rest()

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait in this object or in the transport's buffer."""
        return 0 if self._writer is None else self._writer.unsent_bytes

    def drop(self) -> None:
        """Cancel all requests in progress, because the client has disconnected."""
        if self._writer is not None:
            self._writer.drop()
        for slot in self.slots:
            if slot.work is not None:
                slot.work.cancel()
        self.slots.clear()


class ResponseWriter:
    """Writes the responses of one connection, directly to its socket if that is possible."""

    __slots__ = (
        "_begun_bytes",
        "_is_due",
        "_on_written",
        "_socket_fd",
        "_transport",
        "_waiting",
        "waiting_bytes",
    )

    def __init__(self, transport: asyncio.Transport, on_written: Callable[[], None]) -> None:
        """`on_written` is called when the transport has received all waiting bytes."""
        self._transport = transport
        self._on_written = on_written
        self._waiting: deque[ByteBuffer] = deque()
        self.waiting_bytes = 0
        self._begun_bytes = 0  # how many bytes of the first waiting buffer were written
        self._is_due = False  # whether a piece is written in the next iteration of the event loop
        self._socket_fd = -1
        plain_socket = transport.get_extra_info("socket")
        if plain_socket is not None and transport.get_extra_info("ssl_object") is None:
            self._socket_fd = plain_socket.fileno()

    def write(self, buffers: Sequence[ResponseBuffer]) -> None:
        """Write all buffers, in order. Raises OSError if a slice of a log file can no longer be read."""
        if len(buffers) == 1 and not self._waiting:
            whole = buffers[0]
            if type(whole) is bytes and len(whole) <= PIECE_BYTES_MAX:
                self._transport.write(whole)
                return
        plain = [buffer for buffer in buffers if not isinstance(buffer, FileSlice)]
        if len(plain) < len(buffers):
            plain = self._write_past_the_transport(buffers)
        if plain:
            size_bytes = sum(map(len, plain))
            if size_bytes <= PIECE_BYTES_MAX and not self._waiting:
                self._transport.writelines(plain)
                return
            self._waiting.extend(plain)
            self.waiting_bytes += size_bytes
            has_room = self._transport.get_write_buffer_size() <= WRITE_BUFFER_BYTES_MAX
            if has_room and not self._is_due:
                self.write_on()

    def write_on(self) -> None:
        """Write the next piece of the waiting bytes."""
        self._is_due = False
        waiting, transport = self._waiting, self._transport
        piece: list[ByteBuffer] = []
        room_bytes = PIECE_BYTES_MAX
        while waiting and room_bytes > 0:
            buffer = waiting.popleft()
            left_bytes, begun_bytes = len(buffer), self._begun_bytes
            self._begun_bytes = 0
            if left_bytes > room_bytes:
                view = memoryview(buffer)
                waiting.appendleft(view[room_bytes:])
                self._begun_bytes = begun_bytes + room_bytes
                buffer = view[:room_bytes]
            is_end = left_bytes <= WRITE_BUFFER_BYTES_MAX + PIECE_BYTES_MAX
            if is_end and begun_bytes + left_bytes > PINNED_BYTES_MAX:
                buffer = bytes(buffer)
            room_bytes -= len(buffer)
            piece.append(buffer)
        if not piece:
            return
        self.waiting_bytes -= PIECE_BYTES_MAX - room_bytes
        transport.writelines(piece)
        if not waiting:
            self._on_written()
        # If the transport's buffer is too full, the transport calls `resume_writing` later.
        elif transport.get_write_buffer_size() <= WRITE_BUFFER_BYTES_MAX:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.write_on)

    @property
    def held_bytes(self) -> int:
        """The memory of the waiting buffers, in bytes. A buffer is freed only after its last byte was written."""
        return self.waiting_bytes + self._begun_bytes

    @property
    def held_with_transport_bytes(self) -> int:
        """The memory of the waiting buffers and of the transport's buffer, in bytes."""
        return self.held_bytes + self._transport.get_write_buffer_size()

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait in this object or in the transport's buffer."""
        return self.waiting_bytes + self._transport.get_write_buffer_size()

    def write_rest(self) -> None:
        """Pass all waiting bytes to the transport."""
        if self._waiting:
            self._transport.writelines(self._waiting)
        self.drop()

    def drop(self) -> None:
        """Discard the bytes that were not passed to the transport yet."""
        self._waiting.clear()
        self.waiting_bytes = self._begun_bytes = 0

    def _write_past_the_transport(self, buffers: Sequence[ResponseBuffer]) -> list[ByteBuffer]:
        """Write as much as the socket accepts, past the transport. Return the remaining bytes, for the transport."""
        transport = self._transport
        is_free = (
            self._socket_fd >= 0
            and not self._waiting
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        )
        rest: list[ByteBuffer] = []
        for buffer in buffers:
            sent = self._send(buffer) if is_free else 0
            if sent < len(buffer):
                is_free = False
                rest.append(
                    buffer.read(sent)
                    if isinstance(buffer, FileSlice)
                    else memoryview(buffer)[sent:]
                )
        return rest

    def _send(self, buffer: ResponseBuffer) -> int:
        if isinstance(buffer, FileSlice):
            try:
                return buffer.send(self._socket_fd)
            except ConnectionError:
                return 0  # the transport will get the same error and report it
        try:
            return os.write(self._socket_fd, buffer)
        except (BlockingIOError, ConnectionError):
            return 0


@coroutine
def timed(steps: Coroutine[object, object, T], slot: Slot) -> Generator[object, object, T]:
    """Run a coroutine, and add the seconds for which it occupies the event loop to `slot.seconds`.

    Time in which the coroutine waits is not counted.
    """
    sent: object = None
    thrown: BaseException | None = None
    while True:
        began = perf_counter()
        try:
            waits_for = steps.send(sent) if thrown is None else steps.throw(thrown)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            slot.seconds += perf_counter() - began
        sent = thrown = None
        try:
            sent = yield waits_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            thrown = error
