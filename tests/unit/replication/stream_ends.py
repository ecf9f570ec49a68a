"""Both ends of a replication stream, connected in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from odradek_broker.access.quotas import TokenBucket
from odradek_broker.partition import events as ev
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.streams.follower_sessions import FollowerSessions
from odradek_broker.replication.streams.follower_stream import (
    FollowerIdentity,
    FollowerStream,
    Lane,
    StreamBroken,
)
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
)
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_runtime.clock import SYSTEM_CLOCK, Clock

TOPIC_ID = TopicId(bytes(range(16)))
LEADER, FOLLOWER = BrokerId(1), BrokerId(2)
CLUSTER = ClusterId("c")
BOUND_S = 10.0
CREDIT_BYTES = 1 << 20


class Replica:
    """The replica at one end of a stream: it stores the events that it receives, in order."""

    def __init__(self, index: int) -> None:
        self.partition = TopicIdPartition(TOPIC_ID, PartitionIndex(index))
        self.replica = SimpleNamespace(log_end=0, data_due=lambda session: None)
        self.events: list[Any] = []

    def step(self, event: object) -> None:
        self.events.append(event)

    def data_received(self, **data: Any) -> None:
        self.events.append({**data, "records": bytes(data["records"])})

    def detached(self, session: ev.FollowerSession) -> None:
        self.events.append(("detached", session))

    def session_closed(self, session: ev.FollowerSession) -> None:
        self.events.append(("closed", session))

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


class Connection:
    """One connection in memory: the follower's end is `accepted`, the leader's end `accept`, and
    messages are copied.
    """

    def __init__(self) -> None:
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_accepted = asyncio.Event()
        self.sent: list[pb.ReplicateRequest] = []
        self.follower = SimpleNamespace(
            write=self._send, accepted=self._accepted, read=self._response, close=self._close
        )
        self.leader = SimpleNamespace(
            is_from=lambda broker_id: broker_id == FOLLOWER,
            read=self._request,
            accept=self._accept,
            write=self.responses.put,
        )

    async def _send(self, request: pb.ReplicateRequest) -> None:
        self.sent.append(request)
        self.requests.put_nowait(request.SerializeToString())

    async def _accepted(self) -> None:
        await self.is_accepted.wait()

    async def _response(self) -> bytes:
        response = await self.responses.get()
        if response is None:
            raise StreamBroken("the connection was cut")
        return response

    async def _close(self) -> None:
        self.requests.put_nowait(None)

    async def _request(self) -> pb.ReplicateRequest | None:
        request = await self.requests.get()
        return None if request is None else pb.ReplicateRequest.FromString(request)

    async def _accept(self) -> None:
        self.is_accepted.set()

    def cut(self) -> None:
        """End the connection at both ends."""
        self.requests.put_nowait(None)
        self.responses.put_nowait(None)


class Ends:
    """A follower's stream, and the leader's sessions that it is connected to."""

    def __init__(
        self,
        *,
        lane: Lane = Lane.HOT,
        throttle: TokenBucket | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.at_leader: dict[int, Replica] = {}
        self.at_follower: dict[int, Replica] = {}
        self.connections: list[Connection] = []
        self.distances: list[int] = []
        self.table: Any = SimpleNamespace(
            by_id={}, leader_streams={}, image=SimpleNamespace(topics={}), counters=Counters()
        )
        self.sessions = FollowerSessions(
            cluster_id=CLUSTER, table=self.table, partition_bytes_max=500, message_bytes_max=1000
        )
        self._serving: list[asyncio.Task[None]] = []
        self.by_session: dict[int, FollowerStream] = {}
        self.stream = FollowerStream(
            LEADER,
            lane,
            identity=FollowerIdentity(
                cluster_id=CLUSTER,
                broker_id=FOLLOWER,
                broker_epoch=BrokerEpoch(7),
                directory_id=DirectoryId(b"d" * 16),
                credit_bytes=CREDIT_BYTES,
            ),
            endpoint_of=lambda _: ("nowhere", 1),
            dial=self._dial,
            clock=clock,
            throttle=throttle,
            session_ids=itertools.count(1),
            by_session=self.by_session,
            on_distance=lambda stream, host, records: self.distances.append(records),
            on_ready=lambda *_: None,
        )

    def _dial(self, *_: object) -> Any:
        connection = Connection()
        self.connections.append(connection)
        self._serving.append(asyncio.ensure_future(self.sessions.serve(connection.leader)))  # type: ignore[arg-type]
        return connection.follower

    def add(self, index: int) -> tuple[Any, Any]:
        """Add a partition with a replica at both ends; return the leader's replica and the follower's."""
        leader, follower = Replica(index), Replica(index)
        self.at_leader[index], self.at_follower[index] = leader, follower
        self.table.by_id[leader.partition.topic_id, index] = leader
        self.stream.add((TOPIC_ID, index), follower)  # type: ignore[arg-type]
        return leader, follower

    @property
    def leader_stream(self) -> Any:
        (stream,) = self.table.leader_streams.values()
        return stream

    @property
    def session(self) -> ev.FollowerSession:
        session: ev.FollowerSession = self.leader_stream.session
        return session

    async def close(self) -> None:
        await self.stream.close()
        await asyncio.gather(*self._serving, return_exceptions=True)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110  # of two ends that do not report it
            await asyncio.sleep(0)


@asynccontextmanager
async def connected(**settings: Any) -> AsyncIterator[Ends]:
    ends = Ends(**settings)
    try:
        await until(lambda: ends.by_session and ends.table.leader_streams)
        yield ends
    finally:
        await ends.close()
