"""The metadata feed: keeps the broker's copy of the metadata up to date with the controllers' committed records.

The offset of the image never falls. If the broker knows the active controller, the feed reads from that controller,
because it commits first; otherwise the feed reads from any controller, and from the next one when the stream breaks.
The feed leaves a standby controller after some seconds, because a standby that has lost its leader receives no commits.
A broker that is too far behind gets a snapshot. A second image is built from the snapshot, and the difference between
the two images is applied in slices, so that the event loop can run other work.

`on_change(image, delta)` is called after each entry of the log, and for each slice of a difference, when the image
already includes the delta. It returns an iterable of steps in which the parts of the broker apply the change; the next
entry is replayed when all steps are done.

The feed ends with a call of `on_refused` when no other controller could help: the metadata needs a newer release than
this program, or the metadata log is not the one that this broker has followed so far.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

import grpc
import grpc.aio

from odradek_broker.cluster.controller_client import ControllerClient
from odradek_protocol.identity import BrokerId, ControllerId, MetadataOffset
from odradek_protocol.metadata.codec import MetadataDecodeError, batch_steps
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage, differences
from odradek_protocol.metadata.records import NewerProgramNeeded
from odradek_protocol.metadata.snapshot import SnapshotReader
from odradek_protocol.records.hashes import crc32c
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as pb_grpc
from odradek_runtime.budget.refusals import shortened
from odradek_runtime.logs import event_log

_RETRY_MIN_S: Final = 0.05
_RETRY_MAX_S: Final = 0.5
# The longest pause after an entry that could not be applied. It is long, because the next attempt rebuilds the image.
_RETRY_REFUSED_MAX_S: Final = 10.0
# How long the feed reads from a standby controller before it looks for the active controller again.
_STANDBY_S: Final = 5.0
SNAPSHOT_BYTES_MAX: Final = 1 << 30
_NOT_ITS_HISTORY: Final = (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.FAILED_PRECONDITION)
_log = event_log(__name__)
T = TypeVar("T")
_Call = grpc.aio.UnaryStreamCall[pb.MetadataFeedRequest, pb.MetadataFeedResponse]


class FeedBroken(Exception):
    """The controller sent an invalid entry or snapshot, or an entry or snapshot that does not follow the image. The
    feed tries the next controller.
    """


class OtherMetadata(Exception):
    """The metadata log has another incarnation id than the one that this broker has followed."""


class MetadataFeed:
    """Keeps `image` up to date while `run` runs."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        controllers: ControllerClient,
        on_change: Callable[[MetadataImage, MetadataDelta], Iterable[None]],
        on_refused: Callable[[str], None],
    ) -> None:
        self.image = MetadataImage()
        self._broker_id = broker_id
        self._controllers = controllers
        self._on_change = on_change
        self._on_refused = on_refused
        self._refusals: set[ControllerId] = set()  # controllers whose refusal was logged
        # An image that is built from the start of the log, because an entry could not be applied. It replaces `image`
        # when it has all entries that `image` has.
        self._rebuilt: MetadataImage | None = None
        self._has_refused = False
        self._source: ControllerId | None = None
        self._call: _Call | None = None

    def active_moved(self, active: ControllerId) -> None:
        """End the stream if it comes from a standby controller, because the active controller commits first."""
        if self._source is not None and self._source != active and self._call is not None:
            self._call.cancel()

    async def run(self) -> None:
        """Follow the metadata until cancelled, or until `on_refused` is called."""
        try:
            await self._follow_any()
        except NewerProgramNeeded as error:
            self._on_refused(str(error))
        except OtherMetadata as error:
            self._on_refused(
                f"{error}: the controllers lost their data directories and started with empty ones, or"
                " belong to another cluster. This broker's logs are kept. Restore the data directories of the"
                " controllers, or correct controller.rpc.endpoints, and start the broker again"
            )

    async def _follow_any(self) -> None:
        backoff_s = _RETRY_MIN_S
        while True:
            for controller in self._controllers.candidates():
                before = self.image.offset
                try:
                    await self._follow(controller)
                except grpc.aio.AioRpcError as error:
                    if error.code() in _NOT_ITS_HISTORY:
                        self._log_refusal(controller, error.details() or "")
                    else:
                        _log.debug(
                            "Metadata feed ended", controller=controller, code=error.code().name
                        )
                except NewerProgramNeeded:
                    raise
                except (FeedBroken, MetadataDecodeError) as error:
                    _log.error(
                        "Metadata feed broke; opening it again",
                        controller=controller,
                        reason=str(error),
                    )
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                finally:
                    self._source = self._call = None
                if self.image.offset != before:
                    backoff_s = _RETRY_MIN_S
                    # The feed has received entries. Begin again with the controller that is active now.
                    break
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_max_s = _RETRY_REFUSED_MAX_S if self._has_refused else _RETRY_MAX_S
            self._has_refused = False
            backoff_s = min(backoff_s * 2, backoff_max_s)

    def _log_refusal(self, controller: ControllerId, reason: str) -> None:
        """Log a controller's refusal once until the feed receives metadata from this controller, because a controller
        of another cluster refuses every attempt.
        """
        if controller not in self._refusals:
            self._refusals.add(controller)
            _log.error(
                "Controller refused to send metadata to this broker",
                controller=controller,
                reason=reason,
            )

    async def _follow(self, controller: ControllerId) -> None:
        stub = pb_grpc.ControllerServiceStub(self._controllers.channel(controller))
        self._source = controller
        if self._rebuilt is not None:
            self._rebuilt = MetadataImage()
        image = self.image if self._rebuilt is None else self._rebuilt
        self._call = call = stub.MetadataFeed(
            pb.MetadataFeedRequest(
                broker_id=self._broker_id,
                from_offset=image.offset + 1,
                last_epoch=image.epoch,
            ),
            metadata=self._controllers.identity.headers(),
        )
        leave_timer = (
            None
            if controller == self._controllers.active
            else asyncio.get_running_loop().call_later(_STANDBY_S, call.cancel)
        )
        try:
            await self._receive(call)
        finally:
            if leave_timer is not None:
                leave_timer.cancel()

    async def _receive(self, call: _Call) -> None:
        snapshot: _IncomingSnapshot | None = None
        async for message in call:
            self._refusals.discard(self._source or ControllerId(-1))
            if message.HasField("batches"):
                snapshot = None
                await self._replay(message.batches)
            elif message.HasField("snapshot"):
                chunk = message.snapshot
                if snapshot is None or chunk.position == 0:
                    snapshot = _IncomingSnapshot(chunk)
                snapshot.add(chunk)
                if chunk.is_last:
                    await self._take_snapshot(snapshot.image(chunk))
                    snapshot = None

    async def _replay(self, message: pb.MetadataBatches) -> None:
        """Replay the entries. The event loop runs other tasks between entries and within long entries.

        The records of an entry are replayed without interruption, because no other code may see a part of an entry.
        """
        for number, entry in enumerate(message.batches):
            if number:
                await asyncio.sleep(0)
            image = self.image if self._rebuilt is None else self._rebuilt
            if entry.offset <= image.offset:
                # An entry may be sent twice after a reconnection.
                continue
            _require_next(image, entry.offset)
            delta = MetadataDelta()
            await self._replay_entry(image, entry, delta)
            self._require_own(image)
            if image is self.image:
                await self._pass_on(image, delta)
            elif image.offset >= self.image.offset:
                await self._apply(image)

    async def _replay_entry(
        self, image: MetadataImage, entry: pb.MetadataBatch, delta: MetadataDelta
    ) -> None:
        before = image.offset, image.epoch
        try:
            offset = MetadataOffset(entry.offset)
            if entry.payload:
                batch = await _in_turns(batch_steps(entry.payload))
                if batch.controller_epoch == entry.controller_epoch:
                    image.replay_all(offset, entry.controller_epoch, batch.records, delta)
            image.advance(offset, entry.controller_epoch)
        except MetadataDecodeError:
            raise
        except Exception as error:
            # A record that cannot be applied to the image is an error of the controller, and must not end this process.
            self._refuse_image(image, before)
            reason = shortened(f"{type(error).__name__}: {error}")
            raise FeedBroken(
                f"metadata entry {entry.offset} cannot be applied: {reason}"
            ) from error

    async def _pass_on(self, image: MetadataImage, delta: MetadataDelta) -> None:
        for number, _ in enumerate(self._on_change(image, delta)):
            if number:
                await asyncio.sleep(0)

    def _refuse_image(self, image: MetadataImage, before: tuple[MetadataOffset, int]) -> None:
        """Discard the image, which may contain a part of an invalid entry, and build it again."""
        image.offset, image.epoch = before
        self._has_refused = True
        self._rebuilt = MetadataImage()

    def _require_own(self, image: MetadataImage) -> None:
        """Raise OtherMetadata if the image was built from another metadata log. This is called before any part of the
        broker uses the image.
        """
        followed = self._controllers.identity.metadata_incarnation_id
        if followed is not None and image.incarnation_id not in (None, followed):
            assert image.incarnation_id is not None
            raise OtherMetadata(
                f"broker {self._broker_id} has followed the metadata log {followed.hex()}, but"
                f" the controllers have {image.incarnation_id.hex()}"
            )

    async def _take_snapshot(self, image: MetadataImage) -> None:
        if self._rebuilt is not None and image.offset < self.image.offset:
            self._rebuilt = image
        else:
            await self._apply(image)

    async def _apply(self, after: MetadataImage) -> None:
        before = self.image
        self._rebuilt = None
        self._require_own(after)
        if after.offset < before.offset:
            raise FeedBroken(
                f"snapshot at offset {after.offset} is older than the image at offset {before.offset}"
            )
        self.image = after
        for delta in differences(before, after):
            await self._pass_on(after, delta)
            await asyncio.sleep(0)
        _log.info(
            "Applied a metadata snapshot",
            offset=after.offset,
            topics=len(after.topics),
            brokers=len(after.brokers),
        )


