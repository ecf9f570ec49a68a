"""`Client`: one set of connections to a cluster, shared by producers, consumers and the admin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from odradek.cluster.cluster import Cluster, LinkState, connect
from odradek.cluster.security import SaslCredentials, TlsOptions
from odradek.cluster.transport import Transport
from odradek.errors import InvalidConfig

if TYPE_CHECKING:
    from odradek.admin.admin import Admin
    from odradek.consumer.consumer import Consumer, ConsumerArguments
    from odradek.consumer.options import GroupOptions
    from odradek.producer.producer import Producer, ProducerArguments
    from odradek.producer.staged_writes import StagedWrites

CONNECT_S_MAX = 30.0
ADMIN_TIMEOUT_S = 30.0


class Client:
    """A client of one cluster: `async with Client("host:9090,host2:9090") as client:`.

    Without `bootstrap`, the client uses ODRADEK_BOOTSTRAP. The client connects in `connect`, or when one of its
    producers, consumers or its admin is first used. The end of the block closes the connections. Close producers and
    consumers before that, for example with their own `async with`.

    `tls` encrypts the connections and, if it has a certificate, authenticates the client. `credentials` authenticate
    the client by a name and password, or by a signed token. `on_state` is called with the new `LinkState` at each
    change.

    `client_id` names the program for quotas and in the descriptions of groups (None: "odradek").

    `suggests_topics`: errors about topics that do not exist name similar ones. To find them, the client requests the
    metadata of all topics and uses up to a quarter of a second of CPU time. Pass False in a server that acts for many
    clients, such as a gateway.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        tls: TlsOptions | None = None,
        credentials: SaslCredentials | None = None,
        transport: Transport | None = None,
        on_state: Callable[[LinkState], None] | None = None,
        suggests_topics: bool = True,
        client_id: str | None = None,
    ) -> None:
        if client_id is not None:
            if transport is not None:
                raise InvalidConfig(
                    "client_id cannot be used with transport: pass it to the transport"
                )
            from odradek.cluster.grpc_transport import GrpcTransport

            transport = GrpcTransport(tls, credentials=credentials, client_id=client_id)
        self.admin_timeout_s = ADMIN_TIMEOUT_S
        """The longest time of one call of `admin`, in seconds. Set it before `admin` is used for the first time."""
        self._cluster: Cluster = connect(
            bootstrap,
            tls,
            credentials=credentials,
            transport=transport,
            on_state=on_state,
            suggests_topics=suggests_topics,
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
        """The state of the connection to the cluster: CONNECTED means that the client has current metadata."""
        return self._cluster.state

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; "" before the first response."""
        return self._cluster.cache.cluster_id

    @property
    def broker_endpoints(self) -> list[str]:
        """The gRPC addresses of the live brokers in the latest metadata; [] before the first response."""
        return self._cluster.cache.endpoints()

    async def connect(self, timeout_s: float = CONNECT_S_MAX) -> None:
        """Wait until a broker has responded, for at most `timeout_s` seconds.

        Raises:
            BrokersUnavailable: no broker responded; the error lists the addresses that were tried, and the last error
                of each.
        """
        await self._cluster.wait_connected(timeout_s)

    def producer(self, **arguments: Unpack[ProducerArguments]) -> Producer:
        """Create a producer that uses the connections of this client.

        The arguments are the fields of `ProducerOptions`.
        """
        from odradek.producer.producer import Producer

        return Producer(cluster=self._cluster, **arguments)

    def staged_writes(
        self,
        query: str,
        *,
        prepared_timeout_ms: int | None = None,
        **arguments: Unpack[ProducerArguments],
    ) -> StagedWrites:
        """Create the staged writes of a query, with which several processes write the records of one step. Consumers
        see either all records of a step, or none.

        `prepared_timeout_ms` is how long a prepared task waits for the completion of its step after the last request
        for the step; None: as long as the cluster allows. The other arguments are those of a producer, without
        `transactional_id`.
        """
        from odradek.producer.staged_writes import StagedWrites

        return StagedWrites(
            query,
            cluster=self._cluster,
            prepared_timeout_ms=prepared_timeout_ms,
            **arguments,
        )

    def consumer(
        self,
        *topics: str,
        group: str | GroupOptions | None = None,
        **arguments: Unpack[ConsumerArguments],
    ) -> Consumer:
        """Create a consumer. It reads all partitions of these topics or, with `group`, those that the consumer group
        assigns to it.

        Without topics, call `assign` or `subscribe` later. The other arguments are the fields of `ConsumerOptions`.
        """
        from odradek.consumer.consumer import Consumer

        return Consumer(*topics, cluster=self._cluster, group=group, **arguments)

    @cached_property
    def admin(self) -> Admin:
        """The admin of this cluster: topics, configs, groups, ACLs, users and quotas."""
        from odradek.admin.admin import Admin

        return Admin(cluster=self._cluster, timeout_s=self.admin_timeout_s)

    def explain_waiting(self) -> str:
        """Return, in words for a user, why the cluster does not respond, as far as this client can tell."""
        if self.state is LinkState.CONNECTED:
            return (
                "connected, but the request has no response yet; `odradek why` shows what is wrong"
            )
        return str(self._cluster.unavailable(None))

    async def close(self) -> None:
        """Close all connections. May be called twice."""
        await self._cluster.close()
