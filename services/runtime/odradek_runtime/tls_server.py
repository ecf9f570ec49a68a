"""A TLS server that logs why a handshake failed. The Kafka and HTTP listeners accept TLS connections with it.

asyncio's own server closes the connection after a failed handshake without a log line. An operator who has just turned
TLS on needs to know which client failed, and why: an untrusted certificate, no certificate, an old version of TLS, or
no TLS at all. So this server looks at the first bytes of each connection before the handshake. A client that uses
another protocol gets an error text that it can show, if its protocol can transmit one (`listeners.farewell`).

Failures are logged at a limited rate for each address. The number of handshakes in progress is limited for each
address and in total.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from odradek_runtime.budget.refusals import RefusalLines
from odradek_runtime.budget.shares import Shares, owner_of
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.listeners import TLS, farewell, recognize
from odradek_runtime.logs import EventLog
from odradek_runtime.open_files import is_scarce

HANDSHAKE_S_MAX: Final = 5.0
HANDSHAKES_MAX: Final = 1024
HANDSHAKES_PER_IP_MAX: Final = 256
_ACCEPT_PAUSE_S: Final = 0.2
_PEEKED_BYTES: Final = 4


class TlsServer:
    """Accepts the connections of one listening socket, and performs their TLS handshakes."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        new_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        name: str,
        advice_for: Callable[[str], str],
        log: EventLog,
        refusals: RefusalLines,
        handshake_s_max: float = HANDSHAKE_S_MAX,
    ) -> None:
        """`advice_for` takes the protocol of a client that does not use TLS, and returns the text for this client,
        which says what the listener expects. `refusals` limits the rate at which failures are written to `log`.
        """
        self._listening = listening
        self._context = context
        self._new_protocol = new_protocol
        self._name = name
        self._advice_for = advice_for
        self._log = log
        self._refusals = refusals
        self._handshake_s_max = handshake_s_max
        self._shares = Shares(total_max=HANDSHAKES_MAX, owner_max=HANDSHAKES_PER_IP_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._keep(asyncio.get_running_loop().create_task(self._accept(), name=f"accept {name}"))

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening socket in a tuple, like `asyncio.Server.sockets`."""
        return (self._listening,)

    def close(self) -> None:
        """Accept no more connections, and cancel the handshakes in progress."""
        if self._listening.fileno() >= 0:
            # The reader is removed before the descriptor is closed. The accepting task would remove it only later,
            # when another file may already have the number of the descriptor.
            asyncio.get_running_loop().remove_reader(self._listening)
        for task in self._tasks:
            task.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        """Wait, after `close`, until all handshakes have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(self._listening)
            except ConnectionError:  # the client has already disconnected
                continue
            except OSError as error:
                if self._listening.fileno() < 0:
                    return
                # Without a free descriptor the connection stays in the queue, and the next accept would fail at once.
                self._report("", f"no connection can be accepted: {error.strerror}")
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            opening = loop.create_task(self._open(client, str(address[0])))
            # A task that is cancelled before it begins runs nothing, not even a `finally`. So a callback closes the
            # socket.
            opening.add_done_callback(partial(_close_if_cancelled, client))
            self._keep(opening)

    async def _open(self, client: socket.socket, host: str) -> None:
        """Perform the handshake with one client. After that, the connection's protocol object owns the socket."""
        owner = owner_of("", host)
        reason = self._shares.refusal(owner, 1, "TLS handshakes")
        if reason is None and is_scarce(client.fileno()):
            reason = "too few file descriptors are left: raise the limit of open files"
        if reason is not None:
            client.close()
            self._report(host, reason)
            return
        self._shares.take(owner, 1)
        try:
            began_s = asyncio.get_running_loop().time()
            reason = await self._refusal(client)
            if reason is None:
                await self._shake_hands(client, began_s)
        except TimeoutError:
            reason = f"the handshake did not end within {self._handshake_s_max:g} s"
        except ssl.SSLError as error:
            reason = _words(error)
        except OSError as error:
            detail = f" ({error.strerror})" if error.strerror else ""
            reason = (
                f"the client disconnected during the handshake{detail}; perhaps it does not trust"
                " this listener's certificate"
            )
        finally:
            self._shares.give_back(owner, 1)
        if reason:
            self._report(host, reason)

    async def _refusal(self, client: socket.socket) -> str | None:
        """Return None if the client begins a TLS handshake.

        Otherwise close the connection and return the reason, which is "" if the client disconnected without sending
        anything.
        """
        client.setblocking(False)
        is_tls = False
        try:
            async with asyncio.timeout(self._handshake_s_max):
                first = await _peek(client)
            if not first:  # the health check of a load balancer connects and disconnects
                return ""
            protocol = recognize(first)
            is_tls = protocol is None or protocol == TLS
            if protocol is None or protocol == TLS:
                return None
            advice = self._advice_for(protocol)
            with contextlib.suppress(OSError):
                client.send(farewell(protocol, advice))
                # Closing a socket that has unread bytes resets the connection, and the client would lose the text.
                client.recv(65_536)
            return f"a {protocol} client without TLS: {advice}"
        finally:
            if not is_tls:
                client.close()

    async def _shake_hands(self, client: socket.socket, began_s: float) -> None:
        """Perform the TLS handshake and connect the socket to a new protocol object. Raises OSError if the handshake
        fails.
        """
        loop = asyncio.get_running_loop()
        timeout_s = max(self._handshake_s_max - (loop.time() - began_s), 0.1)
        try:
            await loop.connect_accepted_socket(
                self._new_protocol, client, ssl=self._context, ssl_handshake_timeout=timeout_s
            )
        except BaseException:
            # The event loop no longer uses the socket, but uvloop would close it only when it is garbage collected.
            client.close()
            raise

    def _report(self, host: str, reason: str) -> None:
        entry = ("TLS handshake failed", self._name, reason)
        unlogged = self._refusals.admit(owner_of("", host), entry, monotonic_ms() / 1000)
        if unlogged is not None:
            counts: dict[str, Any] = {"not_logged_before": unlogged} if unlogged else {}
            self._log.warning(
                "TLS handshake failed", listener=self._name, host=host, reason=reason, **counts
            )


def _close_if_cancelled(client: socket.socket, opening: asyncio.Task[None]) -> None:
    if opening.cancelled():
        client.close()


async def _peek(client: socket.socket) -> bytes:
    """Wait for the first bytes and return them without removing them from the socket. Return b"" if the client
    disconnects.
    """
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def is_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(client, is_readable)
    try:
        await readable
    finally:
        loop.remove_reader(client)
    try:
        return client.recv(_PEEKED_BYTES, socket.MSG_PEEK)
    except OSError:
        return b""


def _words(error: ssl.SSLError) -> str:
    """Return the reason of OpenSSL's error as a readable text instead of a code like "CERTIFICATE_VERIFY_FAILED"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    reason = error.reason or str(error)
    return _REASONS.get(reason, reason.replace("_", " ").lower())


_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate, and ssl.client.auth=required",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust this listener's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept this listener's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept this listener's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client reports that this listener's certificate has expired",
    "UNSUPPORTED_PROTOCOL": "the client supports only versions of TLS before 1.2",
    "NO_SHARED_CIPHER": "the client and this listener support no common cipher",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS",
    "HTTP_REQUEST": "the client speaks HTTP without TLS",
}
