"""Who may call: with TLS on, peers are who their certificates say, and nobody else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

import grpc
import grpc.aio

from odradek_runtime.logs import event_log
from odradek_runtime.tls import peer_identity

Context = grpc.aio.ServicerContext[Any, Any]
_log = event_log(__name__)


class Peers:
    """Judges callers by their certificates; without TLS everybody may."""

    def __init__(self, *, has_tls: bool) -> None:
        self._has_tls = has_tls

    async def require_broker(self, context: Context, broker_id: int) -> None:
        """Only this broker itself speaks for a broker."""
        await self._require(context, ("broker",), broker_id)

    async def require_member(self, context: Context) -> None:
        """Only brokers and controllers of the cluster."""
        await self._require(context, ("broker", "controller"), None)

    async def _require(self, context: Context, roles: Collection[str], node_id: int | None) -> None:
        if not self._has_tls:
            return
        found = peer_identity(context.auth_context)
        if found is None or found[0] not in roles or node_id not in (None, found[1]):
            wanted = " or ".join(roles) + ("" if node_id is None else f" {node_id}")
            _log.warning("Refused a peer", peer=context.peer(), identity=found, wanted=wanted)
            await refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"the certificate is {found}, this call is for {wanted}",
            )


async def refuse(context: Context, code: grpc.StatusCode, message: str) -> NoReturn:
    """End the call with a status; does not return."""
    await context.abort(code, message)
    raise AssertionError("abort does not return")
