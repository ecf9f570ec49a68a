"""Three replicas on a network that loses, duplicates and reorders messages, one step at a time.

Hypothesis chooses each step: which message arrives next (or again, or never), which replica
receives which metadata, which one is elected, and when the disk is done. Sessions never end here,
so that late messages are as harmful as they can be. The invariants must hold after each step;
Hypothesis shrinks a failing run to a few steps.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek_broker.log.producer_state import ProducerStates
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Role
from odradek_broker.partition.log_positions import LogAtOpen
from odradek_broker.partition.replica import Replica
from odradek_broker.partition.settings import ReplicaSettings
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.partition.story import PARTITION, view

BROKERS = (1, 2, 3)
MIN_ISR = 2


class World:
    """The replicas, their logs, the messages in flight, and a controller that decides at once."""

    def __init__(self, *, is_fsync: bool) -> None:
        self.is_fsync = is_fsync
        self.now_ms = 0
        self.images: list[ev.PartitionChanged] = []
        self.logs: dict[int, list[tuple[int, int]]] = {b: [] for b in BROKERS}  # (epoch, value)
        self.replicas = {
            b: Replica(
                partition=PARTITION,
                broker_id=b,
                settings=ReplicaSettings(replica_lag_time_max_ms=50, isr_resend_ms=20),
                log=LogAtOpen(log_start=0, log_end=0, durable_end=0, high_watermark=0, epochs=()),
                producers=ProducerStates(),
                attach_seqs=itertools.count(1),
            )
            for b in BROKERS
        }
        self.learned = dict.fromkeys(BROKERS, -1)
        self.under_way: list[tuple[int, ev.Event]] = []
        self.disk: list[tuple[int, fx.Effect, int]] = []
        self.exposed: dict[int, int] = {}
        self.acked: dict[int, tuple[int, int]] = {}  # offset -> value, epoch
        self.values = itertools.count(1)
        self._arriving: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
        self._publish(1, 0, 0, BROKERS)

    # --- the controller --------------------------------------------------------------------------

    def _publish(self, leader: int, epoch: int, partition_epoch: int, isr: Any) -> None:
        image = ev.PartitionChanged(
            leader=leader,
            leader_epoch=epoch,
            partition_epoch=partition_epoch,
            replicas=BROKERS,
            isr=tuple(isr),
            elr=(),
            min_insync_replicas=MIN_ISR,
            is_recovering=False,
            brokers=tuple(view(b) for b in BROKERS),
            is_fsync=self.is_fsync,
        )
        self.images.append(image)

    def elect(self, choice: int) -> None:
        """Elect any member of the ISR, at any moment."""
        now = self.images[-1]
        leader = now.isr[choice % len(now.isr)]
        self._publish(leader, now.leader_epoch + 1, now.partition_epoch + 1, now.isr)

    def alter(self, proposal: fx.ProposeIsr) -> ErrorCode:
        now = self.images[-1]
        if proposal.leader_epoch != now.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if proposal.partition_epoch != now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        isr = tuple(b for b, _ in proposal.isr)
        if len(isr) < MIN_ISR:
            return ErrorCode.INELIGIBLE_REPLICA  # without an ELR the last two stay
        self._publish(now.leader, now.leader_epoch, now.partition_epoch + 1, isr)
        return ErrorCode.NONE

    # --- steps -----------------------------------------------------------------------------------

    def learn(self, broker: int) -> None:
        if self.learned[broker] + 1 < len(self.images):
            self.learned[broker] += 1
            self.step(broker, self.images[self.learned[broker]])

    def produce(self, broker: int) -> None:
        value = next(self.values)
        event = ev.ProduceRequested(
            request_id=value, record_count=1, acks=-1, deadline_ms=self.now_ms + 10_000
        )
        self.step(broker, event)

    def arrive(self, index: int, *, again: bool) -> None:
        if self.under_way:
            index %= len(self.under_way)
            target, event = self.under_way[index]
            if not again:
                del self.under_way[index]
            self.step(target, event)

    def lose(self, index: int) -> None:
        if self.under_way:
            del self.under_way[index % len(self.under_way)]

    def finish_disk(self, index: int) -> None:
        if not self.disk:
            return
        broker, effect, end = self.disk.pop(index % len(self.disk))
        log = self.logs[broker]
        match effect:
            case fx.TruncateTo(end_offset=cut):
                del log[cut:]
                self.step(broker, ev.Truncated())
            case fx.ResetLog():
                log.clear()
                self.step(broker, ev.LogReset())
            case _:
                self.step(broker, ev.Synced(durable_end=min(end, len(log))))

    def tick(self, broker: int) -> None:
        self.now_ms += 10
        self.step(broker, ev.Tick())

    def push(self, leader: int, follower: int) -> None:
        """Send the data that is due, at most two records."""
        session = self._session(follower)
        due = self.replicas[leader].data_due(session)
        if leader == follower or due is None:
            return
        end = min(due.log_end, due.from_offset + 2)
        records = self.logs[leader][due.from_offset : end]
        self._arriving[(leader, due.from_offset, end, due.leader_epoch)] = records
        epochs = tuple(
            (e, due.from_offset + i)
            for i, (e, _) in enumerate(records)
            if i == 0 or records[i - 1][0] != e
        )
        event = ev.DataReceived(
            session_id=leader,
            leader_epoch=due.leader_epoch,
            base_offset=due.from_offset,
            end_offset=end,
            high_watermark=due.high_watermark,
            log_start=due.log_start,
            epochs=epochs,
            is_intact=True,
        )
        self.under_way.append((follower, event))
        sent = ev.DataSent(session=session, end_offset=end, high_watermark=due.high_watermark)
        self.step(leader, sent)

    def _session(self, follower: int) -> ev.FollowerSession:
        return ev.FollowerSession(broker_id=follower, broker_epoch=100 + follower, session_id=1)

    def step(self, broker: int, event: ev.Event) -> None:
        for effect in self.replicas[broker].step(event, self.now_ms):
            self._do(broker, event, effect)
        replica = self.replicas[broker]
        assert replica.log_start <= replica.high_watermark <= replica.log_end, "I2"
        assert replica.log_end == len(self.logs[broker])

    def _do(self, broker: int, event: ev.Event, effect: fx.Effect) -> None:
        replica, log = self.replicas[broker], self.logs[broker]
        session = self._session(broker)
        match effect:
            case fx.Append(request_id=None):
                assert isinstance(event, ev.DataReceived)
                key = (event.session_id, event.base_offset, event.end_offset, event.leader_epoch)
                log.extend(self._arriving[key])
                self.step(broker, ev.Appended(end_offset=len(log)))
            case fx.Append():
                assert effect.request_id is not None
                log.append((effect.leader_epoch, effect.request_id))
                self.step(broker, ev.Appended(end_offset=len(log)))
            case fx.Sync() | fx.TruncateTo() | fx.ResetLog():
                self._disk_begins(broker, effect)
            case fx.RoleChanged(role=Role.LEADER):
                self._elected(broker, effect.leader_epoch)
            case fx.RoleChanged(role=Role.FOLLOWER):
                ready = ev.SessionReady(session_id=effect.leader, leader=effect.leader)
                self.under_way.append((broker, ready))
            case fx.HighWatermarkMoved():
                for offset in range(effect.high_watermark):
                    value = log[offset][1]
                    assert self.exposed.setdefault(offset, value) == value, "I4"
            case fx.RespondToProduce(error_code=ErrorCode.NONE):
                self.acked[effect.base_offset] = (effect.request_id, effect.leader_epoch)
            case fx.ProposeIsr():
                answer = ev.IsrChangeResponded(
                    leader_epoch=effect.leader_epoch,
                    partition_epoch=effect.partition_epoch,
                    error_code=self.alter(effect),
                )
                self.under_way.append((broker, answer))
            case fx.SendAttach():
                attach = ev.AttachReceived(
                    session=session,
                    attach_seq=effect.attach_seq,
                    leader_epoch=effect.leader_epoch,
                    log_end=effect.log_end,
                    last_epoch=effect.last_epoch,
                    log_start=effect.log_start,
                )
                self.under_way.append((replica.leader, attach))
            case fx.SendAck():
                ack = ev.AckReceived(
                    session=session,
                    leader_epoch=effect.leader_epoch,
                    ack_to=effect.ack_to,
                    is_synced=effect.is_synced,
                    log_start=effect.log_start,
                )
                self.under_way.append((effect.session_id, ack))
            case fx.SendAttached() | fx.SendDiverged() | fx.SendSnapshotless() | fx.SendRefused():
                self.under_way.append((effect.session.broker_id, _received(broker, effect)))

    def _disk_begins(self, broker: int, effect: fx.Effect) -> None:
        if isinstance(effect, fx.TruncateTo):
            assert effect.end_offset >= self.replicas[broker].high_watermark, "I9"
        self.disk.append((broker, effect, len(self.logs[broker])))

    def _elected(self, broker: int, epoch: int) -> None:
        for offset, (value, acked_in) in self.acked.items():
            if acked_in < epoch:
                log = self.logs[broker]
                assert offset < len(log), f"I5: {offset} lost"
                assert log[offset][1] == value, f"I5: {offset} is another"


def _received(leader: int, effect: Any) -> ev.Event:
    """Return a leader's message as the event that its follower gets."""
    names = {
        fx.SendAttached: ev.AttachedReceived,
        fx.SendDiverged: ev.DivergedReceived,
        fx.SendSnapshotless: ev.SnapshotlessReceived,
        fx.SendRefused: ev.RefusedReceived,
    }
    fields = {n: getattr(effect, n) for n in type(effect).__slots__ if n != "session"}
    return names[type(effect)](session_id=leader, **fields)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive"] * 10
            + ["push"] * 5
            + ["produce"] * 3
            + ["learn"] * 3
            + ["disk"] * 3
            + ["tick", "tick", "again", "again", "lose", "elect"]
        ),
        st.integers(0, 7),
        st.integers(0, 2),
    ),
    min_size=150,
    max_size=400,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.booleans())
