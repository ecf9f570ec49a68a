"""One connection between two voters: frames, hello messages, pings and certificates. This code knows nothing of Raft.

Each voter opens a connection to every other voter, and sends its messages only on the connections that it opened. On a
connection that it accepted, it sends only its hello and pongs. So two voters have two connections, and need not agree
on one of them.

    opener     hello, then messages, and a ping every 0.5 s
    acceptor   hello (or closes the connection if it refuses the peer), then pongs

A hello has the protocol versions, the cluster id, and the ids of sender and receiver. With TLS, the certificate must
name the sender, too. Both voters name the lowest and the highest version that they support, and use the lower of the
two highest versions. Voters of the first release accept only a *short* hello, which has four fields and one version. If
a hello gets no response, the opener sends a short hello on the next connection. The response to a short hello is short.

A longer hello also has the set of voters. A peer with another set is refused, after a hello that shows this voter's
set. A connection on which a ping gets no response within 2 s is closed, and the kernel gets the same limit
if it has `TCP_USER_TIMEOUT`. Buffered bytes are dropped with the connection, so no stale message is delivered after the
network has recovered.

With TLS (version 1.3, mutual, certificates of the cluster's own CA) a controller's certificate names the controller in
a SAN, `DNS:controller-<id>` or `URI:odradek://controller/<id>`. The common name and the host name are not checked,
because addresses change and identities do not. Certificate files are read for each connection that is opened; the
listener reloads them when they have changed. So a renewed certificate needs no restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from odradek_metadata_quorum.errors import WireError
from odradek_metadata_quorum.network.wire import (
    HELLO,
    LENGTH,
    PING,
    PONG,
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    Message,
    decode,
    encode,
)
from odradek_metadata_quorum.settings import QuorumTls
from odradek_runtime.listeners import GRPC, HTTP, farewell, recognize

PEER_TIMEOUT_S: Final = 2.0
PING_INTERVAL_S: Final = 0.5
# At most this many characters are logged of the list of voters in a peer's hello.
_VOTERS_TEXT_MAX: Final = 200
# A peer may use at most this much memory before it has identified itself.
HELLO_BYTES_MAX: Final = 4096


class FrameProtocol(asyncio.Protocol):
    """Divides a byte stream into messages. If the peer's bytes are not valid, the connection is closed. An exception in
    `received` other than WireError is a bug and is not caught.
    """

    def __init__(self, *, frame_bytes_max: int, tls: bool) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._tls = tls
        self._buffer = bytearray()
        self.transport: asyncio.Transport | None = None
        self.greeted = False
        self.refusal: str | None = None
        # How the peer's set of voters differs from this voter's, as the text with which the peer is refused.
        self.mismatch = ""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast instead of isinstance, because uvloop's transports are not subclasses of asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self._frame_bytes_max)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            # These calls fail for Unix sockets.
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # macOS does not have this option. There, only the missing pongs end the connection.
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    connection.setsockopt(
                        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(PEER_TIMEOUT_S * 1000)
                    )

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self.lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        offset = 0
        view = memoryview(self._buffer)
        try:
            while not self.closed.done():
                if len(view) - offset < LENGTH.size:
                    break
                (size,) = LENGTH.unpack_from(view, offset)
                if size > (self._frame_bytes_max if self.greeted else HELLO_BYTES_MAX):
                    raise WireError(f"the peer sent a frame of {size} bytes, which is too large")
                start = offset + LENGTH.size
                if len(view) < start + size:
                    break
                offset = start + size
                self.received(decode(bytes(view[start:offset])))
        except WireError as error:
            self.refuse(str(error))
        finally:
            view.release()
            del self._buffer[:offset]

    def received(self, message: Message) -> None:
        """Handle one received message. A WireError closes the connection."""
        raise NotImplementedError

    def lost(self) -> None:
        """Handle the end of the connection."""

    def send(self, message: Message) -> None:
        """Send one message. If the connection is closed, do nothing."""
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Send one encoded message. If the connection is closed, do nothing."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(frame)

    def refuse(self, reason: str) -> None:
        """Close the connection at once, and store the reason, which the owner of this object logs."""
        self.refusal = self.refusal or reason
        self.abort()

    def refuse_after(self, message: Message, reason: str) -> None:
        """Send a message that shows the peer why it is refused, and then close the connection."""
        self._close_after(encode(message), reason)

    def _close_after(self, sent: bytes, reason: str) -> None:
        self.refusal = self.refusal or reason
        self.send_frame(sent)
        if not self.closed.done():
            self.closed.set_result(None)
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection at once, and discard buffered bytes."""
        if not self.closed.done():
            self.closed.set_result(None)
        if self.transport is not None:
            self.transport.abort()

    def certified(self, node_id: int) -> bool:
        """Return whether the peer's certificate names the controller with this id. Without TLS, return True."""
        if not self._tls:
            return True
        assert self.transport is not None
        certificate: dict[str, Any] | None = self.transport.get_extra_info("peercert")
        return node_id in certified_ids(certificate)


