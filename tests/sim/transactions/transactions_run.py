"""One seed of transactional producers under faults: then all is healed, and every transaction is all or nothing."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from odradek_broker.log.partition_log import PartitionLog
from odradek_metadata_quorum.controller.requests import NewTopic
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.topic_names import TRANSACTIONS_TOPIC
from tests.sim.cluster import FIRST_CLIENT, Cluster
from tests.sim.history import Violation
from tests.sim.invariants import InvariantBroken
from tests.sim.machine import deterministic
from tests.sim.nemesis import Nemesis
from tests.sim.scheduler import MS, SECOND, Scheduler
from tests.sim.transactions.log_fold import differences, fold
from tests.sim.transactions.transactional_producer import (
    DATA_TOPIC,
    TIMEOUT_MS,
    Attempted,
    Fate,
    TransactionalProducer,
)

STORM_US = 20 * SECOND
SETTLED_US_MAX = 90 * SECOND
_FSYNC = (("min.insync.replicas", "2"), ("durability", "fsync"))
TOPICS = (
    NewTopic(name=DATA_TOPIC, partition_count=3, replication_factor=3, configs=_FSYNC),
    NewTopic(
        name=TRANSACTIONS_TOPIC,
        partition_count=2,
        replication_factor=3,
        configs=(*_FSYNC, ("cleanup.policy", "compact")),
    ),
)


@dataclass(slots=True)
class Outcome:
    """What a seed came to."""

    seed: int
    violations: list[Violation] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)


class TransactionsRun:
    """A cluster whose clients are transactional producers."""

    def __init__(self, seed: int, *, producers: int = 4) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.cluster = Cluster(self.scheduler, broker_count=3, deletes_records=False)
        self.history: list[Attempted] = []
        values = itertools.count(1)
        self.producers = [
            TransactionalProducer(
                self.cluster, FIRST_CLIENT + number, values, self.history, is_tv2=number % 2 == 0
            )
            for number in range(producers)
        ]

    def run(self) -> Outcome:
        """Play the seed; nothing is raised."""
        outcome = Outcome(self.seed)
        try:
            with deterministic(self.scheduler):
                self._play(outcome)
        except InvariantBroken as broken:
            outcome.violations.append(Violation(name=broken.name, text=str(broken)))
        except Exception as bug:
            text = f"{type(bug).__name__}: {bug}"
            outcome.violations.append(Violation(name="assertion", text=text))
        outcome.counters = self.scheduler.counters
        return outcome

    def _play(self, outcome: Outcome) -> None:
        try:
            self.cluster.start()
            self.cluster.create_topics(*TOPICS)
            self._run_until(self._is_whole, 20 * SECOND, "the cluster does not start")
            for producer in self.producers:
                producer.start()
            nemesis = Nemesis(self.cluster, [p.client_id for p in self.producers])
            end_us = self.scheduler.now_us + STORM_US
            while self.scheduler.now_us < end_us:
                self.scheduler.run(self.scheduler.now_us + self.scheduler.between(1, 3) * SECOND)
                self._look_at_logs()
                if self.scheduler.chance(0.4):
                    victim = self.scheduler.random.choice(self.producers)
                    victim.die()
                    victim.start()
            nemesis.heal()
            self._run_until(self._is_whole, 120 * SECOND, "an ISR is not full")
            for producer in self.producers:
                producer.is_stopped = True
            self.scheduler.run(self.scheduler.now_us + (TIMEOUT_MS + 5_000) * MS)
            for producer in self.producers:
                producer.die()
            self._run_until(
                self._is_stable, SETTLED_US_MAX, "T13: a last stable offset stands still"
            )
            outcome.violations += self._judge()
        finally:
            self.cluster.close()

    def _run_until(self, condition: Callable[[], bool], limit_us: int, what: str) -> None:
        deadline_us = self.scheduler.now_us + limit_us
        while not condition():
            if self.scheduler.now_us >= deadline_us:
                raise InvariantBroken("P15", f"{what} within {limit_us // SECOND} s")
            self.scheduler.run(self.scheduler.now_us + 100 * MS)
        self._look_at_logs()

    def _look_at_logs(self) -> None:
        """T6, T7, T12: what each broker makes of its logs is what they say."""
        for node in self.cluster.brokers.values():
            if node.life is None or not node.life.is_serving:
                continue
            storage = node.disk.storage
            # Only the broker's own work meets faults of the disk.
            fault, storage.fault = storage.fault, None
            try:
                for host in node.life.table.by_id.values():
                    is_whole = not host.is_failed and host.log.cut_limits is None
                    if is_whole and host.topic == DATA_TOPIC:
                        for text in differences(host.log):
                            raise InvariantBroken(text[: text.index(":")], text)
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
        topic = self.cluster.log.image.topic(DATA_TOPIC)
        assert topic is not None
        logs: dict[TopicIdPartition, list[PartitionLog]] = defaultdict(list)
        for state in topic.partitions:
            partition = TopicIdPartition(topic.topic_id, state.partition)
            for broker_id in state.replicas:
                life = self.cluster.brokers[broker_id].life
                host = None if life is None else life.host(partition)
                if host is not None:
                    logs[partition].append(host.log)
        return logs

    def _is_stable(self) -> bool:
        """Every replica of every partition shows all that it has to readers of committed records."""
        return all(
            len(logs) == 3
            and len({log.log_end_offset for log in logs}) == 1
            and all(log.last_stable_offset == log.log_end_offset for log in logs)
            for logs in self._logs().values()
        )

    def _judge(self) -> list[Violation]:
        violations: list[Violation] = []
        visible: dict[TopicIdPartition, Counter[int]] = {}
        for partition, logs in self._logs().items():
            shown = [fold(log).committed for log in logs]
            if any(other != shown[0] for other in shown):
                violations.append(Violation(name="T12", text=f"replicas of {partition} differ"))
            visible[partition] = Counter(shown[0])
            if any(count > 1 for count in visible[partition].values()):
                violations.append(Violation(name="duplicate", text=f"in {partition}"))
        for transaction in self.history:
            seen = [
                value in visible[partition]
                for partition, values in transaction.values.items()
                for value in values
            ]
            violations += judge(transaction, seen)
        return violations


def judge(transaction: Attempted, seen: list[bool]) -> list[Violation]:
    """Compare what became visible of a transaction with what its client knows. `seen` has one item a value."""
    text = f"{dict(transaction.values)} {transaction.fate.value}: {seen}"
    match transaction.fate:
        case Fate.COMMITTED if not all(seen):
            return [Violation(name="lost write", text=text)]
        case Fate.ABORTED | Fate.OPEN if any(seen):
            return [Violation(name="wrong commit", text=text)]
        case Fate.UNKNOWN if any(seen) and not all(seen):
            return [Violation(name="torn", text=text)]
    return []


def run_seed(seed: int) -> Outcome:
    """Run one seed."""
    return TransactionsRun(seed).run()
