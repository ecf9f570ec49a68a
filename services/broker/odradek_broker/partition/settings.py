"""Settings of a broker that apply to all its replicas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Timers, each in ms."""

    replica_lag_time_max_ms: int = 10_000
    """`replica.lag.time.max.ms`: a follower that was not caught up for longer is removed from the ISR."""
    producer_id_expiration_ms: int = 86_400_000
    """`producer.id.expiration.ms`: the state of an idempotent producer that appended
    nothing for longer is deleted."""
    transaction_verification_timeout_ms: int = 5_000
    """`transaction.verification.timeout.ms`: the first batch of a transaction waits no longer for its coordinator."""
    isr_resend_ms: int = 1_000
    """An ISR proposal that is still pending so long after it was sent is sent again."""
    attach_retry_min_ms: int = 50
    attach_retry_max_ms: int = 500
    """A refused Attach is sent again after `attach_retry_min_ms`; the pause doubles up to `attach_retry_max_ms`."""
    attach_timeout_ms: int = 3_000
    """An Attach that got no response for so long is sent again."""
