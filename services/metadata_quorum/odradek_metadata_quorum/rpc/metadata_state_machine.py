"""The state machine of the quorum: it decodes committed entries, replays their records into the controller, and counts
and logs events of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from odradek_metadata_quorum.controller import Controller
from odradek_protocol.identity import MetadataOffset, TopicId
from odradek_protocol.metadata.codec import decode_batch
from odradek_protocol.metadata.image import MetadataDelta
from odradek_protocol.metadata.records import (
    NO_LEADER,
    AccessControlEntry,
    BrokerRegistrationChange,
    Config,
    MetadataRecord,
    NewerProgramNeeded,
    Partition,
    PartitionChange,
    RegisterBroker,
    RemoveTopic,
    Topic,
    UnregisterBroker,
    UserScramCredential,
)
from odradek_protocol.metadata.snapshot import read_snapshot, snapshot_bytes
from odradek_runtime.logs import event_log

_log = event_log(__name__)
# Records of these types, of which large batches mostly consist, are neither counted nor logged, so they are skipped
# early.
_UNOBSERVED: Final = frozenset({Partition, Config, UserScramCredential, AccessControlEntry})
_NAMED_MAX: Final = 20


class MetadataStateMachine:
    """Replays the quorum's entries into one controller, whose committed image is the whole replicated state."""

    def __init__(self, controller: Controller, on_applied: Callable[[], None]) -> None:
        """`on_applied` is called after each entry or snapshot that was applied."""
        self.events = ClusterEvents(controller)
        self._controller = controller
        self._on_applied = on_applied

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        """Replay one committed entry.

        A batch whose epoch is not that of its entry is skipped, because the controller that decided the batch was
        deposed before the entry was appended. All controllers skip the same batches.

        Raises:
            NewerProgramNeeded: This program cannot read the entry. The process must end; the log is not changed.
        """
        at = MetadataOffset(offset)
        try:
            if payload:
                self._replay(at, epoch, payload)
        except NewerProgramNeeded as error:
            _log.error(
                "Failed to read metadata that a newer release wrote; this controller ends, and needs that release",
                offset=offset,
                reason=str(error),
            )
            raise
        self._controller.advance(at, epoch)
        self._on_applied()

    def _replay(self, at: MetadataOffset, epoch: int, payload: bytes) -> None:
        records = self._controller.decided(at, epoch)
        if records is None:
            batch = decode_batch(payload)
            if batch.controller_epoch != epoch:
                return
            records = batch.records
        # One delta is used for all records, because creating one takes longer than replaying a record.
        delta = MetadataDelta()
        for record in records:
            self.events.observe(record)
            self._controller.replay(at, epoch, record, delta)

    def snapshot(self) -> Callable[[], bytes]:
        """Copy the image, which takes about 0.1 us per partition. Return a function that encodes the copy on any
        thread.
        """
        image = self._controller.committed.copy()
        return lambda: snapshot_bytes(image)

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        """Decode a snapshot, on any thread. Return a function that installs it, which must run on the event loop.

        Decoding takes 3 s for 200,000 partitions.
        """
        image = read_snapshot(data)
        image.advance(MetadataOffset(offset), epoch)

        def replace() -> None:
            self._controller.restore(image)
            self._on_applied()

        return replace


class ClusterEvents:
    """Counts events of the cluster in the committed records that this process has replayed, and logs them.

    Every controller counts the events since its start. Only the active controller logs them, so that each event is
    logged once.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.broker_registrations_total = 0
        self.broker_fencings_total = 0
        self.leader_elections_total = 0
        self.unclean_leader_elections_total = 0

    def observe(self, record: MetadataRecord) -> None:
        """Count one committed record and, on the active controller, log it. Call this before the record is replayed."""
        if type(record) in _UNOBSERVED:
            return
        self._count(record)
        if self._controller.is_active:
            self._tell(record)

    def _count(self, record: MetadataRecord) -> None:
        match record:
            case PartitionChange() if record.leader not in (None, NO_LEADER):
                self.leader_elections_total += 1
                self.unclean_leader_elections_total += record.recovering is True
            case RegisterBroker():
                self.broker_registrations_total += 1
            case BrokerRegistrationChange(fenced=True):
                self.broker_fencings_total += 1
            case _:
                pass

    def _tell(self, record: MetadataRecord) -> None:
        match record:
            case PartitionChange(recovering=True) if record.leader not in (None, NO_LEADER):
                _log.warning(
                    "Elected an unclean leader, which may lack committed records",
                    topic=self._topic(record.topic_id),
                    partition=record.partition,
                    leader=record.leader,
                )
            case RegisterBroker():
                _log.info(
                    "Registered a broker",
                    broker_id=record.broker_id,
                    restart_class=record.restart_class.name,
                )
                self._tell_lost_copies(record)
            case BrokerRegistrationChange():
                self._tell_registration_change(record)
            case UnregisterBroker():
                _log.info("Unregistered a broker", broker_id=record.broker_id)
            case Topic():
                _log.info("Created a topic", topic=record.name, topic_id=record.topic_id)
            case RemoveTopic():
                topic = self._topic(record.topic_id)
                _log.info("Deleted a topic", topic=topic, topic_id=record.topic_id)
            case _:
                pass

    def _tell_registration_change(self, record: BrokerRegistrationChange) -> None:
        broker_id = record.broker_id
        if record.fenced is True:
            reason = self._controller.why_fenced(broker_id)
            _log.info("Fenced a broker", broker_id=broker_id, reason=reason)
        if record.fenced is False:
            _log.info("Unfenced a broker", broker_id=broker_id)
        if record.in_shutdown is True:
            _log.info(
                "Broker began to shut down or cannot write to its disk; other brokers take over its leaderships",
                broker_id=broker_id,
            )
        if record.offline_directory_ids:
            _log.warning(
                "Broker lost a data directory; its replicas there are offline", broker_id=broker_id
            )

    def _tell_lost_copies(self, record: RegisterBroker) -> None:
        """Warn of partitions whose only replica was in a data directory that the broker no longer has. The broker will
        lead these partitions with empty logs.
        """
        image = self._controller.committed
        before = image.brokers.get(record.broker_id)
        if before is not None and set(before.directory_ids) <= set(record.directory_ids):
            return
        alone = [state for state in image.partitions() if state.replicas == (record.broker_id,)]
        if alone:
            _log.warning(
                "Broker registered without its former data directory; partitions whose only replica is on this broker"
                " begin with empty logs",
                broker_id=record.broker_id,
                partitions=len(alone),
                topics=sorted({self._topic(state.topic_id) for state in alone})[:_NAMED_MAX],
            )

    def _topic(self, topic_id: TopicId) -> str:
        return self._controller.committed.topics[topic_id].name
