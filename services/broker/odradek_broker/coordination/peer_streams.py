"""gRPC streams of numbered requests (entries) to other brokers: registrations (registrar.py) and transaction markers.

There is one stream of each kind to a broker, which is opened when the first entry is sent. Entries of one turn of the
event loop are sent in one message. If the stream breaks, or cannot be opened, all entries without a response fail. This
module never sends an entry twice; the caller may send it again, perhaps to another broker.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

from odradek_broker.replication.streams.follower_stream import StreamBroken
from odradek_protocol.identity import BrokerEpoch, BrokerId, ClusterId
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_runtime.logs import event_log

MESSAGE_BYTES_MAX: Final = 256 * 1024
WINDOW_ENTRIES: Final = 10_000
_CONNECT_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.05
_log = event_log(__name__)


class LinkKind(Enum):
    """The kinds of streams between brokers. Each value is the name of an RPC of TransactionLinkService."""

    REGISTER = "RegisterPartitions"
    MARK = "WriteMarkers"


class LinkConnection(Protocol):
    """A stream to another broker, which delivers encoded messages in order and without gaps until it breaks."""

    async def write(self, message: bytes) -> None:
        """Send a message. Raises StreamBroken."""

    async def accepted(self) -> None:
        """Wait until the other broker has accepted the Hello message. Raises StreamBroken."""

    async def read(self) -> bytes:
        """Wait for the next message with results, and return it. Raises StreamBroken."""

    async def close(self) -> None:
        """Cancel the stream. Unsent messages are discarded."""


DialLink = Callable[[LinkKind, BrokerId, str, int], LinkConnection]
"""A function (kind, broker id, host, port) that opens a stream to the replication listener of a broker."""


class Entry(Protocol):
    """One request of a message to another broker. `entry_id` is its number within the stream."""

    entry_id: int

    def ByteSize(self) -> int: ...


class Result(Protocol):
    """The response to the request with the same `entry_id` in the stream."""

    @property
    def entry_id(self) -> int: ...


E = TypeVar("E", bound=Entry)
R = TypeVar("R", bound=Result)


class PeerStreams(Generic[E, R]):
    """gRPC streams of one RPC, one to each broker to which an entry was sent. They are open while `run()` runs in a
    task group.
    """

    def __init__(
        self,
        kind: LinkKind,
        *,
        cluster_id: ClusterId,
        broker_id: BrokerId,
        endpoint_of: Callable[[BrokerId], tuple[str, int] | None],
        dial: DialLink,
        encode: Callable[[pb.TransactionLinkHello | None, Iterable[E]], bytes],
        decode: Callable[[bytes], Iterable[R]],
    ) -> None:
        # None until this broker has registered. Nothing is sent before that.
        self.broker_epoch: BrokerEpoch | None = None
        self.kind = kind
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._endpoint_of = endpoint_of
        self._dial = dial
        self.encode = encode
        self.decode = decode
        self._streams: dict[BrokerId, _PeerStream[E, R]] = {}
        self._session_ids = itertools.count(1)
        self._tasks: asyncio.TaskGroup | None = None
        self._unstarted: list[_PeerStream[E, R]] = []

    async def run(self) -> None:
        """Run the streams until cancelled. Entries that were passed to `send` before this call are sent now."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for stream in self._unstarted:
                tasks.create_task(stream.run())
            self._unstarted.clear()
            await asyncio.get_running_loop().create_future()

    def send(self, peer: BrokerId, entry: E, on_result: Callable[[R | None], None]) -> None:
        """Set the number of an entry and send it. `on_result` is called once, in a later iteration of the event loop.

        The argument of `on_result` is None if the stream broke before the response arrived. In that case it is unknown
        whether the other broker handled the entry.
        """
        stream = self._streams.get(peer)
        if stream is None:
            stream = self._streams[peer] = _PeerStream(self, peer)
            if self._tasks is None:
                self._unstarted.append(stream)
            else:
                self._tasks.create_task(stream.run(), name=f"{self.kind.value} at broker {peer}")
        stream.send(entry, on_result)

    def open(self, peer: BrokerId) -> LinkConnection | None:
        """Open a stream to a broker. Return None if its address is unknown, or if this broker has not registered."""
        endpoint = self._endpoint_of(peer)
        if endpoint is None or self.broker_epoch is None:
            return None
        return self._dial(self.kind, peer, *endpoint)

    def hello(self) -> pb.TransactionLinkHello:
        """Return the Hello message with which a new stream begins."""
        assert self.broker_epoch is not None, "a stream was opened before this broker registered"
        return pb.TransactionLinkHello(
            cluster_id=self._cluster_id,
            broker_id=self._broker_id,
            broker_epoch=self.broker_epoch,
            session_id=next(self._session_ids),
        )


