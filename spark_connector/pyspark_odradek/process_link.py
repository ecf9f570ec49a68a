"""The connections of a process to a cluster, one `ProcessLink` for each cluster. They outlive tasks, triggers and
queries.

Spark calls a source from plain threads, and the SDK runs on an event loop. So a process has one loop,
on a daemon thread, for all its links (gRPC does not support several), and callers submit coroutines.
Spark forks its workers from a process that never imports gRPC, so no link survives a fork; the keys
have the process id as a safeguard.
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
from odradek.errors import OdradekError
from pyspark_odradek.connection_options import ConnectionOptions

T = TypeVar("T")

CLOSE_S_MAX: Final = 2.0
REACH_S_MAX: Final = 20.0
"""Longest wait for the first metadata of a cluster that never responded: its address is probably wrong."""
PATIENCE_S: Final = 2.0
"""How long that wait lasts without a word in the driver's log."""
_MARGIN_S: Final = 5.0

_log = logging.getLogger(__name__)

_links: dict[tuple[int, ConnectionOptions], ProcessLink] = {}
_loops: dict[int, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()


class ProcessLink:
    """The connections to one cluster, on this process's event loop. Use `link_to` to get one."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = cluster
        self.loop = loop

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run `work` on the loop and wait for it. Raises what it raises, or TimeoutError.

        An OdradekError is raised without the frames of the SDK: Spark prints whole tracebacks, and
        the last line is the one that matters.
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
        """Wait until the cluster has responded once; return at once if it did before.

        Raises:
            WrongListener, AuthenticationFailed: at once.
            BrokersUnavailable: no broker responded within `timeout_s`, or REACH_S_MAX if that is shorter.
        """
        if not self.cluster.cache.endpoints():
            timeout_s = min(timeout_s, REACH_S_MAX)
            self.run(self._first_contact(timeout_s), timeout_s=timeout_s + _MARGIN_S)

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
        # The process is ending, and nothing could handle the error.
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
    """Return this process's connections for these options. They are created at first use."""
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
