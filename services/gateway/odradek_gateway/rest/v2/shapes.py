"""Shapes of v2's answers, for openapi.json and its readers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ReplicaV2(BaseModel):
    """A replica of a partition."""

    broker: int
    leader: bool
    in_sync: bool


class PartitionV2(BaseModel):
    """A partition."""

    partition: int
    leader: int
    replicas: list[ReplicaV2]


class TopicV2(BaseModel):
    """A topic."""

    name: str
    configs: dict[str, str | None]
    partitions: list[PartitionV2]


class PartitionOffsets(BaseModel):
    """Where a partition begins and ends."""

    beginning_offset: int
    end_offset: int


class BrokerIds(BaseModel):
    """Brokers."""

    brokers: list[int]


class RecordResult(BaseModel):
    """What became of one record."""

    partition: int | None
    offset: int | None
    error_code: int | None
    error: str | None


class ProduceResult(BaseModel):
    """What became of all."""

    offsets: list[RecordResult]
    key_schema_id: int | None
    value_schema_id: int | None


class InstanceMade(BaseModel):
    """A consumer instance, and where it is asked."""

    instance_id: str
    base_uri: str


class Subscription(BaseModel):
    """Topics by name; a pattern if it was made with one."""

    topics: list[str]
    topic_pattern: str | None = None


class AssignedPartition(BaseModel):
    """A partition that an instance reads."""

    topic: str
    partition: int


class Assignments(BaseModel):
    """What an instance reads."""

    partitions: list[AssignedPartition]


class ConsumedHeader(BaseModel):
    """A header; its value is base64."""

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
    """Where the group goes on: the offset after the last record that was processed."""

    topic: str
    partition: int
    offset: int
    metadata: str


class CommittedOffsets(BaseModel):
    """Of those partitions that were asked for and have one."""

    offsets: list[CommittedOffset]
