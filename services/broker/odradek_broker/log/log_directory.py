"""A broker's data directory: who may use it, what its last life left, and the logs in it. INTERFACE."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.partition_log import PartitionLog, StorageJob
from odradek_broker.log.storage import Storage, StorageFailed
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicName,
)


class RestartClass(Enum):
    """What survived the last life (DESIGN.md D15)."""

    CLEAN = "clean"
    PROCESS = "process"
    POWER = "power"


class DirectoryRefused(Exception):
    """The directory cannot be used; the message names the reason and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What opening the logs found. `power_loss`: partitions that lost bytes they once had."""

    partitions: int
    scanned_bytes: int
    power_loss: tuple[TopicIdPartition, ...]


class LogDirectory:
    """One locked data directory. `open` locks and checks; `load` opens the logs (pool)."""

    path: Path
    cluster_id: ClusterId
    directory_id: DirectoryId
    restart_class: RestartClass
    previous_broker_epoch: BrokerEpoch  # from the clean marker; NO_BROKER_EPOCH without one

    @staticmethod
    def format(path: Path, *, cluster_id: ClusterId, node_id: BrokerId) -> DirectoryId:
        """Write meta.properties; no error if it is there for the same cluster and node."""
        raise NotImplementedError

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        cluster_id: ClusterId,
        node_id: BrokerId,
        incarnation: IncarnationId,
        storage: Storage | None = None,
    ) -> LogDirectory:
        """Lock for life, check identity, judge the last life, write the running marker.

        Raises DirectoryRefused (another holder: its pid; another cluster or node; not formatted).
        """
        raise NotImplementedError

    def load(
        self,
        config_of: Callable[[TopicName, TopicId], LogConfig],
        *,
        on_progress: Callable[[int, int], None] | None = None,
        threads_max: int = 2,
    ) -> LoadReport:
        """Open every partition, recovering what is past the recovery points. Blocks: pool."""
        raise NotImplementedError

    @property
    def failure(self) -> StorageFailed | None:
        """Why the directory is offline; None while it is not."""
        raise NotImplementedError

    def get(self, topic_id: TopicId, partition: PartitionIndex) -> PartitionLog | None: ...

    def logs(self) -> Iterable[PartitionLog]: ...

    def create(
        self, topic: TopicName, topic_id: TopicId, partition: PartitionIndex, config: LogConfig
    ) -> PartitionLog:
        """Make an empty log (a few system calls, not synced: the first full sync does that)."""
        raise NotImplementedError

    def delete(self, topic_id: TopicId, partition: PartitionIndex) -> None:
        """Rename the partition's directory out of the way; the upkeep removes it later."""
        raise NotImplementedError

    def checkpointed_high_watermark(self, log: PartitionLog) -> Offset: ...

    def begin_checkpoint(self) -> StorageJob:
        """A job that writes the three offset checkpoints; run it in the pool every 5 s."""
        raise NotImplementedError

    def begin_flushes(self, *, now_ms: int) -> list[tuple[PartitionLog, StorageJob]]:
        """Full syncs that are due (unsynced bytes or age), bounded; run in the pool, finish each."""
        raise NotImplementedError

    def close(self, *, broker_epoch: BrokerEpoch | None) -> None:
        """Sync everything, checkpoint, snapshot; with a broker epoch write the clean marker last.

        Blocks: pool. Releases the lock.
        """
        raise NotImplementedError
