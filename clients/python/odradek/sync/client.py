"""The synchronous client of a cluster, and its admin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from odradek.admin.admin import Admin as AsyncAdmin
from odradek.admin.transaction_admin import TransactionAdmin as AsyncTransactionAdmin
from odradek.client import CONNECT_S_MAX
from odradek.client import Client as AsyncClient
from odradek.cluster.cluster import LinkState
from odradek.cluster.security import SaslCredentials, TlsOptions
from odradek.cluster.transport import Transport
from odradek.consumer.options import GroupOptions
from odradek.sync.consumer import Consumer, with_listeners_in_threads
from odradek.sync.loop_thread import Facade, LoopThread, waits
from odradek.sync.producer import Producer

if TYPE_CHECKING:
    from odradek.consumer.consumer import ConsumerArguments
    from odradek.producer.producer import ProducerArguments


class TransactionAdmin(Facade[AsyncTransactionAdmin]):
    """The synchronous form of `client.admin.transactions`. Its methods need no `await`."""

    list = waits(AsyncTransactionAdmin.list)
    describe = waits(AsyncTransactionAdmin.describe)
    abort = waits(AsyncTransactionAdmin.abort)
    steps = waits(AsyncTransactionAdmin.steps)
    forget_steps = waits(AsyncTransactionAdmin.forget_steps)
    producers = waits(AsyncTransactionAdmin.producers)
    find_hanging = waits(AsyncTransactionAdmin.find_hanging)
    abort_hanging = waits(AsyncTransactionAdmin.abort_hanging)


class Admin(Facade[AsyncAdmin]):
    """The synchronous form of `odradek.Admin`. Its methods need no `await`."""

    @cached_property
    def transactions(self) -> TransactionAdmin:
        """Lists, describes and aborts transactions."""
        return TransactionAdmin(self._thread, self._core.transactions)

    create_topic = waits(AsyncAdmin.create_topic)
    create_topics = waits(AsyncAdmin.create_topics)
    delete_topic = waits(AsyncAdmin.delete_topic)
    delete_topics = waits(AsyncAdmin.delete_topics)
    add_partitions = waits(AsyncAdmin.add_partitions)
    list_topics = waits(AsyncAdmin.list_topics)
    describe_topic = waits(AsyncAdmin.describe_topic)
    list_brokers = waits(AsyncAdmin.list_brokers)
    describe_configs = waits(AsyncAdmin.describe_configs)
    describe_topic_configs = waits(AsyncAdmin.describe_topic_configs)
    alter_configs = waits(AsyncAdmin.alter_configs)
    alter_topic_configs = waits(AsyncAdmin.alter_topic_configs)
    elect_leaders = waits(AsyncAdmin.elect_leaders)
    reassign_partitions = waits(AsyncAdmin.reassign_partitions)
    list_reassignments = waits(AsyncAdmin.list_reassignments)
    delete_records = waits(AsyncAdmin.delete_records)
    list_offsets = waits(AsyncAdmin.list_offsets)
    describe_cluster = waits(AsyncAdmin.describe_cluster)
    describe_quorum = waits(AsyncAdmin.describe_quorum)
    describe_log_dirs = waits(AsyncAdmin.describe_log_dirs)
    unregister_broker = waits(AsyncAdmin.unregister_broker)
    describe_features = waits(AsyncAdmin.describe_features)
    update_feature = waits(AsyncAdmin.update_feature)
    create_acls = waits(AsyncAdmin.create_acls)
    delete_acls = waits(AsyncAdmin.delete_acls)
    describe_acls = waits(AsyncAdmin.describe_acls)
    set_scram_password = waits(AsyncAdmin.set_scram_password)
    delete_scram_user = waits(AsyncAdmin.delete_scram_user)
    describe_scram_users = waits(AsyncAdmin.describe_scram_users)
    alter_quotas = waits(AsyncAdmin.alter_quotas)
    list_groups = waits(AsyncAdmin.list_groups)
    describe_group = waits(AsyncAdmin.describe_group)
    group_offsets = waits(AsyncAdmin.group_offsets)
    alter_group_offsets = waits(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = waits(AsyncAdmin.delete_group_offsets)
    delete_groups = waits(AsyncAdmin.delete_groups)
    remove_group_member = waits(AsyncAdmin.remove_group_member)
    describe_quotas = waits(AsyncAdmin.describe_quotas)


class Client:
    """The synchronous form of `odradek.Client`. Its methods need no `await`. The client owns the thread that
    runs the asynchronous SDK.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        tls: TlsOptions | None = None,
        credentials: SaslCredentials | None = None,
        transport: Transport | None = None,
        on_state: Callable[[LinkState], None] | None = None,
        client_id: str | None = None,
    ) -> None:
        client = AsyncClient(
            bootstrap,
            tls=tls,
            credentials=credentials,
            transport=transport,
            on_state=on_state,
            client_id=client_id,
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
        """The state of the connection to the cluster: CONNECTED means that the client has current metadata."""
        return self._client.state

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; "" before the first response."""
        return self._client.cluster_id

    @property
    def broker_endpoints(self) -> list[str]:
        """The gRPC addresses of the live brokers in the latest metadata; [] before the first response."""
        return self._client.broker_endpoints

    def explain_waiting(self) -> str:
        """Return, in words for a user, why the cluster does not respond, as far as this client can tell."""
        return self._client.explain_waiting()

    def connect(self, timeout_s: float = CONNECT_S_MAX) -> None:
        """Wait until a broker has responded, for at most `timeout_s` seconds. Raises BrokersUnavailable."""
        self._thread.run(self._client.connect(timeout_s))

    def producer(self, **arguments: Unpack[ProducerArguments]) -> Producer:
        """Create a producer that uses the connections of this client. The arguments are the fields of
        `ProducerOptions`.
        """
        return Producer(self._thread, self._thread.call(lambda: self._client.producer(**arguments)))

    def consumer(
        self,
        *topics: str,
        group: str | GroupOptions | None = None,
        **arguments: Unpack[ConsumerArguments],
    ) -> Consumer:
        """Create a consumer, as `odradek.Client.consumer` does.

        `on_assign`, `on_revoke` and `on_lost` are called in other threads, so they may block and use the consumer.
        """
        if isinstance(group, GroupOptions):
            group = with_listeners_in_threads(group)
        return Consumer(
            self._thread,
            self._thread.call(lambda: self._client.consumer(*topics, group=group, **arguments)),
        )

    @cached_property
    def admin(self) -> Admin:
        """The admin of this cluster: topics, configs, groups, ACLs, users and quotas."""
        return Admin(self._thread, self._thread.call(lambda: self._client.admin))

    def close(self) -> None:
        """Close all connections and end the thread. May be called twice."""
        if self._thread.is_usable:
            self._thread.run(self._client.close())
            self._thread.close()

    def close_at_exit(self) -> None:
        """Close the connections, because the program is ending without a call of `close`."""
        self.close()
