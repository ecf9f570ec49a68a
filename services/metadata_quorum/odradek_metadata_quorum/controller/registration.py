"""Registration and unregistration of brokers.

A registration is one batch. The broker is fenced at first. The partitions that its previous process led get another
leader or no leader, with a new leader epoch. If the broker may have lost bytes, its replicas leave all ISRs and ELRs.
The registration does not wait until the previous process is fenced: that process gets STALE_BROKER_EPOCH at its next
heartbeat, and its acknowledgements have a stale epoch.

A broker that claims to have lost no bytes (restart class CLEAN or PROCESS) must prove this: it must have the same data
directories as in its previous registration, and none of them may have been offline. For CLEAN, it must also name the
broker epoch of that registration, which a controlled shutdown writes to the disk. Otherwise the class is POWER.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek_metadata_quorum.controller.partitions import keep_all_records
from odradek_metadata_quorum.controller.requests import (
    GOOD,
    Outcome,
    RegisterRequest,
    RegisterResponse,
)
from odradek_metadata_quorum.controller.workspace import Workspace, note_fencing
from odradek_protocol.identity import BrokerId, MetadataIncarnationId, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import TRANSACTION_VERSION, highest_supported
from odradek_protocol.metadata.image import BrokerState
from odradek_protocol.metadata.records import (
    BrokerRegistrationChange,
    PartitionChange,
    RegisterBroker,
    RestartClass,
    UnregisterBroker,
)
from odradek_protocol.topic_names import TRANSACTIONS_TOPIC


def register(work: Workspace, request: RegisterRequest) -> RegisterResponse:
    """Register a broker. A repeated request of the same process (incarnation id) gets the same response."""
    before = work.image.brokers.get(request.broker_id)
    if before is not None and before.incarnation_id == request.incarnation_id:
        return RegisterResponse(broker_epoch=before.broker_epoch)
    refusal = _refusal(work, request, before)
    if refusal is not None:
        return RegisterResponse(outcome=refusal)
    restart_class = _proven_class(request, before)
    if before is not None and not _fits_one_batch(work, request, before, restart_class):
        return RegisterResponse(
            outcome=Outcome(
                error=ErrorCode.REQUEST_TIMED_OUT,
                message=f"broker {request.broker_id} has more partitions than fit into one batch, and only some of "
                "them were changed: repeat the registration, which changes more of them",
            )
        )
    work.write(
        RegisterBroker(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            directory_ids=request.directory_ids,
            restart_class=restart_class,
            endpoints=request.endpoints,
            rack=request.rack,
            features=request.features,
            feature_minima=request.feature_minima if work.image.has_identity else (),
            host_id=request.host_id if work.image.has_hosts else None,
        )
    )
    work.write(*_registration_changes(work, request, before, restart_class))
    memory = work.memory(request.broker_id)
    memory.image_offset, memory.shutdown_offset = -1, None
    work.broken.pop(request.broker_id, None)
    if before is not None and not before.fenced:
        note_fencing(work, request.broker_id)
    work.liveness.unwatch(request.broker_id)
    return RegisterResponse(broker_epoch=work.image.brokers[request.broker_id].broker_epoch)


def _registration_changes(
    work: Workspace,
    request: RegisterRequest,
    before: BrokerState | None,
    restart_class: RestartClass,
) -> list[PartitionChange]:
    """Return the changes that the partitions of a broker need when it registers again. The broker is fenced in the
    working image, and may have lost bytes.
    """
    changes = []
    # Without an earlier registration, a broker with this id may have been unregistered, and its directory ids are not
    # stored any more. So this broker may be another machine with the same id.
    may_be_empty = before is None or not set(before.directory_ids) <= set(request.directory_ids)
    for state in work.partitions_of(request.broker_id):
        key = TopicIdPartition(state.topic_id, state.partition)
        is_damaged = key in request.lost_partitions
        has_lost = restart_class is RestartClass.POWER or is_damaged
        change = work.settled(
            state,
            (request.broker_id,) if has_lost else (),
            # A damaged log was truncated at the first wrong byte, or its directory is missing. Other replicas may have
            # more records.
            emptied=(request.broker_id,) if may_be_empty or is_damaged else (),
        )
        if change is not None:
            changes.append(change)
    return changes


def _fits_one_batch(
    work: Workspace,
    request: RegisterRequest,
    before: BrokerState,
    restart_class: RestartClass,
) -> bool:
    """Return whether the registration fits into one batch. If not, write some of its changes as a batch of their own.

    The previous registration is fenced first. Then each attempt to register settles some of the broker's partitions.
    Every state in between is safe: a fenced broker leads no partition, and the new process cannot join an ISR until it
    is registered.
    """
    changes_max = work.settings.registration_changes_max
    if len(work.partitions_of(request.broker_id)) <= changes_max:
        return True
    if not before.fenced:
        work.write(
            BrokerRegistrationChange(
                broker_id=before.broker_id, broker_epoch=before.broker_epoch, fenced=True
            )
        )
        work.liveness.unwatch(before.broker_id)
        work.memory(before.broker_id).fenced_because = "the broker registers again"
    changes = _registration_changes(work, request, before, restart_class)
    if len(changes) <= changes_max:
        return True
    if not before.fenced:
        note_fencing(work, before.broker_id)
    # Partitions whose leader changes come first, because they are unavailable until then.
    changes.sort(key=lambda change: change.leader is None)
    work.write(*changes[:changes_max])
    return False


def _refusal(
    work: Workspace, request: RegisterRequest, before: BrokerState | None
) -> Outcome | None:
    if request.cluster_id != work.settings.cluster_id:
        return Outcome(
            error=ErrorCode.INCONSISTENT_CLUSTER_ID,
            message=f"broker {request.broker_id} belongs to cluster {request.cluster_id}, this is "
            f"cluster {work.settings.cluster_id}: correct the broker's cluster.id or controller.rpc.endpoints",
        )
    if request.broker_id < 0 or not request.directory_ids or len(request.incarnation_id) != 16:
        return Outcome(
            error=ErrorCode.INVALID_REGISTRATION,
            message="the registration is not valid: a broker needs an id of 0 or above, a directory id, "
            "and an incarnation id of 16 bytes",
        )
    if request.metadata_incarnation_id not in (None, work.image.incarnation_id):
        return Outcome(
            error=ErrorCode.INCONSISTENT_CLUSTER_ID,
            message=other_metadata(
                request.broker_id, request.metadata_incarnation_id, work.image.incarnation_id
            ),
        )
    if strangers := request.controller_ids - set(work.settings.voters or request.controller_ids):
        return Outcome(
            error=ErrorCode.INCONSISTENT_CLUSTER_ID,
            message=f"broker {request.broker_id} names the controllers {_list(strangers)}, which "
            f"are not voters of this quorum: the voters are {_list(work.settings.voters)}. Correct the "
            "broker's controller.rpc.endpoints; or, if controller.quorum.voters of this controller is wrong, "
            "correct that setting",
        )
    return _feature_refusal(work, request) or _duplicate_refusal(work, request, before)


def other_metadata(
    broker_id: BrokerId,
    followed: MetadataIncarnationId | None,
    present: MetadataIncarnationId | None,
) -> str:
    """Return the error text for a broker that has followed the metadata log `followed`, although this quorum has
    the log `present`.
    """
    return (
        f"broker {broker_id} has followed the metadata log {incarnation_text(followed)}, but the "
        f"controllers have {incarnation_text(present)}: the controllers lost their data directories and "
        "started a new log, or belong to another cluster. The broker's logs are not changed. Restore the "
        "data directories of the controllers, or correct controller.rpc.endpoints, and start the "
        "broker again. Only if the old metadata is lost for good: stop the broker and run `odradek "
        f"storage adopt --incarnation {incarnation_text(present)}` on its data directory; logs of "
        "topics that the new metadata does not have are then set aside as strays"
    )


def incarnation_text(incarnation_id: MetadataIncarnationId | None) -> str:
    """Return the id of a metadata log as hexadecimal digits, in the form that `odradek storage adopt` accepts."""
    return "(none)" if incarnation_id is None else incarnation_id.hex()


def _list(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


def _feature_refusal(work: Workspace, request: RegisterRequest) -> Outcome | None:
    minima = dict(request.feature_minima)
    for name in work.image.features:
        level = work.image.feature_level(name)
        lowest, highest = minima.get(name, 0), highest_supported(request.features, name)
        if not lowest <= level <= highest and level > 0:
            way_out = (
                "upgrade the broker" if level > highest else "raise the level of the feature first"
            )
            return Outcome(
                error=ErrorCode.UNSUPPORTED_VERSION,
                message=f"this cluster uses {name} at level {level}, but broker {request.broker_id} "
                f"supports {lowest} to {highest}: {way_out}",
            )
    if (
        TRANSACTIONS_TOPIC in work.image.topic_ids
        and highest_supported(request.features, TRANSACTION_VERSION) < 1
    ):
        # Transactions may have begun before transaction.version was lowered, and this broker would append their records
        # without asking the transaction coordinator.
        return Outcome(
            error=ErrorCode.UNSUPPORTED_VERSION,
            message=f"this cluster has the topic {TRANSACTIONS_TOPIC}, but broker"
            f" {request.broker_id} does not support transactions: upgrade the broker",
        )
    return None


def _duplicate_refusal(
    work: Workspace, request: RegisterRequest, before: BrokerState | None
) -> Outcome | None:
    if (
        before is not None
        and not before.fenced
        and not set(before.directory_ids) & set(request.directory_ids)
        and work.liveness.is_connected(request.broker_id)
    ):
        return Outcome(
            error=ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            message=f"broker id {request.broker_id} is in use by a live broker with another data "
            "directory: set another node.id for this broker, or stop the live broker",
        )
    return None


def _proven_class(request: RegisterRequest, before: BrokerState | None) -> RestartClass:
    if before is None or set(before.directory_ids) != set(request.directory_ids):
        return RestartClass.POWER
    if before.offline_directory_ids:
        return RestartClass.POWER
    if (
        request.restart_class is RestartClass.CLEAN
        and request.previous_broker_epoch != before.broker_epoch
    ):
        return RestartClass.POWER
    return request.restart_class


def unregister(work: Workspace, broker_id: BrokerId) -> Outcome:
    """Remove the registration of a broker that will not start again. The broker must be fenced, so it leads no
    partition.

    As in Kafka, partitions may still have replicas on this broker. But the broker must not have the only copy of
    acknowledged records: if the broker came back, the controller could not tell its disk from an empty one.
    """
    broker = work.image.brokers.get(broker_id)
    if broker is None:
        return Outcome(
            error=ErrorCode.BROKER_ID_NOT_REGISTERED, message=f"there is no broker {broker_id}"
        )
    if not broker.fenced:
        return Outcome(
            error=ErrorCode.INVALID_REQUEST,
            message=f"broker {broker_id} is not fenced: stop it first, then unregister it",
        )
    for state in work.partitions_of(broker_id):
        if not keep_all_records(state, tuple(b for b in state.replicas if b != broker_id)):
            topic = work.image.topics[state.topic_id].name
            return Outcome(
                error=ErrorCode.INVALID_REQUEST,
                message=f"broker {broker_id} has the only in-sync replica of {topic}-{state.partition}, and perhaps of"
                " more partitions: start the broker and move its replicas; or accept the loss of records, by an"
                " unclean election of another replica or by deleting the topic",
            )
    work.write(UnregisterBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch))
    work.memories.pop(broker_id, None)
    work.broken.pop(broker_id, None)
    work.liveness.forget(broker_id)
    return GOOD
