"""The settings that a broker gives to all its replicas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Timers of the replicas of one broker, in ms."""

    replica_lag_time_max_ms: int = 10_000
    """`replica.lag.time.max.ms`: a follower that was not caught up for longer leaves the ISR."""
    producer_id_expiration_ms: int = 86_400_000
    """`producer.id.expiration.ms`: an idempotent producer that appended nothing for longer is forgotten."""
    isr_resend_ms: int = 1_000
    """An ISR proposal that got no response, or whose image has not come, is sent again after this time."""
    attach_retry_min_ms: int = 50
    attach_retry_max_ms: int = 500
    """A refused Attach is repeated after the first of these times, which doubles up to the second."""
    attach_timeout_ms: int = 3_000
    """An Attach without a response is repeated after this time."""
