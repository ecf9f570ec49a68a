"""The RPCs that the SDK calls, as proto/odradek/v1/*_service.proto defines them."""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import Message

from odradek.cluster.transport import Method, MethodKind
from odradek_protocol.record_messages import FetchedPartitions, decode_fetch_response
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin
from odradek_protocol.rpc.v1 import auth_service_pb2 as auth
from odradek_protocol.rpc.v1 import broker_service_pb2 as broker
from odradek_protocol.rpc.v1 import group_service_pb2 as group
from odradek_protocol.rpc.v1 import staged_write_service_pb2 as staged
from odradek_protocol.rpc.v1 import transaction_service_pb2 as transaction

AUTH_SERVICE: Final = "odradek.v1.AuthService"
BROKER_SERVICE: Final = "odradek.v1.BrokerService"
ADMIN_SERVICE: Final = "odradek.v1.AdminService"
GROUP_SERVICE: Final = "odradek.v1.GroupService"
TRANSACTION_SERVICE: Final = "odradek.v1.TransactionService"
STAGED_WRITE_SERVICE: Final = "odradek.v1.StagedWriteService"

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


def _method(
    service: str, name: str, request: type[Q], response: type[R], kind: MethodKind
) -> Method[Q, R]:
    return Method(
        service=service,
        name=name,
        kind=kind,
        encode=request.SerializeToString,
        decode=response.FromString,
    )


def _broker_call(name: str, request: type[Q], response: type[R]) -> Method[Q, R]:
    return _method(BROKER_SERVICE, name, request, response, MethodKind.UNARY)


def admin_call(name: str, request: type[Q], response: type[R]) -> Method[Q, R]:
    """Return a unary method of the AdminService."""
    return _method(ADMIN_SERVICE, name, request, response, MethodKind.UNARY)


def _group_call(name: str, request: type[Q], response: type[R]) -> Method[Q, R]:
    return _method(GROUP_SERVICE, name, request, response, MethodKind.UNARY)


def _transaction_call(name: str, request: type[Q], response: type[R]) -> Method[Q, R]:
    return _method(TRANSACTION_SERVICE, name, request, response, MethodKind.UNARY)


def _staged_call(name: str, request: type[Q], response: type[R]) -> Method[Q, R]:
    return _method(STAGED_WRITE_SERVICE, name, request, response, MethodKind.UNARY)


AUTHENTICATE: Final = _method(
    AUTH_SERVICE,
    "Authenticate",
    auth.AuthenticateRequest,
    auth.AuthenticateResponse,
    MethodKind.UNARY,
)
PRODUCE: Final = _method(
    BROKER_SERVICE, "Produce", broker.ProduceRequest, broker.ProduceResponse, MethodKind.BIDI
)
FETCH: Final[Method[broker.FetchRequest, FetchedPartitions]] = Method(
    service=BROKER_SERVICE,
    name="Fetch",
    kind=MethodKind.BIDI,
    encode=broker.FetchRequest.SerializeToString,
    decode=decode_fetch_response,
)
WATCH_METADATA: Final = _method(
    BROKER_SERVICE,
    "WatchMetadata",
    broker.WatchMetadataRequest,
    broker.WatchMetadataResponse,
    MethodKind.SERVER_STREAM,
)
METADATA: Final = _broker_call("Metadata", broker.MetadataRequest, broker.MetadataResponse)
LIST_OFFSETS: Final = _broker_call(
    "ListOffsets", broker.ListOffsetsRequest, broker.ListOffsetsResponse
)
OFFSET_FOR_LEADER_EPOCH: Final = _broker_call(
    "OffsetForLeaderEpoch", broker.OffsetForLeaderEpochRequest, broker.OffsetForLeaderEpochResponse
)
INIT_PRODUCER_ID: Final = _broker_call(
    "InitProducerId", broker.InitProducerIdRequest, broker.InitProducerIdResponse
)

