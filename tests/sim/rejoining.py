"""A follower that was killed returns to the ISR while producers continue to write (property P15 of README.md).

The scenario has its own topic, with two replicas and min.insync.replicas=1. Without the follower, the leader alone is
the ISR, so its high watermark is its log end, and the follower is always behind it by the round-trip time. The link
between the two brokers is so slow that the leader has always appended new records when an acknowledgement arrives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from odradek_metadata_quorum.controller.requests import NewTopic
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.metadata.records import NO_LEADER
from tests.sim.clients import Hist, Producer
from tests.sim.cluster import Cluster
from tests.sim.scheduler import MS, SECOND

PRESSED = NewTopic(
    name="pressed",
    partition_count=1,
    replication_factor=2,
    configs=(("min.insync.replicas", "1"),),
)
REJOIN_US_MAX = 20 * SECOND
PACE_US = 2 * MS
LINK_DELAY_US = 30 * MS
FIRST_CLIENT = 901  # above the ids of all other clients

RunUntil = Callable[[Callable[[], bool], int, str], None]


class Rejoining:
    """The scenario of one follower that dies and returns under load."""

    def __init__(self, cluster: Cluster, history: Hist, run_until: RunUntil) -> None:
        self._cluster = cluster
        self._history = history
        self._run_until = run_until

    def play(self, values: itertools.count[int]) -> None:
        """Run the scenario on a cluster without faults. If the follower does not return in time, P15 is violated."""
        cluster = self._cluster
        cluster.create_topics(PRESSED)
        self._run_until(lambda: len(self._isr) == 2, REJOIN_US_MAX, "the topic is not created")
        state = self._state
        follower = next(b for b in state.replicas if b != state.leader)
        links = ((state.leader, follower), (follower, state.leader))
        cluster.network.extra_delay_us.update(dict.fromkeys(links, LINK_DELAY_US))
        producers = [
            Producer(
                cluster,
                self._history,
                FIRST_CLIENT + number,
                self.partition,
                values,
                acks=acks,
                pace_us=PACE_US,
            )
            for number, acks in enumerate((1, 1, -1))
        ]
        node = cluster.brokers[follower]
        node.crash()
        # A fault from before may still end the leader's session. The dead follower is then elected.
        self._run_until(
            lambda: self._isr == (state.leader,) or self._state.leader != state.leader,
            REJOIN_US_MAX,
            "a dead follower does not leave the ISR",
        )
        is_valid = self._state.leader == state.leader
        node.start()
        self._run_until(
            lambda: len(self._isr) == 2, REJOIN_US_MAX, "a follower does not join under load"
        )
        cluster.scheduler.counters["rejoins under load"] += is_valid
        for link in links:
            del cluster.network.extra_delay_us[link]
        for producer in producers:
            producer.is_stopped = True
        self._run_until(
            lambda: not any(p.is_waiting for p in producers),
            REJOIN_US_MAX,
            "a produce request gets no response",
        )

    @property
    def partition(self) -> TopicIdPartition:
        topic = self._cluster.log.image.topic(PRESSED.name)
        assert topic is not None
        return TopicIdPartition(topic.topic_id, topic.partitions[0].partition)

    @property
    def _state(self) -> Any:
        topic = self._cluster.log.image.topic(PRESSED.name)
        return topic.partitions[0] if topic is not None and topic.partitions else None

    @property
    def _isr(self) -> tuple[int, ...]:
        state = self._state
        return state.isr if state is not None and state.leader != NO_LEADER else ()
