"""What the metadata image says of a partition and of a broker, as events have it."""

from __future__ import annotations

from odradek_broker.partition import events as ev
from odradek_protocol.identity import BrokerId, LeaderEpoch, PartitionEpoch
from odradek_protocol.metadata.image import MetadataImage, PartitionState


def partition_view(
    image: MetadataImage, state: PartitionState, *, is_fsync: bool
) -> ev.PartitionChanged:
    """The state of one partition, with the brokers of its replicas that the image knows."""
    views = (broker_view(image, broker_id) for broker_id in state.replicas)
    return ev.PartitionChanged(
        leader=state.leader,
        leader_epoch=LeaderEpoch(state.leader_epoch),
        partition_epoch=PartitionEpoch(state.partition_epoch),
        replicas=state.replicas,
        isr=state.isr,
        elr=state.elr,
        min_insync_replicas=image.min_insync_replicas(state),
        is_recovering=state.recovering,
        brokers=tuple(view for view in views if view is not None),
        is_fsync=is_fsync,
    )


def broker_view(image: MetadataImage, broker_id: BrokerId) -> ev.BrokerView | None:
    """One broker; None if the image does not know it."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return None
    return ev.BrokerView(
        broker_id=broker_id,
        broker_epoch=broker.broker_epoch,
        is_fenced=broker.fenced,
        in_shutdown=broker.in_shutdown,
    )
