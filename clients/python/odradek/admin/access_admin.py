"""The part of the admin that says who may do what, and how much."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from odradek.admin.access import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    Quota,
    ResourceType,
    ScramMechanism,
    ScramUser,
    salted_password,
)
from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster
from odradek.errors import error_code, error_of
from odradek.transports import methods
from odradek.transports.transport import Method
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

R = TypeVar("R")
SCRAM_ITERATIONS = 8192
_UNSETTLED = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.STALE_CONTROLLER_EPOCH,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The controller is moving: the call was not carried out, or may be repeated."""


class AccessAdmin:
    """Access control entries, users and quotas; and how calls are made."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add entries. Raises for the first one that was refused."""
        entries = [_entry(acl) for acl in acls]
        response = await self._call(methods.CREATE_ACLS, pb.CreateAclsRequest(entries=entries))
        for entry, result in zip(entries, response.results, strict=True):
            subject = f"ACL of {entry.principal} on {entry.resource_name!r}"
            self._check(result.error_code, subject, result.error_message)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the entries that match any of these; returns them."""
        request = pb.DeleteAclsRequest(filters=[_entry(f) for f in filters])
        response = await self._call(methods.DELETE_ACLS, request)
        deleted = []
        for result in response.results:
            self._check(result.error_code, "deleting ACLs", result.error_message)
            deleted += [_acl(entry) for entry in result.deleted]
        return deleted

    async def describe_acls(self, acl_filter: AclFilter | None = None) -> list[Acl]:
        """The entries that match; all of them without a filter."""
        request = pb.DescribeAclsRequest(filter=_entry(acl_filter or AclFilter()))
        response = await self._call(methods.DESCRIBE_ACLS, request)
        self._check(response.error_code, "describing ACLs")
        return [_acl(entry) for entry in response.entries]

    async def set_scram_password(
        self,
        user: str,
        password: str,
        *,
        mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512,
        iterations: int = SCRAM_ITERATIONS,
    ) -> None:
        """Let the user log in with this password; it is salted and hashed here, and not sent."""
        salt, salted = await asyncio.to_thread(salted_password, mechanism, password, iterations)
        request = pb.AlterScramUsersRequest()
        request.upsertions.add(
            name=user,
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            salted_password=salted,
        )
        await self._alter_scram(request)

    async def delete_scram_user(
        self, user: str, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    ) -> None:
        """The user can no longer log in by this mechanism."""
        request = pb.AlterScramUsersRequest()
        request.deletions.add(name=user, mechanism=mechanism)
        await self._alter_scram(request)

    async def describe_scram_users(self, names: Sequence[str] = ()) -> list[ScramUser]:
        """These users, or all."""
        request = pb.DescribeScramUsersRequest(names=names)
        response = await self._call(methods.DESCRIBE_SCRAM_USERS, request)
        self._check(response.error_code, "describing SCRAM users")
        users = []
        for told in response.users:
            self._check(told.error_code, f"user {told.name!r}", told.error_message)
            iterations = {ScramMechanism(c.mechanism): c.iterations for c in told.credentials}
            users.append(ScramUser(name=told.name, iterations=iterations))
        return users

    async def alter_quotas(self, quotas: Iterable[Quota], *, validate_only: bool = False) -> None:
        """Set or remove quotas. Raises for the first one that was refused."""
        wanted = list(quotas)
        request = pb.AlterQuotasRequest(validate_only=validate_only)
        for quota in wanted:
            entry = request.entries.add(key=quota.key, value=quota.value)
            for kind, name in quota.entity.items():
                entry.entity.add(type=kind, name=name)
        response = await self._call(methods.ALTER_QUOTAS, request)
        for quota, result in zip(wanted, response.results, strict=True):
            subject = f"quota {quota.key} of {dict(quota.entity)}"
            self._check(result.error_code, subject, result.error_message)

    async def describe_quotas(self) -> list[Quota]:
        """All quotas."""
        response = await self._call(methods.DESCRIBE_QUOTAS, pb.DescribeQuotasRequest())
        self._check(response.error_code, "describing quotas")
        return [
            Quota(
                entity={p.type: p.name if p.HasField("name") else None for p in entry.entity},
                key=entry.key,
                value=entry.value if entry.HasField("value") else None,
            )
            for entry in response.entries
        ]

    # --- how calls are made -----------------------------------------------------------------------

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout_s * 1000)

    async def _call(self, method: Method[Any, R], request: Any) -> R:
        """One call to whichever broker answers; again while controller or coordinator is moving."""
        deadline_s = time.monotonic() + self._timeout_s
        backoff = Backoff(first_ms=20, most_ms=500)
        attempts = 0
        while True:
            left_s = max(0.01, deadline_s - time.monotonic())
            response = await self._cluster.call_any(
                method, request, timeout_s=left_s, attempt_s=left_s
            )
            attempts += 1
            pause_s = backoff.after(attempts, random.random()) / 1000
            if not _is_unsettled(response) or time.monotonic() + pause_s >= deadline_s:
                return response
            await asyncio.sleep(pause_s)

    async def _alter_scram(self, request: pb.AlterScramUsersRequest) -> None:
        response = await self._call(methods.ALTER_SCRAM_USERS, request)
        for result in response.results:
            self._check(result.error_code, f"user {result.name!r}", result.error_message)

    def _check(self, code: int, subject: str, message: str = "") -> None:
        if code != ErrorCode.NONE:
            raise error_of(code, subject, message)


def _is_unsettled(response: Any) -> bool:
    """Whether the whole answer, or every item of it, says that controller or coordinator is moving."""
    if getattr(response, "error_code", 0):
        return error_code(response.error_code) in _UNSETTLED
    codes: list[int] = []
    for field in ("topics", "resources", "partitions", "results", "groups"):
        codes += [getattr(item, "error_code", 0) for item in getattr(response, field, ())]
    return bool(codes) and all(error_code(code) in _UNSETTLED for code in codes)


def _entry(acl: Acl | AclFilter) -> pb.AclEntry:
    return pb.AclEntry(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _acl(entry: pb.AclEntry) -> Acl:
    return Acl(
        resource_type=ResourceType(entry.resource_type),
        resource_name=entry.resource_name,
        pattern_type=PatternType(entry.pattern_type),
        principal=entry.principal,
        host=entry.host,
        operation=AclOperation(entry.operation),
        permission=AclPermission(entry.permission_type),
    )
