"""The requests of a connection that are under way, in the order in which they came: so their answers leave."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from odradek_broker.kafka.answer_writer import AnswerBuffer, AnswerWriter
from odradek_broker.kafka.registry import Handler
from odradek_broker.kafka.request import AnyRequest
from odradek_broker.log.file_slice import FileSlice
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.frames import RequestHeader, response_head


class Slot:
    """A request's place in the line."""

    __slots__ = (
        "began",
        "buffers",
        "handler",
        "header",
        "is_unordered",
        "request",
        "seconds",
        "work",
    )

    def __init__(self, header: RequestHeader, handler: Handler | None) -> None:
        self.header = header
        self.handler = handler
        self.request: AnyRequest | None = None
        self.is_unordered = False  # nothing after it is begun before it is answered
        self.buffers: list[AnswerBuffer] | None = None  # None: not answered yet
        self.work: asyncio.Future[Any] | None = None
        self.began = 0.0
        self.seconds = 0.0


class AnswerLine:
    """`slots` is read by its connection at every request; it is changed here, and by appending."""

    __slots__ = ("_writer", "slots")

    def __init__(self) -> None:
        self.slots: deque[Slot] = deque()
        self._writer: AnswerWriter | None = None

    def opened(self, transport: asyncio.Transport) -> None:
        """From here on answers can leave."""
        self._writer = AnswerWriter(transport)

    def fill(self, slot: Slot, buffers: Any, size_bytes: int) -> None:
        """The answer to a request, without its head; its size in all."""
        header = slot.header
        head = response_head(
            ApiKey(header.api_key), header.version, header.correlation_id, size_bytes
        )
        slot.buffers = [head, *buffers]
        if slot is not self.slots[0]:  # it waits in line: its files may be cut before its turn
            slot.buffers = [
                one.read() if isinstance(one, FileSlice) else one for one in slot.buffers
            ]

    def flush(self) -> bool:
        """Write the answers at the head of the line; whether there were any.

        Raises:
            OSError: a file does not hold what it held.
        """
        slots = self.slots
        ready: list[AnswerBuffer] = []
        while slots and slots[0].buffers is not None:
            ready.extend(slots.popleft().buffers or ())
        if not ready or self._writer is None:
            return False
        self._writer.write(ready)
        return True

    def drop(self) -> None:
        """The client left: nobody waits for any of it."""
        for slot in self.slots:
            if slot.work is not None:
                slot.work.cancel()
        self.slots.clear()
