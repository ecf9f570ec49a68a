"""A coordinator whose state is a count, for the tests of the host of coordinators."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from odradek_broker.coordination.coordinator_host import CoordinatorHost
from odradek_broker.coordinator_step import (
    NOTHING,
    LoadedMarker,
    LoadedRecord,
    RequestId,
    Response,
    Step,
)
from odradek_broker.replication.outcomes import OffsetOutcome
from odradek_protocol.identity import LeaderEpoch, Offset, PartitionIndex
from odradek_protocol.primitives import Malformed
from tests.unit.replication.partitions_in_memory import PartitionInMemory, PartitionsInMemory
from tests.unit.replication.running import when_answered

EPOCH = LeaderEpoch(1)
FIRST, SECOND = PartitionIndex(0), PartitionIndex(1)


@dataclass
class Tally:
    """A shard that counts the additions to it."""

    count: int = 0
    loaded: list[LoadedRecord | LoadedMarker] = field(default_factory=list)


@dataclass
class TallyKind:
    """The ShardKind of Tally shards."""

    failures: int = 0  # how many ticks fail
    has_failed: asyncio.Event = field(default_factory=asyncio.Event)
    failed_at_s: float = 0.0  # of the last of these ticks, on the event loop's clock
    made: list[Tally] = field(default_factory=list)
    obeyed: list[tuple[int, int, str]] = field(default_factory=list)
    lives_closed: list[tuple[int, int]] = field(default_factory=list)

    def create(self) -> Tally:
        self.made.append(Tally())
        return self.made[-1]

    def replay(self, shard: Tally, record: LoadedRecord) -> None:
        if record.key == b"poison":
            raise Malformed("not a record of this kind")
        shard.count += 1
        shard.loaded.append(record)

    def replay_marker(self, shard: Tally, marker: LoadedMarker) -> None:
        shard.loaded.append(marker)

    def loaded(
        self, shard: Tally, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> Step[str]:
        return NOTHING

    def closed(self, partition: PartitionIndex, leader_epoch: LeaderEpoch) -> None:
        self.lives_closed.append((partition, leader_epoch))

    def tick(self, shard: Tally, partition: PartitionIndex) -> Step[str]:
        if self.failures:
            self.failures -= 1
            if not self.failures:
                self.has_failed.set()
                self.failed_at_s = asyncio.get_running_loop().time()
            raise AssertionError("a bug")
        return NOTHING

    def state_key(self, record: str) -> str | None:
        """Return the key of a record: a record such as `a=1` replaces earlier ones with key `a`."""
        name, separator, _ = record.partition("=")
        return name if separator else None

    def obey(self, partition: PartitionIndex, leader_epoch: LeaderEpoch, order: str) -> None:
        if order == "bug":
            raise AssertionError("a bug")
        self.obeyed.append((partition, leader_epoch, order))

    def encode(self, record: str) -> tuple[bytes, bytes | None]:
        if len(record) > 32_767:
            raise ValueError("too long")
        return record.encode(), b""


def add(*records: str) -> Any:
    """Return a request that counts the additions, writes them, and responds with the count."""

    def decide(shard: Tally, request_id: RequestId) -> Step[str]:
        shard.count += len(records)
        return Step(records, (Response(request_id, shard.count),))

    return decide


class Partitions(PartitionsInMemory):
    """Two partitions over one log; the reads of one of them may be delayed."""

    held: set[PartitionIndex]

    def find(self, topic: str, partition: PartitionIndex) -> PartitionInMemory:
        return HeldPartition(self) if partition in self.held else super().find(topic, partition)


class HeldPartition(PartitionInMemory):
    """A partition whose committed end is not known yet."""

    async def offset_at(self, timestamp_ms: int) -> OffsetOutcome:
        return replace(await super().offset_at(timestamp_ms), offset=Offset(-1))


async def ask(host: CoordinatorHost[Tally], partition: PartitionIndex, decide: Any) -> Any:
    return await when_answered(lambda: host.ask(partition, decide))
