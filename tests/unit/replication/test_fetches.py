"""Fetches of several partitions: when they wait, what ends the wait, and which replica clients are
sent to.
"""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from odradek_broker.replication.local_partitions import FetchWant
from odradek_broker.replication.outcomes import (
    LeaderNow,
    ReadOutcome,
)
from odradek_broker.replication.partition import Partition
from odradek_protocol.identity import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    IncarnationId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import PartitionChange, RegisterBroker, RestartClass
from tests.unit.log.material import PARTITION, TOPIC, TOPIC_ID, batch, memory_broker
from tests.unit.replication.led_partition import (
    EPOCH,
    THIRD,
    change,
    leading,
    produce,
)
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, served


def registered(broker_id: BrokerId, rack: str | None, *, fenced: bool = False) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker_id,
        incarnation_id=IncarnationId(bytes([broker_id]) * 16),
        directory_ids=(),
        restart_class=RestartClass.CLEAN,
        endpoints=(),
        rack=rack,
        fenced=fenced,
        broker_epoch=BrokerEpoch(broker_id),
    )


@pytest.mark.parametrize(
    ("rack", "other", "preferred"),
    [
        ("b", registered(OTHER, "b"), OTHER),
        ("b", registered(OTHER, "b", fenced=True), None),
        ("b", registered(OTHER, "c"), None),
        ("b", registered(THIRD, "b"), None),  # it is not in sync
        ("a", registered(OTHER, "a"), None),  # this one is as near
        ("", registered(OTHER, ""), None),
    ],
)
async def test_a_reader_is_sent_to_a_live_replica_in_sync_in_its_rack(
    rack: str, other: RegisterBroker, preferred: BrokerId | None
) -> None:
    both = PartitionChange(topic_id=TOPIC_ID, partition=PARTITION, isr=(OTHER, OWN))
    for reads_by_rack in (True, False):
        async with leading(memory_broker(CONFIG), reads_by_rack=reads_by_rack) as (
            partitions,
            table,
        ):
            change(table, both, registered(OWN, "a"), other)
            outcome = served(partitions).preferred_replica(rack)
            if preferred is None or not reads_by_rack:
                assert outcome is None
                continue
            assert outcome == ReadOutcome(
                ErrorCode.NONE,
                high_watermark=Offset(5),
                last_stable_offset=Offset(5),
                log_start_offset=Offset(0),
                leader_epoch=EPOCH,
                preferred_read_replica=preferred,
            )
            # A fetch returns it at once, without records.
            want = FetchWant(partition=served(partitions), offset=Offset(5), bytes_max=1 << 20)
            (fetched,) = await partitions.fetch(
                [want],
                bytes_min=1,
                bytes_max=1 << 20,
                wait_ms_max=600_000,
                read_committed=False,
                client_rack=rack,
            )
            assert fetched == outcome


@pytest.mark.parametrize("why", ["error", "divergence", "records"])
async def test_a_fetch_that_has_something_to_say_does_not_wait(why: str) -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        partition = served(partitions)
        want = FetchWant(partition=partition, offset=Offset(5), bytes_max=1 << 20)
        other = {
            "error": replace(want, partition=ErrorCode.UNKNOWN_TOPIC_ID),
            "divergence": replace(want, last_fetched_epoch=LeaderEpoch(1)),
            "records": replace(want, offset=Offset(3)),
        }[why]
        fetching = partitions.fetch(
            [want, other],
            bytes_min=1,
            bytes_max=1 << 20,
            wait_ms_max=600_000,
            read_committed=False,
        )
        first, second = await asyncio.wait_for(fetching, 10)
        assert (first.error, first.size_bytes) == (ErrorCode.NONE, 0)
        assert (second.error is not ErrorCode.NONE) == (why == "error")
        assert (second.diverging is not None) == (why == "divergence")
        assert bool(second.records) == (why == "records")
        assert not partition.host.watchers


async def test_a_fetch_waits_for_records_and_stops_watching_when_it_ends() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        partition = served(partitions)
        want = FetchWant(partition=partition, offset=Offset(5), bytes_max=1 << 20)

        async def fetch(wait_ms_max: int, bytes_min: int = 1) -> ReadOutcome:
            (outcome,) = await partitions.fetch(
                [want],
                bytes_min=bytes_min,
                bytes_max=1 << 20,
                wait_ms_max=wait_ms_max,
                read_committed=False,
            )
            return outcome

        assert (await asyncio.wait_for(fetch(1), 10)).size_bytes == 0
        assert (await asyncio.wait_for(fetch(600_000, bytes_min=0), 10)).size_bytes == 0
        waiting = asyncio.create_task(fetch(600_000))
        while not partition.host.watchers:  # noqa: ASYNC110  # of the fetch, which has no event
            await asyncio.sleep(0)
        cancelled = asyncio.create_task(fetch(600_000))
        while len(partition.host.watchers) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert len(partition.host.watchers) == 1
        produce(partitions, batch(0))
        outcome = await asyncio.wait_for(waiting, 10)
        assert (outcome.next_offset, outcome.size_bytes > 0) == (6, True)
        assert not partition.host.watchers


async def test_a_fetch_tells_what_it_holds_in_memory() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        held: list[int] = []
        want = FetchWant(partition=served(partitions), offset=Offset(3), bytes_max=1 << 20)
        (outcome,) = await partitions.fetch(
            [want],
            bytes_min=1,
            bytes_max=1 << 20,
            wait_ms_max=600_000,
            read_committed=False,
            hold=held.append,
        )
        assert outcome.size_bytes > 0
        assert held == [1 << 20, outcome.size_bytes]


async def test_the_leader_is_named_by_topic_name_and_id() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        for topic in (TOPIC, TOPIC_ID):
            assert partitions.leader_of(topic, PARTITION) == LeaderNow(OWN, EPOCH)
        nobody = LeaderNow(NO_BROKER, NO_LEADER_EPOCH)
        assert partitions.leader_of(TOPIC, PartitionIndex(1)) == nobody
        assert partitions.leader_of(TopicName("other"), PARTITION) == nobody
        assert partitions.leader_of(TopicId(b"o" * 16), PARTITION) == nobody
        assert isinstance(partitions.find(TOPIC_ID, PARTITION), Partition)


async def test_watchers_of_the_image_are_called_once_for_all_changes_of_a_turn() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        seen: list[MetadataImage] = []
        others: list[MetadataImage] = []
        unwatch = partitions.watch_image(seen.append)
        partitions.watch_image(others.append)
        for _ in range(3):
            partitions.image_changed()
        assert seen == [], "in the next iteration of the event loop"
        await asyncio.sleep(0)
        assert seen == others == [partitions.image]
        unwatch()
        unwatch()
        partitions.image_changed()
        await asyncio.sleep(0)
        assert (len(seen), len(others)) == (1, 2)
