"""Authorization of calls to a controller: the caller must be a broker or controller of this cluster. With TLS, the
caller's certificate must name this broker or controller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from odradek_runtime.cluster_identity import STRANGER
from odradek_runtime.logs import event_log
from odradek_runtime.tls import peer_identity

Context = grpc.aio.ServicerContext[Any, Any]
_STRANGERS_MAX: Final = 100
_log = event_log(__name__)


Headers = Iterable[tuple[str, str | bytes]]


class Peers:
    """Checks callers by the cluster identity in the headers of their calls and, with TLS, by their certificates. A call
    that is refused ends with a gRPC status.
    """

    def __init__(
        self,
        *,
        has_tls: bool,
        why_stranger: Callable[[Headers], str],
        must_wait: Callable[[Headers], bool],
    ) -> None:
        """`why_stranger` returns why a call with these headers belongs to another cluster, or "" if it does not.

        `must_wait` returns whether this controller does not know yet which metadata log it has, and so cannot tell
        whether the headers name this log (`odradek_runtime.cluster_identity`).
        """
        self._has_tls = has_tls
        self._why_stranger = why_stranger
        self._must_wait = must_wait
        # The reasons of refusals that were logged. If there are too many, the oldest is dropped.
        self._strangers: dict[str, None] = {}

    async def require_registering_broker(self, context: Context, broker_id: int) -> None:
        """Require that the caller is the broker `broker_id`, which registers. The headers are not checked, because a
        broker of another cluster gets the refusal in the response to its registration.
        """
        await self._require(context, ("broker",), broker_id)

    async def require_broker(self, context: Context, broker_id: int) -> None:
        """Require that the caller is the broker `broker_id` of this cluster."""
        await self._require(context, ("broker",), broker_id)
        await self._refuse_stranger(context)

    async def require_controller(self, context: Context, controller_id: int) -> None:
        """Require that the caller is the controller `controller_id` of this cluster."""
        await self._require(context, ("controller",), controller_id)
        await self._refuse_stranger(context)

    async def require_member(self, context: Context) -> None:
        """Require that the caller is a broker or controller of this cluster."""
        await self._require(context, ("broker", "controller"), None)
        await self._refuse_stranger(context)

    async def _refuse_stranger(self, context: Context) -> None:
        headers = context.invocation_metadata() or ()
        reason = self._why_stranger(headers)
        if not reason:
            if self._must_wait(headers):
                await refuse(
                    context,
                    grpc.StatusCode.UNAVAILABLE,
                    "this controller has not read the first batch of its metadata log yet: try again",
                )
            return
        if reason not in self._strangers:
            if len(self._strangers) >= _STRANGERS_MAX:
                del self._strangers[next(iter(self._strangers))]
            self._strangers[reason] = None
            _log.error(
                "Refused a call from a process of another cluster",
                peer=context.peer(),
                reason=reason,
            )
        await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, f"{STRANGER}{reason}")

    async def _require(self, context: Context, roles: Collection[str], node_id: int | None) -> None:
        if not self._has_tls:
            return
        identity = peer_identity(context.auth_context)
        if identity is None or identity[0] not in roles or node_id not in (None, identity[1]):
            required = " or ".join(roles) + ("" if node_id is None else f" {node_id}")
            _log.warning(
                "Refused a call: the peer's certificate names another role or node",
                peer=context.peer(),
                identity=identity,
                required=required,
            )
            certified = (
                "no broker or controller" if identity is None else " ".join(map(str, identity))
            )
            await refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"the caller's certificate names {certified}, but only {required} may make this call",
            )


async def refuse(context: Context, code: grpc.StatusCode, message: str) -> NoReturn:
    """End the call with a gRPC status. This function does not return."""
    await context.abort(code, message)
    raise AssertionError("`context.abort` returned, but it must raise")
