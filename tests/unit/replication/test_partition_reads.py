"""What a reader of one partition gets: which records, which offsets, and which error when it may not read there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from odradek_broker.log.log_config import TimestampKind
from odradek_broker.partition import events as ev
from odradek_broker.replication.outcomes import (
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    OFFSET_OF_MAX_TIMESTAMP,
    AbortedRange,
    OffsetOutcome,
    ProduceOutcome,
    ReadOutcome,
)
from odradek_broker.replication.partition import Partition
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    ProducerId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import PartitionChange
from odradek_protocol.records.control import ControlType, encode_marker
from tests.unit.log.material import PARTITION, TOPIC_ID, batch, memory_broker
from tests.unit.replication.led_partition import (
    EPOCH,
    change,
    content,
    leading,
    led_by,
    produce,
    read,
)
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, served
from tests.worlds.memory_storage import MemoryStorage


async def test_a_read_returns_the_batches_from_its_offset_and_where_the_log_stands() -> None:
    broker = memory_broker(CONFIG)
    async with leading(broker) as (partitions, table):
        whole = read(partitions, 0)
        assert content(whole) == broker.read_all()
        assert whole == ReadOutcome(
            ErrorCode.NONE,
            records=whole.records,
            size_bytes=len(broker.read_all()),
            next_offset=Offset(5),
            high_watermark=Offset(5),
            last_stable_offset=Offset(5),
            log_start_offset=Offset(0),
            leader_epoch=EPOCH,
        )
        second = read(partitions, 4)
        assert content(second) == broker.read_all()[-second.size_bytes :]
        assert (second.next_offset, second.size_bytes < whole.size_bytes) == (5, True)
        assert table.counters.fetch_reads == 2
        assert table.counters.fetch_bytes == whole.size_bytes + second.size_bytes
        at_the_end = read(partitions, 5)
        assert at_the_end == ReadOutcome(
            ErrorCode.NONE,
            next_offset=Offset(5),
            high_watermark=Offset(5),
            last_stable_offset=Offset(5),
            log_start_offset=Offset(0),
            leader_epoch=EPOCH,
        )


async def test_a_read_outside_the_log_says_where_the_log_is() -> None:
    broker = memory_broker(CONFIG)
    async with leading(broker) as (partitions, _):
        await served(partitions).delete_records(Offset(3), timeout_ms=1_000)
        for offset in (2, 6):
            assert read(partitions, offset) == ReadOutcome(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                high_watermark=Offset(5),
                last_stable_offset=Offset(5),
                log_start_offset=Offset(3),
                leader_epoch=EPOCH,
            )
        assert read(partitions, 3).error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (1, ErrorCode.FENCED_LEADER_EPOCH),
        (2, ErrorCode.NONE),
        (3, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_a_client_that_knows_another_leader_epoch_is_told_so(
    epoch: int, error: ErrorCode
) -> None:
    current = LeaderEpoch(epoch)
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        outcome = read(partitions, 0, current_leader_epoch=current)
        assert outcome.error is error
        assert bool(outcome.records) == (error is ErrorCode.NONE)
        partition = served(partitions)
        for timestamp_ms in (OFFSET_EARLIEST, OFFSET_LATEST, 0):
            found = await partition.offset_at(timestamp_ms, current_leader_epoch=current)
            assert found.error is error
        assert partition.end_of_epoch(EPOCH, current_leader_epoch=current).error is error


@pytest.mark.parametrize(
    ("offset", "last_fetched_epoch", "diverging"),
    [
        (3, 0, None),
        (5, 2, None),
        (2, 0, None),
        (4, 0, (0, 3)),  # epoch 0 ended at offset 3
        (4, 1, (0, 3)),  # nobody led in epoch 1
        (5, 7, (2, 5)),  # nor yet in epoch 7
        (9, 2, (2, 5)),
    ],
)
async def test_a_reader_whose_log_diverges_learns_where(
    offset: int, last_fetched_epoch: int, diverging: tuple[int, int] | None
) -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        outcome = read(partitions, offset, last_fetched_epoch=LeaderEpoch(last_fetched_epoch))
        assert outcome.error is ErrorCode.NONE
        assert outcome.diverging == diverging
        assert bool(outcome.records) == (diverging is None and offset < 5)
        if diverging is not None:
            assert (outcome.next_offset, outcome.high_watermark) == (offset, 5)
        # Another error comes first.
        fenced = read(
            partitions,
            offset,
            last_fetched_epoch=LeaderEpoch(last_fetched_epoch),
            current_leader_epoch=LeaderEpoch(1),
        )
        assert (fenced.error, fenced.diverging) == (ErrorCode.FENCED_LEADER_EPOCH, None)


async def test_a_batch_larger_than_allowed_is_returned_only_if_one_must_be() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        size_bytes = read(partitions, 3).size_bytes
        assert read(partitions, 3, bytes_max=1).size_bytes == size_bytes
        small = read(partitions, 3, bytes_max=size_bytes - 1, at_least_one_batch=False)
        assert (small.error, small.size_bytes, small.next_offset) == (ErrorCode.NONE, 0, 3)
        whole = read(partitions, 3, bytes_max=size_bytes, at_least_one_batch=False)
        assert whole.size_bytes == size_bytes


async def test_a_reader_of_committed_records_learns_which_transactions_to_skip() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        data = batch(
            0, count=2, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True
        )
        assert produce(partitions, data, is_internal=True).error is ErrorCode.NONE
        abort = encode_marker(
            ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
        )
        open_yet = read(partitions, 0, read_committed=True)
        assert (open_yet.next_offset, open_yet.last_stable_offset, open_yet.aborted) == (5, 5, [])
        assert open_yet.high_watermark == 7
        assert produce(partitions, abort, is_internal=True).error is ErrorCode.NONE
        committed = read(partitions, 0, read_committed=True)
        assert committed.aborted == [AbortedRange(ProducerId(9), Offset(5))]
        assert (committed.next_offset, committed.last_stable_offset) == (8, 8)
        assert read(partitions, 0).aborted is None
        assert read(partitions, 0, read_committed=True, bytes_max=1).aborted == []
        before_it = read(partitions, 0, read_committed=True, bytes_max=open_yet.size_bytes)
        assert (before_it.next_offset, before_it.aborted) == (5, []), "it begins there"
        marker = read(partitions, 7, read_committed=True)
        assert marker.aborted == committed.aborted, "the marker belongs to it"
        assert produce(partitions, batch(0)).error is ErrorCode.NONE
        assert read(partitions, 8, read_committed=True).aborted == [], "it ended before"


async def test_a_read_of_the_disk_returns_the_same_as_one_of_memory() -> None:
    broker = memory_broker(CONFIG)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    async with leading(broker) as (partitions, table):
        hot = read(partitions, 0)
        broker.log._recent.forget(broker.log._tail)
        storage.is_hot = False
        reading = served(partitions).read(Offset(0), bytes_max=1 << 20, read_committed=True)
        assert not isinstance(reading, ReadOutcome)
        cold = await reading
        assert content(cold) == content(hot)
        assert cold == structs.replace(hot, records=cold.records, aborted=[])
        assert table.counters.fetch_reads_cold == 1
        reading = served(partitions).read(Offset(0), bytes_max=1 << 20, read_committed=True)
        broker.log.advance_log_start(Offset(3))
        assert not isinstance(reading, ReadOutcome)
        overtaken = await reading
        assert overtaken.error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert overtaken.log_start_offset == 3


async def test_offsets_are_found_by_their_names_and_by_time() -> None:
    broker = memory_broker(CONFIG)
    async with leading(broker) as (partitions, _):
        partition = served(partitions)
        for timestamp_ms, expected in (
            (OFFSET_EARLIEST, OffsetOutcome(ErrorCode.NONE, Offset(0), -1, LeaderEpoch(0))),
            (OFFSET_LATEST, OffsetOutcome(ErrorCode.NONE, Offset(5), -1, EPOCH)),
            (OFFSET_OF_MAX_TIMESTAMP, OffsetOutcome(ErrorCode.NONE, Offset(4), 2_001, EPOCH)),
            (0, OffsetOutcome(ErrorCode.NONE, Offset(0), 1_000, LeaderEpoch(0))),
            (1_002, OffsetOutcome(ErrorCode.NONE, Offset(2), 1_002, LeaderEpoch(0))),
            (1_003, OffsetOutcome(ErrorCode.NONE, Offset(3), 2_000, EPOCH)),
            (2_002, OffsetOutcome(ErrorCode.NONE)),
            (-4, OffsetOutcome(ErrorCode.UNSUPPORTED_VERSION)),
        ):
            assert await partition.offset_at(timestamp_ms) == expected, timestamp_ms


async def test_an_offset_that_is_not_replicated_is_not_told() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, table):
        both = PartitionChange(topic_id=TOPIC_ID, partition=PARTITION, isr=(OTHER, OWN))
        change(table, both)
        data = batch(0, count=1, timestamp_ms=3_000)
        assert produce(partitions, data, acks=1).error is ErrorCode.NONE
        partition = served(partitions)
        assert partition.log_end == 6
        assert (await partition.offset_at(OFFSET_LATEST)).offset == 5
        assert await partition.offset_at(3_000) == OffsetOutcome(ErrorCode.NONE)
        assert (await partition.offset_at(2_000)).offset == 3
        assert read(partitions, 5).records == ()


@pytest.mark.parametrize(
    ("epoch", "outcome"),
    [
        (0, OffsetOutcome(ErrorCode.NONE, Offset(3), -1, LeaderEpoch(0))),
        (1, OffsetOutcome(ErrorCode.NONE, Offset(3), -1, LeaderEpoch(0))),
        (2, OffsetOutcome(ErrorCode.NONE, Offset(5), -1, EPOCH)),
        (3, OffsetOutcome(ErrorCode.NONE)),
    ],
)
async def test_the_end_of_an_epoch_is_that_of_the_largest_one_at_or_below_it(
    epoch: int, outcome: OffsetOutcome
) -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        assert served(partitions).end_of_epoch(LeaderEpoch(epoch)) == outcome


async def test_a_follower_answers_none_of_a_leaders_questions() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, table):
        change(table, led_by(OTHER))
        partition = served(partitions)
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
        for timestamp_ms in (OFFSET_EARLIEST, OFFSET_LATEST, OFFSET_OF_MAX_TIMESTAMP, 0):
            assert (await partition.offset_at(timestamp_ms)).error is refused
        assert partition.end_of_epoch(EPOCH).error is refused
        assert (await partition.delete_records(Offset(1), timeout_ms=0)).error is refused
        assert partition.producers() is refused
        assert not partition.can_write
        assert not partition.host.replica.is_under_min_isr
        assert partition.preferred_replica("a") is None


async def test_what_cannot_be_produced_is_refused_with_the_reason() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, table):
        for acks in (-2, 2):
            outcome = produce(partitions, batch(0), acks=acks)
            assert outcome.error is ErrorCode.INVALID_REQUIRED_ACKS
            assert f"acks={acks}: must be 0, 1 or -1" in outcome.message
        for acks in (-1, 0, 1):
            assert produce(partitions, batch(0), acks=acks).error is ErrorCode.NONE
        assert table.counters.produce_requests == 6  # one made the log, five were tried here
        host = served(partitions).host
        host.topic = TopicName("__consumer_offsets")
        outcome = produce(partitions, batch(0))
        assert outcome.error is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "only brokers write" in outcome.message
        assert produce(partitions, batch(0), is_internal=True).error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("compact", "delete", "error"),
    [
        (True, False, ErrorCode.POLICY_VIOLATION),
        (True, True, ErrorCode.NONE),
        (False, True, ErrorCode.NONE),
    ],
)
async def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(
    compact: bool, delete: bool, error: ErrorCode
) -> None:
    broker = memory_broker(CONFIG)
    async with leading(broker) as (partitions, _):
        broker.log.config = replace(CONFIG, cleanup_compact=compact, cleanup_delete=delete)
        outcome = await served(partitions).delete_records(Offset(2), timeout_ms=1_000)
        assert outcome.error is error
        assert broker.log.log_start_offset == (2 if error is ErrorCode.NONE else 0)


async def test_the_producers_of_a_leader_are_those_of_its_log() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        data = batch(0, count=2, producer_id=9, producer_epoch=4, base_sequence=0)
        assert produce(partitions, data).error is ErrorCode.NONE
        producers = served(partitions).producers()
        assert not isinstance(producers, ErrorCode)
        assert {i: entry.epoch for i, entry in producers.items()} == {9: 4}


async def test_a_leader_below_its_minimum_of_replicas_cannot_write() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        assert served(partitions).can_write
        host = served(partitions).host
        view = host.replica._view
        assert view is not None
        host.step(
            structs.replace(view, partition_epoch=view.partition_epoch + 1, min_insync_replicas=2)
        )
        assert not served(partitions).can_write


async def test_a_step_of_a_removed_replica_changes_nothing_for_its_readers() -> None:
    async with leading(memory_broker(CONFIG)) as (partitions, _):
        host = served(partitions).host
        partition = served(partitions)
        host.removed()
        host.step(ev.Tick())
        assert not partition.may_respond(EPOCH)
        assert read_error(partition) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def read_error(partition: Partition) -> ErrorCode:
    outcome = partition.read(Offset(0), bytes_max=1, read_committed=False)
    assert isinstance(outcome, ReadOutcome)
    return outcome.error


@pytest.mark.parametrize("kind", list(TimestampKind))
async def test_a_produce_is_answered_with_its_place_and_the_time_that_the_broker_set(
    kind: TimestampKind,
) -> None:
    broker = memory_broker(CONFIG)
    async with leading(broker) as (partitions, table):
        broker.log.config = replace(CONFIG, timestamp_kind=kind)
        before_ms = table.clock.wall_ms()
        outcome = produce(partitions, bytearray(batch(0, count=2)))
        time_ms = outcome.log_append_time_ms
        if kind is TimestampKind.CREATE_TIME:
            assert time_ms == -1
        else:
            assert before_ms <= time_ms <= table.clock.wall_ms()
        assert outcome == ProduceOutcome(
            ErrorCode.NONE,
            base_offset=Offset(5),
            log_append_time_ms=time_ms,
            log_start_offset=Offset(0),
            leader_epoch=EPOCH,
        )
