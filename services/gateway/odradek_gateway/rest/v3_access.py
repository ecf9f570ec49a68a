"""v3: access control entries."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from odradek.admin.access import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import RestError
from odradek_gateway.rest.request_bodies import cluster_of
from odradek_gateway.rest.schemas import CollectionV3
from odradek_gateway.rest.v3_cluster import ERRORS
from odradek_gateway.rest.v3_resources import Names, names_of

router = APIRouter(prefix="/v3/clusters/{cluster_id}", tags=["v3 access"])
Cluster = Annotated[ClusterAccess, Depends(cluster_of)]
InCluster = Annotated[Names, Depends(names_of)]


class CreateAclRequest(BaseModel):
    """An entry to be."""

    resource_type: str
    resource_name: str = Field(min_length=1)
    pattern_type: str = "LITERAL"
    principal: str = Field(min_length=1)
    host: str = "*"
    operation: str
    permission: str


@router.get("/acls", response_model=CollectionV3, responses=ERRORS)
async def list_acls(
    names: InCluster,
    cluster: Cluster,
    principal: Annotated[str | None, Query()] = None,
    resource_type: Annotated[str | None, Query()] = None,
    resource_name: Annotated[str | None, Query()] = None,
) -> dict[str, Any]:
    """Entries, filtered."""
    found = await cluster.admin.describe_acls(_filter(principal, resource_type, resource_name))
    return names.collection("Acl", [_acl(names, acl) for acl in found], "acls")


@router.post("/acls", status_code=201, responses=ERRORS)
async def create_acl(names: InCluster, body: CreateAclRequest, cluster: Cluster) -> Response:
    """Add an entry."""
    await cluster.admin.create_acls(
        [
            Acl(
                resource_type=_member(ResourceType, body.resource_type, "resource_type"),
                resource_name=body.resource_name,
                pattern_type=_member(PatternType, body.pattern_type, "pattern_type"),
                principal=body.principal,
                host=body.host,
                operation=_member(AclOperation, body.operation, "operation"),
                permission=_member(AclPermission, body.permission, "permission"),
            )
        ]
    )
    return Response(status_code=201)


@router.delete("/acls", response_model=CollectionV3, responses=ERRORS)
async def delete_acls(
    names: InCluster,
    cluster: Cluster,
    principal: Annotated[str | None, Query()] = None,
    resource_type: Annotated[str | None, Query()] = None,
    resource_name: Annotated[str | None, Query()] = None,
) -> JSONResponse:
    """Delete by filter; at least one part of it must be given."""
    if principal is None and resource_type is None and resource_name is None:
        raise RestError(400, 400, "name what to delete: principal, resource_type, resource_name")
    gone = await cluster.admin.delete_acls([_filter(principal, resource_type, resource_name)])
    return JSONResponse(names.collection("Acl", [_acl(names, acl) for acl in gone], "acls"))


def _filter(
    principal: str | None, resource_type: str | None, resource_name: str | None
) -> AclFilter:
    arguments: dict[str, Any] = {}
    if principal is not None:
        arguments["principal"] = principal
    if resource_name is not None:
        arguments["resource_name"] = resource_name
    if resource_type is not None and resource_type.upper() != "ANY":
        arguments["resource_type"] = _member(ResourceType, resource_type, "resource_type")
    return AclFilter(**arguments)


def _member(kind: Any, name: str, where: str) -> Any:
    try:
        return kind[name.upper()]
    except KeyError:
        allowed = ", ".join(one.name for one in kind)
        raise RestError(400, 400, f"{where} {name!r}: allowed are {allowed}") from None


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
