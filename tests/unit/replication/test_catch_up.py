"""When a restarted broker counts as caught up."""

from __future__ import annotations

from odradek_broker.cluster.catch_up import CatchUp
from odradek_protocol.identity import BrokerId, MetadataOffset, PartitionIndex, TopicId, TopicName
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import NO_LEADER, Partition, Topic

OWN = BrokerId(1)
TOPIC = TopicId(bytes(16))


def image(
    isr: tuple[int, ...], leader: int = 2, replicas: tuple[int, ...] = (1, 2)
) -> MetadataImage:
    made = MetadataImage()
    made.replay(MetadataOffset(1), 1, Topic(topic_id=TOPIC, name=TopicName("t")))
    made.replay(
        MetadataOffset(2),
        1,
        Partition(
            topic_id=TOPIC,
            partition=PartitionIndex(0),
            replicas=tuple(map(BrokerId, replicas)),
            isr=tuple(map(BrokerId, isr)),
            leader=BrokerId(leader),
        ),
    )
    return made


def test_it_waits_for_its_replicas_and_then_no_more() -> None:
    catch_up = CatchUp(OWN, timeout_ms=1_000)
    assert catch_up.why_not(image((2,)), 0)
    assert not catch_up.why_not(image((1, 2)), 1)
    assert not catch_up.why_not(image((2,)), 2), "what falls behind later is not its matter"


def test_it_does_not_wait_for_ever() -> None:
    catch_up = CatchUp(OWN, timeout_ms=1_000)
    assert catch_up.why_not(image((2,)), 5_000)
    assert catch_up.why_not(image((2,)), 5_999)
    assert not catch_up.why_not(image((2,)), 6_000)


def test_it_does_not_wait_for_what_is_not_its_own_or_has_no_leader() -> None:
    assert not CatchUp(OWN, timeout_ms=1_000).why_not(image((2,), replicas=(2, 3)), 0)
    assert not CatchUp(OWN, timeout_ms=1_000).why_not(image((2,), leader=NO_LEADER), 0)
