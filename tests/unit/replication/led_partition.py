"""Makes a partition that this broker leads, over a log in memory, and does what its clients do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.outcomes import (
    ProduceOutcome,
    ReadOutcome,
)
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import (
    BrokerId,
    LeaderEpoch,
    MetadataOffset,
    Offset,
)
from odradek_protocol.metadata.image import MetadataDelta
from odradek_protocol.metadata.records import PartitionChange
from tests.unit.log.material import PARTITION, TOPIC_ID, Broker, batch
from tests.unit.replication.memory_table import OTHER, OWN, held_lease, served, table_of

EPOCH = LeaderEpoch(2)
THIRD = BrokerId(3)


def change(table: PartitionTable, *records: Any) -> None:
    """Commit metadata records, and pass them to the table as the metadata feed does."""
    for record in records:
        delta = MetadataDelta()
        table.image.replay(MetadataOffset(table.image.offset + 1), 1, record, delta)
        for _ in table.apply(table.image, delta):
            pass


def led_by(broker_id: BrokerId) -> PartitionChange:
    return PartitionChange(topic_id=TOPIC_ID, partition=PARTITION, leader=broker_id, isr=(OWN,))


@asynccontextmanager
async def leading(
    broker: Broker, *, reads_by_rack: bool = False
) -> AsyncIterator[tuple[LocalPartitions, PartitionTable]]:
    """Return a partition that this broker leads alone in epoch 2. Its log has three records of epoch 0, and two of
    epoch 2 from offset 3 on.
    """
    broker.append(3, timestamp_ms=1_000)
    broker.log.set_high_watermark(Offset(3))
    async with table_of(broker, 1, leader=OWN) as (table, _):
        partitions = LocalPartitions(
            table, held_lease(), broker_id=OWN, reads_by_rack=reads_by_rack
        )
        change(table, led_by(OTHER), led_by(OWN))
        produce(partitions, batch(0, count=2, timestamp_ms=2_000))
        yield partitions, table


def produce(partitions: LocalPartitions, data: bytes, **options: Any) -> ProduceOutcome:
    outcomes: list[ProduceOutcome] = []
    arguments = {"acks": -1, "timeout_ms": 1_000, "on_done": outcomes.append, **options}
    served(partitions).produce(data, **arguments)
    (outcome,) = outcomes
    return outcome


def read(partitions: LocalPartitions, offset: int, **options: Any) -> ReadOutcome:
    arguments = {"bytes_max": 1 << 20, "read_committed": False, **options}
    outcome = served(partitions).read(Offset(offset), **arguments)
    assert isinstance(outcome, ReadOutcome)
    return outcome


def content(outcome: ReadOutcome) -> bytes:
    return b"".join(map(bytes, outcome.records))
