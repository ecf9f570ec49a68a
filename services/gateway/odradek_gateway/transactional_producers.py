"""One caller's producers for transactions that consist of one HTTP request. Each producer has its own transactional
id.
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
"""The prefix of the transactional ids. With ACLs, callers need WRITE on it."""


class TransactionalProducers:
    """A pool of at most PRODUCERS_MAX producers. A request waits if none of them is free."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._name = uuid.uuid4().hex
        self._made = 0
        self._idle: list[Producer] = []
        self._places = asyncio.Semaphore(PRODUCERS_MAX)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Producer]:
        """Lend a producer for one transaction. A producer with a fatal error is not used again."""
        async with self._places:
            producer = self._idle.pop() if self._idle else self._new()
            try:
                yield producer
            except BaseException as error:
                if isinstance(error, OdradekError) and not error.fatal:
                    self._idle.append(producer)
                else:
                    await producer.close(0)
                raise
            self._idle.append(producer)

    def _new(self) -> Producer:
        self._made += 1
        return self._client.producer(
            transactional_id=f"{ID_PREFIX}{self._name}/{self._made}",
            linger_ms=0,
            delivery_timeout_ms=15_000,
            max_block_ms=5_000,
            commit_timeout_ms=COMMIT_TIMEOUT_MS,
        )

    async def close(self) -> None:
        """Close the producers that are idle."""
        idle, self._idle = self._idle, []
        for producer in idle:
            await producer.close(0)
