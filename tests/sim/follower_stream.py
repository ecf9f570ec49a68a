"""A follower's end of one stream to one leader, in one lane: what FollowerStream is in production.

Which partition follows in which stream, and when it changes lanes, the production's FollowerLinks
decides; this is what it opens. Here is the stream's side of it: it tells its partitions when they
may attach, hands them what comes, gathers what they say, and is opened again when it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from odradek_broker.partition import effects as fx
from odradek_broker.partition import events
from odradek_broker.partition.effects import Effect
from odradek_broker.partition.events import FollowerSession
from odradek_broker.replication.streams.follower_stream import HostKey, Lane, host_key
from odradek_protocol.identity import BrokerId, TopicIdPartition
from tests.sim.disk import Batch
from tests.sim.network import Stream
from tests.sim.scheduler import MS

if TYPE_CHECKING:
    from tests.sim.broker_process import Hosted
    from tests.sim.replication_shell import ReplicationShell

LATE_COPY_CHANCE = 0.02  # of a message that arrives again when its session is long over
LINGER_US = 100 * MS


class SimulatedFollowerStream:
    """The parameters are those of FollowerStream, and the shell that it belongs to."""

    def __init__(
        self,
        leader: BrokerId,
        lane: Lane,
        *,
        shell: ReplicationShell,
        session_ids: Any,
        by_session: dict[int, SimulatedFollowerStream],
        on_distance: Callable[[Any, Any, int], None],
        on_ready: Callable[[Any, HostKey], None],
        **_: Any,
    ) -> None:
        self.leader = leader
        self.lane = lane
        self._shell = shell
        self._broker = shell.broker
        self._scheduler = shell.scheduler
        self._session_ids = session_ids
        self._by_session = by_session
        self._on_distance = on_distance
        self._on_ready = on_ready
        self._hosts: dict[HostKey, Hosted] = {}
        self._session_id = 0  # 0: no stream
        self._stream: Stream | None = None
        self._attempt = 0
        self._is_over = False
        self._outbox: dict[tuple[type[Effect], HostKey], tuple[Hosted, Effect]] = {}
        self._try_after(self._scheduler.between(0, 2 * MS))

    # --- what FollowerLinks asks -----------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self._hosts

    def add(self, key: HostKey, hosted: Hosted) -> None:
        self._hosts[key] = hosted
        if self._session_id:
            self._broker.process.after(1, self._tell_ready, key, self._session_id)

    def remove(self, key: HostKey) -> None:
        hosted = self._hosts.get(key)
        self.give_up(key)
        if hosted is not None and self._session_id:
            self.say(hosted, fx.SendDetach(session_id=self._session_id))

    def give_up(self, key: HostKey) -> None:
        self._hosts.pop(key, None)
        self._outbox.pop((fx.SendAttach, key), None)
        self._outbox.pop((fx.SendAck, key), None)

    def kick(self) -> None:
        if self._stream is None and not self._is_over:
            self._try_after(1)

    def has(self, key: HostKey) -> bool:
        return key in self._hosts

    def end(self) -> None:
        self._is_over = True
        self._broker.process.after(LINGER_US, self._close)

    # --- from partitions -------------------------------------------------------------------------

    def say(self, hosted: Hosted, effect: Effect) -> None:
        """Goes with the next messages; of each kind the latest."""
        if not self._outbox:
            self._broker.process.after(self._scheduler.between(10, 300), self._flush)
        self._outbox[type(effect), host_key(hosted)] = (hosted, effect)  # type: ignore[arg-type]

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, {}
        if self._stream is None:
            return
        for kind in (fx.SendDetach, fx.SendAttach, fx.SendAck):
            for (said, _), (hosted, effect) in outbox.items():
                if said is kind:
                    self._stream.send(self._broker.process, (hosted.partition, effect))

    # --- the stream ------------------------------------------------------------------------------

    def _try_after(self, delay_us: int) -> None:
        self._attempt += 1
        self._broker.process.after(delay_us, self._connect, self._attempt)

    def _connect(self, attempt: int) -> None:
        if attempt != self._attempt or self._is_over:
            return
        broker, network = self._broker, self._shell.network
        node = broker.cluster.brokers.get(self.leader)
        target = node.life if node is not None else None
        if (
            target is None
            or not target.process.is_running
            or not network.both_ways(broker.broker_id, self.leader)
        ):
            self._try_after(self._scheduler.between(50, 500) * MS)
            return
        session_id = next(self._session_ids)
        stream = Stream(network, broker.process, target.process)
        stream.on_message[0] = lambda message: self._arrived(session_id, *message)
        stream.on_closed[0] = lambda: self._closed(session_id)
        self._stream, self._session_id = stream, session_id
        self._by_session[session_id] = self
        self._outbox.clear()
        target.replication.accept(
            stream,
            FollowerSession(
                broker_id=broker.broker_id,
                broker_epoch=broker.broker_epoch,
                session_id=session_id,
                is_catch_up=self.lane is Lane.CATCH_UP,
            ),
        )
        for key in list(self._hosts):
            self._tell_ready(key, session_id)

    def _tell_ready(self, key: HostKey, session_id: int) -> None:
        hosted = self._hosts.get(key)
        if hosted is not None and session_id == self._session_id:
            event = events.SessionReady(session_id=session_id, leader=self.leader)
            self._broker.step(hosted, event)
            self._on_ready(self, key)

    def _closed(self, session_id: int) -> None:
        if self._by_session.pop(session_id, None) is None:
            return
        self._stream, self._session_id = None, 0
        for hosted in list(self._hosts.values()):
            self._broker.step(hosted, events.LeaderSessionClosed(session_id=session_id))
        if not self._is_over:
            self._try_after(self._scheduler.between(50, 500) * MS)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close(self._broker.process)
            self._closed(self._session_id)

    def _arrived(self, session_id: int, partition: TopicIdPartition, message: Any) -> None:
        hosted = self._hosts.get((partition.topic_id, partition.partition))
        if hosted is not None:
            self._deliver(session_id, hosted, message)
            self._judge(hosted, message)
        if self._scheduler.chance(LATE_COPY_CHANCE):
            delay_us = self._scheduler.between(1, 5_000) * MS
            self._broker.process.after(delay_us, self._again, session_id, partition, message)

    def _again(self, session_id: int, partition: TopicIdPartition, message: Any) -> None:
        hosted = self._broker.hosted.get(partition)
        if hosted is not None:
            self._deliver(session_id, hosted, message)

    def _judge(self, hosted: Hosted, message: Any) -> None:
        """As FollowerStream does: where the other lane may be wanted, tell how far behind it is."""
        if isinstance(message, fx.SendAttached):
            distance = message.high_watermark - hosted.replica.log_end
        elif isinstance(message, tuple) and self.lane is Lane.CATCH_UP:
            distance = message[0].high_watermark - hosted.replica.log_end
        else:
            return
        self._on_distance(self, hosted, distance)

    def _deliver(self, session_id: int, hosted: Hosted, message: Any) -> None:
        self._broker.step(hosted, self._event(session_id, message))

    def _event(self, session_id: int, message: Any) -> events.Event:
        if type(message) in _HEARD_AS:
            kind, names = _HEARD_AS[type(message)]
            return kind(session_id=session_id, **{name: getattr(message, name) for name in names})
        due, batches = message
        self._shell.arriving = batches
        return events.DataReceived(
            session_id=session_id,
            leader_epoch=due.leader_epoch,
            base_offset=due.from_offset,
            end_offset=batches[-1].end if batches else due.from_offset,
            high_watermark=due.high_watermark,
            log_start=due.log_start,
            epochs=_epochs(batches),
            is_intact=not self._scheduler.chance(0.001),
        )


def _epochs(batches: list[Batch]) -> tuple[tuple[Any, Any], ...]:
    found: list[tuple[int, int]] = []
    for batch in batches:
        if not found or found[-1][0] != batch.epoch:
            found.append((batch.epoch, batch.base))
    return tuple(found)


def _told(sent: type[Any], heard: type[Any]) -> tuple[type[Any], tuple[type[Any], list[str]]]:
    """All that a leader sends of an answer but the session, which each end names in its own way."""
    return sent, (heard, [field.name for field in fields(sent) if field.name != "session"])


_HEARD_AS = dict(
    (
        _told(fx.SendAttached, events.AttachedReceived),
        _told(fx.SendDiverged, events.DivergedReceived),
        _told(fx.SendSnapshotless, events.SnapshotlessReceived),
        _told(fx.SendRefused, events.RefusedReceived),
    )
)
