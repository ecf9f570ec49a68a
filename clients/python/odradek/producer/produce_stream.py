"""One bidi stream to one broker: requests go out in order, answers come back by their ids.

All partitions that the broker leads share it, several to a message. How much may be unanswered is
bounded in bytes and requests; `can_take` tells whether there is room. When the stream breaks, for whatever
reason, everything unanswered is handed back at once and the stream is of no more use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from odradek.errors import BrokerUnreachable, OdradekError
from odradek.producer.producer_batch import ProducerBatch
from odradek.transports.methods import PRODUCE
from odradek.transports.transport import Transport
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

UNANSWERED_BYTES_MAX: Final = 16 * 1024 * 1024
UNANSWERED_REQUESTS_MAX: Final = 64

OnAnswer = Callable[["SentRequest", pb.ProduceResponse], None]
OnBroken = Callable[["ProduceStream", list["SentRequest"], OdradekError], None]


@dataclass(slots=True)
class SentRequest:
    """Batches that went out together, each with the number of its attempt."""

    request_id: int
    batches: list[tuple[ProducerBatch, int]]
    size_bytes: int
    sent_ms: int


class ProduceStream:
    """Belongs to the producer's loop; `run` is its only task, ended by cancelling it."""

    def __init__(
        self,
        endpoint: str,
        transport: Transport,
        *,
        acks: int,
        timeout_ms: int,
        on_answer: OnAnswer,
        on_broken: OnBroken,
    ) -> None:
        self.endpoint = endpoint
        self._transport = transport
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._on_answer = on_answer
        self._on_broken = on_broken
        self._outgoing: asyncio.Queue[tuple[SentRequest, pb.ProduceRequest]] = asyncio.Queue(
            UNANSWERED_REQUESTS_MAX
        )
        self._unanswered: dict[int, SentRequest] = {}
        self._unanswered_bytes = 0
        self._next_request_id = 0
        self._stop_reason: OdradekError | None = None
        self._stopping = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is unanswered."""
        return not self._unanswered

    @property
    def can_take(self) -> bool:
        """Whether another request fits into the window."""
        return (
            self._stop_reason is None
            and self._unanswered_bytes < UNANSWERED_BYTES_MAX
            and len(self._unanswered) < UNANSWERED_REQUESTS_MAX
        )

    def oldest_sent_ms(self) -> int | None:
        """When the oldest unanswered request was handed over."""
        for request in self._unanswered.values():
            return request.sent_ms
        return None

    def submit(self, batches: list[tuple[ProducerBatch, bytes]], now_ms: int) -> None:
        """Queue one request; `can_take` must hold. Never waits."""
        assert self.can_take
        self._next_request_id += 1
        message = pb.ProduceRequest(
            request_id=self._next_request_id, acks=self._acks, timeout_ms=self._timeout_ms
        )
        size_bytes = 0
        for batch, encoded in batches:
            message.partitions.add(
                topic=batch.queue.topic, partition=batch.queue.partition, records=encoded
            )
            size_bytes += len(encoded)
        request = SentRequest(
            self._next_request_id, [(b, b.attempt) for b, _ in batches], size_bytes, now_ms
        )
        self._unanswered[request.request_id] = request
        self._unanswered_bytes += size_bytes
        self._outgoing.put_nowait((request, message))

    def stop(self, reason: OdradekError) -> None:
        """Break it: what is unanswered comes back with this reason."""
        if self._stop_reason is None:
            self._stop_reason = reason
            self._stopping.set()

    async def run(self) -> None:
        """Carry requests and answers until the stream breaks or is stopped."""
        try:
            stream = self._transport.open(self.endpoint, PRODUCE)
        except OdradekError as refused:
            self._break(refused)
            return
        error: OdradekError | None = None

        async def write() -> None:
            while True:
                request, message = await self._outgoing.get()
                await stream.send(message)
                if self._acks == 0:
                    self._settle(request, pb.ProduceResponse(request_id=request.request_id))

        async def read() -> None:
            while (response := await stream.receive()) is not None:
                request = self._unanswered.get(response.request_id)
                if request is not None:
                    self._settle(request, response)
            raise BrokerUnreachable(self.endpoint, "it ended the produce stream")

        workers = {
            asyncio.create_task(write(), name=f"produce to {self.endpoint}: write"),
            asyncio.create_task(read(), name=f"produce to {self.endpoint}: read"),
            asyncio.create_task(self._wait_stop(), name=f"produce to {self.endpoint}: stop"),
        }
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            for worker in done:
                failure = worker.exception()
                if isinstance(failure, OdradekError):
                    error = error or failure
                elif failure is not None:
                    raise failure
        finally:
            stream.cancel()
            for worker in workers:
                worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*workers, return_exceptions=True)
            self._break(error or BrokerUnreachable(self.endpoint, "the producer closed"))

    def _break(self, error: OdradekError) -> None:
        """Hand back what is unanswered."""
        requests = list(self._unanswered.values())
        self._unanswered.clear()
        self._stop_reason = self._stop_reason or error
        self._on_broken(self, requests, self._stop_reason)

    async def _wait_stop(self) -> None:
        await self._stopping.wait()

    def _settle(self, request: SentRequest, response: pb.ProduceResponse) -> None:
        if self._unanswered.pop(request.request_id, None) is not None:
            self._unanswered_bytes -= request.size_bytes
            self._on_answer(request, response)
