"""Requests for consumer instances of other gateways, and how a gateway that does not respond is noticed.

A gateway that has died is noticed when a request cannot be sent, or its connection breaks. A gateway that hangs accepts
connections. So, while requests wait for a gateway and for a minute after the last one, its liveness is checked every
_CHECK_EVERY_S. A check that times out ends the requests that wait. Without the checks, a limit for each request would
have to be long: a healthy gateway may take long to respond, because a commit waits for the poll that uses the instance,
or for brokers. The checks go on when a client disconnects, so that clients with short timeouts, which send their
requests again, are also served in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
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
_REFUSALS_MAX: Final = 2
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
    """The state of the checks of one other gateway, and the requests that are passed on to it."""

    waiting: int = 0  # number of requests without a response yet
    last_request_s: float = 0.0  # monotonic; when the last request ended
    has_responded: bool = False  # to a request, since the last check began
    refusals: int = 0  # checks in a row that failed otherwise than by a timeout
    hangs: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the gateway hangs. Setting it ends the requests that wait."""
    checking: asyncio.Task[None] | None = None
    checking_again: asyncio.Task[None] | None = None


class OtherGateways:
    """Passes requests on to other gateways."""

    def __init__(
        self, cluster: ClusterAccess, *, tls: ssl.SSLContext | None, are_callers_known: bool
    ) -> None:
        """`tls` is the TLS context for requests to other gateways. `are_callers_known` is False if callers are not
        authenticated.
        """
        self._cluster = cluster
        self._tls = tls
        self._has_certificate = tls is not None and are_callers_known
        self._response_s = cluster.settings.consumer_request_timeout_ms_max / 1000 + _RESPONSE_S
        name = cluster.settings.advertised_tls_name
        self._tls_name = {"sni_hostname": name} if name else {}
        self._gateways: dict[str, _Gateway] = {}  # by URL, while they are checked
        self._is_closed = False

    async def close(self) -> None:
        """End the checks, and close the connections."""
        self._is_closed = True
        for gateway in list(self._gateways.values()):
            for check in (gateway.checking, gateway.checking_again):
                if check is not None:
                    check.cancel()
                    await asyncio.wait({check})
        for name in ("_http", "_http_of_checks"):
            if name in self.__dict__:
                await self.__dict__[name].aclose()

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

    @cached_property
    def _http_of_checks(self) -> httpx.AsyncClient:
        """The client for checks. It has its own connections, because requests to a gateway that hangs may use all of
        the others.
        """
        import httpx  # see `_http`

        return httpx.AsyncClient(
            limits=httpx.Limits(max_connections=None), verify=self._tls or True
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

        hangs = httpx.ReadTimeout("it accepts connections, but does not respond")
        with self._checked(url) as gateway:
            if gateway.hangs.is_set():
                await self._check_again(url, gateway)
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
                if not sending.cancelled():
                    sending.exception()  # asyncio logs exceptions that nobody retrieves
            gateway.has_responded = True
            return response

    @contextlib.contextmanager
    def _checked(self, url: str) -> Iterator[_Gateway]:
        """Check the liveness of the gateway with this URL while the block runs, and for _CHECKED_S after it. Yield what
        is known of the gateway.
        """
        gateway = self._gateways.setdefault(url, _Gateway())
        gateway.waiting += 1
        if gateway.checking is None and not self._is_closed:
            gateway.checking = asyncio.create_task(
                self._check(url, gateway), name=f"check of the gateway at {url}"
            )
        try:
            yield gateway
        finally:
            gateway.waiting -= 1
            gateway.last_request_s = time.monotonic()

    async def _check(self, url: str, gateway: _Gateway) -> None:
        """Check the liveness of the gateway as long as `_checked` requires."""
        try:
            while gateway.waiting or time.monotonic() - gateway.last_request_s < _CHECKED_S:
                await asyncio.sleep(_CHECK_EVERY_S)
                await self._check_once(url, gateway)
        finally:
            del self._gateways[url]

    async def _check_once(self, url: str, gateway: _Gateway) -> None:
        import httpx  # see `_http`

        gateway.has_responded = False
        try:
            await self._request_liveness(url, _CHECK_S)
            gateway.refusals = 0
        except httpx.TimeoutException:
            if not gateway.has_responded:
                gateway.hangs.set()
                return
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):  # ValueError: no valid host name
            # If its process ended, the waiting requests fail by themselves. A gateway that stops refuses connections,
            # but still responds to them. If its host is gone, they would wait.
            gateway.refusals += 1
            if gateway.refusals >= _REFUSALS_MAX and not gateway.has_responded:
                gateway.hangs.set()  # cleared below: new requests are sent, because it may be starting again
        gateway.hangs.clear()

    async def _check_again(self, url: str, gateway: _Gateway) -> None:
        """Check once more whether a gateway hangs, and wait for the result for at most _CHECK_AGAIN_S. Requests that
        need this check at the same time share it.

        The gateway may have recovered since the last regular check. A takeover of its instances would then do harm:
        records that it has returned to clients, and that are not committed yet, would be read again.
        """
        if gateway.checking_again is None or gateway.checking_again.done():
            gateway.checking_again = asyncio.create_task(self._clear_if_alive(url, gateway))
        await asyncio.wait({gateway.checking_again})

    async def _clear_if_alive(self, url: str, gateway: _Gateway) -> None:
        import httpx  # see `_http`

        with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL, ValueError):
            await self._request_liveness(url, _CHECK_AGAIN_S)
            gateway.hangs.clear()

    async def _request_liveness(self, url: str, limit_s: float) -> None:
        # The limit includes the TLS handshake, for which httpx's limit for connecting counts.
        await self._http_of_checks.get(f"{url}/livez", timeout=limit_s, extensions=self._tls_name)

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
