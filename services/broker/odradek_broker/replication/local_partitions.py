"""The partition service of this broker: finds partitions, lets fetches wait, and applies the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from odradek_broker.cluster.heartbeat import Lease
from odradek_broker.partition.effects import Role
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_offsets import PartitionOffsets
from odradek_broker.replication.partition_reads import read_partition
from odradek_broker.replication.partition_service import (
    FetchWant,
    LeaderNow,
    LeadershipWatcher,
    OffsetOutcome,
    ProduceOutcome,
    ReadOutcome,
    Topic,
)
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.topic_names import INTERNAL_TOPICS
from odradek_runtime.budget.loop_turns import Pace

_ACKS_ALL: Final = -1
_PRODUCE_ACKS: Final = frozenset({_ACKS_ALL, 0, 1})


class LocalPartitions:
    """Implements PartitionService for the replicas in this broker's table."""

    def __init__(
        self,
        table: PartitionTable,
        lease: Lease,
        *,
        broker_id: BrokerId,
        reads_by_rack: bool,
        acks_all_without_controller: bool = True,
    ) -> None:
        self._table = table
        self._clock = table.clock
        self._offsets = PartitionOffsets(table, self._may_answer)
        self._lease = lease
        self._broker_id = broker_id
        self._reads_by_rack = reads_by_rack
        self._acks_all_without_controller = acks_all_without_controller
        self._image_watchers: dict[Callable[[MetadataImage], None], None] = {}
        self._is_image_news_due = False

    def produce(
        self,
        topic: Topic,
        partition: PartitionIndex,
        records: bytes | bytearray | memoryview,
        *,
        acks: int,
        timeout_ms: int,
        on_done: Callable[[ProduceOutcome], None],
        expected_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        is_internal: bool = False,
    ) -> None:
        self._table.counters.produce_requests += 1
        host = self.find(topic, partition)
        if host is None:
            on_done(ProduceOutcome(self._absent(topic, partition)))
            return
        if acks not in _PRODUCE_ACKS:
            on_done(
                ProduceOutcome(
                    ErrorCode.INVALID_REQUIRED_ACKS, message=f"acks={acks}: must be 0, 1 or -1"
                )
            )
            return
        if not is_internal and host.topic in INTERNAL_TOPICS:
            on_done(
                ProduceOutcome(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    message=f"{host.topic} is an internal topic, which only brokers write",
                )
            )
            return
        host.produce(
            records,
            acks=acks,
            timeout_ms=timeout_ms,
            on_done=on_done,
            expected_leader_epoch=expected_leader_epoch,
            is_internal=is_internal,
        )

    async def produce_async(
        self,
        topic: Topic,
        partition: PartitionIndex,
        records: bytes | bytearray | memoryview,
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        expected_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        is_internal: bool = False,
    ) -> ProduceOutcome:
        done: asyncio.Future[ProduceOutcome] = asyncio.get_running_loop().create_future()
        self.produce(
            topic,
            partition,
            records,
            acks=acks,
            timeout_ms=timeout_ms,
            on_done=lambda outcome: None if done.done() else done.set_result(outcome),
            expected_leader_epoch=expected_leader_epoch,
            is_internal=is_internal,
        )
        return await done

    async def fetch(
        self,
        wants: Sequence[FetchWant],
        *,
        bytes_min: int,
        bytes_max: int,
        wait_ms_max: int,
        read_committed: bool,
        client_rack: str = "",
        hard_bytes_max: bool = False,
        may_send_files: bool = False,
        pace: Pace | None = None,
    ) -> list[ReadOutcome]:
        deadline_ms = self._clock.monotonic_ms() + wait_ms_max
        waiter: FetchWaiter | None = None
        hosts = [host for want in wants if (host := self.find(*_named(want))) is not None]
        try:
            while True:
                if waiter is not None:
                    waiter.mark()
                outcomes = await self._read_all(
                    wants,
                    bytes_max,
                    read_committed,
                    client_rack,
                    hard_bytes_max,
                    may_send_files,
                    pace,
                )
                remaining_ms = deadline_ms - self._clock.monotonic_ms()
                if remaining_ms <= 0 or _is_worth_answering(outcomes, bytes_min):
                    return outcomes
                if waiter is None:
                    # Records that came between the first read and now would be missed, so read again.
                    waiter = FetchWaiter(hosts)
                    continue
                missing_bytes = bytes_min - sum(outcome.size_bytes for outcome in outcomes)
                await waiter.wait(bytes_missing=missing_bytes, timeout_s=remaining_ms / 1000)
        finally:
            if waiter is not None:
                waiter.close()

    async def _read_all(
        self,
        wants: Sequence[FetchWant],
        bytes_max: int,
        read_committed: bool,
        client_rack: str,
        hard_bytes_max: bool,
        may_send_files: bool,
        pace: Pace | None,
    ) -> list[ReadOutcome]:
        outcomes: list[ReadOutcome] = []
        remaining_bytes = bytes_max
        has_records = False
        for want in wants:
            if pace is not None and pace.is_due:
                await pace.turn()
            preferred = self.preferred_replica(*_named(want), client_rack)
            if preferred is not None:
                outcomes.append(preferred)
                continue
            bounded = want
            if want.bytes_max > remaining_bytes:
                bounded = replace(want, bytes_max=max(remaining_bytes, 0))
            if remaining_bytes <= 0 and has_records:
                bounded = replace(want, bytes_max=0)
            result = self.read_now(
                bounded,
                read_committed=read_committed,
                at_least_one_batch=not has_records and not hard_bytes_max,
                may_send_files=may_send_files,
            )
            outcome = result if isinstance(result, ReadOutcome) else await result
            remaining_bytes -= outcome.size_bytes
            has_records = has_records or outcome.size_bytes > 0
            outcomes.append(outcome)
        return outcomes

    def read_now(
        self,
        want: FetchWant,
        *,
        read_committed: bool,
        at_least_one_batch: bool = True,
        may_send_files: bool = False,
    ) -> ReadOutcome | Awaitable[ReadOutcome]:
        topic, partition = _named(want)
        host = self.find(topic, partition)
        if host is None:
            return ReadOutcome(self._absent(topic, partition))
        return read_partition(
            self._table,
            host,
            want.offset,
            bytes_max=want.bytes_max,
            is_committed_only=read_committed,
            current_leader_epoch=want.current_leader_epoch,
            last_fetched_epoch=want.last_fetched_epoch,
            at_least_one_batch=at_least_one_batch,
            may_send_files=may_send_files,
        )

    def preferred_replica(
        self, topic: Topic, partition: PartitionIndex, client_rack: str
    ) -> ReadOutcome | None:
        """KIP-392: return an outcome that names an in-sync replica in the client's rack; None: read from this one."""
        if not self._reads_by_rack or not client_rack:
            return None
        host = self.find(topic, partition)
        if host is None or not host.is_leader:
            return None
        image = self._table.image
        state = image.partition(host.partition.topic_id, partition)
        own = image.brokers.get(self._broker_id)
        if state is None or own is None or own.rack == client_rack:
            return None
        for broker_id in state.isr:
            broker = image.brokers.get(broker_id)
            if broker is not None and broker.is_live and broker.rack == client_rack:
                return ReadOutcome(
                    ErrorCode.NONE,
                    high_watermark=host.replica.high_watermark,
                    last_stable_offset=host.log.last_stable_offset,
                    log_start_offset=host.log.log_start_offset,
                    leader_epoch=host.replica.leader_epoch,
                    preferred_read_replica=broker_id,
                )
        return None

    async def list_offsets(
        self,
        topic: Topic,
        partition: PartitionIndex,
        timestamp_ms: int,
        *,
        read_committed: bool = False,
        current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    ) -> OffsetOutcome:
        host = self.find(topic, partition)
        if host is None:
            return OffsetOutcome(self._absent(topic, partition))
        return await self._offsets.at_time(
            host,
            timestamp_ms,
            is_committed_only=read_committed,
            current_leader_epoch=current_leader_epoch,
        )

    def offset_for_leader_epoch(
        self,
        topic: Topic,
        partition: PartitionIndex,
        leader_epoch: LeaderEpoch,
        *,
        current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    ) -> OffsetOutcome:
        host = self.find(topic, partition)
        if host is None:
            return OffsetOutcome(self._absent(topic, partition))
        return self._offsets.end_of_epoch(
            host, leader_epoch, current_leader_epoch=current_leader_epoch
        )

    async def delete_records(
        self, topic: Topic, partition: PartitionIndex, before_offset: Offset, *, timeout_ms: int
    ) -> OffsetOutcome:
        host = self.find(topic, partition)
        if host is None:
            return OffsetOutcome(self._absent(topic, partition))
        return await self._offsets.delete_before(host, before_offset, timeout_ms=timeout_ms)

    def gate_produce(
        self, topic: Topic, partition: PartitionIndex, outcome: ProduceOutcome, *, acks: int
    ) -> ProduceOutcome:
        if outcome.error is not ErrorCode.NONE:
            return outcome
        host = self.find(topic, partition)
        is_replicated = acks == _ACKS_ALL and self._acks_all_without_controller
        if host is not None and self._may_answer(
            host, outcome.leader_epoch, is_replicated=is_replicated
        ):
            return outcome
        return ProduceOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def gate_read(
        self, topic: Topic, partition: PartitionIndex, outcome: ReadOutcome
    ) -> ReadOutcome:
        if outcome.error is not ErrorCode.NONE or self.may_answer(
            topic, partition, outcome.leader_epoch
        ):
            return outcome
        return ReadOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def may_answer(
        self, topic: Topic, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> bool:
        host = self.find(topic, partition)
        return host is not None and self._may_answer(host, leader_epoch)

    def _may_answer(
        self, host: PartitionHost, leader_epoch: LeaderEpoch, *, is_replicated: bool = False
    ) -> bool:
        return not host.is_removed and host.replica.may_answer(
            leader_epoch,
            lease_until_ms=self._lease.until_ms,
            now_ms=self._clock.boottime_ms(),
            is_replicated=is_replicated,
        )

    def log_end(self, topic: Topic, partition: PartitionIndex) -> Offset:
        host = self.find(topic, partition)
        return NO_OFFSET if host is None else host.replica.log_end

    @property
    def image(self) -> MetadataImage:
        return self._table.image

    def leader_of(self, topic: Topic, partition: PartitionIndex) -> LeaderNow:
        topic_id = topic if isinstance(topic, bytes) else self.image.topic_ids.get(topic)
        state = None if topic_id is None else self.image.partition(TopicId(topic_id), partition)
        if state is None:
            return LeaderNow(NO_BROKER, NO_LEADER_EPOCH)
        return LeaderNow(state.leader, LeaderEpoch(state.leader_epoch))

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        self._image_watchers[watcher] = None

        def unwatch() -> None:
            self._image_watchers.pop(watcher, None)

        return unwatch

    def image_changed(self) -> None:
        """Call the watchers of the image in the next turn of the loop, once for all changes until then."""
        if not self._is_image_news_due and self._image_watchers:
            self._is_image_news_due = True
            asyncio.get_running_loop().call_soon(self._tell_image_watchers)

    def _tell_image_watchers(self) -> None:
        self._is_image_news_due = False
        for watcher in tuple(self._image_watchers):
            watcher(self.image)

    def watch_leadership(self, topic: TopicName, watcher: LeadershipWatcher) -> None:
        self._table.watch_leadership(topic, watcher)

    def find(self, topic: Topic, partition: PartitionIndex) -> PartitionHost | None:
        """Return the replica of that partition on this broker, if there is one."""
        if isinstance(topic, bytes):
            return self._table.by_id.get((topic, partition))
        return self._table.by_name.get((topic, partition))

    def _absent(self, topic: Topic, partition: PartitionIndex) -> ErrorCode:
        """Return the error for a requested partition that has no replica on this broker."""
        if isinstance(topic, bytes):
            if topic not in self.image.topics:
                return ErrorCode.UNKNOWN_TOPIC_ID
            topic_id: bytes | None = topic
        else:
            topic_id = self.image.topic_ids.get(topic)
        if topic_id is None or self.image.partition(TopicId(topic_id), partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER


def _named(want: FetchWant) -> tuple[Topic, PartitionIndex]:
    topic: Topic | None = want.topic_id if want.topic_id is not None else want.topic
    assert topic is not None, "a fetch that names no topic"
    return topic, want.partition


def _is_worth_answering(outcomes: Sequence[ReadOutcome], bytes_min: int) -> bool:
    return sum(outcome.size_bytes for outcome in outcomes) >= bytes_min or any(
        outcome.error is not ErrorCode.NONE
        or outcome.preferred_read_replica != NO_BROKER
        or outcome.diverging is not None
        for outcome in outcomes
    )


class FetchWaiter:
    """Lets one fetch wait until enough records are readable: `mark`, read, then `wait` for the missing bytes.

    `wait` ends once as many bytes as the fetch lacks fell below the high watermarks since `mark`, so a fetch
    that wants a megabyte does not read again for each kilobyte. When a watermark moves, only its partition is
    examined, so the cost does not depend on the number of partitions in the fetch.
    """

    __slots__ = (
        "_bytes_came",
        "_bytes_missing",
        "_has_role_changed",
        "_hosts",
        "_moved",
        "_roles",
        "_visible",
    )

    def __init__(self, hosts: Sequence[PartitionHost]) -> None:
        self._hosts = hosts
        self._moved = asyncio.Event()
        self._bytes_missing = 0
        self.mark()
        for host in hosts:
            host.watchers[self] = None

    def mark(self) -> None:
        """Start counting; to be called directly before the fetch reads."""
        self._bytes_came = 0
        self._has_role_changed = False
        self._visible = {host: host.visible_bytes for host in self._hosts}
        self._roles = {host: _role(host) for host in self._hosts}

    def on_partition_moved(self, host: PartitionHost) -> None:
        """Count what became readable, and wake the fetch if that is enough or the role changed."""
        visible = host.visible_bytes
        self._bytes_came += visible - self._visible[host]
        self._visible[host] = visible
        if self._roles[host] != _role(host):
            self._has_role_changed = True
        if self._is_over:
            self._moved.set()

    async def wait(self, *, bytes_missing: int, timeout_s: float) -> None:
        """Wait until so many bytes became readable since `mark`, a role changed, or the timeout passed."""
        self._bytes_missing = bytes_missing
        if self._is_over:
            return
        self._moved.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Stop watching the partitions."""
        for host in self._hosts:
            host.watchers.pop(self, None)

    @property
    def _is_over(self) -> bool:
        return self._has_role_changed or self._bytes_came >= self._bytes_missing


def _role(host: PartitionHost) -> tuple[Role, int]:
    return host.replica.role, host.replica.leader_epoch
