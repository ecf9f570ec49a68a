"""Sends heartbeats to every controller, from separate threads and on separate channels.

One thread creates the heartbeats. The gRPC stream to each controller has a reader thread, and a writer thread that gRPC
runs. So a busy event loop does not delay heartbeats; each heartbeat contains the time since the loop's last iteration.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import grpc

from odradek_broker.cluster.heartbeat import Heartbeat, SentBeats
from odradek_protocol.identity import ControllerId
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as pb_grpc
from odradek_runtime.cluster_identity import ClusterIdentity
from odradek_runtime.grpc_endpoints import internal_sync_channel
from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles

_UNSENT_MAX: Final = 2
_SHUTDOWN_INTERVAL_S: Final = 0.02
_RECONNECT_MIN_S: Final = 0.05
_RECONNECT_MAX_S: Final = 0.5
_log = event_log(__name__)


class HeartbeatThreads:
    """Sends heartbeats from `start` to `stop`, in daemon threads."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        *,
        controllers: Sequence[tuple[int, str, int]],
        interval_ms: int,
        tls: TlsFiles | None,
        identity: ClusterIdentity,
    ) -> None:
        self._heartbeat = heartbeat
        self._interval_s = interval_ms / 1000
        self._stopping = threading.Event()
        self._beat_now = threading.Event()
        self._streams = [
            _ControllerStream(
                ControllerId(node), host, port, tls, identity, heartbeat, self._stopping
            )
            for node, host, port in controllers
        ]
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to send heartbeats."""
        for stream in self._streams:
            stream.start()
        self._thread.start()

    def beat_now(self) -> None:
        """Send a heartbeat at once, without waiting for the interval, so that the controller learns of a change."""
        self._beat_now.set()

    def stop(self) -> None:
        """End the streams, but do not wait until they have ended."""
        self._heartbeat.is_stopped = True
        self._stopping.set()
        self._beat_now.set()
        for stream in self._streams:
            stream.close()

    def _beat(self) -> None:
        heartbeat = self._heartbeat
        while not self._stopping.is_set() and not heartbeat.is_stopped:
            self._beat_now.clear()
            request = heartbeat.beat()
            if request is not None:
                for stream in self._streams:
                    stream.send(request)
            is_urgent = heartbeat.want_shutdown
            self._beat_now.wait(_SHUTDOWN_INTERVAL_S if is_urgent else self._interval_s)


class _ControllerStream:
    """The heartbeats to one controller, over a stream that is opened again whenever it breaks."""

    def __init__(
        self,
        controller: ControllerId,
        host: str,
        port: int,
        tls: TlsFiles | None,
        identity: ClusterIdentity,
        heartbeat: Heartbeat,
        stopping: threading.Event,
    ) -> None:
        self._controller = controller
        self._endpoint = (host, port, tls)
        self._identity = identity
        self._refusal = ""
        self._heartbeat = heartbeat
        self._stopping = stopping
        self._unsent: queue.Queue[pb.HeartbeatRequest | None] = queue.Queue(_UNSENT_MAX)
        self._sent = SentBeats(heartbeat.clock)
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"heartbeat-{controller}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def send(self, request: pb.HeartbeatRequest) -> None:
        """Queue a heartbeat. If the queue is full because the controller does not read, drop the oldest heartbeat."""
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
            except OSError as error:
                # The TLS files cannot be read for a moment while they are being replaced.
                _log.warning(
                    "Failed to open a heartbeat stream to the controller", reason=str(error)
                )
            self._stopping.wait(backoff_s)
            backoff_s = min(backoff_s * 2, _RECONNECT_MAX_S)

    def _stream(self) -> bool:
        """Run one stream from its start to its end. Return whether any response arrived.

        Each stream opens a new channel, which uses the certificate that the TLS files contain at that time.
        """
        host, port, tls = self._endpoint
        has_response = False
        self._sent = SentBeats(self._heartbeat.clock)
        ended = threading.Event()
        with internal_sync_channel(
            host, port, tls, peer=f"controller-{self._controller}"
        ) as channel:
            call = pb_grpc.ControllerServiceStub(channel).Heartbeat(
                self._requests(ended), metadata=self._identity.headers()
            )
            self._call = call
            try:
                for response in call:
                    has_response = True
                    self._refusal = ""
                    sent_at_ms = self._sent.take(response)
                    if sent_at_ms is not None:
                        self._heartbeat.received(self._controller, response, sent_at_ms)
            except grpc.RpcError as error:
                # The calls to the controllers log that a controller cannot be reached. Only a refusal is logged here.
                if isinstance(error, grpc.Call):
                    self._note_refusal(error.code(), error.details() or "")
            finally:
                ended.set()
                call.cancel()
        return has_response

    def _note_refusal(self, code: grpc.StatusCode, details: str) -> None:
        """Log a refusal, once for each reason."""
        if code is grpc.StatusCode.FAILED_PRECONDITION and details != self._refusal:
            self._refusal = details
            _log.error(
                "Controller refused this broker's heartbeats",
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
            self._sent.sending(request)
            yield request
