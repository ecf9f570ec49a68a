"""What was committed, as seen from outside.

The first node to apply an offset writes down entry and digest, every other one must agree. What was
acknowledged must be in it, for ever, and a term has one leader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class OracleError(AssertionError):
    """What must never happen has happened."""


class Oracle:
    """What is committed, what was acknowledged, who led."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, bytes]] = {}
        self.digests: dict[int, bytes] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.leaders: dict[int, int] = {}

    def applied(self, node_id: int, offset: int, epoch: int, payload: bytes, digest: bytes) -> None:
        entry = self.entries.setdefault(offset, (epoch, payload))
        if entry != (epoch, payload):
            raise OracleError(f"node {node_id} applied {(epoch, payload)} at {offset}, not {entry}")
        if self.digests.setdefault(offset, digest) != digest:
            raise OracleError(f"node {node_id} diverged at {offset}")

    def acknowledge(self, offset: int, payload: bytes) -> None:
        if self.entries.get(offset, (0, b""))[1] != payload:
            raise OracleError(f"{payload!r} was acknowledged at {offset}: another is committed")
        self.acknowledged[offset] = payload

    def leads(self, node_id: int, term: int) -> None:
        if self.leaders.setdefault(term, node_id) != node_id:
            raise OracleError(f"nodes {self.leaders[term]} and {node_id} both lead term {term}")


class DigestMachine:
    """A state machine whose state is the digest of its history, padded to several chunks."""

    PADDING = 3000

    def __init__(self, node_id: int, oracle: Oracle) -> None:
        self._node_id = node_id
        self._oracle = oracle
        self.digest = b"\0" * 16
        self.history: list[tuple[int, int, bytes]] = []
        self.fail_at: int | None = None

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        if offset == self.fail_at:
            raise ValueError("a poisoned entry")
        content = self.digest + offset.to_bytes(8, "big") + payload
        self.digest = hashlib.blake2b(content, digest_size=16).digest()
        self.history.append((offset, epoch, payload))
        self._oracle.applied(self._node_id, offset, epoch, payload, self.digest)

    def snapshot(self) -> Callable[[], bytes]:
        digest = self.digest
        return lambda: digest + digest * (self.PADDING // 16)

    def restore(self, offset: int, epoch: int, data: bytes) -> None:
        assert len(data) == 16 + self.PADDING // 16 * 16
        self.digest = data[:16]
        self.history.clear()
