"""An error about several ACLs or quotas names all that were refused, and says what happened to the others."""

from __future__ import annotations

from typing import Any

import pytest

from odradek import Acl, AclFilter, Quota
from odradek.admin.access import AclOperation, ResourceType
from odradek.admin.admin import Admin
from odradek.cluster.cluster import Cluster
from odradek.errors import InvalidRequest
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb


class Refusing:
    """A transport to a cluster that refuses some items of each request, by their place."""

    def __init__(self, reasons: dict[int, str]) -> None:
        self._reasons = reasons

    async def call(self, endpoint: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        response = {
            "CreateAcls": pb.CreateAclsResponse,
            "DeleteAcls": pb.DeleteAclsResponse,
            "AlterQuotas": pb.AlterQuotasResponse,
        }[method.name]()
        for number, _ in enumerate(getattr(request, "filters", None) or request.entries):
            reason = self._reasons.get(number)
            code = ErrorCode.NONE if reason is None else ErrorCode.INVALID_REQUEST
            result = response.results.add(error_code=code, error_message=reason or "")
            if method.name == "DeleteAcls" and reason is None:
                result.deleted.add(resource_type=2, resource_name="t", pattern_type=3)
        return response

    async def close(self) -> None: ...


def admin_of(reasons: dict[int, str]) -> Admin:
    return Admin(cluster=Cluster(["host:1"], Refusing(reasons)))  # type: ignore[arg-type]


def acls(count: int) -> list[Acl]:
    return [
        Acl(
            resource_type=ResourceType.TOPIC,
            resource_name=f"t{number}",
            principal="User:alice",
            operation=AclOperation.READ,
        )
        for number in range(count)
    ]


async def test_every_refused_acl_is_named() -> None:
    with pytest.raises(InvalidRequest) as raised:
        await admin_of({0: "no such host", 2: "no such type"}).create_acls(acls(4))
    assert raised.value.message == (
        "2 of 4 were refused (the others were added): ACL of User:alice on 't0': no such host;"
        " ACL of User:alice on 't2': no such type"
    )


async def test_one_refused_acl_is_named_alone() -> None:
    with pytest.raises(InvalidRequest) as raised:
        await admin_of({0: "no such host"}).create_acls(acls(1))
    assert raised.value.message == "ACL of User:alice on 't0': no such host"


async def test_what_other_filters_deleted_is_counted() -> None:
    filters = [AclFilter(principal=f"User:{name}") for name in "abc"]
    with pytest.raises(InvalidRequest) as raised:
        await admin_of({1: "too many"}).delete_acls(filters)
    assert raised.value.message == (
        "1 of 3 were refused (the other filters deleted 2 ACLs): filter 2: too many"
    )


async def test_every_refused_quota_is_named() -> None:
    quotas = [Quota(entity={"user": name}, key="nosuch", value=1.0) for name in "ab"]
    with pytest.raises(InvalidRequest) as raised:
        await admin_of({0: "unknown", 1: "unknown"}).alter_quotas(quotas)
    assert raised.value.message == (
        "2 of 2 were refused: quota nosuch of {'user': 'a'}: unknown;"
        " quota nosuch of {'user': 'b'}: unknown"
    )


async def test_a_message_has_a_bounded_number_of_reasons() -> None:
    with pytest.raises(InvalidRequest, match=r"'t19': no; and 80 more$"):
        await admin_of(dict.fromkeys(range(100), "no")).create_acls(acls(101))
