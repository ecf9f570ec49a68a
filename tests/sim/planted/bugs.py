"""The planted bugs that the simulator finds. Each function below patches one rule out of the production code."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from odradek_broker.cluster import membership
from odradek_broker.cluster.metadata_feed import MetadataFeed
from odradek_broker.log.producer_state import ProducerStates
from odradek_broker.partition import follower, high_watermark, leader, replica
from odradek_broker.partition.effects import Role
from odradek_broker.partition.events import IsrChangeResponded
from odradek_broker.partition.followers import FollowerProgress
from odradek_broker.partition.high_watermark import JoinWait
from odradek_broker.partition.isr import Isr
from odradek_broker.partition.leader import Leader
from odradek_broker.partition.produces import Produces
from odradek_broker.partition.replica import Replica
from odradek_broker.partition.truncation import Divergence, Lineage
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.partition import Partition
from odradek_metadata_quorum.controller import election, partitions, registration
from odradek_metadata_quorum.controller.election import Standing
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import differences
from odradek_protocol.metadata.records import NO_LEADER, RestartClass
from tests.sim.machine import WALL_BEGINS_MS
from tests.sim.planted.bug import Bug, replace_in
from tests.sim.planted.disk_bugs import DISK_BUGS
from tests.sim.planted.group_bugs import GROUP_BUGS
from tests.sim.planted.shell_bugs import SHELL_BUGS
from tests.sim.planted.workload_bugs import WORKLOAD_BUGS


def _ack_before_replication(stack: ExitStack) -> None:
    original = Leader.on_appended

    def on_appended(self: Leader, end_offset: Any, now_ms: int) -> Any:
        effects = original(self, end_offset, now_ms)
        return [*effects, *self._produces.committed(end_offset)]

    replace_in(stack, Leader, "on_appended", on_appended)


def _watermark_is_the_leaders_end(stack: ExitStack) -> None:
    def next_high_watermark(present: int, own: int, counted: Any, **_: Any) -> int:
        return max(present, own)

    replace_in(stack, leader, "next_high_watermark", next_high_watermark)


def _no_cut_by_epoch(stack: ExitStack) -> None:
    def compare(log: Any, log_end: int, last_epoch: int) -> Any:
        if log.log_start <= log_end <= log.log_end:
            return Lineage.SHARED
        return Divergence(log.last_epoch, log.log_end)

    replace_in(stack, leader, "compare", compare)


def _cut_to_the_watermark(stack: ExitStack) -> None:
    replace_in(stack, follower, "cut_offset", lambda log, divergence: log.high_watermark)


def _unclean_leader(stack: ExitStack) -> None:
    original = election._elect

    def elect(replicas: Any, isr: Any, elr: Any, lost: Any, standing_of: Any) -> Any:
        found = original(replicas, isr, elr, lost, standing_of)
        if found[0] == NO_LEADER:
            for broker in replicas:
                if standing_of(broker) >= Standing.LIVE:
                    return broker, (broker,), ()
        return found

    replace_in(stack, election, "_elect", elect)


def _isr_change_without_epochs(stack: ExitStack) -> None:
    original = partitions._refusal

    def refusal(work: Any, state: Any, broker_id: BrokerId, item: Any) -> ErrorCode:
        item = replace(item, leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch)
        return original(work, state, broker_id, item)

    replace_in(stack, partitions, "_refusal", refusal)


def _sequences_lost_at_leader_change(stack: ExitStack) -> None:
    original = Leader.begin

    def begin(self: Leader, now_ms: int) -> Any:
        producers = self._produces._producers
        assert isinstance(producers, ProducerStates)
        producers.become(ProducerStates())
        return original(self, now_ms)

    replace_in(stack, Leader, "begin", begin)


def _window_of_one(stack: ExitStack) -> None:
    original = ProducerStates.note_batch

    def note_batch(self: ProducerStates, producer_id: Any, *args: Any, **kwargs: Any) -> None:
        original(self, producer_id, *args, **kwargs)
        entry = self._entries[producer_id]
        self._entries[producer_id] = entry._replace(batches=entry.batches[-1:])

    replace_in(stack, ProducerStates, "note_batch", note_batch)


def _lease_by_wall_clock(stack: ExitStack) -> None:
    def may_respond(self: Partition, leader_epoch: Any, *, is_replicated: bool = False) -> bool:
        rules = self._rules
        return self.host.replica.may_respond(
            leader_epoch,
            lease_until_ms=rules.lease.until_ms,
            now_ms=rules.table.clock.wall_ms() - WALL_BEGINS_MS,
            is_replicated=is_replicated,
        )

    replace_in(stack, Partition, "may_respond", may_respond)


def _older_snapshot_applied(stack: ExitStack) -> None:
    async def apply(self: MetadataFeed, after: Any) -> None:
        before, self.image = self.image, after
        for delta in differences(before, after):
            await self._pass_on(after, delta)

    replace_in(stack, MetadataFeed, "_apply", apply)


def _reads_without_lease(stack: ExitStack) -> None:
    def may_respond(self: Replica, leader_epoch: int, **_: Any) -> bool:
        return self.role in (Role.LEADER, Role.FOLLOWER) and leader_epoch == self.leader_epoch

    replace_in(stack, Replica, "may_respond", may_respond)


def _power_loss_stays_in_sync(stack: ExitStack) -> None:
    original = registration._proven_class

    def proven_class(request: Any, before: Any) -> RestartClass:
        found = original(request, before)
        return RestartClass.PROCESS if found is RestartClass.POWER else found

    replace_in(stack, registration, "_proven_class", proven_class)
    replace_in(stack, membership, "wire_partitions", lambda partitions: [])


def _isr_change_without_broker_epochs(stack: ExitStack) -> None:
    original = partitions._refusal

    def refusal(work: Any, state: Any, broker_id: BrokerId, item: Any) -> ErrorCode:
        isr = tuple((m, work.image.brokers[m].broker_epoch) for m, _ in item.isr)
        return original(work, state, broker_id, replace(item, isr=isr))

    replace_in(stack, partitions, "_refusal", refusal)


def _ack_of_an_old_session(stack: ExitStack) -> None:
    def counts(self: Leader, event: Any, progress: FollowerProgress) -> bool:
        return bool(
            event.leader_epoch == self.leader_epoch
            and progress.ack_to < event.ack_to <= self._log.log_end
        )

    replace_in(stack, Leader, "_counts", counts)


def _watermark_over_the_committed_isr(stack: ExitStack) -> None:
    original = Isr.propose

    def propose(self: Isr, *args: Any, **kwargs: Any) -> Any:
        proposal = original(self, *args, **kwargs)
        self.maximal = self.committed
        return proposal

    replace_in(stack, Isr, "propose", propose)


def _watermark_under_min_isr(stack: ExitStack) -> None:
    original = high_watermark.next_high_watermark

    def next_high_watermark(present: int, own: int, counted: Any, **_: Any) -> int:
        return original(present, own, counted, is_under_min_isr=False)  # type: ignore[arg-type]

    replace_in(stack, leader, "next_high_watermark", next_high_watermark)


def _repeat_answered_at_once(stack: ExitStack) -> None:
    def repeat(self: Produces, event: Any, base_offset: Any, end_offset: Any) -> Any:
        return [self._respond(event, ErrorCode.NONE, base_offset)]

    replace_in(stack, Produces, "_repeat", repeat)


def _gate_at_arrival(stack: ExitStack) -> None:
    read, gate = LocalPartitions.fetch, Partition.gate_read

    async def fetch(self: LocalPartitions, wants: Any, **named: Any) -> Any:
        outcomes = await read(self, wants, **named)
        return [
            gate(want.partition, outcome) if isinstance(want.partition, Partition) else outcome
            for want, outcome in zip(wants, outcomes, strict=True)
        ]

    replace_in(stack, LocalPartitions, "fetch", fetch)
    replace_in(stack, Partition, "gate_read", lambda self, outcome: outcome)


def _refused_proposal_forgotten(stack: ExitStack) -> None:
    def on_isr_answered(self: Leader, event: Any, now_ms: int) -> Any:
        effects: list[Any] = []
        if self.isr.must_withdraw(event.leader_epoch, event.partition_epoch, event.error_code):
            self.isr._pending = None
            self.isr.maximal = self.isr.committed
            self._followers.count(self.isr.maximal)
            self._advance(effects)
        return effects

    handlers = {IsrChangeResponded: replica._of_leader(on_isr_answered)}
    stack.enter_context(patch.dict(replica._HANDLERS, handlers))


def _delete_answered_at_once(stack: ExitStack) -> None:
    replace_in(stack, Leader, "_low_watermark", lambda self: self._log.log_start)


def _written_counts_as_synced(stack: ExitStack) -> None:
    original = FollowerProgress.acknowledged

    def acknowledged(self: FollowerProgress, ack_to: Any, **named: Any) -> bool:
        return original(self, ack_to, **{**named, "is_synced": True})

    replace_in(stack, FollowerProgress, "acknowledged", acknowledged)


def _watermark_waits_for_nobody(stack: ExitStack) -> None:
    replace_in(stack, JoinWait, "round_ended", lambda self, round_ms, now_ms: False)


BUGS = {
    bug.number: bug
    for bug in (
        Bug(number=1, name="ack before replication", plant=_ack_before_replication),
        Bug(number=2, name="HW = leader's log end", plant=_watermark_is_the_leaders_end),
        Bug(
            number=3, name="follower does not truncate by epoch", plant=_no_cut_by_epoch, found_by=2
        ),
        Bug(
            number=4, name="follower truncates to its HW", plant=_cut_to_the_watermark, found_by=22
        ),
        Bug(number=5, name="leader elected from outside the ISR", plant=_unclean_leader),
        Bug(
            number=6,
            name="ISR change not fenced by epoch",
            plant=_isr_change_without_epochs,
            is_rare=True,
        ),
        Bug(
            number=9,
            name="producer state lost at leader change",
            plant=_sequences_lost_at_leader_change,
            found_by=1,
        ),
        Bug(
            number=10,
            name="producer state has only the last batch",
            plant=_window_of_one,
            found_by=1,
        ),
        Bug(
            number=15,
            name="lease measured by the wall clock",
            plant=_lease_by_wall_clock,
            found_by=3,
        ),
        Bug(
            number=16,
            name="old snapshot applied over newer state",
            plant=_older_snapshot_applied,
            is_rare=True,
        ),
        Bug(
            number=19,
            name="stale leader serves past its lease",
            plant=_reads_without_lease,
            found_by=3,
        ),
        Bug(
            number=22,
            name="replica stays in ISR after a power loss",
            plant=_power_loss_stays_in_sync,
            is_rare=True,
        ),
        Bug(
            number=23,
            name="AlterPartition without broker epoch",
            plant=_isr_change_without_broker_epochs,
            is_rare=True,
        ),
        Bug(
            number=24,
            name="ack counted from an old session",
            plant=_ack_of_an_old_session,
            is_rare=True,
        ),
        Bug(
            number=25,
            name="HW over the committed ISR only",
            plant=_watermark_over_the_committed_isr,
            found_by=1,
        ),
        Bug(number=26, name="HW moves under min ISR", plant=_watermark_under_min_isr),
        Bug(
            number=27,
            name="duplicate answered before HW",
            plant=_repeat_answered_at_once,
            found_by=6,
        ),
        Bug(
            number=30,
            name="lease checked when the request arrives",
            plant=_gate_at_arrival,
            is_rare=True,
        ),
        Bug(  # a bug that the simulator found in the production code
            number=31,
            name="refused ISR proposal forgotten",
            plant=_refused_proposal_forgotten,
            is_rare=True,
        ),
        Bug(
            number=35,
            name="DeleteRecords answered by the leader alone",
            plant=_delete_answered_at_once,
            is_rare=True,
        ),
        Bug(
            number=36,
            name="written counts as synced after a change of durability",
            plant=_written_counts_as_synced,
            is_rare=True,
        ),
        Bug(
            number=123,
            name="a follower joins only while producers pause",
            plant=_watermark_waits_for_nobody,
            found_by=7,
        ),
        *DISK_BUGS,
        *GROUP_BUGS,
        *SHELL_BUGS,
        *WORKLOAD_BUGS,
    )
}