class OutgoingLink(FrameProtocol):
    """A connection that this voter opened. This voter sends messages on it, and receives only a hello and pongs."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        peer_id: int,
        voters: str,
        frame_bytes_max: int,
        queue_bytes_max: int,
        tls: bool,
        short_hello: bool,
    ) -> None:
        super().__init__(frame_bytes_max=frame_bytes_max, tls=tls)
        loop = asyncio.get_running_loop()
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._peer_id = peer_id
        self._queue_bytes_max = queue_bytes_max
        self._short_hello = short_hello
        self._voters = voters
        self.ready: asyncio.Future[None] = loop.create_future()
        self.heard_s = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.certified(self._peer_id):
            self.refuse(f"the peer's certificate does not name controller-{self._peer_id}")
            return
        self.send(
            hello(
                self._cluster_id,
                self._node_id,
                self._peer_id,
                voters=self._voters,
                short=self._short_hello,
            )
        )

    def received(self, message: Message) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        if message["type"] == HELLO and not self.greeted:
            reason = hello_refusal(message, self._cluster_id, self._peer_id, self._node_id)
            if reason is not None:
                self.refuse(reason)
                return
            self.mismatch = voters_mismatch(message, self._voters)
            if self.mismatch:
                self.refuse(self.mismatch)
                return
            self.greeted = True
            if not self.ready.done():
                self.ready.set_result(None)
        elif message["type"] != PONG or not self.greeted:
            raise WireError(
                f"received {message['type']}, but the peer may send only one hello and then pongs"
            )

    def lost(self) -> None:
        self.ready.cancel()

    def queued_bytes(self) -> int:
        """Return the number of bytes in the transport's write buffer."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def offer_frame(self, frame: bytes) -> None:
        """Send a frame. Drop it if more than `queue_bytes_max` bytes are already buffered."""
        if self.queued_bytes() <= self._queue_bytes_max:
            self.send_frame(frame)


