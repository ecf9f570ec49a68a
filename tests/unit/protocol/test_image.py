"""Replaying a record is the only way to change a metadata image, and it reports what changed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    MetadataOffset,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.metadata.image import (
    MetadataDelta,
    MetadataImage,
    check_partition,
    differences,
)
from odradek_protocol.metadata.records import (
    NO_LEADER,
    BrokerRegistrationChange,
    ClientQuota,
    Config,
    ConfigResourceType,
    MetadataRecord,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
    RemoveTopic,
    RestartClass,
    Topic,
    UnregisterBroker,
)

A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def broker(broker_id: BrokerId, incarnation: int = 1) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker_id,
        incarnation_id=IncarnationId(bytes([incarnation]) * 16),
        directory_ids=(DirectoryId(bytes([broker_id]) * 16),),
        restart_class=RestartClass.POWER,
        endpoints=(),
    )


def partition(topic_id: TopicId, index: int) -> Partition:
    return Partition(
        topic_id=topic_id,
        partition=PartitionIndex(index),
        replicas=(ONE, TWO, THREE),
        isr=(ONE, TWO, THREE),
        leader=ONE,
    )


def replayed(*records: MetadataRecord, image: MetadataImage | None = None) -> MetadataImage:
    image = MetadataImage() if image is None else image
    for record in records:
        image.replay(MetadataOffset(image.offset + 1), 1, record)
    return image


def with_topics() -> MetadataImage:
    return replayed(
        broker(ONE),
        broker(TWO),
        Topic(topic_id=A, name=TopicName("a")),
        partition(A, 0),
        partition(A, 1),
        Topic(topic_id=B, name=TopicName("b")),
        partition(B, 0),
    )


def test_a_brokers_epoch_is_the_offset_of_its_registration() -> None:
    image = replayed(broker(ONE), broker(TWO))
    assert image.brokers[TWO].broker_epoch == 1
    again = replayed(broker(TWO, incarnation=2), image=image)
    assert again.brokers[TWO].broker_epoch == 2
    assert again.brokers[TWO].fenced


def test_a_change_of_an_earlier_life_of_a_broker_is_a_bug() -> None:
    image = replayed(broker(ONE), broker(ONE, incarnation=2))
    stale = BrokerRegistrationChange(broker_id=ONE, broker_epoch=BrokerEpoch(0), fenced=False)
    with pytest.raises(AssertionError):
        replayed(stale, image=image)


@pytest.mark.parametrize(
    ("change", "leader_epoch"),
    [
        (PartitionChange(topic_id=A, partition=PartitionIndex(0), isr=(ONE, TWO)), 0),
        (PartitionChange(topic_id=A, partition=PartitionIndex(0), leader=TWO), 1),
        (PartitionChange(topic_id=A, partition=PartitionIndex(0), leader=ONE), 1),
        (PartitionChange(topic_id=A, partition=PartitionIndex(0), leader=NO_LEADER), 1),
    ],
)
def test_each_change_bumps_the_partition_epoch_and_a_leader_the_leader_epoch(
    change: PartitionChange, leader_epoch: int
) -> None:
    image = replayed(change, image=with_topics())
    state = image.partition(A, 0)
    assert state is not None
    assert (state.partition_epoch, state.leader_epoch) == (1, leader_epoch)


def test_what_a_change_leaves_out_stays() -> None:
    image = replayed(
        PartitionChange(topic_id=A, partition=PartitionIndex(1), isr=(TWO,), elr=(ONE,)),
        PartitionChange(topic_id=A, partition=PartitionIndex(1), leader=TWO),
        image=with_topics(),
    )
    state = image.partition(A, 1)
    assert state is not None
    assert (state.isr, state.elr, state.leader) == ((TWO,), (ONE,), TWO)
    assert image.partition(A, 0) == partition(A, 0)


def test_a_removed_topic_takes_its_configs_along_and_frees_its_name() -> None:
    image = replayed(
        Config(
            resource_type=ConfigResourceType.TOPIC,
            resource_name="a",
            name="retention.ms",
            value="1",
        ),
        RemoveTopic(topic_id=A),
        Topic(topic_id=TopicId(b"c" * 16), name=TopicName("a")),
        image=with_topics(),
    )
    assert image.partition(A, 0) is None
    assert image.topic_config("a", "retention.ms") is None
    topic = image.topic("a")
    assert topic is not None
    assert topic.topic_id == b"c" * 16


def test_replay_never_goes_back() -> None:
    image = with_topics()
    with pytest.raises(AssertionError, match="went back"):
        image.replay(MetadataOffset(image.offset - 1), 1, broker(THREE))
    with pytest.raises(AssertionError, match="went back"):
        image.replay(MetadataOffset(image.offset + 1), 0, broker(THREE))


def test_producer_ids_are_given_out_once() -> None:
    block = ProducerIds(
        broker_id=ONE, broker_epoch=BrokerEpoch(0), next_producer_id=ProducerId(1000)
    )
    image = replayed(block)
    with pytest.raises(AssertionError):
        replayed(replace(block, next_producer_id=ProducerId(999)), image=image)


def test_the_minimum_of_in_sync_replicas_is_the_topics_then_the_clusters_and_never_above_rf() -> (
    None
):
    image = with_topics()
    state = image.partition(A, 0)
    assert state is not None
    assert image.min_insync_replicas(state) == 1

    def minimum(resource_type: ConfigResourceType, name: str, value: str | None) -> int:
        config = Config(
            resource_type=resource_type,
            resource_name=name,
            name="min.insync.replicas",
            value=value,
        )
        return replayed(config, image=image).min_insync_replicas(state)

    assert minimum(ConfigResourceType.BROKER, "", "2") == 2
    assert minimum(ConfigResourceType.TOPIC, "a", "5") == 3
    assert minimum(ConfigResourceType.TOPIC, "a", None) == 2
    assert minimum(ConfigResourceType.BROKER, "", None) == 1


def test_a_delta_tells_first_states_and_forgets_what_came_and_went() -> None:
    image, delta = with_topics(), MetadataDelta()
    c = TopicId(b"c" * 16)
    records: list[MetadataRecord] = [
        PartitionChange(topic_id=A, partition=PartitionIndex(0), isr=(ONE, TWO)),
        PartitionChange(topic_id=A, partition=PartitionIndex(0), leader=TWO),
        Topic(topic_id=c, name=TopicName("c")),
        partition(c, 0),
        RemoveTopic(topic_id=c),
        RemoveTopic(topic_id=B),
        BrokerRegistrationChange(broker_id=ONE, broker_epoch=BrokerEpoch(0), fenced=False),
    ]
    for record in records:
        image.replay(MetadataOffset(image.offset + 1), 1, record, delta)
    assert delta.partitions == {(A, 0): partition(A, 0)}
    assert delta.topics_created == set()
    assert list(delta.topics_removed) == [B]
    assert delta.topics == {A, B}
    before = delta.brokers[ONE]
    assert before is not None
    assert before.fenced
    assert not image.brokers[ONE].fenced


def test_an_untouched_delta_is_empty() -> None:
    assert not MetadataDelta()


def test_a_copy_is_independent() -> None:
    image = with_topics()
    copy = image.copy()
    replayed(
        PartitionChange(topic_id=A, partition=PartitionIndex(0), leader=TWO),
        RemoveTopic(topic_id=B),
        ClientQuota(entity=(("user", "u"),), key="producer_byte_rate", value=1.0),
        UnregisterBroker(broker_id=TWO, broker_epoch=BrokerEpoch(1)),
        image=image,
    )
    assert copy == with_topics()


@pytest.mark.parametrize("items_max", [1, 2, 1000])
def test_the_differences_of_two_images_name_everything_that_differs(items_max: int) -> None:
    before = with_topics()
    after = replayed(
        PartitionChange(topic_id=A, partition=PartitionIndex(1), leader=TWO),
        partition(A, 2),
        RemoveTopic(topic_id=B),
        UnregisterBroker(broker_id=TWO, broker_epoch=BrokerEpoch(1)),
        Config(resource_type=ConfigResourceType.TOPIC, resource_name="a", name="x", value="1"),
        ClientQuota(entity=(("user", "u"),), key="producer_byte_rate", value=1.0),
        image=with_topics(),
    )
    slices = list(differences(before, after, items_max=items_max))
    partitions = {key: state for delta in slices for key, state in delta.partitions.items()}
    assert partitions == {(A, 1): partition(A, 1), (A, 2): None}
    assert {t for delta in slices for t in delta.topics_removed} == {B}
    assert {b for delta in slices for b in delta.brokers} == {TWO}
    assert {c for delta in slices for c in delta.configs} == {(ConfigResourceType.TOPIC, "a")}
    assert {q for delta in slices for q in delta.quotas} == {(("user", "u"),)}
    assert not any(list(differences(after, after.copy(), items_max=items_max)))


@pytest.mark.parametrize(
    "broken",
    [
        {"replicas": (ONE, ONE, TWO)},
        {"isr": (BrokerId(9),)},
        {"isr": (), "elr": (), "leader": NO_LEADER},
        {"elr": (THREE,), "isr": (ONE, TWO)},
        {"isr": (TWO,), "leader": ONE},
        {"isr": (ONE,), "elr": (ONE,)},
        {"recovering": True},
    ],
)
def test_the_invariants_of_a_partition_are_checked(broken: dict[str, object]) -> None:
    check_partition(partition(A, 0), 2)
    with pytest.raises(AssertionError):
        check_partition(replace(partition(A, 0), **broken), 2)  # type: ignore[arg-type]
