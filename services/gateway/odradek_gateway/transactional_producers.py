"""A caller's producers for transactions. One HTTP request is one transaction, and each producer has its own
transactional id.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from odradek.client import Client
from odradek.errors import OdradekError
from odradek.producer.producer import Producer

PRODUCERS_MAX: Final = 4
COMMIT_TIMEOUT_MS: Final = 20_000
ID_PREFIX: Final = "gateway/"
"""The prefix of the transactional ids. With ACLs, callers need WRITE on TransactionalId resources with this prefix."""


class TransactionalProducers:
    """A pool of at most PRODUCERS_MAX producers. A request waits while all of them are in use.

    A new producer uses the transactional id of a closed producer, for two reasons: its start aborts a transaction that
    the closed producer left open, and the cluster would store another id for days.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        name = uuid.uuid4().hex
        self._free_ids = [f"{ID_PREFIX}{name}/{n}" for n in range(PRODUCERS_MAX, 0, -1)]
        self._idle: list[Producer] = []
        self._places = asyncio.Semaphore(PRODUCERS_MAX)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Producer]:
        """Yield a producer for one transaction. After a fatal SDK error, a cancellation or any exception that is not an
        SDK error, the producer is closed and not used again.
        """
        async with self._places:
            producer = self._idle.pop() if self._idle else self._new()
            try:
                yield producer
            except BaseException as error:
                if isinstance(error, OdradekError) and not error.fatal:
                    self._idle.append(producer)
                else:
                    await self._drop(producer)
                raise
            self._idle.append(producer)

    def _new(self) -> Producer:
        return self._client.producer(
            transactional_id=self._free_ids.pop(),
            linger_ms=0,
            delivery_timeout_ms=15_000,
            max_block_ms=5_000,
            commit_timeout_ms=COMMIT_TIMEOUT_MS,
            allow_auto_create_topics=True,
        )

    async def _drop(self, producer: Producer) -> None:
        try:
            await producer.close(0)
        finally:
            transactional_id = producer.options.transactional_id
            assert transactional_id is not None
            self._free_ids.append(transactional_id)

    async def close(self) -> None:
        """Close the producers that no request is using."""
        idle, self._idle = self._idle, []
        for producer in idle:
            await producer.close(0)
