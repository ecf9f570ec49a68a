"""Producers with a transactional id. They are killed and restarted, and sometimes two processes have the same id."""

from __future__ import annotations

import itertools
from typing import Final

from odradek_broker.transactions.transaction import TransactionPartition
from tests.sim.classic_member import TOPICS
from tests.sim.cluster import Cluster
from tests.sim.scheduler import Process, Scheduler
from tests.sim.simulated_loop import SimulatedLoop
from tests.sim.transactions.history_checker import Transaction, TransactionHistory
from tests.sim.transactions.transaction_client import (
    TIMEOUT_MS,
    Abortable,
    Caller,
    Fatal,
    ProducerProcess,
)

DATA_TOPIC: Final = TOPICS[1]
"""The members of the groups that copy this topic subscribe to it by this name."""


def partitions_of(cluster: Cluster, topic_name: str) -> list[TransactionPartition]:
    """Return the partitions of a topic in the form in which transactions register them."""
    topic = cluster.log.image.topic(topic_name)
    assert topic is not None
    return [
        TransactionPartition(topic.topic_id, topic.name, state.partition)
        for state in topic.partitions
    ]


class ClientMachine:
    """A machine whose client process is killed and started again. `_run` is the program of the process."""

    def __init__(self, cluster: Cluster, client_id: int) -> None:
        self.cluster = cluster
        self.scheduler: Scheduler = cluster.scheduler
        self.client_id = client_id
        self.is_stopped = False
        self.lives = 0
        self._running: list[tuple[Process, SimulatedLoop]] = []

    def start(self) -> None:
        """Start a process without any state. An older process that was not killed continues to run."""
        self.lives += 1
        process = Process(self.scheduler, self.client_id)
        loop = SimulatedLoop.of(process)
        self._running.append((process, loop))
        caller = Caller(self.cluster, process, loop, self.client_id)
        loop.spawn(self._run(caller, f"{self.client_id}.{self.lives}"))

    def die(self) -> None:
        """Kill all processes (kill -9)."""
        running, self._running = self._running, []
        for process, loop in running:
            process.kill()
            self.cluster.network.process_ended(process)
            loop.close()

    def stall(self, duration_us: int) -> None:
        """Stop all processes, as SIGSTOP does, and continue them after the duration."""
        for process, _ in self._running:
            process.stall(duration_us)
            self.cluster.network.process_stalled(process, duration_us)

    async def _run(self, caller: Caller, name: str) -> None:
        raise NotImplementedError


class TransactionalProducer(ClientMachine):
    """Writes to some partitions of the data topic in each transaction."""

    def __init__(
        self,
        cluster: Cluster,
        client_id: int,
        values: itertools.count[int],
        history: TransactionHistory,
        *,
        is_tv2: bool,
    ) -> None:
        super().__init__(cluster, client_id)
        self.is_tv2 = is_tv2
        self._values = values
        self._history = history

    async def _run(self, caller: Caller, name: str) -> None:
        producer = ProducerProcess(
            caller,
            f"tx-{self.client_id}",
            name,
            self._history,
            self._values,
            is_tv2=self.is_tv2,
        )
        while not self.is_stopped:
            try:
                if producer.identity is None:
                    await producer.init()
                await self._transact(producer)
            except (Fatal, Abortable):
                self.scheduler.counters["producers that began again"] += 1
                producer.identity = None
            await caller.pause(20, 160)

    async def _transact(self, producer: ProducerProcess) -> None:
        transaction = producer.begin()
        try:
            await self._write(producer, transaction)
            wants_commit = not self.scheduler.chance(0.25)
        except Abortable:
            wants_commit = False
        if self.scheduler.chance(0.03):
            await producer.caller.pause(TIMEOUT_MS - 500, TIMEOUT_MS + 2_500)
        if transaction.values:
            await producer.end(transaction, is_commit=wants_commit)

    async def _write(self, producer: ProducerProcess, transaction: Transaction) -> None:
        partitions = partitions_of(self.cluster, DATA_TOPIC)
        chosen = self.scheduler.random.sample(partitions, self.scheduler.between(1, 3))
        for partition in chosen:
            for _ in range(self.scheduler.between(1, 3)):
                await producer.write(transaction, partition)


class Bank(TransactionalProducer):
    """Moves amounts between two partitions: each transaction subtracts an amount from one partition and adds it to the
    other.
    """

    async def _write(self, producer: ProducerProcess, transaction: Transaction) -> None:
        partitions = partitions_of(self.cluster, DATA_TOPIC)
        payer, payee = self.scheduler.random.sample(partitions, 2)
        amount = self.scheduler.between(1, 100)
        self._history.amounts[await producer.write(transaction, payer)] = -amount
        self._history.amounts[await producer.write(transaction, payee)] = amount
