"""One connection of a Kafka client: it receives frames, and sends the responses in the order of the requests.

    bytes -> FrameAssembler -> header -> Registry -> handler -> slot -> transport
                                                       ^          |
                         one unordered request at a time    responses in order of the requests

Requests begin one after the other. The next request begins only if all requests in progress are `is_ordered`
(registry.py), there are fewer than `IN_FLIGHT_MAX` of them, the client reads its responses, and no quota mutes the
connection. While no request can begin, the broker leaves further bytes in the socket (`pause_reading`). A client that
sends without reading responses thus fills its own buffers, not the broker's.

A long request (`LONG_REQUEST_BYTES_MIN`) is decoded, handled and encoded in steps, between which the event loop does
other work. The next request of the connection begins after the response to the long one.

Before the login has succeeded, frames have at most 4 KiB (20 KiB for a token), and only the requests of a login are
allowed. The broker closes the connection for a malformed frame, an unknown or too large request, a request before the
login, a slow client or an internal error; most other errors become error codes. A lost connection cancels its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from functools import partial
from time import perf_counter
from typing import Final, cast

from odradek_broker.access.quotas import REQUEST_PERCENTAGE
from odradek_broker.access.sasl import LoginFailed
from odradek_broker.kafka.connection_owner import ConnectionOwner
from odradek_broker.kafka.connection_times import ConnectionTimes
from odradek_broker.kafka.frame_file import FrameFile
from odradek_broker.kafka.frames import FrameAssembler, FrameRefused
from odradek_broker.kafka.later import Later
from odradek_broker.kafka.long_request import long_request
from odradek_broker.kafka.registry import Handler, Response
from odradek_broker.kafka.request import (
    AnyRequest,
    ClientSession,
    CloseConnection,
    Encoded,
    NoResponse,
    Request,
)
from odradek_broker.kafka.requests.administration.api_versions import unknown_version
from odradek_broker.kafka.requests.administration.sasl import log_in
from odradek_broker.kafka.response_line import WRITE_BUFFER_BYTES_MAX, ResponseLine, Slot, timed
from odradek_protocol.kafka.api_keys import ApiKey, api_name
from odradek_protocol.kafka.frames import FRAME_SIZE, request_fields
from odradek_protocol.kafka.messages import Message
from odradek_protocol.kafka.response_encoding import encode_message, encode_steps, item_count
from odradek_protocol.primitives import Malformed
from odradek_runtime.budget.client_budget import LONG_REQUEST_BYTES_MIN
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.listeners import KAFKA, farewell, recognize
from odradek_runtime.logs import event_log
from odradek_runtime.tls import ANONYMOUS

UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 4 * 1024
TOKEN_FRAME_BYTES_MAX: Final = 20 * 1024
"""The size limit of a frame after the client has chosen a SASL mechanism: an OAUTHBEARER token has up to 16 KiB."""
IN_FLIGHT_MAX: Final = 5
REQUEST_BYTES_MAX: Final = 16 << 20
"""The size limit of every request except Produce, which contains records."""
LONG_RESPONSE_ITEMS_MIN: Final = 256
"""A response with at least this many items is encoded in steps, between which the event loop does other work."""
_LOGIN_KEYS: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
_log = event_log(__name__)
_audit = event_log("odradek_broker.audit")


class KafkaConnection(asyncio.BufferedProtocol):
    """One connection of a Kafka client. It is used only on the event loop."""

    def __init__(self, owner: ConnectionOwner, now_ms: int) -> None:
        self._owner = owner
        self._frames = FrameAssembler(
            owner.scratch, frame_bytes_max=UNAUTHENTICATED_FRAME_BYTES_MAX
        )
        self._line = ResponseLine()
        self._slots = self._line.slots
        self._unordered = 0
        self._transport: asyncio.Transport | None = None
        self._session: ClientSession | None = None
        self._is_reading = True
        self._is_write_paused = False
        self._mute: asyncio.TimerHandle | None = None
        self._is_advancing = False
        self._is_closing = False
        self._times = ConnectionTimes(now_ms)
        self._has_spoken = False
        self._has_held = False  # whether a limit kept bytes unhandled in the last `_regulate`
        self._was_active = False  # whether bytes were received or sent since the last `check`
        self._takes_raw_tokens = False
        self._file: FrameFile | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # uvloop's transports have another base class
        self._transport = stream
        self._writer = self._line.opened(stream, self._written)
        try:
            self._session = self._owner.opened(self, stream)
        except CloseConnection as refused:
            self._close(str(refused))
            return
        stream.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        if self._session.is_authenticated:
            self._frames.frame_bytes_max = self._owner.frame_bytes_max

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        if self._mute is not None:
            self._mute.cancel()
        self._line.drop()
        self._forget_frame()
        self._owner.registry.services.unsent.hold(self, 0)
        self._owner.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closing:
            return
        self._was_active = True
        if not self._slots and not self._has_held and self._has_room():
            frame = self._frames.received_alone(nbytes)
            if frame is not None:  # the usual case: exactly one frame arrived, and no bytes remain
                self._is_advancing = True
                self._begin(frame)
                self._is_advancing = False
                if self._slots and self._slots[0].buffers is not None:
                    self._flush()
                return
        self._frames.received(nbytes)
        self._advance()

    def eof_received(self) -> bool:
        return False  # a client that has stopped sending expects no responses

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._times.written_at_ms = _now_ms()
        self._owner.registry.services.unsent.hold(self, self._writer.held_with_transport_bytes)

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._line.write_on()
        self._written()

    def _written(self) -> None:
        """Begin further requests, because the transport can buffer more, or has received all of a long response."""
        if not self._is_write_paused:
            self._owner.registry.services.unsent.hold(self, self._writer.held_bytes)
            self._advance()

    def _advance(self) -> None:
        """Begin received requests up to the limit of requests in progress, then pause or resume reading."""
        if self._is_advancing or self._is_closing:
            return
        self._is_advancing = True
        try:
            while self._has_room() or self._flush_together():
                if (frame := self._frames.next_frame()) is None:
                    break
                self._begin(frame)
            self._flush_together()
            if not self._is_closing:
                self._frames.settle()
        except FrameRefused as refused:
            self._refuse_frame(refused)
        finally:
            self._is_advancing = False
        self._regulate()

    def _flush_together(self) -> bool:
        """Send the responses that are ready in one send. Return whether another request may begin."""
        if self._is_closing or not self._slots or self._slots[0].buffers is None:
            return False
        self._flush()
        return self._has_room()

    def _has_room(self) -> bool:
        return (
            not self._is_closing
            and not self._unordered
            and len(self._slots) < IN_FLIGHT_MAX
            and not self._is_write_paused
            and not self._writer.waiting_bytes
            and self._mute is None
        )

    def _regulate(self) -> None:
        held = self._frames.held_bytes
        if self._is_closing or (not held and not self._has_held and self._is_reading):
            return  # the usual case: no bytes are waiting, and reading continues
        self._has_held = held > 0
        # A connection without waiting bytes continues to read even if no request may begin; otherwise it would not
        # notice that the client disconnects.
        wants = self._has_room() or not held
        arriving = self._owner.arriving
        arriving.hold(self, held)
        is_early = held and self._frames.frame_bytes_max <= TOKEN_FRAME_BYTES_MAX
        if is_early and (refused := self._owner.hold_early(self, held)):
            self._close(refused)
            return
        if held > arriving.SMALL_BYTES:
            if self._file is None:
                self._file = FrameFile(self, self._frames, self._owner, self._advance)
            wants = self._file.may_read(wants)
        if wants == self._is_reading:
            return
        self._is_reading = wants
        assert self._transport is not None
        if wants:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _forget_frame(self) -> None:
        self._frames.drop()
        self._owner.arriving.hold(self, 0)
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def is_at_file(self) -> bool:
        """Whether reading is paused because the frame is being moved to a file or read back from it."""
        return self._file is not None and self._file.is_busy

    @property
    def owner(self) -> str:
        """The client (a principal or an address) against whose share of memory received bytes are counted."""
        return self._session.owner if self._session is not None else ""

    def read_on(self) -> None:
        """Resume reading, because memory for large frames has been freed."""
        self._regulate()

    def give_up(self, reason: str) -> None:
        """Close the connection, and discard the bytes that were received."""
        self._close(reason)

    def _begin(self, frame: bytearray) -> None:
        session = self._session
        assert session is not None
        self._has_spoken = True
        if self._takes_raw_tokens:
            self._begin_raw_token(session, bytes(frame))
            return
        view = memoryview(frame)
        client_id = None
        try:
            api_key, version, correlation_id, client_id, body_at = request_fields(view)
            handler = self._owner.registry.find(api_key, version)
            if session.sasl is not None:  # None: this listener has no login
                self._require_login(session, api_key)
            slot = Slot(api_key, version, correlation_id, client_id)
            if handler is None:
                self._refuse_version(slot)
                return
            body = view[body_at:]
            if len(frame) < LONG_REQUEST_BYTES_MIN:
                message = handler.decode(version, body)
            elif handler.key != ApiKey.PRODUCE:
                if (size := len(body)) > REQUEST_BYTES_MAX:
                    refusal = f"has {size} bytes; the limit is {REQUEST_BYTES_MAX}"
                    raise CloseConnection(f"a {handler.key.name} request {refusal}")
                self._begin_long(session, slot, handler, body)
                return
            else:
                # Most bytes of a Produce request are records, which are not decoded. So decoding takes long only if
                # the request names many partitions.
                decoding = handler.decode_in_steps(version, body)
                try:
                    next(decoding)
                except StopIteration as done:
                    message = done.value
                else:
                    self._begin_long(session, slot, handler, body, decoding)
                    return
            request = slot.request = Request(
                key=handler.key,
                version=version,
                client_id=client_id,
                message=message,
                session=session,
                services=self._owner.registry.services,
            )
        except (Malformed, CloseConnection) as refused:
            self._close(str(refused), client_id)
            return
        self._slots.append(slot)
        self._owner.counters.requests[handler.key] += 1
        slot.began = perf_counter()
        try:
            result = handler.handle(request)
        except CloseConnection as closed:
            self._close(str(closed))
            return
        except Exception as error:
            self._fail(slot, error)
            return
        if request.services.quotas.counts_time:
            slot.seconds = perf_counter() - slot.began
        if type(result) is Encoded:
            self._respond(slot, result)
        elif isinstance(result, Later):
            slot.is_unordered = not handler.is_ordered
            self._unordered += slot.is_unordered
            result.respond = partial(self._respond_later, slot)
        elif isinstance(result, asyncio.Future):
            slot.work = result
            result.add_done_callback(lambda done: self._future_done(slot, done))
            slot.is_unordered = not handler.is_ordered
            self._unordered += slot.is_unordered
        elif asyncio.iscoroutine(result):
            self._spawn(slot, result)
        else:
            self._respond(slot, cast("Response", result))

    def _require_login(self, session: ClientSession, api_key: int) -> None:
        """Raise CloseConnection if the request needs a login, and the client has not logged in or must log in again."""
        if api_key in _LOGIN_KEYS:
            return
        if not session.is_authenticated:
            _audit.warning("Unauthenticated", host=session.host, request=api_name(api_key))
            raise CloseConnection(f"request {api_name(api_key)} was sent before the login")
        if session.must_log_in_again(monotonic_ms()):
            raise CloseConnection("the login has expired, and the client did not log in again")

    def _refuse_frame(self, refused: FrameRefused) -> None:
        protocol = None if self._has_spoken else recognize(refused.head)
        if protocol is None or protocol == KAFKA:
            self._close(str(refused))
            return
        advice = self._owner.advice_for(protocol)
        assert self._transport is not None
        if words := farewell(protocol, advice):
            self._transport.write(words)
        self._close(f"the client speaks {protocol}: {advice}")

    def _spawn(self, slot: Slot, result: Coroutine[object, object, Response]) -> None:
        slot.is_unordered = True
        self._unordered += 1
        if self._owner.registry.services.quotas.counts_time:
            result = timed(result, slot)
        slot.work = self._owner.spawn(self._finish(slot, result))

    def _begin_long(
        self,
        session: ClientSession,
        slot: Slot,
        handler: Handler,
        body: memoryview,
        decoding: Generator[None, None, object] | None = None,
    ) -> None:
        """Begin a large request, which is served in steps. `decoding` is its decoder if that was started already."""
        self._slots.append(slot)
        self._owner.counters.requests[handler.key] += 1
        slot.began = perf_counter()
        services = self._owner.registry.services
        self._spawn(slot, long_request(slot, handler, body, decoding, session, services))

    def _refuse_version(self, slot: Slot) -> None:
        if slot.api_key != ApiKey.API_VERSIONS:
            raise CloseConnection(self._owner.registry.refusal(slot.api_key, slot.version))
        slot.version = 0
        body = encode_message(unknown_version(), 0)
        self._slots.append(slot)
        self._line.fill(slot, [body], len(body))

    async def _finish(self, slot: Slot, result: Awaitable[Response]) -> None:
        """Wait for the response of an asynchronous request, and send it. This is its task, so no error may leave it."""
        try:
            response = await result
        except (Malformed, CloseConnection) as refused:
            self._close(str(refused))
        except Exception as error:
            self._fail(slot, error)
        else:
            self._unordered -= slot.is_unordered
            self._respond(slot, response)

    def _future_done(self, slot: Slot, done: asyncio.Future[Response]) -> None:
        if done.cancelled() or self._is_closing:
            return
        self._unordered -= slot.is_unordered
        error = done.exception()
        if error is not None:
            self._fail(slot, error)
        else:
            self._respond(slot, done.result())

    def _respond_later(self, slot: Slot, response: Response) -> None:
        """Send a response. This method begins no request, because another connection's request may be its caller."""
        self._unordered -= slot.is_unordered
        was_advancing, self._is_advancing = self._is_advancing, True
        self._respond(slot, response)
        self._is_advancing = was_advancing
        if not was_advancing and not self._is_closing:
            self._flush()
            if self._has_held:
                asyncio.get_running_loop().call_soon(self._advance)

    def _respond(self, slot: Slot, result: Response) -> None:
        """Encode a response, put it into its slot, and send all responses before the first one that is not ready."""
        request = slot.request
        if self._is_closing or request is None:
            return
        slot.work = None
        if request.services.quotas.counts_time:
            self._count_time(slot, request)
        try:
            if isinstance(result, Encoded):
                self._line.fill(slot, result.buffers, result.size_bytes)
            elif isinstance(result, NoResponse):
                slot.buffers = ()
            else:
                if request.throttle_ms:
                    result.throttle_time_ms = request.throttle_ms
                count = item_count(result, request.version, counted_max=LONG_RESPONSE_ITEMS_MIN)
                if count >= LONG_RESPONSE_ITEMS_MIN:
                    slot.work = self._owner.spawn(self._encode_long(slot, request, result))
                    return
                body = encode_message(result, request.version)
                self._line.fill(slot, [body], len(body))
        except Exception as error:
            self._fail(slot, error)
            return
        self._responded(slot, request)

    async def _encode_long(self, slot: Slot, request: AnyRequest, result: Message) -> None:
        """Encode a long response in steps. This is the outermost function of its task."""
        parts: list[bytearray] = []
        try:
            await request.pace.run(encode_steps(result, request.version, parts))
        except Exception as error:
            self._fail(slot, error)
            return
        if self._is_closing:
            return
        slot.work = None
        self._line.fill(slot, parts, sum(map(len, parts)))
        self._responded(slot, request)

    def _responded(self, slot: Slot, request: AnyRequest) -> None:
        """Send all responses before the first one that is not ready, and begin further requests."""
        self._owner.counters.latencies[request.key].observe(perf_counter() - slot.began)
        if request.key in _LOGIN_KEYS:
            self._login_advanced()
        if not self._is_advancing:
            self._flush()
        if request.closes_connection:
            self._close("the login failed")
            return
        if request.throttle_ms:
            self.mute_for(request.throttle_ms)
        self._advance()

    def _flush(self) -> None:
        try:
            if self._line.flush():
                self._was_active = True
                unsent = self._owner.registry.services.unsent
                if self._writer.waiting_bytes or unsent.total_bytes:
                    unsent.hold(self, self._writer.held_bytes)
        except OSError as error:
            self._close(f"the records of a response cannot be read from the log: {error}")

    def _count_time(self, slot: Slot, request: AnyRequest) -> None:
        wait_ms = request.services.quotas.throttle_ms(
            REQUEST_PERCENTAGE, request.session.principal, request.client_id, slot.seconds * 100
        )
        request.throttle_ms = max(request.throttle_ms, wait_ms)

    def mute_for(self, wait_ms: int) -> None:
        """Begin no request for `wait_ms`, because of a quota. A later end that an earlier call has set stays valid."""
        self._owner.counters.throttled_ms += wait_ms
        end_s = (_now_ms() + wait_ms) / 1000
        if self._mute is not None:
            end_s = max(end_s, self._mute.when())
            self._mute.cancel()
        self._mute = asyncio.get_running_loop().call_at(end_s, self._unmute)

    def _unmute(self) -> None:
        self._mute = None
        self._advance()

    def _login_advanced(self) -> None:
        session = self._session
        assert session is not None
        if session.is_authenticated:
            self._frames.frame_bytes_max = self._owner.frame_bytes_max
            self._owner.logged_in(self)
        elif session.sasl is not None and session.sasl.expects_token:
            self._frames.frame_bytes_max = max(self._frames.frame_bytes_max, TOKEN_FRAME_BYTES_MAX)
        if not session.is_authenticated and session.principal != ANONYMOUS:
            self._times.login_began_ms = _now_ms()  # reauthentication (KIP-368)
        self._takes_raw_tokens = session.takes_raw_tokens

    def _begin_raw_token(self, session: ClientSession, token: bytes) -> None:
        """Begin a login step. After SaslHandshake version 0, a frame contains only the token, without a header."""
        slot = Slot(ApiKey.SASL_AUTHENTICATE, 0, 0)
        self._slots.append(slot)
        self._unordered += 1
        slot.work = self._owner.spawn(self._raw_token(session, slot, token))

    async def _raw_token(self, session: ClientSession, slot: Slot, token: bytes) -> None:
        """Handle one token of the login. This is the outermost function of its task."""
        services = self._owner.registry.services
        reauth_ms_max = services.settings.connections_max_reauth_ms
        try:
            response, _ = await log_in(session, token, services.budget, reauth_ms_max=reauth_ms_max)
        except LoginFailed:
            self._close("the login failed")
            return
        except Exception as error:
            self._fail(slot, error)
            return
        self._unordered -= 1
        slot.buffers = [FRAME_SIZE.pack(len(response)), response]
        self._login_advanced()
        self._flush()
        self._advance()

    def check(self, now_ms: int) -> None:
        """Close the connection if the client is too slow or idle for too long. The listener calls this every second."""
        if self._transport is None or self._session is None:
            return
        times = self._times
        if self._was_active and not self._is_closing:
            self._was_active, times.active_at_ms = False, now_ms
        is_mid_frame = self._frames.is_mid_frame
        is_slow = times.frame_is_slow(
            self._frames.partial_frames,
            self._frames.held_bytes if is_mid_frame else 0,
            now_ms,
            is_read=self._is_reading,
        )
        if self._is_closing:
            if times.closes_too_slowly(now_ms):
                self._transport.abort()
        elif self._is_write_paused:
            if times.takes_nothing(self._line.unsent_bytes, now_ms):
                self._close("the client does not read its responses")
        elif not self._session.is_authenticated or not self._has_spoken:
            if times.begins_too_slowly(now_ms) and not self._slots:
                self._close("the client sent no request, or did not complete its login, in time")
        elif self._slots or self._mute is not None:
            return
        elif is_mid_frame:
            if is_slow:
                self._close("a request arrives too slowly")
        elif times.rests(self._owner.idle_ms_max, now_ms):
            self._close("")

    def _fail(self, slot: Slot, error: BaseException) -> None:
        """Log an unexpected exception and close the connection, so that the client retries elsewhere or later."""
        self._owner.counters.failures += 1
        _log.error(
            "Request failed on an internal error; closing its connection",
            exc=error,
            api_key=slot.api_key,
            version=slot.version,
            client_id=slot.client_id,
        )
        self._close("")

    def _close(self, reason: str, client_id: str | None = None) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._times.active_at_ms = _now_ms()
        session = self._session
        if reason:
            self._owner.counters.closed += 1
            _log.info(
                "Closed connection",
                reason=reason,
                host=session.host if session else "",
                principal=session.principal if session else "",
                client_id=client_id or "",
                client_software=session.client_software if session else "",
            )
        self._forget_frame()
        transport = self._transport
        assert transport is not None
        if self._is_write_paused:
            transport.abort()
        else:
            self._line.write_rest()
            transport.close()  # responses in the buffer are still sent


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
