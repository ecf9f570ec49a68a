"""The coordinator shards of one internal topic. A shard is the state machine of one partition that this broker leads.

A load reads the whole partition and replays its records. The load begins only when the high watermark has reached the
log end: uncommitted records of earlier leaders, or of a failed shard on this broker, may still become committed, and a
shard that was loaded earlier would lack these records. At most `_LOADS_MAX` partitions are loaded at the same time. A
partition is loaded when this broker becomes its leader, and again after its shard failed. After repeated failures the
load is delayed more each time, so that a client that keeps triggering a bug does not cause a load with each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from odradek_broker.coordination.hosted_shard import CoordinatorError, HostedShard, ShardState
from odradek_broker.coordination.shard_loading import load_partition
from odradek_broker.coordination.turn_writes import EncodedRecord, TurnWrites
from odradek_broker.coordinator_step import LoadedMarker, LoadedRecord, RequestId, Step
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_protocol.identity import LeaderEpoch, PartitionIndex, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_runtime.logs import event_log

Shard = TypeVar("Shard")
T = TypeVar("T")
_LOADS_MAX = 4
_LOAD_RETRY_S = 0.1
_RELOAD_S_MAX = 5.0
# If a shard was active for longer than this before it failed, earlier failures do not delay its next load.
_CALM_S = 60.0
_WRITE_TIMEOUT_MS = 15_000
_log = event_log(__name__)


class ShardKind(Protocol[Shard]):
    """The operations that differ between the group coordinator and the transaction coordinator. CoordinatorHost uses
    them to create, load and write shards.
    """

    def create(self) -> Shard:
        """Return an empty state machine."""

    def replay(self, shard: Shard, record: LoadedRecord) -> None:
        """Apply one record of the log to the state machine."""

    def replay_marker(self, shard: Shard, marker: LoadedMarker) -> None:
        """Apply a transaction marker: the end of a producer's transaction in this partition."""

    def loaded(
        self, shard: Shard, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> Step[Any]:
        """Start the timers, because the log has been replayed. Return the first step, which must be written at once."""

    def closed(self, partition: PartitionIndex, leader_epoch: LeaderEpoch) -> None:
        """Cancel the unfinished orders of a shard that was active, because it has been closed."""

    def tick(self, shard: Shard, partition: PartitionIndex) -> Step[Any]:
        """Return the step (records, responses and orders) that results from expired timers."""

    def encode(self, record: Any) -> EncodedRecord:
        """Return the key and the value of a record."""

    def state_key(self, record: Any) -> Hashable | None:
        """Return a key if the record replaces all earlier records with the same key; otherwise None."""

    def obey(self, partition: PartitionIndex, leader_epoch: LeaderEpoch, order: Any) -> None:
        """Carry out an order (work outside of the state machine) of a committed step."""


class CoordinatorHost(Generic[Shard]):
    """Hosts the shards of one internal topic. Run `run()` in a task group, and call all other methods on its event
    loop.
    """

    def __init__(
        self,
        *,
        topic: TopicName,
        partitions: LocalPartitions,
        kind: ShardKind[Shard],
        now_wall_ms: Callable[[], int],
        tick_ms: int = 100,
    ) -> None:
        self.topic = topic
        self._partitions = partitions
        self._kind = kind
        self._now_wall_ms = now_wall_ms
        self._tick_ms = tick_ms
        self._hosted: dict[PartitionIndex, HostedShard[Shard]] = {}
        self._loads: asyncio.Queue[HostedShard[Shard]] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Load the coordinator shards of this broker, and call `tick` on all active ones, until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._partitions.watch_leadership(self.topic, self)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_LOADS_MAX):
                tasks.create_task(self._load_all())
            tasks.create_task(self._tick_all())

    async def ask(
        self,
        partition: PartitionIndex,
        decide: Callable[[Shard, RequestId], Step[Any]],
        *,
        leader_epoch: LeaderEpoch | None = None,
    ) -> Any:
        """Let the shard of this partition handle a request, and wait until its response may be sent.

        If `leader_epoch` is given, only the shard of that epoch may handle the request.

        The lease of the partition's leader is checked (rule R13 of partition/README.md) in the iteration of the event
        loop in which the caller sends the response. Thus a coordinator that is disconnected from the cluster stops
        returning outdated offsets when its lease ends.

        Raises:
            CoordinatorError: NOT_COORDINATOR if this broker does not lead the partition;
                COORDINATOR_LOAD_IN_PROGRESS while the shard is being loaded.
        """
        hosted = self._hosted.get(partition)
        if leader_epoch is not None and hosted is not None and hosted.leader_epoch != leader_epoch:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        response, _ = await self.ask_in_epoch(partition, decide)
        return response

    async def ask_in_epoch(
        self, partition: PartitionIndex, decide: Callable[[Shard, RequestId], Step[Any]]
    ) -> tuple[Any, LeaderEpoch]:
        """Do the same as `ask`, and also return the leader epoch of the shard."""
        hosted = self._hosted.get(partition)
        if hosted is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        response = await hosted.ask(decide)
        leader = self._partitions.find(self.topic, partition)
        if isinstance(leader, ErrorCode) or not leader.may_respond(hosted.leader_epoch):
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        return response, hosted.leader_epoch

    def ask_soon(
        self,
        partition: PartitionIndex,
        decide: Callable[[Shard, RequestId], Step[Any]],
        shape: Callable[[Any], T],
    ) -> asyncio.Future[T]:
        """Do the same as `ask`, without a coroutine. The result of the future is `shape(response)`.

        If the request fails after this call, `shape` gets the CoordinatorError instead of a response. The lease is
        checked just before `shape` is called, so `shape` should encode the response. If no record has to be committed
        first, the future is already done when it is returned.

        Raises:
            CoordinatorError: as for `ask`.
        """
        hosted = self._hosted.get(partition)
        if hosted is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)

        def checked(response: Any) -> T:
            leader = self._partitions.find(self.topic, partition)
            if isinstance(leader, ErrorCode) or not leader.may_respond(hosted.leader_epoch):
                response = CoordinatorError(ErrorCode.NOT_COORDINATOR)
            return shape(response)

        return hosted.ask(decide, checked)

    def tell(
        self,
        partition: PartitionIndex,
        leader_epoch: LeaderEpoch,
        decide: Callable[[Shard], Step[Any]],
    ) -> None:
        """Let the shard handle an event that needs no response, if the shard still has this leader epoch."""
        hosted = self._hosted.get(partition)
        if hosted is not None and hosted.leader_epoch == leader_epoch:
            hosted.take_of(decide)

    def active_shard(self, partition: PartitionIndex) -> Shard | None:
        """Return the shard of a partition, or None if it is not loaded."""
        hosted = self._hosted.get(partition)
        return hosted.shard if hosted is not None and hosted.state is ShardState.ACTIVE else None

    def active_shards(self) -> Iterable[Shard]:
        """Return the loaded shards, for requests that list all groups or transactional ids."""
        return [
            hosted.shard for hosted in self._hosted.values() if hosted.state is ShardState.ACTIVE
        ]

    def active_partitions(self) -> list[PartitionIndex]:
        """Return the partitions whose shards are loaded."""
        return [
            partition
            for partition, hosted in self._hosted.items()
            if hosted.state is ShardState.ACTIVE
        ]

    def is_loading(self) -> bool:
        """Return whether any partition that this broker leads is still being loaded."""
        return any(hosted.state is ShardState.LOADING for hosted in self._hosted.values())

    def take_all(self, decide: Callable[[Shard], Step[Any]]) -> None:
        """Run work that does not belong to a request, such as the expiry of offsets, on every active shard."""
        for hosted in list(self._hosted.values()):
            hosted.take_of(decide)

    def on_leader(
        self, topic: TopicName, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> None:
        """Load the partition, because this broker has become its leader."""
        self.on_resigned(topic, partition)
        self._loads.put_nowait(self._host(partition, leader_epoch))

    def on_resigned(self, topic: TopicName, partition: PartitionIndex) -> None:
        """Close the shard of a partition, because this broker is no longer its leader."""
        hosted = self._hosted.pop(partition, None)
        if hosted is not None:
            hosted.close()

    def resign(self, partition: PartitionIndex, leader_epoch: LeaderEpoch) -> None:
        """Close the shard of this leader epoch, because another broker was found to lead the partition."""
        hosted = self._hosted.get(partition)
        if hosted is not None and hosted.leader_epoch == leader_epoch:
            self.on_resigned(self.topic, partition)

    def _host(
        self, partition: PartitionIndex, leader_epoch: LeaderEpoch, *, breaks: int = 0
    ) -> HostedShard[Shard]:
        hosted = HostedShard(
            partition=partition,
            leader_epoch=leader_epoch,
            shard=self._kind.create(),
            new_writes=lambda: TurnWrites(self._kind.encode, self._kind.state_key),
            append=lambda writes, on_done: self._append(hosted, writes, on_done),
            obey=lambda order: self._kind.obey(partition, leader_epoch, order),
            on_broken=lambda: self._reload(hosted),
            on_closed=lambda: self._kind.closed(partition, leader_epoch),
            breaks=breaks,
        )
        self._hosted[partition] = hosted
        return hosted

    def _reload(self, broken: HostedShard[Shard]) -> None:
        partition = broken.partition
        if self._hosted.get(partition) is not broken:
            return
        loop = self._loop
        assert loop is not None, "only `run` loads shards, and it sets the loop"
        is_first = loop.time() - broken.active_since_s > _CALM_S
        breaks = 1 if is_first else broken.breaks + 1
        wait_s = reload_wait_s(breaks)
        _log.warning(
            "Coordinator partition failed; loading it again",
            topic=self.topic,
            partition=partition,
            retry_in_s=wait_s,
        )
        hosted = self._host(partition, broken.leader_epoch, breaks=breaks)
        loop.call_later(wait_s, self._loads.put_nowait, hosted)

    async def _load_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            hosted = await self._loads.get()
            if hosted.state is not ShardState.LOADING:
                continue
            try:
                is_loaded = await self._load(hosted)
                if hosted.state is not ShardState.LOADING:
                    # The partition got another leader during the load.
                    continue
                if is_loaded:
                    step = self._kind.loaded(hosted.shard, hosted.partition, hosted.leader_epoch)
                    hosted.activate(loop.time())
                    hosted.take(step)
                    continue
            except Exception as error:
                # No other broker could load the same records either, so the partition stays without a coordinator.
                _log.error(
                    "Failed to load a coordinator partition; its groups or transactions have no coordinator",
                    exc=error,
                    topic=self.topic,
                    partition=hosted.partition,
                )
                hosted.close()
                continue
            hosted.shard = self._kind.create()
            # The retry is delayed, so that other partitions can be loaded in the meantime.
            loop.call_later(_LOAD_RETRY_S, self._loads.put_nowait, hosted)

    async def _load(self, hosted: HostedShard[Shard]) -> bool:
        """Replay the partition into the shard. Return whether the whole partition could be read."""
        partition = self._partitions.find(self.topic, hosted.partition)
        if isinstance(partition, ErrorCode):
            return False

        def replay(loaded: LoadedRecord | LoadedMarker) -> None:
            if isinstance(loaded, LoadedRecord):
                self._kind.replay(hosted.shard, loaded)
            else:
                self._kind.replay_marker(hosted.shard, loaded)

        return await load_partition(
            partition,
            replay=replay,
            is_wanted=lambda: hosted.state is ShardState.LOADING,
        )

    def _append(
        self,
        hosted: HostedShard[Shard],
        writes: TurnWrites,
        on_done: Callable[[ProduceOutcome], None],
    ) -> None:
        partition = self._partitions.find(self.topic, hosted.partition)
        if isinstance(partition, ErrorCode):
            on_done(ProduceOutcome(partition))
            return
        partition.produce(
            writes.build(self._now_wall_ms()),
            acks=-1,
            timeout_ms=_WRITE_TIMEOUT_MS,
            on_done=on_done,
            expected_leader_epoch=hosted.leader_epoch,
            is_internal=True,
        )

    async def _tick_all(self) -> None:
        while True:
            await asyncio.sleep(self._tick_ms / 1000)
            for hosted in list(self._hosted.values()):
                hosted.take_of(partial(self._kind.tick, partition=hosted.partition))


def reload_wait_s(breaks: int) -> float:
    """Return after how many seconds a shard that failed `breaks` times in a row is loaded again: 0 after the first
    failure, then 0.4 to 5.
    """
    return 0.0 if breaks <= 1 else min(_LOAD_RETRY_S * 2 ** min(breaks, 10), _RELOAD_S_MAX)
