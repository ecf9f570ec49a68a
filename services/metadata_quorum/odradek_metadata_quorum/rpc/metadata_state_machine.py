"""The controller as the quorum drives it: committed bytes in, replayed records out."""

from __future__ import annotations

from collections.abc import Callable

from odradek_metadata_quorum.controller import Controller
from odradek_metadata_quorum.rpc.cluster_events import ClusterEvents
from odradek_protocol.identity import MetadataOffset
from odradek_protocol.metadata.codec import decode_batch
from odradek_protocol.metadata.errors import NewerProgramNeeded
from odradek_protocol.metadata.snapshot import read_snapshot, snapshot_bytes
from odradek_runtime.logs import event_log

_log = event_log(__name__)


class MetadataStateMachine:
    """Feeds one controller. The committed image is the whole replicated state."""

    def __init__(self, controller: Controller, on_applied: Callable[[], None]) -> None:
        """`on_applied` is called after each entry, when the controller's state has changed."""
        self.events = ClusterEvents(controller)
        self._controller = controller
        self._on_applied = on_applied

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        """Replay one committed entry.

        A batch that was decided in another epoch than the entry's is void: its controller had been
        deposed before the entry was appended. All members see the same and skip it.

        Raises:
            NewerProgramNeeded: this member must not go on; its log stays as it is.
        """
        at = MetadataOffset(offset)
        try:
            if payload:
                self._replay(at, epoch, payload)
        except NewerProgramNeeded as error:
            _log.error("This program is too old for the metadata", offset=offset, reason=str(error))
            raise
        self._controller.advance(at, epoch)
        self._on_applied()

    def _replay(self, at: MetadataOffset, epoch: int, payload: bytes) -> None:
        batch = decode_batch(payload)
        if batch.controller_epoch == epoch:
            for record in batch.records:
                self.events.observe(record)
                self._controller.replay(at, epoch, record)

    def snapshot(self) -> Callable[[], bytes]:
        """Capture the image (about 0.1 us a partition); the callable encodes it on any thread."""
        image = self._controller.committed.copy()
        return lambda: snapshot_bytes(image)

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        """Decode a snapshot, on any thread (3 s for 200,000 partitions); the callable puts it in place."""
        image = read_snapshot(data)
        image.advance(MetadataOffset(offset), epoch)

        def replace() -> None:
            self._controller.restore(image)
            self._on_applied()

        return replace
