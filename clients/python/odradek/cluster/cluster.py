"""The client's connection to the cluster: keeps the metadata cache up to date, and sends requests to any broker that
responds.

One WatchMetadata stream to one broker reports new leaders and brokers when they change. When the stream breaks, another
broker is tried immediately. Bootstrap addresses are tried after the brokers in the metadata, so a client reconnects
even if the addresses of all brokers changed. Code that finds the metadata stale (a leader does not respond, or a broker
is no longer the leader) calls `refresh_soon`. A refresh goes to a different broker than the previous refresh, because a
broker without a connection to the controllers would always return the same old metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, TypeVar

from odradek.cluster.background import BackgroundTasks
from odradek.cluster.backoff import Backoff
from odradek.cluster.endpoints import parse_bootstrap
from odradek.cluster.metadata_cache import Change, MetadataCache, Topic
from odradek.cluster.methods import METADATA, WATCH_METADATA
from odradek.cluster.security import SaslCredentials, TlsOptions
from odradek.cluster.topic_errors import MissingTopics, topic_error
from odradek.cluster.transport import Method, Stream, Transport
from odradek.cluster.turns import run_in_turns
from odradek.cluster.wait_report import NoteError, reported_wait
from odradek.errors import (
    AdvertisedNameUnresolvable,
    AuthenticationFailed,
    BrokersUnavailable,
    ClientClosed,
    NameUnresolvable,
    NoActiveController,
    OdradekError,
    RequestTimedOut,
    WrongListener,
    WrongLoop,
)
from odradek.partitions import TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2

Q = TypeVar("Q")
R = TypeVar("R")

FIRST_UPDATE_S_MAX: Final = 3.0
CALL_S_MAX: Final = 5.0
OWN_CHANGES_S_MAX: Final = 5.0
REFRESH_PAUSE_MS: Final = 100
WATCH_PAUSE_S: Final = 0.01
TOPICS_PER_REQUEST: Final = 1_000
NAMED_TOPICS_MAX: Final = 5_000
"""A client that needs more topics than this watches all topics of the cluster, because brokers refuse requests that
name more than 10,000 topics.
"""
UNKNOWN_TOPIC_S_MAX: Final = 5.0
"""How long to retry when brokers do not know a topic, because the topic may have just been created."""

_log = logging.getLogger(__name__)


class LinkState(Enum):
    """The states of a client's connection. CONNECTED means that the client receives current metadata of the cluster."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    CLOSED = "closed"


