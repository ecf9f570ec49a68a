"""What a consumer can be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from odradek.consumer.fetch_planner import ResetPolicy
from odradek.errors import InvalidConfig

Deserializer: TypeAlias = Callable[[bytes | None], Any]
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer reads."""

    auto_offset_reset: ResetPolicy = "latest"
    """Where to begin without a position, or when it is no longer in the log; "error" raises."""
    isolation_level: IsolationLevel = "read_uncommitted"
    """read_committed: no records of aborted or open transactions."""
    prefetch_bytes_max: int = 32 * 1024 * 1024
    """Fetched and not yet read, over all partitions. 1 MiB to 1 GiB."""
    fetch_message_bytes_max: int = 1024 * 1024
    """Size of one answer. 1 KiB to 60 MiB; a larger batch comes whole."""
    fetch_bytes_min: int = 1
    """A broker waits for so many bytes, at most `fetch_wait_ms_max`."""
    fetch_wait_ms_max: int = 500
    """See `fetch_bytes_min`."""
    client_rack: str = ""
    """Where this client is: read from the closest in-sync replica (KIP-392)."""
    request_timeout_ms: int = 30_000
    """Longest wait for offsets and metadata."""
    key_deserializer: Deserializer | None = None
    """Makes a key of bytes; None: keys are bytes."""
    value_deserializer: Deserializer | None = None
    """Makes a value of bytes; None: values are bytes."""

    def __post_init__(self) -> None:
        _check(
            "auto_offset_reset",
            self.auto_offset_reset in ("earliest", "latest", "error"),
            self.auto_offset_reset,
            "earliest, latest, error",
        )
        _check(
            "isolation_level",
            self.isolation_level in ("read_uncommitted", "read_committed"),
            self.isolation_level,
            "read_uncommitted, read_committed",
        )
        _check(
            "prefetch_bytes_max",
            1 << 20 <= self.prefetch_bytes_max <= 1 << 30,
            self.prefetch_bytes_max,
            "1 MiB to 1 GiB",
        )
        _check(
            "fetch_message_bytes_max",
            1 << 10 <= self.fetch_message_bytes_max <= 60 << 20,
            self.fetch_message_bytes_max,
            "1 KiB to 60 MiB",
        )
        _check("fetch_bytes_min", self.fetch_bytes_min >= 0, self.fetch_bytes_min, "0 or more")
        _check(
            "fetch_wait_ms_max",
            0 <= self.fetch_wait_ms_max <= 60_000,
            self.fetch_wait_ms_max,
            "0 to 60000",
        )
        _check(
            "request_timeout_ms", self.request_timeout_ms > 0, self.request_timeout_ms, "above 0"
        )


def _check(name: str, is_good: bool, value: object, allowed: str) -> None:
    if not is_good:
        raise InvalidConfig(f"{name} is {value!r}", hint=f"allowed: {allowed}")
