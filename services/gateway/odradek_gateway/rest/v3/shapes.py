"""The types of v3 response bodies (Confluent's resources), for openapi.json."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel

R = TypeVar("R", bound=BaseModel)


class Metadata(BaseModel):
    """A resource's URL (`self`), and its globally unique name."""

    self: str
    resource_name: str | None = None


class ListMetadata(BaseModel):
    """A list's URL (`self`). Lists are never paged, so `next` is null."""

    self: str
    next: str | None


class Link(BaseModel):
    """A link to a related resource."""

    related: str


class Resource(BaseModel):
    """The fields of every resource."""

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
    """The fields of every resource below a cluster."""

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
    """Another source of the config's value, such as a default."""

    name: str
    value: str | None
    source: str


class ConfigResource(InCluster):
    """A config of any resource; `value` is null if the config is sensitive."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[ConfigSynonym]


class TopicConfigResource(ConfigResource):
    """A config of one topic."""

    topic_name: str


class BrokerConfigResource(ConfigResource):
    """A config of one broker."""

    broker_id: int


class ClusterConfigResource(ConfigResource):
    """A config that applies to all brokers (a cluster-wide default)."""

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
    """A partition's log start offset and log end offset (`latest_offset`, exclusive)."""

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
    """A partition that is being reassigned; the replicas are broker ids."""

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
    """A partition that is assigned to a member of a group."""

    consumer_group_id: str
    consumer_id: str
    topic_name: str
    partition_id: int
    partition: Link
    lag: Link


class LagResource(InCluster):
    """A group's lag in one partition, in records. The consumer is the member that reads the partition."""

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
    """A group's total lag in records, and the partition in which its lag is largest."""

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
    """The key or value of a written record; `size` is in bytes."""

    type: str
    size: int


class RecordResult(BaseModel):
    """The result of one record: its partition and offset (error_code 200), or the reason why it was not written."""

    error_code: int
    message: str | None = None
    cluster_id: str | None = None
    topic_name: str | None = None
    partition_id: int | None = None
    offset: int | None = None
    timestamp: str | None = None
    key: RecordPart | None = None
    value: RecordPart | None = None


class TransactionResult(BaseModel):
    """A committed transaction, with the results of its records in the order of the request."""

    outcome: Literal["committed"]
    records: list[RecordResult]


class TransactionFailure(BaseModel):
    """A transaction that was aborted, or whose outcome is unknown."""

    error_code: int
    message: str
    outcome: Literal["aborted", "unknown"]


class BatchSuccess(RecordResult):
    """The result of a batch entry that was written; `id` is the entry's id."""

    id: str


class BatchFailure(BaseModel):
    """The error of a batch entry that was not written; `id` is the entry's id."""

    id: str
    error_code: int
    message: str


class BatchResult(BaseModel):
    """The results of all entries of a batch."""

    successes: list[BatchSuccess]
    failures: list[BatchFailure]
