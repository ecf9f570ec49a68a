"""The invariants I1 to I13, which must be true after each event. They use state that only the simulator can see.

The simulator knows every disk, the committed metadata, and all records that were ever visible to a reader (exposed) or
acknowledged. When a partition loses more copies at once than its durability survives, it is suspended (`suspend`): then
only the checks that do not depend on the lost copies apply to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from odradek_broker.partition import effects as fx
from odradek_broker.partition.effects import Effect, Role
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.metadata.records import (
    BrokerRegistrationChange,
    Config,
    Partition,
    PartitionChange,
    RemoveTopic,
)
from tests.sim.scheduler import MS

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess, ObservedHost
    from tests.sim.cluster import Cluster
    from tests.sim.data_directory import OracleLog
    from tests.sim.metadata_log import Entry

LEASE_US_MAX = int(2_400 * MS * 1.08)  # a clock is up to 5 % slow; the rest is a margin


WATCHED = frozenset({fx.HighWatermarkMoved, fx.RoleChanged, fx.TruncateTo, fx.ResetLog})


class InvariantBroken(AssertionError):
    """An invariant was violated. `name` is its number."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Invariants:
    """The invariants of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.committed: dict[TopicIdPartition, dict[int, int]] = {}
        # For each partition: offset -> (value, leader epoch).
        self.acked: dict[TopicIdPartition, dict[int, tuple[int, int]]] = {}
        self.suspended: set[TopicIdPartition] = set()
        self._deleted: dict[TopicIdPartition, list[tuple[int, int, dict[int, int]]]] = {}
        self._leaders: dict[tuple[TopicIdPartition, int], tuple[int, bytes]] = {}
        self._hw_max: dict[TopicIdPartition, int] = {}
        self._isr: dict[TopicIdPartition, tuple[int, ...]] = {}
        cluster.log.on_committed.append(self._metadata_committed)

    def suspend(self, partition: TopicIdPartition) -> None:
        """Suspend the checks of a partition that lost more copies at once than its durability survives."""
        self.suspended.add(partition)

    def fail(self, name: str, text: str) -> NoReturn:
        """End the seed with a violation, even if production code catches the exception."""
        broken = InvariantBroken(name, text)
        self.cluster.scheduler.fail(broken)
        raise broken

    # --- effects of replicas ----------------------------------------------------------------------

    def before_effect(self, broker: BrokerProcess, host: ObservedHost, effect: Effect) -> None:
        """Check an effect whose type is in `WATCHED` before the effect is carried out."""
        match effect:
            case fx.HighWatermarkMoved():
                self._high_watermark_moves(broker, host, effect.high_watermark)
            case fx.RoleChanged(role=Role.LEADER):
                self._leader_begins(broker, host, effect.leader_epoch)
            case fx.TruncateTo():
                self._cut(broker, host, effect.end_offset)
            case fx.ResetLog():
                self._cut(broker, host, effect.start_offset)

    def after_step(self, broker: BrokerProcess, host: ObservedHost) -> None:
        """Check I2, and that the replica and its log have the same log end."""
        replica = host.replica
        if not replica.log_start <= replica.high_watermark <= replica.log_end:
            self.fail("I2", f"{replica.log_start} {replica.high_watermark} {replica.log_end}")
        if replica.log_end != host.oracle.log_end and replica.role is not Role.FAILED:
            self.fail(
                "I2",
                f"the log ends at {host.oracle.log_end}, but for the core at {replica.log_end}",
            )

    def _high_watermark_moves(
        self, broker: BrokerProcess, host: ObservedHost, moved_to: int
    ) -> None:
        """Check I2 and I4 for all replicas, and I7 for a leader."""
        partition, log = host.partition, host.oracle
        is_leader = host.replica.role is Role.LEADER
        highest = self._hw_max.get(partition, 0)
        if is_leader:
            self._hw_max[partition] = max(highest, moved_to)
        elif moved_to > highest and partition not in self.suspended:
            self.fail(
                "I2",
                f"follower {broker.broker_id} is at {moved_to}, but leaders only reached {highest}",
            )
        if partition in self.suspended:
            return
        self._expose(broker, host, moved_to)
        if is_leader:
            replica = host.replica
            is_fsync = replica._log.is_fsync
            self._all_eligible_have(
                partition, log, moved_to, replica.leader_epoch, is_fsync=is_fsync
            )

    def _expose(self, broker: BrokerProcess, host: ObservedHost, end: int) -> None:
        """Check I4: an offset that was once below a high watermark always has the same value."""
        committed = self.committed.setdefault(host.partition, {})
        start = end
        while start > 0 and start - 1 not in committed:
            start -= 1
        oracle = host.oracle
        oracle.catch_up()
        value_of = oracle.known.get
        begin = max(oracle.log_start, min(start, end - 50))
        for offset in range(begin, min(end, oracle.log_end)):
            value = value_of(offset)
            if value is not None and committed.setdefault(offset, value) != value:
                self.fail(
                    "I4",
                    f"{host.partition} offset {offset} had {committed[offset]}, "
                    f"broker {broker.broker_id} has {value}",
                )

    def _all_eligible_have(
        self,
        partition: TopicIdPartition,
        log: OracleLog,
        end: int,
        leader_epoch: int,
        *,
        is_fsync: bool = False,
    ) -> None:
        """Check I7: every broker that could now be elected cleanly has all exposed records. Check I3 for the last of
        these records.

        With `durability=fsync` the records must be on the broker's disk, after the leader has learned of that setting.
        """
        state = self.cluster.log.image.partition(partition.topic_id, partition.partition)
        if state is None or state.recovering or state.leader_epoch < leader_epoch:
            return
        for broker_id in (*state.isr, *state.elr):
            if broker_id in state.lost:
                continue
            disk = self.cluster.brokers[broker_id].disk
            if disk.lost_power or disk.has_failed or partition in disk.damage:
                continue  # the broker's next registration removes it from ISR and ELR
            end_offset = self._held(broker_id, partition, is_fsync=is_fsync)
            if end_offset < end:
                self.fail(
                    "I7",
                    f"{partition} has the high watermark {end} in epoch {leader_epoch}, but broker "
                    f"{broker_id} of ISR {state.isr} ELR {state.elr} has only {end_offset}",
                )
            other = disk.logs[partition]
            other.catch_up()
            is_there = max(log.log_start, other.log_start) < end
            values = {other.value_at(end - 1), log.value_at(end - 1)}
            if is_there and len(values - {None}) > 1:
                self.fail("I3", f"{partition} offset {end - 1} differs on broker {broker_id}")

    def _leader_begins(self, broker: BrokerProcess, host: ObservedHost, epoch: int) -> None:
        """Check I1, I5 and I12 for a new leader."""
        partition = host.partition
        self.cluster.scheduler.counters["elections"] += 1
        self.cluster.scheduler.note(f"broker {broker.broker_id} leads {host.partition.partition}")
        me = (broker.broker_id, broker.incarnation)
        if self._leaders.setdefault((partition, epoch), me) != me:
            self.fail("I1", f"two leaders of {partition} in epoch {epoch}")
        if partition in self.suspended:
            return
        host.oracle.catch_up()
        state = broker.image.partition(partition.topic_id, partition.partition)
        recovering = state is not None and state.recovering
        if recovering:
            self.cluster.scheduler.counters["recoveries of the longest log"] += 1
        for offset, (value, acked_in) in self.acked.get(partition, {}).items():
            if acked_in >= epoch:
                continue  # acknowledged by a later leader: this broker learned late that it had been elected
            if host.oracle.value_at(offset) != value and offset >= host.oracle.log_start:
                self.fail(
                    "I5",
                    f"{partition} offset {offset} was acknowledged as {value}, but the leader of epoch "
                    f"{epoch}, broker {broker.broker_id}, has {host.oracle.value_at(offset)}",
                )

        for low_watermark, answered_in, lives in self._deleted.get(partition, ()):
            knew = lives.get(broker.broker_id) == broker.node.disk.losses
            log_start = host.replica.log_start
            if knew and answered_in < epoch and not recovering and log_start < low_watermark:
                self.fail(
                    "I12",
                    f"{partition} was deleted up to {low_watermark} in epoch {answered_in}, but for "
                    f"the leader of epoch {epoch}, broker {broker.broker_id}, it begins at "
                    f"{log_start}",
                )

    def _cut(self, broker: BrokerProcess, host: ObservedHost, end: int) -> None:
        """Check I9, and that an electable replica never truncates records that any leader has exposed (KIP-101)."""
        partition, hw = host.partition, host.replica.high_watermark
        if partition in self.suspended:
            return
        if end < hw:
            self.fail(
                "I9",
                f"broker {broker.broker_id} truncates {partition} to {end}, below its high watermark {hw}",
            )
        state = self.cluster.log.image.partition(partition.topic_id, partition.partition)
        exposed = self._hw_max.get(partition, 0)
        if state is None or end >= exposed or broker.broker_id in state.lost:
            return
        if broker.broker_id in (*state.isr, *state.elr):
            self.fail(
                "I9",
                f"broker {broker.broker_id} of ISR {state.isr} ELR {state.elr} truncates {partition} "
                f"at {end}, {exposed} were exposed",
            )

    # --- responses to clients ---------------------------------------------------------------------

    def acknowledged(
        self,
        partition: TopicIdPartition,
        offset: int,
        values: tuple[int, ...],
        leader_epoch: int,
    ) -> None:
        """Record that the leader of this epoch acknowledged a request with acks=all."""
        acked = self.acked.setdefault(partition, {})
        for at, value in enumerate(values, offset):
            acked[at] = (value, leader_epoch)

    def deleted(self, partition: TopicIdPartition, low_watermark: int, leader_epoch: int) -> None:
        """Record that DeleteRecords succeeded.

        From now on the log must begin at the low watermark or later at every running broker that becomes leader (I12),
        also after a restart, unless its disk lost data, or refused to write the new log start because the disk was full
        or the process had too many open files. (Kafka writes log starts once a minute.)
        """
        lives = {
            broker_id: node.disk.losses
            for broker_id, node in self.cluster.brokers.items()
            if node.is_up and not (node.disk.storage.is_full or node.disk.storage.is_short_of_files)
        }
        answers = self._deleted.setdefault(partition, [])
        answers.append((low_watermark, leader_epoch, lives))

    def read_goes_on(
        self, broker: BrokerProcess, host: ObservedHost, offset: int, value: int
    ) -> None:
        """Check I13: a reader that names the epoch of the last record that it has read may continue only if the log
        still has that record.
        """
        host.oracle.catch_up()
        present = host.oracle.value_at(offset)
        if present is not None and present != value:
            self.fail(
                "I13",
                f"a reader of {host.partition} read {value} at {offset}, but broker {broker.broker_id}"
                f" has {present} there, and lets the reader continue",
            )

    def answer_leaves(self, broker: BrokerProcess, *, is_replicated: bool) -> None:
        """Check I10: no response that needs the lease is sent after the lease has expired, by the simulator's exact
        clock.
        """
        age_us = self.cluster.scheduler.now_us - broker.lease_sent_us
        if age_us > LEASE_US_MAX and is_replicated:
            self.cluster.scheduler.counters["responses without a lease"] += 1
        elif age_us > LEASE_US_MAX:
            self.fail(
                "I10", f"broker {broker.broker_id} responds {age_us // MS} ms after its lease began"
            )

    def coordinator_begins(self, broker: BrokerProcess, host: ObservedHost | None) -> None:
        """Check I11: a coordinator starts only after it has replayed all records of its log."""
        if host is None or host.replica.role is not Role.LEADER:
            return  # the broker has not learned yet that it no longer leads
        replica = host.replica
        if replica.high_watermark < replica.log_end:
            self.fail(
                "I11",
                f"broker {broker.broker_id} coordinates {host.partition.partition} from "
                f"{replica.high_watermark} records, but its log has {replica.log_end}",
            )

    # --- metadata ---------------------------------------------------------------------------------

    def image_moves(self, broker: BrokerProcess, offset: int, before: int) -> None:
        """Check I8: a broker's metadata never goes back to an older offset."""
        if offset < before:
            self.fail("I8", f"broker {broker.broker_id} goes from {before} back to {offset}")

    def _metadata_committed(self, offset: int, entry: Entry) -> None:
        counters = self.cluster.scheduler.counters
        for record in entry.records:
            if isinstance(record, PartitionChange):
                counters["replicas moved"] += record.replicas is not None
                if record.isr is not None:
                    self._isr_committed(record)
            elif isinstance(record, RemoveTopic):
                counters["topics deleted"] += 1
            elif isinstance(record, Config):
                counters["configs changed"] += 1
            elif isinstance(record, Partition):
                key = TopicIdPartition(record.topic_id, record.partition)
                self._isr[key] = record.isr
            elif isinstance(record, BrokerRegistrationChange) and record.fenced:
                counters["fencings"] += 1

    def _isr_committed(self, record: PartitionChange) -> None:
        """Check that each new ISR member has all exposed records, because it may be elected from now on."""
        partition = TopicIdPartition(record.topic_id, record.partition)
        before, after = self._isr.get(partition, ()), record.isr or ()
        self._isr[partition] = after
        counters = self.cluster.scheduler.counters
        counters["ISR shrinks"] += len(after) < len(before)
        counters["ISR expansions"] += len(after) > len(before)
        if partition in self.suspended or record.leader is not None:
            return
        exposed = self._hw_max.get(partition, 0)
        for broker_id in sorted({*after} - {*before}):
            disk = self.cluster.brokers[broker_id].disk
            if disk.lost_power or disk.has_failed or partition in disk.damage:
                continue  # the broker's next registration removes it again
            held = self._held(broker_id, partition, is_fsync=self._is_fsync(partition))
            if held < exposed:
                self.fail(
                    "I7",
                    f"{partition} broker {broker_id} joins the ISR with log end {held}, but {exposed} were "
                    "exposed",
                )

    def _held(self, broker_id: int, partition: TopicIdPartition, *, is_fsync: bool) -> int:
        log = self.cluster.brokers[broker_id].disk.logs.get(partition)
        if log is None:
            return 0
        return log.on_disk_end if is_fsync else log.log_end

    def _is_fsync(self, partition: TopicIdPartition) -> bool:
        image = self.cluster.log.image
        topic = image.topics.get(partition.topic_id)
        return topic is not None and image.topic_config(topic.name, "durability") == "fsync"
