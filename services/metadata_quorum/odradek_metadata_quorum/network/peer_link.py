"""One connection between two voters: its frames, hello, pings and certificates. It knows nothing of Raft.

Each voter dials every other one and sends on the connection it dialled; the other direction of a
connection carries only pongs. So there are two connections between two voters, and neither ever has
to decide which of two to keep.

    dialler    hello, then messages; a ping every second
    acceptor   hello back (a refusal closes), then pongs

The hello names protocol versions, cluster and both ends; with TLS the certificate must name the sender too. Both ends
name the lowest and the highest version they speak, and speak the lower of the two highest. Voters of the first
release take a hello of four fields only (a *short* one, which names one version): a dialler whose hello gets no
response sends a short one next, and the response to a short one is short. A longer hello names the set of voters,
too. A peer with another set is refused, after a hello that shows it the set of this voter. A connection on which a
ping gets no response within 2 s is closed, whatever TCP believes; the kernel gets the same limit
(`TCP_USER_TIMEOUT`). Bytes in the kernel's or the transport's buffers are dropped with the connection, so nothing
stale is delivered after the network has recovered.

With TLS (1.3, mutual, certificates of the cluster's own CA) a controller's certificate names it in a SAN,
`DNS:controller-<id>` or `URI:odradek://controller/<id>`. The common name and the host name are not checked: addresses
change, identities do not. A dialler reads the files for each connection, the listener when they have changed, so a
renewed certificate needs no restart.
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

PEER_TIMEOUT_S: Final = 2.0
PING_INTERVAL_S: Final = 0.5
_VOTERS_TEXT_MAX: Final = 200  # most characters of an unknown peer's hello that are logged
HELLO_BYTES_MAX: Final = 4096  # most memory that a peer may use before it has identified itself


class FrameProtocol(asyncio.Protocol):
    """Divides the byte stream into messages. An error of the peer closes the connection; an internal error raises."""

    def __init__(self, *, frame_bytes_max: int, tls: bool) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._tls = tls
        self._buffer = bytearray()
        self.transport: asyncio.Transport | None = None
        self.greeted = False
        self.refusal: str | None = None
        # Why the peer's list of voters differs; the peer is refused with this text.
        self.mismatch = ""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and no check, because uvloop's transports are not subclasses of asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self._frame_bytes_max)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            # These calls fail for a Unix socket, and on systems other than Linux.
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
                    raise WireError(f"a frame of {size} bytes is larger than allowed")
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
        """Handle one received message."""
        raise NotImplementedError

    def lost(self) -> None:
        """Handle the end of the connection."""

    def send(self, message: Message) -> None:
        """Send one message, if still connected."""
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Send one encoded message, if still connected."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(frame)

    def refuse(self, reason: str) -> None:
        """Close the connection at once. The owner logs the reason."""
        self.refusal = self.refusal or reason
        self.abort()

    def refuse_after(self, message: Message, reason: str) -> None:
        """Send this message, from which the peer can see the reason, and then close the connection."""
        self.refusal = self.refusal or reason
        self.send(message)
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
        """Return whether the peer's certificate names the controller with this id."""
        if not self._tls:
            return True
        assert self.transport is not None
        certificate: dict[str, Any] | None = self.transport.get_extra_info("peercert")
        return node_id in certified_ids(certificate)


class OutgoingLink(FrameProtocol):
    """A connection that this voter opened. It sends messages on it, and receives only the hello and pongs."""

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
            self.refuse(f"its certificate does not name controller-{self._peer_id}")
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
                f"received {message['type']} on a connection that only carries responses"
            )

    def lost(self) -> None:
        self.ready.cancel()

    def queued_bytes(self) -> int:
        """Return how many bytes the transport has not sent yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def offer_frame(self, frame: bytes) -> None:
        """Send a frame. Do nothing if the bytes that wait already exceed the queue's limit."""
        if self.queued_bytes() <= self._queue_bytes_max:
            self.send_frame(frame)


