"""Protocols for the parts of a broker that the host of a replica (partition_host.py) uses.

The protocols are generic in the host, so that this module need not import it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

from odradek_broker.log.storage import StorageFailed
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Effect
from odradek_broker.partition.events import RegistrationMode, TransactionOutcome
from odradek_broker.partition.marker_writes import CoordinatorEpochs
from odradek_broker.replication.batch_checks import RecordChecks
from odradek_broker.replication.client_requests import ProduceTurns
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.disk.disk_pool import Pool
from odradek_protocol.identity import (
    LeaderEpoch,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_runtime.clock import Clock

Host_contra = TypeVar("Host_contra", contravariant=True)


class Registration(NamedTuple):
    """A request of a partition leader to the coordinator of a transactional id, before the first batch of a
    transaction: is this partition part of the transaction?
    """

    partition: TopicIdPartition
    topic: TopicName
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    mode: RegistrationMode
    deadline_ms: int  # on the clock of the replica's events (CLOCK_BOOTTIME)


class RegistrationResponse(NamedTuple):
    """The coordinator's response to a Registration. `coordinator_partition` and `coordinator_epoch` are -1 if no
    coordinator decided.
    """

    error: ErrorCode
    coordinator_partition: PartitionIndex
    coordinator_epoch: LeaderEpoch
    last_outcome: TransactionOutcome | None = None


class TransactionRegistrar(Protocol):
    """Sends the requests of partition leaders to transaction coordinators."""

    def register(
        self, registration: Registration, on_response: Callable[[RegistrationResponse], None]
    ) -> None:
        """Send the registration to the coordinator once. `on_response` is called once, in a later iteration of the
        event loop.
        """


class Watcher(Protocol[Host_contra]):
    """An object that a partition's host notifies when the partition may have new readable records, or can no longer be
    read on this broker.
    """

    def on_partition_moved(self, host: Host_contra) -> None:
        """Handle a change of the high watermark or the role, or the removal of the replica. This method must be fast,
        and must not call the host."""


class LeaderStreamPort(Protocol[Host_contra]):
    """The leader's end of one follower's replication stream, as the host of a replica uses it."""

    def send(self, host: Host_contra, effect: Effect) -> None:
        """Send the response to a follower's Attach: SendAttached, SendDiverged, SendSnapshotless or SendRefused."""

    def mark_due(self, host: Host_contra) -> None:
        """Record that there may be new data, or a new high watermark, to send."""

    def forget(self, host: Host_contra) -> None:
        """Remove the host from this stream, because its replica was removed or the follower is no longer attached."""


class FollowerStreamPort(Protocol[Host_contra]):
    """The follower's end of a replication stream, as the host of a replica uses it."""

    def send_attach(self, host: Host_contra, effect: fx.SendAttach) -> None: ...

    def send_detach(self, host: Host_contra) -> None: ...

    def send_ack(self, host: Host_contra, effect: fx.SendAck) -> None: ...


class LogOwner(Protocol):
    """The owner of a log, as LogWork (disk/log_work.py) uses it: the host of a replica."""

    is_failed: bool
    is_removed: bool

    def step(self, event: ev.Event) -> None:
        """Let the replica handle an event."""

    def guard(self) -> AbstractContextManager[None]:
        """Return a context in which an internal error takes only this replica offline."""

    def read_failed(self, failure: StorageFailed) -> None:
        """Handle a storage error in a read of the log, or in work on its files."""

    def failed(self, reason: str) -> None:
        """Take the replica offline, because its log can no longer be used."""


class Surroundings(Protocol[Host_contra]):
    """The objects of a broker that all its PartitionHosts share. A PartitionHost runs one replica."""

    clock: Clock
    pool: Pool
    counters: Counters
    record_checks: RecordChecks
    produce_turns: ProduceTurns
    coordinator_epochs: CoordinatorEpochs

    @property
    def registrar(self) -> TransactionRegistrar | None:
        """The object that sends registrations to transaction coordinators; None if the cluster does not support
        transactions.
        """

    def leader_stream(self, session: ev.FollowerSession) -> LeaderStreamPort[Host_contra] | None:
        """Return the open stream of a follower's session; None if it has ended."""

    def follower_stream(self, session_id: int) -> FollowerStreamPort[Host_contra] | None:
        """Return this broker's open stream to a leader by its session id; None if it has ended."""

    def wake(self, host: Host_contra) -> None:
        """Begin to pass Tick events to this replica. The ticks end when the replica no longer waits for a point in
        time.
        """

    def role_changed(self, host: Host_contra, effect: fx.RoleChanged) -> None:
        """Begin or stop to follow a leader, and notify the coordinators of the replica's new role."""

    def propose_isr(self, host: Host_contra, effect: fx.ProposeIsr) -> None:
        """Send a proposed ISR change to the controller."""

    def storage_failed(self, failure: Exception | str) -> None:
        """Take the data directory offline, unless the failure is a StorageRefused, such as that of a full disk. The
        hosts are notified in a later iteration of the event loop.
        """

    def has_others_in_sync(self, partition: TopicIdPartition) -> bool:
        """Return whether another replica is in the ISR, according to the metadata image, and so has all committed
        records.
        """

    def partition_broke(self, host: Host_contra, reason: str) -> None:
        """Report to the controller that an internal error, or damage of the log, took this replica offline, so that the
        controller elects another leader.
        """

    @property
    def storage_problem(self) -> str:
        """The reason why this broker cannot write at present; "" if it can."""
