"""One member of a consumer group (KIP-848): its heartbeats, its assigned and revoked partitions, its commits.

    OUTSIDE --join--> INSIDE --close--> OUTSIDE
       ^                 |
       +--- fenced, or silent for a session: the partitions are lost ---+

The coordinator sends a target assignment in the response to a heartbeat. The member first gives up partitions that are
not in the target: it returns no more of their records, waits until the program asks for more records and so has
processed the ones it had, commits, and calls `on_revoke`; the next heartbeat lists what it still owns. Then it takes
over new partitions at their committed offsets, and returns their records once `on_assign` has returned. Heartbeats
continue meanwhile, so only `rebalance_timeout_ms` bounds a long `on_revoke`.

Automatic commits cover the records that were returned before the last read began: a program that dies in between reads
those records again (at least once), and never loses one.
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
from odradek.consumer.group_offsets import (
    CALL_S_MAX,
    COORDINATOR_MOVES,
    PATIENCE_S,
    GroupOffsets,
    Offsets,
)
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
# After this time without a response, the coordinator has removed the member.
_SESSION_S: Final = 45.0
_TOPIC_S: Final = 10.0
_WARNING_AT: Final = 5  # failures, which take three seconds; the next ones follow every two seconds
_WARNING_EVERY: Final = 15
_UNHEARD_LEAVE_S_MAX: Final = 2.0
_REJOIN: Final = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
_TRANSIENT: Final = (*COORDINATOR_MOVES, ErrorCode.UNRELEASED_INSTANCE_ID)
_HOPELESS: Final = (AuthenticationFailed, AuthorizationFailed, UnsupportedOperation)
_log = logging.getLogger(__name__)


class Reader(Protocol):
    """The part of a consumer that the membership uses."""

    def take_over(
        self, owned: Sequence[TopicPartition], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Read exactly these partitions. A new one starts at its offset in `starts`, which may be EARLIEST, or else as
        auto_offset_reset says, once it is released.
        """

    def release(self, names: Sequence[TopicPartition]) -> None:
        """Start to return records of these partitions."""

    def hold(self, names: Sequence[TopicPartition]) -> None:
        """Return no more records of these partitions, which are being revoked."""

    def handed_out(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offset after the last returned record, and its leader epoch, per partition."""

    def fail(self, error: OdradekError) -> None:
        """Make the next read raise this error."""


class GroupMembership:
    """The membership of one consumer: `start` joins the group, `close` leaves it."""

    def __init__(
        self, cluster: Cluster, options: GroupOptions, topics: frozenset[str], reader: Reader
    ) -> None:
        self.options = options
        self.member_id = options.member_id or str(uuid.uuid4())
        self.member_epoch = _JOIN
        self.times_lost = 0
        # The owned partitions, with the id of their topic.
        self.owned: dict[TopicPartition, bytes] = {}
        self._owned_on_wire: tuple[object, list[pb.GroupTopicPartitions]] = (self.owned, [])
        # Internal topics that match the pattern: the member owns their partitions, but does not read them.
        self._excluded: set[str] = set()
        self._topics = topics
        # Topics as they were when this member subscribed to them: their id, and the number of their partitions.
        self._subscribed: dict[str, tuple[bytes, int]] = {}
        self._cluster = cluster
        self._reader = reader
        self._target: dict[TopicPartition, bytes] | None = None
        self._committable: dict[TopicPartition, tuple[int, int]] = {}
        self._offsets = GroupOffsets(cluster, options.group, options.instance_id)
        self._tasks = BackgroundTasks(f"group {options.group}")
        self._wake = asyncio.Event()
        self._is_let_in = asyncio.Event()  # also set when the group refuses the member (`refusal`)
        self.refusal: OdradekError | None = None
        """The error for which the group refused the member for good."""
        self._says_all = True
        self._moving: asyncio.Task[None] | None = None
        self._interval_s = 5.0
        self.is_heard = False
        self.commits_in_transactions = False
        """Whether a transactional producer commits this member's offsets, so that the member itself must not."""
        self._is_join_under_way = False
        # Set before the first read, and while the program waits for records.
        self._is_all_processed = asyncio.Event()
        self._is_all_processed.set()

    def start(self) -> None:
        """Join the group, without waiting."""
        if not self.is_heard and self.member_epoch == _JOIN:
            self.is_heard = True
            self._cluster.start()
            self._tasks.start(self._heartbeat(), "heartbeat")
            if self.options.auto_commit:
                self._tasks.start(self._commit_at_times(), "commit")

    def subscribe(self, topics: frozenset[str]) -> None:
        """Change the subscription and tell the coordinator at once."""
        self._topics = topics
        if to_read := self._excluded & topics:
            # Take these partitions over again, this time to read them.
            self._excluded -= to_read
            self.owned = {name: i for name, i in self.owned.items() if name.topic not in to_read}
        self._says_all = True
        self._wake.set()

    def read_begins(self) -> None:
        """Count all records that were returned so far as processed, because the program asks for more."""
        self._committable = self._reader.handed_out()
        self._is_all_processed.set()

    def read_ended(self) -> None:
        """Record that the program received records, which it has not processed yet."""
        self._is_all_processed.clear()

    async def close(self, *, is_processed: bool = True) -> None:
        """Commit, give up all partitions and leave. It takes at most a few seconds if no broker responds.

        `is_processed` is False if the program failed while it processed its last records.
        """
        if not self.is_heard:
            return
        self.is_heard = False  # makes a second call return at once
        await self._tasks.stop()
        try:
            if self.member_epoch > 0:
                async with asyncio.timeout(CALL_S_MAX):
                    if self.options.auto_commit:
                        if is_processed:
                            self.read_begins()
                        await self._commit_gone(list(self.owned))
                    await _call(self.options.on_revoke, self._readable(self.owned))
                    await self._leave(CALL_S_MAX)
            elif self._is_join_under_way:  # the coordinator may have accepted the join
                await self._leave(_UNHEARD_LEAVE_S_MAX)
        except (OdradekError, TimeoutError) as error:
            _log.warning("Failed to leave group %s: %s", self.options.group, error)

    async def _leave(self, timeout_s: float) -> None:
        static = self.options.instance_id is not None
        request = self._request(_LEAVE_STATIC if static else _LEAVE)
        await self._cluster.call_any(GROUP_HEARTBEAT, request, timeout_s=timeout_s)

    async def _heartbeat(self) -> None:
        backoff = Backoff(first_ms=100, most_ms=2_000)
        failures, last_response_s = 0, time.monotonic()
        while True:
            await self._put_on_wire()
            self._is_join_under_way = self.member_epoch == _JOIN
            try:
                await self._note_topics()
                response = await self._cluster.call_any(
                    GROUP_HEARTBEAT, self._request(self.member_epoch), timeout_s=CALL_S_MAX
                )
                code = error_code(response.error_code)
            except _HOPELESS as error:
                await self._give_up(error)
                return
            except OdradekError as error:
                _log.warning("Heartbeat to group %s failed: %s", self.options.group, error)
                response, code = pb.GroupHeartbeatResponse(), ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._is_join_under_way = False
            if code is ErrorCode.NONE:
                failures, last_response_s = 0, time.monotonic()
                self._heard(response)
            elif code in _REJOIN:
                await self._lose()
                continue
            elif code in _TRANSIENT or code.retriable:
                failures += 1
                if failures % _WARNING_EVERY == _WARNING_AT and response.error_code:
                    reason = response.error_message or code.name.lower().replace("_", " ")
                    _log.warning(
                        "Group %s does not accept this member yet: %s", self.options.group, reason
                    )
                self._says_all = True
                if time.monotonic() - last_response_s > _SESSION_S and self.member_epoch > 0:
                    await self._lose()
                await asyncio.sleep(backoff.after(failures, random.random()) / 1000)
                continue
            else:
                subject = f"group {self.options.group!r}"
                await self._give_up(error_of(response.error_code, subject, response.error_message))
                return
            await self._rest()

    async def _give_up(self, error: OdradekError) -> None:
        """Handle a permanent refusal by the group: the member then owns no partitions, and every read raises the
        error.
        """
        self.refusal = error
        self._is_let_in.set()
        self._reader.fail(error)
        await self._lose()

    async def _note_topics(self) -> None:
        """Note which partitions there are before the coordinator hears of the subscription."""
        topics = self._topics - self._subscribed.keys()
        if not topics:
            return
        await self._cluster.fetch_topics(topics, timeout_s=CALL_S_MAX)
        for name in topics:
            topic = self._cluster.cache.topic(name)
            self._subscribed[name] = (
                (b"", 0) if topic is None else (topic.topic_id, len(topic.partitions))
            )

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._interval_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _put_on_wire(self) -> None:
        """Make the messages of the owned partitions, in turns, if others are owned than those of the last time."""
        while self._owned_on_wire[0] is not (owned := self.owned):
            topics: dict[bytes, pb.GroupTopicPartitions] = {}
            async for name, topic_id in in_turns(owned.items()):
                if topic_id not in topics:
                    topics[topic_id] = pb.GroupTopicPartitions(topic_id=topic_id, topic=name.topic)
                topics[topic_id].partitions.append(name.partition)
            self._owned_on_wire = owned, list(topics.values())

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
        if epoch >= 0 and (self._says_all or epoch == _JOIN):
            # The subscription is sent again only after a lost response, or when it changes.
            self._says_all = False
            request.rebalance_timeout_ms = options.rebalance_timeout_ms
            request.has_subscription = True
            request.subscribed_topics.extend(sorted(self._topics))
            if options.pattern is not None:
                request.subscribed_pattern = options.pattern
        if epoch > 0:
            request.owned.extend(self._owned_on_wire[1])
        return request

    def _heard(self, response: pb.GroupHeartbeatResponse) -> None:
        self.member_epoch = response.member_epoch
        self._is_let_in.set()
        self._interval_s = max(0.05, response.heartbeat_interval_ms / 1000)
        if response.has_assignment:
            self._target = {
                TopicPartition(topic.topic, index): topic.topic_id
                for topic in response.assignment
                for index in topic.partitions
            }
        is_idle = self._moving is None or self._moving.done()
        if self._target is not None and self._target != self.owned and is_idle:
            self._moving = self._tasks.start(self._move(), "take up and give up")

    async def _move(self) -> None:
        """Change the owned partitions to the target, then send a heartbeat at once."""
        target = self._target
        assert target is not None, "there is no target"
        kept = {name: i for name, i in self.owned.items() if target.get(name) == i}
        revoked = [name for name in self.owned if name not in kept]
        if revoked:
            self._reader.hold(self._readable(revoked))
            await self._until_processed()
            # A revoked name that is in the target belongs to a new topic of that name, so its offset is not committed.
            if self.options.auto_commit:
                await self._commit_gone([name for name in revoked if name not in target])
            await self._tell(self.options.on_revoke, self._readable(revoked))
            self._own(kept, {})
        new = [name for name in target if name not in self.owned]
        if new:
            try:
                starts = await self._starts(new, target)
            except OdradekError as error:
                group = self.options.group
                _log.warning("Failed to look up committed offsets of group %s: %s", group, error)
                if not error.retriable:
                    self._reader.fail(error)
                await asyncio.sleep(0.2)
                self._wake.set()
                self._says_all = True  # makes the coordinator send the target again
                return
            if self._target is target:
                self._own(target, starts)
                await asyncio.sleep(0)  # to own, and to release below, each visits all partitions
                await self._tell(self.options.on_assign, self._readable(new))
                self._reader.release(self._readable(new))
        self._wake.set()

    async def _until_processed(self) -> None:
        """Wait until the program has processed its records, for at most half of the rebalance timeout."""
        try:
            async with asyncio.timeout(self.options.rebalance_timeout_ms / 2000):
                await self._is_all_processed.wait()
        except TimeoutError:
            return  # the next owner reads those records again
        self._committable = self._reader.handed_out()

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
        """Return the committed offsets of new partitions. A partition without one that did not exist when this member
        subscribed to its topic starts at EARLIEST, because all of its records were written since.
        """
        for name, topic_id in sorted({name.topic: target[name] for name in names}.items()):
            topic = await self._cluster.topic(name, timeout_s=_TOPIC_S)
            if topic.topic_id != topic_id:
                self._cluster.refresh_soon()
                raise LeaderNotAvailable(
                    f"the metadata of topic {name!r} is not that of its assignment"
                )
            self._subscribed.setdefault(name, (topic_id, len(topic.partitions)))
            # The coordinator matches the pattern against all topics, and RE2 cannot say "but not these".
            # So the member owns internal topics, which keeps its target and what it owns equal, without reading.
            is_by_pattern = self.options.pattern is not None and name not in self._topics
            if topic.is_internal and is_by_pattern and self.options.exclude_internal_topics:
                self._excluded.add(name)
        committed = await self._offsets.committed(self._readable(names))
        return {
            name: EARLIEST if offset is None else offset
            for name, offset in committed.items()
            if offset is not None or self._is_added(name, target[name])
        }

    def _is_added(self, name: TopicPartition, topic_id: bytes) -> bool:
        """Return whether the partition did not exist when this member subscribed to its topic."""
        first_id, first_count = self._subscribed[name.topic]
        return topic_id != first_id or name.partition >= first_count

    async def _lose(self) -> None:
        """Give up all partitions, because the group fenced or removed the member and its partitions now belong to
        others.
        """
        if self._moving is not None:
            self._moving.cancel()
        lost = self._readable(self.owned)
        self.times_lost += 1
        self.member_epoch, self._says_all, self._target = _JOIN, True, None
        if self.options.instance_id is not None:
            self.member_id = str(uuid.uuid4())
        self._own({}, {})
        if lost:
            _log.warning("Group %s removed this member", self.options.group)
            await self._tell(self.options.on_lost or self.options.on_revoke, lost)

    async def _tell(self, listener: GroupListener | None, names: Sequence[TopicPartition]) -> None:
        await _call(listener, names)
        if not self.is_heard:  # the listener closed the consumer
            raise asyncio.CancelledError

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit `offsets`; None: the offsets after all returned records. Waits until the member has joined.

        Raises:
            MemberFenced: the group removed this member.
            OdradekError: a partition does not exist, the member has no right, or no coordinator responds.
        """
        if self.commits_in_transactions:
            raise InvalidRequest(
                f"offsets of group {self.options.group!r} are committed in transactions",
                hint="`transaction.send_offsets` commits them",
            )
        await self._let_in()
        if offsets is None:
            to_commit = self._reader.handed_out()
        else:
            to_commit = {name: (offset, -1) for name, offset in offsets.items()}
        # Automatic commits must not go back behind these offsets.
        async for name, at in in_turns(to_commit.items()):
            if name in self.owned:
                self._committable[name] = at
        await self._offsets.commit(
            self._offsets.unknown(to_commit) if offsets is None else to_commit, self
        )

    async def committed(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of the group; None for a partition without one."""
        return await self._offsets.committed(names)

    async def _let_in(self) -> None:
        self.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._is_let_in.wait()
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
        """Commit nothing any more, because a transaction commits these offsets and all later ones.

        Raises:
            MemberFenced: this member has not read a partition up to its offset since it owns it. It read the records
                before it lost the partition, whose next owner reads them again: it may be this member, whose epoch is
                valid.
        """
        self.commits_in_transactions = True
        read = self._reader.handed_out()
        for name, offset in offsets.items():
            if name not in read or offset > read[name][0]:
                raise MemberFenced(
                    f"{name} was taken from this member of group {self.options.group!r} after it had read"
                    f" up to offset {offset}"
                )
        return self.identity()

    async def _commit_new(self, offsets: Offsets) -> None:
        if self.commits_in_transactions:
            return
        await self._offsets.commit(self._offsets.unknown(offsets), self)

    async def _commit_gone(self, revoked: Sequence[TopicPartition]) -> None:
        """Commit the offsets of partitions that are being given up.

        If this fails, the next owner reads some records again.
        """
        gone = set(revoked)
        try:
            await self._commit_new({n: at for n, at in self._committable.items() if n in gone})
        except UnknownTopic as error:
            _log.info(
                "Offsets of group %s are gone with their topic: %s", self.options.group, error
            )
        except OdradekError as error:
            _log.warning(
                "Failed to commit offsets of group %s before giving up partitions: %s",
                self.options.group,
                error,
            )

    async def _commit_at_times(self) -> None:
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
    except Exception:  # the program's code raised it; the membership must survive it
        _log.exception("The program's on_assign, on_revoke or on_lost callback raised an exception")
