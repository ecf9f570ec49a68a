"""Who may do what to which resource, as the metadata image's access control entries say.

The rules are Kafka's: an entry fits by resource (its literal name, a prefix of it, or `*`), by
principal (`User:*` is everybody), by host (`*` or the address) and by operation (ALL is each). One
fitting DENY refuses; else one fitting ALLOW permits, where READ, WRITE, DELETE and ALTER include
DESCRIBE, and ALTER_CONFIGS includes DESCRIBE_CONFIGS; else it is refused. `super_users` may do
everything, denied or not. While no authorizer is configured everybody may do everything.

Every listener asks here: Kafka's handlers through `Request.allows`, gRPC's servicers with the
principal of their call. Entries are looked up by (resource type, name) and prefix; the index is
built again when the image's entries change (`entries_changed`), never per question.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Protocol

from odradek_protocol.access import (
    IMPLIED_BY,
    OPERATIONS_OF,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from odradek_protocol.metadata.records import AccessControlEntry

_Key = tuple[int, str]
_EVERYBODY = "User:*"


class Authorizer(Protocol):
    """Answers whether a principal may do an operation to a resource."""

    @property
    def is_on(self) -> bool:
        """False: everybody may do everything, and entries mean nothing."""

    @property
    def version(self) -> int:
        """Rises when the entries change."""

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """`principal` as User:alice, `host` an address without a port."""

    def is_super_user(self, principal: str) -> bool:
        """Return whether no entry binds the principal (`super.users`)."""

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is at least one resource of that type that it may do this to."""

    def entries_changed(self, entries: Mapping[bytes, AccessControlEntry]) -> None:
        """The image has these entries now."""


class EverybodyMay:
    """No authorizer is configured."""

    is_on = False
    version = 0

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        return True

    def is_super_user(self, principal: str) -> bool:
        return False

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return True

    def entries_changed(self, entries: Mapping[bytes, AccessControlEntry]) -> None:
        """Nobody asks for them."""


class AclAuthorizer:
    """Entries of the image. Denies everything to all but super users until it has heard of some."""

    is_on = True

    def __init__(self, super_users: Iterable[str] = ()) -> None:
        self._super_users = frozenset(super_users)
        self.version = 0
        self._literal: dict[_Key, list[AccessControlEntry]] = {}
        self._prefixed: dict[int, tuple[list[str], dict[str, list[AccessControlEntry]]]] = {}

    def entries_changed(self, entries: Mapping[bytes, AccessControlEntry]) -> None:
        """Index all entries anew."""
        literal: dict[_Key, list[AccessControlEntry]] = {}
        prefixed: dict[int, dict[str, list[AccessControlEntry]]] = {}
        for entry in entries.values():
            if entry.pattern_type == PatternType.PREFIXED:
                by_prefix = prefixed.setdefault(entry.resource_type, {})
                by_prefix.setdefault(entry.resource_name, []).append(entry)
            else:
                literal.setdefault((entry.resource_type, entry.resource_name), []).append(entry)
        self.version += 1
        self._literal = literal
        self._prefixed = {kind: (sorted(found), found) for kind, found in prefixed.items()}

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        if principal in self._super_users:
            return True
        may = False
        enough = (operation, Operation.ALL, *IMPLIED_BY.get(operation, ()))
        for entry in self._fitting(resource_type, name):
            if not _concerns(entry, principal, host):
                continue
            if entry.permission_type == Permission.DENY:
                if entry.operation in (operation, Operation.ALL):
                    return False
            elif entry.operation in enough:
                may = True
        return may

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        if principal in self._super_users:
            return True
        names = {name for kind, name in self._literal if kind == resource_type}
        names.update(self._prefixed.get(resource_type, ([], {}))[0])
        if WILDCARD in names:
            names.discard(WILDCARD)
            names.add("\0")  # a name that no literal entry has: what `*` alone permits
        return any(self.allows(principal, host, operation, resource_type, name) for name in names)

    def operations(
        self, principal: str, host: str, resource_type: ResourceType, name: str
    ) -> set[int]:
        """All that it may do to a resource (KIP-430)."""
        return {
            int(one)
            for one in OPERATIONS_OF[resource_type]
            if self.allows(principal, host, one, resource_type, name)
        }

    def _fitting(self, resource_type: ResourceType, name: str) -> list[AccessControlEntry]:
        found = [
            *self._literal.get((resource_type, name), ()),
            *self._literal.get((resource_type, WILDCARD), ()),
        ]
        prefixes, by_prefix = self._prefixed.get(resource_type, ([], {}))
        # A prefix sorts before what it begins: walk back from where the name would stand, skipping
        # to the longest prefix that the neighbour and the name share.
        at = bisect_right(prefixes, name)
        while at:
            candidate = prefixes[at - 1]
            if name.startswith(candidate):
                found += by_prefix[candidate]
                at -= 1
            else:
                shared = _shared(candidate, name)
                at = bisect_right(prefixes, name[:shared], 0, at - 1)
        return found


def _concerns(entry: AccessControlEntry, principal: str, host: str) -> bool:
    return entry.principal in (principal, _EVERYBODY) and entry.host in (host, WILDCARD)


def _shared(left: str, right: str) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
