"""One member of a consumer group (KIP-848): its heartbeats, its assigned and revoked partitions, its commits.

    OUTSIDE --join--> INSIDE --close--> OUTSIDE
       ^                 |
       +--- fenced, or no response for a session timeout: the partitions are lost ---+

The coordinator sends a target assignment in its response to a heartbeat. The member first revokes partitions that are
not in the target: it returns no more of their records, waits until the program requests further records (and so has
processed the earlier ones), commits, and calls `on_revoke`. The next heartbeat lists the partitions that the member
still owns. Then the member starts new partitions at their committed offsets, and returns their records after
`on_assign` has returned. Heartbeats continue during these steps, so a slow `on_revoke` is limited only by
`rebalance_timeout_ms`.

Automatic commits cover the records that were returned before the last read began. If a program dies while it processes
records, those records are read again (at least once), and none is lost.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from odradek.cluster.background import BackgroundTasks
from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster
from odradek.cluster.methods import GROUP_HEARTBEAT
from odradek.cluster.turns import in_turns
from odradek.cluster.wait_report import reported_call
from odradek.consumer.group_offsets import (
    CALL_S_MAX,
    COORDINATOR_MOVES,
    PATIENCE_S,
    GroupOffsets,
    Offsets,
)
from odradek.consumer.group_waits import report_missing_partitions, report_missing_topics
from odradek.consumer.options import GroupIdentity, GroupListener, GroupOptions
from odradek.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    InvalidRequest,
    LeaderNotAvailable,
    MemberFenced,
    OdradekError,
    RequestTimedOut,
    UnknownTopic,
    UnsupportedOperation,
    error_code,
    error_of,
)
from odradek.partitions import EARLIEST, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import group_service_pb2 as pb

_JOIN: Final = 0
_LEAVE: Final = -1
_LEAVE_STATIC: Final = -2
# After this time without a response, the coordinator has probably removed the member.
_SESSION_S: Final = 45.0
_TOPIC_S: Final = 10.0
# The first warning is logged after five failures, which take three seconds, and another one after every 15 further
# failures, which take half a minute.
_WARNING_AT: Final = 5
_WARNING_EVERY: Final = 15
_UNHEARD_LEAVE_S_MAX: Final = 2.0
_REJOIN: Final = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
_TRANSIENT: Final = (*COORDINATOR_MOVES, ErrorCode.UNRELEASED_INSTANCE_ID)
_HOPELESS: Final = (AuthenticationFailed, AuthorizationFailed, UnsupportedOperation)
_log = logging.getLogger(__name__)


class Reader(Protocol):
    """The methods of a consumer that the group membership calls."""

    def take_over(
        self, owned: Sequence[TopicPartition], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Read exactly these partitions. No records of a new partition are returned until `release`. A new partition
        starts at its offset in `starts`, which may be EARLIEST; without one, auto_offset_reset determines the start.
        """

    def release(self, names: Sequence[TopicPartition]) -> None:
        """Let the program get records of these partitions from now on."""

    def suspend(self, names: Sequence[TopicPartition]) -> None:
        """Let the program get no more records of these partitions, because they are being revoked."""

    def returned_offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return, by partition, the offset after the last returned record, and the leader epoch of that record (-1:
        unknown).
        """

    def fail(self, error: OdradekError) -> None:
        """Make the next read raise this error."""


class GroupMembership:
    """The group membership of one consumer. `start` joins the group, and `close` leaves it."""

    def __init__(
        self, cluster: Cluster, options: GroupOptions, topics: frozenset[str], reader: Reader
    ) -> None:
        self.options = options
        self.member_id = options.member_id or str(uuid.uuid4())
        self.member_epoch = _JOIN
        self.removal_count = 0
        # The owned partitions, with the ids of their topics.
        self.owned: dict[TopicPartition, bytes] = {}
        self._encoded_owned: tuple[object, list[pb.GroupTopicPartitions]] = (self.owned, [])
        # Internal topics that match the pattern. The member owns their partitions, but does not read them.
        self._excluded: set[str] = set()
        self._topics = topics
        # By topic: the topic's id and number of partitions when this member subscribed to the topic.
        self._subscribed: dict[str, tuple[bytes, int]] = {}
        self._cluster = cluster
        self._reader = reader
        self._target: dict[TopicPartition, bytes] | None = None
        self._committable: dict[TopicPartition, tuple[int, int]] = {}
        self._offsets = GroupOffsets(cluster, options.group, options.instance_id)
        self._tasks = BackgroundTasks(f"group {options.group}")
        self._wake = asyncio.Event()
        # Set when the member has joined, and also when the group refuses the member permanently (`refusal`).
        self._has_joined = asyncio.Event()
        self.refusal: OdradekError | None = None
        """The error with which the group refused the member permanently; None if it was not refused."""
        self._sends_subscription = True
        self._reconciling: asyncio.Task[None] | None = None
        self._interval_s = 5.0
        self.is_active = False
        self.commits_in_transactions = False
        """Whether a transactional producer commits this member's offsets, so that the member itself must not commit."""
        self._is_join_under_way = False
        # Set before the first read, and while the program waits for further records.
        self._is_all_processed = asyncio.Event()
        self._is_all_processed.set()

    @property
    def awaits_partitions(self) -> bool:
        """Whether a topic of this member exists, but the coordinator has not assigned any partitions to the member."""
        if self.owned or self._target or self.refusal:
            return False
        exists = (self._cluster.cache.topic(name) is not None for name in self._topics)
        return self.options.pattern is not None or any(exists)

    def start(self) -> None:
        """Join the group, without waiting."""
        if not self.is_active and self.member_epoch == _JOIN:
            self.is_active = True
            self._cluster.start()
            self._tasks.start(self._heartbeat(), "heartbeat")
            reporting = report_missing_partitions(self, self.options.group, self._has_joined)
            self._tasks.start(reporting, "report")
            if self.options.auto_commit:
                self._tasks.start(self._commit_at_intervals(), "commit")

    def subscribe(self, topics: frozenset[str]) -> None:
        """Change the subscription, and send it to the coordinator without delay."""
        self._topics = topics
        if to_read := self._excluded & topics:
            # The member already owns the partitions of these topics, but does not read them. Without these partitions,
            # `owned` differs from the target assignment, so `_reconcile` starts them as new partitions.
            self._excluded -= to_read
            self.owned = {name: i for name, i in self.owned.items() if name.topic not in to_read}
            # A take-over in progress has not looked up the committed offsets of these topics, so it must not finish.
            # The coordinator's response to the new subscription contains the target assignment again.
            self._target = None
        self._sends_subscription = True
        self._wake.set()

    def read_begins(self) -> None:
        """Count all records that were returned so far as processed, because the program requests further records."""
        self._committable = self._reader.returned_offsets()
        self._is_all_processed.set()

    def read_ended(self) -> None:
        """Note that the program has received records that it has not processed yet."""
        self._is_all_processed.clear()

    async def close(self, *, is_processed: bool = True) -> None:
        """Commit, revoke all partitions and leave the group. All this takes CALL_S_MAX at most.

        `is_processed` is False if the program failed while it processed its last records.
        """
        if not self.is_active:
            return
        self.is_active = False  # A second call returns immediately.
        await self._tasks.stop()
        try:
            if self.member_epoch > 0:
                async with asyncio.timeout(CALL_S_MAX):
                    if self.options.auto_commit:
                        if is_processed:
                            self.read_begins()
                        await self._commit_revoked(list(self.owned))
                    await _call(self.options.on_revoke, self._readable(self.owned))
                    await self._leave(CALL_S_MAX)
            elif self._is_join_under_way:  # The coordinator may have accepted the join.
                await self._leave(_UNHEARD_LEAVE_S_MAX)
        except (OdradekError, TimeoutError) as error:
            _log.warning("Failed to leave group %s: %s", self.options.group, error)

    async def _leave(self, timeout_s: float) -> None:
        static = self.options.instance_id is not None
        request = self._request(_LEAVE_STATIC if static else _LEAVE)
        what = f"group {self.options.group!r} to confirm that this member left"
        with reported_call(what, self._cluster.explain_waiting) as note_error:
            await self._cluster.call_any(
                GROUP_HEARTBEAT, request, timeout_s=timeout_s, note_error=note_error
            )

    async def _heartbeat(self) -> None:
        backoff = Backoff(first_ms=100, most_ms=2_000)
        failures, last_response_s = 0, time.monotonic()
        while True:
            await self._encode_owned()
            self._is_join_under_way = self.member_epoch == _JOIN
            what = "to accept this member" if self._is_join_under_way else "to answer a heartbeat"
            try:
                with reported_call(
                    f"group {self.options.group!r} {what}",
                    self._cluster.explain_waiting,
                    waited_s=time.monotonic() - last_response_s,
                ) as note_error:
                    await self._note_topics()
                    response = await self._cluster.call_any(
                        GROUP_HEARTBEAT,
                        self._request(self.member_epoch),
                        timeout_s=CALL_S_MAX,
                        note_error=note_error,
                    )
                code = error_code(response.error_code)
            except _HOPELESS as error:
                await self._stop_refused(error)
                return
            except OdradekError as error:
                _log.warning("Heartbeat to group %s failed: %s", self.options.group, error)
                response, code = pb.GroupHeartbeatResponse(), ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._is_join_under_way = False
            if code is ErrorCode.NONE:
                failures, last_response_s = 0, time.monotonic()
                self._on_response(response)
            elif code in _REJOIN:
                await self._lose_partitions()
                continue
            elif code in _TRANSIENT or code.retriable:
                failures += 1
                if failures % _WARNING_EVERY == _WARNING_AT and response.error_code:
                    reason = response.error_message or code.name.lower().replace("_", " ")
                    _log.warning(
                        "Group %s does not accept this member yet: %s", self.options.group, reason
                    )
                self._sends_subscription = True
                if time.monotonic() - last_response_s > _SESSION_S and self.member_epoch > 0:
                    await self._lose_partitions()
                await asyncio.sleep(backoff.after(failures, random.random()) / 1000)
                continue
            else:
                subject = f"group {self.options.group!r}"
                await self._stop_refused(
                    error_of(response.error_code, subject, response.error_message)
                )
                return
            await self._wait_interval()

    async def _stop_refused(self, error: OdradekError) -> None:
        """Handle a permanent refusal by the group. The member then owns no partitions, and every read raises the
        error.
        """
        self.refusal = error
        self._has_joined.set()
        self._reader.fail(error)
        await self._lose_partitions()

    async def _note_topics(self) -> None:
        """Record the ids and partition counts of newly subscribed topics, before a heartbeat sends the subscription to
        the coordinator.
        """
        topics = self._topics - self._subscribed.keys()
        if not topics:
            return
        await self._cluster.fetch_topics(topics, timeout_s=CALL_S_MAX)
        async for name in in_turns(topics):
            topic = self._cluster.cache.topic(name)
            self._subscribed[name] = (
                (b"", 0) if topic is None else (topic.topic_id, len(topic.partitions))
            )
        missing = [name for name in topics if self._subscribed[name] == (b"", 0)]
        if missing:
            reporting = report_missing_topics(self._cluster, self.options.group, missing)
            self._tasks.start(reporting, "report")

    async def _wait_interval(self) -> None:
        try:
            async with asyncio.timeout(self._interval_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _encode_owned(self) -> None:
        """Encode the owned partitions for heartbeats if they changed, and let other tasks run in between."""
        while self._encoded_owned[0] is not (owned := self.owned):
            topics: dict[bytes, pb.GroupTopicPartitions] = {}
            async for name, topic_id in in_turns(owned.items()):
                if topic_id not in topics:
                    topics[topic_id] = pb.GroupTopicPartitions(topic_id=topic_id, topic=name.topic)
                topics[topic_id].partitions.append(name.partition)
            self._encoded_owned = owned, list(topics.values())

    def _request(self, epoch: int) -> pb.GroupHeartbeatRequest:
        options = self.options
        request = pb.GroupHeartbeatRequest(
            group_id=options.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=options.instance_id,
            rebalance_timeout_ms=-1,
            assignor=options.assignor,
            has_owned=True,
        )
        if epoch >= 0 and (self._sends_subscription or epoch == _JOIN):
            # The subscription is sent when the member joins, when the subscription changes, and after a failure.
            self._sends_subscription = False
            request.rebalance_timeout_ms = options.rebalance_timeout_ms
            request.has_subscription = True
            request.subscribed_topics.extend(sorted(self._topics))
            if options.pattern is not None:
                request.subscribed_pattern = options.pattern
        if epoch > 0:
            request.owned.extend(self._encoded_owned[1])
        return request

    def _on_response(self, response: pb.GroupHeartbeatResponse) -> None:
        self.member_epoch = response.member_epoch
        self._has_joined.set()
        self._interval_s = max(0.05, response.heartbeat_interval_ms / 1000)
        if response.has_assignment:
            self._target = {
                TopicPartition(topic.topic, index): topic.topic_id
                for topic in response.assignment
                for index in topic.partitions
            }
        is_idle = self._reconciling is None or self._reconciling.done()
        if self._target is not None and self._target != self.owned and is_idle:
            self._reconciling = self._tasks.start(self._reconcile(), "reconcile")

    async def _reconcile(self) -> None:
        """Change the owned partitions to the target assignment, then send a heartbeat without delay."""
        target = self._target
        assert target is not None, "there is no target"
        kept = {name: i for name, i in self.owned.items() if target.get(name) == i}
        revoked = [name for name in self.owned if name not in kept]
        if revoked:
            self._reader.suspend(self._readable(revoked))
            await self._until_processed()
            # A revoked partition that is also in the target belongs to a topic that was created again. The offset of
            # the deleted topic must not be committed for the new topic.
            if self.options.auto_commit:
                await self._commit_revoked([name for name in revoked if name not in target])
            await self._call_listener(self.options.on_revoke, self._readable(revoked))
            self._own(kept, {})
        new = [name for name in target if name not in self.owned]
        if new:
            try:
                starts = await self._starts(new, target)
                # `_starts`, `_own` and `release` each visit all partitions, so other tasks run between them.
                await asyncio.sleep(0)
            except OdradekError as error:
                group = self.options.group
                _log.warning("Failed to look up committed offsets of group %s: %s", group, error)
                if not error.retriable:
                    self._reader.fail(error)
                await asyncio.sleep(0.2)
                self._wake.set()
                self._sends_subscription = True  # Makes the coordinator send the target again.
                return
            if self._target is target:
                self._own(target, starts)
                await asyncio.sleep(0)
                await self._call_listener(self.options.on_assign, self._readable(new))
                self._reader.release(self._readable(new))
        self._wake.set()

    async def _until_processed(self) -> None:
        """Wait until the program has processed its records, for at most half of the rebalance timeout."""
        try:
            async with asyncio.timeout(self.options.rebalance_timeout_ms / 2000):
                await self._is_all_processed.wait()
        except TimeoutError:
            return  # The next owner of the partitions reads these records again.
        self._committable = self._reader.returned_offsets()

    def _own(
        self, owned: Mapping[TopicPartition, bytes], starts: Mapping[TopicPartition, int]
    ) -> None:
        self.owned = dict(owned)
        self._committable = {n: at for n, at in self._committable.items() if n in owned}
        self._offsets.keep_only(owned)
        self._reader.take_over(self._readable(owned), starts)

    def _readable(self, names: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [name for name in names if name.topic not in self._excluded]

    async def _starts(
        self, names: Sequence[TopicPartition], target: Mapping[TopicPartition, bytes]
    ) -> dict[TopicPartition, int]:
        """Return the offsets at which to start new partitions: their committed offsets. A partition without a committed
        offset starts at EARLIEST if it did not exist when this member subscribed to its topic, so that no record of it
        is missed.
        """
        ids: dict[str, bytes] = {}
        async for partition in in_turns(names):
            ids[partition.topic] = target[partition]
        async for name, topic_id in in_turns(sorted(ids.items())):
            topic = await self._cluster.topic(name, timeout_s=_TOPIC_S)
            if topic.topic_id != topic_id:
                self._cluster.refresh_soon()
                raise LeaderNotAvailable(
                    f"the topic id of {name!r} in the metadata is not the one in the assignment"
                )
            self._subscribed.setdefault(name, (topic_id, len(topic.partitions)))
            # The coordinator matches the pattern against all topics, and RE2 cannot express exceptions. So the member
            # owns the partitions of internal topics, as its target requires, but does not read them.
            is_by_pattern = self.options.pattern is not None and name not in self._topics
            if topic.is_internal and is_by_pattern and self.options.exclude_internal_topics:
                self._excluded.add(name)
        committed = await self._offsets.committed(self._readable(names))
        return {
            name: EARLIEST if offset is None else offset
            async for name, offset in in_turns(committed.items())
            if offset is not None or self._is_added(name, target[name])
        }

    def _is_added(self, name: TopicPartition, topic_id: bytes) -> bool:
        """Return whether the partition did not exist when this member subscribed to its topic."""
        first_id, first_count = self._subscribed[name.topic]
        return topic_id != first_id or name.partition >= first_count

    async def _lose_partitions(self) -> None:
        """Drop all partitions, because the group fenced or removed this member and other members own the partitions
        now.
        """
        if self._reconciling is not None:
            self._reconciling.cancel()
        lost = self._readable(self.owned)
        self.removal_count += 1
        self.member_epoch, self._sends_subscription, self._target = _JOIN, True, None
        if self.options.instance_id is not None:
            self.member_id = str(uuid.uuid4())
        self._own({}, {})
        if lost:
            _log.warning("Group %s removed this member", self.options.group)
            await self._call_listener(self.options.on_lost or self.options.on_revoke, lost)

    async def _call_listener(
        self, listener: GroupListener | None, names: Sequence[TopicPartition]
    ) -> None:
        await _call(listener, names)
        if not self.is_active:  # The listener closed the consumer.
            raise asyncio.CancelledError

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit `offsets`; None: the offsets after all returned records. Waits until the member has joined the group.

        Raises:
            MemberFenced: the group removed this member.
            OdradekError: a partition does not exist, the member is not authorized, or no coordinator responds.
        """
        if self.commits_in_transactions:
            raise InvalidRequest(
                f"the offsets of group {self.options.group!r} are committed in transactions",
                hint="use `transaction.send_offsets` instead of `commit`",
            )
        await self._wait_joined()
        if offsets is None:
            to_commit = self._reader.returned_offsets()
        else:
            to_commit = {name: (offset, -1) for name, offset in offsets.items()}
        # Later automatic commits must not commit lower offsets.
        async for name, at in in_turns(to_commit.items()):
            if name in self.owned:
                self._committable[name] = at
        await self._offsets.commit(
            self._offsets.unknown(to_commit) if offsets is None else to_commit, self
        )

    async def committed(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of the group. None: the partition has no committed offset."""
        return await self._offsets.committed(names)

    async def _wait_joined(self) -> None:
        self.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._has_joined.wait()
        except TimeoutError:
            raise RequestTimedOut(
                f"the group {self.options.group!r} did not accept this member within {PATIENCE_S} s"
            ) from None
        if self.refusal is not None:
            raise self.refusal

    def identity(self) -> GroupIdentity:
        """Return the identity of this member, for offsets that a transaction commits."""
        return GroupIdentity(
            self.options.group, self.member_id, self.member_epoch, self.options.instance_id
        )

    def leave_commits(self, offsets: Mapping[TopicPartition, int]) -> GroupIdentity:
        """Stop committing, because a transaction commits these offsets and all later ones.

        Raises:
            MemberFenced: the member lost a partition after it had read the records before the partition's offset in
                `offsets`, so the next owner reads these records again. The next owner may be this member, whose epoch
                is then valid. So offsets are compared with positions, instead of epochs.
        """
        self.commits_in_transactions = True
        read = self._reader.returned_offsets()
        for name, offset in offsets.items():
            if name not in read or offset > read[name][0]:
                raise MemberFenced(
                    f"{name} was revoked from this member of group {self.options.group!r} after it had read"
                    f" up to offset {offset}"
                )
        return self.identity()

    async def _commit_new(self, offsets: Offsets) -> None:
        if self.commits_in_transactions:
            return
        await self._offsets.commit(self._offsets.unknown(offsets), self)

    async def _commit_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Commit the offsets of partitions that are being revoked. If this fails, their next owner reads some records
        again.
        """
        names = set(revoked)
        try:
            await self._commit_new({n: at for n, at in self._committable.items() if n in names})
        except UnknownTopic as error:
            _log.info(
                "Did not commit offsets of group %s, because their topic was deleted: %s",
                self.options.group,
                error,
            )
        except OdradekError as error:
            _log.warning(
                "Failed to commit offsets of group %s before partitions were revoked: %s",
                self.options.group,
                error,
            )

    async def _commit_at_intervals(self) -> None:
        while True:
            await asyncio.sleep(self.options.auto_commit_interval_ms / 1000)
            if self.member_epoch <= 0:
                continue
            try:
                await self._commit_new(self._committable)
            except OdradekError as error:
                _log.warning(
                    "Automatic commit of offsets in group %s failed: %s", self.options.group, error
                )


async def _call(listener: GroupListener | None, names: Sequence[TopicPartition]) -> None:
    if listener is None or not names:
        return
    try:
        outcome = listener(names)
        if inspect.isawaitable(outcome):
            await outcome
    except Exception:  # An exception of the program's callback must not end the membership.
        _log.exception("The program's on_assign, on_revoke or on_lost callback raised an exception")