CREATE_TOPICS: Final = admin_call(
    "CreateTopics", admin.CreateTopicsRequest, admin.CreateTopicsResponse
)
DELETE_TOPICS: Final = admin_call(
    "DeleteTopics", admin.DeleteTopicsRequest, admin.DeleteTopicsResponse
)
CREATE_PARTITIONS: Final = admin_call(
    "CreatePartitions", admin.CreatePartitionsRequest, admin.CreatePartitionsResponse
)
DESCRIBE_CONFIGS: Final = admin_call(
    "DescribeConfigs", admin.DescribeConfigsRequest, admin.DescribeConfigsResponse
)
ALTER_CONFIGS: Final = admin_call(
    "AlterConfigs", admin.AlterConfigsRequest, admin.AlterConfigsResponse
)
ELECT_LEADERS: Final = admin_call(
    "ElectLeaders", admin.ElectLeadersRequest, admin.ElectLeadersResponse
)
ALTER_PARTITION_REASSIGNMENTS: Final = admin_call(
    "AlterPartitionReassignments",
    admin.AlterPartitionReassignmentsRequest,
    admin.AlterPartitionReassignmentsResponse,
)
DELETE_RECORDS: Final = admin_call(
    "DeleteRecords", admin.DeleteRecordsRequest, admin.DeleteRecordsResponse
)
CREATE_ACLS: Final = admin_call("CreateAcls", admin.CreateAclsRequest, admin.CreateAclsResponse)
DELETE_ACLS: Final = admin_call("DeleteAcls", admin.DeleteAclsRequest, admin.DeleteAclsResponse)
DESCRIBE_ACLS: Final = admin_call(
    "DescribeAcls", admin.DescribeAclsRequest, admin.DescribeAclsResponse
)
ALTER_SCRAM_USERS: Final = admin_call(
    "AlterScramUsers", admin.AlterScramUsersRequest, admin.AlterScramUsersResponse
)
DESCRIBE_SCRAM_USERS: Final = admin_call(
    "DescribeScramUsers", admin.DescribeScramUsersRequest, admin.DescribeScramUsersResponse
)
ALTER_QUOTAS: Final = admin_call("AlterQuotas", admin.AlterQuotasRequest, admin.AlterQuotasResponse)
DESCRIBE_QUOTAS: Final = admin_call(
    "DescribeQuotas", admin.DescribeQuotasRequest, admin.DescribeQuotasResponse
)
UNREGISTER_BROKER: Final = admin_call(
    "UnregisterBroker", admin.UnregisterBrokerRequest, admin.UnregisterBrokerResponse
)
DESCRIBE_CLUSTER: Final = admin_call(
    "DescribeCluster", admin.DescribeClusterRequest, admin.DescribeClusterResponse
)
DESCRIBE_QUORUM: Final = admin_call(
    "DescribeMetadataQuorum",
    admin.DescribeMetadataQuorumRequest,
    admin.DescribeMetadataQuorumResponse,
)
DESCRIBE_LOG_DIRS: Final = admin_call(
    "DescribeLogDirs", admin.DescribeLogDirsRequest, admin.DescribeLogDirsResponse
)
UPDATE_FEATURES: Final = admin_call(
    "UpdateFeatures", admin.UpdateFeaturesRequest, admin.UpdateFeaturesResponse
)
DESCRIBE_FEATURES: Final = admin_call(
    "DescribeFeatures", admin.DescribeFeaturesRequest, admin.DescribeFeaturesResponse
)
GROUP_HEARTBEAT: Final = _group_call(
    "GroupHeartbeat", group.GroupHeartbeatRequest, group.GroupHeartbeatResponse
)
GROUP_COMMIT: Final = _group_call(
    "CommitOffsets", group.CommitOffsetsRequest, group.CommitOffsetsResponse
)
GROUP_FETCH: Final = _group_call(
    "FetchOffsets", group.FetchOffsetsRequest, group.FetchOffsetsResponse
)
LIST_GROUPS: Final = _group_call("ListGroups", group.ListGroupsRequest, group.ListGroupsResponse)
DESCRIBE_GROUPS: Final = _group_call(
    "DescribeGroups", group.DescribeGroupsRequest, group.DescribeGroupsResponse
)
DELETE_GROUPS: Final = _group_call(
    "DeleteGroups", group.DeleteGroupsRequest, group.DeleteGroupsResponse
)
DELETE_OFFSETS: Final = _group_call(
    "DeleteOffsets", group.DeleteOffsetsRequest, group.DeleteOffsetsResponse
)
INIT_PRODUCER: Final = _transaction_call(
    "InitProducer", transaction.InitProducerRequest, transaction.InitProducerResponse
)
END_TRANSACTION: Final = _transaction_call(
    "EndTransaction", transaction.EndTransactionRequest, transaction.EndTransactionResponse
)
COMMIT_TRANSACTION_OFFSETS: Final = _transaction_call(
    "CommitTransactionOffsets",
    transaction.CommitTransactionOffsetsRequest,
    transaction.CommitTransactionOffsetsResponse,
)
LIST_TRANSACTIONS: Final = _transaction_call(
    "ListTransactions", transaction.ListTransactionsRequest, transaction.ListTransactionsResponse
)
DESCRIBE_TRANSACTIONS: Final = _transaction_call(
    "DescribeTransactions",
    transaction.DescribeTransactionsRequest,
    transaction.DescribeTransactionsResponse,
)
ABORT_TRANSACTION: Final = _transaction_call(
    "AbortTransaction", transaction.AbortTransactionRequest, transaction.AbortTransactionResponse
)
DESCRIBE_PRODUCERS: Final = _transaction_call(
    "DescribeProducers",
    transaction.DescribeProducersRequest,
    transaction.DescribeProducersResponse,
)
FIND_HANGING: Final = _transaction_call(
    "FindHanging", transaction.FindHangingRequest, transaction.FindHangingResponse
)
ABORT_HANGING: Final = _transaction_call(
    "AbortHanging", transaction.AbortHangingRequest, transaction.AbortHangingResponse
)
OPEN_STAGED: Final = _staged_call("OpenStaged", staged.OpenStagedRequest, staged.OpenStagedResponse)
RENEW_STAGED: Final = _staged_call(
    "RenewStaged", staged.RenewStagedRequest, staged.RenewStagedResponse
)
PREPARE_STAGED: Final = _staged_call(
    "PrepareStaged", staged.PrepareStagedRequest, staged.PrepareStagedResponse
)
COMPLETE_STEP: Final = _staged_call(
    "CompleteStep", staged.CompleteStepRequest, staged.CompleteStepResponse
)
ABORT_STAGED: Final = _staged_call(
    "AbortStaged", staged.AbortStagedRequest, staged.AbortStagedResponse
)
DESCRIBE_STEPS: Final = _staged_call(
    "DescribeSteps", staged.DescribeStepsRequest, staged.DescribeStepsResponse
)
FORGET_STEPS: Final = _staged_call(
    "ForgetSteps", staged.ForgetStepsRequest, staged.ForgetStepsResponse
)
