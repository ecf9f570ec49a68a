"""Shapes of answers, for openapi.json and its readers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Error(BaseModel):
    """Every error."""

    error_code: int
    message: str


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


class RecordResultV2(BaseModel):
    """What became of one record."""

    partition: int | None
    offset: int | None
    error_code: int | None
    error: str | None


class ProduceResultV2(BaseModel):
    """What became of all."""

    offsets: list[RecordResultV2]
    key_schema_id: int | None
    value_schema_id: int | None


class ResourceV3(BaseModel):
    """Any resource of v3."""

    model_config = {"extra": "allow"}
    kind: str
    metadata: dict[str, Any]


class CollectionV3(BaseModel):
    """A list of v3."""

    kind: str
    metadata: dict[str, Any]
    data: list[ResourceV3]
