"""A leader sends invalid messages; its follower may lose the replica in question, and nothing
else.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from typing import Any

import pytest

from odradek_broker.partition.effects import Role
from odradek_broker.replication.partition import Partition as ServedPartition
from odradek_broker.replication.streams import follower_stream
from odradek_protocol.identity import BrokerId, PartitionIndex
from odradek_protocol.metadata.records import Partition
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from tests.unit.log.material import TOPIC, TOPIC_ID, batch
from tests.worlds.replicating_brokers import (
    PARTITION,
    MemoryBroker,
    MemoryCluster,
    memory_cluster,
)

NUMBERS = (0, 1, -1, 2, 5, -5, 1 << 31, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
MESSAGES_PER_LEADER = 12
OTHER = PartitionIndex(1)
TURNS = 12  # of the loop, in which a message goes forth and back


class HostileLeader:
    """Changes a number of messages that the real leader sends, and adds messages of its own."""

    def __init__(self, cluster: MemoryCluster, seed: int) -> None:
        self._draw = random.Random(seed)
        self._cluster = cluster
        self.left = MESSAGES_PER_LEADER
        cluster.changes_response = self.changed

    def changed(self, _follower: int, response: bytes) -> bytes:
        """Return what the follower receives in place of a response."""
        if self.left <= 0:
            return response
        self.left -= 1
        message = pb.ReplicateResponse.FromString(response)
        victims = [one for one in message.messages if one.partition.partition == PARTITION]
        for one in victims:
            if self._draw.random() < 0.5:
                self._change(one)
        if self._draw.random() < 0.5:
            added = pb.ReplicateResponse()
            self._add(added)
            added.MergeFrom(
                message
            )  # what is added comes first, or an answer would be one too many
            message = added
        data = message.SerializeToString()
        if len(victims) == len(message.messages) and self._draw.random() < 0.1:
            at = self._draw.randrange(len(data) + 1)
            data = data[:at] + self._draw.randbytes(self._draw.randrange(9)) + data[at + 3 :]
        return data

    def _number(self, bits: int, near: int) -> int:
        value = self._draw.choice((*NUMBERS, near + 1, near - 1, near))
        return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else 0

    def _change(self, message: Any) -> None:
        """Change one field of a message, or of a message inside it."""
        draw = self._draw
        if draw.random() < 0.2:
            message.leader_epoch = self._number(32, message.leader_epoch)
        kind = message.WhichOneof("message")
        if kind is None:
            return
        inner = getattr(message, kind)
        field = draw.choice(inner.DESCRIPTOR.fields)
        if field.name == "attach_seq":
            return
        if field.name == "records":
            inner.records = self._batches(inner.records)
            return
        bits = 32 if field.type == field.TYPE_INT32 else 64
        setattr(inner, field.name, self._number(bits, getattr(inner, field.name)))

    def _batches(self, records: bytes) -> bytes:
        """Return the batches with a damaged header, truncated, duplicated, or replaced by random
        bytes.
        """
        draw, data = self._draw, bytearray(records or b"\0" * 61)
        kind = draw.randrange(6)
        if kind == 0:
            struct.pack_into(">q", data, 0, self._number(64, 0))  # the base offset
        elif kind == 1:
            struct.pack_into(">i", data, 8, self._number(32, len(data)))  # the length
        elif kind == 2:
            struct.pack_into(">i", data, 12, self._number(32, 0))  # the leader epoch
        elif kind == 3:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        elif kind == 4:
            del data[draw.randrange(len(data)) :]
        else:
            data *= 2
        return bytes(data)

    def _add(self, response: pb.ReplicateResponse) -> None:
        """Return a response to the follower's last Attach, or data where its log ends."""
        draw = self._draw
        attaches = [
            position
            for _, request in self._cluster.requests
            for position in request.attach.partitions
            if position.partition.partition == PARTITION
        ]
        if not attaches:
            return
        last, replica = attaches[-1], self._cluster[2].host.replica
        message = response.messages.add(partition=last.partition, leader_epoch=replica.leader_epoch)
        kind = draw.choice([field.name for field in message.DESCRIPTOR.oneofs[0].fields])
        inner = getattr(message, kind)
        inner.SetInParent()
        for field in inner.DESCRIPTOR.fields:
            if field.name == "records":
                continue
            bits = 32 if field.type == field.TYPE_INT32 else 64
            setattr(inner, field.name, self._number(bits, replica.log_end))
        if hasattr(inner, "attach_seq"):
            inner.attach_seq = draw.choice((last.attach_seq, last.attach_seq, 0))
        if kind == "diverged":
            inner.for_log_end, inner.for_last_epoch = last.log_end, last.last_epoch