class Cluster:
    """The connection to the cluster that the producers, consumers and admin of one client share. It can only be used on
    one event loop.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        transport: Transport,
        *,
        on_state: Callable[[LinkState], None] | None = None,
        suggests_topics: bool = True,
    ) -> None:
        self.bootstrap = tuple(bootstrap)
        self.transport = transport
        self.cache = MetadataCache()
        self.state = LinkState.CONNECTING
        self.last_error: OdradekError | None = None
        self._failures: dict[str, OdradekError] = {}
        """The last error of each endpoint that failed since the last response."""
        self._on_state = on_state
        self._interest: set[str] = set()
        self._listeners: list[Callable[[Change], None]] = []
        self._changed: asyncio.Event = asyncio.Event()
        self._watch: Stream[pb.WatchMetadataRequest, pb.WatchMetadataResponse] | None = None
        self._watched: frozenset[str] | None = frozenset()
        """The topics that the WatchMetadata stream covers. None: all topics."""
        self._refresh_wanted = asyncio.Event()
        self._rotation = random.randrange(1 << 16)
        self._backoff = Backoff(first_ms=50, most_ms=500)
        self._tasks = BackgroundTasks("cluster link")
        self._is_started = False
        self._metadata_offset_min = 0
        self.unknown_topic_s_max: float | None = None
        """How long `topic` retries when brokers do not know the topic. None: UNKNOWN_TOPIC_S_MAX."""
        self.missing_topics = MissingTopics(self.metadata, suggests=suggests_topics)
        self._loop: asyncio.AbstractEventLoop | None = None

    def __str__(self) -> str:
        return f"{','.join(self.bootstrap)} {self.state.value}"

    def start(self) -> None:
        """Start to watch metadata, without waiting. Further calls have no effect. Raises ClientClosed or WrongLoop."""
        if self.state is LinkState.CLOSED:
            raise ClientClosed("the client is closed")
        self.require_own_loop()
        if not self._is_started:
            self._is_started = True
            self._tasks.start(self._watch_for_ever(), "watch metadata")
            self._tasks.start(self._refresh_when_wanted(), "refresh metadata")

    def require_own_loop(self) -> None:
        """Bind this object to the event loop of its first use. Raises WrongLoop if it is used on another event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            state = "has ended" if self._loop.is_closed() else "is not the running one"
            raise WrongLoop(f"the event loop that this client was first used on {state}")

    async def close(self) -> None:
        """Stop watching and close all connections."""
        self._enter(LinkState.CLOSED)
        await self._tasks.stop()
        await self.transport.close()
        self._announce(Change())

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` on the event loop after each change. The listener must neither raise nor take long."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[Change], None]) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until a broker has sent its metadata.

        Raises:
            BrokersUnavailable: no broker responded in time.
            AuthenticationFailed, WrongListener: raised without further waiting, because waiting would not help.
        """
        self.start()
        deadline_s = time.monotonic() + timeout_s
        with reported_wait("the connection to the cluster", lambda: self.explain_waiting(None)):
            while self.state is not LinkState.CONNECTED:
                if self.state is LinkState.CLOSED:
                    raise ClientClosed("the client is closed")
                if isinstance(self.last_error, AuthenticationFailed):
                    raise self.last_error
                if isinstance(self.last_error, WrongListener) and (
                    self._endpoints() <= set(self._failures)
                ):
                    # Waiting would not help: all addresses were tried, and none is the address of a gRPC listener.
                    raise self.last_error
                await self._wait_changed(deadline_s, lambda: self.unavailable(timeout_s))

    async def topic(
        self,
        name: str,
        *,
        timeout_s: float,
        allow_create: bool = False,
        partition: int | None = None,
        suggests_topics: bool = True,
    ) -> Topic:
        """Return the topic. Its metadata is requested if the cache does not have the topic, or not its `partition`.

        With `suggests_topics=False`, UnknownTopic names no similar topics, and the client does not request all topics.

        Raises:
            UnknownTopic: no broker knew the topic for `unknown_topic_s_max` or `timeout_s` seconds (the shorter time).
            BrokersUnavailable: no broker responded within `timeout_s`.
        """
        self.start()
        if (topic := self._known_topic(name, partition)) is not None:
            self.watch_topics([name])
            return topic
        unknown_s_max = self.unknown_topic_s_max or UNKNOWN_TOPIC_S_MAX
        began_s = time.monotonic()
        attempts = 0
        creates = False  # Whether the next request asks the brokers to create the topic.
        error: OdradekError | None = None  # The error for the topic in the last response.
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with reported_wait(f"the metadata of topic {name!r}", lambda: self.explain_waiting(error)):
            while (topic := self._known_topic(name, partition)) is None:
                waited_s = time.monotonic() - began_s
                if waited_s >= timeout_s:
                    raise error or self.unavailable(waited_s)
                response = await self.metadata(
                    pb.MetadataRequest(topics=[name], allow_auto_topic_creation=creates),
                    timeout_s=timeout_s - waited_s,
                )
                await self._apply(response)
                topic_info = next((t for t in response.topics if t.name == name), None)
                code = unknown if topic_info is None else topic_info.error_code
                if code == ErrorCode.NONE and partition is not None:
                    code = unknown
                attempts += 1
                if self.cache.topic(name) is not None and partition is None:
                    continue
                is_missing = code == unknown and partition is None
                if is_missing and allow_create and not creates:
                    creates = True
                    continue
                waited_s = time.monotonic() - began_s
                message = "" if topic_info is None else topic_info.error_message
                error = topic_error(name, self.cache.topic(name), partition, code, message)
                pause_s = self._backoff.after(attempts, random.random()) / 1000
                if not error.retriable or waited_s + pause_s >= min(timeout_s, unknown_s_max):
                    if is_missing and suggests_topics and error.code == unknown:
                        raise await self.missing_topics.error(
                            name, was_creation_requested=creates, timeout_s=timeout_s - waited_s
                        )
                    raise error
                await asyncio.sleep(pause_s)
        self.watch_topics([name])
        if creates:
            await self.missing_topics.note_creation(topic)
        return topic

    def _known_topic(self, name: str, partition: int | None) -> Topic | None:
        """Return the topic if the cache has it, with this partition if one is given. Raises ClientClosed."""
        if self.state is LinkState.CLOSED:
            raise ClientClosed("the client is closed")
        topic = self.cache.topic(name)
        if topic is not None and partition is not None and partition >= len(topic.partitions):
            return None
        return topic

    async def fetch_topics(self, names: Iterable[str], *, timeout_s: float) -> None:
        """Request the metadata of those topics that are not in the cache, in a few requests, and watch all these
        topics.

        Topics that no broker knows are ignored; `topic` raises the error for them.
        """
        self.start()
        names = list(names)
        missing = [name for name in names if self.cache.topic(name) is None]
        for begin in range(0, len(missing), TOPICS_PER_REQUEST):
            request = pb.MetadataRequest(topics=missing[begin : begin + TOPICS_PER_REQUEST])
            await self._apply(await self.metadata(request, timeout_s=timeout_s))
        self.watch_topics([name for name in names if self.cache.topic(name) is not None])

    def watch_topics(self, names: Sequence[str]) -> None:
        """Add these topics to those that the WatchMetadata stream reports."""
        if not self._interest.issuperset(names):
            self._interest.update(names)
            self._reopen_watch()

    def hint(self, partition: TopicPartition, hint: common_pb2.LeaderHint) -> None:
        """Use the leader that a broker named in an error response, if its leader epoch is newer than the cached one."""
        self._take(self.cache.hint(partition, hint))

    def refresh_soon(self) -> None:
        """Request the metadata of all watched topics again, because it may be stale. The call does not wait for the
        response.
        """
        self._refresh_wanted.set()

    def require_metadata(self, metadata_offset: int) -> None:
        """Make later calls of `metadata` return metadata up to at least this offset of the metadata log. This client
        made a change at that offset.
        """
        self._metadata_offset_min = max(self._metadata_offset_min, metadata_offset)

    async def metadata(
        self, request: pb.MetadataRequest, *, timeout_s: float, note_error: NoteError | None = None
    ) -> pb.MetadataResponse:
        """Request metadata that includes the changes that this client has made (`require_metadata`).

        A broker that does not have these changes yet waits a moment, and then responds with older metadata; the next
        attempt goes to another broker. If no broker has the changes within OWN_CHANGES_S_MAX, the last response is
        returned, and the changes are no longer required, because the cluster may have been replaced by another one.
        Later requests must not wait for changes that will never arrive.
        """
        required = request.min_metadata_offset = self._metadata_offset_min
        deadline_s = time.monotonic() + timeout_s
        own_changes_deadline_s = time.monotonic() + min(timeout_s, OWN_CHANGES_S_MAX)
        attempts = 0
        while True:
            remaining_s = max(0.01, deadline_s - time.monotonic())
            response = await self.call_any(
                METADATA, request, timeout_s=remaining_s, note_error=note_error
            )
            if response.metadata_offset >= required:
                return response
            attempts += 1
            pause_s = self._backoff.after(attempts, random.random()) / 1000
            if time.monotonic() + pause_s >= own_changes_deadline_s:
                break
            await asyncio.sleep(pause_s)
        if self._metadata_offset_min == required:
            self._metadata_offset_min = 0
        return response

    async def call_any(
        self,
        method: Method[Q, R],
        request: Q,
        *,
        timeout_s: float,
        attempt_s: float = CALL_S_MAX,
        first: int | None = None,
        note_error: NoteError | None = None,
    ) -> R:
        """Call one broker after another until one responds or `timeout_s` has passed. If `first` is given, the first
        attempt goes to the broker with this id. `note_error` gets the error so far after each failed attempt.

        The request may be executed twice, because an attempt is repeated if its response is lost or takes longer than
        `attempt_s`.

        Raises:
            BrokersUnavailable: no broker responded; `errors` has the last error of each broker that was called.
            NoActiveController, RequestTimedOut: brokers responded, but could not execute the request in time.
        """
        self.require_own_loop()
        deadline_s = time.monotonic() + timeout_s
        errors: dict[str, OdradekError] = {}
        last_error: OdradekError | None = None
        rounds = 0

        def failure(waited_s: float | None) -> OdradekError:
            if isinstance(last_error, NoActiveController | RequestTimedOut):
                return last_error  # Brokers responded, so BrokersUnavailable would be misleading.
            tried = list(errors) or self._candidates()
            return BrokersUnavailable(
                tried=tried, errors=errors, last_error=last_error, waited_s=waited_s
            )

        while True:
            for endpoint in self._candidates(first):
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    break
                try:
                    return await self.transport.call(
                        endpoint, method, request, timeout_s=min(remaining_s, attempt_s)
                    )
                except OdradekError as error:
                    explained = self.explained(error)
                    if not explained.retriable:
                        raise explained from None
                    # NoActiveController is kept as the reason even if a later attempt times out or reaches no broker:
                    # the last attempt may have been too short to get this response again.
                    if not isinstance(last_error, NoActiveController):
                        last_error = explained
                    is_cut_short = remaining_s < attempt_s and isinstance(
                        explained, RequestTimedOut
                    )
                    if not is_cut_short or endpoint not in errors:
                        errors[endpoint] = explained
                    if note_error is not None:
                        note_error(failure(None))
            if isinstance(last_error, WrongListener) and self._endpoints() <= set(errors):
                raise last_error
            rounds += 1
            pause_s = self._backoff.after(rounds, random.random()) / 1000
            if time.monotonic() + pause_s >= deadline_s:
                raise failure(timeout_s)
            await asyncio.sleep(pause_s)

    def explained(self, error: OdradekError) -> OdradekError:
        """Return the error. If a broker's advertised host name cannot be resolved, return an error that names that
        broker instead.
        """
        if type(error) is NameUnresolvable:
            broker_id = self.cache.broker_at(error.endpoint)
            if broker_id is not None and error.endpoint not in self.bootstrap:
                return AdvertisedNameUnresolvable(broker_id, error.endpoint, "no address found")
        return error

    def unavailable(self, waited_s: float | None) -> BrokersUnavailable:
        """Return the error for a cluster of which no broker has responded yet."""
        return BrokersUnavailable(
            tried=list(dict.fromkeys((*self._failures, *self._candidates()))),
            errors=self._failures,
            last_error=self.last_error,
            waited_s=waited_s,
        )

    def explain_waiting(self, error: OdradekError | None) -> str:
        """Return, in words for a user, why a call still waits. `error` is the error of its last attempt."""
        if self.state is LinkState.CONNECTED or (error is not None and not self._failures):
            return str(error or "connected, but the request has no response yet")
        return str(self.unavailable(None))

    async def _watch_for_ever(self) -> None:
        failures = 0
        while True:
            candidates = self._candidates()
            for endpoint in candidates:
                if await self._watch_one(endpoint):
                    failures = 0
                    # `watch_topics` may have ended the stream to add a topic. Topics are often added one after another,
                    # so the next stream is opened after a short pause, and then covers all of them.
                    await asyncio.sleep(WATCH_PAUSE_S)
                    break
            else:
                failures += 1
                self._enter(LinkState.DISCONNECTED)
                await asyncio.sleep(self._backoff.after(failures, random.random()) / 1000)

    async def _watch_one(self, endpoint: str) -> bool:
        """Follow the metadata stream of one broker to its end. Return False if the broker never sent metadata."""
        has_received = False
        try:
            stream = self.transport.open(endpoint, WATCH_METADATA)
        except OdradekError as refused:
            self._note_failure(endpoint, refused)
            return False
        watched = frozenset(self._interest) if len(self._interest) <= NAMED_TOPICS_MAX else None
        self._watch, self._watched = stream, watched
        try:
            await stream.send(
                pb.WatchMetadataRequest(all_topics=True)
                if watched is None
                else pb.WatchMetadataRequest(topics=sorted(watched))
            )
            async with asyncio.timeout(FIRST_UPDATE_S_MAX) as first_update:
                while (update := await stream.receive()) is not None:
                    first_update.reschedule(None)
                    has_received = True
                    await self._take_update(update)
        except TimeoutError:
            self._note_failure(
                endpoint, OdradekError(f"the broker at {endpoint} sent no metadata in time")
            )
        except OdradekError as error:
            if self._covers_interest():
                self._note_failure(endpoint, error)
            else:
                has_received = True  # This client ended the stream, to open one for more topics.
        finally:
            self._watch = None
            stream.cancel()
        return has_received

    async def _take_update(self, update: pb.WatchMetadataResponse) -> None:
        was_disconnected = self.state is LinkState.DISCONNECTED
        removed = self.cache.remove(update.removed_topics, as_of=update.metadata.metadata_offset)
        self._failures.clear()
        self.last_error = None
        # The same update may remove a topic and create it again. Both changes are announced together.
        await self._apply(update.metadata, removed, then=LinkState.CONNECTED)
        if was_disconnected:  # The end of an outage is announced even if the metadata is unchanged.
            self._announce(Change())

    async def _apply(
        self,
        response: pb.MetadataResponse,
        change: Change | None = None,
        *,
        then: LinkState | None = None,
    ) -> None:
        """Apply a response to the cache in steps, and let other tasks run between the steps. Then enter the state
        `then` and announce the changes.

        If the caller is cancelled between two steps, the changes made so far are still announced, because senders and
        fetchers wait for them.
        """
        change = Change() if change is None else change
        try:
            await run_in_turns(self.cache.apply_in_steps(response, change))
            if then is not None:
                self._enter(then)
        except BaseException:
            self._take(change)
            raise
        await self._take_in_turns(change)

    def _note_failure(self, endpoint: str, error: OdradekError) -> None:
        self.last_error = self._failures[endpoint] = self.explained(error)
        _log.debug("Metadata stream from %s ended: %s", endpoint, error)
        self._announce(Change())

    def _covers_interest(self) -> bool:
        return self._watched is None or self._watched >= self._interest

    def _reopen_watch(self) -> None:
        if self._watch is not None and not self._covers_interest():
            self._watch.cancel()

    async def _refresh_when_wanted(self) -> None:
        while True:
            await self._refresh_wanted.wait()
            self._refresh_wanted.clear()
            names = sorted(self._interest)
            with contextlib.suppress(OdradekError):
                for begin in range(0, len(names), TOPICS_PER_REQUEST):
                    request = pb.MetadataRequest(topics=names[begin : begin + TOPICS_PER_REQUEST])
                    await self._apply(await self.metadata(request, timeout_s=CALL_S_MAX))
            await asyncio.sleep(REFRESH_PAUSE_MS / 1000)

    def _endpoints(self) -> set[str]:
        """Return all endpoints that may be tried: brokers and bootstrap addresses."""
        return {*self.cache.endpoints(), *self.bootstrap}

    def _candidates(self, first: int | None = None) -> list[str]:
        """Return the endpoints to try, in order. The endpoint of the broker `first` comes first. Otherwise, each call
        begins with a different endpoint. Bootstrap addresses that no broker advertises come last.
        """
        self._rotation += 1
        brokers = self.cache.endpoints()
        bootstrap_only = [endpoint for endpoint in self.bootstrap if endpoint not in brokers]
        candidates = [*_turned(brokers, self._rotation), *_turned(bootstrap_only, self._rotation)]
        if first is not None and (broker := self.cache.brokers.get(first)) is not None:
            candidates.sort(key=lambda endpoint: endpoint != broker.grpc_endpoint)
        return candidates

    def _enter(self, state: LinkState) -> None:
        if state is self.state or self.state is LinkState.CLOSED:
            return
        old_state, self.state = self.state, state
        if old_state is not LinkState.CONNECTING or state is not LinkState.CONNECTED:
            level = logging.WARNING if state is LinkState.DISCONNECTED else logging.INFO
            text = "Connection to the cluster changed from %s to %s"
            _log.log(level, text, old_state.value, state.value)
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:  # An exception of the program's callback must not end the connection.
                _log.exception("The program's on_state callback raised an exception")

    def _take(self, change: Change) -> None:
        if change.leaders or change.topics:
            self._announce(change)
        else:
            self._wake()

    async def _take_in_turns(self, change: Change) -> None:
        """Announce a change, and let other tasks run after each listener, because a listener may handle thousands of
        partitions.
        """
        listeners = deque(self._listeners if change.leaders or change.topics else ())
        try:
            while listeners:
                listeners.popleft()(change)
                await asyncio.sleep(0)
        finally:
            for listener in listeners:
                listener(change)
            self._wake()

    def _announce(self, change: Change) -> None:
        self._wake()
        for listener in list(self._listeners):
            listener(change)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _wait_changed(self, deadline_s: float, error: Callable[[], OdradekError]) -> None:
        changed = self._changed
        try:
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                await changed.wait()
        except TimeoutError:
            raise error() from None


def _turned(endpoints: list[str], turns: int) -> list[str]:
    first = turns % max(len(endpoints), 1)
    return endpoints[first:] + endpoints[:first]


def connect(
    bootstrap: str | Sequence[str] | None,
    tls: TlsOptions | None = None,
    *,
    credentials: SaslCredentials | None = None,
    transport: Transport | None = None,
    on_state: Callable[[LinkState], None] | None = None,
    suggests_topics: bool = True,
) -> Cluster:
    """Create a cluster connection over gRPC, or over `transport`. The connection is opened at its first use."""
    endpoints = parse_bootstrap(bootstrap)
    if transport is None:
        from odradek.cluster.grpc_transport import GrpcTransport

        transport = GrpcTransport(tls, credentials=credentials)
    return Cluster(endpoints, transport, on_state=on_state, suggests_topics=suggests_topics)
