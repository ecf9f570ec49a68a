"""One seed of transactional clients under faults. Then all faults are repaired, and the clients' history is checked."""

from __future__ import annotations

import gc
import itertools
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from odradek_broker.log.partition_log import PartitionLog
from odradek_metadata_quorum.controller.requests import NewTopic
from odradek_protocol.identity import TopicIdPartition, TopicPartition
from odradek_protocol.topic_names import TRANSACTIONS_TOPIC
from tests.sim.cluster import FIRST_CLIENT, Cluster
from tests.sim.history import Violation
from tests.sim.invariants import InvariantBroken
from tests.sim.machine import deterministic
from tests.sim.nemesis import Nemesis
from tests.sim.population import FIRST_MEMBER, GROUPS_TOPIC
from tests.sim.scheduler import MS, SECOND, Scheduler
from tests.sim.transactions.committed_reader import CommittedReader
from tests.sim.transactions.copier import COPIES_TOPIC, ClassicCopier, ConsumerCopier, copiers
from tests.sim.transactions.history_checker import (
    FinalRead,
    GroupPartition,
    TransactionHistory,
    check,
    interleaved,
)
from tests.sim.transactions.log_fold import differences, fold
from tests.sim.transactions.stager import Stager
from tests.sim.transactions.transaction_client import TIMEOUT_MS
from tests.sim.transactions.transaction_oracle import TransactionOracle
from tests.sim.transactions.transactional_producer import (
    DATA_TOPIC,
    Bank,
    ClientMachine,
    TransactionalProducer,
)

STORM_US: Final = 20 * SECOND
SETTLED_US_MAX: Final = 90 * SECOND
RESTARTED: Final = 0.4  # the chance that a client has a fault, about every two seconds
_FSYNC: Final = (("min.insync.replicas", "2"), ("durability", "fsync"))
TOPICS: Final = (
    NewTopic(name=DATA_TOPIC, partition_count=3, replication_factor=3, configs=_FSYNC),
    NewTopic(name=COPIES_TOPIC, partition_count=2, replication_factor=3, configs=_FSYNC),
    NewTopic(
        name=TRANSACTIONS_TOPIC,
        partition_count=2,
        replication_factor=3,
        configs=(*_FSYNC, ("cleanup.policy", "compact")),
    ),
    GROUPS_TOPIC,
)


@dataclass(slots=True)
class Outcome:
    """The result of a seed."""

    seed: int
    violations: list[Violation] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    digest: int = 0
    trace: str = ""
    story: list[str] = field(default_factory=list)

    @property
    def decided(self) -> int:
        """The number of transactions that were confirmed to their clients as committed or aborted."""
        return self.counters["transactions committed"] + self.counters["transactions aborted"]


