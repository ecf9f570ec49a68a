"""Authorization of callers: only members of this cluster may call; with TLS their certificates name them."""

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
    """Checks callers by the cluster that they name in their call and, with TLS, also by their certificates."""

    def __init__(
        self,
        *,
        has_tls: bool,
        why_stranger: Callable[[Headers], str],
        must_wait: Callable[[Headers], bool],
    ) -> None:
        """`why_stranger` returns why a call with these headers is from another cluster; "" if it is not.

        `must_wait` returns whether this member cannot know that yet.
        """
        self._has_tls = has_tls
        self._why_stranger = why_stranger
        self._must_wait = must_wait
        # Reasons of refusals that were logged; the oldest one is dropped.
        self._strangers: dict[str, None] = {}

    async def require_registering_broker(self, context: Context, broker_id: int) -> None:
        """Require that the caller is the broker that registers. A broker of another cluster is refused later, by the
        response to its registration.
        """
        await self._require(context, ("broker",), broker_id)

    async def require_broker(self, context: Context, broker_id: int) -> None:
        """Require that the caller is this broker, because no other process may act for it."""
        await self._require(context, ("broker",), broker_id)
        await self._refuse_stranger(context)

    async def require_controller(self, context: Context, controller_id: int) -> None:
        """Require that the caller is this controller, because no other process may act for it."""
        await self._require(context, ("controller",), controller_id)
        await self._refuse_stranger(context)

    async def require_member(self, context: Context) -> None:
        """Require that the caller is a broker or a controller of the cluster."""
        await self._require(context, ("broker", "controller"), None)
        await self._refuse_stranger(context)

    async def _refuse_stranger(self, context: Context) -> None:
        headers = context.invocation_metadata() or ()
        reason = self._why_stranger(headers)
        if not reason:
            if self._must_wait(headers):
                await refuse(
                    context, grpc.StatusCode.UNAVAILABLE, "the metadata is still being read"
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
            wanted = " or ".join(roles) + ("" if node_id is None else f" {node_id}")
            _log.warning(
                "Refused a call: the peer's certificate names another role or node",
                peer=context.peer(),
                identity=identity,
                wanted=wanted,
            )
            await refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"the certificate names {identity}, but only {wanted} may make this call",
            )


async def refuse(context: Context, code: grpc.StatusCode, message: str) -> NoReturn:
    """End the call with a status; this function does not return."""
    await context.abort(code, message)
    raise AssertionError("`context.abort` returned, but it must raise")
