"""Group members that copy the data topic: they consume, transform and produce, with their offsets in the transaction.

There are copiers of both group protocols. A copier commits offsets only in its transactions, so the output has one copy
of each input, whatever fails (KIP-447). Each process has one producer; the members of a group fence each other by
generations.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any, Final

from odradek_broker.groups import messages as gm
from odradek_protocol.identity import (
    GroupId,
    MemberId,
    Offset,
    TopicIdPartition,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.sim.classic_member import ClassicMember
from tests.sim.cluster import Cluster
from tests.sim.consumer_member import ConsumerMember
from tests.sim.group_history import GroupHistory
from tests.sim.member import Member
from tests.sim.scheduler import MS
from tests.sim.transactions.history_checker import (
    GroupPartition,
    OffsetFetch,
    Transaction,
    TransactionHistory,
)
from tests.sim.transactions.transaction_client import Abortable, Caller, Fatal, ProducerProcess
from tests.sim.transactions.transaction_shell import CommittedRead
from tests.sim.transactions.transactional_producer import partitions_of

COPIES_TOPIC: Final = "copies"
CLASSIC_COPIERS: Final = GroupId("classic-copiers")
CONSUMER_COPIERS: Final = GroupId("consumer-copiers")
STALLED_BEFORE_THE_END: Final = 0.05


class Copying(Member):
    """A mixin for members. It replaces their `commit` by a copy in a transaction."""

    transactions: TransactionHistory
    values: itertools.count[int]
    is_tv2: bool
    _producer: ProducerProcess | None = None
    _is_sure = True  # whether the positions are certainly the committed offsets

    def start(self) -> None:
        if not self.is_up:
            self._producer = None
            self._is_sure = True
        super().start()

    def stall(self, duration_us: int) -> None:
        """Stop the process, as SIGSTOP does, and continue it after the duration."""
        if self.process is not None and self.is_up:
            self.process.stall(duration_us)
            self.cluster.network.process_stalled(self.process, duration_us)

    async def fetch_positions(
        self,
        partitions: Iterable[TopicPartition],
        *,
        member_id: MemberId | None = None,
        epoch: int = -1,
    ) -> ErrorCode:
        """Set the positions to the group's committed offsets. Skip partitions whose offset an open transaction may
        still change.
        """
        asked_at = self.scheduler.now_us
        wanted = tuple(sorted(partitions, key=str))
        if not wanted:
            return ErrorCode.NONE
        request = gm.FetchOffsets(
            group_id=self.group_id,
            partitions=wanted,
            member_id=member_id,
            member_epoch=epoch,
            requires_stable=True,
        )
        fetched: gm.FetchedOffsets = await self.ask(request)
        if fetched.error is not ErrorCode.NONE:
            return fetched.error
        if fetched.unstable:
            self.scheduler.counters["stable fetches that were refused"] += 1
        for partition in fetched.offsets.keys() - fetched.unstable:
            committed = fetched.offsets[partition]
            offset = 0 if committed is None else committed.offset
            self.positions[partition] = offset
            self.transactions.fetches.append(
                OffsetFetch(
                    place=self._place(partition),
                    offset=offset,
                    asked_at=asked_at,
                    ended_at=self.scheduler.now_us,
                )
            )
        return ErrorCode.UNSTABLE_OFFSET_COMMIT if fetched.unstable else ErrorCode.NONE

    async def commit(self, member_id: str, instance_id: str | None, epoch: int) -> ErrorCode:
        """Copy the records after one of the positions in a transaction, if there are any."""
        producer = self._started_producer()
        try:
            if producer.identity is None:
                await producer.init()
            if not self._is_sure or not self.positions:
                self.positions = {}
                member = MemberId(member_id) if isinstance(self, ConsumerMember) else None
                error = await self.fetch_positions(
                    self.owned, member_id=member, epoch=epoch if member is not None else -1
                )
                self._is_sure = error is ErrorCode.NONE
                return ErrorCode.NONE if error is ErrorCode.UNSTABLE_OFFSET_COMMIT else error
            return await self._copy(producer, member_id, instance_id, epoch)
        except Fatal:
            self.scheduler.counters["producers that began again"] += 1
            producer.identity = None
        except Abortable:
            producer.identity = None
        self._is_sure = False
        return ErrorCode.NONE

    def _started_producer(self) -> ProducerProcess:
        if self._producer is None:
            assert self.process is not None
            assert self._loop is not None
            self._producer = ProducerProcess(
                Caller(self.cluster, self.process, self._loop, self.client_id),
                f"copier-{self.client_id}",
                self.name,
                self.transactions,
                self.values,
                is_tv2=self.is_tv2,
            )
        return self._producer

    async def _copy(
        self, producer: ProducerProcess, member_id: str, instance_id: str | None, epoch: int
    ) -> ErrorCode:
        source = self.scheduler.random.choice(sorted(self.positions, key=str))
        position = self.positions[source]
        read = await producer.caller.read(self._topic_id_partition(source), position)
        if not isinstance(read, CommittedRead) or read.next_offset <= position:
            return ErrorCode.NONE
        transaction = producer.begin()
        transaction.group = self.group_id
        transaction.positions[self._place(source)] = position
        # If this method ends early, it is unknown whether the committed offset has moved.
        self._is_sure = False
        wants_commit = not self.scheduler.chance(0.15)
        error = ErrorCode.NONE
        try:
            targets = partitions_of(self.cluster, COPIES_TOPIC)
            for _, value in read.records:
                target = self.scheduler.random.choice(targets)
                transaction.copies[await producer.write(transaction, target)] = value
            commit = gm.CommitOffsets(
                group_id=self.group_id,
                member_id=MemberId(member_id),
                instance_id=instance_id,
                generation_or_epoch=epoch,
                offsets={source: gm.CommittedOffset(offset=Offset(read.next_offset), metadata="")},
            )
            error = await producer.send_offsets(transaction, commit, {source: self._place(source)})
        except Abortable:
            wants_commit = False
        wants_commit = wants_commit and error is ErrorCode.NONE
        if self.scheduler.chance(STALLED_BEFORE_THE_END):
            # Another member gets the partitions while the offsets are pending.
            self.stall(self.scheduler.between(3_000, 8_000) * MS)
            await asyncio.sleep(0.001)  # the next iteration of the event loop comes after the stall
        await producer.end(transaction, is_commit=wants_commit)
        self._note(transaction, source, read.next_offset)
        return error

    def _note(self, transaction: Transaction, source: TopicPartition, next_offset: int) -> None:
        self._is_sure = True
        is_committed = transaction.fate.value == "committed"
        if is_committed and source in self.positions:
            self.positions[source] = next_offset
        self.scheduler.counters["copies committed"] += is_committed

    def _place(self, partition: TopicPartition) -> GroupPartition:
        return GroupPartition(self.group_id, self._topic_id_partition(partition))

    def _topic_id_partition(self, partition: TopicPartition) -> TopicIdPartition:
        topic = self.cluster.log.image.topic(partition.topic)
        assert topic is not None
        return TopicIdPartition(topic.topic_id, partition.partition)


class ClassicCopier(Copying, ClassicMember):
    """A copier of the classic protocol."""


class ConsumerCopier(Copying, ConsumerMember):
    """A copier of the consumer protocol (KIP-848)."""


def copiers(
    cluster: Cluster,
    first_client: int,
    values: itertools.count[int],
    history: TransactionHistory,
) -> list[ClassicCopier | ConsumerCopier]:
    """Return two copiers for each protocol. One of the two uses a new producer epoch for each transaction
    (transaction.version 2).
    """
    made: list[ClassicCopier | ConsumerCopier] = []
    for number in range(4):
        arguments: tuple[Any, ...] = (
            cluster,
            GroupHistory(),
            first_client + number,
            CLASSIC_COPIERS if number < 2 else CONSUMER_COPIERS,
        )
        copier: ClassicCopier | ConsumerCopier
        copier = ClassicCopier(*arguments) if number < 2 else ConsumerCopier(*arguments)
        copier.transactions, copier.values = history, values
        copier.is_tv2 = number % 2 == 0
        made.append(copier)
    return made
