"""The partitions of this broker: look-ups for requests, watches for changes of the image, and fetches that wait for new
records.

The gRPC servicers, the Kafka listener and the coordinators all use this module, so that every rule applies to every
protocol. Everything runs on the broker's event loop, and no other thread may use this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from odradek_broker.cluster.heartbeat import Lease
from odradek_broker.partition.effects import Role
from odradek_broker.replication.outcomes import LeaderNow, ReadOutcome, Topic
from odradek_broker.replication.partition import Partition, ServingRules, absence
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_runtime.budget.loop_turns import Pace


class FetchWant(Struct, frozen=True, kw_only=True, gc=False):
    """One partition of a fetch, as `LocalPartitions.find` returned it, and the offset from which to read."""

    partition: Partition | ErrorCode
    offset: Offset
    bytes_max: int
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    last_fetched_epoch: LeaderEpoch = NO_LEADER_EPOCH


class LocalPartitions:
    """The partitions of which this broker has a replica."""

    def __init__(
        self,
        table: PartitionTable,
        lease: Lease,
        *,
        broker_id: BrokerId,
        reads_by_rack: bool,
        acks_all_without_controller: bool = True,
    ) -> None:
        self.watch_leadership: Final = table.watch_leadership
        self._table = table
        self._clock = table.clock
        self._rules = ServingRules(
            table=table,
            lease=lease,
            broker_id=broker_id,
            reads_by_rack=reads_by_rack,
            acks_all_without_controller=acks_all_without_controller,
        )
        self._image_watchers: dict[Callable[[MetadataImage], None], None] = {}
        self._is_image_call_due = False

    def find(self, topic: Topic, partition: PartitionIndex) -> Partition | ErrorCode:
        """Return this broker's replica of a partition. If there is none, return the error for the client."""
        table = self._table
        host = (
            table.by_id.get((topic, partition))
            if isinstance(topic, bytes)
            else table.by_name.get((topic, partition))
        )
        if host is None:
            return absence(table.image, topic, partition)
        return Partition(host, topic, self._rules)

    async def fetch(
        self,
        wants: Sequence[FetchWant],
        *,
        bytes_min: int,
        bytes_max: int,
        wait_ms_max: int,
        read_committed: bool,
        client_rack: str = "",
        may_send_files: bool = False,
        pace: Pace | None = None,
        hold: Callable[[int], None] | None = None,
    ) -> list[ReadOutcome]:
        """Read partitions in the order of `wants`. Wait until there are `bytes_min` bytes or an error, for at most
        `wait_ms_max`.

        At least one batch is returned even if it is larger than `bytes_max`. The caller cancels this when the client
        disconnects. With `may_send_files` an outcome may have a `file_slice`, which may be sent only if
        `Partition.gate_read` returns it. `pace` lets other requests run between thousands of `wants`. `hold` is called
        with the number of bytes of records that may be in memory: `bytes_max` before a read, then the number that was
        read.
        """
        deadline_ms = self._clock.monotonic_ms() + wait_ms_max
        waiter: FetchWaiter | None = None
        try:
            while True:
                if waiter is not None:
                    waiter.mark()
                if hold is not None:
                    hold(bytes_max)
                outcomes, is_of_one_moment = await _read_all(
                    wants,
                    bytes_max,
                    read_committed,
                    client_rack,
                    may_send_files,
                    pace,
                )
                if hold is not None:
                    hold(
                        sum(
                            outcome.size_bytes for outcome in outcomes if outcome.file_slice is None
                        )
                    )
                remaining_ms = deadline_ms - self._clock.monotonic_ms()
                if remaining_ms <= 0 or _is_worth_responding(outcomes, bytes_min):
                    return outcomes
                if waiter is None:
                    waiter = FetchWaiter(
                        [
                            want.partition.host
                            for want in wants
                            if not isinstance(want.partition, ErrorCode)
                        ],
                        is_committed_only=read_committed,
                    )
                    if not is_of_one_moment:
                        # Appends since a partition was read are not counted yet, so the partitions are read again.
                        continue
                missing_bytes = bytes_min - sum(outcome.size_bytes for outcome in outcomes)
                await waiter.wait(bytes_missing=missing_bytes, timeout_s=remaining_ms / 1000)
        finally:
            if waiter is not None:
                waiter.close()

    @property
    def image(self) -> MetadataImage:
        """The metadata image of this broker."""
        return self._table.image

    def leader_of(self, topic: Topic, partition: PartitionIndex) -> LeaderNow:
        """Return the leader of a partition, which NOT_LEADER_OR_FOLLOWER responses name for the client."""
        topic_id = topic if isinstance(topic, bytes) else self.image.topic_ids.get(topic)
        state = None if topic_id is None else self.image.partition(TopicId(topic_id), partition)
        if state is None:
            return LeaderNow(NO_BROKER, NO_LEADER_EPOCH)
        return LeaderNow(state.leader, LeaderEpoch(state.leader_epoch))

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        """Call `watcher` after changes of the image, at most once per iteration of the event loop. Return a function
        that ends the calls.
        """
        self._image_watchers[watcher] = None

        def unwatch() -> None:
            self._image_watchers.pop(watcher, None)

        return unwatch

    def image_changed(self) -> None:
        """Call the image watchers once in the next iteration of the event loop, for all changes until then."""
        if not self._is_image_call_due and self._image_watchers:
            self._is_image_call_due = True
            asyncio.get_running_loop().call_soon(self._tell_image_watchers)

    def _tell_image_watchers(self) -> None:
        self._is_image_call_due = False
        for watcher in tuple(self._image_watchers):
            watcher(self.image)


