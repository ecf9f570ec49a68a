"""How long groups take to rebalance with the broker's default settings; each test prints its
figure.

    pytest -m long -s tests/e2e/kafka/test_rebalance_times.py
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import admin

from odradek.embedded import ClusterPlan, EmbeddedCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
MEMBERS = 8
PARTITIONS = 24
SETTLES_S_MAX = 5.0
AFTER_SESSION_S_MAX = 2.0
SESSION_S = {"classic": 10.0, "consumer": 45.0}
TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def defaults() -> Iterator[str]:
    """Yield the Kafka address of a broker with default settings."""
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as running:
        running.start()
        running.wait_ready()
        yield running.kafka_bootstrap


class Member:
    """A member process, and the assignment that it last printed."""

    def __init__(self, topic: str, config: dict[str, Any]) -> None:
        self.owned: list[int] = []
        self.ready = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.kafka.group_member", topic, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reads = threading.Thread(target=self._read, daemon=True)
        self._reads.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.strip() == "ready":
                    self.ready.set()
                else:
                    self.owned = json.loads(line)

    def go(self) -> None:
        """Let the member subscribe."""
        assert self.ready.wait(TIMEOUT_S)
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the member (SIGKILL)."""
        self._process.kill()
        self._end()

    def leave(self) -> None:
        """Let the member close its consumer."""
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(TIMEOUT_S)
        self._reads.join(TIMEOUT_S)


@contextlib.contextmanager
def group(
    bootstrap: str, topic: str, protocol: str, count: int = MEMBERS
) -> Iterator[list[Member]]:
    """Start members, which are ready and have not subscribed yet."""
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    new = admin.NewTopic(topic, PARTITIONS, 1)
    client.create_topics([new])[topic].result(TIMEOUT_S)
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": f"g-{topic}",
        "group.protocol": protocol,
    }
    if protocol == "classic":
        config |= {"session.timeout.ms": int(SESSION_S[protocol] * 1000)}
    members = [Member(topic, config) for _ in range(count)]
    try:
        for member in members:
            assert member.ready.wait(TIMEOUT_S)
        yield members
    finally:
        for member in members:
            member.kill()


def seconds_until_settled(members: list[Member], began_s: float) -> float:
    """Return the seconds until each member owns its share, and all members together own all
    partitions.
    """
    small, larger = divmod(PARTITIONS, len(members))
    shares = sorted([small] * (len(members) - larger) + [small + 1] * larger)
    deadline = began_s + TIMEOUT_S
    while time.monotonic() < deadline:
        owned = [member.owned for member in members]
        if sorted(map(len, owned)) == shares and len(set().union(*owned)) == PARTITIONS:
            return time.monotonic() - began_s
        time.sleep(0.01)  # poll the state of other processes
    raise AssertionError(f"not settled: {[member.owned for member in members]}")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_eight_members_over_24_partitions_settle(defaults: str, topic: str, protocol: str) -> None:
    with group(defaults, topic, protocol) as members:
        began_s = time.monotonic()
        for member in members:
            member.go()
        start_s = seconds_until_settled(members, began_s)
        time.sleep(10)  # calm: members send heartbeats at their long interval
        began_s = time.monotonic()
        members.pop().leave()
        leave_s = seconds_until_settled(members, began_s)
        print(f"\n{protocol}: 8 start {start_s:.2f} s, one of 8 leaves {leave_s:.2f} s")
        assert start_s <= SETTLES_S_MAX
        assert leave_s <= SETTLES_S_MAX


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_one_of_eight_joins_a_calm_group(defaults: str, topic: str, protocol: str) -> None:
    with group(defaults, topic, protocol) as members:
        for member in members[1:]:
            member.go()
        seconds_until_settled(members[1:], time.monotonic())
        time.sleep(10)  # calm: members send heartbeats at their long interval
        began_s = time.monotonic()
        members[0].go()
        join_s = seconds_until_settled(members, began_s)
        print(f"\n{protocol}: one joins 7 in {join_s:.2f} s")
        assert join_s <= SETTLES_S_MAX


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_partitions_of_a_killed_member_move(defaults: str, topic: str, protocol: str) -> None:
    with group(defaults, topic, protocol) as members:
        for member in members:
            member.go()
        seconds_until_settled(members, time.monotonic())
        time.sleep(10)  # calm: members send heartbeats at their long interval
        began_s = time.monotonic()
        members.pop().kill()
        moved_s = seconds_until_settled(members, began_s)
        print(
            f"\n{protocol}: moved {moved_s - SESSION_S[protocol]:+.2f} s after the session timeout"
        )
        assert moved_s <= SESSION_S[protocol] + AFTER_SESSION_S_MAX
