"""One bidi stream to one broker: tells it what to deliver and how much, hands over what comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from odradek.consumer.partition_progress import StreamChange
from odradek.errors import BrokerUnreachable, OdradekError
from odradek.transports.fetch_decoding import FetchedPartition
from odradek.transports.methods import FETCH
from odradek.transports.transport import Transport
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

OnData = Callable[["FetchStream", list[FetchedPartition]], None]
OnEnd = Callable[["FetchStream", OdradekError], None]


class FetchStream:
    """Belongs to the consumer's loop; `run` is its only task, ended by cancelling it."""

    def __init__(
        self,
        source: int,
        endpoint: str,
        transport: Transport,
        *,
        settings: pb.FetchSettings,
        window_bytes: int,
        unread_bytes: int,
        on_data: OnData,
        on_end: OnEnd,
    ) -> None:
        self.source = source
        self.endpoint = endpoint
        self.window_bytes = window_bytes
        self._transport = transport
        self._settings: pb.FetchSettings | None = settings
        self._on_data = on_data
        self._on_end = on_end
        self._change = StreamChange()
        self._credit_bytes = window_bytes - unread_bytes  # below 0: so much is to be read first
        self._has_news = asyncio.Event()

    def tell(self, change: StreamChange) -> None:
        """Change what it delivers. Never waits; changes that are still unsent are merged."""
        for name in change.remove:
            self._change.add.pop(name, None)
            self._change.remove.add(name)
        for name, add in change.add.items():
            self._change.remove.discard(name)  # an add of one that is there starts it anew
            self._change.add[name] = add
        self._has_news.set()

    def give_credit(self, size_bytes: int) -> None:
        """Allow it so many bytes more."""
        self._credit_bytes += size_bytes
        self._has_news.set()

    async def run(self) -> None:
        """Carry both directions until the stream ends."""
        try:
            stream = self._transport.open(self.endpoint, FETCH)
        except OdradekError as refused:
            self._on_end(self, refused)
            return

        async def write() -> None:
            while True:
                await self._has_news.wait()
                self._has_news.clear()
                await stream.send(self._request())

        async def read() -> None:
            while (entries := await stream.receive()) is not None:
                self._on_data(self, entries)
            raise BrokerUnreachable(self.endpoint, "it ended the fetch stream")

        workers = {
            asyncio.create_task(write(), name=f"fetch from {self.endpoint}: write"),
            asyncio.create_task(read(), name=f"fetch from {self.endpoint}: read"),
        }
        error: OdradekError | None = None
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            for worker in done:
                failure = worker.exception()
                if isinstance(failure, OdradekError):
                    error = error or failure
                elif isinstance(failure, ValueError):
                    error = OdradekError(f"the broker at {self.endpoint} sent rubbish: {failure}")
                elif failure is not None:
                    raise failure
        finally:
            stream.cancel()
            for worker in workers:
                worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*workers, return_exceptions=True)
            self._on_end(self, error or BrokerUnreachable(self.endpoint, "the consumer closed"))

    def _request(self) -> pb.FetchRequest:
        credit_bytes = max(0, self._credit_bytes)
        request = pb.FetchRequest(credit_bytes=credit_bytes, settings=self._settings)
        for add in self._change.add.values():
            request.add.add(
                topic=add.name.topic,
                partition=add.name.partition,
                offset=add.offset,
                end_offset=-1,
                current_leader_epoch=add.leader_epoch,
                fetch_id=add.fetch_id,
            )
        for name in self._change.remove:
            request.remove.add(topic=name.topic, partition=name.partition)
        self._settings = None
        self._credit_bytes -= credit_bytes
        self._change = StreamChange()
        return request
