"""Replicas share the values that the metadata image has for all of them, until the image changes."""

from __future__ import annotations

from odradek_broker.log.log_config import LogConfig
from odradek_broker.replication.image_views import ImageViews
from odradek_protocol.identity import (
    BrokerEpoch,
    DirectoryId,
    IncarnationId,
    MetadataOffset,
    PartitionIndex,
    TopicName,
)
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage, PartitionState
from odradek_protocol.metadata.records import (
    BrokerRegistrationChange,
    Config,
    ConfigResourceType,
    MetadataRecord,
    RegisterBroker,
    RemoveTopic,
    RestartClass,
    Topic,
)
from tests.unit.log.material import TOPIC, TOPIC_ID
from tests.unit.replication.memory_table import OTHER, OWN, image_of

CONFIG = LogConfig()
NAME = TopicName(TOPIC)


def change(image: MetadataImage, views: ImageViews, *records: MetadataRecord) -> None:
    delta = MetadataDelta()
    image.replay_all(MetadataOffset(image.offset + 1), image.epoch, records, delta)
    views.follow(image, delta)


def registered() -> tuple[MetadataImage, ImageViews]:
    """Return an image with two brokers and two partitions on them, and its views."""
    image = image_of(2, leader=OTHER)
    views = ImageViews(image, defaults=CONFIG)
    for broker_id in (OWN, OTHER):
        record = RegisterBroker(
            broker_id=broker_id,
            incarnation_id=IncarnationId(bytes(16)),
            directory_ids=(DirectoryId(bytes(16)),),
            restart_class=RestartClass.CLEAN,
            endpoints=(),
            rack=None,
            features=(),
        )
        change(image, views, record)
    return image, views


def retention(value: str) -> Config:
    return Config(
        resource_type=ConfigResourceType.TOPIC,
        resource_name=TOPIC,
        name="retention.ms",
        value=value,
    )


def state(image: MetadataImage, index: int) -> PartitionState:
    found = image.partition(TOPIC_ID, PartitionIndex(index))
    assert found is not None
    return found


def fenced(image: MetadataImage, views: ImageViews, index: int) -> list[bool]:
    brokers = views.partition(state(image, index), CONFIG).brokers
    return [broker.is_fenced for broker in sorted(brokers, key=lambda broker: broker.broker_id)]


def test_partitions_on_the_same_brokers_share_what_is_known_of_these() -> None:
    image, views = registered()
    first, second = (views.partition(state(image, index), CONFIG) for index in range(2))
    assert first.brokers is second.brokers
    assert len(first.brokers) == 2


def test_a_change_of_a_broker_is_in_the_next_event_of_each_partition() -> None:
    image, views = registered()
    before = fenced(image, views, 0)
    epoch = image.brokers[OTHER].broker_epoch
    for is_fenced in (not image.brokers[OTHER].fenced, image.brokers[OTHER].fenced):
        record = BrokerRegistrationChange(
            broker_id=OTHER, broker_epoch=BrokerEpoch(epoch), fenced=is_fenced
        )
        change(image, views, record)
        after = [fenced(image, views, index) for index in range(2)]
        assert after[0] == after[1] == [image.brokers[OWN].fenced, is_fenced]
    assert fenced(image, views, 0) == before


def test_a_topic_has_its_settings_until_they_change() -> None:
    image, views = registered()
    before = views.log_config(NAME)
    assert views.log_config(NAME) is before
    change(image, views, retention("1000"))
    assert views.log_config(NAME).retention_ms == 1000
    change(image, views, retention("2000"))
    assert views.log_config(NAME).retention_ms == 2000


def test_a_topic_that_is_created_again_does_not_have_the_settings_of_the_deleted_one() -> None:
    image, views = registered()
    change(image, views, retention("1000"))
    assert views.log_config(NAME).retention_ms == 1000
    change(image, views, RemoveTopic(topic_id=TOPIC_ID))
    change(image, views, Topic(topic_id=TOPIC_ID, name=NAME))
    assert views.log_config(NAME).retention_ms == CONFIG.retention_ms


def test_another_image_is_read_anew_even_if_nothing_is_said_to_have_changed() -> None:
    image, views = registered()
    assert views.log_config(NAME) == CONFIG
    assert len(views.partition(state(image, 0), CONFIG).brokers) == 2
    other = image_of(1, leader=OTHER)
    other.replay(other.offset, other.epoch, retention("1000"))
    views.follow(other, MetadataDelta())
    assert views.log_config(NAME).retention_ms == 1000
    assert views.partition(state(other, 0), CONFIG).brokers == ()
