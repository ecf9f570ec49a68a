"""Runs one seed: a cluster with clients and faults. Then all faults are repaired, and everything must work again."""

from __future__ import annotations

import gc
import itertools
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from odradek_metadata_quorum.controller.requests import NewTopic
from odradek_protocol.identity import TopicIdPartition
from tests.sim.admin import Admin
from tests.sim.batch_clients import COMPACTED, KeyedProducer, RuleBreaker, VariedProducer
from tests.sim.broker_process import SESSION_TIMEOUT_MS
from tests.sim.clients import Consumer, Producer
from tests.sim.cluster import CREDIT_BYTES, FIRST_CLIENT, BrokerNode, Cluster
from tests.sim.controller_node import ControllerNode
from tests.sim.data_directory import read_values
from tests.sim.group_history import GroupHistory, check_groups
from tests.sim.history import History, Violation, check
from tests.sim.invariants import LEASE_US_MAX, InvariantBroken
from tests.sim.machine import deterministic
from tests.sim.nemesis import Nemesis
from tests.sim.population import GROUPS_TOPIC, Population
from tests.sim.rejoining import PRESSED, Rejoining
from tests.sim.rolling_restart import RollingRestart
from tests.sim.scheduler import MS, SECOND, Scheduler
from tests.sim.validating_reader import ValidatingReader

STORM_US = 20 * SECOND
RECOVERY_US_MAX = 30 * SECOND  # P15: time until all partitions accept writes
SETTLED_US_MAX = 60 * SECOND  # P9, P15: time until groups are stable
FULL_ISR_US_MAX = 120 * SECOND  # P15: time until all partitions have their full ISR
START_US_MAX = 20 * SECOND
OPERATIONS_MIN = 300
# A seed creates few reference cycles, so Python searches for cycles less often than by default. The search took a tenth
# of the seed's time.
GC_THRESHOLDS = (50_000, 20, 100)
FAULTS_MIN = 8

TOPICS = (
    NewTopic(
        name="replicated",
        partition_count=2,
        replication_factor=3,
        configs=(("min.insync.replicas", "2"), ("retention.bytes", "6000")),
    ),
    NewTopic(
        name="synced",
        partition_count=1,
        replication_factor=3,
        configs=(("min.insync.replicas", "2"), ("durability", "fsync")),
    ),
)


class Extra(Enum):
    """The additions of some seeds to the workload and the faults of all seeds. Each addition is in every
    seventh seed.
    """

    NOTHING = "nothing"
    READERS = "readers that wait, and validate their positions"
    BATCHES = "all kinds of batches, a compacted topic, producer ids"
    GROUPS = "groups that are deleted, topics that brokers make"
    FULL_DISKS = "full disks, and bugs of single replicas"
    DAMAGE = "damaged logs, and logs put aside"
    ROLL = "a rolling restart"


EXTRAS = tuple(Extra)


