"""Settings of a broker that apply to all its replicas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Time limits of replicas, each in ms."""

    replica_lag_time_max_ms: int = 10_000
    """`replica.lag.time.max.ms`: a follower that was not caught up for this long is removed from the ISR."""
    producer_id_expiration_ms: int = 86_400_000
    """`producer.id.expiration.ms`: the state of an idempotent producer that appended nothing for this long is
    deleted.
    """
    transaction_verification_timeout_ms: int = 5_000
    """`transaction.verification.timeout.ms`: how long the first batch of a transaction waits for the coordinator."""
    isr_resend_ms: int = 1_000
    """An ISR proposal that is pending for this long is sent again."""
    attach_retry_min_ms: int = 50
    attach_retry_max_ms: int = 500
    """A refused Attach is sent again after `attach_retry_min_ms`. The wait doubles with each refusal, up to
    `attach_retry_max_ms`.
    """
    attach_timeout_ms: int = 3_000
    """An Attach that got no response for this long is sent again."""
