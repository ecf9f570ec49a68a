"""Transactional requests: which error codes clients of each version get, and when the requests are
served at all.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.transaction_coordinator import OutdatedConnection
from odradek_broker.groups.messages import OffsetsAnswer
from odradek_broker.kafka.registry import Registry, load_handlers
from odradek_broker.kafka.request import CloseConnection
from odradek_broker.transactions.messages import Added, Ended, Initialized
from odradek_protocol.identity import MetadataOffset, PartitionIndex, TopicName, TopicPartition
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from odradek_protocol.metadata.features import OWN_MAXIMA
from odradek_protocol.metadata.records import FeatureLevel
from tests.unit.kafka import fake_broker

TRANSACTIONAL = (
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
)


def with_transactions(level: int = 2, *, knows: bool = True) -> Any:
    """Return the services of a broker; if `knows` is set, its registration lists
    transaction.version.
    """
    served = fake_broker.services()
    image = served.image
    image.replay(
        MetadataOffset(image.offset + 1), 1, FeatureLevel(name="transaction.version", level=level)
    )
    features = OWN_MAXIMA if knows else (("metadata.version", 2),)
    for broker_id, broker in image.brokers.items():
        image.brokers[broker_id] = replace(broker, features=features)
    return served


async def ask(key: ApiKey, version: int, message: Any, response: Any) -> Any:
    """Handle a request while the transaction coordinator returns or raises `response`."""
    served = with_transactions()

    async def respond(*_: Any, **__: Any) -> Any:
        if isinstance(response, Exception):
            raise response
        return response

    for name in ("init_producer", "add_partitions", "end_transaction"):
        setattr(served.transactions, name, respond)
    served.transactional_offsets.commit = respond
    request = fake_broker.request(served, key, version, message)
    return await load_handlers()[key].handle(request)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("level", "knows", "is_served"),
    [(0, True, False), (1, True, True), (2, True, True), (2, False, False)],
)
def test_transactions_are_served_while_every_broker_takes_part(
    level: int, knows: bool, is_served: bool
) -> None:
    registry = Registry(with_transactions(level, knows=knows))
    advertised = {key for key, _, _ in registry.advertised()}
    for key in TRANSACTIONAL:
        assert (registry.find(key, SUPPORTED[key].highest) is not None) is is_served
        assert (key in advertised) is is_served


@pytest.mark.parametrize(
    ("version", "code", "seen"),
    [
        (3, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, ErrorCode.PRODUCER_FENCED, ErrorCode.PRODUCER_FENCED),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (5, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_init_producer_id_speaks_the_clients_version(
    version: int, code: ErrorCode, seen: ErrorCode
) -> None:
    message = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1_000)
    response = await ask(ApiKey.INIT_PRODUCER_ID, version, message, Initialized(error=code))
    assert response.error_code == seen


@pytest.mark.parametrize(
    ("version", "code", "seen"),
    [
        (1, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, ErrorCode.PRODUCER_FENCED, ErrorCode.PRODUCER_FENCED),
        (3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_end_txn_speaks_the_clients_version(
    version: int, code: ErrorCode, seen: ErrorCode
) -> None:
    message = EndTxnRequest(transactional_id="tx", producer_id=5, producer_epoch=0, committed=True)
    response = await ask(ApiKey.END_TXN, version, message, Ended(error=code))
    assert response.error_code == seen


async def test_one_bad_partition_leaves_the_others_unattempted() -> None:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    message = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=5,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[
            topic(name="orders", partitions=[0, 99]),
            topic(name="__consumer_offsets", partitions=[0]),
        ],
    )
    response = await ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, message, Added())
    codes = {
        (result.name, partition.partition_index): partition.partition_error_code
        for result in response.results_by_topic_v3_and_below
        for partition in result.results_by_partition
    }
    assert codes == {
        ("orders", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("orders", 99): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("__consumer_offsets", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }


@pytest.mark.parametrize("version", [5, 6])
async def test_offsets_are_committed_for_topics_by_name_and_later_by_id(version: int) -> None:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition
    message = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        producer_id=5,
        producer_epoch=0,
        topics=[
            topic(
                name=name,
                topic_id=topic_id,
                partitions=[partition(partition_index=i, committed_offset=7) for i in (0, 99)],
            )
            for name, topic_id in (("orders", fake_broker.TOPICS["orders"]), ("no", b"?" * 16))
        ],
    )
    orders = TopicPartition(TopicName("orders"), PartitionIndex(0))
    response = await ask(
        ApiKey.TXN_OFFSET_COMMIT,
        version,
        message,
        OffsetsAnswer(partitions={orders: ErrorCode.OFFSET_METADATA_TOO_LARGE}),
    )
    codes = [[item.error_code for item in topic.partitions] for topic in response.topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 6 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    out_of_range = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[ErrorCode.OFFSET_METADATA_TOO_LARGE, out_of_range], [unknown, unknown]]
    assert response.topics[0].topic_id == uuid.UUID(bytes=b"o" * 16)


@pytest.mark.parametrize(
    ("version", "seen"), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.STALE_MEMBER_EPOCH)]
)
async def test_an_old_epoch_of_a_member_is_named_as_the_client_knows_it(
    version: int, seen: ErrorCode
) -> None:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    item = topic.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    orders = topic(name="orders", topic_id=fake_broker.TOPICS["orders"], partitions=[item])
    message = TxnOffsetCommitRequest(transactional_id="tx", group_id="g", topics=[orders])
    stale = OffsetsAnswer(error=ErrorCode.STALE_MEMBER_EPOCH)
    response = await ask(ApiKey.TXN_OFFSET_COMMIT, version, message, stale)
    assert response.topics[0].partitions[0].error_code == seen


async def test_a_request_over_an_outdated_connection_closes_it() -> None:
    message = EndTxnRequest(transactional_id="tx", producer_id=5, producer_epoch=0, committed=True)
    with pytest.raises(CloseConnection, match="later"):
        await ask(ApiKey.END_TXN, 3, message, OutdatedConnection("a later connection"))


async def test_a_broker_that_does_not_coordinate_the_id_says_so() -> None:
    message = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1_000)
    refused = CoordinatorError(ErrorCode.NOT_COORDINATOR)
    response = await ask(ApiKey.INIT_PRODUCER_ID, 5, message, refused)
    assert response.error_code == ErrorCode.NOT_COORDINATOR


async def test_an_empty_transactional_id_is_refused() -> None:
    message = FindCoordinatorRequest(key_type=1, coordinator_keys=[""])
    response = await ask(ApiKey.FIND_COORDINATOR, 6, message, None)
    assert response.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
    init = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1_000)
    response = await ask(ApiKey.INIT_PRODUCER_ID, 5, init, Initialized())
    assert response.error_code == ErrorCode.INVALID_REQUEST
