"""A leader sends a snapshot in chunks, as its follower requests them."""

from __future__ import annotations

from odradek_metadata_quorum.raft.snapshots import SnapshotSender
from odradek_metadata_quorum.storage.snapshot_store import SnapshotId


class _Opened:
    """A stored snapshot of ten bytes."""

    snapshot = SnapshotId(offset=9, epoch=1, size=10, crc=0)

    def chunk(self, position: int, size: int) -> bytes:
        return b"0123456789"[position : position + size]


def test_a_sender_follows_the_follower_within_the_snapshot_only() -> None:
    sender = SnapshotSender(_Opened(), chunk_bytes=4, resend_s=1.0)  # type: ignore[arg-type]

    def sent(now_s: float) -> tuple[int, bytes]:
        message = sender.next_message(1, now_s)
        return message["position"], message["data"]

    assert sent(0.0) == (0, b"0123")
    assert sent(0.5) == (0, b""), "a heartbeat, until the chunk is sent again"
    assert sent(1.0) == (0, b"0123")
    assert not sender.wants(0), "nothing new"
    for position in (-1, 11, 1 << 40):
        assert not sender.wants(position)
    assert sent(1.1) == (0, b"")
    assert sender.wants(4)
    assert sent(1.2) == (4, b"4567")
    assert sender.wants(10), "the end"
    assert sent(1.3) == (10, b"")
