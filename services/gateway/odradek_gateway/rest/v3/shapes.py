"""Shapes of v3's answers, for openapi.json and its readers: Confluent's resources."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel

R = TypeVar("R", bound=BaseModel)


class Metadata(BaseModel):
    """Where a resource is, and its name over all systems."""

    self: str
    resource_name: str | None = None


class ListMetadata(BaseModel):
    """Lists are whole: `next` is null."""

    self: str
    next: str | None


class Link(BaseModel):
    """To a related resource."""

    related: str


class Resource(BaseModel):
    """Any resource."""

    kind: str
    metadata: Metadata


class Collection(BaseModel, Generic[R]):
    """A list of resources."""

    kind: str
    metadata: ListMetadata
    data: list[R]


class ClusterResource(Resource):
    """A cluster."""

    cluster_id: str
    controller: Link | None
    acls: Link
    brokers: Link
    broker_configs: Link
    consumer_groups: Link
    topics: Link
    partition_reassignments: Link


class InCluster(Resource):
    """Anything below a cluster."""

    cluster_id: str


class BrokerResource(InCluster):
    """A live broker."""

    broker_id: int
    host: str | None
    port: int | None
    rack: str | None
    configs: Link
    partition_replicas: Link


class ConfigSynonym(BaseModel):
    """Where else a value could come from."""

    name: str
    value: str | None
    source: str


class ConfigResource(InCluster):
    """A config of anything; `value` is null where it is secret."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[ConfigSynonym]


class TopicConfigResource(ConfigResource):
    """Of a topic."""

    topic_name: str


class BrokerConfigResource(ConfigResource):
    """Of a broker."""

    broker_id: int


class ClusterConfigResource(ConfigResource):
    """Of all brokers together."""

    config_type: str


class TopicResource(InCluster):
    """A topic."""

    topic_name: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Link
    configs: Link
    partition_reassignments: Link
    authorized_operations: list[str]


class PartitionResource(InCluster):
    """A partition."""

    topic_name: str
    partition_id: int
    leader: Link | None
    replicas: Link
    reassignment: Link


class PartitionOffsetResource(InCluster):
    """Where a partition begins and ends (`latest_offset` is the one after the last)."""

    topic_name: str
    partition_id: int
    earliest_offset: int
    latest_offset: int


class ReplicaResource(InCluster):
    """A replica of a partition."""

    topic_name: str
    partition_id: int
    broker_id: int
    is_leader: bool
    is_in_sync: bool
    broker: Link


class ReassignmentResource(InCluster):
    """A move that is under way."""

    topic_name: str
    partition_id: int
    adding_replicas: list[int]
    removing_replicas: list[int]
    replicas: Link


class GroupResource(InCluster):
    """A consumer group."""

    consumer_group_id: str
    is_simple: bool
    partition_assignor: str
    state: str
    type: str
    coordinator: Link
    consumers: Link
    lag_summary: Link


class ConsumerResource(InCluster):
    """A member of a group."""

    consumer_group_id: str
    consumer_id: str
    instance_id: str | None
    client_id: str
    assignments: Link


class ConsumerAssignmentResource(InCluster):
    """A partition that a member owns."""

    consumer_group_id: str
    consumer_id: str
    topic_name: str
    partition_id: int
    partition: Link
    lag: Link


class LagResource(InCluster):
    """How far a group is behind in one partition."""

    consumer_group_id: str
    topic_name: str
    partition_id: int
    current_offset: int
    log_end_offset: int
    lag: int
    consumer_id: str
    instance_id: str | None
    client_id: str


class LagSummaryResource(InCluster):
    """The largest lag of a group, and the sum of all."""

    consumer_group_id: str
    max_lag_consumer_id: str
    max_lag_instance_id: str | None
    max_lag_client_id: str
    max_lag_topic_name: str
    max_lag_partition_id: int
    max_lag: int
    total_lag: int


class AclResource(InCluster):
    """An access control entry."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class RecordPart(BaseModel):
    """A key or a value as it was written; `size` in bytes."""

    type: str
    size: int


class RecordResult(BaseModel):
    """What became of one record: where it is (error_code 200), or why it is not in the log."""

    error_code: int
    message: str | None = None
    cluster_id: str | None = None
    topic_name: str | None = None
    partition_id: int | None = None
    offset: int | None = None
    timestamp: str | None = None
    key: RecordPart | None = None
    value: RecordPart | None = None


class BatchSuccess(RecordResult):
    """Of the entry of that id."""

    id: str


class BatchFailure(BaseModel):
    """Of the entry of that id."""

    id: str
    error_code: int
    message: str


class BatchResult(BaseModel):
    """What became of a batch."""

    successes: list[BatchSuccess]
    failures: list[BatchFailure]
