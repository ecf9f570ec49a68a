"""Requests for consumer instances of other gateways, and how a gateway that does not respond is noticed.

A gateway that has died is noticed when the request cannot be sent. A gateway that hangs accepts connections. So, while
requests are passed on to a gateway and for a minute after that, its liveness is checked every _CHECK_EVERY_S. Until
then, a request waits: a healthy gateway may take long to respond, because a commit waits for the poll that uses the
instance, or for brokers. The checks go on when a client disconnects, so that clients with short timeouts, which send
their requests again, are also served in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from odradek_gateway.auth.callers import current_caller, on_behalf_of
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import KAFKA_RETRIABLE_ERROR, RestError
from odradek_runtime.logs import event_log

if TYPE_CHECKING:
    import httpx

PASSED_ON: Final = "x-odradek-passed-on"
_CONNECT_S: Final = 1.0
_RESPONSE_S: Final = 60.0  # time for a response, in addition to the longest poll
_CHECK_EVERY_S: Final = 10.0
_CHECK_S: Final = 10.0
_CHECK_AGAIN_S: Final = 1.0
_CHECKED_S: Final = 60.0  # after the last request
_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The response of another gateway, which serves the instance. It is returned to the client unchanged."""

    status: int
    body: bytes
    media_type: str | None


class PassedRequest(NamedTuple):
    """A request that may be passed on to another gateway. Path and query have the encoding that the client sent.

    `while_connected` makes a context manager that cancels its block when the client disconnects. `at_stop` is the
    response to a long poll if this gateway stops while the other gateway handles the request; None for other requests.
    """

    method: str
    raw_path: bytes
    query: bytes
    headers: Mapping[str, str]
    body: bytes
    while_connected: Callable[[], AbstractAsyncContextManager[None]]
    at_stop: Elsewhere | None = None

    @property
    def path(self) -> str:
        """The path with the query. Characters that a URL may not contain are percent-encoded."""
        path = quote(self.raw_path, safe="/%:@!$&'()*+,;=~")
        return f"{path}?{quote(self.query, safe='/%:@!$&*+,;=~?')}" if self.query else path


@dataclass(slots=True, eq=False)
class _Gateway:
    """What this gateway knows of another one. `hangs` is set while its checks time out."""

    last_request_s: float = 0.0
    has_responded: bool = False  # to a request, since the last check began
    hangs: asyncio.Event = field(default_factory=asyncio.Event)
    checking: asyncio.Task[None] | None = None


