"""What a partition's host sees of the rest of the broker: both ends of streams, and what is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Effect
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.disk.disk_pool import Pool
from odradek_broker.replication.record_checks import RecordChecks
from odradek_protocol.identity import TopicIdPartition
from odradek_runtime.clock import Clock

if TYPE_CHECKING:
    from odradek_broker.replication.partition_host import PartitionHost


class Watcher(Protocol):
    """Wants to know when there may be something new to read, or nothing ever again."""

    def on_partition_moved(self, host: PartitionHost) -> None:
        """The high watermark, the role or the log's fate changed. Cheap; must not call back."""


class LeaderStreamPort(Protocol):
    """The leader's end of one follower's stream, as a host sees it."""

    def send(self, host: PartitionHost, effect: Effect) -> None:
        """Send an answer: SendAttached, SendDiverged, SendSnapshotless or SendRefused."""

    def mark_due(self, host: PartitionHost) -> None:
        """There may be data, or a new high watermark, to push."""

    def forget(self, host: PartitionHost) -> None:
        """The host is gone, or no longer attached here."""


class FollowerStreamPort(Protocol):
    """The follower's end of a stream, as a host sees it."""

    def send_attach(self, host: PartitionHost, effect: fx.SendAttach) -> None: ...

    def send_detach(self, host: PartitionHost) -> None: ...

    def send_ack(self, host: PartitionHost, effect: fx.SendAck) -> None: ...


class Surroundings(Protocol):
    """What all hosts of a broker share."""

    clock: Clock
    pool: Pool
    counters: Counters
    record_checks: RecordChecks

    def leader_stream(self, session: ev.FollowerSession) -> LeaderStreamPort | None:
        """The open stream of a follower's session; None once it ended."""

    def follower_stream(self, session_id: int) -> FollowerStreamPort | None:
        """Our open stream of that session; None once it ended."""

    def role_changed(self, host: PartitionHost, effect: fx.RoleChanged) -> None:
        """Follow another leader, tell coordinators."""

    def propose_isr(self, host: PartitionHost, effect: fx.ProposeIsr) -> None:
        """Hand a proposal to the controller's client."""

    def storage_failed(self, failure: Exception | str) -> None:
        """Take the directory offline, unless it is only full; tells the hosts in a later turn of the loop."""

    def has_others_in_sync(self, partition: TopicIdPartition) -> bool:
        """Whether another broker has all that is committed in this partition, as the image says."""

    def partition_broke(self, host: PartitionHost, reason: str) -> None:
        """A bug ended this replica: tell the controller, so that another one leads."""

    @property
    def storage_problem(self) -> str:
        """Why nothing can be written here; "" while it can."""
