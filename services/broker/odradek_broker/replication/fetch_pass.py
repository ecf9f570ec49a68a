"""One pass over the partitions of a fetch, in the order asked for, within the bytes it may give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from odradek_broker.replication.outcomes import FetchWant, ReadOutcome
from odradek_protocol.identity import NO_BROKER
from odradek_protocol.kafka.error_codes import ErrorCode

Read = Callable[[FetchWant, bool], ReadOutcome | Awaitable[ReadOutcome]]
"""Reads one partition; the flag: at least one batch, though it be larger than what was asked for."""


class FetchPass:
    """`run` until it gives nothing to wait for; then all `outcomes` are there."""

    __slots__ = ("_bytes_left", "_is_hard", "_read", "outcomes", "size_bytes", "wants")

    def __init__(
        self, wants: Sequence[FetchWant], read: Read, *, bytes_max: int, hard_bytes_max: bool
    ) -> None:
        self.wants = wants
        self._read = read
        self._bytes_left = bytes_max
        self._is_hard = hard_bytes_max
        self.outcomes: list[ReadOutcome] = []
        self.size_bytes = 0

    def run(self) -> Awaitable[ReadOutcome] | None:
        """Read on, as far as nothing waits for the disk; `take` what the awaitable gives."""
        wants, outcomes = self.wants, self.outcomes
        while len(outcomes) < len(wants):
            want = wants[len(outcomes)]
            left = self._bytes_left
            if want.bytes_max > left:
                want = replace(want, bytes_max=max(left, 0))
            found = self._read(want, not self.size_bytes and not self._is_hard)
            if not isinstance(found, ReadOutcome):
                return found
            self.take(found)
        return None

    async def finish(self, waits: Awaitable[ReadOutcome] | None) -> None:
        """Wait for what `run` gave, and for all that it will give."""
        while waits is not None:
            self.take(await waits)
            waits = self.run()

    def take(self, outcome: ReadOutcome) -> None:
        """The next partition's."""
        self._bytes_left -= outcome.size_bytes
        self.size_bytes += outcome.size_bytes
        self.outcomes.append(outcome)

    def is_worth_answering(self, bytes_min: int) -> bool:
        """Enough bytes, or something else that the client wants to know at once."""
        return self.size_bytes >= bytes_min or any(
            one.error is not ErrorCode.NONE
            or one.preferred_read_replica != NO_BROKER
            or one.diverging is not None
            for one in self.outcomes
        )
