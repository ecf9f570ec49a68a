"""The synchronous door to a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from odradek.client import CONNECT_S_MAX
from odradek.client import Client as AsyncClient
from odradek.cluster.cluster import LinkState
from odradek.consumer.group_options import GroupOptions
from odradek.sync.admin import Admin
from odradek.sync.consumer import Consumer, with_listeners_in_threads
from odradek.sync.loop_thread import LoopThread
from odradek.sync.producer import Producer
from odradek.transports.security import SaslCredentials, TlsOptions
from odradek.transports.transport import Transport

if TYPE_CHECKING:
    from odradek.consumer.consumer import ConsumerArguments
    from odradek.producer.producer import ProducerArguments


class Client:
    """`odradek.Client`, waiting. Owns the thread that all of it runs on."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        tls: TlsOptions | None = None,
        credentials: SaslCredentials | None = None,
        transport: Transport | None = None,
        on_state: Callable[[LinkState], None] | None = None,
    ) -> None:
        client = AsyncClient(
            bootstrap, tls=tls, credentials=credentials, transport=transport, on_state=on_state
        )
        self._thread = LoopThread("odradek")
        self._client = client
        self._thread.open_parts[self] = None

    def __repr__(self) -> str:
        return repr(self._client).replace("<odradek.", "<odradek.sync.", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def state(self) -> LinkState:
        """Whether the cluster can be seen at the moment."""
        return self._client.state

    @property
    def cluster_id(self) -> str:
        """Id of the cluster; empty before the first contact."""
        return self._client.cluster_id

    def explain_waiting(self) -> str:
        """Why nothing comes back from the cluster, in words, as far as this client can see."""
        return self._client.explain_waiting()

    def connect(self, timeout_s: float = CONNECT_S_MAX) -> None:
        """Wait until a broker has answered. Raises BrokersUnavailable."""
        self._thread.run(self._client.connect(timeout_s))

    def producer(self, **arguments: Unpack[ProducerArguments]) -> Producer:
        """See `odradek.Client.producer`."""
        return Producer(self._thread, self._thread.call(lambda: self._client.producer(**arguments)))

    def consumer(
        self,
        *topics: str,
        group: str | GroupOptions | None = None,
        **arguments: Unpack[ConsumerArguments],
    ) -> Consumer:
        """See `odradek.Client.consumer`. The group's listeners run in threads, and may use the consumer."""
        if isinstance(group, GroupOptions):
            group = with_listeners_in_threads(group)
        return Consumer(
            self._thread,
            self._thread.call(lambda: self._client.consumer(*topics, group=group, **arguments)),
        )

    @cached_property
    def admin(self) -> Admin:
        """See `odradek.Client.admin`."""
        return Admin(self._thread, self._thread.call(lambda: self._client.admin))

    def close(self) -> None:
        """Close all connections and end the thread. May be called twice."""
        if self._thread.is_usable:
            self._thread.run(self._client.close())
            self._thread.close()

    def close_at_exit(self) -> None:
        """Close the connections: the program ended without `close`."""
        self.close()
