"""Looks up offsets by timestamp, from the leader of each partition. After a change of leaders, requests are
repeated.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster
from odradek.cluster.methods import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from odradek.cluster.turns import in_turns
from odradek.errors import LeaderNotAvailable, OdradekError, error_of
from odradek.partitions import OffsetAndTimestamp, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

CALL_S_MAX: Final = 10.0


async def look_up_offsets(
    cluster: Cluster,
    timestamps_ms: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_s: float,
    found: dict[TopicPartition, OffsetAndTimestamp] | None = None,
    on_found: Callable[[], None] | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Look up the first offset at or after each timestamp. A timestamp may also be LATEST, EARLIEST or
    LARGEST_TIMESTAMP.

    Results are added to `found` as they arrive. `on_found` is called after each round of requests, so that the caller
    can use the first results while others are missing.

    Raises:
        UnknownTopic, AuthorizationFailed: a partition does not exist, or the caller may not read it.
        LeaderNotAvailable, BrokersUnavailable: some offsets were not found within `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    found = {} if found is None else found
    backoff = Backoff(first_ms=20, most_ms=500)
    attempts = 0
    while True:
        missing = {name: at for name, at in timestamps_ms.items() if name not in found}
        if not missing:
            return found
        remaining_s = deadline_s - time.monotonic()
        # In each round, the metadata of topics that are not in the cache is requested, because the cache may have
        # dropped a topic since the last round.
        highest: dict[str, int] = {}
        async for partition in in_turns(missing):
            highest[partition.topic] = max(partition.partition, highest.get(partition.topic, 0))
        await cluster.fetch_topics(highest, timeout_s=remaining_s)
        error = await _ask_once(cluster, missing, found, read_committed, deadline_s)
        if on_found is not None:
            on_found()
        if error is None:
            continue
        # For a topic or partition that does not exist, `cluster.topic` raises UnknownTopic, after some seconds. The
        # offsets of all others were found before.
        async for topic, index in in_turns(highest.items()):
            await cluster.topic(topic, timeout_s=remaining_s, partition=index)
        attempts += 1
        pause_s = backoff.after(attempts, random.random()) / 1000
        if time.monotonic() + pause_s >= deadline_s:
            raise error
        cluster.refresh_soon()
        await asyncio.sleep(pause_s)


async def _ask_once(
    cluster: Cluster,
    missing: Mapping[TopicPartition, int],
    found: dict[TopicPartition, OffsetAndTimestamp],
    read_committed: bool,
    deadline_s: float,
) -> OdradekError | None:
    """Send one request to each leader, and add the offsets of the responses to `found`. Return None if `found`
    is complete now, otherwise an error after which a retry may help. Raise an error that a retry would not change.
    """
    by_endpoint: dict[str, list[TopicPartition]] = {}
    problem: OdradekError | None = None
    async for name in in_turns(missing):
        leader = cluster.cache.leader_endpoint(name)
        if leader is None:
            problem = LeaderNotAvailable(f"{name} has no leader")
        else:
            by_endpoint.setdefault(leader[1], []).append(name)
    problems = await asyncio.gather(
        *(
            _ask(cluster, endpoint, names, missing, found, read_committed, deadline_s)
            for endpoint, names in by_endpoint.items()
        )
    )
    return next((p for p in problems if p is not None), problem)


async def _ask(
    cluster: Cluster,
    endpoint: str,
    names: list[TopicPartition],
    timestamps_ms: Mapping[TopicPartition, int],
    found: dict[TopicPartition, OffsetAndTimestamp],
    read_committed: bool,
    deadline_s: float,
) -> OdradekError | None:
    request = pb.ListOffsetsRequest(read_committed=read_committed, timeout_ms=5_000)
    async for name in in_turns(names):
        partition_info = cluster.cache.partition(name)
        request.partitions.add(
            topic=name.topic,
            partition=name.partition,
            timestamp_ms=timestamps_ms[name],
            current_leader_epoch=-1 if partition_info is None else partition_info.leader_epoch,
        )
    remaining_s = max(0.01, min(CALL_S_MAX, deadline_s - time.monotonic()))
    try:
        response = await cluster.transport.call(
            endpoint, LIST_OFFSETS, request, timeout_s=remaining_s
        )
    except OdradekError as error:
        explained = cluster.explained(error)
        if explained.retriable:
            return explained
        raise explained from None
    problem: OdradekError | None = None
    async for result in in_turns(response.partitions):
        name = TopicPartition(result.topic, result.partition)
        if result.error_code == ErrorCode.NONE:
            found[name] = OffsetAndTimestamp(
                result.offset, result.timestamp_ms, result.leader_epoch
            )
            continue
        problem = error_of(result.error_code, str(name))
        if problem.code is None or not problem.code.retriable:
            raise problem
        if result.HasField("leader"):
            cluster.hint(name, result.leader)
    return problem


async def end_of_epoch(
    cluster: Cluster, partition: TopicPartition, leader_epoch: int, *, timeout_s: float
) -> tuple[int, int] | None:
    """Return (epoch, end offset) of the largest leader epoch that is not above `leader_epoch` (KIP-320).

    One request goes to the present leader. None: there is no leader, or the leader does not know the end offset.
    """
    leader = cluster.cache.leader_endpoint(partition)
    partition_info = cluster.cache.partition(partition)
    if leader is None or partition_info is None:
        return None
    request = pb.OffsetForLeaderEpochRequest()
    request.partitions.add(
        topic=partition.topic,
        partition=partition.partition,
        leader_epoch=leader_epoch,
        current_leader_epoch=partition_info.leader_epoch,
    )
    response = await cluster.transport.call(
        leader[1], OFFSET_FOR_LEADER_EPOCH, request, timeout_s=timeout_s
    )
    for result in response.partitions:
        if result.error_code == ErrorCode.NONE:
            return result.leader_epoch, result.end_offset
    return None