class _PeerStream(Generic[E, R]):
    """The stream to one broker. If the stream breaks, it is opened again when the next entry is sent."""

    def __init__(self, streams: PeerStreams[E, R], peer: BrokerId) -> None:
        self._streams = streams
        self._peer = peer
        self._entry_ids = itertools.count(1)
        self._unsent: deque[tuple[E, Callable[[R | None], None]]] = deque()
        self._unanswered: dict[int, Callable[[R | None], None]] = {}
        self._wake = asyncio.Event()

    def send(self, entry: E, on_result: Callable[[R | None], None]) -> None:
        entry.entry_id = next(self._entry_ids)
        self._unsent.append((entry, on_result))
        self._wake.set()

    async def run(self) -> None:
        while True:
            while not self._unsent:
                self._wake.clear()
                await self._wake.wait()
            try:
                await self._session()
            except StreamBroken as broken:
                _log.info(
                    "Stream of transaction requests to another broker broke",
                    peer=self._peer,
                    kind=self._streams.kind.value,
                    reason=str(broken),
                )
            except Exception as error:
                # After an internal error the stream must be opened again, like after a lost connection.
                _log.error(
                    "Stream of transaction requests to another broker failed on an internal error; connecting again",
                    exc=error,
                    peer=self._peer,
                )
            self._fail_all()
            # Entries that are sent during this pause wait for the next session, or fail if it cannot be opened.
            await asyncio.sleep(_PAUSE_S)

    async def _session(self) -> None:
        connection = self._streams.open(self._peer)
        if connection is None:
            raise StreamBroken(
                "the address of the broker is unknown, or this broker has not registered"
            )
        try:
            await connection.write(self._streams.encode(self._streams.hello(), ()))
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    await connection.accepted()
            except TimeoutError:
                raise StreamBroken(
                    f"the broker did not accept the stream in {_CONNECT_TIMEOUT_S:.0f} s"
                ) from None
            end: StreamBroken | None = None
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._write(connection))
                    group.create_task(self._read(connection))
            except* StreamBroken as broken:
                end = StreamBroken(str(broken.exceptions[0]))
            if end is not None:
                raise end
        finally:
            await connection.close()

    async def _write(self, connection: LinkConnection) -> None:
        while True:
            while not self._unsent or len(self._unanswered) >= WINDOW_ENTRIES:
                self._wake.clear()
                await self._wake.wait()
            entries: list[E] = []
            size_bytes = 0
            while self._unsent and len(self._unanswered) < WINDOW_ENTRIES:
                entry, on_result = self._unsent[0]
                size_bytes += entry.ByteSize()
                if entries and size_bytes > MESSAGE_BYTES_MAX:
                    break
                self._unsent.popleft()
                self._unanswered[entry.entry_id] = on_result
                entries.append(entry)
            await connection.write(self._streams.encode(None, entries))

    async def _read(self, connection: LinkConnection) -> None:
        while True:
            for result in self._streams.decode(await connection.read()):
                on_result = self._unanswered.pop(result.entry_id, None)
                if on_result is not None:
                    _call(on_result, result)
            if self._unsent:
                self._wake.set()

    def _fail_all(self) -> None:
        unanswered, self._unanswered = self._unanswered, {}
        unsent, self._unsent = self._unsent, deque()
        for on_result in (*unanswered.values(), *(on_result for _, on_result in unsent)):
            _call(on_result, None)


def _call(on_result: Callable[[Any], None], result: Any) -> None:
    try:
        on_result(result)
    except Exception as error:
        _log.error(
            "Failed to handle a broker's response to a transaction request because of an internal error",
            exc=error,
        )