def seeds_with(extra: Extra, *, below: int) -> range:
    """Return the seeds below a number that have this addition."""
    return range(EXTRAS.index(extra), below, len(EXTRAS))


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of one seed."""

    seed: int
    violations: list[Violation] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    faults: int = 0
    digest: int = 0
    simulated_s: float = 0.0
    story: list[str] = field(default_factory=list)
    trace: str = ""


class Simulation:
    """One run of a seed. `run` returns the result and never raises."""

    def __init__(self, seed: int, *, is_verbose: bool = False, storm_us: int = STORM_US) -> None:
        self.scheduler = Scheduler(seed)
        self.scheduler.is_verbose = is_verbose
        self.storm_us = storm_us
        self.extra = extra = EXTRAS[seed % len(EXTRAS)]
        has_groups = seed % 3 != 2 or extra is Extra.GROUPS
        self.has_rejoin = seed % 5 == 2
        self.cluster = Cluster(
            self.scheduler,
            broker_count=4 if extra is Extra.DAMAGE else 3 + seed % 2,
            has_groups=has_groups,
            credit_bytes=16 * CREDIT_BYTES if self.has_rejoin else CREDIT_BYTES,
            acks_all_without_controller=seed // 3 % 2 == 1,
            compact_interval_ms=2_000 if extra is Extra.BATCHES else 15_000,
        )
        self.topics = (*TOPICS, GROUPS_TOPIC) if has_groups else TOPICS
        if extra is Extra.BATCHES:
            self.topics = (*self.topics, COMPACTED)
        self.values = itertools.count(1)
        nodes: list[BrokerNode | ControllerNode] = [
            *self.cluster.brokers.values(),
            *self.cluster.controllers.values(),
        ]
        for node in nodes:
            node.drift = 0.95 + self.scheduler.random.random() * 0.1
        self.history: History[TopicIdPartition] = History()
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.rule_breakers: list[RuleBreaker] = []
        self.groups = GroupHistory()
        self.population: Population | None = None
        self.admin: Admin | None = None
        self.nemesis: Nemesis | None = None

    def run(self) -> Result:
        result = Result(seed=self.scheduler.seed)
        try:
            with deterministic(self.scheduler):
                self._play(result)
        except InvariantBroken as broken:
            result.violations.append(Violation(name=broken.name, text=str(broken)))
        except Exception as bug:
            text = f"{type(bug).__name__}: {bug}"
            result.violations.append(Violation(name="assertion", text=text))
            result.trace = traceback.format_exc()
        self.scheduler.counters["rebalances"] = self.groups.rebalances
        result.counters = self.scheduler.counters
        result.operations = len(self.history) + len(self.groups)
        result.faults = self.nemesis.faults if self.nemesis is not None else 0
        result.digest = self.scheduler.digest
        result.simulated_s = self.scheduler.now_us / SECOND
        result.story = list(self.scheduler.recent)
        return result

    def _play(self, result: Result) -> None:
        try:
            self._start()
            self._storm()
            self._recover()
            result.violations += self._judge()
        finally:
            self._close()

    # --- phases -----------------------------------------------------------------------------------

    def _start(self) -> None:
        self.cluster.start()
        self.cluster.create_topics(*self.topics)
        self._run_until(self._is_whole, START_US_MAX, "the cluster does not start")
        numbers = itertools.count(FIRST_CLIENT)
        producer = VariedProducer if self.extra is Extra.BATCHES else Producer
        for partition in self._partitions(TOPICS):
            for acks in (-1, -1 if self.scheduler.chance(0.6) else 1):
                self._add_producer(producer, next(numbers), partition, acks)
            self._add_consumer(Consumer, next(numbers), partition)
        if self.extra is Extra.READERS:
            for partition in self._partitions(TOPICS):
                self._add_consumer(ValidatingReader, next(numbers), partition)
        elif self.extra is Extra.BATCHES:
            self._add_clients_of_batches(numbers)
        is_of_groups = self.extra is Extra.GROUPS
        if self.cluster.has_groups:
            self.population = Population(self.cluster, self.groups, has_admin=is_of_groups)
        moved = tuple(t.name for t in self.topics)
        pace_us = 3 * SECOND
        self.admin = Admin(
            self.cluster, self.history, pace_us=pace_us, moved=moved, uses_brokers=is_of_groups
        )

    def _clients(self) -> list[Producer | Consumer | RuleBreaker]:
        return [*self.producers, *self.consumers, *self.rule_breakers]

    def _add_producer(
        self, kind: type[Producer], client_id: int, partition: TopicIdPartition, acks: int
    ) -> None:
        pace = self.scheduler.between(120, 400) * MS
        cluster, history, values = self.cluster, self.history, self.values
        self.producers.append(
            kind(cluster, history, client_id, partition, values, acks=acks, pace_us=pace)
        )

    def _add_consumer(
        self, kind: type[Consumer], client_id: int, partition: TopicIdPartition
    ) -> None:
        pace = self.scheduler.between(150, 500) * MS
        self.consumers.append(kind(self.cluster, self.history, client_id, partition, pace_us=pace))

    def _add_clients_of_batches(self, numbers: itertools.count[int]) -> None:
        for partition in self._partitions((COMPACTED,)):
            for _ in range(2):
                self._add_producer(KeyedProducer, next(numbers), partition, -1)
            self._add_consumer(Consumer, next(numbers), partition)
        for topic, is_compacted in ((TOPICS[0], False), (COMPACTED, True)):
            breaker = RuleBreaker(
                self.cluster,
                self.history,
                next(numbers),
                self._partitions((topic,))[0],
                self.values,
                pace_us=500 * MS,
                is_compacted=is_compacted,
            )
            self.rule_breakers.append(breaker)

    def _storm(self) -> None:
        clients = [client.client_id for client in self._clients()]
        if self.population is not None:
            clients += self.population.client_ids
        self.nemesis = Nemesis(
            self.cluster,
            clients,
            fills_disks=self.extra is Extra.FULL_DISKS,
            damages_disks=self.extra is Extra.DAMAGE,
        )
        self.scheduler.run(self.scheduler.now_us + self.storm_us)
        while self.nemesis.faults < FAULTS_MIN or len(self.history) < OPERATIONS_MIN:
            self.scheduler.run(self.scheduler.now_us + SECOND)
            assert self.scheduler.now_us < 10 * self.storm_us, "clients make no progress"

    def _recover(self) -> None:
        """Check P15: after the last fault everything works again within a bounded time."""
        assert self.nemesis is not None
        self.nemesis.heal()
        assert self.admin is not None
        self.admin.settle()
        if self.population is not None:
            self.population.heal()
        healed_us = self.scheduler.now_us
        self.scheduler.note("healed")
        committing = [p for p in self.producers if p.acks == -1]
        self._run_until(
            lambda: all(p.last_success_us > healed_us for p in committing),
            RECOVERY_US_MAX,
            "a partition does not accept writes",
        )
        self._run_until(self._is_whole, FULL_ISR_US_MAX, "an ISR is not full")
        if self.has_rejoin:
            Rejoining(self.cluster, self.history, self._run_until).play(self.values)
            self.topics = (*self.topics, PRESSED)
            self._run_until(self._is_whole, FULL_ISR_US_MAX, "an ISR is not full")
        if self.extra is Extra.ROLL:
            # A broker that was killed or cut off just before the faults ended may still be fenced later, and two
            # brokers would then be down. The run waits, as an operator would, until all brokers have sent
            # heartbeats again.
            self.scheduler.run(max(self.scheduler.now_us, healed_us + SESSION_TIMEOUT_MS * MS))
            self._run_until(self._is_whole, FULL_ISR_US_MAX, "an ISR is not full")
            names = tuple(topic.name for topic in TOPICS)
            RollingRestart(self.cluster, names, 2, self._run_until).play()
            self._run_until(self._is_whole, FULL_ISR_US_MAX, "an ISR is not full")
        population = self.population
        if population is not None:
            what = "a group is not stable"
            self._run_until(lambda: population.is_settled(healed_us), SETTLED_US_MAX, what)
            population.stop()
            what = "committed offsets cannot be read"
            self._run_until(lambda: population.has_read_all, RECOVERY_US_MAX, what)
            population.close()
        for client in self._clients():
            client.is_stopped = True
        self._run_until(self._is_quiet, RECOVERY_US_MAX, "replicas do not converge")

    def _run_until(self, condition: Callable[[], bool], limit_us: int, what: str) -> None:
        deadline_us = self.scheduler.now_us + limit_us
        while not condition():
            if self.scheduler.now_us >= deadline_us:
                raise InvariantBroken("P15", f"{what} within {limit_us // SECOND} s")
            self.scheduler.run(self.scheduler.now_us + 100 * MS)

    def _close(self) -> None:
        if self.population is not None:
            self.population.close()
        self.cluster.close()

    def _partitions(self, of: tuple[NewTopic, ...] | None = None) -> list[TopicIdPartition]:
        image = self.cluster.log.image
        names = [t.name for t in self.topics if of is None or t in of]
        topics = [t for name in names if (t := image.topic(name)) is not None]
        return [TopicIdPartition(t.topic_id, s.partition) for t in topics for s in t.partitions]

    def _is_whole(self) -> bool:
        image = self.cluster.log.image
        states = [
            (wanted.replication_factor, state)
            for wanted in self.topics
            if (topic := image.topic(wanted.name)) is not None
            for state in topic.partitions
        ]
        return bool(states) and all(
            len(state.isr) == len(state.replicas) == replication_factor
            and state.leader >= 0
            and not state.recovering
            for replication_factor, state in states
        )

    def _is_quiet(self) -> bool:
        """Return whether no producer waits for a response, all replicas of a partition have the same log end and high
        watermark, and all images are up to date.
        """
        for partition in self._partitions():
            ends = set()
            for node in self._replicas(partition):
                hosted = node.life.host(partition) if node.life is not None else None
                if hosted is None or hosted.replica.high_watermark != hosted.replica.log_end:
                    return False
                ends.add(hosted.replica.log_end)
            if len(ends) > 1:
                return False
        nodes = self.cluster.brokers.values()
        behind = any(n.life and n.life.image.offset < self.cluster.log.image.offset for n in nodes)
        return not behind and not any(p._window for p in self.producers)

    def _replicas(self, partition: TopicIdPartition) -> list[BrokerNode]:
        state = self.cluster.log.image.partition(partition.topic_id, partition.partition)
        assert state is not None, partition
        return [self.cluster.brokers[broker_id] for broker_id in state.replicas]

    def _judge(self) -> list[Violation]:
        final: dict[TopicIdPartition, dict[int, dict[int, int]]] = {}
        starts: dict[TopicIdPartition, int] = {}
        for partition in self._partitions():
            for node in self._replicas(partition):
                assert node.life is not None
                host = node.life.host(partition)
                assert host is not None
                shown = final.setdefault(partition, {}).setdefault(node.broker_id, {})
                end, log = host.replica.high_watermark, host.log
                starts[partition] = max(starts.get(partition, 0), log.log_start_offset)
                shown.update(read_values(log, log.log_start_offset, end))
        topics = {
            broker_id: [t.name for t in node.life.image.topics.values()]
            for broker_id, node in self.cluster.brokers.items()
            if node.life is not None
        }
        found = check(
            self.history,
            final,
            ignored=self.cluster.invariants.suspended,
            topics_by_node=topics,
            log_starts=starts,
        )
        if self.population is not None:
            found += check_groups(
                self.groups,
                observers=[o.name for o in self.population.observers],
                staleness_us=LEASE_US_MAX,
                ignored=self.population.suspended_groups(),
            )
        return found


def run_seed(seed: int, *, is_verbose: bool = False) -> Result:
    """Run one seed from its start to the final checks."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        return Simulation(seed, is_verbose=is_verbose).run()
    finally:
        gc.set_threshold(*thresholds)
