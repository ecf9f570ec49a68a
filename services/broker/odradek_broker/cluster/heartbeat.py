"""The heartbeat: what a broker reports to every controller, and what the controllers' responses change.

A broker must be fenced when its process has ended or its event loop hangs, but never because it is busy. So a thread
sends the heartbeats (heartbeat_threads.py), each with the time since the last iteration of the event loop. If this time
exceeds `LOOP_AGE_MAX_MS`, the thread sends no more heartbeats, and the broker's session at the controller expires.
Standby controllers get the heartbeats, too, so that a new active controller knows which brokers are alive. Only a
response of the active controller renews the broker's lease.

Callbacks are passed to the event loop with `call_soon_threadsafe`. The lease is renewed at once, in the thread
that receives the response.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from odradek_protocol.identity import BrokerEpoch, BrokerId, ControllerId, TopicId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.clock import SYSTEM_CLOCK, Clock

LOOP_AGE_MAX_MS: Final = 2_000
LOOP_TICK_MS: Final = 50
_SENT_TIMES_MAX: Final = 64
_REGISTRATION_ENDED: Final = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)


class Lease:
    """How long this broker may respond to clients as a leader without a response from the active controller.

    The lease begins at the *send* time of the last heartbeat to which the active controller responded, so a slow
    response makes it shorter. The lease only bounds how stale a response to a client can be: safety rests on epochs and
    the maximal ISR, and a new leader may begin before the old leader's lease expires. Times are ms of CLOCK_BOOTTIME,
    which advances while the machine is suspended.

    The heartbeat threads write `until_ms` and the event loop reads it. This needs no lock, because setting one
    attribute is atomic.
    """

    __slots__ = ("_length_ms", "until_ms")

    def __init__(self, length_ms: int) -> None:
        self._length_ms = length_ms
        self.until_ms = 0

    def renew(self, sent_at_ms: int) -> None:
        """Extend the lease, because the active controller has responded to the heartbeat that was sent at
        `sent_at_ms`.
        """
        self.until_ms = max(self.until_ms, sent_at_ms + self._length_ms)

    def end(self) -> None:
        """End the lease. The broker is fenced or stops, and must not respond as a leader any more."""
        self.until_ms = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatUpdate:
    """The content of the active controller's latest response. `on_update` gets it only if it differs from the previous
    content, or if it requests log end offsets.
    """

    controller_id: ControllerId
    controller_epoch: int
    is_fenced: bool
    may_shutdown: bool
    report_log_ends: tuple[tuple[TopicId, int], ...]


class LoopTick:
    """The time at which the event loop last ran, in ms of the monotonic clock. Any thread may read it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.at_ms = clock.monotonic_ms()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to update the time in the running event loop."""
        self.at_ms = self._clock.monotonic_ms()
        self._handle = asyncio.get_running_loop().call_later(LOOP_TICK_MS / 1000, self.start)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def age_ms(self) -> int:
        """Return the time since the last iteration of the event loop, in ms."""
        return self._clock.monotonic_ms() - self.at_ms


class SentBeats:
    """The send times of the heartbeats of one stream, by sequence number."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent_at_ms: dict[int, int] = {}

    def sending(self, request: pb.HeartbeatRequest) -> None:
        """Record that this heartbeat is sent now."""
        if len(self._sent_at_ms) >= _SENT_TIMES_MAX:
            self._sent_at_ms.clear()
        self._sent_at_ms[request.seq] = self._clock.boottime_ms()

    def take(self, response: pb.HeartbeatResponse) -> int | None:
        """Return the send time of the heartbeat to which this is the response; None if this stream has not sent that
        heartbeat.
        """
        return self._sent_at_ms.pop(response.seq, None)


class Beating(Protocol):
    """Sends a broker's heartbeats, from threads or in the simulator. A `Heartbeat` creates their content."""

    def start(self) -> None:
        """Begin to send heartbeats."""

    def beat_now(self) -> None:
        """Send a heartbeat at once, without waiting for the interval."""

    def stop(self) -> None:
        """End the streams, but do not wait until they have ended."""


class Heartbeat:
    """The content of each heartbeat, and the effects of the responses.

    The event loop sets the public attributes. `beat` and `received` may be called from any thread.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        lease: Lease,
        tick: LoopTick,
        loop: asyncio.AbstractEventLoop,
        on_update: Callable[[HeartbeatUpdate], None],
        on_stale: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create the heartbeat of a registration.

        Args:
            on_update: called on `loop` when a response of the active controller differs from the previous one, or
                requests log end offsets.
            on_stale: called on `loop` when the controller knows a later registration of this broker id, or none.
        """
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
        self._on_update = on_update
        self._on_stale = on_stale
        self._controller_epoch = 0  # the highest epoch in a response without an error
        self._last_update: HeartbeatUpdate | None = None
        self._update_lock = threading.Lock()
        self._seq = 0

    def beat(self) -> pb.HeartbeatRequest | None:
        """Return the next heartbeat; None while the event loop hangs."""
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
        """Handle a controller's response to the heartbeat that was sent at `sent_at_ms` (CLOCK_BOOTTIME)."""
        if not response.is_active or self.is_stopped:
            return
        is_good = response.error_code == ErrorCode.NONE
        with self._update_lock:
            if response.controller_epoch < self._controller_epoch:
                # The sender is a deposed controller that does not know of its successor yet.
                return
            # An error may come from a controller of another cluster, whose controller epochs mean nothing to this
            # broker.
            if is_good:
                self._controller_epoch = response.controller_epoch
        if response.error_code in _REGISTRATION_ENDED:
            self._lease.end()
            self._tell(self._on_stale)
            return
        if not is_good:
            return
        if not response.is_fenced:
            self._lease.renew(sent_at_ms)
        update = HeartbeatUpdate(
            controller_id=controller,
            controller_epoch=response.controller_epoch,
            is_fenced=response.is_fenced,
            may_shutdown=response.may_shutdown,
            report_log_ends=tuple(
                (TopicId(partition.topic_id), partition.partition)
                for partition in response.report_log_ends
            ),
        )
        with self._update_lock:
            if update == self._last_update and not update.report_log_ends:
                return
            self._last_update = update
        self._tell(lambda: self._on_update(update))

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The event loop is closed, because the process is ending.
            self.is_stopped = True
