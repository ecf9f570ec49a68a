"""Finds and ends hanging transactions: open transactions that no marker will ever end.

A transaction hangs when its marker was lost, by an unclean election or a loss of power, and its producer begins no
other transaction in this partition. Consumers with read_committed then never read past the transaction, and retention
stops. A partition leader asks the coordinators about each transaction that has been open for longer than any
transaction timeout allows.

    open for too long --> ask every coordinator --> one says LIVE, or does not respond --> ask again at a later check
                                   +--> COMMITTED or ABORTED, or nobody knows it --> the leader writes a marker

Only the responses of the coordinators of all partitions of `__transaction_state` prove that a transaction hangs,
because a transactional id cannot be derived from a producer id. No batch is appended without a committed registration.
So a coordinator that has loaded its state, and does not know the transaction, has completed it or has deleted its
transactional id since: no marker is on its way. The producer may return between the request to the coordinators and the
marker. In that case its entry in the log's producer state has changed, or one of its batches waits for a coordinator,
and the leader writes no marker.

In `__consumer_offsets` a marker also decides which offsets are committed, so the group coordinator writes the marker.
In that topic the producer's guard (groups/pending_offsets.py) shows whether the producer has returned.
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
    """The state of each transaction in a request, in the order of the request, according to one coordinator."""

    coordinator_partition: PartitionIndex
    coordinator_epoch: LeaderEpoch
    resolutions: Sequence[Resolution]


class ProducerResolver(Protocol):
    """Asks all transaction coordinators of the cluster about the state of open transactions."""

    async def resolve(
        self, transactions: Sequence[OpenTransaction]
    ) -> Sequence[CoordinatorResolutions]:
        """Ask all brokers, and return the responses that arrived within the time limit."""


class OffsetTransactions(Protocol):
    """The transactions in the partitions of `__consumer_offsets` that this broker leads."""

    def guard(self, partition: PartitionIndex, producer_id: ProducerId) -> int | None:
        """Return the producer's guard (groups/pending_offsets.py); None if the partition is not loaded yet."""

    async def end_hanging(self, partition: PartitionIndex, request: EndHanging) -> ErrorCode:
        """Write the marker if the guard is still valid, and wait until the marker is committed."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An open transaction of a partition, with the producer's state (`entry`) before the coordinators were asked."""

    host: PartitionHost
    entry: ProducerEntry
    transaction: OpenTransaction

    @property
    def key(self) -> tuple[TopicIdPartition, ProducerId, int]:
        """The partition, the producer id and the first offset of this transaction, which identify it."""
        return (
            self.host.partition,
            self.transaction.producer_id,
            self.entry.transaction_first_offset,
        )


class HangingReport(NamedTuple):
    """An old open transaction. `outcome` is True if an operator may commit it, False if an operator may abort it, or
    the error that says why neither is allowed.

    INVALID_TXN_STATE: a coordinator will end the transaction. COORDINATOR_NOT_AVAILABLE: a coordinator did not respond,
    so it is unknown whether a coordinator will end the transaction.
    """

    topic: TopicName
    partition: PartitionIndex
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: int
    open_for_ms: int
    outcome: bool | ErrorCode


