"""Fetch: sends records to a consumer as soon as there are `min_bytes` of records, or after `max_wait_ms`.

Buffers of the log, or slices of its files, are sent without a copy. Partitions are read in the order of the request,
and only if the caller may READ the topic. The broker limits the request: `fetch.max.bytes` for the response, and a
minute for the wait. Only consumers (replica id -1) send Fetch, because followers replicate over gRPC streams.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Final, cast

from odradek_broker.access.quotas import FETCH_RATE
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Encoded, Request, ResponseBuffer
from odradek_broker.kafka.requests.administration.brokers import endpoints_of
from odradek_broker.kafka.requests.records.fetch_sessions import Begun, Wanted
from odradek_broker.replication.local_partitions import FetchWant
from odradek_broker.replication.outcomes import ReadOutcome
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import (
    NO_BROKER,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.fetch import (
    PARTITIONS_A_STEP,
    WITH_TOPIC_IDS,
    FetchRequest,
    PartitionData,
    TopicData,
    decode_fetch,
    decode_fetch_steps,
    encode_fetch_steps,
)
from odradek_protocol.kafka.leader_hints import CurrentLeader
from odradek_protocol.kafka.request_decoding import all_steps
from odradek_runtime.clock import monotonic_ms

WAIT_MS_MAX: Final = 60_000
PARTITIONS_AT_ONCE: Final = 256
"""A fetch with more partitions is served in steps, between which the event loop does other work."""
_READ_COMMITTED: Final = 1
_NOT_ALLOWED: Final = ReadOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_UNKNOWN_TOPIC_ID: Final = ReadOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
_INCONSISTENT: Final = ReadOutcome(ErrorCode.INVALID_REQUEST)


@handles(FetchRequest, decode=decode_fetch, decode_in_steps=decode_fetch_steps)
async def fetch(request: Request[FetchRequest]) -> Encoded:
    """Read the partitions. If there are too few records, wait for more and read again."""
    message = request.message
    services = request.services
    beginning = services.fetch_sessions.begin_steps(
        message,
        principal=request.session.principal,
        owner=request.session.owner,
        uses_ids=request.version >= WITH_TOPIC_IDS,
        now_ms=monotonic_ms(),
        may_read=partial(_may_read, request),
    )
    has_many = sum([len(topic.partitions) for topic in message.topics]) > PARTITIONS_AT_ONCE
    begun = await request.pace.run(beginning) if has_many else all_steps(beginning)
    if begun.error is not ErrorCode.NONE:
        return all_steps(_encode_steps(request, begun, [], error=begun.error))
    is_long = len(begun.wanted) > PARTITIONS_AT_ONCE
    outcomes: list[ReadOutcome | None]
    if message.replica_id >= 0:
        outcomes = [_INCONSISTENT] * len(begun.wanted)
    elif is_long:
        outcomes = [_refused(request, wanted) async for wanted in request.in_turns(begun.wanted)]
    else:
        outcomes = [_refused(request, wanted) for wanted in begun.wanted]
    allowed = [
        wanted for wanted, refused in zip(begun.wanted, outcomes, strict=True) if refused is None
    ]
    if is_long:
        wants = [_want(request, wanted) async for wanted in request.in_turns(allowed)]
        await request.pace.turn()
    else:
        wants = [_want(request, wanted) for wanted in allowed]
    bytes_max = max(0, min(message.bytes_max, services.settings.fetch_bytes_max))
    if services.unsent.total_bytes:
        bytes_max = services.unsent.room_for(bytes_max)
    wait_ms = max(0, min(message.wait_ms_max, WAIT_MS_MAX))
    if len(wants) < len(outcomes):
        wait_ms = 0  # a partition was refused, and an error must be reported at once
    this_fetch = object()
    try:
        read = (
            await services.partitions.fetch(
                wants,
                bytes_min=max(0, min(message.bytes_min, bytes_max)),
                bytes_max=bytes_max,
                wait_ms_max=wait_ms,
                read_committed=message.isolation_level == _READ_COMMITTED,
                client_rack=message.rack,
                # A slice of a file must be sent immediately after the lease check. A long response is sent later,
                # because it is encoded in steps.
                may_send_files=not request.session.is_encrypted and not is_long,
                pace=request.pace if is_long else None,
                hold=partial(services.unsent.hold, this_fetch),
            )
            if wants
            else ()
        )
        reads = iter(zip(wants, read, strict=True))
        steps = _encode_steps(
            request,
            begun,
            [(None, outcome) if outcome is not None else next(reads) for outcome in outcomes],
        )
        return await request.pace.run(steps) if is_long else all_steps(steps)
    finally:
        services.unsent.hold(this_fetch, 0)  # from now on the connection counts the bytes


def _may_read(request: AnyRequest, wanted: Wanted) -> bool:
    """Return whether a fetch session may contain the partition, because the caller may read the topic. A topic that
    does not exist yet is accepted.
    """
    if not request.services.authorizer.is_on:
        return True
    name = wanted.name
    if name is None:
        topic = request.services.image.topics.get(wanted.topic_id)
        return topic is None or request.sees(Operation.READ, ResourceType.TOPIC, topic.name)
    return request.sees(Operation.READ, ResourceType.TOPIC, name)


def _refused(request: AnyRequest, wanted: Wanted) -> ReadOutcome | None:
    name = wanted.name
    if name is None:
        topic = request.services.image.topics.get(wanted.topic_id)
        if topic is None:
            return _UNKNOWN_TOPIC_ID
        name = topic.name
        if not request.allows_topic(Operation.READ, name):
            # A caller that may not describe the topic gets the same error as for a topic that does not exist.
            return (
                _NOT_ALLOWED
                if request.sees(Operation.DESCRIBE, ResourceType.TOPIC, name)
                else _UNKNOWN_TOPIC_ID
            )
        return None
    return None if request.allows_topic(Operation.READ, name) else _NOT_ALLOWED


def _want(request: AnyRequest, wanted: Wanted) -> FetchWant:
    partition = wanted.partition
    return FetchWant(
        partition=request.services.partitions.find(*wanted.key),
        offset=Offset(partition.offset),
        bytes_max=max(0, partition.bytes_max),
        current_leader_epoch=LeaderEpoch(partition.current_leader_epoch),
        last_fetched_epoch=LeaderEpoch(partition.last_fetched_epoch),
    )


def _encode_steps(
    request: AnyRequest,
    begun: Begun,
    outcomes: Sequence[tuple[FetchWant | None, ReadOutcome]],
    *,
    error: ErrorCode = ErrorCode.NONE,
) -> Generator[None, None, Encoded]:
    """Encode the response. An incremental response contains only partitions with changes.

    `gate_read` replaces an outcome by an error if the lease has expired or the leader epoch has changed. It is called
    here, as late as possible before the response is sent.
    """
    topics: dict[TopicName | TopicId, tuple[Wanted, list[PartitionData]]] = {}
    leaders: list[CurrentLeader] = []
    size_bytes = 0
    for number, (wanted, (want, outcome)) in enumerate(zip(begun.wanted, outcomes, strict=True), 1):
        if not number % PARTITIONS_A_STEP:
            yield
        topic, index = wanted.key
        if want is not None and not isinstance(want.partition, ErrorCode):
            outcome = want.partition.gate_read(outcome)
        size_bytes += outcome.size_bytes
        if begun.session is not None:
            belongs = begun.session.note_response(
                wanted.key,
                error=outcome.error,
                high_watermark=outcome.high_watermark,
                log_start_offset=outcome.log_start_offset,
                has_records=outcome.size_bytes > 0,
                says_more=outcome.preferred_read_replica != NO_BROKER
                or outcome.diverging is not None,
            )
            if not belongs and begun.is_incremental:
                continue
        leader = None
        if outcome.error and outcome.error.leader_moved:
            now = request.services.partitions.leader_of(topic, index)
            leader = CurrentLeader(now.broker_id, now.leader_epoch)
            leaders.append(leader)
        topics.setdefault(topic, (wanted, []))[1].append(_data(index, outcome, leader))
    request.throttle_ms = request.services.quotas.throttle_ms(
        FETCH_RATE, request.session.principal, request.client_id, size_bytes
    )
    buffers, size = yield from encode_fetch_steps(
        request.version,
        [TopicData(topic.name, topic.topic_id, data) for topic, data in topics.values()],
        throttle_ms=request.throttle_ms,
        error_code=error,
        session_id=begun.session.id if begun.session is not None else 0,
        endpoints=endpoints_of(request, leaders) if leaders else (),
    )
    # The encoder uses only the sizes of the buffers, so its return type does not contain their type.
    return Encoded(tuple(cast("list[ResponseBuffer]", buffers)), size)


def _data(index: int, outcome: ReadOutcome, leader: CurrentLeader | None) -> PartitionData:
    aborted = outcome.aborted
    return PartitionData(
        index,
        outcome.error,
        outcome.high_watermark,
        outcome.last_stable_offset,
        outcome.log_start_offset,
        None if aborted is None else [(txn.producer_id, txn.first_offset) for txn in aborted],
        outcome.preferred_read_replica,
        outcome.records if outcome.file_slice is None else (outcome.file_slice,),
        outcome.size_bytes,
        leader,
        outcome.diverging,
    )
