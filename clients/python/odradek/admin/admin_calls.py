"""How an admin's calls are made, whatever they are about."""

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
"""The controller is moving: the call was not carried out, or may be repeated."""


class AdminCalls:
    """A cluster, and how long a call to it may take."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    @property
    def _timeout_ms(self) -> int:
        """How long the cluster may take: a tenth less than we wait, so that it can say what timed out."""
        return int(self._timeout_s * 900)

    async def _call(self, method: Method[Any, R], request: Any) -> R:
        """One call to whichever broker answers; again while controller or coordinator is moving."""
        deadline_s = time.monotonic() + self._timeout_s
        backoff = Backoff(first_ms=20, most_ms=500)
        attempts = 0
        while True:
            left_s = max(0.01, deadline_s - time.monotonic())
            response = await self._cluster.call_any(
                method, request, timeout_s=left_s, attempt_s=left_s
            )
            attempts += 1
            pause_s = backoff.after(attempts, random.random()) / 1000
            if not _is_unsettled(response) or time.monotonic() + pause_s >= deadline_s:
                return response
            await asyncio.sleep(pause_s)


def check(code: int, subject: str, message: str = "") -> None:
    """Raise what a code other than NONE says about the subject."""
    if code != ErrorCode.NONE:
        raise error_of(code, subject, message)


def _is_unsettled(response: Any) -> bool:
    """Whether the whole answer, or every item of it, says that controller or coordinator is moving."""
    if getattr(response, "error_code", 0):
        return error_code(response.error_code) in _UNSETTLED
    codes: list[int] = []
    for field in ("topics", "resources", "partitions", "results", "groups"):
        codes += [getattr(item, "error_code", 0) for item in getattr(response, field, ())]
    return bool(codes) and all(error_code(code) in _UNSETTLED for code in codes)