def test_nothing_acknowledged_is_lost_and_nothing_shown_changes(
    steps: list[tuple[str, int, int]], is_fsync: bool
) -> None:
    world = World(is_fsync=is_fsync)
    for what, number, other in steps:
        broker = BROKERS[number % 3]
        match what:
            case "arrive":
                world.arrive(number, again=False)
            case "again":
                world.arrive(number, again=True)
            case "lose":
                world.lose(number)
            case "push":
                world.push(world.images[-1].leader, BROKERS[other])
            case "produce":
                world.produce(world.images[-1].leader if number else broker)
            case "learn":
                world.learn(broker)
            case "disk":
                world.finish_disk(number)
            case "tick":
                world.tick(broker)
            case "elect":
                world.elect(number)


def test_the_world_gets_something_done() -> None:
    """Without faults, records are acknowledged and visible everywhere, so the property is not empty."""
    world = World(is_fsync=True)
    for round_number in range(200):
        for broker in BROKERS:
            world.learn(broker)
        if round_number % 20 == 19:
            world.elect(round_number)
        world.produce(world.images[-1].leader)
        for _ in range(12):
            world.arrive(0, again=False)
            world.finish_disk(0)
            for follower in BROKERS:
                world.push(world.images[-1].leader, follower)
        for broker in BROKERS:
            world.tick(broker)
    assert len(world.acked) > 50
    assert len(world.exposed) > 50