class OtherGateways:
    """Passes requests on to other gateways."""

    def __init__(
        self, cluster: ClusterAccess, *, tls: ssl.SSLContext | None, are_callers_known: bool
    ) -> None:
        """`tls` is for requests to other gateways. `are_callers_known` is False if callers are not authenticated."""
        self._cluster = cluster
        self._tls = tls
        self._has_certificate = tls is not None and are_callers_known
        self._response_s = cluster.settings.consumer_request_timeout_ms_max / 1000 + _RESPONSE_S
        name = cluster.settings.advertised_tls_name
        self._tls_name = {"sni_hostname": name} if name else {}
        self._gateways: dict[str, _Gateway] = {}  # by URL, while they are checked

    async def close(self) -> None:
        """End the checks, and close the connections."""
        checks = [one.checking for one in self._gateways.values() if one.checking is not None]
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        if "_http" in self.__dict__:
            await self._http.aclose()

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        # httpx is imported late, because httpx and its CA certificates take 0.1 s to load, and a single gateway never
        # uses them.
        import httpx

        return httpx.AsyncClient(
            timeout=httpx.Timeout(self._response_s, connect=_CONNECT_S),
            limits=httpx.Limits(  # each long poll uses one connection
                max_connections=self._cluster.settings.requests_max, max_keepalive_connections=100
            ),
            verify=self._tls or True,
        )

    async def pass_on(self, url: str, request: PassedRequest) -> Elsewhere | None:
        """Pass the request on to the gateway with this URL and return its response, or None if it does not respond.

        Raises:
            RestError: 50003 if too many requests are being passed on.
        """
        import httpx  # see `_http`

        headers = {
            key: value
            for key, value in request.headers.items()
            if key.lower() in ("content-type", "accept")
        }
        if self._has_certificate:
            # This gateway's certificate proves that the caller was authenticated. So the caller's own credentials are
            # not sent: an attacker who writes into the registry could otherwise have them sent to any address.
            if not url.startswith("https://"):
                _log.warning(
                    "Request not passed on to the gateway that owns the instance, because its URL is not https",
                    owner=url,
                )
                return None
            headers |= on_behalf_of(current_caller())
        # Without TLS, gateways cannot prove to each other who the caller is, so the other gateway must authenticate the
        # caller itself. SECURITY.md says who may write into the registry.
        elif "authorization" in request.headers:
            headers["authorization"] = request.headers["authorization"]
        try:
            async with self._while_waiting(request):
                response = await self._response_of(url, request, {**headers, PASSED_ON: "1"})
        # This gateway has too many connections to other gateways. The other gateway may be healthy, so its instance is
        # not taken over.
        except httpx.PoolTimeout:
            raise RestError(
                503,
                KAFKA_RETRIABLE_ERROR,
                "this gateway is passing too many requests on to other gateways: try again later",
            ) from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            _log.warning(
                "Failed to pass a request on to another gateway", owner=url, reason=repr(error)
            )
            return None
        except TimeoutError:
            if request.at_stop is None or not self._cluster.waits.is_stopping:
                raise
            # The other gateway notices that the connection was closed, and returns the records to the next request.
            return request.at_stop
        content_type = response.headers.get("content-type")
        return Elsewhere(response.status_code, response.content, content_type)

    async def _response_of(
        self, url: str, request: PassedRequest, headers: dict[str, str]
    ) -> httpx.Response:
        """Send the request to the gateway with this URL and return its response.

        Raises:
            httpx.TransportError: the gateway cannot be reached, or it hangs.
        """
        import httpx  # see `_http`

        gateway = self._checked(url)
        hangs = httpx.ReadTimeout("it accepts connections, but does not respond")
        if gateway.hangs.is_set():
            # It may have recovered since the last check. If its instances were taken over from it nevertheless, records
            # that it has handed out and that are not committed would be read again.
            await self._check_once(url, gateway, _CHECK_AGAIN_S)
            if gateway.hangs.is_set():
                raise hangs
        hanging = asyncio.create_task(gateway.hangs.wait())
        sending = asyncio.create_task(
            self._http.request(
                request.method,
                f"{url}{request.path}",
                headers=headers,
                content=request.body,
                extensions=self._tls_name,
            )
        )
        try:
            await asyncio.wait({hanging, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise hangs
            response = sending.result()
        finally:
            hanging.cancel()
            sending.cancel()
            await asyncio.wait({hanging, sending})
        gateway.has_responded = True
        return response

    def _checked(self, url: str) -> _Gateway:
        """Return what is known of the gateway with this URL, whose liveness is checked from now on."""
        gateway = self._gateways.setdefault(url, _Gateway())
        gateway.last_request_s = time.monotonic()
        if gateway.checking is None:
            gateway.checking = asyncio.create_task(
                self._check(url, gateway), name=f"check of the gateway at {url}"
            )
        return gateway

    async def _check(self, url: str, gateway: _Gateway) -> None:
        """Check the liveness of the gateway until there have been no requests for it for _CHECKED_S."""
        try:
            while time.monotonic() - gateway.last_request_s < _CHECKED_S:
                await asyncio.sleep(_CHECK_EVERY_S)
                await self._check_once(url, gateway, _CHECK_S)
        finally:
            del self._gateways[url]

    async def _check_once(self, url: str, gateway: _Gateway, limit_s: float) -> None:
        import httpx  # see `_http`

        gateway.has_responded = False
        limits = httpx.Timeout(limit_s, connect=_CONNECT_S)
        try:
            await self._http.get(f"{url}/livez", timeout=limits, extensions=self._tls_name)
        except httpx.PoolTimeout:
            return  # this gateway has too many connections; that says nothing about the other gateway
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if not gateway.has_responded:
                gateway.hangs.set()  # ends the requests that wait
                # After any other error, a new request is sent: a gateway that restarts refuses connections.
                if isinstance(error, httpx.TimeoutException):
                    return
        gateway.hangs.clear()

    @contextlib.asynccontextmanager
    async def _while_waiting(self, request: PassedRequest) -> AsyncIterator[None]:
        """Bound the wait for another gateway's response in an `async with` block. The wait ends when the client
        disconnects or, for a long poll, when this gateway stops.
        """
        async with contextlib.AsyncExitStack() as stack:
            if request.at_stop is not None:
                await stack.enter_async_context(self._cluster.waits.long_poll(2 * self._response_s))
            await stack.enter_async_context(request.while_connected())
            yield
