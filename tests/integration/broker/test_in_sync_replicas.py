"""Three brokers: which replicas are in sync, when a leader may not acknowledge, and what happens to
a broker that was suspended.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from tests.integration.broker.broker_cluster import (
    READY_TIMEOUT_S,
    BrokerCluster,
    batch,
    produce_request,
    record_values,
)


def _numbers(start: int, count: int) -> bytes:
    return batch([str(n).encode() for n in range(start, start + count)])


async def test_acks_all_is_refused_below_the_minimum_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    async with BrokerCluster(tmp_path, brokers=3) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        leader = cluster.partition("t").leader
        others = [broker for broker in cluster.brokers if broker != leader]
        assert (await cluster.produce("t", _numbers(0, 5))).base_offset == 0
        for broker_id in others:
            await cluster.brokers[broker_id].kill()
        await cluster.until(lambda: cluster.partition("t").isr == (leader,))
        async with asyncio.timeout(READY_TIMEOUT_S):  # the leader's image may lag a little behind
            while True:
                refused = await cluster.produce("t", _numbers(5, 5), timeout_ms=500)
                if ErrorCode(refused.error_code) is ErrorCode.NOT_ENOUGH_REPLICAS:
                    break
        alone = await cluster.produce("t", _numbers(10, 1), acks=1)
        assert alone.error_code == 0  # stored, but invisible until the ISR recovers
        await cluster.brokers[others[0]].start()
        await cluster.until(lambda: len(cluster.partition("t").isr) == 2)
        done = await cluster.produce("t", _numbers(11, 1))
        assert done.error_code == 0
        values = record_values(await cluster.read("t", end=done.base_offset + 1))
        assert values[:5] == [0, 1, 2, 3, 4]
        assert values[-2:] == [10, 11]


async def test_a_follower_that_lags_leaves_the_isr_and_comes_back(tmp_path: Path) -> None:
    settings = {"replica.lag.time.max.ms": "600", "broker.session.timeout.ms": "60000"}
    async with BrokerCluster(tmp_path, brokers=3, settings=settings) as cluster:
        cluster.controller.core._liveness.session_ms = 60_000
        cluster.controller.core._liveness.grace_ms = 60_000
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        leader = cluster.partition("t").leader
        sleeper = next(broker for broker in cluster.brokers if broker != leader)
        await cluster.produce("t", _numbers(0, 5))
        process = cluster.brokers[sleeper].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            result = await cluster.produce("t", _numbers(5, 5))  # waits until the sleeper is out
            assert result.error_code == 0
            await cluster.until(lambda: sleeper not in cluster.partition("t").isr)
        finally:
            process.send_signal(signal.SIGCONT)
        await cluster.until(lambda: sleeper in cluster.partition("t").isr)


async def test_a_leader_that_slept_acknowledges_nothing_when_it_wakes(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=3) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        leader = cluster.partition("t").leader
        await cluster.produce("t", _numbers(0, 5))
        process = cluster.brokers[leader].process
        assert process is not None
        call = cluster.broker_stub(leader).Produce()
        await call.write(produce_request("t", _numbers(5, 1), n=1))
        assert (await call.read()).partitions[0].error_code == 0
        process.send_signal(signal.SIGSTOP)
        try:
            await call.write(produce_request("t", _numbers(6, 1), acks=1, n=2))  # for its dreams
            await cluster.until(lambda: cluster.partition("t").leader not in (-1, leader))
            elsewhere = await cluster.produce("t", _numbers(7, 1))
            assert elsewhere.error_code == 0
        finally:
            process.send_signal(signal.SIGCONT)
        answer = await asyncio.wait_for(call.read(), READY_TIMEOUT_S)
        assert isinstance(answer, pb.ProduceResponse)
        assert ErrorCode(answer.partitions[0].error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.until(lambda: leader in cluster.partition("t").isr)
        call.cancel()
        values = record_values(await cluster.read("t", end=7))
        assert values == [0, 1, 2, 3, 4, 5, 7]


async def test_a_deposed_leader_cuts_what_nobody_else_has(tmp_path: Path) -> None:
    """While its followers are away, the leader accepts records with acks=1; it truncates them when
    it returns as a follower.
    """
    async with BrokerCluster(tmp_path, brokers=3) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="1")
        first = cluster.partition("t").leader
        await cluster.produce("t", _numbers(0, 5))
        processes = {i: broker.process for i, broker in cluster.brokers.items()}
        others = [i for i in cluster.brokers if i != first]
        for i in others:
            stopped = processes[i]
            assert stopped is not None
            stopped.send_signal(signal.SIGSTOP)
        lonely = await cluster.produce("t", _numbers(100, 3), acks=1)
        assert lonely.error_code == 0
        await cluster.brokers[first].kill()
        for i in others:
            waking = processes[i]
            assert waking is not None
            waking.send_signal(signal.SIGCONT)
        await cluster.until(lambda: cluster.partition("t").leader in others)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                second = await cluster.produce("t", _numbers(5, 2), timeout_ms=1000)
                if second.error_code == 0:
                    break
        await cluster.brokers[first].start()
        await cluster.until(lambda: first in cluster.partition("t").isr)
        for broker in cluster.brokers.values():
            assert await broker.terminate() == 0
        logs = {
            b"".join(p.read_bytes() for p in sorted((b.directory / "t-0").glob("*.log")))
            for b in cluster.brokers.values()
        }
        assert len(logs) == 1, "the replicas differ"
        values = record_values(logs.pop())
        assert values[:5] == [0, 1, 2, 3, 4]
        assert set(values[5:]) <= {100, 101, 102, 5, 6}


async def test_a_follower_far_behind_catches_up_in_a_lane_of_its_own(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=3) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        leader = cluster.partition("t").leader
        late = next(broker for broker in cluster.brokers if broker != leader)
        await cluster.brokers[late].kill()
        await cluster.until(lambda: late not in cluster.partition("t").isr)
        for start in range(0, 60_000, 2_000):
            assert (await cluster.produce("t", _numbers(start, 2_000))).error_code == 0
        await cluster.brokers[late].start()
        await cluster.until(lambda: late in cluster.partition("t").isr)
        assert (await cluster.produce("t", _numbers(60_000, 1))).error_code == 0
        log = cluster.brokers[late].log_path.read_text()
        assert '"lane":"CATCH_UP"' in log
        for broker in cluster.brokers.values():
            assert await broker.terminate() == 0
        logs = {
            b"".join(p.read_bytes() for p in sorted((b.directory / "t-0").glob("*.log")))
            for b in cluster.brokers.values()
        }
        assert len(logs) == 1, "the replicas differ"
        assert record_values(logs.pop()) == list(range(60_001))