async def _read_all(
    wants: Sequence[FetchWant],
    bytes_max: int,
    read_committed: bool,
    client_rack: str,
    may_send_files: bool,
    pace: Pace | None,
) -> tuple[list[ReadOutcome], bool]:
    """Return the outcomes, and whether no other code ran between the first read and the last."""
    outcomes: list[ReadOutcome] = []
    remaining_bytes = bytes_max
    has_records = False
    is_of_one_moment = True
    for want in wants:
        if pace is not None and pace.is_due:
            is_of_one_moment = False
            await pace.turn()
        partition = want.partition
        if isinstance(partition, ErrorCode):
            outcomes.append(ReadOutcome(partition))
            continue
        preferred = partition.preferred_replica(client_rack)
        if preferred is not None:
            outcomes.append(preferred)
            continue
        result = partition.read(
            want.offset,
            bytes_max=min(want.bytes_max, max(remaining_bytes, 0)),
            read_committed=read_committed,
            current_leader_epoch=want.current_leader_epoch,
            last_fetched_epoch=want.last_fetched_epoch,
            at_least_one_batch=not has_records,
            may_send_files=may_send_files,
        )
        if isinstance(result, ReadOutcome):
            outcome = result
        else:
            is_of_one_moment = False
            outcome = await result
        remaining_bytes -= outcome.size_bytes
        has_records = has_records or outcome.size_bytes > 0
        outcomes.append(outcome)
    return outcomes, is_of_one_moment


def _is_worth_responding(outcomes: Sequence[ReadOutcome], bytes_min: int) -> bool:
    return sum(outcome.size_bytes for outcome in outcomes) >= bytes_min or any(
        outcome.error is not ErrorCode.NONE
        or outcome.preferred_read_replica != NO_BROKER
        or outcome.diverging is not None
        for outcome in outcomes
    )


class FetchWaiter:
    """Lets one fetch wait until enough records are readable. The fetch calls `mark`, reads, and calls `wait` for the
    missing bytes.

    `wait` ends when as many bytes as the fetch lacks have become readable since `mark`: bytes below the high watermarks
    or, with read_committed, below the last stable offsets. So a fetch with `bytes_min` of a megabyte does not read
    again after each kilobyte. When an offset moves, only its partition is examined, so the cost does not depend on the
    number of partitions in the fetch.
    """

    __slots__ = (
        "_bytes_came",
        "_bytes_missing",
        "_has_role_changed",
        "_hosts",
        "_is_committed_only",
        "_over",
        "_roles",
        "_visible",
    )

    def __init__(self, hosts: Sequence[PartitionHost], *, is_committed_only: bool) -> None:
        self._hosts = hosts
        self._is_committed_only = is_committed_only
        self._over: asyncio.Future[None] | None = None  # done when `wait` should end
        self._bytes_missing = 0
        self.mark()
        for host in hosts:
            host.watchers[self] = None

    def mark(self) -> None:
        """Start to count readable bytes. The fetch calls this directly before it reads."""
        self._bytes_came = 0
        self._has_role_changed = False
        self._visible = {host: self._visible_bytes(host) for host in self._hosts}
        self._roles = {host: _role(host) for host in self._hosts}

    def on_partition_moved(self, host: PartitionHost) -> None:
        """Count the bytes that became readable. Wake the fetch if they are enough, or if the replica's role changed."""
        visible = self._visible_bytes(host)
        self._bytes_came += visible - self._visible[host]
        self._visible[host] = visible
        if self._roles[host] != _role(host):
            self._has_role_changed = True
        if self._over is not None and self._is_over:
            _end(self._over)

    def _visible_bytes(self, host: PartitionHost) -> int:
        return host.stable_bytes if self._is_committed_only else host.visible_bytes

    async def wait(self, *, bytes_missing: int, timeout_s: float) -> None:
        """Wait until `bytes_missing` bytes became readable since `mark`, a role changed, or the timeout passed."""
        self._bytes_missing = bytes_missing
        if self._is_over:
            return
        # A future and a timer cost a third of an Event and asyncio.timeout, and thousands of fetches may wait.
        loop = asyncio.get_running_loop()
        over = self._over = loop.create_future()
        timer = loop.call_later(timeout_s, _end, over)
        try:
            await over
        finally:
            timer.cancel()
            self._over = None

    def close(self) -> None:
        """Stop watching the partitions."""
        for host in self._hosts:
            host.watchers.pop(self, None)

    @property
    def _is_over(self) -> bool:
        return self._has_role_changed or self._bytes_came >= self._bytes_missing


def _end(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def _role(host: PartitionHost) -> tuple[Role, int]:
    return host.replica.role, host.replica.leader_epoch
