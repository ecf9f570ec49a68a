"""Finds and ends hanging transactions: open transactions that no marker will ever end.

A transaction hangs when its marker was lost, by an unclean election or a loss of power, and its producer begins no
other transaction in this partition. Consumers with read_committed then never read past it, and retention stops. A
partition leader asks about each transaction that has been open for longer than any transaction timeout allows.

    open for too long --> every coordinator is asked --> one says LIVE, or does not respond --> asked at a later check
                                     +--> COMMITTED or ABORTED, or nobody knows it --> a marker by the leader itself

Only the responses of all partitions of `__transaction_state` are a proof, because a transactional id cannot be derived
from a producer id. No batch is appended without a committed registration. So a coordinator that has loaded and knows
nothing of the transaction has completed it, or has forgotten its id since: no marker is under way. The producer may
come back between the question and the marker. In that case its entry in the log's producer state has changed, or a
registration is under way, and the leader writes no marker.

In `__consumer_offsets` a marker also decides which offsets are committed, so the group coordinator writes it. There
the producer's guard (groups/pending_offsets.py) tells whether the producer came back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from odradek_broker.groups.messages import EndHanging
from odradek_broker.log.producer_state import ProducerEntry
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.replication.transaction_incidents import IncidentKind, TransactionIncident
from odradek_broker.transactions.messages import Resolution
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from odradek_runtime.logs import event_log

CHECKED_MAX: Final = 1_000
_MARKER_TIMEOUT_MS: Final = 15_000
_log = event_log(__name__)


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition's log."""

    partition: TopicIdPartition
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class CoordinatorResolutions(NamedTuple):
    """What one loaded coordinator knows about the transactions of a request, in the order of the request."""

    coordinator_partition: PartitionIndex
    coordinator_epoch: LeaderEpoch
    resolutions: Sequence[Resolution]


class ProducerResolver(Protocol):
    """Asks all transaction coordinators of the cluster what they know about open transactions."""

    async def resolve(
        self, transactions: Sequence[OpenTransaction]
    ) -> Sequence[CoordinatorResolutions]:
        """Ask all brokers, and return the responses that arrived within the time limit."""


class OffsetTransactions(Protocol):
    """The transactions in the partitions of `__consumer_offsets` that this broker leads."""

    def guard(self, partition: PartitionIndex, producer_id: ProducerId) -> int | None:
        """Return the producer's guard, or None if the partition is not loaded yet."""

    async def end_hanging(self, partition: PartitionIndex, request: EndHanging) -> ErrorCode:
        """Write the marker if the guard is still valid, and wait until it is committed."""


@dataclass(frozen=True, slots=True)
class _Found:
    """An open transaction of a partition, with its state before the coordinators were asked."""

    host: PartitionHost
    entry: ProducerEntry
    transaction: OpenTransaction

    @property
    def key(self) -> tuple[TopicIdPartition, ProducerId, int]:
        """A key of this transaction; later transactions of the same producer have other keys."""
        return (
            self.host.partition,
            self.transaction.producer_id,
            self.entry.transaction_first_offset,
        )


class HangingReport(NamedTuple):
    """An old open transaction. `outcome` is True if it may be committed, False if it may be aborted, or the error that
    says why neither is allowed.

    INVALID_TXN_STATE: a coordinator will end it. COORDINATOR_NOT_AVAILABLE: a coordinator did not respond, so it is
    not known whether one will end it.
    """

    topic: TopicName
    partition: PartitionIndex
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: int
    open_for_ms: int
    outcome: bool | ErrorCode


