"""The v3 routes that list, create and delete access control entries (ACLs)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from odradek.admin.access import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from odradek_gateway.rest.requests import Cluster, JsonBody
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import AclResource, Collection

router = APIRouter(prefix=PREFIX, tags=["v3 access"])
_ENTRIES_MAX = 1_000
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Principal = Annotated[str, msgspec.Meta(pattern="^[A-Za-z]+:.+$")]
ResourceTypeName = Literal[
    "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"
]
OperationName = Literal[
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
]
PermissionName = Literal["ALLOW", "DENY"]
PatternTypeName = Literal["LITERAL", "PREFIXED"]


class CreateAclRequest(msgspec.Struct):
    """An access control entry to create. `principal` has the form User:NAME."""

    resource_type: ResourceTypeName
    resource_name: _Text
    principal: _Principal
    operation: OperationName
    permission: PermissionName
    pattern_type: PatternTypeName = "LITERAL"
    host: _Text = "*"

    def acl(self) -> Acl:
        """Return the entry as the SDK's `Acl`."""
        return Acl(
            resource_type=ResourceType[self.resource_type],
            resource_name=self.resource_name,
            pattern_type=PatternType[self.pattern_type],
            principal=self.principal,
            host=self.host,
            operation=AclOperation[self.operation],
            permission=AclPermission[self.permission],
        )


class CreateAclsRequest(msgspec.Struct):
    """Access control entries to create."""

    data: Annotated[list[CreateAclRequest], msgspec.Meta(min_length=1, max_length=_ENTRIES_MAX)]


_EXAMPLE: Final = {
    "resource_type": "TOPIC",
    "resource_name": "greetings",
    "pattern_type": "LITERAL",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}
_CREATE = JsonBody(CreateAclRequest, example=_EXAMPLE)
_CREATE_ALL = JsonBody(CreateAclsRequest, example={"data": [_EXAMPLE]})


_Types = Annotated[ResourceTypeName | Literal["ANY"], Query()]
_Patterns = Annotated[PatternTypeName | Literal["ANY", "MATCH"], Query()]
_Operations = Annotated[OperationName | Literal["ANY"], Query()]
_Permissions = Annotated[PermissionName | Literal["ANY"], Query()]
_Any = Annotated[str, Query()]


async def acl_filter(
    principal: _Any = "",
    resource_type: _Types = "ANY",
    resource_name: _Any = "",
    pattern_type: _Patterns = "ANY",
    host: _Any = "",
    operation: _Operations = "ANY",
    permission: _Permissions = "ANY",
) -> AclFilter:
    """Make an ACL filter from query parameters. A parameter that is missing matches all entries."""
    return AclFilter(
        principal=principal,
        resource_type=ResourceType[resource_type],
        resource_name=resource_name,
        pattern_type=PatternType[pattern_type],
        host=host,
        operation=AclOperation[operation],
        permission=AclPermission[permission],
    )


async def acl_filter_to_delete(
    resource_type: _Types,
    pattern_type: _Patterns,
    operation: _Operations,
    permission: _Permissions,
    principal: _Any = "",
    resource_name: _Any = "",
    host: _Any = "",
) -> AclFilter:
    """Make an ACL filter for a deletion. Resource type, pattern type, operation and permission are required, but may be
    ANY, so a request without any filter does not delete all entries by mistake.
    """
    return await acl_filter(
        principal, resource_type, resource_name, pattern_type, host, operation, permission
    )


Filter = Annotated[AclFilter, Depends(acl_filter)]
FilterToDelete = Annotated[AclFilter, Depends(acl_filter_to_delete)]


@router.get("/acls", response_model=Collection[AclResource], responses=ERRORS)
async def list_acls(names: InCluster, filter_: Filter, cluster: Cluster) -> Response:
    """List the access control entries that match all query parameters."""
    acls = await cluster.admin.describe_acls(filter_)
    return names.collection("Acl", (_acl(names, acl) for acl in acls), "acls")


@router.post(
    "/acls",
    status_code=201,
    response_class=Response,
    responses=ERRORS,
    openapi_extra=_CREATE.openapi,
)
async def create_acl(names: InCluster, request: Request, cluster: Cluster) -> Response:
    """Create an access control entry."""
    entry = await _CREATE.read(request)
    await cluster.admin.create_acls([entry.acl()])
    return Response(status_code=201, headers={"Location": names.url("acls")})


@router.post(
    "/acls:batch",
    status_code=201,
    response_class=Response,
    responses=ERRORS,
    openapi_extra=_CREATE_ALL.openapi,
)
async def create_acls(names: InCluster, request: Request, cluster: Cluster) -> Response:
    """Create several access control entries. If some are refused, the error names them, and the others are created."""
    entries = (await _CREATE_ALL.read(request)).data
    await cluster.admin.create_acls([entry.acl() for entry in entries])
    return Response(status_code=201, headers={"Location": names.url("acls")})


@router.delete("/acls", response_model=Collection[AclResource], responses=ERRORS)
async def delete_acls(names: InCluster, filter_: FilterToDelete, cluster: Cluster) -> Response:
    """Delete the access control entries that match all query parameters, and return the deleted entries."""
    deleted = await cluster.admin.delete_acls([filter_])
    return names.collection("Acl", (_acl(names, acl) for acl in deleted), "acls")


def _acl(names: Names, acl: Acl) -> dict[str, Any]:
    return {
        "kind": "KafkaAcl",
        "metadata": {"self": names.url("acls"), "resource_name": None},
        "cluster_id": names.cluster_id,
        "resource_type": acl.resource_type.name,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