class HangingTransactions:
    """Looks for hanging transactions in the partitions that this broker leads. Only the event loop uses this object."""

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
        """`open_ms_max` must be longer than the timeout of any transaction. Without `may_end`, hanging transactions are
        only logged.
        """
        self._table = table
        self._resolver = resolver
        self._offsets = offsets
        self._check_interval_ms = check_interval_ms
        self._open_ms_max = open_ms_max
        self._may_end = may_end
        # The time at which this broker first saw each open transaction, by (partition, producer id, first offset).
        self._seen_ms: dict[tuple[TopicIdPartition, ProducerId, int], int] = {}
        self._checked = 0  # where in the list of old transactions the next check begins

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
        candidates = self._next_of(self._old())
        guards = [self._guard(candidate) for candidate in candidates]
        hanging = 0
        outcomes = await self._outcomes(candidates)
        for candidate, guard, outcome in zip(candidates, guards, outcomes, strict=True):
            if isinstance(outcome, bool):
                code = await self._end(candidate, guard, is_commit=outcome)
                hanging += code is not ErrorCode.NONE
        self._table.counters.transaction_incidents.hanging = hanging

    async def find(
        self, topic: TopicName | None, *, older_than_ms: int | None
    ) -> list[HangingReport]:
        """Return up to CHECKED_MAX transactions that have been open for `older_than_ms`, and what the coordinators
        respond about each.

        With None, return those that have been open for longer than any transaction timeout. The time counts from
        the moment when this broker first saw a transaction, so the transaction may have been open for longer.
        """
        candidates = [
            candidate
            for candidate in self._old(older_than_ms)
            if topic is None or candidate.host.topic == topic
        ][:CHECKED_MAX]
        now_ms = self._table.clock.boottime_ms()
        return [
            HangingReport(
                topic=candidate.host.topic,
                partition=candidate.host.partition.partition,
                producer_id=candidate.transaction.producer_id,
                producer_epoch=candidate.transaction.producer_epoch,
                first_offset=candidate.entry.transaction_first_offset,
                open_for_ms=now_ms - self._seen_ms.get(candidate.key, now_ms),
                outcome=outcome,
            )
            for candidate, outcome in zip(candidates, await self._outcomes(candidates), strict=True)
        ]

    async def end(self, partition: TopicIdPartition, producer_id: ProducerId) -> ErrorCode:
        """End one hanging transaction for an operator, whatever its age. The coordinators are asked first, as in
        `check`.

        INVALID_TXN_STATE: a coordinator will end the transaction, or the producer has no open transaction.
        COORDINATOR_NOT_AVAILABLE: a coordinator did not respond. COORDINATOR_LOAD_IN_PROGRESS: the group coordinator
        has not loaded this partition of `__consumer_offsets` yet.
        """
        host = self._table.by_id.get((partition.topic_id, partition.partition))
        if host is None or not host.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        candidates = [
            candidate
            for candidate in _open(host)
            if candidate.transaction.producer_id == producer_id
        ]
        if not candidates:
            return ErrorCode.INVALID_TXN_STATE
        guard = self._guard(candidates[0])
        (outcome,) = await self._outcomes(candidates)
        if isinstance(outcome, ErrorCode):
            return outcome
        return await self._end(candidates[0], guard, is_commit=outcome, is_by_operator=True)

    def _old(self, open_ms_max: int | None = None) -> list[_Candidate]:
        """Return the transactions that have been open for too long. Delete the start times of transactions that have
        ended.
        """
        open_ms_max = self._open_ms_max if open_ms_max is None else open_ms_max
        now_ms = self._table.clock.boottime_ms()
        seen_ms: dict[tuple[TopicIdPartition, ProducerId, int], int] = {}
        old: list[_Candidate] = []
        for host in list(self._table.by_id.values()):
            if not host.is_leader:
                continue
            for candidate in _open(host):
                key = candidate.key
                seen_ms[key] = self._seen_ms.get(key, now_ms)
                if now_ms - seen_ms[key] >= open_ms_max:
                    old.append(candidate)
        self._seen_ms = seen_ms
        return old

    def _next_of(self, old: Sequence[_Candidate]) -> Sequence[_Candidate]:
        """Return up to CHECKED_MAX of the transactions, from the end of the previous call's result on: the oldest
        transactions may run long without hanging, and must not keep the others from being checked.
        """
        first = self._checked if self._checked < len(old) else 0
        self._checked = first + CHECKED_MAX
        return old[first : self._checked]

    async def _outcomes(self, candidates: Sequence[_Candidate]) -> list[bool | ErrorCode]:
        """Ask the coordinators. Return for each transaction whether to commit it (True) or abort it (False), or the
        error that says why it must not be ended.
        """
        if not candidates:
            return []
        responses = await self._resolver.resolve(
            [candidate.transaction for candidate in candidates]
        )
        if not self._is_complete(responses):
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(candidates)
        return [
            _outcome([response.resolutions[number] for response in responses])
            for number in range(len(candidates))
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

    def _guard(self, candidate: _Candidate) -> int | None:
        """Return the guard of a transaction in `__consumer_offsets`; None in other topics. The caller must get the
        guard before it asks the coordinators about the transaction.
        """
        if candidate.host.topic != OFFSETS_TOPIC:
            return None
        return self._offsets.guard(
            candidate.host.partition.partition, candidate.transaction.producer_id
        )

    async def _end(
        self,
        candidate: _Candidate,
        guard: int | None,
        *,
        is_commit: bool,
        is_by_operator: bool = False,
    ) -> ErrorCode:
        host, transaction = candidate.host, candidate.transaction
        fields: dict[str, Any] = {
            "partition": str(host),
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "first_offset": candidate.entry.transaction_first_offset,
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
            code = await self._end_offsets(candidate, guard, is_commit=is_commit)
        else:
            code = await self._write_marker(candidate, is_commit=is_commit)
        if code is ErrorCode.NONE:
            _log.error("Ended a hanging transaction: its marker was lost", **fields)
            self._table.counters.transaction_incidents.add(
                TransactionIncident(
                    kind=IncidentKind.HANGING,
                    topic=host.topic,
                    partition=host.partition.partition,
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.producer_epoch,
                    first_offset=Offset(candidate.entry.transaction_first_offset),
                    is_commit=is_commit,
                    wall_ms=self._table.clock.wall_ms(),
                )
            )
        return code

    async def _write_marker(self, candidate: _Candidate, *, is_commit: bool) -> ErrorCode:
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def written(codes: Sequence[ErrorCode]) -> None:
            if not done.done():
                done.set_result(codes[0])

        candidate.host.transactions.end_hanging(
            candidate.transaction.producer_id,
            candidate.entry,
            is_commit=is_commit,
            on_done=written,
            deadline_ms=self._table.clock.boottime_ms() + _MARKER_TIMEOUT_MS,
        )
        return await done

    async def _end_offsets(
        self, candidate: _Candidate, guard: int | None, *, is_commit: bool
    ) -> ErrorCode:
        if guard is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        request = EndHanging(
            producer_id=candidate.transaction.producer_id,
            producer_epoch=candidate.transaction.producer_epoch,
            is_commit=is_commit,
            guard=guard,
        )
        try:
            async with asyncio.timeout(_MARKER_TIMEOUT_MS / 1000):
                return await self._offsets.end_hanging(candidate.host.partition.partition, request)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT


def _open(host: PartitionHost) -> Iterator[_Candidate]:
    """Yield the open transactions in a host's log, oldest first."""
    producers = host.log.producers
    for producer_id in producers.ongoing():
        entry = producers.entry(producer_id)
        assert entry is not None, producer_id
        yield _Candidate(host, entry, OpenTransaction(host.partition, producer_id, entry.epoch))


def _outcome(resolutions: Sequence[Resolution]) -> bool | ErrorCode:
    if Resolution.LIVE in resolutions:
        return ErrorCode.INVALID_TXN_STATE
    return Resolution.COMMITTED in resolutions