class HangingTransactions:
    """Looks for hanging transactions in the partitions that this broker leads. It is used only on the event loop."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        resolver: ProducerResolver,
        offsets: OffsetTransactions,
        check_interval_ms: int,
        open_ms_max: int,
        may_end: bool = True,
    ) -> None:
        """`open_ms_max` is more than the timeout of any transaction. Without `may_end`, hanging transactions are only
        logged.
        """
        self._table = table
        self._resolver = resolver
        self._offsets = offsets
        self._check_interval_ms = check_interval_ms
        self._open_ms_max = open_ms_max
        self._may_end = may_end
        # The time at which each open transaction was first seen, by (partition, producer id, first offset).
        self._seen_ms: dict[tuple[TopicIdPartition, ProducerId, int], int] = {}
        self._checked = 0  # how many of the old transactions the last checks have looked at

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await asyncio.sleep(self._check_interval_ms / 1000)
            try:
                await self.check()
            except Exception as error:
                _log.error("Failed to look for hanging transactions", exc=error)

    async def check(self) -> None:
        """Ask the coordinators about the transactions that have been open for too long, and end those that hang."""
        found = self._next_of(self._old())
        guards = [self._guard(one) for one in found]
        hanging = 0
        outcomes = await self._outcomes(found)
        for one, guard, outcome in zip(found, guards, outcomes, strict=True):
            if isinstance(outcome, bool):
                code = await self._end(one, guard, is_commit=outcome)
                hanging += code is not ErrorCode.NONE
        self._table.counters.transaction_incidents.hanging = hanging

    async def find(
        self, topic: TopicName | None, *, older_than_ms: int | None
    ) -> list[HangingReport]:
        """Return the transactions that have been open for `older_than_ms`, and what the coordinators say about each.

        None stands for longer than any timeout allows. The time counts from when this broker first saw a transaction,
        so the transaction may have been open for longer.
        """
        found = [
            one for one in self._old(older_than_ms) if topic is None or one.host.topic == topic
        ][:CHECKED_MAX]
        now_ms = self._table.clock.boottime_ms()
        return [
            HangingReport(
                topic=one.host.topic,
                partition=one.host.partition.partition,
                producer_id=one.transaction.producer_id,
                producer_epoch=one.transaction.producer_epoch,
                first_offset=one.entry.transaction_first_offset,
                open_for_ms=now_ms - self._seen_ms.get(one.key, now_ms),
                outcome=outcome,
            )
            for one, outcome in zip(found, await self._outcomes(found), strict=True)
        ]

    async def end(self, partition: TopicIdPartition, producer_id: ProducerId) -> ErrorCode:
        """End one hanging transaction for an operator, whatever its age. The coordinators are asked first, as in
        `check`.

        INVALID_TXN_STATE: a coordinator will end the transaction, or the producer has no open one.
        COORDINATOR_NOT_AVAILABLE: a coordinator did not respond. COORDINATOR_LOAD_IN_PROGRESS: the group coordinator
        has not loaded this partition of `__consumer_offsets` yet.
        """
        host = self._table.by_id.get((partition.topic_id, partition.partition))
        if host is None or not host.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        found = [one for one in _open(host) if one.transaction.producer_id == producer_id]
        if not found:
            return ErrorCode.INVALID_TXN_STATE
        guard = self._guard(found[0])
        (outcome,) = await self._outcomes(found)
        if isinstance(outcome, ErrorCode):
            return outcome
        return await self._end(found[0], guard, is_commit=outcome, is_by_operator=True)

    def _old(self, open_ms_max: int | None = None) -> list[_Found]:
        """Return the transactions that have been open for too long. Forget when those that ended were first seen."""
        open_ms_max = self._open_ms_max if open_ms_max is None else open_ms_max
        now_ms = self._table.clock.boottime_ms()
        seen_ms: dict[tuple[TopicIdPartition, ProducerId, int], int] = {}
        old: list[_Found] = []
        for host in list(self._table.by_id.values()):
            if not host.is_leader:
                continue
            for one in _open(host):
                key = one.key
                seen_ms[key] = self._seen_ms.get(key, now_ms)
                if now_ms - seen_ms[key] >= open_ms_max:
                    old.append(one)
        self._seen_ms = seen_ms
        return old

    def _next_of(self, old: Sequence[_Found]) -> Sequence[_Found]:
        """Return up to CHECKED_MAX of the transactions, beginning where the previous call ended: the oldest ones may be
        long and healthy, and must not keep the others from being checked.
        """
        first = self._checked if self._checked < len(old) else 0
        self._checked = first + CHECKED_MAX
        return old[first : self._checked]

    async def _outcomes(self, found: Sequence[_Found]) -> list[bool | ErrorCode]:
        """Ask the coordinators. Return for each transaction whether to commit it, or the error that says why it
        must not be ended.
        """
        if not found:
            return []
        responses = await self._resolver.resolve([one.transaction for one in found])
        if not self._is_complete(responses):
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(found)
        return [
            _outcome([response.resolutions[number] for response in responses])
            for number in range(len(found))
        ]

    def _is_complete(self, responses: Sequence[CoordinatorResolutions]) -> bool:
        """Return whether all coordinators have responded. The response of a deposed coordinator does not count."""
        image, epochs = self._table.image, self._table.coordinator_epochs
        topic_id = image.topic_ids.get(TRANSACTIONS_TOPIC)
        if topic_id is None:
            return False
        current = {
            response.coordinator_partition
            for response in responses
            if epochs.heard(response.coordinator_partition, response.coordinator_epoch)
        }
        partitions = image.topics[topic_id].partitions
        return bool(partitions) and all(state.partition in current for state in partitions)

    def _guard(self, found: _Found) -> int | None:
        """Return the guard of a transaction in `__consumer_offsets`, before the coordinators are asked about it."""
        if found.host.topic != OFFSETS_TOPIC:
            return None
        return self._offsets.guard(found.host.partition.partition, found.transaction.producer_id)

    async def _end(
        self, found: _Found, guard: int | None, *, is_commit: bool, is_by_operator: bool = False
    ) -> ErrorCode:
        host, transaction = found.host, found.transaction
        fields: dict[str, Any] = {
            "partition": str(host),
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "first_offset": found.entry.transaction_first_offset,
            "outcome": "commit" if is_commit else "abort",
        }
        if not self._may_end and not is_by_operator:
            _log.error(
                "Found a hanging transaction, which no coordinator will end",
                remedy="end it with `odradek transaction find-hanging --abort`",
                **fields,
            )
            return ErrorCode.INVALID_TXN_STATE
        if host.topic == OFFSETS_TOPIC:
            code = await self._end_offsets(found, guard, is_commit=is_commit)
        else:
            code = await self._write_marker(found, is_commit=is_commit)
        if code is ErrorCode.NONE:
            _log.error("Ended a hanging transaction: its marker was lost", **fields)
            self._table.counters.transaction_incidents.add(
                TransactionIncident(
                    kind=IncidentKind.HANGING,
                    topic=host.topic,
                    partition=host.partition.partition,
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.producer_epoch,
                    first_offset=Offset(found.entry.transaction_first_offset),
                    is_commit=is_commit,
                    wall_ms=self._table.clock.wall_ms(),
                )
            )
        return code

    async def _write_marker(self, found: _Found, *, is_commit: bool) -> ErrorCode:
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def written(codes: Sequence[ErrorCode]) -> None:
            if not done.done():
                done.set_result(codes[0])

        found.host.transactions.end_hanging(
            found.transaction.producer_id,
            found.entry,
            is_commit=is_commit,
            on_done=written,
            deadline_ms=self._table.clock.boottime_ms() + _MARKER_TIMEOUT_MS,
        )
        return await done

    async def _end_offsets(self, found: _Found, guard: int | None, *, is_commit: bool) -> ErrorCode:
        if guard is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        request = EndHanging(
            producer_id=found.transaction.producer_id,
            producer_epoch=found.transaction.producer_epoch,
            is_commit=is_commit,
            guard=guard,
        )
        try:
            async with asyncio.timeout(_MARKER_TIMEOUT_MS / 1000):
                return await self._offsets.end_hanging(found.host.partition.partition, request)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT


def _open(host: PartitionHost) -> Iterator[_Found]:
    """Yield the open transactions of a host's replica, oldest first."""
    producers = host.log.producers
    for producer_id in producers.ongoing():
        entry = producers.entry(producer_id)
        assert entry is not None, producer_id
        yield _Found(host, entry, OpenTransaction(host.partition, producer_id, entry.epoch))


def _outcome(resolutions: Sequence[Resolution]) -> bool | ErrorCode:
    if Resolution.LIVE in resolutions:
        return ErrorCode.INVALID_TXN_STATE
    return Resolution.COMMITTED in resolutions
