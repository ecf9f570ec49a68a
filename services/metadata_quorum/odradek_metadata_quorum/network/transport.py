"""The network between voters: each voter has a listener, and opens one connection to each other voter.

For each peer there is a task that resolves the host name, connects, exchanges hellos and sends pings. When the
connection ends, the task pauses briefly and begins again, without limit. The task handles only errors of sockets, TLS
and the peer's bytes. Any other exception is a bug, which ends the task, its task group and the process.

A new connection from a peer closes the old one before any message of the new connection is read, and no more messages
of the old one are delivered. So no message that a peer sent before its restart arrives after messages of its new
process.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeAlias

from odradek_metadata_quorum.errors import InsecureListener
from odradek_metadata_quorum.network.peer_link import (
    PEER_TIMEOUT_S,
    PING_INTERVAL_S,
    FrameProtocol,
    IncomingLink,
    OutgoingLink,
    ServerIdentity,
    client_context,
    voters_text,
)
from odradek_metadata_quorum.network.wire import PING, Message
from odradek_metadata_quorum.settings import QuorumSettings
from odradek_runtime.listeners import host_port, wrong_listener
from odradek_runtime.logs import event_log

RESOLVE_TIMEOUT_S: Final = 60.0  # for resolvers that hang; most of them time out after 10 s
CONNECT_TIMEOUT_S: Final = 2.0
REDIAL_PAUSE_S: Final = 0.1
UNREACHED_WARNING_S: Final = 5.0  # a restart of a controller takes less time and needs no warning
UNREACHED_WARNING_INTERVAL_S: Final = 60.0
UNGREETED_CONNECTIONS_MAX: Final = 64

BrokerAddresses: TypeAlias = Callable[[], list[str]]
"""A function that returns the gRPC addresses of brokers, for clients that connect to the wrong listener."""

_log = event_log(__name__)


class VoterNetwork:
    """Sends frames to the other voters and delivers their messages. Use it only on the event loop."""

    def __init__(
        self,
        settings: QuorumSettings,
        *,
        on_message: Callable[[int, Message], None],
        on_connected: Callable[[int], None],
        on_disconnected: Callable[[int], None],
        broker_addresses: BrokerAddresses = list,
    ) -> None:
        """`broker_addresses` returns the addresses that a client of brokers is told if it connects to this listener by
        mistake.
        """
        self._settings = settings
        self._on_message = on_message
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._broker_addresses = broker_addresses
        self._peer_ids = frozenset(settings.voters) - {settings.node_id}
        self._outgoing: dict[int, OutgoingLink] = {}
        self._incoming: dict[int, IncomingLink] = {}
        self._ungreeted: set[IncomingLink] = set()
        self._server: asyncio.Server | None = None
        self._identity: ServerIdentity | None = None
        self._refusals: dict[tuple[int | None, str], float] = {}
        self._voters = voters_text(settings.voters)
        # For each peer: how the voters in its last longer hello differ from this voter's set.
        self._mismatches: dict[int, str] = {}
        self._short_hello: set[int] = set()  # peers that did not respond to the last longer hello
        self.port = 0

    async def listen(self) -> None:
        """Open the listener for other voters. Raises OSError or InsecureListener."""
        settings = self._settings
        if settings.tls is not None:
            self._identity = ServerIdentity(settings.tls)
        elif not settings.insecure:
            _require_loopback(settings.listen_host)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accept,
            settings.listen_host,
            settings.listen_port,
            ssl=self._identity.context if self._identity is not None else None,
            ssl_handshake_timeout=CONNECT_TIMEOUT_S if self._identity is not None else None,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def start_dialling(self, tasks: asyncio.TaskGroup) -> None:
        """Start one task for each peer in the caller's task group. The task keeps a connection to this peer open."""
        for peer_id in sorted(self._peer_ids):
            tasks.create_task(self._dial_forever(peer_id), name=f"quorum-dial-{peer_id}")

    async def close(self) -> None:
        """Close all connections and the listener."""
        if self._server is not None:
            self._server.close()
        for link in [*self._outgoing.values(), *self._incoming.values(), *self._ungreeted]:
            link.abort()
        if self._server is not None:
            await self._server.wait_closed()

    def send_frame(self, peer_id: int, frame: bytes) -> None:
        """Send a frame to a peer. Drop it if the peer is not connected or too many bytes are buffered for the peer,
        because Raft repeats the messages that matter.
        """
        link = self._outgoing.get(peer_id)
        if link is not None:
            link.offer_frame(frame)

    def queued_bytes(self, peer_id: int) -> int:
        """Return the number of bytes that are buffered for a peer and not sent yet."""
        link = self._outgoing.get(peer_id)
        return 0 if link is None else link.queued_bytes()

    # Connections that this voter opens.

    async def _dial_forever(self, peer_id: int) -> None:
        loop = asyncio.get_running_loop()
        warn_s = loop.time() + UNREACHED_WARNING_S
        while True:
            try:
                await self._connect_and_keep(peer_id)
                warn_s = loop.time() + UNREACHED_WARNING_S
            except ssl.SSLError as error:
                self._warn(f"controller {peer_id}", str(error), peer_id)
            except OSError as error:  # TimeoutError is an OSError
                if loop.time() >= warn_s:
                    warn_s = loop.time() + UNREACHED_WARNING_INTERVAL_S
                    _log.warning(
                        "Failed to connect to another controller",
                        peer_id=peer_id,
                        address=host_port(*self._settings.voters[peer_id]),
                        error=str(error) or f"no response within {CONNECT_TIMEOUT_S} s",
                    )
            await asyncio.sleep(REDIAL_PAUSE_S)

    async def _connect_and_keep(self, peer_id: int) -> None:
        host, port = self._settings.voters[peer_id]
        link = await self._connect(peer_id, await _addresses(host, port), port)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.wait({link.ready, link.closed}, return_when=asyncio.FIRST_COMPLETED)
            if link.greeted:
                self._short_hello.discard(peer_id)
                self._outgoing[peer_id] = link
                self._on_connected(peer_id)
                await self._ping_until_lost(link)
            elif link.refusal is None:
                self._short_hello ^= {peer_id}
                raise ConnectionError(
                    "the peer did not send a hello message: it is not a controller,"
                    " or only one of the two uses TLS"
                )
        finally:
            link.abort()
            if self._outgoing.get(peer_id) is link:
                del self._outgoing[peer_id]
                self._on_disconnected(peer_id)
            self._note_mismatch(peer_id, link)
            if link.refusal is not None and not link.mismatch:
                self._warn(f"controller {peer_id} at {host}:{port}", link.refusal, peer_id)

    async def _connect(self, peer_id: int, addresses: list[str], port: int) -> OutgoingLink:
        """Connect to the first address that accepts a connection. If none does, raise the OSError of the last one."""
        failure = OSError(f"controller {peer_id} has no address")
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await self._connect_to(peer_id, address, port)
            except OSError as error:  # TimeoutError and ssl.SSLError are OSErrors
                failure = error
        raise failure

    async def _connect_to(self, peer_id: int, address: str, port: int) -> OutgoingLink:
        settings = self._settings
        tls = settings.tls
        _, link = await asyncio.get_running_loop().create_connection(
            lambda: OutgoingLink(
                cluster_id=settings.cluster_id,
                node_id=settings.node_id,
                peer_id=peer_id,
                voters=self._voters,
                frame_bytes_max=settings.frame_bytes_max,
                queue_bytes_max=settings.peer_queue_bytes_max,
                tls=tls is not None,
                short_hello=peer_id in self._short_hello,
            ),
            address,
            port,
            ssl=client_context(tls) if tls is not None else None,
            server_hostname=f"controller-{peer_id}" if tls is not None else None,
        )
        return link

    async def _ping_until_lost(self, link: OutgoingLink) -> None:
        loop = asyncio.get_running_loop()
        nonce = 0
        while not link.closed.done():
            nonce += 1
            link.send({"type": PING, "nonce": nonce})
            pinged_s = loop.time()
            await asyncio.wait({link.closed}, timeout=PING_INTERVAL_S)
            # If this process was stalled, that time does not count as silence of the peer.
            own_stall_s = max(0.0, loop.time() - pinged_s - PING_INTERVAL_S)
            if own_stall_s > PING_INTERVAL_S:
                link.heard_s += own_stall_s
            if loop.time() - link.heard_s > PEER_TIMEOUT_S:
                return

    # Connections that this voter accepts.

    def _accept(self) -> IncomingLink:
        settings = self._settings
        if self._identity is not None:
            try:
                self._identity.reload_if_renewed()
            except (OSError, ssl.SSLError) as error:
                self._warn("this controller's renewed certificate", str(error))
        link = IncomingLink(
            cluster_id=settings.cluster_id,
            node_id=settings.node_id,
            peer_ids=self._peer_ids,
            voters=self._voters,
            known_mismatch=lambda peer_id: self._mismatches.get(peer_id, ""),
            frame_bytes_max=settings.frame_bytes_max,
            tls=settings.tls is not None,
            on_greeted=self._greeted,
            on_message=self._on_message,
            on_lost=self._incoming_lost,
            advice=self._advice,
        )
        self._ungreeted.add(link)
        asyncio.get_running_loop().call_later(CONNECT_TIMEOUT_S, self._expect_greeting, link)
        if len(self._ungreeted) > UNGREETED_CONNECTIONS_MAX:
            self._drop_ungreeted(
                next(iter(self._ungreeted - {link})),
                "too many connections have not sent a hello message",
            )
        return link

    def _advice(self) -> str:
        owner = f"controller {self._settings.node_id}"
        return wrong_listener("RAFT", owner, "other controllers", self._broker_addresses())

    def _expect_greeting(self, link: IncomingLink) -> None:
        if link in self._ungreeted:
            self._drop_ungreeted(link, f"no hello message arrived within {CONNECT_TIMEOUT_S:g} s")

    def _drop_ungreeted(self, link: IncomingLink, reason: str) -> None:
        """Close a connection on which no hello has arrived.

        The connection is removed from `_ungreeted` here, because asyncio does not call `connection_lost` for a
        connection whose TLS handshake did not end.
        """
        self._ungreeted.discard(link)
        link.refuse(reason)

    def _greeted(self, link: IncomingLink) -> None:
        assert link.peer_id is not None
        self._ungreeted.discard(link)
        old = self._incoming.get(link.peer_id)
        if old is not None:
            old.abort()
        self._incoming[link.peer_id] = link

    def _incoming_lost(self, link: IncomingLink) -> None:
        self._ungreeted.discard(link)
        if link.peer_id is not None and self._incoming.get(link.peer_id) is link:
            del self._incoming[link.peer_id]
        if link.claimed_id is not None:
            self._note_mismatch(link.claimed_id, link)
        if link.refusal is not None and not link.mismatch:
            address = link.transport and link.transport.get_extra_info("peername")
            self._warn(f"a connection from {address and address[0]}", link.refusal)

    def _note_mismatch(self, peer_id: int, link: FrameProtocol) -> None:
        """Log, once for each difference, that a peer has another set of voters. If the peer was accepted, clear the
        difference.
        """
        if link.mismatch:
            if self._mismatches.get(peer_id) != link.mismatch:
                self._mismatches[peer_id] = link.mismatch
                _log.error(
                    "Refused a connection between controllers because their lists of voters differ",
                    peer_id=peer_id,
                    reason=link.mismatch,
                )
        elif link.greeted:
            self._mismatches.pop(peer_id, None)

    def _warn(self, who: str, reason: str, peer_id: int | None = None) -> None:
        """Log that a connection failed, each reason at most once in ten seconds. So a peer that connects repeatedly
        cannot fill the disk.

        `peer_id` is the controller that this one connected to, and None for an incoming connection. So failures of
        outgoing and of incoming connections are counted separately.
        """
        now_s, key = asyncio.get_running_loop().time(), (peer_id, reason)
        if now_s - self._refusals.get(key, -60.0) > 10.0:
            if len(self._refusals) > 100:
                self._refusals.clear()
            self._refusals[key] = now_s
            _log.warning(
                "Refused or dropped a connection between controllers", peer=who, reason=reason
            )


async def _addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a voter's host name. The name is resolved for every connection, because the address of a
    pod may change. Raises OSError.

    The timeout is long, because a resolver may be slow, for example if its first server does not respond. A lookup that
    timed out continues in its thread. With a short timeout, repeated lookups would occupy all of the few threads that
    asyncio has for lookups.
    """
    async with asyncio.timeout(RESOLVE_TIMEOUT_S):
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except UnicodeError as error:  # `a..b`, or a label of more than 63 characters
            raise OSError(f"{host!r} is not a valid host name: {error}") from None
    return [str(address[0]) for *_, address in addresses]


def _require_loopback(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InsecureListener(
            f"the RAFT listener on {host} is reachable from other machines, but there is no TLS: set"
            " ssl.certificate.location, ssl.key.location and ssl.ca.location, or listen on 127.0.0.1, or start"
            " with --insecure"
        )
