"""A metadata snapshot contains all metadata, equal metadata have equal bytes, and damage is
detected.
"""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek_protocol.identity import (
    BrokerId,
    ControllerId,
    IncarnationId,
    MetadataIncarnationId,
    MetadataOffset,
    PartitionIndex,
    TopicId,
    TopicName,
)
from odradek_protocol.metadata.codec import MetadataDecodeError
from odradek_protocol.metadata.features import METADATA_VERSION_MAX
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import (
    AccessControlEntry,
    BrokerRegistrationChange,
    ClientQuota,
    Config,
    ConfigResourceType,
    FeatureLevel,
    MetadataIncarnation,
    NewerProgramNeeded,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterController,
    ScramMechanism,
    Topic,
    UserScramCredential,
)
from odradek_protocol.metadata.snapshot import (
    SnapshotReader,
    read_snapshot,
    snapshot_bytes,
    write_snapshot,
)
from tests.unit.protocol.test_image import ONE, TWO, broker, replayed, with_topics


def full_image() -> MetadataImage:
    """Return metadata with a record of every kind."""
    image = with_topics()
    return replayed(
        FeatureLevel(name="metadata.version", level=2),
        MetadataIncarnation(incarnation_id=MetadataIncarnationId(b"i" * 16)),
        RegisterController(
            controller_id=ControllerId(1),
            incarnation_id=IncarnationId(b"c" * 16),
            features=(("metadata.version", 2),),
        ),
        BrokerRegistrationChange(
            broker_id=ONE, broker_epoch=image.brokers[ONE].broker_epoch, fenced=False
        ),
        BrokerRegistrationChange(
            broker_id=TWO, broker_epoch=image.brokers[TWO].broker_epoch, in_shutdown=True
        ),
        PartitionChange(
            topic_id=TopicId(b"a" * 16),
            partition=PartitionIndex(1),
            leader=TWO,
            isr=(TWO,),
            elr=(ONE,),
            lost=(BrokerId(3),),
        ),
        Config(
            resource_type=ConfigResourceType.TOPIC,
            resource_name="a",
            name="retention.ms",
            value="1",
        ),
        AccessControlEntry(
            acl_id=b"x" * 16,
            resource_type=2,
            resource_name="a",
            pattern_type=3,
            principal="User:u",
            host="*",
            operation=3,
            permission_type=3,
        ),
        UserScramCredential(
            user="u",
            mechanism=ScramMechanism.SHA_512,
            salt=b"s",
            stored_key=b"k",
            server_key=b"v",
            iterations=4096,
        ),
        ClientQuota(entity=(("client-id", None), ("user", "u")), key="producer_byte_rate", value=1),
        ProducerIds(
            broker_id=ONE,
            broker_epoch=image.brokers[ONE].broker_epoch,
            next_producer_id=3000,  # type: ignore[arg-type]
        ),
        image=image,
    )


def test_an_image_is_read_as_it_was_written() -> None:
    image = full_image()
    again = read_snapshot(snapshot_bytes(image))
    assert again == image
    assert snapshot_bytes(again) == snapshot_bytes(image)


def test_equal_images_have_equal_bytes_whatever_their_history() -> None:
    one = replayed(
        broker(ONE), broker(TWO), Topic(topic_id=TopicId(b"c" * 16), name=TopicName("c"))
    )
    other = MetadataImage()
    other.replay(MetadataOffset(0), 1, broker(ONE))
    other.replay(MetadataOffset(1), 1, broker(TWO))
    for name in ("c",):
        other.replay(MetadataOffset(2), 1, Topic(topic_id=TopicId(b"c" * 16), name=TopicName(name)))
    assert snapshot_bytes(one) == snapshot_bytes(other)


@given(st.data())
@settings(max_examples=50)
def test_pieces_may_be_cut_anywhere(data: st.DataObject) -> None:
    whole = snapshot_bytes(full_image())
    reader, position = SnapshotReader(), 0
    while position < len(whole):
        size = data.draw(st.integers(1, 200))
        reader.add(whole[position : position + size])
        position += size
    assert reader.finish() == full_image()


def test_a_cut_snapshot_is_refused_wherever_it_is_cut() -> None:
    whole = snapshot_bytes(full_image())
    for length in range(len(whole)):
        with pytest.raises(MetadataDecodeError):
            read_snapshot(whole[:length])


@given(st.data())
@settings(max_examples=200)
def test_a_damaged_snapshot_is_one_error_or_a_snapshot(data: st.DataObject) -> None:
    damaged = bytearray(snapshot_bytes(full_image()))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        read_snapshot(bytes(damaged))
    except MetadataDecodeError:
        return


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(MetadataDecodeError):
        read_snapshot(snapshot_bytes(full_image()) + b"\x00\x00\x00\x01\x90")


def test_frames_are_bounded_so_that_the_loop_gets_its_turns() -> None:
    image = large_image()
    pieces = list(write_snapshot(image))
    assert max(map(len, pieces)) < 64 << 10
    assert read_snapshot(b"".join(pieces)) == image


def test_ten_thousand_partitions_stay_far_below_100_mib() -> None:
    tracemalloc.start()
    try:
        image = large_image()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(topic.partitions) for topic in image.topics.values()) == 10_000
    assert used < 20 << 20
    assert len(snapshot_bytes(image)) < 2 << 20


def large_image() -> MetadataImage:
    image = MetadataImage()
    for number in range(1000):
        topic_id = TopicId(number.to_bytes(16, "big"))
        image.replay(
            MetadataOffset(number), 1, Topic(topic_id=topic_id, name=TopicName(f"topic-{number}"))
        )
        for index in range(10):
            replicas = tuple(BrokerId((number + index + shift) % 100) for shift in range(3))
            image.replay(
                MetadataOffset(number),
                1,
                Partition(
                    topic_id=topic_id,
                    partition=PartitionIndex(index),
                    replicas=replicas,
                    isr=tuple(BrokerId(b + 0) for b in replicas),
                    leader=replicas[0],
                ),
            )
    return image


def test_a_snapshot_of_a_later_level_is_no_damage() -> None:
    whole = bytearray(snapshot_bytes(MetadataImage(features={"metadata.version": 2})))
    head = whole.index(msgpack.packb([1, -1, 0, 2]))
    whole[head + 4] = METADATA_VERSION_MAX + 1
    with pytest.raises(NewerProgramNeeded, match=rf"metadata\.version {METADATA_VERSION_MAX + 1}"):
        read_snapshot(whole)


def test_a_snapshot_of_an_older_program_is_read() -> None:
    """The header of such a snapshot has no level."""
    whole = snapshot_bytes(MetadataImage(features={"metadata.version": 1}))
    head = msgpack.packb([1, -1, 0, 1])
    assert len(head) == 5
    older = whole.replace(
        b"\x00\x00\x00\x05" + head, b"\x00\x00\x00\x04" + msgpack.packb([1, -1, 0])
    )
    assert read_snapshot(older) == MetadataImage(features={"metadata.version": 1})
