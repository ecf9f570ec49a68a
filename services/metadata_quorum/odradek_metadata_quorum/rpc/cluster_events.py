"""What of the committed records a human or a dashboard cares about: counted, and told once.

Every member counts the same; only the active controller logs, so that a cluster tells of a dead
broker once and not three times.
"""

from __future__ import annotations

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

    def __init__(self) -> None:
        self.broker_registrations_total = 0
        self.broker_fencings_total = 0
        self.leader_elections_total = 0
        self.unclean_leader_elections_total = 0

    def observe(self, record: MetadataRecord, *, is_active: bool) -> None:
        """Note one record that was committed and replayed."""
        match record:
            case PartitionChange():
                self._partition_change(record, is_active)
            case RegisterBroker():
                self.broker_registrations_total += 1
                if is_active:
                    _log.info(
                        "Registered a broker",
                        broker_id=record.broker_id,
                        restart_class=record.restart_class.name,
                    )
            case BrokerRegistrationChange():
                self._registration_change(record, is_active)
            case UnregisterBroker() if is_active:
                _log.info("Forgot a broker", broker_id=record.broker_id)
            case Topic() if is_active:
                _log.info("Created a topic", topic=record.name, topic_id=record.topic_id)
            case RemoveTopic() if is_active:
                _log.info("Deleted a topic", topic_id=record.topic_id)
            case _:
                pass

    def _partition_change(self, record: PartitionChange, is_active: bool) -> None:
        if record.leader in (None, NO_LEADER):
            return
        self.leader_elections_total += 1
        if record.recovering:
            self.unclean_leader_elections_total += 1
            if is_active:
                _log.warning(
                    "Elected a leader that may lack records",
                    topic_id=record.topic_id,
                    partition=record.partition,
                    leader=record.leader,
                )

    def _registration_change(self, record: BrokerRegistrationChange, is_active: bool) -> None:
        self.broker_fencings_total += record.fenced is True
        if not is_active:
            return
        if record.fenced is not None:
            _log.info(
                "Fenced a broker" if record.fenced else "Unfenced a broker",
                broker_id=record.broker_id,
            )
        if record.in_shutdown:
            _log.info("A broker shuts down, or cannot write", broker_id=record.broker_id)
        if record.offline_directory_ids:
            _log.warning("A broker lost a directory", broker_id=record.broker_id)