async def _in_turns(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)


def _require_next(image: MetadataImage, offset: int) -> None:
    """Raise FeedBroken if entries between the image and the entry at `offset` are missing, because the image would
    never get the missing entries.
    """
    if 0 <= image.offset < offset - 1:
        raise FeedBroken(f"the entries between the offsets {image.offset} and {offset} are missing")


class _IncomingSnapshot:
    """A snapshot that arrives in several messages."""

    def __init__(self, first: pb.MetadataSnapshotChunk) -> None:
        self._offset = first.offset
        self._position = 0
        self._reader = SnapshotReader()
        self._pieces: list[bytes] = []

    def add(self, chunk: pb.MetadataSnapshotChunk) -> None:
        if chunk.offset != self._offset or chunk.position != self._position:
            raise FeedBroken(
                f"the next piece of a snapshot begins at byte {chunk.position} instead of {self._position}"
            )
        self._position += len(chunk.data)
        if self._position > SNAPSHOT_BYTES_MAX:
            raise FeedBroken(f"snapshot is longer than {SNAPSHOT_BYTES_MAX} bytes")
        self._pieces.append(chunk.data)
        self._reader.add(chunk.data)

    def image(self, last: pb.MetadataSnapshotChunk) -> MetadataImage:
        if crc32c(b"".join(self._pieces)) != last.crc32c:
            raise FeedBroken(f"snapshot at offset {last.offset} has a wrong checksum")
        return self._reader.finish()
