"""This broker as a member of the cluster, from its registration to its stop.

joining   The logs are recovered while the broker registers. Before it leads any partition again, it reports lost
          records to the controller, if necessary with a second registration.
fenced    The broker is registered and follows the metadata, but serves no clients.
member    The broker is unfenced. Responses to heartbeats renew the lease.
leaving   The controller moves the leaderships to other brokers, then lets the broker stop.
stale     Another process has registered this broker id, or the id was unregistered: this process stops.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, Protocol

from odradek_broker.cluster.controller_client import ControllerClient
from odradek_broker.cluster.heartbeat import Beating, Heartbeat, HeartbeatUpdate, Lease, LoopTick
from odradek_broker.cluster.metadata_feed import MetadataFeed
from odradek_broker.cluster.registration import register, wire_partitions, wire_restart_class
from odradek_broker.log.log_directory import LoadReport, LogDirectory
from odradek_broker.log.storage import StorageFailed
from odradek_broker.replication.disk.disk_pool import Pool
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    IncarnationId,
    MetadataIncarnationId,
    TopicId,
    TopicIdPartition,
)
from odradek_protocol.metadata.features import OWN_MAXIMA, OWN_MINIMA
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.clock import SYSTEM_CLOCK, Clock
from odradek_runtime.lifecycle import ProcessRefused, bounded
from odradek_runtime.logs import event_log

_EARLY_LOAD_S: Final = 0.5
_REPORT_TIMEOUT_S: Final = 2.0
_PATIENCE_S: Final = 5.0
_log = event_log(__name__)


class LogEnds(Protocol):
    """The logs of this broker, as Membership uses them to report their end offsets."""

    def log_ends(
        self, partitions: Sequence[tuple[TopicId, int]]
    ) -> Iterator[tuple[TopicIdPartition, int, int]]:
        """Yield (partition, last epoch, log end offset) for each of these partitions that has a log on this broker."""
        ...


class Membership:
    """The membership of one broker process. Only the event loop uses this object."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        directory: LogDirectory,
        pool: Pool,
        controllers: ControllerClient,
        feed: MetadataFeed,
        lease: Lease,
        tick: LoopTick,
        logs: LogEnds,
        beating: Callable[[Heartbeat], Beating],
        incarnation: IncarnationId,
        on_registered: Callable[[BrokerEpoch], None],
        on_stale: Callable[[ProcessRefused], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`beating` creates the object that sends the heartbeats. A `Heartbeat` creates their content."""
        self.broker_id = BrokerId(settings.node_id)
        self.epoch = NO_BROKER_EPOCH
        self.unfenced = asyncio.Event()
        self._may_leave = asyncio.Event()
        self._image_moved = asyncio.Event()
        self._settings = settings
        self._directory = directory
        self._pool = pool
        self._controllers = controllers
        self._feed = feed
        self._lease = lease
        self._tick = tick
        self._logs = logs
        self._clock = clock
        self._make_beating = beating
        self._incarnation = incarnation
        self._on_registered = on_registered
        self._on_stale = on_stale
        self._heartbeat: Heartbeat | None = None
        self._beating: Beating | None = None
        self._report: asyncio.Task[None] | None = None  # sends the latest report of log end offsets
        self._noting_lock = asyncio.Lock()
        # The task that writes the incarnation id of the metadata log to disk.
        self._noting: asyncio.Task[None] | None = None

    async def join(
        self, load: Callable[[], LoadReport], listeners: Sequence[common_pb2.Listener]
    ) -> None:
        """Recover the logs and register, and report records that were lost.

        The broker registers before the recovery ends, unless the recovery takes less than `_EARLY_LOAD_S`.

        Raises:
            ProcessRefused: the logs cannot be opened, or the controller refused the registration.
        """
        loading: asyncio.Task[LoadReport] = asyncio.ensure_future(self._pool.call(load))
        await asyncio.wait({loading}, timeout=_EARLY_LOAD_S)
        report = _loaded(loading) if loading.done() else None
        await self._register(report, listeners)
        if report is None:
            await asyncio.wait({loading})
            report = _loaded(loading)
            # The controller must know of lost records before this broker leads any partition again.
            if report.power_loss:
                self._incarnation = IncarnationId(secrets.token_bytes(16))
                self.stop()
                await self._register(report, listeners)
        for damage in report.damage:
            _log.error(
                "Log of a partition is damaged on disk; the broker copies lost records from other replicas, if any",
                damage=damage,
            )
        _log.info(
            "Opened the partition logs",
            partitions=report.partitions,
            scanned_bytes=report.scanned_bytes,
            truncated_bytes=report.cut_bytes,
            partitions_with_lost_data=len(report.power_loss),
            previous_end=self._directory.restart_class.value,
        )
        await _patiently(
            self.image_shows(self.is_registered),
            "the metadata to contain this broker's registration",
        )
        await self._follow_metadata(self._feed.image)

    async def _follow_metadata(self, image: MetadataImage) -> None:
        """Write the incarnation id of the metadata log to disk, when the log has one. From then on the broker follows
        only that log.

        Raises:
            ProcessRefused: the log has no id although this broker has followed a log with an id, or the id cannot be
                written.
        """
        async with self._noting_lock:
            await self._note_incarnation(image.incarnation_id)

    async def _note_incarnation(self, incarnation_id: MetadataIncarnationId | None) -> None:
        identity = self._controllers.identity
        if incarnation_id == identity.metadata_incarnation_id:
            return
        if incarnation_id is None:
            assert identity.metadata_incarnation_id is not None
            raise ProcessRefused(
                f"broker {self.broker_id} has followed the metadata log"
                f" {identity.metadata_incarnation_id.hex()}, but the controllers' log has no"
                " incarnation id: an older release wrote it, or it is another log. Start the"
                " controllers with their previous release and data directories"
            )
        try:
            await self._pool.call(lambda: self._directory.follow_metadata(incarnation_id))
        except StorageFailed as failure:
            raise ProcessRefused(f"the data directory cannot be written: {failure}") from None
        identity.metadata_incarnation_id = incarnation_id
        _log.info(
            "Stored the incarnation id of the metadata log that this broker follows",
            incarnation=incarnation_id.hex(),
        )

    async def _note_raised_level(self, image: MetadataImage) -> None:
        """Write the incarnation id of the metadata log to disk, if the log gets an id after this broker has joined. An
        error is only logged.
        """
        try:
            await self._follow_metadata(image)
        except ProcessRefused as refused:
            _log.error(
                "Failed to store the incarnation id of the metadata log", reason=str(refused)
            )

    async def _register(
        self, report: LoadReport | None, listeners: Sequence[common_pb2.Listener]
    ) -> None:
        settings = self._settings
        # In a second registration, the previous broker epoch is that of this process's first registration.
        previous = self.epoch if self.epoch >= 0 else self._directory.previous_broker_epoch
        request = pb.RegisterRequest(
            cluster_id=settings.cluster_id,
            broker_id=self.broker_id,
            incarnation_id=self._incarnation,
            directory_ids=[self._directory.directory_id],
            restart_class=wire_restart_class(self._directory.restart_class),
            previous_broker_epoch=previous,
            listeners=listeners,
            rack=settings.rack,
            host_id=settings.host_id_or_name,
            lost_partitions=wire_partitions(report.power_loss) if report is not None else (),
            features=dict(OWN_MAXIMA),
            feature_minima=dict(OWN_MINIMA),
            metadata_incarnation_id=self._controllers.identity.metadata_incarnation_id or b"",
            controller_ids=sorted(self._controllers.identity.controller_ids),
        )
        self.epoch = await register(self._controllers, request)
        error = await self._pool.call(self._directory.loss_reported)
        if error is not None:
            _log.warning(
                "Failed to save that the lost partitions were reported to the controller;"
                " the next start reports them again",
                path=str(self._directory.path),
                error=str(error),
            )
        self._on_registered(self.epoch)
        self._heartbeat = Heartbeat(
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            lease=self._lease,
            tick=self._tick,
            loop=asyncio.get_running_loop(),
            on_update=self._heard,
            on_stale=self.found_stale,
            clock=self._clock,
        )
        self._heartbeat.image_offset = self._feed.image.offset
        self._beating = self._make_beating(self._heartbeat)
        self._beating.start()
        _log.info(
            "Registered this broker at the active controller",
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
        )

    async def ask_unfenced(self) -> None:
        """Ask the controller to unfence this broker. Wait until both the image and the response to a heartbeat show
        that this broker is unfenced.
        """
        assert self._heartbeat is not None
        self._heartbeat.want_fence = False
        self._beat_now()
        await _patiently(
            self.image_shows(
                lambda image: self.is_registered(image) and not image.brokers[self.broker_id].fenced
            ),
            "the active controller to unfence this broker",
        )
        # The lease begins with the response to a heartbeat that is sent from now on.
        self._beat_now()
        await _patiently(self.unfenced.wait(), "the active controller to respond to heartbeats")

    def image_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Report the offset of a new image to the controller. This must be called last, after all parts of the broker
        have applied the image.
        """
        if self._heartbeat is not None:
            self._heartbeat.image_offset = image.offset
            # A broker that shuts down waits until all other brokers have reported an image in which it shuts down. So
            # this broker reports an image with changed brokers at once.
            if delta.brokers:
                self._beat_now()
        registered = image.brokers.get(self.broker_id)
        if (
            registered is not None
            and 0 <= self.epoch < registered.broker_epoch
            # The registration of this process may be in the metadata before its response arrives.
            and registered.incarnation_id != self._incarnation
        ):
            self.found_stale()
        if (
            image.incarnation_id is not None
            and self._controllers.identity.metadata_incarnation_id is None
            and self._heartbeat is not None
            and (self._noting is None or self._noting.done())
        ):
            self._noting = asyncio.ensure_future(self._note_raised_level(image))
        self._image_moved.set()

    def is_registered(self, image: MetadataImage) -> bool:
        """Return whether the image contains the registration of this process."""
        broker = image.brokers.get(self.broker_id)
        return broker is not None and broker.broker_epoch == self.epoch

    async def image_shows(self, condition: Callable[[MetadataImage], bool]) -> None:
        """Wait until the image satisfies the condition."""
        while not condition(self._feed.image):
            self._image_moved.clear()
            await self._image_moved.wait()

    def _heard(self, update: HeartbeatUpdate) -> None:
        """Handle a response of the active controller that differs from the previous one or requests log end offsets."""
        self._controllers.believe(update.controller_id)
        self._feed.active_moved(update.controller_id)
        if not update.is_fenced:
            self.unfenced.set()
        if update.may_shutdown:
            self._may_leave.set()
        if update.report_log_ends and (self._report is None or self._report.done()):
            self._report = asyncio.ensure_future(self._report_log_ends(update.report_log_ends))

    async def _report_log_ends(self, partitions: tuple[tuple[TopicId, int], ...]) -> None:
        request = pb.ReportLogEndsRequest(broker_id=self.broker_id, broker_epoch=self.epoch)
        for partition, last_epoch, log_end in self._logs.log_ends(partitions):
            request.partitions.add(
                partition=common_pb2.TopicIdPartition(
                    topic_id=partition.topic_id, partition=partition.partition
                ),
                last_epoch=last_epoch,
                log_end=log_end,
            )
        try:
            await self._controllers.call("ReportLogEnds", request, timeout_s=_REPORT_TIMEOUT_S)
        except Exception as error:
            # The controller requests the report again in the response to the next heartbeat.
            _log.warning(
                "Failed to report log end offsets to the controller, which will ask again",
                reason=str(error),
            )

    def found_stale(self) -> None:
        """Stop this process, because another one has registered this broker id, or the id was unregistered."""
        self._lease.end()
        self._on_stale(
            ProcessRefused(
                f"broker {self.broker_id} was registered by another process, or unregistered (broker epoch"
                f" {self.epoch} is stale). This process stops; look for another process with the same node.id"
            )
        )

    def directory_full(self, is_full: bool) -> None:
        """Report to the controller whether this broker cannot write, because its disk is full."""
        if self._heartbeat is not None:
            self._heartbeat.cannot_write = is_full
            self._beat_now()

    def directory_offline(self, _reason: str) -> None:
        """Report to the controller that the data directory failed."""
        if self._heartbeat is not None:
            self._heartbeat.offline_directories = (self._directory.directory_id,)
            self._beat_now()

    def partitions_broken(self, broken: tuple[TopicIdPartition, ...]) -> None:
        """Report to the controller all replicas that failed because of internal errors."""
        if self._heartbeat is not None:
            self._heartbeat.broken_partitions = tuple(
                common_pb2.TopicIdPartition(
                    topic_id=partition.topic_id, partition=partition.partition
                )
                for partition in broken
            )
            self._beat_now()

    async def leave(self, timeout_s: float) -> bool:
        """Let the controller move the leaderships to other brokers. Return whether the controller let this broker
        stop within `timeout_s`.
        """
        assert self._heartbeat is not None
        self._heartbeat.want_shutdown = True
        self._beat_now()
        return await bounded(
            self._may_leave.wait(), timeout_s, "the controller's permission to stop"
        )

    def stop(self) -> None:
        """Stop sending heartbeats."""
        if self._heartbeat is not None and self._beating is not None:
            self._heartbeat.is_stopped = True
            self._beating.stop()

    def _beat_now(self) -> None:
        assert self._beating is not None, "no heartbeats before the registration"
        self._beating.beat_now()


async def _patiently(waiting: Coroutine[Any, Any, object], what: str) -> None:
    """Wait without a time limit. Log every few seconds that this process waits, so that it does not seem to hang."""
    task = asyncio.ensure_future(waiting)
    try:
        while not task.done():
            done, _ = await asyncio.wait({task}, timeout=_PATIENCE_S)
            if not done:
                _log.warning("Still waiting for the controllers", waiting_for=what)
        await task
    finally:
        task.cancel()


def _loaded(task: asyncio.Task[LoadReport]) -> LoadReport:
    try:
        return task.result()
    except StorageFailed as failure:
        raise ProcessRefused(f"the logs cannot be opened: {failure}") from None
