"""The gateway process: one client to the cluster, one producer, one HTTP server."""

from __future__ import annotations

import asyncio
import os
import socket

import uvicorn

from odradek_gateway.app import create_app
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.consumers.instances import Instances
from odradek_gateway.settings import GatewaySettings
from odradek_runtime.lifecycle import StopRequest, announce_ready
from odradek_runtime.listeners import ListenerAddress, open_port
from odradek_runtime.logs import event_log

_log = event_log(__name__)
_CONNECTIONS_MAX = 20_000


class _Server(uvicorn.Server):
    """Signals are the process's, not the server's."""

    def install_signal_handlers(self) -> None:
        """None."""


class GatewayProcess:
    """`run` is its life."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    async def run(self, stop: StopRequest) -> None:
        """Serve until `stop` is set; requests at work end first."""
        settings = self._settings
        host, port = settings.host_and_port
        listening = open_port(ListenerAddress(name="HTTP", host=host, port=port))
        bound_port: int = listening.getsockname()[1]
        url = settings.advertised_url or f"http://{host}:{bound_port}"
        async with ClusterAccess(settings, url=url) as cluster:
            instances = Instances(cluster)
            app = create_app(settings, cluster, instances)
            server = _Server(
                uvicorn.Config(
                    app,
                    log_config=None,
                    access_log=False,
                    lifespan="off",
                    server_header=False,
                    limit_concurrency=_CONNECTIONS_MAX,
                    timeout_keep_alive=75,
                    timeout_graceful_shutdown=settings.shutdown_timeout_ms // 1000,
                )
            )
            serving = asyncio.create_task(_serve(server, listening), name="http")
            stopping = asyncio.create_task(stop.wait(), name="stop")
            _log.info("Serving", url=url, bootstrap=settings.bootstrap)
            announce_ready(id=os.getpid(), pid=os.getpid(), ports={"HTTP": bound_port})
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            cluster.stop()
            server.should_exit = True
            stopping.cancel()
            await serving
            await instances.close()
            _log.info("Stopped", reason=stop.reason)


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    await server.serve(sockets=[listening])
