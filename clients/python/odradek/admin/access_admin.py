"""The part of the admin that says who may do what, and how much."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

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
from odradek.admin.admin_calls import AdminCalls, check
from odradek.transports import methods
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

SCRAM_ITERATIONS = 8192


class AccessAdmin(AdminCalls):
    """The part of `Admin` that is about access control entries, users and quotas."""

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add entries. Raises for the first one that was refused."""
        entries = [_entry(acl) for acl in acls]
        response = await self._call(methods.CREATE_ACLS, pb.CreateAclsRequest(entries=entries))
        for entry, result in zip(entries, response.results, strict=True):
            subject = f"ACL of {entry.principal} on {entry.resource_name!r}"
            check(result.error_code, subject, result.error_message)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the entries that match any of these; returns them."""
        request = pb.DeleteAclsRequest(filters=[_entry(f) for f in filters])
        response = await self._call(methods.DELETE_ACLS, request)
        deleted = []
        for result in response.results:
            check(result.error_code, "deleting ACLs", result.error_message)
            deleted += [_acl(entry) for entry in result.deleted]
        return deleted

    async def describe_acls(self, acl_filter: AclFilter | None = None) -> list[Acl]:
        """The entries that match; all of them without a filter."""
        request = pb.DescribeAclsRequest(filter=_entry(acl_filter or AclFilter()))
        response = await self._call(methods.DESCRIBE_ACLS, request)
        check(response.error_code, "describing ACLs")
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
        check(response.error_code, "describing SCRAM users")
        users = []
        for told in response.users:
            check(told.error_code, f"user {told.name!r}", told.error_message)
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
            check(result.error_code, subject, result.error_message)

    async def describe_quotas(self) -> list[Quota]:
        """All quotas."""
        response = await self._call(methods.DESCRIBE_QUOTAS, pb.DescribeQuotasRequest())
        check(response.error_code, "describing quotas")
        return [
            Quota(
                entity={p.type: p.name if p.HasField("name") else None for p in entry.entity},
                key=entry.key,
                value=entry.value if entry.HasField("value") else None,
            )
            for entry in response.entries
        ]

    # --- how calls are made -----------------------------------------------------------------------

    async def _alter_scram(self, request: pb.AlterScramUsersRequest) -> None:
        response = await self._call(methods.ALTER_SCRAM_USERS, request)
        for result in response.results:
            check(result.error_code, f"user {result.name!r}", result.error_message)


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