class IncomingLink(FrameProtocol):
    """A connection that another voter opened. This voter receives messages on it, and sends only the hello
    and pongs.
    """

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
    ) -> None:
        """`known_mismatch(peer_id)` returns how the voters in the peer's last longer hello differ from this
        voter's.
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
        self.peer_id: int | None = None
        # Id of the peer that sent a valid hello, whether it was accepted or not.
        self.claimed_id: int | None = None

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
            reason = f"its certificate does not name controller-{peer_id}"
        if reason is not None:
            self.refuse(reason)
            return
        # If a peer's longer hello is refused, the peer tries a short one, which does not name its voters.
        self.claimed_id = peer_id
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
    """Return the text that represents a set of voters in a hello."""
    return ",".join(map(str, sorted(voters)))


def voters_mismatch(message: Message, voters: str) -> str:
    """Return how the peer's set of voters differs from this voter's, with the remedy.

    Returns an empty text if it does not differ, or if the peer does not name its voters.
    """
    theirs = message.get("voters", voters)
    if theirs == voters:
        return ""
    return (
        f"controller {message['node_id']} counts the voters {theirs[:_VOTERS_TEXT_MAX]}, this one"
        f" {voters}: they could elect two leaders. Set controller.quorum.voters of all controllers to"
        " the list that the majority has, and format the directory of the one that differs again"
    )


def hello(
    cluster_id: str, node_id: int, target_id: int, *, voters: str = "", short: bool
) -> Message:
    """Return the first message of either side. The short form has only the fields of the first release."""
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
    """Return the highest protocol version that this voter and the sender of the hello speak; None if
    there is none.
    """
    lowest: int = message["version"]
    highest: int = message.get("version_max", lowest)
    version = min(highest, PROTOCOL_VERSION_MAX)
    return version if version >= max(lowest, PROTOCOL_VERSION_MIN) else None


def hello_refusal(message: Message, cluster_id: str, peer_id: int, node_id: int) -> str | None:
    """Return why a hello is not acceptable; None if it is."""
    if agreed_version(message) is None:
        return (
            f"it speaks versions {message['version']} to"
            f" {message.get('version_max', message['version'])} of the voters' protocol, this"
            f" controller {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}: upgrade the older of"
            " the two"
        )
    if message["cluster_id"] != cluster_id:
        return f"it belongs to cluster {message['cluster_id']!r}, not {cluster_id!r}"
    if message["node_id"] != peer_id:
        return f"it is controller {message['node_id']}, not {peer_id}"
    if message["target_id"] != node_id:
        return f"it looks for controller {message['target_id']}, this is {node_id}"
    return None


class ServerIdentity:
    """The listener's TLS context. It requires a client certificate that the CA has signed."""

    def __init__(self, tls: QuorumTls) -> None:
        """Raises OSError or ssl.SSLError if the files cannot be used."""
        self._tls = tls
        self._stamp = self._read_stamp()
        self.context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)

    def reload_if_renewed(self) -> None:
        """Read renewed certificate files, for later connections. If it raises OSError or ssl.SSLError, the old
        certificate stays in use.
        """
        stamp = self._read_stamp()
        if stamp != self._stamp:
            _load(
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._tls
            )  # this raises for a half-written pair of files before it changes the context in use
            _load(self.context, self._tls)
            self._stamp = stamp

    def _read_stamp(self) -> tuple[int, ...]:
        tls = self._tls
        paths = (tls.certificate_path, tls.key_path, tls.ca_path)
        return tuple(path.stat().st_mtime_ns for path in paths)


def client_context(tls: QuorumTls) -> ssl.SSLContext:
    """Return the TLS context for connections to voters. It does not check the host name; `certified_ids` checks the
    identity.
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
    """Return the controller ids in a verified certificate of a peer; empty if it has none."""
    ids = set()
    for kind, value in (certificate or {}).get("subjectAltName", ()):
        prefix = {"DNS": "controller-", "URI": "odradek://controller/"}.get(kind)
        if prefix is not None and value.startswith(prefix):
            digits = value[len(prefix) :]
            if digits.isascii() and digits.isdigit():
                ids.add(int(digits))
    return frozenset(ids)
