"""The common part of simulated members of both group protocols: restarts, finding the coordinator, committing offsets.

A member is a client machine whose process dies and restarts many times. It finds the coordinator in the metadata of any
reachable broker, without sending a message. It ignores metadata with a leader epoch below the highest one that it has
used. It sends one request at a time, and any request may get lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from odradek_broker.coordination.placement import absolute_java_hash
from odradek_broker.groups import messages as gm
from odradek_protocol.identity import GroupId, MemberId, Offset, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.topic_names import OFFSETS_TOPIC
from tests.sim.cluster import Cluster
from tests.sim.coordinator_shell import DeleteGroup, GroupAnswer, GroupCall
from tests.sim.group_history import Commit, GroupHistory, OffsetRead
from tests.sim.history import Outcome
from tests.sim.network import Stream
from tests.sim.scheduler import MS, SECOND, Process
from tests.sim.simulated_loop import SimulatedLoop

ATTEMPT_S = 1.5
HEARTBEAT_MS = 500

_DEFINITE = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)


class Unanswered(Exception):
    """A request got no response, or a response after which the client must find the coordinator again.

    The request may still have been executed.
    """


class LifeOver(Exception):
    """Another client replaced this member in the group, so the process of this member ends."""


class Member:
    """A client of a group coordinator. Subclasses implement its behaviour in `_live`."""

    def __init__(
        self, cluster: Cluster, history: GroupHistory, client_id: int, group_id: GroupId
    ) -> None:
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.history = history
        self.client_id = client_id
        self.group_id = group_id
        self.is_stopped = False  # whether the member stays in its group without further commits
        self.last_commit_us = -1  # start of the last acknowledged commit; -1: none
        self.owned: frozenset[TopicPartition] = frozenset()
        self.positions: dict[TopicPartition, int] = {}
        self.lives = 0
        self.memberships = 0  # number of times that the member joined without state
        self.process: Process | None = None
        self._loop: SimulatedLoop | None = None
        self._stream: Stream | None = None
        self._leader_epoch = -1
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def name(self) -> str:
        """The name of the current process of this member."""
        return f"{self.client_id}.{self.lives}"

    # --- start and end ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new process without any state."""
        if self.is_up:
            return
        self.lives += 1
        self.process = Process(self.scheduler, self.client_id)
        self._loop = SimulatedLoop.of(self.process)
        self._calls.clear()
        self._stream = None
        self._forget()
        self._loop.spawn(self._run())

    def die(self) -> None:
        """Kill the client (kill -9)."""
        if self.process is not None and self._loop is not None:
            self.process.kill()
            self.cluster.network.process_ended(self.process)
            self._loop.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._live()
            except Unanswered:
                self._disconnect()
            except LifeOver:
                self._forget()
                return
            await self.pause(50, 400)

    async def _live(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        """Leave the group."""
        raise NotImplementedError

    def begin_leaving(self) -> None:
        """Leave the group, then end the process."""
        process, loop = self.process, self._loop
        if process is None or loop is None or not process.is_alive:
            return

        async def go() -> None:
            with suppress(Unanswered):
                await self.leave()
            self.process_after_leaving(process)

        loop.spawn(go())

    def process_after_leaving(self, process: Process) -> None:
        if process is self.process:
            self.scheduler.after(1, self.die)

    def _forget(self) -> None:
        self.owned = frozenset()
        self.positions = {}

    async def pause(self, low_ms: int, high_ms: int) -> None:
        await asyncio.sleep(self.scheduler.between(low_ms * MS, high_ms * MS) / SECOND)

    # --- requests ---------------------------------------------------------------------------------

    async def ask(self, request: Any, *, patience_s: float = ATTEMPT_S) -> Any:
        """Send one request, and return the response. Raises Unanswered if the coordinator is not found, does not
        respond or refuses the request.
        """
        assert self.process is not None
        assert self._loop is not None
        if self._stream is None or not self._stream.is_open_for(self.process):
            self._connect()
        assert self._stream is not None
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls[call_id] = future
        self._stream.send(self.process, GroupCall(call_id, request))
        try:
            async with asyncio.timeout(patience_s):
                answer = await future
        except TimeoutError:
            self._disconnect()
            raise Unanswered from None
        finally:
            self._calls.pop(call_id, None)
        if isinstance(answer, ErrorCode) and not isinstance(request, gm.Heartbeat | DeleteGroup):
            self._disconnect()
            raise Unanswered(answer.name)
        if answer in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            self._disconnect()
            raise Unanswered(answer.name)
        return answer

    def _connect(self) -> None:
        self._disconnect()
        process, network = self.process, self.cluster.network
        assert process is not None
        broker_id = self._coordinator()
        node = self.cluster.brokers.get(broker_id)
        life = node.life if node is not None else None
        if (
            life is None
            or life.groups is None
            or not life.process.is_running
            or not network.both_ways(self.client_id, broker_id)
        ):
            raise Unanswered
        stream = Stream(network, process, life.process)

        def on_message(answer: GroupAnswer) -> None:
            future = self._calls.get(answer.call_id)
            if future is not None and not future.done():
                future.set_result(answer.response)

        def on_closed() -> None:
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(Unanswered())

        stream.on_message[0] = on_message
        stream.on_closed[0] = on_closed
        life.groups.accept(stream)
        self._stream = stream

    def _disconnect(self) -> None:
        if self._stream is not None and self.process is not None:
            self._stream.on_closed[0] = self._stream.on_message[0] = None
            self._stream.close(self.process)
            self._stream = None

    def _coordinator(self) -> int:
        """Find the coordinator in the metadata of any reachable broker; return -1 if there is none."""
        lives = [
            n.life
            for n in self.cluster.brokers.values()
            if n.life is not None
            and n.life.process.is_running
            and self.cluster.network.both_ways(self.client_id, n.broker_id)
        ]
        if not lives:
            return -1
        image = self.scheduler.random.choice(lives).image
        topic = image.topic(OFFSETS_TOPIC)
        if topic is None:
            return -1
        state = topic.partitions[absolute_java_hash(self.group_id) % len(topic.partitions)]
        if state.leader_epoch < self._leader_epoch:
            return -1
        self._leader_epoch = state.leader_epoch
        return state.leader

    # --- offsets ----------------------------------------------------------------------------------

    async def fetch_positions(
        self,
        partitions: Iterable[TopicPartition],
        *,
        member_id: MemberId | None = None,
        epoch: int = -1,
    ) -> ErrorCode:
        """Set the positions to the group's committed offsets, or to the start of a partition without one."""
        wanted = tuple(sorted(partitions, key=str))
        if not wanted:
            return ErrorCode.NONE
        began_us = self.scheduler.now_us
        request = gm.FetchOffsets(
            group_id=self.group_id, partitions=wanted, member_id=member_id, member_epoch=epoch
        )
        fetched: gm.FetchedOffsets = await self.ask(request)
        if fetched.error is not ErrorCode.NONE:
            return fetched.error
        for partition, committed in fetched.offsets.items():
            self.history.reads.append(
                OffsetRead(
                    group=self.group_id,
                    partition=partition,
                    commit_id=committed.metadata if committed is not None else "",
                    offset=committed.offset if committed is not None else 0,
                    began_us=began_us,
                    ended_us=self.scheduler.now_us,
                    by=self.name,
                )
            )
            self.positions[partition] = committed.offset if committed is not None else 0
        return ErrorCode.NONE

    async def commit(self, member_id: str, instance_id: str | None, epoch: int) -> ErrorCode:
        """Process some records of each partition, and commit. Each attempt has its own id."""
        if not self.positions or self.is_stopped:
            return ErrorCode.NONE
        began_us = self.scheduler.now_us
        commits: dict[TopicPartition, Commit] = {}
        for partition in sorted(self.positions, key=str):
            self.positions[partition] += self.scheduler.between(1, 5)
            commits[partition] = Commit(
                group=self.group_id,
                partition=partition,
                commit_id=self.history.next_id(),
                offset=self.positions[partition],
                member_id=f"{member_id}/{self.memberships}",
                epoch=epoch,
                began_us=began_us,
                by=self.name,
            )
        self.history.commits += commits.values()
        request = gm.CommitOffsets(
            group_id=self.group_id,
            member_id=member_id,  # type: ignore[arg-type]
            instance_id=instance_id,
            generation_or_epoch=epoch,
            offsets={
                p: gm.CommittedOffset(offset=Offset(c.offset), metadata=c.commit_id)
                for p, c in commits.items()
            },
        )
        answer: gm.OffsetsAnswer = await self.ask(request)
        outcome = Outcome.OK if answer.error is ErrorCode.NONE else Outcome.UNKNOWN
        if answer.error in _DEFINITE:
            outcome = Outcome.FAIL
            self.scheduler.counters["fenced commits"] += 1
        for commit in commits.values():
            commit.outcome, commit.ended_us = outcome, self.scheduler.now_us
        if outcome is Outcome.OK:
            self.last_commit_us = began_us
            self.scheduler.counters["offset commits"] += 1
        return answer.error
