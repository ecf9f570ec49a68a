"""Brokers and controllers over real gRPC: registration, heartbeats, the metadata feed, failover,
restart.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import grpc.aio
import pytest

from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.snapshot import snapshot_bytes
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from tests.integration.quorum.controllers import (
    CLUSTER_ID,
    Controllers,
    Follower,
    Heart,
    controllers,
    register_request,
    start_broker,
    until,
)


async def create(found: Controllers, node: int, *names: str, partitions: int = 3) -> None:
    answer = await found.admin(node).CreateTopics(
        admin.CreateTopicsRequest(
            topics=[
                admin.NewTopic(name=name, partition_count=partitions, replication_factor=1)
                for name in names
            ]
        )
    )
    assert [topic.error_code for topic in answer.topics] == [0] * len(names), answer


async def test_a_broker_registers_is_unfenced_and_the_feed_tells_all(tmp_path: Path) -> None:
    async with controllers(tmp_path, min_insync_replicas=1) as found:
        heart = await start_broker(found)
        await create(found, 0, "a", "b")
        follower = Follower()
        await follower.follow(found.controller(0), found.image(0).offset)
        assert snapshot_bytes(follower.image) == snapshot_bytes(found.image(0))
        assert follower.image.topic("b") is not None
        assert not follower.image.brokers[1].fenced  # type: ignore[index]
        heart.close()


async def test_a_repeated_registration_gets_the_same_answer(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        await found.active()
        first = await found.controller(0).Register(register_request())
        again = await found.controller(0).Register(register_request())
        assert first.broker_epoch == again.broker_epoch > 0
        other = await found.controller(0).Register(register_request(life=2))
        assert other.broker_epoch > first.broker_epoch
        refused = await found.controller(0).Register(register_request(cluster_id="other"))
        assert refused.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        assert CLUSTER_ID in refused.error_message


async def test_a_broken_stream_fences_one_grace_later_silence_a_session_later(
    tmp_path: Path,
) -> None:
    async with controllers(
        tmp_path, broker_session_timeout_ms=4000, broker_stream_grace_ms=300
    ) as found:
        heart = await start_broker(found)
        broken_at = time.monotonic()
        heart.close()
        await until(lambda: found.image(0).brokers[1].fenced)  # type: ignore[index]
        assert 0.3 <= time.monotonic() - broken_at < 3.9
        again = Heart(found, 0, 1, found.image(0).brokers[1].broker_epoch)  # type: ignore[index]
        await again.until_unfenced()
        silent_at = time.monotonic()
        await until(lambda: found.image(0).brokers[1].fenced)  # type: ignore[index]
        assert time.monotonic() - silent_at >= 3.9
        again.close()


async def test_an_earlier_life_is_told_to_exit_and_its_stream_ends(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        heart = await start_broker(found)
        await found.controller(0).Register(register_request(life=2))
        assert (await heart.beat()).error_code == ErrorCode.STALE_BROKER_EPOCH


async def test_isr_proposals_and_producer_ids_are_answered_after_the_commit(
    tmp_path: Path,
) -> None:
    async with controllers(tmp_path) as found:
        heart = await start_broker(found)
        await create(found, 0, "a", partitions=1)
        (state,) = found.image(0).partitions()
        epoch = found.image(0).brokers[1].broker_epoch  # type: ignore[index]
        partition = common_pb2.TopicIdPartition(topic_id=state.topic_id, partition=0)
        answer = await found.controller(0).AlterPartition(
            pb.AlterPartitionRequest(
                broker_id=1,
                broker_epoch=epoch,
                partitions=[
                    pb.AlterPartitionItem(
                        partition=partition,
                        leader_epoch=state.leader_epoch,
                        partition_epoch=state.partition_epoch,
                        isr=[pb.ReplicaWithEpoch(broker_id=1, broker_epoch=epoch)],
                    )
                ],
            )
        )
        assert answer.partitions[0].error_code == 0
        assert answer.partitions[0].partition_epoch == 1
        (after,) = found.image(0).partitions()
        assert after.partition_epoch == 1
        request = pb.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)
        blocks = await asyncio.gather(
            *(found.controller(0).AllocateProducerIds(request) for _ in range(5))
        )
        starts = {block.producer_id_start for block in blocks}
        assert len(starts) == 5
        assert found.image(0).next_producer_id == 5000
        heart.close()


async def test_a_reader_that_is_far_behind_gets_a_snapshot_and_what_follows(
    tmp_path: Path,
) -> None:
    async with controllers(tmp_path, metadata_log_max_entries_between_snapshots=10) as found:
        heart = await start_broker(found)
        for number in range(60):
            await create(found, 0, f"topic-{number}")
        node = found.processes[0]
        await until(lambda: node._quorum.entries(2, 1) is None, "the log's start is trimmed")
        follower = Follower()
        await follower.follow(found.controller(0), found.image(0).offset)
        assert follower.snapshots == 1
        assert snapshot_bytes(follower.image) == snapshot_bytes(found.image(0))
        await create(found, 0, "later")
        await follower.follow(found.controller(0), found.image(0).offset)
        assert follower.snapshots == 1, "from there on by records"
        assert follower.image.topic("later") is not None
        heart.close()


async def test_a_reader_with_another_history_is_refused(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        heart = await start_broker(found)
        call = found.controller(0).MetadataFeed(
            pb.MetadataFeedRequest(
                broker_id=1, from_offset=found.image(0).offset + 1, last_epoch=99
            )
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE
        heart.close()


async def test_a_reader_ahead_of_this_member_waits_for_it(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        heart = await start_broker(found)
        ahead = found.image(0).offset + 2
        call = found.controller(0).MetadataFeed(
            pb.MetadataFeedRequest(broker_id=1, from_offset=ahead, last_epoch=1)
        )
        first = await call.read()
        assert isinstance(first, pb.MetadataFeedResponse)
        assert not first.batches.batches
        await create(found, 0, "one")
        await create(found, 0, "two")
        second = await call.read()
        assert isinstance(second, pb.MetadataFeedResponse)
        assert [batch.offset for batch in second.batches.batches] == [ahead]
        call.cancel()
        heart.close()


async def test_the_metadata_is_still_there_after_a_restart(tmp_path: Path) -> None:
    async with controllers(tmp_path, metadata_log_max_entries_between_snapshots=10) as found:
        heart = await start_broker(found)
        for number in range(25):
            await create(found, 0, f"topic-{number}")
        heart.close()
        before = set(found.image(0).topic_ids.items())
        epoch = found.image(0).epoch
        await found.stop(0)
        found.start(0)
        await found.active()
        assert set(found.image(0).topic_ids.items()) == before
        assert found.image(0).epoch > epoch
        heart = await start_broker(found)
        await create(found, 0, "after")
        heart.close()


async def test_when_the_active_controller_goes_another_one_carries_on(tmp_path: Path) -> None:
    async with controllers(tmp_path, 3) as found:
        first = await found.active()
        registered = await found.controller(first).Register(register_request())
        hearts = [Heart(found, node, 1, registered.broker_epoch) for node in range(3)]
        await hearts[first].until_unfenced()
        standby = next(node for node in range(3) if node != first)
        await until(lambda: 1 in found.image(standby).brokers)
        assert not (await hearts[standby].beat()).is_active
        await create(found, first, "before")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await create(found, standby, "refused")
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        not_here = await found.controller(standby).Register(register_request(2))
        assert not_here.error_code == ErrorCode.NOT_CONTROLLER
        assert not_here.active_controller_id == first

        await found.stop(first)
        second = await found.active()
        assert second != first
        assert (await hearts[second].beat()).is_active
        await create(found, second, "after")
        other = next(node for node in range(3) if node not in (first, second))
        await until(lambda: found.image(other).topic("after") is not None)
        assert found.image(other).topic("before") is not None
        assert found.image(other).topic("refused") is None
        described = await found.controller(other).DescribeQuorum(pb.DescribeQuorumRequest())
        assert described.leader_id == second
        assert len(described.voters) == 3
        for heart in hearts:
            heart.close()


async def test_many_topics_at_once_are_all_there_once(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        heart = await start_broker(found)
        results = await asyncio.gather(
            *(
                found.admin(0).CreateTopics(
                    admin.CreateTopicsRequest(
                        topics=[
                            admin.NewTopic(
                                name=f"t{number % 20}", partition_count=1, replication_factor=1
                            )
                        ]
                    )
                )
                for number in range(60)
            )
        )
        codes = [result.topics[0].error_code for result in results]
        assert codes.count(0) == 20
        assert codes.count(ErrorCode.TOPIC_ALREADY_EXISTS) == 40
        assert len(found.image(0).topic_ids) == 20
        heart.close()
