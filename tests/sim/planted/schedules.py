"""Schedules for the planted bugs that random faults rarely find.

A schedule is a function that arranges certain events and checks their consequences. Without the bug it passes; with the
bug planted it must fail. `SCHEDULES` maps the number of each bug to its schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek_broker.log.log_directory import LogDirectory, RestartClass
from odradek_broker.partition.effects import Role
from odradek_broker.partition.events import AckReceived, FollowerSession
from odradek_broker.partition.replica import Replica
from odradek_protocol.identity import BrokerId, Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.hashes import crc32c
from odradek_protocol.rpc.v1.controller_service_pb2 import (
    MetadataBatch,
    MetadataBatches,
    MetadataFeedResponse,
    MetadataSnapshotChunk,
)
from tests.sim.client_shell import FetchCall, Response
from tests.sim.directed import Stage
from tests.sim.group_history import GroupHistory, check_groups
from tests.sim.invariants import LEASE_US_MAX
from tests.sim.network import Stream
from tests.sim.population import CLASSIC, Alone, Observer
from tests.sim.scheduler import SECOND, Process


def late_copy_of_an_isr_expansion() -> None:
    """Broker 3 leaves the ISR, joins it and leaves it again. Then a copy of the AlterPartition request that let broker
    3 join arrives. The controller must refuse the copy.
    """
    stage = Stage()
    stage.produce()
    stage.cut_off(3, (1, 2))
    stage.until(lambda: stage.isr == (1, 2))
    proposals = stage.keep_copies("AlterPartition")
    stage.join()
    stage.until(lambda: len(stage.isr) == 3)
    join = next(copy for copy in proposals if copy.adds(3))
    stage.cut_off(3, (1, 2))
    stage.until(lambda: stage.isr == (1, 2))
    shown = stage.hosted(1).replica.high_watermark
    stage.until(lambda: stage.hosted(1).replica.high_watermark > shown + 5)
    join.deliver()
    stage.run(1_000)
    assert stage.isr == (1, 2), "a proposal of an older partition epoch was accepted"


def expansion_that_names_a_lost_life() -> None:
    """A proposal that broker 3 joins the ISR is still in transit when that broker loses power and restarts. The
    proposal names the broker epoch from before the power loss, so the controller must refuse it.
    """
    stage = Stage()
    producer = stage.produce()
    stage.cut_off(3, (1, 2))
    stage.until(lambda: stage.isr == (1, 2))
    kept = stage.log_end(3)
    stage.until(lambda: stage.log_end(1) > kept + 10)
    stage.run(200)
    stage.cut_off(1, (101, 102, 103))  # the leader cannot reach the controllers
    stage.cluster.network.cut -= {(1, 3), (3, 1), (2, 3), (3, 2)}
    proposals = stage.keep_copies("AlterPartition")
    stage.until(lambda: any(copy.adds(3) for copy in proposals))
    producer.is_stopped = True
    stage.lose_power(3, keep=kept)
    stage.cluster.brokers[3].start()
    stage.cut_off(3, (1, 2))
    assert stage.state.leader == 1
    stage.until(lambda: stage.is_live(3) and 3 not in stage.isr, limit_ms=2_400)
    assert stage.state.leader == 1, "the schedule took too long"
    next(copy for copy in proposals if copy.adds(3)).deliver()
    stage.run(100)
    assert 3 not in stage.isr, "a proposal that names an earlier broker epoch was accepted"


def ack_of_a_lost_life() -> None:
    """An acknowledgement that broker 3 sent before it lost power reaches the leader after broker 3 has restarted and
    attached again. The acknowledgement must not count, because the records that it acknowledges are lost.
    """
    stage = Stage()
    producer = stage.produce()
    stage.until(lambda: stage.log_end(3) > 20)
    producer.is_stopped = True
    stage.run(2_000)
    end = stage.log_end(1)
    assert stage.log_end(3) == end
    session = _attached(stage)
    assert session is not None
    ack = AckReceived(
        session=session,
        leader_epoch=stage.hosted(3).replica.leader_epoch,
        ack_to=Offset(end),
        is_synced=False,
        log_start=stage.hosted(3).replica.log_start,
    )
    stage.lose_power(3, keep=end - 10)
    stage.cluster.brokers[3].start()
    stage.cluster.network.extra_delay_us[(1, 3)] = 800_000  # Data messages arrive late
    stage.until(lambda: _attached(stage) not in (None, session))
    stage.step(1, ack)
    assert stage.log_end(3) < end - 5, "the schedule took too long"
    stage.run(50)
    stage.cluster.network.extra_delay_us.clear()
    stage.until(lambda: len(stage.isr) == 3)
    assert stage.log_end(3) == end


def expansion_that_is_refused_for_now() -> None:
    """Broker 3 is fenced when the leader proposes that it joins the ISR; a copy of the proposal arrives later.

    The leader must not discard the refused proposal: the late copy would add a replica that lacks records which became
    visible in the meantime. The high watermark must not wait for that replica for ever, either.
    """
    stage = Stage()
    stage.produce()
    stage.cut_off(3, (1, 2))
    stage.until(lambda: stage.isr == (1, 2))
    stage.run(200)
    proposals = stage.keep_copies("AlterPartition")
    stage.held.add("AlterPartition")
    stage.join()
    stage.until(lambda: any(copy.adds(3) for copy in proposals))
    late = next(copy for copy in proposals if copy.adds(3))
    stage.life(3).process.stall(8 * SECOND)
    stage.cluster.network.process_stalled(stage.life(3).process, 8 * SECOND)
    stage.until(lambda: stage.cluster.log.image.brokers[BrokerId(3)].fenced)
    stage.held.clear()  # the leader proposes again, and is refused
    shown = stage.hosted(1).replica.high_watermark
    stage.until(lambda: stage.hosted(1).replica.high_watermark > shown + 5, limit_ms=4_000)
    stage.cut_off(3, (1, 2))
    stage.until(lambda: stage.is_live(3))
    late.deliver()
    stage.run(200)
    assert stage.isr == (1, 2), "a proposal that was withdrawn was accepted"


def _attached(stage: Stage) -> FollowerSession | None:
    follower = stage.leading(1)._followers.get(BrokerId(3))
    return follower.session if follower is not None else None


def cut_to_the_epochs_end() -> None:
    """Broker 2 has more records than the new leader, and a high watermark that is behind the acknowledged records
    (KIP-101). Broker 2 must truncate only the records that the new leader lacks, because broker 2 is in the ISR and may
    be elected next.
    """
    stage = Stage(replicas=(1, 3, 2))
    stage.produce()

    def first() -> Replica:
        return stage.hosted(1).replica

    def second() -> Replica:
        return stage.hosted(2).replica

    def third() -> Replica:
        return stage.hosted(3).replica

    stage.until(lambda: first().high_watermark > 10)
    stage.cluster.network.extra_delay_us[(1, 3)] = 60_000
    stage.until(
        lambda: (
            first().high_watermark > second().high_watermark
            and second().log_end > third().log_end >= first().high_watermark
        )
    )
    shown = first().high_watermark
    stage.cut_off(1, (2, 3))  # messages in transit are lost, too
    stage.cluster.brokers[1].crash()
    stage.until(lambda: third().role is Role.LEADER)
    more = second().log_end
    assert more > third().log_end
    # The new leader may send new records within a millisecond, so the log end is checked in shorter steps.
    stage.until(lambda: second().log_end < more, step_us=20)
    assert second().log_end >= shown


def min_isr_that_sinks_while_a_leader_is_cut_off() -> None:
    """A leader whose ISR is below min.insync.replicas must not advance its high watermark. Otherwise a replica in the
    ELR (KIP-966) that becomes the leader would lack visible records.
    """
    stage = Stage()
    stage.produce(acks=1)
    stage.until(lambda: stage.hosted(1).replica.high_watermark > 10)
    stage.cut_off(3, (1, 2))
    stage.until(lambda: stage.isr == (1, 2))
    stage.cluster.brokers[2].crash()
    stage.until(lambda: stage.isr == (1,))
    assert stage.state.elr == (2,)
    shown = stage.hosted(1).replica.high_watermark
    stage.run(2_000)
    assert stage.hosted(1).replica.high_watermark == shown
    assert stage.log_end(1) > shown + 5
    assert stage.hosted(1).replica.is_under_min_isr


def snapshot_of_a_controller_that_was_behind() -> None:
    """The metadata feed delivers a snapshot that is older than the metadata of the receiving broker. The broker must
    ignore the snapshot.
    """
    stage = Stage()
    producer = stage.produce()
    log, broker = stage.cluster.log, stage.life(1).broker
    assert broker is not None
    log.trim()
    old = MetadataSnapshotChunk(
        offset=log.trimmed - 1,
        controller_epoch=log.term,
        data=log.snapshot,
        is_last=True,
        crc32c=crc32c(log.snapshot),
    )
    stage.cluster.brokers[3].crash()
    stage.until(lambda: 3 not in stage.isr)
    stage.cluster.brokers[3].start()
    stage.until(lambda: len(stage.isr) == 3 and broker.feed.image.offset == log.image.offset)
    before = broker.feed.image.offset
    call: Any = broker.feed._call
    call._inbox.put(MetadataFeedResponse(snapshot=old))
    stage.run(1_000)
    assert broker.feed.image.offset >= before, "the image went back"
    producer.is_stopped = True


def feed_that_leaves_entries_out() -> None:
    """The metadata feed of a broker skips an entry. The broker must end this feed, and read the missing entry from
    another controller's feed.
    """
    stage = Stage()
    log, broker = stage.cluster.log, stage.life(1).broker
    assert broker is not None
    stage.until(lambda: broker.feed.image.offset == log.image.offset)
    missing = broker.feed.image.offset + 1
    later = MetadataBatch(offset=missing + 1, controller_epoch=log.term, payload=b"")
    call: Any = broker.feed._call
    call._inbox.put(MetadataFeedResponse(batches=MetadataBatches(batches=[later])))
    stage.run(50)
    assert broker.feed.image.offset < missing + 1, "the image lacks an entry"
    stage.set_config("retention.ms", "100000000")
    stage.until(lambda: broker.feed.image.offset == log.image.offset >= missing)


def leader_whose_heartbeats_are_answered_late() -> None:
    """The controllers' heartbeat responses take up to 3 s, and then stop. The lease of the broker must count from the
    time when it sent the heartbeats, not from the responses.
    """
    stage = Stage()
    stage.produce(acks=1)
    stage.until(lambda: stage.hosted(1).replica.high_watermark > 5)
    for controller in stage.cluster.controllers:
        stage.cluster.network.extra_delay_us[(controller, 1)] = 3 * SECOND
    stage.run(4_000)
    stage.cut_off(1, stage.cluster.controllers)
    stage.run(6_000)
    assert stage.state.leader != 1


def answer_that_was_allowed_before_a_stall() -> None:
    """The machine of a leader stalls after the records of a fetch were read and before the response is sent. The lease
    expires in this time, so the records must not be sent.
    """
    stage = Stage()
    stage.produce()
    stage.until(lambda: stage.hosted(1).replica.high_watermark > 5)
    life = stage.life(1)
    stream = Stream(stage.cluster.network, Process(stage.scheduler, 299), life.process)
    responses: list[Response] = []
    stream.on_message[0] = responses.append
    call = FetchCall(call_id=1, partition=stage.partition, offset=0, leader_epoch=-1)
    life.loop.spawn(life.clients.fetch(stream, call))
    # The records are read, but the response is not written yet.
    stage.scheduler.run(stage.scheduler.now_us + 2)
    life.process.stall(4 * SECOND)
    stage.run(6_000)
    assert ErrorCode.NONE not in [response.error_code for response in responses]
    assert stage.state.leader != 1


def power_lost_by_the_only_other_member() -> None:
    """While the ISR is below min.insync.replicas, broker 2 loses records in a power loss, so it must not be elected any
    more. If its process had only been killed, it would stay in the ELR (KIP-966) and might be elected when broker 1
    dies.
    """
    stage = Stage()
    producer = stage.produce()
    stage.cut_off(3, (1, 2))
    stage.until(lambda: stage.isr == (1, 2))
    stage.until(lambda: stage.hosted(1).replica.high_watermark > 30)
    producer.is_stopped = True
    stage.run(1_000)
    stage.lose_power(2, keep=stage.log_end(2) - 10)
    stage.cluster.network.extra_delay_us[(1, 2)] = 60_000_000  # broker 2 gets no copies
    stage.cluster.brokers[2].start()
    stage.until(lambda: stage.is_live(2))
    assert stage.isr == (1,)
    stage.cluster.brokers[1].crash()
    stage.until(lambda: stage.cluster.log.image.brokers[BrokerId(1)].fenced)
    stage.run(2_000)
    assert stage.state.leader == -1, "a replica that lost acknowledged records is the leader"
    stage.cluster.brokers[1].start()
    stage.until(lambda: stage.state.leader == 1)


def coordinator_that_is_cut_off() -> None:
    """A group coordinator's broker is cut off from all nodes except an admin client, and offset commits continue at the
    new coordinator.

    The old coordinator may answer OffsetFetch until the broker's lease expires, and must refuse it afterwards. The
    group has no members, only a client that commits offsets. If the group had members, the old coordinator would try to
    remove those that send no heartbeats. It would fail to write the removal, and would stop responding for that reason.
    """
    stage = Stage(has_groups=True)
    history = GroupHistory()
    member = Alone(stage.cluster, history, 301, CLASSIC)
    tool = Observer(stage.cluster, history, 302, CLASSIC)
    member.start()
    stage.until(lambda: member.last_commit_us > 0)
    old = stage.coordinator_of(CLASSIC)
    others = [node for node in (1, 2, 3, 101, 102, 103) if node != old]
    stage.cut_off(old, [*others, 301])
    stage.cut_off(302, [broker for broker in (1, 2, 3) if broker != old])
    stage.until(lambda: stage.coordinator_of(CLASSIC) != old)
    moved_us = stage.scheduler.now_us
    tool.start()
    stage.until(lambda: member.last_commit_us > moved_us)
    stage.run(6_000)
    assert stage.life(old).image.offset < stage.cluster.log.image.offset, (
        "the old coordinator must not know of the new one"
    )
    found = check_groups(history, observers=[tool.name], staleness_us=LEASE_US_MAX)
    for client in (member, tool):
        client.die()
    stage.close()
    assert not found, found


def coordinator_that_cannot_write() -> None:
    """The leader of the coordinator's partition loses its followers: its appends wait, then time out, and the
    coordinator loads its state again. The waiting records may be committed later, so the load must not complete without
    them.
    """
    stage = Stage(has_groups=True)
    history = GroupHistory()
    member = Alone(stage.cluster, history, 301, CLASSIC)
    tool = Observer(stage.cluster, history, 302, CLASSIC)
    member.start()
    tool.start()
    stage.until(lambda: member.last_commit_us > 0)
    leader = stage.coordinator_of(CLASSIC)
    loads = stage.scheduler.counters["coordinator loads"]
    stage.cut_off(leader, [broker for broker in (1, 2, 3) if broker != leader])
    stage.run(8_000)
    assert stage.coordinator_of(CLASSIC) == leader, "the schedule took too long"
    assert stage.scheduler.counters["coordinator loads"] == loads, (
        "the coordinator loaded less than its log contains"
    )
    joined_us = stage.scheduler.now_us
    stage.join()
    stage.until(lambda: member.last_commit_us > joined_us)
    assert stage.scheduler.counters["coordinator loads"] > loads
    for client in (member, tool):
        client.die()
    stage.close()
    found = check_groups(history, observers=[tool.name], staleness_us=LEASE_US_MAX)
    assert not found, found


def delete_whose_leader_dies_at_once() -> None:
    """The leader dies right after it has confirmed a DeleteRecords request. The records must stay deleted under the
    next leader.
    """
    stage = Stage()
    producer = stage.produce()
    stage.until(lambda: stage.log_end(1) > 50)
    producer.is_stopped = True
    stage.run(2_000)
    assert stage.state.leader == 1
    stage.cluster.network.extra_delay_us[(1, 2)] = 300_000
    answered = stage.scheduler.counters["deletes acknowledged"]
    stage.life(1).delete_records(stage.hosted(1), -1)
    stage.until(lambda: stage.scheduler.counters["deletes acknowledged"] > answered, limit_ms=2_000)
    stage.cluster.brokers[1].crash()
    stage.cluster.network.extra_delay_us.clear()
    stage.until(lambda: stage.state.leader == 2)
    stage.until(lambda: stage.hosted(2).replica.role is Role.LEADER)
    replica = stage.hosted(2).replica
    assert replica.log_start == replica.log_end


def durability_that_changes_under_load() -> None:
    """A topic changes to `durability=fsync` under load. The leader applies the change at once; its followers, whose
    disks are slow, learn of it later. From the change on, the leader may count only what a replica has synced.
    """
    stage = Stage()
    stage.produce(pace_ms=5)
    stage.until(lambda: stage.hosted(1).replica.high_watermark > 10)
    assert stage.state.leader == 1
    for broker in (2, 3):
        stage.cluster.brokers[broker].sync_max_us = 200_000
        for controller in stage.cluster.controllers:
            stage.cluster.network.extra_delay_us[(controller, broker)] = 300_000
    stage.set_config("durability", "fsync")
    stage.until(lambda: stage.hosted(1).replica._log.is_fsync, limit_ms=1_000)
    shown = stage.hosted(1).replica.high_watermark
    stage.until(lambda: stage.hosted(1).replica.high_watermark > shown + 20)
    stage.set_config("durability", "replicated")
    stage.until(lambda: not stage.hosted(1).replica._log.is_fsync, limit_ms=1_000)
    shown = stage.hosted(1).replica.high_watermark
    stage.until(lambda: stage.hosted(1).replica.high_watermark > shown + 20)


def checkpoint_while_a_log_is_cut() -> None:
    """Broker 1 writes its checkpoints when a truncation has already truncated the files, but the log object does not
    know that yet. The bytes above the truncation offset are gone, so the recovery point must not be above that offset:
    the next process would not verify those bytes.
    """
    stage = Stage()
    producer = stage.produce(acks=1)
    stage.until(lambda: stage.hosted(1).replica.high_watermark > 10)
    stage.cut_off(1, (2, 3, 101, 102, 103))
    stage.until(lambda: stage.log_end(1) > stage.log_end(2) + 10)
    producer.is_stopped = True
    life, log = stage.life(1), stage.hosted(1).log
    assert life.broker is not None
    directory = life.broker.directory
    directory.flush_total_bytes_max = 0
    stage.until(lambda: log.recovery_point == log.log_end_offset)
    _write_checkpoint(directory)
    vouched = stage.checkpointed(1)
    assert vouched == log.log_end_offset
    stage.until(lambda: stage.state.leader != 1)
    stage.cluster.brokers[1].sync_max_us = 2 * SECOND
    stage.join()
    stage.until(lambda: stage.checkpointed(1) < vouched)  # the files are truncated next
    assert log.log_end_offset == vouched, "the schedule took too long"
    _write_checkpoint(directory)
    stage.cluster.brokers[1].crash()
    stage.cluster.brokers[1].start()
    stage.until(lambda: len(stage.isr) == 3)
    assert stage.log_end(1) == stage.log_end(stage.state.leader)


def _write_checkpoint(directory: LogDirectory) -> None:
    job = directory.begin_checkpoint()
    job.run()
    directory.finish_checkpoint(job)


def disk_that_fails_and_works_again() -> None:
    """A sync on broker 3 fails, and the disk works again before the broker restarts. It is unknown which bytes the
    failed sync did not write, even if the next process can read them all. So the restart must count as a power loss.
    """
    stage = Stage(durability="fsync")
    stage.produce()
    stage.until(lambda: stage.log_end(3) > 10)
    node, table = stage.cluster.brokers[3], stage.life(3).table
    node.is_disk_broken = True
    stage.until(lambda: bool(table.offline_reason))
    node.is_disk_broken = False
    node.crash()
    node.start()
    stage.until(lambda: stage.life(3).broker is not None)
    broker = stage.life(3).broker
    assert broker is not None
    found = broker.directory.restart_class
    assert found is RestartClass.POWER, "the restart does not know of the failed sync"
    stage.until(lambda: stage.is_live(3) and len(stage.isr) == 3)


SCHEDULES: dict[int, Callable[[], None]] = {
    4: cut_to_the_epochs_end,
    6: late_copy_of_an_isr_expansion,
    16: snapshot_of_a_controller_that_was_behind,
    18: disk_that_fails_and_works_again,
    22: power_lost_by_the_only_other_member,
    23: expansion_that_names_a_lost_life,
    24: ack_of_a_lost_life,
    26: min_isr_that_sinks_while_a_leader_is_cut_off,
    30: answer_that_was_allowed_before_a_stall,
    31: expansion_that_is_refused_for_now,
    32: coordinator_that_is_cut_off,
    34: coordinator_that_cannot_write,
    35: delete_whose_leader_dies_at_once,
    36: durability_that_changes_under_load,
    71: checkpoint_while_a_log_is_cut,
    84: feed_that_leaves_entries_out,
    85: leader_whose_heartbeats_are_answered_late,
}
