"""The heartbeat: own threads, own channels, to every controller.

A broker must be found dead when its process is gone or its event loop hangs, and never because it
is busy. So a thread beats, and tells the age of the loop's last turn; past `LOOP_AGE_MAX_MS` it
stops, and the session at the controller runs out. Every controller gets the beats, standbys too: a
new active one then knows which brokers were alive; only the active one's answer renews the lease.

Threads: one beats; a gRPC stream per controller has a reader thread (and gRPC's own writer). What
the loop must know crosses by `call_soon_threadsafe`; the lease is renewed where the answer arrives.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from odradek_broker.cluster.lease import Lease
from odradek_protocol.identity import BrokerEpoch, BrokerId, ControllerId, TopicId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as pb_grpc
from odradek_runtime.clock import boottime_ms, monotonic_ms
from odradek_runtime.cluster_identity import ClusterIdentity
from odradek_runtime.grpc_endpoints import internal_sync_channel
from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles

LOOP_AGE_MAX_MS: Final = 2_000
LOOP_TICK_MS: Final = 50
_UNSENT_MAX: Final = 2
_SHUTDOWN_INTERVAL_S: Final = 0.02
_RECONNECT_MIN_S: Final = 0.05
_RECONNECT_MAX_S: Final = 0.5
_SENT_TIMES_MAX: Final = 64
_LIFE_IS_OVER: Final = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
_log = event_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatNews:
    """What the active controller said last, when any of it changed."""

    controller_id: ControllerId
    controller_epoch: int
    is_fenced: bool
    may_shutdown: bool
    report_log_ends: tuple[tuple[TopicId, int], ...]


class LoopTick:
    """Says when the event loop last turned, to whoever asks from another thread."""

    def __init__(self) -> None:
        self.at_ms = monotonic_ms()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tick from now on, in the running loop."""
        self.at_ms = monotonic_ms()
        self._handle = asyncio.get_running_loop().call_later(LOOP_TICK_MS / 1000, self.start)

    def stop(self) -> None:
        """Tick no longer."""
        if self._handle is not None:
            self._handle.cancel()

    def age_ms(self) -> int:
        """Since the last turn."""
        return monotonic_ms() - self.at_ms


