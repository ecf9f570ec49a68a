"""The types of v2 response bodies, for openapi.json. The handlers encode responses without these types."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ReplicaV2(BaseModel):
    """A replica of a partition; `broker` is the broker's id."""

    broker: int
    leader: bool
    in_sync: bool


class PartitionV2(BaseModel):
    """A partition and its replicas; `leader` is the leader's broker id, -1 if there is no leader."""

    partition: int
    leader: int
    replicas: list[ReplicaV2]


class TopicV2(BaseModel):
    """A topic with its configs and partitions."""

    name: str
    configs: dict[str, str | None]
    partitions: list[PartitionV2]


class PartitionOffsets(BaseModel):
    """A partition's log start offset and log end offset (exclusive)."""

    beginning_offset: int
    end_offset: int


class BrokerIds(BaseModel):
    """The ids of the live brokers."""

    brokers: list[int]


class RecordResult(BaseModel):
    """The result of one record: partition and offset if it was written, otherwise an error code and a message."""

    partition: int | None
    offset: int | None
    error_code: int | None
    error: str | None


class ProduceResult(BaseModel):
    """The results of a produce request, in the order of its records."""

    offsets: list[RecordResult]
    key_schema_id: int | None
    value_schema_id: int | None


class InstanceMade(BaseModel):
    """A new consumer instance, with the URL for its requests."""

    instance_id: str
    base_uri: str


class Subscription(BaseModel):
    """An instance's topics by name, and its pattern if it has one."""

    topics: list[str]
    topic_pattern: str | None = None


class AssignedPartition(BaseModel):
    """A partition that an instance reads."""

    topic: str
    partition: int


class Assignments(BaseModel):
    """The partitions that an instance reads."""

    partitions: list[AssignedPartition]


class ConsumedHeader(BaseModel):
    """A record header; its value is base64."""

    name: str
    value: str | None


class ConsumedRecord(BaseModel):
    """A record in the instance's format; `timestamp` in ms since the epoch."""

    topic: str
    key: Any
    value: Any
    partition: int
    offset: int
    timestamp: int
    headers: list[ConsumedHeader]


class CommittedOffset(BaseModel):
    """The committed offset of a partition: the offset after the last processed record."""

    topic: str
    partition: int
    offset: int
    metadata: str


class CommittedOffsets(BaseModel):
    """The committed offsets of the requested partitions, without partitions that have no committed offset."""

    offsets: list[CommittedOffset]
