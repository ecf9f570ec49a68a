"""What every route needs of the cluster: one client, one producer, the admin, and the open consumer instances."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from odradek.admin.admin import Admin
from odradek.admin.descriptions import TopicDescription
from odradek.client import Client
from odradek.producer.producer import Producer
from odradek.transports.security import TlsOptions
from odradek_gateway.settings import GatewaySettings
from odradek_gateway.waits import Waits
from odradek_runtime.lifecycle import bounded

REGISTRY_TOPIC: Final = "__rest_consumers"
"""Who serves which consumer instance; see `consumers.instance_registry`."""
_CLOSE_S_MAX: Final = 5.0
INTERNAL_TOPICS: Final = frozenset({REGISTRY_TOPIC})


class ClusterAccess:
    """Made once a process; `url` is how other gateways reach this one."""

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
        self.client = Client(settings.bootstrap, tls=tls)
        self.producer: Producer = self.client.producer(
            acks="all", linger_ms=0, delivery_timeout_ms=30_000, max_block_ms=5_000
        )
        self.waits = Waits(shutdown_s=settings.shutdown_timeout_ms / 1000)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.producer.close(_CLOSE_S_MAX)
        await bounded(self.client.close(), _CLOSE_S_MAX, "the client to close")

    @property
    def admin(self) -> Admin:
        """Topics, configs, groups, access."""
        return self.client.admin

    async def topics(self) -> list[TopicDescription]:
        """All but the cluster's internal ones and the gateways' own, by name."""
        return [t for t in await self.admin.list_topics() if t.name not in INTERNAL_TOPICS]

    async def cluster_id(self) -> str:
        """Of the cluster; waits for a first contact, at most 5 s."""
        if not self.client.cluster_id:
            await self.client.connect(5.0)
        return self.client.cluster_id
