"""Streams of numbered entries to other brokers: requests to add partitions to transactions, and transaction markers.

There is one stream to each broker, opened when the first entry is sent. Entries of one turn of the event loop leave in
one message. If the stream breaks, or cannot be opened, all entries without a response fail; their senders try again,
perhaps at another broker. So no entry is ever sent twice here.
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
    """The kinds of streams between brokers; the value is the name of the RPC."""

    REGISTER = "RegisterPartitions"
    MARK = "WriteMarkers"


class LinkConnection(Protocol):
    """An open connection to a peer: encoded messages in order, without gaps, until it breaks."""

    async def write(self, message: bytes) -> None:
        """Send a message. Raises StreamBroken."""

    async def accepted(self) -> None:
        """Wait until the peer has accepted the Hello. Raises StreamBroken."""

    async def read(self) -> bytes:
        """Wait for a message with results. Raises StreamBroken."""

    async def close(self) -> None:
        """End the connection at once."""


DialLink = Callable[[LinkKind, BrokerId, str, int], LinkConnection]
"""A function that opens a connection to the replication listener of a broker, at (host, port)."""


class Entry(Protocol):
    """One of the requests that a message to another broker carries. `entry_id` numbers it within its stream."""

    entry_id: int

    def ByteSize(self) -> int: ...


class Result(Protocol):
    """The response to the request that has the same number in its stream."""

    @property
    def entry_id(self) -> int: ...


E = TypeVar("E", bound=Entry)
R = TypeVar("R", bound=Result)


class PeerStreams(Generic[E, R]):
    """All streams of one kind that this broker has opened. Run `run()` in a task group."""

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
        self.broker_epoch: BrokerEpoch | None = (
            None  # set after this broker has registered; nothing is sent before
        )
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
        """Serve the streams until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for stream in self._unstarted:
                tasks.create_task(stream.run())
            self._unstarted.clear()
            await asyncio.get_running_loop().create_future()

    def send(self, peer: BrokerId, entry: E, on_result: Callable[[R | None], None]) -> None:
        """Send an entry, whose number is set here. `on_result` is called once, in a later turn of the event loop.

        It gets None if the stream broke before the response arrived; then it is not known whether the peer handled the
        entry.
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
        """Connect to a broker. Returns None if its address is not known."""
        endpoint = self._endpoint_of(peer)
        if endpoint is None or self.broker_epoch is None:
            return None
        return self._dial(self.kind, peer, *endpoint)

    def hello(self) -> pb.TransactionLinkHello:
        """Return the Hello message with which a new stream begins."""
        assert self.broker_epoch is not None, "a stream is opened after the registration only"
        return pb.TransactionLinkHello(
            cluster_id=self._cluster_id,
            broker_id=self._broker_id,
            broker_epoch=self.broker_epoch,
            session_id=next(self._session_ids),
        )


class _PeerStream(Generic[E, R]):
    """The stream to one broker. If it breaks, it is opened again when there is something to send."""

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
                # An internal error must not end the stream to this broker for ever.
                _log.error(
                    "Internal error in the stream of transaction requests to another broker; connecting again",
                    exc=error,
                    peer=self._peer,
                )
            self._fail_all()
            # Entries that arrive during the pause fail when it ends, and their senders try another broker.
            await asyncio.sleep(_PAUSE_S)

    async def _session(self) -> None:
        connection = self._streams.open(self._peer)
        if connection is None:
            raise StreamBroken("the broker's address is not known")
        try:
            await connection.write(self._streams.encode(self._streams.hello(), ()))
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    await connection.accepted()
            except TimeoutError:
                raise StreamBroken("the broker does not accept the stream") from None
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
            "Internal error while handling another broker's response to a transaction request",
            exc=error,
        )
