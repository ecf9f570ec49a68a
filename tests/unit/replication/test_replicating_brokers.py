"""Whole brokers replicate to each other: acknowledgements of followers, syncs, and the gate before
responses.
"""

from __future__ import annotations

import pytest

from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_protocol.identity import BrokerEpoch, BrokerId, PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import BrokerRegistrationChange
from odradek_protocol.records.batch_header import iter_headers
from odradek_runtime.clock import boottime_ms
from tests.unit.log.material import TOPIC, TOPIC_ID, batch
from tests.worlds.memory_storage import MemoryStorage
from tests.worlds.replicating_brokers import MemoryBroker, memory_cluster


async def test_what_the_leader_appends_is_read_at_every_replica() -> None:
    async with memory_cluster(3) as cluster:
        cluster.describe(replicas=(1, 2, 3), isr=(1, 2, 3), min_insync_replicas="2")
        first, second = cluster[1].produce(3), cluster[1].produce(2)
        await cluster.until(lambda: first and second)
        assert [first[0].error, second[0].error] == [ErrorCode.NONE] * 2
        assert [first[0].base_offset, second[0].base_offset] == [0, 3]
        await cluster.until(lambda: all(b.host.replica.high_watermark == 5 for b in cluster))
        assert len({broker.values for broker in cluster}) == 1
        assert cluster[1].values != b""


async def test_a_deposed_leader_gives_up_what_its_successor_lacks() -> None:
    async with memory_cluster(3) as cluster:
        cluster.describe(replicas=(1, 2, 3), isr=(1, 2, 3), min_insync_replicas="2")
        cluster[1].produce(3)
        await cluster.until(lambda: all(b.host.replica.high_watermark == 3 for b in cluster))
        cluster[1].is_deaf = True
        lost = cluster[1].produce(4, acks=1)
        assert lost[0].error is ErrorCode.NONE
        cluster.lead(2)
        kept = cluster[2].produce(1, acks=1)
        assert kept[0].base_offset == 3
        cluster[1].is_deaf = False
        cluster[1].hear()
        await cluster.until(lambda: cluster[1].host.replica.high_watermark == 4)
        assert cluster[1].host.replica.last_epoch == 1
        assert cluster[1].values == cluster[2].values


async def test_an_unsynced_acknowledgement_does_not_count_with_durability_fsync() -> None:
    """The follower has not received the change of durability yet, so its acknowledgement says only
    that the records are written.
    """
    async with memory_cluster(2) as cluster:
        cluster.describe(replicas=(1, 2), isr=(1, 2), min_insync_replicas="2")
        first = cluster[1].produce()
        await cluster.until(lambda: first)
        cluster[2].is_deaf = True
        cluster.config("durability", "fsync")
        outcome = cluster[1].produce()
        await cluster.until(lambda: cluster.acks_of(2)[-1].ack_to == 2)
        await cluster.until(lambda: cluster[1].host.log.durable_end_offset == 2)
        assert cluster.acks_of(2)[-1].is_unsynced
        await cluster.until(lambda: cluster[1].pool.waiting == 0)
        assert cluster[1].host.replica.high_watermark < 2
        assert outcome == []
        cluster[2].is_deaf = False
        cluster[2].hear()
        await cluster.until(lambda: outcome)
        assert outcome[0].error is ErrorCode.NONE
        assert not cluster.acks_of(2)[-1].is_unsynced
        assert cluster[2].host.log.durable_end_offset == 2


async def test_with_durability_fsync_nothing_is_answered_before_the_leaders_sync() -> None:
    async with memory_cluster(2) as cluster:
        cluster[1].pool.is_held = True
        cluster.describe(replicas=(1, 2), isr=(1, 2), min_insync_replicas="2", durability="fsync")
        outcome = cluster[1].produce()
        await cluster.until(lambda: cluster.acks_of(2) and cluster.acks_of(2)[-1].ack_to == 1)
        assert not cluster.acks_of(2)[-1].is_unsynced
        assert outcome == [], "the leader's own disk has it not"
        cluster[1].pool.begin()
        assert outcome == []
        cluster[1].pool.finish()
        await cluster.until(lambda: outcome)
        assert outcome[0].error is ErrorCode.NONE


