"""One broker without its listeners: replicas, membership, coordinators, and the order in which they start and stop.

The clock, the disk threads and the channels to other processes are arguments (`Environment`), so that the simulator
runs the same code. `process.py` passes the system clock, a thread pool and gRPC channels, and adds ports, probes and
metrics. The phases of a broker:

    join       recover the logs while registering, then wait until the metadata image contains the registration
    activate   start the replicas; from now on other brokers may connect
    unfence    the controller allows this broker to lead partitions and serve clients
    leave      the leaderships move to other brokers
    close      sync the logs, write the clean-shutdown marker, and end the lease
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odradek_broker.access.authorizer import Authorizer, EverybodyMay
from odradek_broker.cluster.controller_client import Channels, ControllerClient
from odradek_broker.cluster.heartbeat import Beating, Heartbeat, Lease, LoopTick
from odradek_broker.cluster.isr_proposals import IsrProposals
from odradek_broker.cluster.membership import Membership
from odradek_broker.cluster.metadata_feed import MetadataFeed
from odradek_broker.cluster.producer_ids import ProducerIdSource
from odradek_broker.cluster.topic_creation import TopicCreation
from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.peer_streams import DialLink
from odradek_broker.coordination.producer_resolver import CallResolve
from odradek_broker.coordination.transaction_runtime import TransactionRuntime
from odradek_broker.data_directory import close_data_directory
from odradek_broker.listener_settings import REPLICATION
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.partition.settings import ReplicaSettings
from odradek_broker.replication.client_requests import AT_ONCE_MAX
from odradek_broker.replication.disk.disk_pool import Pool
from odradek_broker.replication.disk.full_disk import FullDisk
from odradek_broker.replication.disk.upkeep import Upkeep
from odradek_broker.replication.hanging_transactions import HangingTransactions
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import TICK_MS, TICK_SLICES, PartitionTable
from odradek_broker.replication.streams.follower_links import (
    BEHIND_RECORDS,
    NEAR_RECORDS,
    FollowerLinks,
)
from odradek_broker.replication.streams.follower_sessions import FollowerSessions
from odradek_broker.replication.streams.follower_stream import Dial, FollowerIdentity
from odradek_broker.settings import BrokerSettings, value_at_run_time
from odradek_protocol.identity import BrokerEpoch, BrokerId, ClusterId, IncarnationId
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage
from odradek_protocol.rpc.v1 import common_pb2
from odradek_runtime.clock import Clock
from odradek_runtime.cluster_identity import ClusterIdentity
from odradek_runtime.lifecycle import ProcessRefused

_LATE_MARKER_MS: Final = 60_000
"""A transaction that stays open for this much longer than transaction.max.timeout.ms may have lost its marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The clock, the disk threads and the channels to other processes that a broker uses. The simulator replaces
    them.
    """

    clock: Clock
    pool: Pool
    controller_channels: Channels
    dial: Dial
    dial_link: DialLink
    call_resolve: CallResolve
    beating: Callable[[Heartbeat, ClusterIdentity], Beating]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes whose defaults suit a production cluster. The simulator uses smaller sizes, because its clusters have few
    records.
    """

    log_defaults: LogConfig
    behind_records: int = BEHIND_RECORDS
    near_records: int = NEAR_RECORDS
    tick_ms: int = TICK_MS
    tick_slices: int = TICK_SLICES
    produces_at_once_max: int = AT_ONCE_MAX


