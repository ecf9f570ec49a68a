"""The door to a cluster: one set of connections for its producers, consumers and admin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from odradek.cluster.cluster import Cluster, LinkState, connect
from odradek.transports.security import SaslCredentials, TlsOptions
from odradek.transports.transport import Transport

if TYPE_CHECKING:
    from odradek.admin.admin import Admin
    from odradek.consumer.consumer import Consumer, ConsumerArguments
    from odradek.consumer.options import GroupOptions
    from odradek.producer.producer import Producer, ProducerArguments

CONNECT_S_MAX = 30.0
ADMIN_TIMEOUT_S = 30.0


class Client:
    """`async with Client("host:9090,host2:9090") as client:`; without an address, ODRADEK_BOOTSTRAP.

    Entering does not dial: the first producer, consumer or call does, or `connect`. Leaving closes
    the connections; close producers and consumers first (their own `async with` does).

    `tls` encrypts and, with a certificate, says who we are; `credentials` log in by name and
    password, or by a signed token.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        tls: TlsOptions | None = None,
        credentials: SaslCredentials | None = None,
        transport: Transport | None = None,
        on_state: Callable[[LinkState], None] | None = None,
    ) -> None:
        self.admin_timeout_s = ADMIN_TIMEOUT_S
        """How long a call of `admin` may take, s. Set it before `admin` is first used."""
        self._cluster: Cluster = connect(
            bootstrap, tls, credentials=credentials, transport=transport, on_state=on_state
        )

    def __repr__(self) -> str:
        return f"<odradek.Client {self._cluster}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def state(self) -> LinkState:
        """Whether the cluster can be seen at the moment."""
        return self._cluster.state

    @property
    def cluster_id(self) -> str:
        """Id of the cluster; empty before the first contact."""
        return self._cluster.cache.cluster_id

    async def connect(self, timeout_s: float = CONNECT_S_MAX) -> None:
        """Wait until a broker has answered.

        Raises:
            BrokersUnavailable: none did; it names those tried and the last error.
        """
        await self._cluster.wait_connected(timeout_s)

    def producer(self, **arguments: Unpack[ProducerArguments]) -> Producer:
        """A producer over this client's connections. Its arguments: `ProducerOptions`."""
        from odradek.producer.producer import Producer

        return Producer(cluster=self._cluster, **arguments)

    def consumer(
        self,
        *topics: str,
        group: str | GroupOptions | None = None,
        **arguments: Unpack[ConsumerArguments],
    ) -> Consumer:
        """A consumer of all partitions of these topics, or its share of them as a member of `group`, or of
        what it is assigned later.

        Its other arguments: `ConsumerOptions`.
        """
        from odradek.consumer.consumer import Consumer

        return Consumer(*topics, cluster=self._cluster, group=group, **arguments)

    @cached_property
    def admin(self) -> Admin:
        """Topics, configs, access, the cluster."""
        from odradek.admin.admin import Admin

        return Admin(cluster=self._cluster, timeout_s=self.admin_timeout_s)

    def explain_waiting(self) -> str:
        """Why nothing comes back from the cluster, in words, as far as this client can see."""
        if self.state is LinkState.CONNECTED:
            return "connected, but the cluster has not responded yet"
        return str(self._cluster.unavailable(None))

    async def close(self) -> None:
        """Close all connections. May be called twice."""
        await self._cluster.close()
