"""The heartbeat: what a broker tells every controller, and what their responses change.

A broker must be found dead when its process is gone or its event loop hangs, and never because it
is busy. So a thread beats (heartbeat_threads.py), and says how old the loop's last turn is; past
`LOOP_AGE_MAX_MS` it stops, and the session at the controller runs out. Every controller gets the
beats, standbys too: a new active one then knows which brokers were alive; only the active one's
response renews the lease.

What the loop must know crosses by `call_soon_threadsafe`; the lease is renewed where the response
arrives.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from odradek_broker.cluster.lease import Lease
from odradek_protocol.identity import BrokerEpoch, BrokerId, ControllerId, TopicId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.clock import SYSTEM_CLOCK, Clock

LOOP_AGE_MAX_MS: Final = 2_000
LOOP_TICK_MS: Final = 50
_SENT_TIMES_MAX: Final = 64
_LIFE_IS_OVER: Final = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatNews:
    """What the active controller said last, when any of it changed."""

    controller_id: ControllerId
    controller_epoch: int
    is_fenced: bool
    may_shutdown: bool
    report_log_ends: tuple[tuple[TopicId, int], ...]


class LoopTick:
    """When the event loop last turned; any thread may read it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.at_ms = clock.monotonic_ms()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tick from now on, in the running loop."""
        self.at_ms = self._clock.monotonic_ms()
        self._handle = asyncio.get_running_loop().call_later(LOOP_TICK_MS / 1000, self.start)

    def stop(self) -> None:
        """Tick no longer."""
        if self._handle is not None:
            self._handle.cancel()

    def age_ms(self) -> int:
        """Since the last turn."""
        return self._clock.monotonic_ms() - self.at_ms


class SentBeats:
    """When the beats of one stream were sent, by their number, so that responses can be timed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent_at_ms: dict[int, int] = {}

    def sending(self, request: pb.HeartbeatRequest) -> None:
        """Note that this beat leaves now."""
        if len(self._sent_at_ms) >= _SENT_TIMES_MAX:
            self._sent_at_ms.clear()
        self._sent_at_ms[request.seq] = self._clock.boottime_ms()

    def take(self, response: pb.HeartbeatResponse) -> int | None:
        """Return when the beat was sent that this responds to; None if it was not sent here."""
        return self._sent_at_ms.pop(response.seq, None)


class Beating(Protocol):
    """What sends the beats of one Heartbeat: threads, or a simulated wire."""

    def start(self) -> None:
        """Begin to beat."""

    def beat_now(self) -> None:
        """Beat without waiting for the interval."""

    def stop(self) -> None:
        """End the streams; returns at once."""


class Heartbeat:
    """What each beat says, and what the responses change. The loop sets the plain attributes.

    `beat` and `received` may be called from any thread.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        lease: Lease,
        tick: LoopTick,
        loop: asyncio.AbstractEventLoop,
        on_news: Callable[[HeartbeatNews], None],
        on_stale: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`on_news` and `on_stale` are called on `loop`."""
        self.image_offset = -1
        self.want_fence = True
        self.want_shutdown = False
        self.cannot_write = False
        self.offline_directories: tuple[bytes, ...] = ()
        self.broken_partitions: tuple[common_pb2.TopicIdPartition, ...] = ()
        self.is_stopped = False
        self.clock = clock
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._lease = lease
        self._tick = tick
        self._loop = loop
        self._on_news = on_news
        self._on_stale = on_stale
        self._controller_epoch = 0  # the highest of a response without an error
        self._last_news: HeartbeatNews | None = None
        self._news_lock = threading.Lock()
        self._seq = 0

    def beat(self) -> pb.HeartbeatRequest | None:
        """Return the next beat; None while the event loop stands still."""
        loop_age_ms = self._tick.age_ms()
        if loop_age_ms > LOOP_AGE_MAX_MS:
            return None
        self._seq += 1
        return pb.HeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch,
            seq=self._seq,
            image_offset=self.image_offset,
            want_fence=self.want_fence,
            want_shutdown=self.want_shutdown,
            cannot_write=self.cannot_write,
            loop_age_ms=loop_age_ms,
            offline_directories=self.offline_directories,
            broken_partitions=self.broken_partitions,
        )

    def received(
        self, controller: ControllerId, response: pb.HeartbeatResponse, sent_at_ms: int
    ) -> None:
        """A controller responded to the beat that was sent at `sent_at_ms` of the boot-time clock."""
        if not response.is_active or self.is_stopped:
            return
        is_good = response.error_code == ErrorCode.NONE
        with self._news_lock:
            if response.controller_epoch < self._controller_epoch:
                return  # it was deposed, and does not know that yet
            if is_good:  # the refusal of a stranger says nothing of this cluster's epochs
                self._controller_epoch = response.controller_epoch
        if response.error_code in _LIFE_IS_OVER:
            self._lease.end()
            self._tell(self._on_stale)
            return
        if not is_good:
            return
        if not response.is_fenced:
            self._lease.renew(sent_at_ms)
        news = HeartbeatNews(
            controller_id=controller,
            controller_epoch=response.controller_epoch,
            is_fenced=response.is_fenced,
            may_shutdown=response.may_shutdown,
            report_log_ends=tuple(
                (TopicId(one.topic_id), one.partition) for one in response.report_log_ends
            ),
        )
        with self._news_lock:
            if news == self._last_news and not news.report_log_ends:
                return
            self._last_news = news
        self._tell(lambda: self._on_news(news))

    def _tell(self, what: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            self.is_stopped = True  # the loop is closed: the process is ending