async def endure(seed: int) -> Role:
    """Follow a leader that is hostile for one of two partitions; return the state in which that
    replica ends.
    """
    async with memory_cluster(2) as cluster:
        cluster.describe(replicas=(1, 2), isr=(1,), leader=1)
        cluster.record(
            Partition(
                topic_id=TOPIC_ID,
                partition=OTHER,
                replicas=(BrokerId(1), BrokerId(2)),
                isr=(BrokerId(1),),
                leader=BrokerId(1),
            )
        )
        follower = cluster[2]
        hostile = HostileLeader(cluster, seed)
        while hostile.left > 0:
            produced = hostile.left
            cluster[1].produce(1 + produced % 3, acks=1)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if (
                hostile.left == produced
            ):  # the replica has failed, or waits before it attaches again
                hostile.left -= 1
        produce_to_the_other(cluster[1])
        other = follower.table.by_id[TOPIC_ID, OTHER].replica
        await cluster.until(lambda: other.log_end == 1)
        assert follower.table.storage_problem == ""
        role = follower.host.replica.role
    follower.disk.kill_and_start()
    assert follower.disk.log.log_start_offset >= 0
    return role


def produce_to_the_other(leader: MemoryBroker) -> None:
    other = leader.partitions.find(TOPIC, OTHER)
    assert isinstance(other, ServedPartition), other
    other.produce(batch(0), acks=1, timeout_ms=60_000, on_done=lambda _: None)


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 5_000), marks=pytest.mark.long)]
)
async def test_a_follower_endures_its_leader(
    seeds: range, caplog: pytest.LogCaptureFixture
) -> None:
    roles = set()
    for seed in seeds:
        roles.add(await endure(seed))
        failures = [
            record
            for record in caplog.records
            if record.name == follower_stream.__name__ and record.levelno >= logging.ERROR
        ]
        assert not failures, f"seed {seed}"
    assert Role.FOLLOWER in roles


@pytest.mark.parametrize("kind", ["snapshotless", "diverged"])
async def test_no_log_begins_below_zero(kind: str) -> None:
    async with memory_cluster(2) as cluster:
        refusals: list[pb.LeaderMessage] = []

        def begin_below_zero(_follower: int, response: bytes) -> bytes:
            message = pb.ReplicateResponse.FromString(response)
            first = message.messages[0]
            if refusals or not first.HasField("attached"):
                return response
            seq = first.attached.attach_seq
            if kind == "snapshotless":
                first.snapshotless.CopyFrom(pb.LeaderSnapshotless(attach_seq=seq, log_start=-5))
            else:
                diverged = pb.LeaderDiverged(attach_seq=seq, for_last_epoch=-1, end_offset=-5)
                first.diverged.CopyFrom(diverged)
            refusals.append(first)
            del message.messages[1:]
            return message.SerializeToString()

        cluster.changes_response = begin_below_zero
        cluster.describe(replicas=(1, 2), isr=(1,), leader=1)
        cluster[1].produce(3, acks=1)
        await cluster.until(lambda: refusals and cluster[2].host.replica.log_end == 3)
        attaches = [
            position for _, request in cluster.requests for position in request.attach.partitions
        ]
        assert len(attaches) > 1
        assert all(position.log_start == 0 for position in attaches)
