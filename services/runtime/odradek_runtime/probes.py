"""What a process tells Kubernetes' probes over gRPC health, kept true while it lives.

- `startup`: the process is up. Opening large logs afterwards may take its time: it goes on in threads, and a
  probe that ran out of patience would only make it begin again.
- `liveness`: the event loop turns (or nobody would answer), and nothing is broken that only a restart mends.
  Never anything about peers: they would all be restarted together.
- `readiness`: it does its part in the cluster, and another may be stopped now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from odradek_runtime.grpc_endpoints import Health
from odradek_runtime.logs import event_log

_INTERVAL_S: Final = 0.1
_log = event_log(__name__)
Check = Callable[[], str]
"""Empty when it holds, otherwise what is wrong."""


class Probes:
    """Asks the two checks again and again; both are cheap and do not wait."""

    def __init__(self, health: Health, *, why_not_live: Check, why_not_ready: Check) -> None:
        self._health = health
        self._why_not_live = why_not_live
        self._why_not_ready = why_not_ready
        self._told: tuple[str, str] | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(_INTERVAL_S)

    async def tell(self) -> None:
        """Once, now."""
        wrong = self._why_not_live(), self._why_not_ready()
        if wrong == self._told:
            return
        if self._told is not None:
            _log.info("Tells probes", not_live=wrong[0] or None, not_ready=wrong[1] or None)
        self._told = wrong
        await self._health.set(is_started=True, is_live=not wrong[0], is_ready=not wrong[1])
