"""The metadata image in the forms that replicas use: events about partitions and brokers, and log settings.

A broker has thousands of replicas on the same few brokers, and hundreds of logs with the settings of one topic. Equal
values are shared, until a change of the image may change them.
"""

from __future__ import annotations

from odradek_broker.log.log_config import LogConfig
from odradek_broker.partition import events as ev
from odradek_protocol.identity import BrokerId, LeaderEpoch, PartitionEpoch, TopicName
from odradek_protocol.metadata.configs import set_topic_configs
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage, PartitionState
from odradek_protocol.topic_names import INTERNAL_TOPICS
from odradek_runtime.logs import event_log

_log = event_log(__name__)


class ImageViews:
    """Cached values from the image that was passed to `follow` last."""

    def __init__(self, image: MetadataImage, *, defaults: LogConfig) -> None:
        """`defaults` are the log settings of this broker."""
        self._image = image
        self._defaults = defaults
        self._brokers: dict[tuple[BrokerId, ...], tuple[ev.BrokerView, ...]] = {}
        self._configs: dict[TopicName, LogConfig] = {}

    def follow(self, image: MetadataImage, delta: MetadataDelta | None = None) -> None:
        """Remove the cached values that a change of the image may concern. Without a `delta`, or with another image
        object, remove all of them.
        """
        if delta is None or image is not self._image or delta.brokers:
            self._brokers.clear()
        if delta is None or image is not self._image or delta.configs or delta.topics_removed:
            self._configs.clear()
        self._image = image

    def partition(self, state: PartitionState, config: LogConfig) -> ev.PartitionChanged:
        """Return the event that describes one partition and those of its brokers that are registered."""
        image = self._image
        brokers = self._brokers.get(state.replicas)
        if brokers is None:
            views = (broker_view(image, broker_id) for broker_id in state.replicas)
            brokers = tuple(view for view in views if view is not None)
            self._brokers[state.replicas] = brokers
        return ev.PartitionChanged(
            leader=state.leader,
            leader_epoch=LeaderEpoch(state.leader_epoch),
            partition_epoch=PartitionEpoch(state.partition_epoch),
            replicas=state.replicas,
            isr=state.isr,
            elr=state.elr,
            min_insync_replicas=image.min_insync_replicas(state),
            is_recovering=state.recovering,
            brokers=brokers,
            is_fsync=config.is_fsync,
            flush_messages=config.flush_messages,
            flush_ms=config.flush_ms,
        )

    def log_config(self, topic: TopicName) -> LogConfig:
        """Return a topic's log settings. Configs of the topic override those of the cluster, which override the
        broker's.
        """
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = self._read_config(topic)
        return config

    def _read_config(self, topic: TopicName) -> LogConfig:
        defaults = self._defaults
        if topic in INTERNAL_TOPICS:
            defaults = LogConfig.from_topic_configs({"durability": "fsync"}, defaults=defaults)

        def ignored(reason: str) -> None:
            _log.error("Ignored an invalid config of a topic", topic=topic, reason=reason)

        configs = set_topic_configs(self._image, topic)
        return LogConfig.from_topic_configs(configs, defaults=defaults, on_invalid=ignored)


def broker_view(image: MetadataImage, broker_id: BrokerId) -> ev.BrokerView | None:
    """Return the state of one broker in the form that events of replicas use; None if the broker is not registered."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return None
    return ev.BrokerView(
        broker_id=broker_id,
        broker_epoch=broker.broker_epoch,
        is_fenced=broker.fenced,
        in_shutdown=broker.in_shutdown,
    )