class TransactionsRun:
    """A cluster with producers, a bank and a reader, and with copiers, a query with staged writes, or both."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.cluster = Cluster(
            self.scheduler,
            broker_count=3,
            deletes_records=False,
            make_invariants=TransactionOracle,
        )
        assert isinstance(self.cluster.invariants, TransactionOracle)
        self.oracle = self.cluster.invariants
        self.history = TransactionHistory()
        values = itertools.count(1)
        ids = itertools.count(FIRST_CLIENT)
        self.machines: list[ClientMachine] = [
            kind(self.cluster, next(ids), values, self.history, is_tv2=is_tv2)
            for kind, is_tv2 in (
                (TransactionalProducer, True),
                (TransactionalProducer, False),
                (Bank, seed % 2 == 0),
            )
        ]
        self.producers = list(self.machines)
        self.reader = CommittedReader(self.cluster, next(ids), self.history)
        self.machines.append(self.reader)
        self.stager: Stager | None = None
        if seed % 3 != 0:
            self.stager = Stager(self.cluster, next(ids), values, self.history)
            self.machines.append(self.stager)
        self.copiers: list[ClassicCopier | ConsumerCopier] = []
        if seed % 3 != 1:
            self.copiers = copiers(self.cluster, FIRST_MEMBER, values, self.history)

    def run(self) -> Outcome:
        """Run the seed. Never raises."""
        outcome = Outcome(self.seed)
        try:
            with deterministic(self.scheduler):
                self._play(outcome)
        except InvariantBroken as broken:
            outcome.violations.append(Violation(name=broken.name, text=str(broken)))
        except Exception as bug:
            text = f"{type(bug).__name__}: {bug}"
            outcome.violations.append(Violation(name="assertion", text=text))
            outcome.trace = traceback.format_exc()
        outcome.counters = self.scheduler.counters
        outcome.digest = self.scheduler.digest
        outcome.story = list(self.scheduler.recent)
        return outcome

    def _play(self, outcome: Outcome) -> None:
        try:
            self.cluster.start()
            self.cluster.create_topics(*TOPICS)
            self._run_until(self._is_whole, 20 * SECOND, "the cluster does not start")
            for machine in self.machines:
                machine.start()
            for copier in self.copiers:
                copier.start()
            clients = [client.client_id for client in (*self.machines, *self.copiers)]
            nemesis = Nemesis(self.cluster, clients)
            self._storm()
            nemesis.heal()
            self._settle()
            outcome.violations += check(self.history, self._final_reads(), self._final_offsets())
            self.scheduler.counters["interleaved (G0)"] = interleaved(
                self.history, self._final_reads()
            )
        finally:
            self.cluster.close()

    def _storm(self) -> None:
        end_us = self.scheduler.now_us + STORM_US
        while self.scheduler.now_us < end_us:
            self.scheduler.run(self.scheduler.now_us + self.scheduler.between(1, 3) * SECOND)
            self._look_at_logs()
            if self.scheduler.chance(RESTARTED):
                self._strike_machine(self.scheduler.random.choice(self.machines))
            if self.copiers and self.scheduler.chance(RESTARTED):
                self._strike_copier(self.scheduler.random.choice(self.copiers))
            if self.scheduler.chance(0.25):
                self._kill_coordinator()
            if self.scheduler.chance(0.8):
                self._delay_requests(self.scheduler.random.choice(self.producers))

    def _strike_machine(self, machine: ClientMachine) -> None:
        if self.scheduler.chance(0.2):
            machine.stall(self.scheduler.between(500 * MS, (TIMEOUT_MS + 2_000) * MS))
        elif self.scheduler.chance(0.3):
            # Start a second process while the first one still runs.
            self.scheduler.counters["two processes with one id"] += 1
            machine.start()
        else:
            machine.die()
            machine.start()

    def _strike_copier(self, copier: ClassicCopier | ConsumerCopier) -> None:
        if self.scheduler.chance(0.5):
            copier.stall(self.scheduler.between(2_000 * MS, 8_000 * MS))
        else:
            copier.die()
            copier.start()

    def _kill_coordinator(self) -> None:
        topic = self.cluster.log.image.topic(TRANSACTIONS_TOPIC)
        assert topic is not None
        leader = self.scheduler.random.choice(topic.partitions).leader
        if leader >= 0:
            self.scheduler.counters["coordinators killed"] += 1
            node = self.cluster.brokers[leader]
            node.crash()
            node.restart_later(self.scheduler.between(50 * MS, 3 * SECOND))

    def _delay_requests(self, machine: ClientMachine) -> None:
        """Delay the requests that the client sends now, so that they arrive after later ones on other connections."""
        delays = self.cluster.network.extra_delay_us
        for broker_id in self.cluster.brokers:
            delays[machine.client_id, broker_id] = self.scheduler.between(1_700, 4_000) * MS

        def end() -> None:
            for broker_id in self.cluster.brokers:
                delays.pop((machine.client_id, broker_id), None)

        self.scheduler.after(self.scheduler.between(100, 800) * MS, end)

    def _settle(self) -> None:
        """Check P15 and T13: after the last fault every transaction ends, and all records become visible."""
        self._run_until(self._is_whole, 120 * SECOND, "an ISR is not full")
        stager = self.stager
        if stager is not None:
            # The completion of a later step aborts the members that dead drivers left.
            stager.die()
            stager.start()
            step = stager.completed_step
            self._run_until(
                lambda: stager.completed_step > step, SETTLED_US_MAX, "no step is completed"
            )
        for client in (*self.machines, *self.copiers):
            client.is_stopped = True
        self.scheduler.run(self.scheduler.now_us + (TIMEOUT_MS + 5_000) * MS)
        for client in (*self.machines, *self.copiers):
            client.die()
        what = "T13: a transaction is open, or a last stable offset does not move"
        self._run_until(self._is_stable, SETTLED_US_MAX, what)

    def _run_until(self, condition: Callable[[], bool], limit_us: int, what: str) -> None:
        deadline_us = self.scheduler.now_us + limit_us
        while not condition():
            if self.scheduler.now_us >= deadline_us:
                name = "T13" if what.startswith("T13") else "P15"
                raise InvariantBroken(name, f"{what} after {limit_us // SECOND} s")
            self.scheduler.run(self.scheduler.now_us + 100 * MS)
        self._look_at_logs()

    def _look_at_logs(self) -> None:
        """Check T6, T7, T10 and T12: each broker's view of its logs agrees with their batches."""
        for node in self.cluster.brokers.values():
            if node.life is None or not node.life.is_serving:
                continue
            storage = node.disk.storage
            # The disk faults are for the broker, not for the reads of these checks.
            fault, storage.fault = storage.fault, None
            try:
                for host in node.life.table.by_id.values():
                    is_whole = not host.is_failed and host.log.cut_limits is None
                    if is_whole and host.topic in (DATA_TOPIC, COPIES_TOPIC):
                        for text in differences(host.log):
                            raise InvariantBroken(text[: text.index(":")], text)
                self.oracle.look_at_groups(node.life)
            finally:
                storage.fault = fault

    def _is_whole(self) -> bool:
        image = self.cluster.log.image
        topics = [image.topic(wanted.name) for wanted in TOPICS]
        return all(
            topic is not None
            and topic.partitions
            and all(
                len(s.isr) == 3 and s.leader >= 0 and not s.recovering for s in topic.partitions
            )
            for topic in topics
        )

    def _logs(self) -> dict[TopicIdPartition, list[PartitionLog]]:
        logs: dict[TopicIdPartition, list[PartitionLog]] = defaultdict(list)
        for name in (DATA_TOPIC, COPIES_TOPIC):
            topic = self.cluster.log.image.topic(name)
            assert topic is not None
            for state in topic.partitions:
                partition = TopicIdPartition(topic.topic_id, state.partition)
                for broker_id in state.replicas:
                    life = self.cluster.brokers[broker_id].life
                    host = None if life is None else life.host(partition)
                    if host is not None:
                        logs[partition].append(host.log)
        return logs

    def _is_stable(self) -> bool:
        """Return whether every replica of every partition shows all its records to read_committed readers."""
        return (
            all(
                len(logs) == 3
                and len({log.log_end_offset for log in logs}) == 1
                and all(log.last_stable_offset == log.log_end_offset for log in logs)
                for logs in self._logs().values()
            )
            and not self.oracle.unfinished()
            and len(self._group_shards()) == GROUPS_TOPIC.partition_count
        )

    def _final_reads(self) -> dict[TopicIdPartition, list[FinalRead]]:
        finals: dict[TopicIdPartition, list[FinalRead]] = {}
        for partition, logs in self._logs().items():
            finals[partition] = []
            for log in logs:
                folded = fold(log)
                read = FinalRead(
                    committed=folded.committed,
                    everything=folded.everything,
                    log_start=log.log_start_offset,
                    last_stable=log.last_stable_offset,
                    log_end=log.log_end_offset,
                )
                finals[partition].append(read)
        return finals

    def _group_shards(self) -> list[object]:
        return [
            shard
            for node in self.cluster.brokers.values()
            if node.life is not None and node.life.broker is not None
            for shard in node.life.broker.groups._host.active_shards()
        ]

    def _final_offsets(self) -> dict[GroupPartition, int]:
        topic = self.cluster.log.image.topic(DATA_TOPIC)
        assert topic is not None
        offsets: dict[GroupPartition, int] = {}
        for group in {copier.group_id for copier in self.copiers}:
            for state in topic.partitions:
                place = GroupPartition(group, TopicIdPartition(topic.topic_id, state.partition))
                offsets[place] = 0
                for shard in self._group_shards():
                    committed = shard.table.offsets.of(group)  # type: ignore[attr-defined]
                    found = committed.get(TopicPartition(topic.name, state.partition))
                    if found is not None:
                        offsets[place] = found.offset
        return offsets


def run_seed(seed: int) -> Outcome:
    """Run one seed without garbage collection.

    A collection ends coroutines of broker processes that have ended, which then close their connections. The moment of
    a collection depends on what the process allocated before, so the last event loop iterations of such a broker would
    differ between two processes that run the same seed.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        return TransactionsRun(seed).run()
    finally:
        if was_enabled:
            gc.enable()