class Broker:
    """One broker. It runs on the event loop that creates it, and its components are public attributes."""

    def __init__(
        self,
        settings: BrokerSettings,
        environment: Environment,
        *,
        directory: LogDirectory,
        incarnation: IncarnationId,
        on_end: Callable[[str, ProcessRefused], None],
        authorizer: Authorizer | None = None,
        scale: Scale | None = None,
        make_host: Callable[..., PartitionHost] = PartitionHost,
    ) -> None:
        """`on_end(reason, failure)` is called when the broker must stop, because its broker epoch is stale or because
        it cannot follow the metadata log."""
        scale = scale or Scale(log_defaults=settings.log_defaults())
        self.settings = settings
        self.broker_id = BrokerId(settings.node_id)
        self.cluster_id = ClusterId(settings.cluster_id)
        self.directory = directory
        self.clock = environment.clock
        self.pool = environment.pool
        self.image_listeners: list[Callable[[MetadataImage, MetadataDelta], None]] = []
        self._scale = scale
        self._dial = environment.dial
        self._on_end = on_end
        identity = ClusterIdentity(
            settings.cluster_id,
            controller_ids=[node for node, _, _ in settings.controllers],
            metadata_incarnation_id=directory.metadata_incarnation_id,
        )
        self.tick = LoopTick(self.clock)
        self.lease = Lease(settings.lease_ms)
        self.controllers = ControllerClient(
            settings.controllers,
            None,
            identity=identity,
            clock=self.clock,
            channels=environment.controller_channels,
        )
        self.proposals = IsrProposals(
            broker_id=self.broker_id,
            controllers=self.controllers,
            on_stale=lambda: self.membership.found_stale(),
        )
        self.producer_ids = ProducerIdSource(broker_id=self.broker_id, controllers=self.controllers)
        self.table = PartitionTable(
            broker_id=self.broker_id,
            directory=directory,
            defaults=scale.log_defaults,
            settings=ReplicaSettings(
                replica_lag_time_max_ms=settings.replica_lag_time_max_ms,
                producer_id_expiration_ms=settings.producer_id_expiration_ms,
                transaction_verification_timeout_ms=settings.transaction_verification_timeout_ms,
            ),
            pool=self.pool,
            proposals=self.proposals,
            on_offline=lambda reason: self.membership.directory_offline(reason),
            on_broken=lambda broken: self.membership.partitions_broken(broken),
            clock=self.clock,
            make_host=make_host,
            tick_ms=scale.tick_ms,
            tick_slices=scale.tick_slices,
            at_once_max=scale.produces_at_once_max,
        )
        self.partitions = LocalPartitions(
            self.table,
            self.lease,
            broker_id=self.broker_id,
            reads_by_rack=bool(settings.replica_selector),
            acks_all_without_controller=settings.acks_all_without_controller,
        )
        self.followers = FollowerSessions(
            cluster_id=self.cluster_id,
            table=self.table,
            partition_bytes_max=settings.replica_fetch_bytes_max,
            message_bytes_max=settings.replica_fetch_response_bytes_max,
        )
        self.feed = MetadataFeed(
            broker_id=self.broker_id,
            controllers=self.controllers,
            on_change=self._image_changed,
            on_refused=lambda reason: on_end(
                "the metadata log cannot be followed", ProcessRefused(reason)
            ),
        )
        self.membership = Membership(
            settings,
            directory=directory,
            pool=self.pool,
            controllers=self.controllers,
            feed=self.feed,
            lease=self.lease,
            tick=self.tick,
            logs=self.table,
            beating=lambda heartbeat: environment.beating(heartbeat, identity),
            incarnation=incarnation,
            on_registered=self._registered,
            on_stale=lambda refused: on_end("another process registered this broker id", refused),
            clock=self.clock,
        )
        self.upkeep = Upkeep(
            table=self.table,
            directory=directory,
            checkpoint_interval_ms=settings.log_checkpoint_interval_ms,
            retention_interval_ms=settings.log_retention_check_interval_ms,
            compact_interval_ms=settings.log_cleaner_backoff_ms,
            stray_retention_ms=settings.log_dir_stray_retention_ms,
        )
        self.full_disk = FullDisk(
            table=self.table, directory=directory, on_change=self.membership.directory_full
        )
        self.topic_creation = TopicCreation(
            controllers=self.controllers,
            images=self.partitions,
        )
        self.groups = GroupCoordinator(
            settings=settings,
            partitions=self.partitions,
            topic_creation=self.topic_creation,
            authorizer=authorizer or EverybodyMay(),
            clock=self.clock,
        )

        self.transactions = TransactionRuntime(
            broker_id=self.broker_id,
            cluster_id=self.cluster_id,
            settings=settings,
            partitions=self.partitions,
            groups=self.groups,
            topic_creation=self.topic_creation,
            producer_ids=self.producer_ids,
            coordinator_epochs=self.table.coordinator_epochs,
            endpoint_of=self._replication_endpoint,
            dial=environment.dial_link,
            call_resolve=environment.call_resolve,
            clock=self.clock,
        )
        self.table.transaction_registrar = self.transactions.registrar

        self.hanging = HangingTransactions(
            table=self.table,
            resolver=self.transactions.resolver,
            offsets=self.groups,
            check_interval_ms=settings.transaction_hanging_check_interval_ms,
            open_ms_max=settings.transaction_max_timeout_ms + _LATE_MARKER_MS,
            may_end=settings.transaction_hanging_abort_enable,
        )

    def background(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the coroutine functions of the background tasks, by task name. Each runs until it is cancelled."""
        upkeep = self.upkeep
        return {
            "metadata feed": self.feed.run,
            "isr proposals": self.proposals.run,
            "tick": self.table.tick,
            "flush": upkeep.flush,
            "checkpoint": upkeep.checkpoint,
            "retention": upkeep.retain,
            "sweep": upkeep.sweep,
            "compaction": upkeep.compact,
            "loop lag": upkeep.measure_loop_lag,
            "full disk": self.full_disk.run,
            "groups": self.groups.run,
            "transactions": self.transactions.run,
            "hanging transactions": self.hanging.run,
        }

    async def join(
        self, listeners: Sequence[common_pb2.Listener], *, load_threads_max: int = 2
    ) -> None:
        """Recover the logs, register, wait until the image contains the registration, and start the replicas.

        Raises:
            ProcessRefused: the logs cannot be opened, or the controller refused the registration.
        """
        await self.membership.join(
            lambda: self.directory.load(
                lambda topic, _: self.table.log_config(topic), threads_max=load_threads_max
            ),
            listeners,
        )
        self.table.links = FollowerLinks(
            identity=FollowerIdentity(
                cluster_id=self.cluster_id,
                broker_id=self.broker_id,
                broker_epoch=self.membership.epoch,
                directory_id=self.directory.directory_id,
                credit_bytes=self.settings.replica_credit_bytes,
            ),
            endpoint_of=self._replication_endpoint,
            is_live=self._is_live,
            dial=self._dial,
            catch_up_bytes_per_s=self._catch_up_limit(self.feed.image),
            behind_records=self._scale.behind_records,
            near_records=self._scale.near_records,
            clock=self.clock,
        )
        self.table.activate(self.feed.image)

    async def leave(self) -> bool:
        """Let the controller move the leaderships to other brokers; return whether it allowed the stop in time."""
        return await self.membership.leave(self.settings.controlled_shutdown_timeout_ms / 1000)

    async def close(self, *, is_clean: bool) -> None:
        """Close the replication streams and the data directory, and end the lease.

        The last write to the data directory is the clean-shutdown marker, unless `is_clean` is False.
        """
        self.tick.stop()
        if self.table.links is not None:
            await self.table.links.close()
        registered = self.membership.epoch
        await close_data_directory(
            self.directory,
            self.pool,
            broker_epoch=registered if is_clean and registered >= 0 else None,
        )
        self.lease.end()
        self.membership.stop()
        self.pool.close()
        await self.controllers.close()

    def _image_changed(self, image: MetadataImage, delta: MetadataDelta) -> Iterator[None]:
        """Pass the new image to every component that uses it; yield between steps, so that the event loop can run.

        `membership` is last, because its heartbeats report to the controller that this broker has applied the image.
        """
        yield from self.table.apply(image, delta)
        if delta.configs and self.table.links is not None:
            self.table.links.limit_catch_up(self._catch_up_limit(image))
        for listener in self.image_listeners:
            listener(image, delta)
        self.partitions.image_changed()
        self.membership.image_changed(image, delta)

    def _catch_up_limit(self, image: MetadataImage) -> int:
        """Return how many bytes per second replicas that are far behind may copy; 0 means no limit."""
        return value_at_run_time(
            image,
            self.broker_id,
            "follower.replication.throttled.rate",
            self.settings.follower_replication_throttled_rate,
        )

    def _replication_endpoint(self, broker_id: BrokerId) -> tuple[str, int] | None:
        broker = self.feed.image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(REPLICATION)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def _is_live(self, broker_id: BrokerId) -> bool:
        broker = self.feed.image.brokers.get(broker_id)
        return broker is not None and broker.is_live

    def _registered(self, epoch: BrokerEpoch) -> None:
        self.proposals.broker_epoch = epoch
        self.producer_ids.broker_epoch = epoch
        self.transactions.registered(epoch)