class IncomingLink(FrameProtocol):
    """A connection that another voter opened. This voter receives messages on it, and sends only a hello and pongs."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        peer_ids: frozenset[int],
        voters: str,
        known_mismatch: Callable[[int], str],
        frame_bytes_max: int,
        tls: bool,
        on_greeted: Callable[[IncomingLink], None],
        on_message: Callable[[int, Message], None],
        on_lost: Callable[[IncomingLink], None],
        advice: Callable[[], str],
    ) -> None:
        """`known_mismatch(peer_id)` returns how the voters in the last longer hello of the peer differ from this
        voter's set; "" if they do not. `advice` returns a text for a client that is no voter.
        """
        super().__init__(frame_bytes_max=frame_bytes_max, tls=tls)
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._peer_ids = peer_ids
        self._voters = voters
        self._known_mismatch = known_mismatch
        self._on_greeted = on_greeted
        self._on_message = on_message
        self._on_lost = on_lost
        self._advice = advice
        self.peer_id: int | None = None
        # The id in a valid hello, whether the peer was accepted or refused.
        self.claimed_id: int | None = None

    def data_received(self, data: bytes) -> None:
        if not self.greeted:
            protocol = recognize(bytes(self._buffer[:4] + data[:4])[:4])
            if protocol in (GRPC, HTTP):
                advice = self._advice()
                self._close_after(
                    farewell(protocol, advice), f"the client speaks {protocol}: {advice}"
                )
                return
        super().data_received(data)

    def received(self, message: Message) -> None:
        if self.peer_id is not None:
            if message["type"] == PING:
                self.send({"type": PONG, "nonce": message["nonce"]})
            else:
                self._on_message(self.peer_id, message)
            return
        if message["type"] != HELLO:
            raise WireError(f"received {message['type']} before hello")
        peer_id = message["node_id"]
        reason = hello_refusal(message, self._cluster_id, peer_id, self._node_id)
        if reason is None and peer_id not in self._peer_ids:
            reason = f"controller {peer_id} is not a voter of this cluster"
        if reason is None and not self.certified(peer_id):
            reason = f"the peer's certificate does not name controller-{peer_id}"
        if reason is not None:
            self.refuse(reason)
            return
        self.claimed_id = peer_id
        # A short hello does not have the peer's voters. If the peer sends one after it was refused because of its
        # voters, it is refused again.
        self.mismatch = voters_mismatch(message, self._voters) or (
            self._known_mismatch(peer_id) if "voters" not in message else ""
        )
        short = "version_max" not in message
        response = hello(self._cluster_id, self._node_id, peer_id, voters=self._voters, short=short)
        if self.mismatch:
            self.refuse_after(response, self.mismatch)
            return
        self.peer_id = peer_id
        self.greeted = True
        self._on_greeted(self)
        self.send(response)

    def lost(self) -> None:
        self._on_lost(self)


def voters_text(voters: Iterable[int]) -> str:
    """Return the text form that a set of voters has in a hello."""
    return ",".join(map(str, sorted(voters)))


def voters_mismatch(message: Message, voters: str) -> str:
    """Return how the set of voters in a peer's hello differs from this voter's set, with the remedy.

    Return "" if the sets are equal or the hello has no set of voters.
    """
    peer_voters = message.get("voters", voters)
    if peer_voters == voters:
        return ""
    return (
        f"controller {message['node_id']} has the voters {peer_voters[:_VOTERS_TEXT_MAX]}, this controller has"
        f" {voters}: with different voters, two leaders could be elected. Set controller.quorum.voters of all"
        " controllers to the list that the majority has, and format the directory of each controller whose"
        " list was different"
    )


def hello(
    cluster_id: str, node_id: int, target_id: int, *, voters: str = "", short: bool
) -> Message:
    """Return a hello, the first message of either side. With `short` it has only the fields of the first release."""
    message: Message = {
        "type": HELLO,
        "version": PROTOCOL_VERSION_MIN,
        "cluster_id": cluster_id,
        "node_id": node_id,
        "target_id": target_id,
    }
    if not short:
        message["version_max"] = PROTOCOL_VERSION_MAX
        if voters:
            message["voters"] = voters
    return message


def agreed_version(message: Message) -> int | None:
    """Return the highest protocol version that both this voter and the sender of the hello support, or None."""
    lowest: int = message["version"]
    highest: int = message.get("version_max", lowest)
    version = min(highest, PROTOCOL_VERSION_MAX)
    return version if version >= max(lowest, PROTOCOL_VERSION_MIN) else None


def hello_refusal(message: Message, cluster_id: str, peer_id: int, node_id: int) -> str | None:
    """Return why a hello from the peer `peer_id` must be refused, or None if it is acceptable."""
    if agreed_version(message) is None:
        return (
            f"the peer supports versions {message['version']} to"
            f" {message.get('version_max', message['version'])} of the protocol between controllers, this"
            f" controller {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}: upgrade the controller with the older"
            " release"
        )
    if message["cluster_id"] != cluster_id:
        return f"the peer belongs to cluster {message['cluster_id']!r}, not {cluster_id!r}"
    if message["node_id"] != peer_id:
        return f"the peer is controller {message['node_id']}, not {peer_id}"
    if message["target_id"] != node_id:
        return f"the peer expects controller {message['target_id']} at this address, but this is controller {node_id}"
    return None


class ServerIdentity:
    """The listener's TLS context. It requires client certificates that the CA has signed."""

    def __init__(self, tls: QuorumTls) -> None:
        """Read the files. Raises OSError or ssl.SSLError if they cannot be used."""
        self._tls = tls
        self._stamp = self._read_stamp()
        self.context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)

    def reload_if_renewed(self) -> None:
        """Reload the certificate files if they have changed, for later connections.

        Raises OSError or ssl.SSLError if the files cannot be used; the previous certificate then stays in use.
        """
        stamp = self._read_stamp()
        if stamp != self._stamp:
            # The files may be half written. Loading them into a new context raises before the present one is changed.
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._tls)
            _load(self.context, self._tls)
            self._stamp = stamp

    def _read_stamp(self) -> tuple[int, ...]:
        tls = self._tls
        paths = (tls.certificate_path, tls.key_path, tls.ca_path)
        return tuple(path.stat().st_mtime_ns for path in paths)


def client_context(tls: QuorumTls) -> ssl.SSLContext:
    """Return a TLS context for connections to other voters. It does not check the host name, because the caller checks
    the identity in the certificate (`certified_ids`).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _load(context, tls)


def _load(context: ssl.SSLContext, tls: QuorumTls) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.certificate_path, tls.key_path)
    context.load_verify_locations(tls.ca_path)
    return context


def certified_ids(certificate: dict[str, Any] | None) -> frozenset[int]:
    """Return the controller ids in a peer's verified certificate. The result is empty if there are none."""
    ids = set()
    for kind, value in (certificate or {}).get("subjectAltName", ()):
        prefix = {"DNS": "controller-", "URI": "odradek://controller/"}.get(kind)
        if prefix is not None and value.startswith(prefix):
            digits = value[len(prefix) :]
            if digits.isascii() and digits.isdigit():
                ids.add(int(digits))
    return frozenset(ids)
