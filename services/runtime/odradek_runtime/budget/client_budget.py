"""What one client may take of a process: its shares, its turns on the loop, its failures, its log lines.

One `ClientBudget` belongs to a process and is shared by everything that clients reach there (Kafka's
listeners, gRPC, HTTP), so that a client does not get a second share by speaking a second protocol.
It is always on. Its bounds are far above what clients need and far below what a process has.
"""

from __future__ import annotations

from typing import Final

from odradek_protocol.kafka.request_decoding import ITEMS_MAX
from odradek_runtime.budget.failed_logins import FailedLogins
from odradek_runtime.budget.loop_turns import LoopTurns
from odradek_runtime.budget.refusal_lines import RefusalLines
from odradek_runtime.budget.share_lines import ShareLines
from odradek_runtime.budget.shares import Shares

__all__ = ["ITEMS_MAX", "LONG_REQUEST_BYTES_MIN", "ClientBudget", "decoded_bytes"]

LONG_REQUEST_BYTES_MIN: Final = 4096
"""A request from this size on is decoded, answered and encoded in turns."""
DECODED_FACTOR: Final = 50
"""A byte of a request that names many small things becomes so many bytes of objects."""
_ITEM_BYTES: Final = 500


def decoded_bytes(request_bytes: int) -> int:
    """What a request of so many bytes may take in memory once it is decoded."""
    return request_bytes + min(DECODED_FACTOR * request_bytes, _ITEM_BYTES * ITEMS_MAX)


class ClientBudget:
    """A process' one. For the event loop alone."""

    def __init__(
        self,
        *,
        decoded_bytes_max: int = 256 << 20,
        decoded_bytes_owner_max: int = 64 << 20,
        proofs_max: int = 16,
        proofs_owner_max: int = 4,
    ) -> None:
        """`decoded_*` bound long requests at work by `decoded_bytes`; `proofs_*` passwords that are
        being checked, where an owner is an address."""
        self.turns = LoopTurns()
        self.decoded = ShareLines(
            Shares(total_max=decoded_bytes_max, owner_max=decoded_bytes_owner_max)
        )
        self.proofs = ShareLines(Shares(total_max=proofs_max, owner_max=proofs_owner_max))
        self.failed_logins = FailedLogins()
        self.refusals = RefusalLines()
