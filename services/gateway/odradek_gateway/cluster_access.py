"""A gateway's access to the cluster: one client, one producer, the admin, and waits that end when the gateway stops.

When the gateway stops, a request that waits for records gets its response at once, with the records that have arrived.
A stream of records from a client is read for the first half of `shutdown.timeout.ms`. In the second half the brokers
acknowledge the records that were read.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from odradek.admin.admin import Admin
from odradek.admin.descriptions import TopicDescription
from odradek.client import Client
from odradek.cluster.grpc_transport import GrpcTransport
from odradek.cluster.security import TlsOptions
from odradek.partitions import EARLIEST, LATEST, TopicPartition
from odradek.producer.producer import Producer
from odradek_gateway.settings import GatewaySettings
from odradek_gateway.transactional_producers import TransactionalProducers
from odradek_runtime.lifecycle import bounded


class Waits:
    """Limits how long coroutines wait, and ends their waits when the process stops. Used only on the event loop."""

    def __init__(self, *, shutdown_s: float) -> None:
        """`shutdown_s` is the longest time for which the gateway waits for running requests when it stops."""
        self.is_stopping = False
        self._shutdown_s = shutdown_s
        self._polls_end_s = self._streams_end_s = math.inf  # times on the event loop's clock
        self._polls: set[asyncio.Timeout] = set()
        self._streams: set[asyncio.Timeout] = set()

    @contextlib.asynccontextmanager
    async def long_poll(self, timeout_s: float) -> AsyncIterator[None]:
        """Bound the wait in an `async with` block. Raises TimeoutError after `timeout_s`, or when the gateway stops."""
        until_s = min(asyncio.get_running_loop().time() + timeout_s, self._polls_end_s)
        async with asyncio.timeout_at(until_s) as waiting, _among(self._polls, waiting):
            yield

    @contextlib.asynccontextmanager
    async def stream_read(self, idle_s_max: float) -> AsyncIterator[None]:
        """Bound the wait for more bytes of a stream in an `async with` block.

        Raises TimeoutError after `idle_s_max`, or at half of the shutdown time if the gateway stops.
        """
        until_s = min(asyncio.get_running_loop().time() + idle_s_max, self._streams_end_s)
        async with asyncio.timeout_at(until_s) as waiting, _among(self._streams, waiting):
            yield

    def stop(self) -> None:
        """End all long polls at once, and all reads of streams after half of the shutdown time."""
        self.is_stopping = True
        self._polls_end_s = asyncio.get_running_loop().time()
        self._streams_end_s = self._polls_end_s + self._shutdown_s / 2
        for waiting, end_s in (
            *((poll, self._polls_end_s) for poll in self._polls),
            *((stream, self._streams_end_s) for stream in self._streams),
        ):
            waiting.reschedule(min(waiting.when() or math.inf, end_s))


@contextlib.asynccontextmanager
async def _among(
    all_waiting: set[asyncio.Timeout], waiting: asyncio.Timeout
) -> AsyncIterator[None]:
    all_waiting.add(waiting)
    try:
        yield
    finally:
        all_waiting.discard(waiting)


REGISTRY_TOPIC: Final = "__rest_consumers"
"""The topic that records which gateway serves which consumer instance (`rest.v2.instance_registry`)."""
_CLOSE_S_MAX: Final = 5.0
_OTHERS_CONNECTED_S_MAX: Final = 0.5
INTERNAL_TOPICS: Final = frozenset({REGISTRY_TOPIC})


class ClusterAccess:
    """The gateway's own access to the cluster. `url` is the address at which other gateways reach this gateway."""

    def __init__(self, settings: GatewaySettings, *, url: str) -> None:
        tls = None
        if settings.ssl_ca:
            tls = TlsOptions(
                ca=settings.ssl_ca,
                cert=settings.ssl_certificate or None,
                key=settings.ssl_key or None,
            )
        self.settings = settings
        self.url = url
        self.transport = GrpcTransport(tls)
        """The connections to the brokers, which the accesses of all callers use, too."""
        self.client = Client(settings.bootstrap, transport=self.transport, suggests_topics=False)
        self.producer: Producer = self.client.producer(
            acks="all",
            linger_ms=0,
            delivery_timeout_ms=30_000,
            max_block_ms=5_000,
            # As in Confluent's REST Proxy, auto.create.topics.enable of the cluster decides.
            allow_auto_create_topics=True,
        )
        self.transactions = TransactionalProducers(self.client)
        self.waits = Waits(shutdown_s=settings.shutdown_timeout_ms / 1000)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await bounded(self.transactions.close(), _CLOSE_S_MAX, "transactions to end")
        await self.producer.close(_CLOSE_S_MAX)
        await bounded(self.client.close(), _CLOSE_S_MAX, "the client to close")

    @property
    def admin(self) -> Admin:
        """The SDK's admin client for topics, configs, groups and ACLs."""
        return self.client.admin

    async def connect(self, timeout_s: float) -> None:
        """Connect to the cluster, and then to all live brokers, so that the first requests do not wait for connections.

        Raises:
            OdradekError: no broker responded within `timeout_s`. It is no error if only some brokers do not respond.
        """
        await self.client.connect(timeout_s)
        await self.transport.connect(
            self.client.broker_endpoints, timeout_s=_OTHERS_CONNECTED_S_MAX
        )

    async def topics(self) -> list[TopicDescription]:
        """Return all topics except the internal ones of the cluster and of the gateways."""
        return [t for t in await self.admin.list_topics() if t.name not in INTERNAL_TOPICS]

    async def offset_bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """Return a partition's log start offset and its end offset (exclusive)."""
        starts, ends = await asyncio.gather(
            self.admin.list_offsets({partition: EARLIEST}),
            self.admin.list_offsets({partition: LATEST}),
        )
        return starts[partition].offset, ends[partition].offset

    async def cluster_id(self) -> str:
        """Return the cluster's id. The first call connects to a broker, and waits at most 5 s for the connection."""
        if not self.client.cluster_id:
            await self.client.connect(5.0)
        return self.client.cluster_id
