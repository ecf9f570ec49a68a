"""What of the committed records a human or a dashboard cares about: counted, and told once.

Every member counts the same; only the active controller logs, so that a cluster tells of a dead
broker once and not three times.
"""

from __future__ import annotations

from odradek_metadata_quorum.controller import Controller
from odradek_protocol.identity import TopicId
from odradek_protocol.metadata.records import (
    NO_LEADER,
    BrokerRegistrationChange,
    MetadataRecord,
    PartitionChange,
    RegisterBroker,
    RemoveTopic,
    Topic,
    UnregisterBroker,
)
from odradek_runtime.logs import event_log

_log = event_log(__name__)


class ClusterEvents:
    """Counters since this process started to replay."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.broker_registrations_total = 0
        self.broker_fencings_total = 0
        self.leader_elections_total = 0
        self.unclean_leader_elections_total = 0

    def observe(self, record: MetadataRecord) -> None:
        """Note one record that is committed and about to be replayed."""
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
                    "Elected a leader that may lack records",
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
            case BrokerRegistrationChange():
                self._tell_registration_change(record)
            case UnregisterBroker():
                _log.info("Forgot a broker", broker_id=record.broker_id)
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
            _log.info("A broker shuts down, or cannot write", broker_id=broker_id)
        if record.offline_directory_ids:
            _log.warning("A broker lost a directory", broker_id=broker_id)

    def _topic(self, topic_id: TopicId) -> str:
        return self._controller.committed.topics[topic_id].name