async def test_a_sync_vouches_only_for_what_was_in_the_log_when_it_began() -> None:
    async with memory_cluster(1) as cluster:
        broker = cluster[1]
        broker.pool.is_held = True
        cluster.describe(replicas=(1,), isr=(1,), durability="fsync")
        first = broker.produce()
        broker.pool.begin()
        second = broker.produce()
        broker.pool.finish()
        assert [outcome.error for outcome in first] == [ErrorCode.NONE]
        assert second == [], "it was appended while the disk worked"
        assert broker.host.replica.high_watermark == 1
        assert _durable_records(broker) == 1
        broker.pool.begin()
        broker.pool.finish()
        assert [outcome.error for outcome in second] == [ErrorCode.NONE]
        assert _durable_records(broker) == 2


def _durable_records(broker: MemoryBroker) -> int:
    """Return how many records would survive a power loss now."""
    storage = broker.disk.storage
    assert isinstance(storage, MemoryStorage)
    files = storage.durable_files(broker.host.log.directory)
    (data,) = [data for name, data in files.items() if name.endswith(".log")]
    return len(list(iter_headers(data)))


async def test_a_produce_outcome_passes_the_gate_only_in_its_epoch_and_lease() -> None:
    async with memory_cluster(2) as cluster:
        cluster.describe(replicas=(1, 2), isr=(1, 2))
        produced = cluster[1].produce()
        await cluster.until(lambda: produced)
        outcome, partition = produced[0], cluster[1].partition
        assert outcome.error is ErrorCode.NONE
        assert partition.gate_produce(outcome, acks=1) is outcome
        cluster[1].lease.end()
        refused = partition.gate_produce(outcome, acks=1)
        assert refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster[1].lease.renew(boottime_ms())
        assert partition.gate_produce(outcome, acks=1) is outcome
        cluster.lead(2)
        refused = partition.gate_produce(outcome, acks=1)
        assert refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        absent = cluster[1].partitions.find(TOPIC, PartitionIndex(9))
        assert absent is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_leader_pushes_no_bytes_of_the_disk_that_are_damaged() -> None:
    """The follower would refuse them, too, but it is the leader's disk that must be replaced."""
    async with memory_cluster(2) as cluster:
        leader = cluster[1]
        for offset in range(3):
            leader.disk.log.append(batch(offset), now_ms=1)
        leader.disk.stop_and_start()
        assert leader.disk.restart_class is RestartClass.CLEAN
        storage, directory = leader.disk.storage, leader.disk.log.directory
        assert isinstance(storage, MemoryStorage)
        (name,) = [name for name in storage.names(directory) if name.endswith(".log")]
        storage.inode(directory / name).data[70] ^= 1
        leader.table._directory = leader.disk.directory
        cluster.describe(replicas=(1, 2), isr=(1, 2))
        await cluster.until(lambda: leader.offline)
        assert cluster[2].host.replica.log_end == 0
        assert not any(batch(0)[61:] in response for _, response in cluster.responses)
        assert TOPIC_ID in leader.image.topics


@pytest.mark.parametrize("followers", [1, 2])
async def test_a_follower_joins_while_the_leader_appends_without_a_pause(followers: int) -> None:
    async with memory_cluster(1 + followers) as cluster:
        replicas = tuple(cluster.brokers)
        cluster.describe(replicas=replicas, isr=(1,), min_insync_replicas="1")
        state = cluster[1].image.partitions

        def is_whole() -> bool:
            cluster[1].produce(acks=1)
            return len(next(iter(state())).isr) == len(replicas)

        await cluster.until(is_whole)


async def test_brokers_that_share_a_partition_connect_to_each_other_before_they_lead() -> None:
    """A broker that leads no partition finds out whether its future followers can reach it."""
    async with memory_cluster(3) as cluster:
        cluster.describe(replicas=(1, 2), isr=(1, 2))
        await cluster.until(lambda: cluster[2].followers.connected == {1})
        assert cluster[1].followers.connected == {2}
        assert not cluster[3].followers.connected, "it has no replica"
        cluster.record(
            BrokerRegistrationChange(
                broker_id=BrokerId(2), broker_epoch=BrokerEpoch(2), fenced=True
            )
        )
        await cluster.until(lambda: not cluster[2].followers.connected)
        assert cluster[1].followers.connected == {2}, "it follows a partition"
