"""When a restarted broker counts as caught up."""

from __future__ import annotations

import pytest

from odradek_broker.cluster.catch_up import CatchUp
from odradek_protocol.identity import (
    BrokerId,
    IncarnationId,
    MetadataOffset,
    PartitionIndex,
    TopicId,
    TopicName,
)
from odradek_protocol.metadata.features import OWN_MAXIMA
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import (
    NO_LEADER,
    Partition,
    RegisterBroker,
    RestartClass,
    Topic,
)

OWN, PEER = BrokerId(1), BrokerId(2)
TOPIC = TopicId(bytes(16))
NOBODY: frozenset[BrokerId] = frozenset()


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


def with_peer(
    made: MetadataImage,
    *,
    fenced: bool = False,
    features: tuple[tuple[str, int], ...] = OWN_MAXIMA,
) -> MetadataImage:
    """Register the other broker."""
    record = RegisterBroker(
        broker_id=PEER,
        incarnation_id=IncarnationId(bytes(16)),
        directory_ids=(),
        restart_class=RestartClass.CLEAN,
        endpoints=(),
        features=features,
        fenced=fenced,
    )
    made.replay(MetadataOffset(3), 1, record)
    return made


def test_it_waits_for_its_replicas_and_then_no_more() -> None:
    catch_up = CatchUp(OWN, timeout_ms=1_000)
    assert catch_up.why_not(image((2,)), NOBODY, 0)
    assert not catch_up.why_not(image((1, 2)), NOBODY, 1)
    assert not catch_up.why_not(image((2,)), NOBODY, 2), "what falls behind later is not its matter"


def test_it_does_not_wait_for_ever() -> None:
    catch_up = CatchUp(OWN, timeout_ms=1_000)
    assert catch_up.why_not(image((2,)), NOBODY, 5_000)
    assert catch_up.why_not(image((2,)), NOBODY, 5_999)
    assert not catch_up.why_not(image((2,)), NOBODY, 6_000)


def test_it_does_not_wait_for_what_is_not_its_own_or_has_no_leader() -> None:
    assert not CatchUp(OWN, timeout_ms=1_000).why_not(image((2,), replicas=(2, 3)), NOBODY, 0)
    assert not CatchUp(OWN, timeout_ms=1_000).why_not(image((2,), leader=NO_LEADER), NOBODY, 0)


def test_it_waits_until_those_that_share_a_partition_have_connected() -> None:
    catch_up = CatchUp(OWN, timeout_ms=1_000)
    everything_in_sync = with_peer(image((1, 2)))
    assert (
        catch_up.why_not(everything_in_sync, NOBODY, 0)
        == "broker 2 has not opened its replication stream to this broker yet"
    )
    assert not catch_up.why_not(everything_in_sync, {PEER}, 1)
    assert not catch_up.why_not(everything_in_sync, NOBODY, 2), "once is enough"


def test_it_does_not_wait_for_connections_for_ever() -> None:
    catch_up = CatchUp(OWN, timeout_ms=1_000)
    assert catch_up.why_not(with_peer(image((1, 2))), NOBODY, 0)
    assert not catch_up.why_not(with_peer(image((1, 2))), NOBODY, 1_000)


@pytest.mark.parametrize(
    "reachable",
    [
        with_peer(image((1, 2)), fenced=True),
        with_peer(image((1, 2)), features=()),
        with_peer(image((1, 2)), features=(("metadata.version", 2),)),
        with_peer(image((1,), replicas=(1, 3), leader=1)),
    ],
    ids=["is down", "registers no features", "is an older program", "shares no partition"],
)
def test_it_does_not_wait_for_a_broker_that_will_not_connect(reachable: MetadataImage) -> None:
    assert not CatchUp(OWN, timeout_ms=1_000).why_not(reachable, NOBODY, 0)
