"""What a listener or coordinator of this broker is given: the parts of the process it may use."""

from __future__ import annotations

from dataclasses import dataclass

from odradek_broker.cluster.controller_client import ControllerClient
from odradek_broker.cluster.lease import Lease
from odradek_broker.cluster.producer_ids import ProducerIdSource
from odradek_broker.cluster.topic_creation import TopicCreation
from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.disk.disk_pool import DiskPool
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import BrokerEpoch, BrokerId, ClusterId
from odradek_runtime.grpc_endpoints import InternalChannels
from odradek_runtime.tls import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """Everything shared by the parts of one broker process, all on its event loop.

    `partitions` is the PartitionService; `controllers.call(.., is_admin=True)` forwards admin
    requests; `topic_creation` makes internal topics, and others where it `is_enabled`.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    cluster_id: ClusterId
    settings: BrokerSettings
    partitions: LocalPartitions
    controllers: ControllerClient
    peers: InternalChannels
    producer_ids: ProducerIdSource
    topic_creation: TopicCreation
    groups: GroupCoordinator
    lease: Lease
    counters: Counters
    pool: DiskPool
    tls: TlsFiles | None
