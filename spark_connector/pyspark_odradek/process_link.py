"""The connections of a Python process to clusters: one `ProcessLink` for each cluster. All tasks, triggers and queries
of the process share them.

Spark calls a data source from plain threads, but the SDK runs on an event loop. So a process has one event loop on a
daemon thread, to which callers submit coroutines. All links share this loop, because gRPC supports only one event loop
in a process. Spark forks its workers from a process that never imports gRPC, so no forked process inherits a link. As a
safeguard, the keys of the links contain the process id.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from odradek.cluster.cluster import Cluster, connect
from odradek.cluster.methods import METADATA
from odradek.errors import OdradekError
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from pyspark_odradek.connection_options import ConnectionOptions

T = TypeVar("T")

CLOSE_S_MAX: Final = 2.0
REACH_S_MAX: Final = 20.0
"""Longest wait for the first response of a cluster. If it never responds, the address is probably wrong."""
UNKNOWN_TOPIC_S_MAX: Final = 1.0
"""How long to repeat the look-up of an unknown topic. A broker may not know a topic yet that was just created. The SDK
waits longer, but Spark runs a failed task again, up to four times.
"""
PATIENCE_S: Final = 2.0
"""After this time without a first response, a warning is logged that names the reason."""
_PROBE_ATTEMPTS: Final = 3
"""How many brokers `probe` tries if none responds. If one broker hangs, another may still respond."""
_MARGIN_S: Final = 5.0

_log = logging.getLogger(__name__)

_links: dict[tuple[int, ConnectionOptions], ProcessLink] = {}
_loops: dict[int, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()


class ProcessLink:
    """The connections of this process to one cluster. Call `link_to` to get an instance."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = cluster
        self.cluster.unknown_topic_s_max = UNKNOWN_TOPIC_S_MAX
        self.loop = loop

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run the coroutine `work` on the event loop, and wait for its result. Raises the coroutine's error, or
        TimeoutError after `timeout_s`.

        An OdradekError is raised without the traceback of the SDK, because Spark shows users whole tracebacks, and only
        the error's message matters.
        """
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise
        except OdradekError as error:
            _log.debug("Call to the cluster failed", exc_info=error)
            raise error.with_traceback(None) from None

    def reach(self, timeout_s: float = REACH_S_MAX) -> None:
        """Wait until the cluster has responded once. Return at once if it has responded to this process before.

        Raises:
            WrongListener, AuthenticationFailed: raised without further waiting, because waiting would not help.
            BrokersUnavailable: no broker responded within `timeout_s`, or REACH_S_MAX if that is shorter.
        """
        if not self.cluster.cache.endpoints():
            timeout_s = min(timeout_s, REACH_S_MAX)
            self.run(self._first_contact(timeout_s), timeout_s=timeout_s + _MARGIN_S)

    def probe(self, timeout_s: float) -> None:
        """Send a request now, and wait until a broker responds to it. Unlike for `reach`, earlier responses do not
        count.

        Raises:
            WrongListener, AuthenticationFailed: raised without further waiting, because waiting would not help.
            BrokersUnavailable, RequestTimedOut: no broker responded within `timeout_s`.
        """
        # The response to a request without topics has only the brokers.
        response = self.cluster.call_any(
            METADATA,
            pb.MetadataRequest(),
            timeout_s=timeout_s,
            attempt_s=timeout_s / _PROBE_ATTEMPTS,
        )
        self.run(response, timeout_s=timeout_s + _MARGIN_S)

    async def _first_contact(self, timeout_s: float) -> None:
        def explain() -> None:
            reason = self.cluster.unavailable(None)
            _log.warning("Waiting up to %g s for the cluster: %s", timeout_s, reason)

        explaining = self.loop.call_later(PATIENCE_S, explain)
        try:
            await self.cluster.wait_connected(timeout_s)
        finally:
            explaining.cancel()

    def close(self) -> None:
        """Close the connections."""
        # The process is ending, so nobody could handle an error.
        with contextlib.suppress(Exception):
            self.run(self.cluster.close(), timeout_s=CLOSE_S_MAX)


def _loop() -> asyncio.AbstractEventLoop:
    loop = _loops.get(os.getpid())
    if loop is None:
        loop = _loops[os.getpid()] = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(loop,), name="odradek link", daemon=True).start()
    return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def link_to(connection: ConnectionOptions) -> ProcessLink:
    """Return this process's link for these options. The first call creates it."""
    key = (os.getpid(), connection)
    with _lock:
        link = _links.get(key)
        if link is None:
            cluster = connect(
                connection.bootstrap, connection.tls(), credentials=connection.credentials
            )
            link = _links[key] = ProcessLink(cluster, _loop())
        return link


def close_links() -> None:
    """Close all connections of this process; the next `link_to` creates new ones."""
    with _lock:
        own = [key for key in _links if key[0] == os.getpid()]
        links = [_links.pop(key) for key in own]
    for link in links:
        link.close()


atexit.register(close_links)
