"""Checks every RPC with every right: the listener refuses a caller without the right, and admits a caller that has only
this right.

The tests use a real gRPC server whose services respond to every call, so any response shows that
the call was admitted.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from odradek_broker.access.authorizer import AclAuthorizer
from odradek_broker.access.grpc_sessions import GrpcSessions
from odradek_broker.access.rights import CHECKED_BY_SERVICERS
from odradek_broker.rpc.authorization import Authorization
from odradek_broker.rpc.callers import Callers
from odradek_protocol.access import (
    CLUSTER_NAME,
    Operation,
    ResourceType,
)
from odradek_protocol.rpc.v1 import (
    admin_service_pb2,
    broker_service_pb2,
    group_service_pb2,
    staged_write_service_pb2,
    transaction_service_pb2,
)
from tests.unit.security.acl_entries import Right, entries_for

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (broker_service_pb2, "BrokerService"),
        (admin_service_pb2, "AdminService"),
        (group_service_pb2, "GroupService"),
        (transaction_service_pb2, "TransactionService"),
        (staged_write_service_pb2, "StagedWriteService"),
    )
]
METHODS: Final = {m.name: m for service in SERVICES for m in service.methods}


def cluster(operation: Operation) -> list[Right]:
    return [(operation, CLUSTER, CLUSTER_NAME)]


def topic(operation: Operation, name: str = "orders") -> list[Right]:
    return [(operation, TOPIC, name)]


def group(operation: Operation) -> list[Right]:
    return [(operation, GROUP, "group")]


def transactional_id(operation: Operation) -> list[Right]:
    return [(operation, ResourceType.TRANSACTIONAL_ID, "tx")]


PARTITION: Final = {"topic": "orders", "partition": 0}
MATRIX: Final[dict[str, tuple[dict[str, Any], list[Right]]]] = {
    "ListOffsets": ({"partitions": [PARTITION]}, topic(Operation.DESCRIBE)),
    "OffsetForLeaderEpoch": ({"partitions": [PARTITION]}, topic(Operation.DESCRIBE)),
    "InitProducerId": ({}, cluster(Operation.IDEMPOTENT_WRITE)),
    "CreateTopics": ({"topics": [{"name": "new"}]}, topic(Operation.CREATE, "new")),
    "DeleteTopics": ({"names": ["orders"]}, topic(Operation.DELETE)),
    "CreatePartitions": ({"topics": [{"name": "orders"}]}, topic(Operation.ALTER)),
    "DescribeConfigs": (
        {
            "resources": [
                {"type": 2, "name": "orders"},
                {"type": 4, "name": "1"},
                {"type": 32, "name": "group"},
            ]
        },
        [
            *topic(Operation.DESCRIBE_CONFIGS),
            *cluster(Operation.DESCRIBE_CONFIGS),
            *group(Operation.DESCRIBE_CONFIGS),
        ],
    ),
    "AlterConfigs": (
        {
            "resources": [
                {"type": 2, "name": "orders"},
                {"type": 4, "name": "1"},
                {"type": 32, "name": "group"},
            ]
        },
        [
            *topic(Operation.ALTER_CONFIGS),
            *cluster(Operation.ALTER_CONFIGS),
            *group(Operation.ALTER_CONFIGS),
        ],
    ),
    "ElectLeaders": ({}, cluster(Operation.ALTER)),
    "AlterPartitionReassignments": ({}, cluster(Operation.ALTER)),
    "DeleteRecords": ({"partitions": [{"partition": PARTITION}]}, topic(Operation.DELETE)),
    "CreateAcls": ({}, cluster(Operation.ALTER)),
    "DeleteAcls": ({}, cluster(Operation.ALTER)),
    "DescribeAcls": ({}, cluster(Operation.DESCRIBE)),
    "AlterScramUsers": ({}, cluster(Operation.ALTER)),
    "DescribeScramUsers": ({}, cluster(Operation.DESCRIBE)),
    "AlterQuotas": ({}, cluster(Operation.ALTER_CONFIGS)),
    "DescribeQuotas": ({}, cluster(Operation.DESCRIBE_CONFIGS)),
    "UnregisterBroker": ({}, cluster(Operation.ALTER)),
    "DescribeCluster": ({}, []),
    "DescribeMetadataQuorum": ({}, cluster(Operation.DESCRIBE)),
    "DescribeLogDirs": ({}, cluster(Operation.DESCRIBE)),
    "UpdateFeatures": ({}, cluster(Operation.ALTER)),
    "DescribeFeatures": ({}, cluster(Operation.DESCRIBE)),
    "GroupHeartbeat": (
        {"group_id": "group", "subscribed_topics": ["orders"]},
        [*group(Operation.READ), *topic(Operation.DESCRIBE)],
    ),
    "CommitOffsets": (
        {"group_id": "group", "offsets": [{"partition": PARTITION}]},
        [*group(Operation.READ), *topic(Operation.READ)],
    ),
    "FetchOffsets": (
        {"group_id": "group", "partitions": [PARTITION]},
        [*group(Operation.DESCRIBE), *topic(Operation.DESCRIBE)],
    ),
    "ListGroups": ({}, []),  # leaves out what may not be described
    "DescribeGroups": ({"group_ids": ["group"]}, group(Operation.DESCRIBE)),
    "DeleteGroups": ({"group_ids": ["group"]}, group(Operation.DELETE)),
    "DeleteOffsets": (
        {"group_id": "group", "partitions": [PARTITION]},
        [*group(Operation.DELETE), *topic(Operation.READ)],
    ),
    "InitProducer": ({"transactional_id": "tx"}, transactional_id(Operation.WRITE)),
    "EndTransaction": ({"transactional_id": "tx"}, transactional_id(Operation.WRITE)),
    "CommitTransactionOffsets": (
        {
            "transactional_id": "tx",
            "commit": {"group_id": "group", "offsets": [{"partition": PARTITION}]},
        },
        [*transactional_id(Operation.WRITE), *group(Operation.READ), *topic(Operation.READ)],
    ),
    "AbortTransaction": ({"transactional_id": "tx"}, transactional_id(Operation.WRITE)),
    **{
        name: ({"query": "tx"}, transactional_id(Operation.WRITE))
        for name in (
            *("OpenStaged", "RenewStaged", "PrepareStaged"),
            *("CompleteStep", "AbortStaged", "ForgetSteps"),
        )
    },
    "DescribeProducers": ({"topic": "orders"}, topic(Operation.READ)),
    "FindHanging": ({}, []),  # leaves out what may not be described
    "AbortHanging": ({"topic": "orders"}, cluster(Operation.ALTER)),
    "DescribeSteps": ({"query": "tx"}, transactional_id(Operation.DESCRIBE)),
    "ListTransactions": ({}, []),  # leaves out what may not be described
    "DescribeTransactions": (
        {"transactional_ids": ["tx"]},
        transactional_id(Operation.DESCRIBE),
    ),
}
GUARDED: Final = [name for name, (_, rights) in MATRIX.items() if rights]


@dataclass
class Everything:
    """A server with every unary RPC; `answers` has the responses that are not empty messages."""

    endpoint: str
    authorizer: AclAuthorizer
    answers: dict[str, Message]

    async def ask(self, name: str, **fields: Any) -> Any:
        """Call the RPC as an anonymous client."""
        method = METHODS[name]
        request = GetMessageClass(method.input_type)(**fields)
        path = f"/{method.containing_service.full_name}/{name}"
        async with grpc.aio.insecure_channel(self.endpoint) as channel:
            call: Any = channel.unary_unary(
                path,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            return await call(request, timeout=10)

    async def is_refused(self, name: str, rights: list[Right]) -> bool:
        self.authorizer.entries_changed(entries_for("User:ANONYMOUS", rights))
        try:
            await self.ask(name, **MATRIX[name][0])
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                return True
            raise
        return False


@pytest.fixture
async def server() -> AsyncIterator[Everything]:
    authorizer = AclAuthorizer()
    callers = Callers(authorizer, GrpcSessions(dict, lifetime_ms=1), listener="GRPC")
    made = grpc.aio.server(interceptors=[Authorization(callers)])
    answers: dict[str, Message] = {}
    for service in SERVICES:
        handlers = {
            m.name: _handler(m, answers)
            for m in service.methods
            if not (m.client_streaming or m.server_streaming)
        }
        made.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service.full_name, handlers),)
        )
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    with contextlib.ExitStack() as stack:
        stack.callback(answers.clear)
        yield Everything(f"127.0.0.1:{port}", authorizer, answers)
    await made.stop(0)


def _handler(method: Any, answers: dict[str, Message]) -> Any:
    async def answer(_request: Any, _context: Any) -> Message:
        answer = GetMessageClass(method.output_type)()
        if method.name in answers:
            answer.CopyFrom(answers[method.name])
        return answer

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def test_the_matrix_has_every_method() -> None:
    by_servicers = {path.rpartition("/")[2] for path in CHECKED_BY_SERVICERS}
    assert set(METHODS) == set(MATRIX) | by_servicers


@pytest.mark.parametrize("name", GUARDED)
async def test_who_has_no_right_is_refused_and_audited(
    server: Everything, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await server.is_refused(name, [])
    [told] = [r.odradek_fields for r in caplog.records if r.name == "odradek_broker.audit"]  # type: ignore[attr-defined]
    assert told["principal"] == "User:ANONYMOUS"
    assert told["host"] == "127.0.0.1"
    assert told["request"].endswith("/" + name)
    assert MATRIX[name][1][0][0].name in told["needs"]


@pytest.mark.parametrize("name", list(MATRIX))
async def test_who_has_just_the_right_ones_is_not(server: Everything, name: str) -> None:
    assert not await server.is_refused(name, MATRIX[name][1])


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        pytest.param(name, number, id=f"{name}-{MATRIX[name][1][number][1].name}")
        for name in GUARDED
        for number in range(len(MATRIX[name][1]))
    ],
)
async def test_each_right_of_several_is_needed(server: Everything, name: str, missing: int) -> None:
    rights = [one for number, one in enumerate(MATRIX[name][1]) if number != missing]
    assert await server.is_refused(name, rights)


async def test_what_may_not_be_described_is_left_out_of_lists(server: Everything) -> None:
    server.answers["ListGroups"] = group_service_pb2.ListGroupsResponse(
        groups=[{"group_id": "group"}, {"group_id": "secret"}]
    )
    server.answers["FetchOffsets"] = group_service_pb2.FetchOffsetsResponse(
        offsets=[{"partition": PARTITION}, {"partition": {"topic": "secret"}}]
    )
    server.authorizer.entries_changed(
        entries_for("User:ANONYMOUS", [*group(Operation.DESCRIBE), *topic(Operation.DESCRIBE)])
    )
    server.answers["ListTransactions"] = transaction_service_pb2.ListTransactionsResponse(
        transactions=[{"transactional_id": "tx"}]
    )
    assert not (await server.ask("ListTransactions")).transactions
    listed = await server.ask("ListGroups")
    assert [one.group_id for one in listed.groups] == ["group"]
    offsets = await server.ask("FetchOffsets", group_id="group")
    assert [one.partition.topic for one in offsets.offsets] == ["orders"]
    server.authorizer.entries_changed(entries_for("User:ANONYMOUS", cluster(Operation.DESCRIBE)))
    assert len((await server.ask("ListGroups")).groups) == 2


async def test_a_method_that_no_rule_knows_is_refused(
    server: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek_broker.access.rights import RULES

    monkeypatch.delitem(RULES, "/odradek.v1.AdminService/DescribeCluster")
    assert await server.is_refused("DescribeCluster", cluster(Operation.ALL))
