"""How the admin calls a cluster: any broker, again while the controller or a coordinator is changing."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, TypeVar

from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster
from odradek.errors import error_code, error_of
from odradek.transports.transport import Method
from odradek_protocol.kafka.error_codes import ErrorCode

R = TypeVar("R")
_UNSETTLED = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.STALE_CONTROLLER_EPOCH,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The controller or a coordinator is changing: the call was not carried out, or is safe to repeat."""


class AdminCalls:
    """Sends admin requests to a cluster; each may take up to `timeout_s`."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    @property
    def timeout_ms(self) -> int:
        """The time that the cluster may take: a tenth less than the call, so that it can report what timed out."""
        return int(self._timeout_s * 900)

    async def send(self, method: Method[Any, R], request: Any) -> R:
        """Send a request to any broker, and again while the response says that a controller or coordinator moves."""
        deadline_s = time.monotonic() + self._timeout_s
        backoff = Backoff(first_ms=20, most_ms=500)
        attempts = 0
        while True:
            remaining_s = max(0.01, deadline_s - time.monotonic())
            response = await self._cluster.call_any(
                method, request, timeout_s=remaining_s, attempt_s=remaining_s
            )
            attempts += 1
            pause_s = backoff.after(attempts, random.random()) / 1000
            if not _is_unsettled(response) or time.monotonic() + pause_s >= deadline_s:
                return response
            await asyncio.sleep(pause_s)


def check(code: int, subject: str, message: str = "") -> None:
    """Raise the error that a code other than NONE means for the subject."""
    if code != ErrorCode.NONE:
        raise error_of(code, subject, message)


def _is_unsettled(response: Any) -> bool:
    """Whether the response, or every item in it, says that the controller or coordinator is moving."""
    if getattr(response, "error_code", 0):
        return error_code(response.error_code) in _UNSETTLED
    codes: list[int] = []
    for field in ("topics", "resources", "partitions", "results", "groups"):
        codes += [getattr(item, "error_code", 0) for item in getattr(response, field, ())]
    return bool(codes) and all(error_code(code) in _UNSETTLED for code in codes)
