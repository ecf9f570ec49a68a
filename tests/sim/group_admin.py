"""An admin tool that commits offsets of a group without members, and deletes the offsets or the group, one step at a
time.

The tool is the only writer of its group. A read, a description or a list of groups must show the result of the last
step, or the result of a step with unknown outcome (P21).
"""

from __future__ import annotations

from odradek_broker.groups import messages as gm
from odradek_protocol.identity import GroupId, MemberId, Offset, PartitionIndex, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.topic_names import OFFSETS_TOPIC
from tests.sim.classic_member import TOPICS
from tests.sim.cluster import Cluster
from tests.sim.coordinator_shell import DeleteGroup, DeleteOffsets, DescribeGroup, ListGroups
from tests.sim.group_history import GroupHistory
from tests.sim.history import Violation
from tests.sim.member import Member

NOTHING = ""
PARTITION = TopicPartition(TOPICS[0], PartitionIndex(0))


class GroupAdmin(Member):
    """An admin tool that commits, reads and deletes the offsets of a group, and describes and deletes the group."""

    def __init__(
        self, cluster: Cluster, history: GroupHistory, client_id: int, group_id: GroupId
    ) -> None:
        super().__init__(cluster, history, client_id, group_id)
        self._possible = {NOTHING}  # possible states of the group: the id of a commit, or nothing
        self._late: set[str] = set()  # states that a step of unknown outcome may still cause
        self._steps = (
            self._commit,
            self._commit,
            self._read,
            self._read,
            self._describe,
            self._list,
            self._delete_offsets,
            self._delete_group,
        )

    async def _live(self) -> None:
        await self.scheduler.random.choice(self._steps)()
        await self.pause(50, 500)

    async def leave(self) -> None:
        """Do nothing, because the tool is no member of a group."""

    # --- steps ------------------------------------------------------------------------------------

    def _begin(self, outcome: str) -> None:
        """Record that a step begins that would lead to the state `outcome`. Until the step ends, it is unknown whether
        it took effect.
        """
        self._possible.add(outcome)
        self._late.add(outcome)

    def _done(self, outcome: str) -> None:
        """Record that the step was acknowledged.

        Each commit has its own id, so a late commit is recognized; a late deletion may still take effect.
        """
        if outcome != NOTHING:
            self._late.discard(outcome)
        self._possible = {outcome, *self._late}

    async def _commit(self) -> None:
        commit_id = self.history.next_id()
        self._begin(commit_id)
        offset = Offset(self.scheduler.between(1, 1_000))
        answer: gm.OffsetsAnswer = await self.ask(
            gm.CommitOffsets(
                group_id=self.group_id,
                member_id=MemberId(""),
                instance_id=None,
                generation_or_epoch=-1,
                offsets={PARTITION: gm.CommittedOffset(offset=offset, metadata=commit_id)},
            )
        )
        codes = {answer.error, *answer.partitions.values()}
        if codes == {ErrorCode.NONE}:
            self._done(commit_id)

    async def _delete_offsets(self) -> None:
        late_before = NOTHING in self._late
        self._begin(NOTHING)
        answer: gm.OffsetsAnswer = await self.ask(DeleteOffsets(self.group_id, (PARTITION,)))
        if {answer.error, *answer.partitions.values()} == {ErrorCode.NONE}:
            self._deleted(late_before)
            self.scheduler.counters["offsets deleted"] += 1
        elif answer.error is ErrorCode.GROUP_ID_NOT_FOUND:
            self._require(NOTHING in self._possible, "GROUP_ID_NOT_FOUND")

    async def _delete_group(self) -> None:
        late_before = NOTHING in self._late
        self._begin(NOTHING)
        code: ErrorCode = await self.ask(DeleteGroup(self.group_id))
        if code is ErrorCode.NONE:
            self._deleted(late_before)
            self.scheduler.counters["groups deleted"] += 1
        elif code is ErrorCode.GROUP_ID_NOT_FOUND:
            self._deleted(late_before)

    def _deleted(self, late_before: bool) -> None:
        if not late_before:
            self._late.discard(NOTHING)
        self._done(NOTHING)

    async def _read(self) -> None:
        fetched: gm.FetchedOffsets = await self.ask(
            gm.FetchOffsets(
                group_id=self.group_id, partitions=(PARTITION,), member_id=None, member_epoch=-1
            )
        )
        if fetched.error is not ErrorCode.NONE:
            return
        committed = fetched.offsets.get(PARTITION)
        commit_id = committed.metadata if committed is not None else NOTHING
        self._require(commit_id in self._possible, f"offset of {commit_id or 'no commit'}")
        self._possible = {commit_id, *self._late}

    async def _describe(self) -> None:
        group_id = self.group_id
        described: gm.GroupDescription = await self.ask(DescribeGroup(group_id))
        if described.error is ErrorCode.NONE and described.state != "Dead":
            self._require(self._possible != {NOTHING}, f"description {described.state}")
        elif described.error in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            self._require(NOTHING in self._possible, f"description {described.state}")
        self.scheduler.counters["groups described"] += 1

    async def _list(self) -> None:
        listed: list[gm.GroupListing] = await self.ask(ListGroups(self.group_id))
        if any(listing.group_id == self.group_id for listing in listed):
            self._require(self._possible != {NOTHING}, "listed")

    def _require(self, holds: bool, seen: str) -> None:
        if not holds and not self._is_suspended:
            text = f"{self.group_id}: {seen}, but only {sorted(self._possible)} are possible"
            self.history.violations.append(Violation(name="P21", text=text))

    @property
    def _is_suspended(self) -> bool:
        """Whether `__consumer_offsets` lost more copies than its durability survives."""
        topic = self.cluster.log.image.topic(OFFSETS_TOPIC)
        suspended = self.cluster.invariants.suspended
        return topic is not None and any(p.topic_id == topic.topic_id for p in suspended)
