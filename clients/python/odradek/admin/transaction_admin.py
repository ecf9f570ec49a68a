"""Administration of transactions: listing, describing and aborting them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from odradek.admin.admin_calls import AdminCalls, check
from odradek.cluster import methods
from odradek.cluster.turns import in_turns
from odradek.errors import error_of
from odradek.partitions import TopicPartition
from odradek_protocol.rpc.v1 import staged_write_service_pb2 as staged_pb
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id in the list of transactional ids. `state` is one of Kafka's names, such as Ongoing."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id, with the partitions of its open transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """When the open transaction began, in ms since the Unix epoch; None if no transaction is open."""
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStagedTask:
    """A task of a staged write (producer/staged_writes.py) whose step is not complete yet."""

    step: int
    name: str
    transactional_id: str
    is_prepared: bool
    """Whether the task has written all its records, and waits until its step is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsDescription:
    """The state of a staged write (the exactly-once writes of a Spark query): the last complete step, which is a
    micro-batch, and the tasks that are neither committed nor aborted.
    """

    query: str
    last_step: int | None
    """The number of the last complete step; None if no step is recorded."""
    task_count: int
    """The number of tasks that the last complete step committed; 0 if no step is recorded."""
    completed_ms: int | None
    """When the last complete step was completed, in ms since the Unix epoch; None if no step is recorded."""
    is_final: bool
    """Whether the query has ended, so that no further step follows."""
    open_tasks: tuple[OpenStagedTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDescription:
    """A producer that has written to a partition, from the producer state of the partition's leader."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start_offset: int | None
    """The first offset of the producer's open transaction; None if no transaction is open."""


class HangingState(Enum):
    """What the transaction coordinators report about an old open transaction."""

    LIVE = "live"  # A coordinator will end the transaction.
    # The transaction was committed, but its marker in the partition was lost.
    COMMITTED = "committed"
    ABORTED = "aborted"  # The transaction was aborted, but its marker was lost, or no coordinator knows it any more.
    UNPROVEN = "unproven"  # Not known, because a coordinator did not respond.


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTransaction:
    """A transaction that has been open in a partition for longer than any timeout allows, or for longer than the caller
    of `find_hanging` asked for.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    open_for_ms: int
    """How long the transaction has been open, according to the partition's leader."""
    state: HangingState

    @property
    def hangs(self) -> bool:
        """Whether it is certain that no coordinator will end the transaction."""
        return self.state in (HangingState.COMMITTED, HangingState.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionIncident:
    """Damage to a transaction in one partition, found by the leader of the partition."""

    kind: str
    """torn: the transaction ended differently in other partitions. orphaned or hanging: its marker was lost."""
    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    is_commit: bool
    found_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingFindings:
    """The old open transactions of the cluster, and the damaged transactions that its brokers have found since they
    started.
    """

    transactions: tuple[OldTransaction, ...]
    incidents: tuple[TransactionIncident, ...]


class TransactionAdmin:
    """Lists, describes and aborts transactions. Use it as `client.admin.transactions`."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        older_than_ms: int = -1,
        pattern: str = "",
    ) -> list[TransactionListing]:
        """Return the transactional ids of the cluster, sorted.

        Args:
            states: Return only ids in one of these states, by Kafka's names (Ongoing, PrepareCommit, ...).
            older_than_ms: Return only ids whose transaction has been open for longer than this time. -1: all ids.
            pattern: Return only ids that match this regular expression (RE2 syntax) as a whole.
        """
        request = pb.ListTransactionsRequest(
            states=list(states), older_than_ms=older_than_ms, pattern=pattern
        )
        response = await self._calls.send(
            methods.LIST_TRANSACTIONS, request, codes=lambda r: [r.error_code]
        )
        check(response.error_code, "listing transactions")
        listings = [
            TransactionListing(
                transactional_id=listed.transactional_id,
                producer_id=listed.producer_id,
                state=listed.state,
            )
            async for listed in in_turns(response.transactions)
        ]
        return sorted(listings, key=lambda listing: listing.transactional_id)

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Describe one transactional id. Raises OdradekError if the transactional id does not exist."""
        response = await self._calls.send(
            methods.DESCRIBE_TRANSACTIONS,
            pb.DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            codes=lambda r: [described.error_code for described in r.transactions],
        )
        (described,) = response.transactions
        check(described.error_code, f"transactional id {transactional_id!r}")
        return TransactionDescription(
            transactional_id=transactional_id,
            state=described.state,
            producer_id=described.identity.producer_id,
            producer_epoch=described.identity.producer_epoch,
            timeout_ms=described.timeout_ms,
            started_ms=described.started_ms if described.started_ms >= 0 else None,
            partitions=tuple(
                TopicPartition(partition.topic, partition.partition)
                for partition in described.partitions
            ),
        )

    async def abort(self, transactional_id: str, *, force: bool = False) -> None:
        """Abort the open transaction of a transactional id. Its producer may then begin another transaction.

        Args:
            force: Abort the transaction even if it is a prepared task of a staged write.

        Raises:
            TransactionFailed: no transaction is open, or it is prepared and `force` is not set.
        """
        response = await self._calls.send(
            methods.ABORT_TRANSACTION,
            pb.AbortTransactionRequest(transactional_id=transactional_id, is_forced=force),
            codes=lambda r: [r.error_code],
        )
        if response.error_code:
            raise error_of(
                response.error_code,
                f"aborting the transaction of {transactional_id!r}",
                response.error_message,
            )

    async def steps(self, query: str) -> StepsDescription:
        """Return the last complete step of a staged write, and the tasks whose step is not complete. `query` is the
        name of the staged write.
        """
        response = await self._calls.send(
            methods.DESCRIBE_STEPS,
            staged_pb.DescribeStepsRequest(query=query),
            codes=lambda r: [r.error_code],
        )
        check(response.error_code, f"steps of {query!r}")
        return StepsDescription(
            query=query,
            last_step=response.last_step if response.last_step >= 0 else None,
            task_count=response.member_count,
            completed_ms=response.completed_ms if response.completed_ms >= 0 else None,
            is_final=response.is_final,
            open_tasks=tuple(
                OpenStagedTask(
                    step=task.step,
                    name=task.name,
                    transactional_id=task.member.transactional_id,
                    is_prepared=task.is_prepared,
                )
                for task in response.open_members
            ),
        )

    async def forget_steps(self, query: str) -> None:
        """Delete the cluster's record of the complete steps of a staged write, so that the query can restart from an
        older checkpoint.

        The query then writes the records of these steps a second time. The query must not be running during this call.
        """
        response = await self._calls.send(
            methods.FORGET_STEPS,
            staged_pb.ForgetStepsRequest(query=query),
            codes=lambda r: [r.error_code],
        )
        if response.error_code:
            raise error_of(
                response.error_code, f"deleting the steps of {query!r}", response.error_message
            )

    async def producers(
        self, topic: str, partitions: Iterable[int] = ()
    ) -> tuple[ProducerDescription, ...]:
        """Return the producers that have written to a topic, with their open transactions. If `partitions` is empty,
        all partitions of the topic are included.
        """
        response = await self._calls.send(
            methods.DESCRIBE_PRODUCERS,
            pb.DescribeProducersRequest(topic=topic, partitions=list(partitions)),
            codes=lambda r: [r.error_code],
        )
        check(response.error_code, f"producers of {topic!r}")
        return tuple(
            ProducerDescription(
                partition=TopicPartition(topic, producer.partition),
                producer_id=producer.identity.producer_id,
                producer_epoch=producer.identity.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp_ms=producer.last_timestamp_ms,
                transaction_start_offset=producer.transaction_start_offset
                if producer.transaction_start_offset >= 0
                else None,
            )
            for producer in sorted(
                response.producers,
                key=lambda producer: (producer.partition, producer.identity.producer_id),
            )
        )

    async def find_hanging(self, *, topic: str = "", older_than_ms: int = 0) -> HangingFindings:
        """Return old open transactions, with what the coordinators report about each, and the damaged transactions that
        the brokers have found.

        Args:
            topic: Search only this topic. "": all topics.
            older_than_ms: Return only transactions that have been open for longer than this. 0: longer than any timeout
                allows. -1: all open transactions.
        """
        response = await self._calls.send(
            methods.FIND_HANGING,
            pb.FindHangingRequest(topic=topic, older_than_ms=older_than_ms),
            codes=lambda r: [r.error_code],
        )
        check(response.error_code, "finding hanging transactions")
        states = {
            pb.HANGING_STATE_LIVE: HangingState.LIVE,
            pb.HANGING_STATE_COMMITTED: HangingState.COMMITTED,
            pb.HANGING_STATE_ABORTED: HangingState.ABORTED,
        }
        return HangingFindings(
            transactions=tuple(
                OldTransaction(
                    partition=TopicPartition(transaction.topic, transaction.partition),
                    producer_id=transaction.identity.producer_id,
                    producer_epoch=transaction.identity.producer_epoch,
                    first_offset=transaction.first_offset,
                    open_for_ms=transaction.open_for_ms,
                    state=states.get(transaction.state, HangingState.UNPROVEN),
                )
                for transaction in response.transactions
            ),
            incidents=tuple(
                TransactionIncident(
                    kind=incident.kind,
                    partition=TopicPartition(incident.topic, incident.partition),
                    producer_id=incident.identity.producer_id,
                    producer_epoch=incident.identity.producer_epoch,
                    first_offset=incident.first_offset,
                    is_commit=incident.is_commit,
                    found_ms=incident.found_ms,
                )
                for incident in response.incidents
            ),
        )

    async def abort_hanging(self, partition: TopicPartition, producer_id: int) -> None:
        """End a hanging transaction. The cluster first checks with all coordinators that none of them will end it.

        Raises:
            TransactionFailed: the transaction is not open, or a coordinator will end it.
        """
        response = await self._calls.send(
            methods.ABORT_HANGING,
            pb.AbortHangingRequest(
                topic=partition.topic, partition=partition.partition, producer_id=producer_id
            ),
            codes=lambda r: [r.error_code],
        )
        check(response.error_code, f"the transaction of producer {producer_id} in {partition}")
