"""A simulated Spark query with staged writes: each step has several tasks, whose rows become visible together or not at
all.

The driver of a step runs its tasks, some of them twice (speculation), and completes the step with one attempt of each
task. The driver may die between any two requests. After its restart it begins with the first step that it does not know
to be complete, and divides the rows among the tasks in another way. Sometimes two drivers run for one query.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from odradek_broker.transactions.messages import (
    AbortStaged,
    CompleteStep,
    MembersChecked,
    Opened,
    OpenStaged,
    Prepared,
    PrepareStaged,
    SlotIdentity,
    StepCompleted,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.sim.cluster import Cluster
from tests.sim.transactions.copier import COPIES_TOPIC
from tests.sim.transactions.history_checker import Fate, Transaction, TransactionHistory
from tests.sim.transactions.transaction_client import (
    FATAL,
    Abortable,
    Caller,
    Fatal,
    ProducerProcess,
)
from tests.sim.transactions.transactional_producer import ClientMachine, partitions_of

ROWS: Final = 4  # rows of one step


class StepRefused(Exception):
    """The step cannot be completed with these attempts, so it must be written again."""


class Stager(ClientMachine):
    """The driver of one query, and the tasks that it runs."""

    def __init__(
        self,
        cluster: Cluster,
        client_id: int,
        values: itertools.count[int],
        history: TransactionHistory,
    ) -> None:
        super().__init__(cluster, client_id)
        self.query = f"query-{client_id}"
        self.completed_step = -1
        """The last step that the driver knows to be complete. A new process of the driver still knows it."""
        self._values = values
        self._history = history

    async def _run(self, caller: Caller, name: str) -> None:
        attempts = itertools.count(1)
        is_complete = True
        # A driver completes its step before it stops, because only a completion aborts the prepared members of a failed
        # attempt.
        while not (self.is_stopped and is_complete):
            step = self.completed_step + 1
            try:
                await self._run_step(caller, name, step, attempts)
                self.completed_step = max(self.completed_step, step)
                is_complete = True
            except (StepRefused, Fatal, Abortable):
                self.scheduler.counters["steps written again"] += 1
                is_complete = False
            await caller.pause(20, 300)

    async def _run_step(
        self, caller: Caller, name: str, step: int, attempts: itertools.count[int]
    ) -> None:
        rows = [f"{self.query}/{step}/{number}" for number in range(ROWS)]
        task_count = self.scheduler.between(1, 3)
        members: list[tuple[SlotIdentity, Transaction]] = []
        for task in range(task_count):
            share = rows[task::task_count]
            is_twice = self.scheduler.chance(0.2)
            results = [
                await self._run_task(caller, f"{name}.{next(attempts)}", step, share)
                for _ in range(1 + is_twice)
            ]
            prepared = [result for result in results if result is not None]
            if len(prepared) < len(results):
                break  # the step is already complete
            members.append(self.scheduler.random.choice(prepared))
        else:
            await self._complete(caller, step, members)
            return
        await self._complete(caller, step, [])

    async def _run_task(
        self, caller: Caller, member: str, step: int, rows: list[str]
    ) -> tuple[SlotIdentity, Transaction] | None:
        """Write the rows and prepare the transaction. Return None if the step is already complete."""
        request = OpenStaged(query=self.query, step=step, member=member)
        producer = ProducerProcess(
            caller, self.query, member, self._history, self._values, is_tv2=True
        )
        while True:
            opened = await caller.ask(producer.coordinator, request)
            if isinstance(opened, Opened):
                if opened.is_completed:
                    return None
                if opened.error is ErrorCode.INVALID_TXN_STATE:
                    raise StepRefused(opened.error_message)
                if opened.slot is not None:
                    break
            await caller.pause(20, 100)
        slot = opened.slot
        producer.transactional_id = slot.transactional_id
        producer.use(slot.identity)
        transaction = producer.begin()
        transaction.group = self.query
        for row in rows:
            target = self.scheduler.random.choice(partitions_of(self.cluster, COPIES_TOPIC))
            transaction.copies[await producer.write(transaction, target)] = row
        if self.scheduler.chance(0.05):
            await self._abandon(caller, producer, slot)
            raise StepRefused("the task failed")
        while True:
            prepared = await caller.ask(producer.coordinator, PrepareStaged(member=slot))
            if isinstance(prepared, Prepared):
                if prepared.error is ErrorCode.NONE:
                    return slot, transaction
                if prepared.error in FATAL or prepared.error is ErrorCode.TRANSACTION_ABORTABLE:
                    raise StepRefused(prepared.error.name)
            await caller.pause(20, 100)

    async def _abandon(self, caller: Caller, producer: ProducerProcess, slot: SlotIdentity) -> None:
        while True:
            aborted = await caller.ask(producer.coordinator, AbortStaged(members=(slot,)))
            if isinstance(aborted, MembersChecked):
                return
            await asyncio.sleep(0.05)

    async def _complete(
        self, caller: Caller, step: int, members: list[tuple[SlotIdentity, Transaction]]
    ) -> None:
        now_us = self.scheduler.now_us
        for _, transaction in members:
            transaction.commit_asked_at = now_us
        request = CompleteStep(
            query=self.query, step=step, members=tuple(slot for slot, _ in members)
        )
        place = ProducerProcess(
            caller, self.query, "", self._history, self._values, is_tv2=True
        ).coordinator
        while True:
            completed = await caller.ask(place, request)
            if isinstance(completed, StepCompleted):
                if completed.error is ErrorCode.TRANSACTION_ABORTABLE:
                    raise StepRefused(str(completed.unfit))
                if completed.error is ErrorCode.NONE:
                    break
            await caller.pause(20, 100)
        self.scheduler.counters["steps completed"] += 1
        self._history.completed += (
            (self.query, f"{self.query}/{step}/{number}") for number in range(ROWS)
        )
        if not completed.is_completed:
            for _, transaction in members:
                transaction.fate, transaction.told_at = Fate.COMMITTED, self.scheduler.now_us
