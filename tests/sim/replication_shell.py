"""The shell around a simulated broker's replicas: disk, streams to leaders, streams of followers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from odradek_broker.log.storage import StorageFailed
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events
from odradek_broker.partition.effects import Effect, Role
from odradek_broker.partition.events import FollowerSession
from odradek_broker.replication.streams.follower_links import FollowerLinks
from odradek_broker.replication.streams.follower_stream import Lane
from odradek_metadata_quorum.controller.requests import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from odradek_protocol.identity import NO_BROKER, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.sim.disk import Batch, Work
from tests.sim.follower_stream import LATE_COPY_CHANCE, SimulatedFollowerStream
from tests.sim.network import Stream
from tests.sim.scheduler import MS

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess, Hosted

BATCHES_PER_DATA_MAX = 8
BATCHES_PER_COLD_DATA_MAX = 2
BEHIND_RECORDS = 15  # lanes are changed over fewer records than in production
NEAR_RECORDS = 5
RETENTION_CHANCE = 0.004  # at each tick of a leader


class ReplicationShell:
    """Belongs to one BrokerProcess."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.scheduler = broker.scheduler
        self.network = broker.network
        self.arriving: list[Batch] = []  # what the Data in this step brings
        self.links = FollowerLinks(
            identity=None,  # type: ignore[arg-type]  # the streams know who we are
            endpoint_of=lambda _: None,
            dial=None,  # type: ignore[arg-type]  # the streams are simulated
            make_stream=partial(SimulatedFollowerStream, shell=self),  # type: ignore[arg-type]
            behind_records=BEHIND_RECORDS,
            near_records=NEAR_RECORDS,
        )
        self._watch_lanes()
        self._followers: dict[tuple[int, bool], tuple[FollowerSession, Stream]] = {}
        self._push_due = False
        self._dirty: dict[TopicIdPartition, None] = {}

    def _watch_lanes(self) -> None:
        ready = self.links._ready

        def watched(stream: Any, key: Any) -> None:
            other = Lane.HOT if stream.lane is Lane.CATCH_UP else Lane.CATCH_UP
            before = self.links._streams.get((stream.leader, other))
            if before is not None and before.has(key):
                self.scheduler.counters[f"moves to the {stream.lane.name.lower()} lane"] += 1
            ready(stream, key)

        self.links._ready = watched  # type: ignore[method-assign]

    # --- effects ---------------------------------------------------------------------------------

    def carry_out(self, hosted: Hosted, event: events.Event, effect: Effect) -> bool:
        """Do it if it is ours."""
        match effect:
            case fx.Append():
                self._append(hosted, event, effect)
            case fx.Sync():
                self._sync(hosted)
            case fx.TruncateTo():
                self._truncate(hosted, effect.end_offset)
            case fx.ResetLog():
                self._reset(hosted, effect.start_offset)
            case fx.AdvanceLogStart():
                hosted.log.advance_start(effect.log_start)
                self._mark(hosted)
            case fx.AssignEpoch():
                hosted.log.assign_epoch(effect.leader_epoch)
            case fx.SendAttached() | fx.SendDiverged() | fx.SendSnapshotless() | fx.SendRefused():
                self._to_follower(effect.session, hosted, effect)
                self._mark(hosted)
            case fx.SendAttach() | fx.SendDetach() | fx.SendAck():
                self._to_leader(effect.session_id, hosted, effect)
            case fx.ProposeIsr():
                self._propose(hosted, effect)
            case fx.HighWatermarkMoved():
                hosted.log.set_high_watermark(effect.high_watermark)
                self._mark(hosted)
            case fx.RoleChanged():
                self._role_changed(hosted, effect)
            case _:
                return False
        return True

    def _append(self, hosted: Hosted, event: events.Event, effect: fx.Append) -> None:
        broker = self.broker
        if broker.node.disk.refuses(broker.node.is_disk_broken):
            self._failed(hosted, "EIO")
            return
        try:
            if effect.request_id is not None:
                batch = broker.clients.batch_of(effect.request_id)
                hosted.log.append(batch.moved(effect.base_offset, effect.leader_epoch))
            else:
                if effect.base_offset < hosted.log.log_end:
                    hosted.log.reset(effect.base_offset)
                for batch in self.arriving:
                    hosted.log.append(batch)
        except StorageFailed as failure:
            self._failed(hosted, str(failure))
            return
        self._mark(hosted)
        broker.step(hosted, events.Appended(end_offset=hosted.log.log_end))

    def _failed(self, hosted: Hosted, reason: str) -> None:
        self.broker.step(hosted, events.StorageFailed(reason=reason))

    def _sync(self, hosted: Hosted) -> None:
        """As PartitionHost does: one at a time, and once more if it was wanted meanwhile."""
        hosted.is_sync_wanted = True
        self._begin_sync(hosted)

    def _begin_sync(self, hosted: Hosted) -> None:
        try:
            work = hosted.log.begin_sync()
        except StorageFailed as failure:
            self._failed(hosted, str(failure))
            return
        if work is not None:
            hosted.is_sync_wanted = False
            self._do(hosted, work, self.scheduler.between(300, self.broker.node.sync_max_us))
        elif hosted.log.durable_end >= hosted.log.log_end:
            hosted.is_sync_wanted = False
            self.broker.step(hosted, events.Synced(durable_end=hosted.log.durable_end))

    def _do(
        self, hosted: Hosted, work: Work, delay_us: int, done: events.Event | None = None
    ) -> None:
        """The pool runs it, and the loop hears of it later; `done` None: it was a sync."""
        self.broker.process.after(delay_us // 2, work.run)
        self.broker.process.after(delay_us, self._finish, hosted, work, done)

    def _finish(self, hosted: Hosted, work: Work, done: events.Event | None) -> None:
        node = self.broker.node
        if done is None and node.disk.refuses(node.is_disk_broken):
            self._failed(hosted, "EIO at fdatasync")
            return
        try:
            work.finish()
        except StorageFailed as failure:
            self._failed(hosted, str(failure))
            return
        if done is not None:
            self.broker.step(hosted, done)
            return
        node.disk.check_vouched(hosted.log)
        self.broker.step(hosted, events.Synced(durable_end=hosted.log.durable_end))
        if hosted.is_sync_wanted:
            self._begin_sync(hosted)

    def flush_some(self) -> None:
        """The background flush: now and then a log becomes durable up to where it was."""
        for hosted in self.broker.hosted.values():
            if self.scheduler.chance(0.02) and not self.broker.node.is_disk_broken:
                with suppress(StorageFailed):
                    work = hosted.log.begin_sync(full=True)
                    if work is not None:
                        work.run()
                        work.finish()

    def apply_retention(self) -> None:
        """Now and then a leader drops its oldest records, all below the watermark."""
        for hosted in list(self.broker.hosted.values()):
            replica = hosted.replica
            if replica.role is not Role.LEADER or self._is_compacted(hosted):
                continue
            if not self.scheduler.chance(RETENTION_CHANCE):
                continue
            start = self.scheduler.between(replica.log_start, replica.high_watermark)
            self.scheduler.counters["log starts advanced"] += start > replica.log_start
            if start % 2:
                hosted.log.advance_start(start)
                self.broker.step(hosted, events.LogStartAdvanced(log_start=start))
            else:
                self.broker.clients.delete_records(hosted, start)
            self._mark(hosted)

    def _is_compacted(self, hosted: Hosted) -> bool:
        image = self.broker.image
        topic = image.topics.get(hosted.partition.topic_id)
        return topic is not None and image.topic_config(topic.name, "cleanup.policy") == "compact"

    def _truncate(self, hosted: Hosted, end: int) -> None:
        self.scheduler.counters["truncations"] += hosted.log.log_end > end
        self.scheduler.note(f"broker {self.broker.broker_id} cuts {hosted.log.log_end} to {end}")
        self._cut(hosted, lambda: hosted.log.begin_truncate(end), events.Truncated())

    def _reset(self, hosted: Hosted, start: int) -> None:
        self.scheduler.counters["logs begun anew"] += 1
        self.scheduler.note(f"broker {self.broker.broker_id} resets its log to {start}")
        self._cut(hosted, lambda: hosted.log.begin_reset(start), events.LogReset())

    def _cut(self, hosted: Hosted, begin: Callable[[], Work], done: events.Event) -> None:
        try:
            work = begin()
        except StorageFailed as failure:
            self._failed(hosted, str(failure))
            return
        self._do(hosted, work, self.scheduler.between(200, self.broker.node.sync_max_us), done)

    # --- to leaders ------------------------------------------------------------------------------

    def _role_changed(self, hosted: Hosted, effect: fx.RoleChanged) -> None:
        if self.broker.groups is not None:
            self.broker.groups.role_changed(hosted)
        follows = effect.leader if effect.role is Role.FOLLOWER else NO_BROKER
        self.links.follow(hosted, follows)  # type: ignore[arg-type]  # a host, to them

    def removed(self, hosted: Hosted) -> None:
        """The image has this replica no longer."""
        self.links.follow(hosted, NO_BROKER)  # type: ignore[arg-type]

    def _to_leader(self, session_id: int, hosted: Hosted, effect: Effect) -> None:
        stream = self.links.stream(session_id)
        if stream is not None:
            stream.say(hosted, effect)  # type: ignore[attr-defined]

    # --- from followers --------------------------------------------------------------------------

    def accept(self, stream: Stream, session: FollowerSession) -> None:
        """A follower's stream; it ends the ones before it."""
        broker = self.broker
        lane = (session.broker_id, session.is_catch_up)
        before = self._followers.get(lane)
        if before is not None:
            self._ended(before[0])
            before[1].close(broker.process)
        self._followers[lane] = (session, stream)

        def on_message(message: tuple[TopicIdPartition, Any]) -> None:
            self._from_follower(session, *message)
            if self.scheduler.chance(LATE_COPY_CHANCE) and isinstance(message[1], fx.SendAck):
                delay = self.scheduler.between(1, 5_000) * MS
                broker.process.after(delay, self._from_follower, session, *message)

        def on_closed() -> None:
            if self._followers.get(lane, (None,))[0] == session:
                del self._followers[lane]
            self._ended(session)

        stream.on_message[1] = on_message
        stream.on_closed[1] = on_closed

    def _ended(self, session: FollowerSession) -> None:
        for hosted in list(self.broker.hosted.values()):
            self.broker.step(hosted, events.FollowerSessionClosed(session=session))

    def _from_follower(
        self, session: FollowerSession, partition: TopicIdPartition, message: Any
    ) -> None:
        hosted = self.broker.hosted.get(partition)
        event: events.Event
        match message:
            case fx.SendAttach():
                event = events.AttachReceived(
                    session=session,
                    attach_seq=message.attach_seq,
                    leader_epoch=message.leader_epoch,
                    log_end=message.log_end,
                    last_epoch=message.last_epoch,
                    log_start=message.log_start,
                )
            case fx.SendAck():
                event = events.AckReceived(
                    session=session,
                    leader_epoch=message.leader_epoch,
                    ack_to=message.ack_to,
                    is_synced=message.is_synced,
                    log_start=message.log_start,
                )
            case _:
                event = events.DetachReceived(session=session)
        if hosted is not None:
            self.broker.step(hosted, event)
        elif isinstance(message, fx.SendAttach):
            refusal = fx.SendRefused(
                session=session,
                attach_seq=message.attach_seq,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                leader_epoch=message.leader_epoch,
            )
            self._send(session, (partition, refusal))

    def _to_follower(self, session: FollowerSession, hosted: Hosted, effect: Effect) -> None:
        self._send(session, (hosted.partition, effect))

    def _send(self, session: FollowerSession, message: Any) -> None:
        found = self._followers.get((session.broker_id, session.is_catch_up))
        if found is not None and found[0] == session:
            found[1].send(self.broker.process, message)

    def _mark(self, hosted: Hosted) -> None:
        """Something may be due to its followers."""
        self._dirty[hosted.partition] = None
        if not self._push_due:
            self._push_due = True
            self.broker.process.after(self.scheduler.between(20, 400), self._push)

    def _push(self) -> None:
        self._push_due = False
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            hosted = self.broker.hosted.get(partition)
            if hosted is None or hosted.replica.role is not Role.LEADER:
                continue
            for session, stream in list(self._followers.values()):
                self._push_to(hosted, session, stream)

    def _push_to(self, hosted: Hosted, session: FollowerSession, stream: Stream) -> None:
        due = hosted.replica.data_due(session)
        if due is None:
            return
        batches_max = BATCHES_PER_COLD_DATA_MAX if session.is_catch_up else BATCHES_PER_DATA_MAX
        batches = hosted.log.read(due.from_offset, due.log_end, batches_max)
        assert bool(batches) == (due.from_offset < due.log_end), f"{due} reads {batches}"
        end = batches[-1].end if batches else due.from_offset
        stream.send(self.broker.process, (hosted.partition, (due, batches)))
        self.broker.step(
            hosted,
            events.DataSent(session=session, end_offset=end, high_watermark=due.high_watermark),
        )
        if end < due.log_end and session.is_catch_up:  # it has less credit, and reads are cold
            delay_us = self.scheduler.between(1, 20) * MS
            self.broker.process.after(delay_us, self._mark, hosted)
        elif end < due.log_end:
            self._mark(hosted)

    # --- the ISR ---------------------------------------------------------------------------------

    def _propose(self, hosted: Hosted, effect: fx.ProposeIsr) -> None:
        broker = self.broker
        request = AlterPartitionRequest(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            partitions=(
                AlterPartitionItem(
                    partition=hosted.partition,
                    leader_epoch=effect.leader_epoch,
                    partition_epoch=effect.partition_epoch,
                    isr=effect.isr,
                    recovering=effect.is_recovering,
                ),
            ),
        )

        def reply(response: AlterPartitionResponse | None) -> None:
            if broker.hosted.get(hosted.partition) is not hosted:
                return
            code = ErrorCode.NOT_CONTROLLER
            if response is not None:
                code = response.error
                if code is ErrorCode.STALE_BROKER_EPOCH:
                    broker.exit_as_stale()
                    return
                if response.partitions:
                    code = response.partitions[0].error
            broker.step(
                hosted,
                events.IsrChangeAnswered(
                    leader_epoch=effect.leader_epoch,
                    partition_epoch=effect.partition_epoch,
                    error_code=code,
                ),
            )

        broker.link.call("handle_alter_partition", request, reply)
