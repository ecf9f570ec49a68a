"""One consumer instance: a member of its group, with the format that it was made for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odradek.client import Client
from odradek.consumer.consumer import Consumer
from odradek.consumer.group_options import GroupOptions
from odradek.partitions import TopicPartition
from odradek_gateway.rest.errors import BAD_CONSUMER_CONFIG, ILLEGAL_STATE, RestError

_RESETS = {"earliest": "earliest", "latest": "latest", "none": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """All that another gateway needs to go on with an instance; kept in the registry as JSON."""

    group: str
    name: str
    format: str = "binary"
    auto_offset_reset: str = "latest"
    auto_commit: bool = True
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, int], ...] = ()

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> InstanceSpec:
        """From the registry."""
        return cls(
            **{
                **body,
                "topics": tuple(body.get("topics", ())),
                "partitions": tuple((t, int(p)) for t, p in body.get("partitions", ())),
            }
        )


def spec_of_request(group: str, name: str, body: Mapping[str, Any]) -> InstanceSpec:
    """From the body of a create request; 422 for a config that is not valid."""
    form = str(body.get("format", "binary")).lower()
    if form not in ("binary", "json"):
        raise RestError(422, BAD_CONSUMER_CONFIG, f"format {form!r}: allowed are binary, json")
    reset = str(body.get("auto.offset.reset", "latest")).lower()
    if reset not in _RESETS:
        raise RestError(
            422,
            BAD_CONSUMER_CONFIG,
            f"auto.offset.reset {reset!r}: allowed are {', '.join(_RESETS)}",
        )
    commit = str(body.get("auto.commit.enable", "true")).lower()
    if commit not in ("true", "false"):
        raise RestError(422, BAD_CONSUMER_CONFIG, "auto.commit.enable is true or false")
    return InstanceSpec(
        group=group,
        name=name,
        format=form,
        auto_offset_reset=reset,
        auto_commit=commit == "true",
    )


@dataclass(slots=True)
class Instance:
    """Served here; one request at a time, as the API's users expect of a consumer."""

    client: Client
    spec: InstanceSpec
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    used_at_s: float = field(default_factory=time.monotonic)
    _consumer: Consumer | None = None

    async def close(self) -> None:
        """Leave the group; commits if it commits by itself."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def use(self, spec: InstanceSpec) -> None:
        """Subscribe, assign, or neither, from now on.

        Raises:
            RestError: 40903 when subscription and assignment are mixed.
        """
        subscribes, assigns = bool(spec.topics or spec.pattern), bool(spec.partitions)
        if (subscribes and self.spec.partitions) or (
            assigns and (self.spec.topics or self.spec.pattern)
        ):
            raise RestError(
                409,
                ILLEGAL_STATE,
                "subscription and manual assignment exclude each other; delete one first",
            )
        if spec == self.spec:
            return
        await self.close()
        self.spec = spec

    async def consumer(self) -> Consumer:
        """The SDK's consumer, made when it is first needed.

        Raises:
            RestError: 40903 before any subscription or assignment.
        """
        if self._consumer is not None:
            return self._consumer
        spec = self.spec
        reset: Any = _RESETS[spec.auto_offset_reset]
        if spec.topics or spec.pattern:
            group = GroupOptions(
                group=spec.group, pattern=spec.pattern, auto_commit=spec.auto_commit
            )
            consumer = self.client.consumer(*spec.topics, group=group, auto_offset_reset=reset)
            await consumer.__aenter__()
        elif spec.partitions:
            consumer = self.client.consumer(auto_offset_reset=reset)
            names = [TopicPartition(topic, index) for topic, index in spec.partitions]
            committed = await self.client.admin.group_offsets(spec.group, names)
            consumer.assign(names)
            for name, offset in committed.items():
                consumer.seek(name, offset)
        else:
            raise RestError(
                409, ILLEGAL_STATE, "the instance has no subscription and no assignment"
            )
        self._consumer = consumer
        return consumer

    async def commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        """Commit these, or all that was handed out."""
        consumer = await self.consumer()
        if not self.spec.partitions:
            await consumer.commit(None if offsets is None else dict(offsets.items()))
            return
        if offsets is None:
            offsets = {name: at[0] for name, at in consumer.handed_out().items()}
        await self.client.admin.alter_group_offsets(self.spec.group, dict(offsets.items()))
