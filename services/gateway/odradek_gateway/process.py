"""The gateway process: it runs one HTTP server, and reaches the cluster through one client and one producer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from odradek.cluster.endpoints import parse_bootstrap
from odradek_gateway.app import Asgi, create_app
from odradek_gateway.auth.authentication import Authentication
from odradek_gateway.auth.basic_logins import BasicLogins
from odradek_gateway.auth.callers import CallerAccesses
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.http_server import HttpServer
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.settings import BASIC, BEARER, GatewaySettings
from odradek_runtime.jwt_tokens import TokenRules, TokenVerifier
from odradek_runtime.lifecycle import StopRequest, announce_ready, bounded
from odradek_runtime.listeners import ListenerAddress, open_port
from odradek_runtime.logs import event_log

_log = event_log(__name__)
_CONNECTIONS_MAX = 20_000
_CLOSE_S_MAX = 10.0


class GatewayProcess:
    """One gateway process. `run` serves requests until the process stops."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises JwksRefused if the JWKS file cannot be used."""
        self._settings = settings
        self._tokens: TokenVerifier | None = None
        if BEARER in settings.authentication_methods:
            self._tokens = TokenVerifier(
                TokenRules(
                    jwks=Path(settings.jwks),
                    issuer=settings.jwt_issuer,
                    audience=settings.jwt_audience,
                    algorithms=settings.jwt_algorithms,
                    principal_claim=settings.jwt_principal_claim,
                    leeway_s=settings.jwt_leeway_ms / 1000,
                )
            )

    @contextlib.asynccontextmanager
    async def _accesses(self, cluster: ClusterAccess) -> AsyncIterator[CallerAccesses | None]:
        """Yield the accesses to the cluster by caller. Without authentication yield None: all requests then use the
        gateway's own access.
        """
        if not self._settings.authentication_methods:
            yield None
            return
        accesses = CallerAccesses(cluster, self._settings)
        try:
            yield accesses
        finally:
            await accesses.close()

    def _authentication(self, accesses: CallerAccesses | None) -> Callable[..., Asgi] | None:
        settings = self._settings
        if accesses is None:
            return None
        logins = None
        if BASIC in settings.authentication_methods:
            logins = BasicLogins(
                accesses.transport,
                parse_bootstrap(settings.bootstrap),
                mechanism=settings.basic_mechanism,
                cache_ms=settings.basic_cache_ms,
            )
        return lambda app, *, shares: Authentication(
            app,
            settings=settings,
            accesses=accesses,
            tokens=self._tokens,
            logins=logins,
            shares=shares,
        )

    async def run(self, stop: StopRequest) -> None:
        """Serve requests until `stop` is set, then wait for the running requests, at most `shutdown.timeout.ms`."""
        settings = self._settings
        host, port = settings.host_and_port
        listening = open_port(ListenerAddress(name="HTTP", host=host, port=port))
        bound_port: int = listening.getsockname()[1]
        scheme = "https" if settings.http_ssl_certificate else "http"
        url = settings.advertised_url or f"{scheme}://{host}:{bound_port}"
        async with ClusterAccess(settings, url=url) as cluster, self._accesses(cluster) as accesses:
            instances = Instances(
                cluster,
                on_failure=lambda error: stop.set(
                    "consumer instances cannot be served", failure=error
                ),
                accesses=accesses,
                tls=_tls_to_others(settings),
            )
            app = create_app(settings, cluster, instances, self._authentication(accesses))
            server = HttpServer(app, settings, connections_max=_CONNECTIONS_MAX)
            serving = asyncio.create_task(_serve(server, listening), name="http")
            stopping = asyncio.create_task(stop.wait(), name="stop")
            _log.info("Serving", url=url, bootstrap=settings.bootstrap)
            gc.collect()
            # The objects that exist now live as long as the process, so the garbage collector can skip them.
            gc.freeze()
            announce_ready(id=os.getpid(), pid=os.getpid(), ports={"HTTP": bound_port})
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            cluster.waits.stop()
            server.should_exit = True
            stopping.cancel()
            await serving
            await bounded(instances.close(), _CLOSE_S_MAX, "the consumer instances to end")
            _log.info("Stopped", reason=stop.reason)


async def _serve(server: HttpServer, listening: socket.socket) -> None:
    await server.serve(sockets=[listening])


def _tls_to_others(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Return the TLS context for requests to other gateways: it presents this gateway's certificate and trusts
    `http.ssl.ca.location`. Return None if the HTTP port has no TLS.
    """
    if not settings.http_ssl_certificate:
        return None
    context = ssl.create_default_context(cafile=settings.http_ssl_ca or None)
    context.load_cert_chain(settings.http_ssl_certificate, settings.http_ssl_key)
    return context
