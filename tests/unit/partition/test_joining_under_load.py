"""A follower that keeps up joins the ISR while producers continue to write, and delays no producer
for long.

There is one leader, one append each `pace_ms`, and followers with a fixed round-trip time: each
append is pushed at once, and acknowledged after the round trip.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

import pytest

from odradek_broker.log.producer_state import ProducerStates
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Effect, ProposeIsr, RespondToProduce
from odradek_broker.partition.events import BrokerView, FollowerSession, PartitionChanged
from odradek_broker.partition.high_watermark import ROUND_FAST_MS, SLOW_ROUNDS_MAX
from odradek_broker.partition.log_positions import LogAtOpen
from odradek_broker.partition.replica import Replica
from odradek_broker.partition.settings import ReplicaSettings
from odradek_protocol.identity import PartitionIndex, TopicId, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode

LAG_MAX_MS = ReplicaSettings().replica_lag_time_max_ms
TICK_MS = 100
PARTITION = TopicIdPartition(TopicId(b"t" * 16), PartitionIndex(0))


@dataclass(slots=True, eq=False)
class Follower:
    """A follower whose acknowledgements take `round_trip_ms`, or do not arrive while it is
    silent.
    """

    broker_id: int
    round_trip_ms: int
    is_silent: bool = False
    under_way: deque[tuple[int, int]] = field(default_factory=deque)  # due at, end offset

    @property
    def session(self) -> FollowerSession:
        return FollowerSession(
            broker_id=self.broker_id, broker_epoch=100 + self.broker_id, session_id=1
        )


class Load:
    """A partition that broker 1 leads.

    Each turn takes `pace_ms` and has one append with acks=all.
    """

    def __init__(
        self,
        *followers: Follower,
        isr: tuple[int, ...] = (1,),
        replicas: tuple[int, ...] = (1, 2, 3),
        pace_ms: int = 1,
    ) -> None:
        self.pace_ms = pace_ms
        self.followers = {follower.broker_id: follower for follower in followers}
        self.now_ms = 0
        self.isr, self.replicas = isr, replicas
        self.proposals: list[ProposeIsr] = []
        self.latencies_ms: list[int] = []
        self.epoch = itertools.count(10)
        self._requests = itertools.count(1)
        self._made_at: dict[int, int] = {}
        self._attach_seqs = itertools.count(1)
        log = LogAtOpen(log_start=0, log_end=0, durable_end=0, high_watermark=0, epochs=())
        self.replica = Replica(
            partition=PARTITION,
            broker_id=1,
            settings=ReplicaSettings(),
            log=log,
            producers=ProducerStates(),
            attach_seqs=itertools.count(1),
        )
        self.image()
        self.run(5)  # what followers lack at the start
        for follower in followers:
            self.attach(follower)

    def image(self, *fenced: int) -> None:
        """Update the partition's metadata, with this ISR in a new partition epoch."""
        brokers = tuple(
            BrokerView(broker_id=b, broker_epoch=100 + b, is_fenced=b in fenced, in_shutdown=False)
            for b in self.replicas
        )
        self.step(
            PartitionChanged(
                leader=1,
                leader_epoch=5,
                partition_epoch=next(self.epoch),
                replicas=self.replicas,
                isr=self.isr,
                elr=(),
                min_insync_replicas=1,
                is_recovering=False,
                brokers=brokers,
            )
        )

    def attach(self, follower: Follower) -> None:
        self.step(
            ev.AttachReceived(
                session=follower.session,
                attach_seq=next(self._attach_seqs),
                leader_epoch=5,
                log_end=0,
                last_epoch=-1,
                log_start=0,
            )
        )
        follower.under_way.append((self.now_ms + follower.round_trip_ms, 0))

    def run(self, duration_ms: int) -> None:
        for _ in range(duration_ms // self.pace_ms):
            self.turn()

    def joins(self, broker_id: int, *, within_ms: int) -> int | None:
        """Run until the leader proposes to add the follower to the ISR; return after how many ms,
        or None if it takes longer than `within_ms`.
        """
        began_ms = self.now_ms
        while self.now_ms < began_ms + within_ms:
            self.turn()
            if any(broker_id in dict(p.isr) for p in self.proposals):
                return self.now_ms - began_ms
        return None

    def turn(self) -> None:
        self.now_ms += self.pace_ms
        number = next(self._requests)
        self._made_at[number] = self.now_ms
        self.step(
            ev.ProduceRequested(
                request_id=number, record_count=1, acks=-1, deadline_ms=self.now_ms + 30_000
            )
        )
        self.step(ev.Appended(end_offset=self.replica.log_end + 1))
        for follower in self.followers.values():
            due = self.replica.data_due(follower.session)
            if due is not None:
                self.step(
                    ev.DataSent(
                        session=follower.session,
                        end_offset=due.log_end,
                        high_watermark=due.high_watermark,
                    )
                )
                follower.under_way.append((self.now_ms + follower.round_trip_ms, due.log_end))
            while follower.under_way and follower.under_way[0][0] <= self.now_ms:
                _, end = follower.under_way.popleft()
                if not follower.is_silent:
                    self.step(
                        ev.AckReceived(
                            session=follower.session,
                            leader_epoch=5,
                            ack_to=end,
                            is_synced=False,
                            log_start=0,
                        )
                    )
        if self.now_ms % TICK_MS == 0:
            self.step(ev.Tick())

    def step(self, event: ev.Event) -> None:
        for effect in self.replica.step(event, self.now_ms):
            self._note(effect)

    def _note(self, effect: Effect) -> None:
        if isinstance(effect, ProposeIsr):
            self.proposals.append(effect)
        elif isinstance(effect, RespondToProduce):
            assert effect.error_code is ErrorCode.NONE, effect
            self.latencies_ms.append(self.now_ms - self._made_at.pop(effect.request_id))


def test_a_follower_some_milliseconds_behind_joins_the_leader_alone() -> None:
    load = Load(Follower(2, round_trip_ms=3), replicas=(1, 2))
    took_ms = load.joins(2, within_ms=60_000)
    assert took_ms is not None
    assert took_ms <= 20
    assert load.replica.log_end - load.replica.high_watermark <= 4


def test_a_third_replica_joins_although_its_round_trip_is_longer_than_the_isrs_slowest() -> None:
    load = Load(Follower(2, 1), Follower(3, 6), isr=(1, 2))
    took_ms = load.joins(3, within_ms=60_000)
    assert took_ms is not None
    assert took_ms <= 40
    assert max(load.latencies_ms) <= 2 * 6, "acks=all waited longer than for the newcomer"


def test_a_reassignment_completes_under_load() -> None:
    """Broker 4 is added while 2 and 3 are in sync.

    It joins the ISR, and the high watermark never falls.
    """
    load = Load(Follower(2, 1), Follower(3, 2), isr=(1, 2, 3))
    load.run(200)
    load.replicas = (1, 2, 3, 4)
    load.followers[4] = Follower(4, round_trip_ms=9)
    load.image()
    load.attach(load.followers[4])
    assert load.joins(4, within_ms=60_000) is not None
    load.isr = (1, 2, 3, 4)
    load.image()
    load.run(100)
    assert load.replica.log_end - load.replica.high_watermark <= 10


def test_both_followers_that_keep_up_join_the_leader_alone() -> None:
    load = Load(Follower(2, 3), Follower(3, 40))
    assert load.joins(2, within_ms=1_000) is not None
    load.isr = (1, 2)
    load.image()
    assert load.joins(3, within_ms=1_000) is not None


@pytest.mark.parametrize("round_trip_ms", [LAG_MAX_MS // 2 + 1, LAG_MAX_MS])
def test_a_follower_that_would_leave_the_isr_again_is_not_waited_for(round_trip_ms: int) -> None:
    load = Load(Follower(2, round_trip_ms), replicas=(1, 2), pace_ms=20)
    assert load.joins(2, within_ms=20 * LAG_MAX_MS) is None
    assert max(load.latencies_ms) == 0, "the watermark waited for a follower that is too slow"


def test_a_follower_just_fast_enough_to_stay_in_the_isr_joins_after_some_rounds() -> None:
    load = Load(Follower(2, LAG_MAX_MS // 2), replicas=(1, 2), pace_ms=20)
    took_ms = load.joins(2, within_ms=2 * SLOW_ROUNDS_MAX * LAG_MAX_MS)
    assert took_ms is not None
    assert took_ms >= SLOW_ROUNDS_MAX * LAG_MAX_MS // 2, "it may still have been catching up"
    load.isr = (1, 2)
    load.image()
    before = len(load.proposals)
    load.run(3 * LAG_MAX_MS)
    assert load.proposals[before:] == [], "what joins stays"


def test_a_follower_that_stops_when_it_is_waited_for_holds_the_watermark_for_a_bounded_time() -> (
    None
):
    load = Load(Follower(2, 3), replicas=(1, 2))
    follower = load.followers[2]
    held_ms = held_longest_ms = held_total_ms = 0
    before = load.replica.high_watermark
    for _ in range(30_000):
        follower.is_silent = load.replica.high_watermark < load.replica.log_end
        load.turn()
        is_held = load.replica.high_watermark == before
        before = load.replica.high_watermark
        held_ms = held_ms + 1 if is_held else 0
        held_longest_ms = max(held_longest_ms, held_ms)
        held_total_ms += is_held
    assert 0 < held_longest_ms <= ROUND_FAST_MS + TICK_MS
    assert held_total_ms <= 30_000 * 0.1
    assert load.proposals == []


@pytest.mark.parametrize("leaves", ["session", "fence", "detach", "new life", "attach"])
def test_the_watermark_goes_on_at_once_when_the_follower_it_waits_for_cannot_join(
    leaves: str,
) -> None:
    load = Load(Follower(2, 50), replicas=(1, 2))
    while load.replica.high_watermark == load.replica.log_end:
        load.turn()
    session = load.followers[2].session
    match leaves:
        case "session":
            load.step(ev.FollowerSessionClosed(session=session))
        case "detach":
            load.step(ev.DetachReceived(session=session))
        case "attach":
            load.attach(load.followers[2])
        case "fence":
            view = BrokerView(broker_id=2, broker_epoch=102, is_fenced=True, in_shutdown=False)
            load.step(ev.BrokerChanged(broker=view))
        case "new life":
            view = BrokerView(broker_id=2, broker_epoch=109, is_fenced=False, in_shutdown=False)
            load.step(ev.BrokerChanged(broker=view))
    assert load.replica.high_watermark == load.replica.log_end


def test_no_follower_is_waited_for_while_another_change_is_pending() -> None:
    load = Load(Follower(2, 3), Follower(3, 30))
    assert load.joins(2, within_ms=1_000) is not None
    load.followers[2].is_silent = False
    load.run(500)
    assert len(load.proposals) == 1
    assert load.replica.log_end - load.replica.high_watermark <= 4, "broker 3 held it"


def test_a_stall_of_the_leader_does_not_end_the_wait() -> None:
    load = Load(Follower(2, 50), replicas=(1, 2))
    while load.replica.high_watermark == load.replica.log_end:
        load.turn()
    load.now_ms += 5_000
    load.step(ev.LeaderStalled(stall_ms=5_000))
    load.step(ev.Tick())
    assert load.replica.high_watermark < load.replica.log_end
    assert load.joins(2, within_ms=200) is not None