class Heartbeat:
    """Beats until stopped. The loop sets the plain attributes; the beat carries what they are."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        controllers: Sequence[tuple[int, str, int]],
        interval_ms: int,
        lease: Lease,
        tick: LoopTick,
        loop: asyncio.AbstractEventLoop,
        on_news: Callable[[HeartbeatNews], None],
        on_stale: Callable[[], None],
        tls: TlsFiles | None,
        identity: ClusterIdentity,
    ) -> None:
        """`on_news` and `on_stale` are called on `loop`."""
        self.image_offset = -1
        self.want_fence = True
        self.want_shutdown = False
        self.cannot_write = False
        self.offline_directories: tuple[bytes, ...] = ()
        self.broken_partitions: tuple[common_pb2.TopicIdPartition, ...] = ()
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._interval_s = interval_ms / 1000
        self._lease = lease
        self._tick = tick
        self._loop = loop
        self._on_news = on_news
        self._on_stale = on_stale
        self._controller_epoch = 0  # the highest that a good answer came from
        self._last_news: HeartbeatNews | None = None
        self._news_lock = threading.Lock()
        self._stopping = threading.Event()
        self._beat_now = threading.Event()
        self._seq = 0
        self._streams = [
            _ControllerStream(
                ControllerId(node), host, port, tls, identity, self._received, self._stopping
            )
            for node, host, port in controllers
        ]
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        for stream in self._streams:
            stream.start()
        self._thread.start()

    def beat_now(self) -> None:
        """Do not wait for the interval: something that the controller must know has changed."""
        self._beat_now.set()

    def stop(self) -> None:
        """End the streams; returns at once, the threads are daemons."""
        self._stopping.set()
        self._beat_now.set()
        for stream in self._streams:
            stream.close()

    def _beat(self) -> None:
        while not self._stopping.is_set():
            self._beat_now.clear()
            loop_age_ms = self._tick.age_ms()
            if loop_age_ms <= LOOP_AGE_MAX_MS:
                self._seq += 1
                request = pb.HeartbeatRequest(
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
                for stream in self._streams:
                    stream.send(request)
            hurry = self.want_shutdown
            self._beat_now.wait(_SHUTDOWN_INTERVAL_S if hurry else self._interval_s)

    def _received(
        self, controller: ControllerId, answer: pb.HeartbeatResponse, sent_at_ms: int
    ) -> None:
        if not answer.is_active or self._stopping.is_set():
            return
        is_good = answer.error_code == ErrorCode.NONE
        with self._news_lock:
            if answer.controller_epoch < self._controller_epoch:
                return  # it was deposed, and does not know that yet
            if is_good:  # the refusal of a stranger says nothing of this cluster's epochs
                self._controller_epoch = answer.controller_epoch
        if answer.error_code in _LIFE_IS_OVER:
            self._lease.end()
            self._tell(self._on_stale)
            return
        if not is_good:
            return
        if not answer.is_fenced:
            self._lease.renew(sent_at_ms)
        news = HeartbeatNews(
            controller_id=controller,
            controller_epoch=answer.controller_epoch,
            is_fenced=answer.is_fenced,
            may_shutdown=answer.may_shutdown,
            report_log_ends=tuple(
                (TopicId(one.topic_id), one.partition) for one in answer.report_log_ends
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
            self._stopping.set()  # the loop is closed: the process is ending


class _ControllerStream:
    """The beats to one controller, over a stream that is opened again whenever it breaks."""

    def __init__(
        self,
        controller: ControllerId,
        host: str,
        port: int,
        tls: TlsFiles | None,
        identity: ClusterIdentity,
        on_answer: Callable[[ControllerId, pb.HeartbeatResponse, int], None],
        stopping: threading.Event,
    ) -> None:
        self._controller = controller
        self._endpoint = (host, port, tls)
        self._identity = identity
        self._refusal = ""
        self._on_answer = on_answer
        self._stopping = stopping
        self._unsent: queue.Queue[pb.HeartbeatRequest | None] = queue.Queue(_UNSENT_MAX)
        self._sent_at: dict[int, int] = {}
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"heartbeat-{controller}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def send(self, request: pb.HeartbeatRequest) -> None:
        """Hand over a beat; the oldest goes when a controller does not take them."""
        while True:
            try:
                self._unsent.put_nowait(request)
                return
            except queue.Full:
                try:
                    self._unsent.get_nowait()
                except queue.Empty:
                    continue

    def close(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()

    def _run(self) -> None:
        backoff_s = _RECONNECT_MIN_S
        while not self._stopping.is_set():
            try:
                if self._stream():
                    backoff_s = _RECONNECT_MIN_S
            except OSError as error:  # files of TLS that are being replaced
                _log.warning("Cannot open a heartbeat stream", reason=str(error))
            self._stopping.wait(backoff_s)
            backoff_s = min(backoff_s * 2, _RECONNECT_MAX_S)

    def _stream(self) -> bool:
        """One stream from its start to its end; whether it was answered.

        On a channel of its own: it shows the certificate that the files hold now.
        """
        host, port, tls = self._endpoint
        is_answered = False
        self._sent_at.clear()
        ended = threading.Event()
        with internal_sync_channel(
            host, port, tls, peer=f"controller-{self._controller}"
        ) as channel:
            call = pb_grpc.ControllerServiceStub(channel).Heartbeat(
                self._requests(ended), metadata=self._identity.headers()
            )
            self._call = call
            try:
                for answer in call:
                    is_answered = True
                    self._refusal = ""
                    sent_at_ms = self._sent_at.pop(answer.seq, None)
                    if sent_at_ms is not None:
                        self._on_answer(self._controller, answer, sent_at_ms)
            except grpc.RpcError as error:
                # A controller that is away is no event of ours; others tell of it.
                if isinstance(error, grpc.Call):
                    self._note_refusal(error.code(), error.details() or "")
            finally:
                ended.set()
                call.cancel()
        return is_answered

    def _note_refusal(self, code: grpc.StatusCode, details: str) -> None:
        """Tell of each reason once."""
        if code is grpc.StatusCode.FAILED_PRECONDITION and details != self._refusal:
            self._refusal = details
            _log.error(
                "A controller refuses this broker's heartbeats",
                controller_id=self._controller,
                reason=details,
            )

    def _requests(self, ended: threading.Event) -> Iterator[pb.HeartbeatRequest]:
        while not ended.is_set() and not self._stopping.is_set():
            try:
                request = self._unsent.get(timeout=0.5)
            except queue.Empty:
                continue
            if request is None or ended.is_set():
                return
            if len(self._sent_at) >= _SENT_TIMES_MAX:
                self._sent_at.clear()
            self._sent_at[request.seq] = boottime_ms()
            yield request
