"""The metadata feed for brokers: the committed entries of the metadata log from an offset on, or a snapshot and the
entries after it.

Every controller serves the feed, whether active or standby. It sends only entries that it has applied, which are
therefore committed. Entries are sent in the order of the log, and none is left out, except entries that a snapshot
includes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, Protocol

from odradek_metadata_quorum.raft.shell import CommittedEntry, StateSnapshot
from odradek_protocol.records.hashes import crc32c
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb

ENTRIES_BYTES_MAX: Final = 256 << 10
CHUNK_BYTES: Final = 256 << 10
IDLE_WAIT_S: Final = 5.0
STOPPING_PAUSE_S: Final = 0.01


class FeedSource(Protocol):
    """The part of the quorum that the feed uses."""

    @property
    def applied(self) -> int:
        """Offset of the last applied entry."""

    async def wait_applied(self, offset: int, timeout_s: float) -> int:
        """Wait for at most `timeout_s` until the entry at `offset` is applied. Return the offset of the last applied
        entry.
        """

    def entries(self, from_offset: int, bytes_max: int) -> Sequence[CommittedEntry] | None:
        """Return applied entries from an offset on. Return None if the log no longer has the entry at this offset."""

    async def latest_snapshot(self) -> StateSnapshot | None:
        """Return the newest snapshot, or None if there is none."""


class FeedMismatch(Exception):
    """The reader has followed another metadata log than that of this controller, such as that of another cluster."""


async def feed(
    source: FeedSource, from_offset: int, last_epoch: int
) -> AsyncIterator[pb.MetadataFeedResponse]:
    """Yield the messages for one reader, without end. The first message is yielded at once, even if it has no entries.

    `last_epoch` is the controller epoch of the entry before `from_offset` in the reader's log; 0 if the reader has
    no entry.

    Raises:
        FeedMismatch: The entry before `from_offset` has another epoch in this log.
    """
    position = max(from_offset, 0)
    _check_history(source, position, last_epoch)
    is_first = True
    while True:
        entries = source.entries(position, ENTRIES_BYTES_MAX)
        if entries is None:
            snapshot = await source.latest_snapshot()
            if snapshot is None or snapshot.offset < position:
                raise FeedMismatch(
                    f"entry {position} is no longer in the log, and no snapshot contains it"
                )
            for message in _chunks(snapshot):
                yield message
                await asyncio.sleep(0)
            position = snapshot.offset + 1
            continue
        if entries or is_first:
            yield _batches(entries, source.applied + 1)
            is_first = False
        if entries:
            position = entries[-1].offset + 1
        else:
            next_offset = max(position, source.applied + 1)
            if await source.wait_applied(next_offset, IDLE_WAIT_S) < next_offset:
                # While the quorum stops, `wait_applied` returns at once. The pause keeps this loop from using all CPU.
                await asyncio.sleep(STOPPING_PAUSE_S)


def _check_history(source: FeedSource, position: int, last_epoch: int) -> None:
    if position == 0 or last_epoch == 0 or position - 1 > source.applied:
        # Either there is nothing to compare, or the reader has more entries than this controller and waits until the
        # controller has caught up.
        return
    before = source.entries(position - 1, 1)
    if before and before[0].offset == position - 1 and before[0].epoch != last_epoch:
        raise FeedMismatch(
            f"entry {position - 1} has epoch {before[0].epoch} in this controller's log, but {last_epoch} in the"
            " reader's log"
        )


def _batches(entries: Sequence[CommittedEntry], end_offset: int) -> pb.MetadataFeedResponse:
    return pb.MetadataFeedResponse(
        batches=pb.MetadataBatches(
            batches=[
                pb.MetadataBatch(
                    offset=entry.offset, controller_epoch=entry.epoch, payload=entry.payload
                )
                for entry in entries
            ],
            end_offset=end_offset,
        )
    )


def _chunks(snapshot: StateSnapshot) -> Iterator[pb.MetadataFeedResponse]:
    """Yield the parts of a snapshot as messages. They are created one at a time, so that a hundred readers do not need
    the memory of a hundred snapshots.
    """
    checksum = crc32c(snapshot.data)
    starts = range(0, max(len(snapshot.data), 1), CHUNK_BYTES)
    for start in starts:
        yield pb.MetadataFeedResponse(
            snapshot=pb.MetadataSnapshotChunk(
                offset=snapshot.offset,
                controller_epoch=snapshot.epoch,
                position=start,
                data=snapshot.data[start : start + CHUNK_BYTES],
                is_last=start == starts[-1],
                crc32c=checksum if start == starts[-1] else 0,
            )
        )
