"""A leader is stopped (SIGSTOP) under load, and resumes in a cluster that has elected another
leader.

The danger is in records that wait in the old leader's sockets when it resumes. The old leader still
believes that it leads. If it acknowledged these records with acks=1 at once, they would be truncated
afterwards. The tests send such records, called probes.
"""

from __future__ import annotations

import asyncio
import signal
import time

import grpc.aio
import pytest

from odradek import Client
from odradek.embedded import EmbeddedCluster
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1.broker_service_pb2_grpc import BrokerServiceStub
from tests.e2e.faults.cluster_faults import leader_of, new_topic, wait_for_full_isr
from tests.e2e.faults.conftest import Report
from tests.e2e.faults.workload import PROBE, under_load, verify

ELSEWHERE_BAR_S = 6.0
GAP_S_MAX = 10.0  # so high that a slow machine does not exceed it
PROBE_TIMEOUT_MS = 2_000
PROBE_S_MAX = 100.0  # with the time for which the leader sleeps
UNANSWERED = -1


def probe(topic: str, acks: int) -> pb.ProduceRequest:
    """Return a produce request with a record for partition 0 that has no producer id."""
    builder = BatchBuilder()
    builder.append(None, PROBE + b" acks=%d" % acks)
    request = pb.ProduceRequest(request_id=1, acks=acks, timeout_ms=PROBE_TIMEOUT_MS)
    request.partitions.add(topic=topic, partition=0, records=bytes(builder.build()))
    return request


async def answer_to_probe(
    endpoint: str, topic: str, acks: int, is_open: asyncio.Event, *, go: asyncio.Event
) -> int:
    """Send a probe when `go` is set, over a stream that was opened before; return the error code of
    the response.

    The result is `UNANSWERED` if the broker ended the stream instead. The channel is not the SDK's, which
    drops a broker that does not answer pings: the probe has to be in the socket when the broker
    resumes.
    """
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call = BrokerServiceStub(channel).Produce()
        async with asyncio.timeout(PROBE_S_MAX):
            await call.write(probe(topic, 1))
            opened = await call.read()
            assert isinstance(opened, pb.ProduceResponse), f"the stream ended: {opened}"
            assert opened.partitions[0].error_code == 0, opened
            is_open.set()
            await go.wait()
            try:
                await call.write(probe(topic, acks))
                answer = await call.read()
            except grpc.RpcError:
                return UNANSWERED
            if not isinstance(answer, pb.ProduceResponse):  # the end of the stream
                return UNANSWERED
            return int(answer.partitions[0].error_code)


async def put_leader_to_sleep(cluster: EmbeddedCluster, report: Report, sleep_s: float) -> None:
    async with Client(cluster.bootstrap) as client:
        topic = await new_topic(client)
        await wait_for_full_isr(client, topic)
        async with under_load(client, topic, partitions=3) as load, asyncio.TaskGroup() as tasks:
            leader_id = await leader_of(client, topic)
            endpoint = cluster.bootstrap.split(",")[leader_id - 1]
            asleep = asyncio.Event()
            opened = {1: asyncio.Event(), -1: asyncio.Event()}
            probes = {
                acks: tasks.create_task(answer_to_probe(endpoint, topic, acks, is_open, go=asleep))
                for acks, is_open in opened.items()
            }
            for is_open in opened.values():
                await is_open.wait()
            sleeper = cluster.brokers[leader_id]
            load.begin_gap()
            began_s = time.monotonic()
            sleeper.signal(signal.SIGSTOP)
            try:
                asleep.set()
                await load.progress(300)
                gap_s = load.longest_gap_s
                assert await leader_of(client, topic) != leader_id
                early = [task.result() for task in probes.values() if task.done()]
                assert not early, f"probes ended while the leader slept: {early}"
                await asyncio.sleep(max(0.0, began_s + sleep_s - time.monotonic()))
            finally:
                sleeper.signal(signal.SIGCONT)
            codes = {acks: await task for acks, task in probes.items()}
            await load.progress(100)
            await wait_for_full_isr(client, topic)
        await verify(client, topic, load)
    report(gap_s=round(gap_s, 3), bar_s=ELSEWHERE_BAR_S, slept_s=sleep_s, probe_errors=codes)
    assert gap_s < GAP_S_MAX
    assert 0 not in codes.values(), f"the old leader acknowledged after it resumed: {codes}"


async def test_a_stopped_leader_is_replaced_and_acknowledges_nothing_when_it_wakes(
    cluster: EmbeddedCluster, report: Report
) -> None:
    await put_leader_to_sleep(cluster, report, 8.0)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_leaders_that_sleep_for_15_s(cluster: EmbeddedCluster, report: Report) -> None:
    for _ in range(3):
        await put_leader_to_sleep(cluster, report, 15.0)
