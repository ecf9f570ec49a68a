"""Which right an API needs, for the APIs whose every request needs the same one.

`GUARDS` is the table that both wires read. Its rows need a right on the cluster, or on the group that the request
names; the listeners check them before a handler sees the request. Rights that depend on what else a request names
(topics, configs) are checked by the Kafka handlers, and on gRPC by the rules of `grpc_rights`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from odradek_protocol.access import CLUSTER_NAME, Operation, ResourceType
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode


class Guard(NamedTuple):
    """The right that every request of an API needs, on Kafka's wire (`api`), on gRPC (`rpc`), or on both."""

    operation: Operation
    resource_type: ResourceType
    api: ApiKey | None
    rpc: str | None

    def resource_name(self, request: object) -> str:
        """The name of the resource: requests of both wires that are about one group have it in `group_id`."""
        if self.resource_type is ResourceType.CLUSTER:
            return CLUSTER_NAME
        name: str = getattr(request, "group_id")  # noqa: B009  (the messages share no type)
        return name

    @property
    def error(self) -> ErrorCode:
        """The code of a refusal."""
        if self.resource_type is ResourceType.CLUSTER:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ErrorCode.GROUP_AUTHORIZATION_FAILED


_ADMIN: Final = "/odradek.v1.AdminService/"
_GROUPS: Final = "/odradek.v1.GroupService/"
_CLUSTER: Final = ResourceType.CLUSTER
_GROUP: Final = ResourceType.GROUP

GUARDS: Final = (
    Guard(Operation.ALTER, _CLUSTER, ApiKey.ELECT_LEADERS, _ADMIN + "ElectLeaders"),
    Guard(
        Operation.ALTER,
        _CLUSTER,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        _ADMIN + "AlterPartitionReassignments",
    ),
    Guard(Operation.DESCRIBE, _CLUSTER, ApiKey.LIST_PARTITION_REASSIGNMENTS, None),
    Guard(Operation.ALTER, _CLUSTER, ApiKey.UNREGISTER_BROKER, _ADMIN + "UnregisterBroker"),
    Guard(Operation.DESCRIBE, _CLUSTER, ApiKey.DESCRIBE_QUORUM, _ADMIN + "DescribeMetadataQuorum"),
    Guard(Operation.DESCRIBE, _CLUSTER, ApiKey.DESCRIBE_LOG_DIRS, _ADMIN + "DescribeLogDirs"),
    Guard(Operation.ALTER, _CLUSTER, ApiKey.UPDATE_FEATURES, _ADMIN + "UpdateFeatures"),
    Guard(Operation.DESCRIBE, _CLUSTER, None, _ADMIN + "DescribeFeatures"),
    Guard(Operation.ALTER, _CLUSTER, ApiKey.CREATE_ACLS, _ADMIN + "CreateAcls"),
    Guard(Operation.ALTER, _CLUSTER, ApiKey.DELETE_ACLS, _ADMIN + "DeleteAcls"),
    Guard(Operation.DESCRIBE, _CLUSTER, ApiKey.DESCRIBE_ACLS, _ADMIN + "DescribeAcls"),
    Guard(
        Operation.ALTER, _CLUSTER, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _ADMIN + "AlterScramUsers"
    ),
    Guard(
        Operation.DESCRIBE,
        _CLUSTER,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        _ADMIN + "DescribeScramUsers",
    ),
    Guard(Operation.ALTER_CONFIGS, _CLUSTER, ApiKey.ALTER_CLIENT_QUOTAS, _ADMIN + "AlterQuotas"),
    Guard(
        Operation.DESCRIBE_CONFIGS,
        _CLUSTER,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        _ADMIN + "DescribeQuotas",
    ),
    Guard(Operation.DESCRIBE_CONFIGS, _CLUSTER, ApiKey.LIST_CONFIG_RESOURCES, None),
    Guard(Operation.READ, _GROUP, ApiKey.JOIN_GROUP, None),
    Guard(Operation.READ, _GROUP, ApiKey.SYNC_GROUP, None),
    Guard(Operation.READ, _GROUP, ApiKey.HEARTBEAT, None),
    Guard(Operation.READ, _GROUP, ApiKey.LEAVE_GROUP, None),
    # ConsumerGroupHeartbeat says UNSUPPORTED_VERSION first while the cluster's feature level is too low.
    Guard(Operation.READ, _GROUP, None, _GROUPS + "GroupHeartbeat"),
    Guard(Operation.READ, _GROUP, ApiKey.OFFSET_COMMIT, _GROUPS + "CommitOffsets"),
    Guard(Operation.DESCRIBE, _GROUP, None, _GROUPS + "FetchOffsets"),
    Guard(Operation.DELETE, _GROUP, ApiKey.OFFSET_DELETE, _GROUPS + "DeleteOffsets"),
)
"""One row for an API of Kafka's and the RPC of ours that does the same; None: the other wire has no such call, or
names several groups in one request (OffsetFetch)."""

KAFKA_GUARDS: Final = {guard.api: guard for guard in GUARDS if guard.api is not None}
GRPC_GUARDS: Final = {guard.rpc: guard for guard in GUARDS if guard.rpc is not None}
