"""Authorization: whether the metadata image's access control entries allow an operation.

The rules are Kafka's: an entry matches by resource (its literal name, a prefix of it, or `*`), by principal (`User:*`
matches all), by host (`*` or the address) and by operation (ALL matches each). One matching DENY refuses; else one
matching ALLOW permits, where READ, WRITE, DELETE and ALTER include DESCRIBE, and ALTER_CONFIGS includes
DESCRIBE_CONFIGS; else the operation is refused. `super_users` may do everything, denied or not. While no authorizer is
configured, every caller may do everything.

Both protocols use it: Kafka's handlers through `Request.allows`, gRPC's servicers with the principal of their call.
Entries are looked up by (resource type, name) and by prefix. The index is built when the image's entries change
(`entries_changed`), never for a lookup.
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
_ANY_PRINCIPAL = "User:*"


class Authorizer(Protocol):
    """Decides whether a principal may do an operation on a resource."""

    @property
    def is_on(self) -> bool:
        """Whether entries have an effect. If False, every caller may do everything."""

    @property
    def version(self) -> int:
        """A number that rises when the entries change."""

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Decide for a `principal` such as User:alice, at a `host` that is an address without a port."""

    def is_super_user(self, principal: str) -> bool:
        """Return whether the principal is in `super.users`, so that no entry restricts it."""

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether the principal may do this operation on at least one resource of that type."""

    def entries_changed(self, entries: Mapping[bytes, AccessControlEntry]) -> None:
        """Apply the access control entries of a new metadata image."""


class EverybodyMay:
    """The authorizer of a cluster for which none is configured. It allows everything."""

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
        """Ignore the entries."""


class AclAuthorizer:
    """Authorizes by the access control entries of the metadata image. While there are none, only super users may do
    anything.
    """

    is_on = True

    def __init__(self, super_users: Iterable[str] = ()) -> None:
        self._super_users = frozenset(super_users)
        self.version = 0
        self._literal: dict[_Key, list[AccessControlEntry]] = {}
        self._prefixed: dict[int, tuple[list[str], dict[str, list[AccessControlEntry]]]] = {}

    def entries_changed(self, entries: Mapping[bytes, AccessControlEntry]) -> None:
        """Build the index of all entries."""
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
        self._prefixed = {
            kind: (sorted(by_prefix), by_prefix) for kind, by_prefix in prefixed.items()
        }

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
        is_allowed = False
        sufficient = (operation, Operation.ALL, *IMPLIED_BY.get(operation, ()))
        for entry in self._matching(resource_type, name):
            if not _matches(entry, principal, host):
                continue
            if entry.permission_type == Permission.DENY:
                if entry.operation in (operation, Operation.ALL):
                    return False
            elif entry.operation in sufficient:
                is_allowed = True
        return is_allowed

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        if principal in self._super_users:
            return True
        names = {name for kind, name in self._literal if kind == resource_type}
        if WILDCARD in names:
            names.discard(WILDCARD)
            names.add("\0")  # no literal entry has this name, so `*` alone decides about it
        # No literal entry has these names either: a DENY for the name that equals the prefix leaves the longer ones.
        names.update(f"{prefix}\0" for prefix in self._prefixed.get(resource_type, ([], {}))[0])
        return any(self.allows(principal, host, operation, resource_type, name) for name in names)

    def operations(
        self, principal: str, host: str, resource_type: ResourceType, name: str
    ) -> set[int]:
        """Return every operation that the principal may do on a resource (KIP-430)."""
        return {
            int(operation)
            for operation in OPERATIONS_OF[resource_type]
            if self.allows(principal, host, operation, resource_type, name)
        }

    def _matching(self, resource_type: ResourceType, name: str) -> list[AccessControlEntry]:
        entries = [
            *self._literal.get((resource_type, name), ()),
            *self._literal.get((resource_type, WILDCARD), ()),
        ]
        prefixes, by_prefix = self._prefixed.get(resource_type, ([], {}))
        # A prefix sorts before the names that it begins. Walk back from the name's place in the order, and
        # skip to the longest prefix that the neighbour and the name share.
        at = bisect_right(prefixes, name)
        while at:
            candidate = prefixes[at - 1]
            if name.startswith(candidate):
                entries += by_prefix[candidate]
                at -= 1
            else:
                shared = _shared_length(candidate, name)
                at = bisect_right(prefixes, name[:shared], 0, at - 1)
        return entries


def _matches(entry: AccessControlEntry, principal: str, host: str) -> bool:
    return entry.principal in (principal, _ANY_PRINCIPAL) and entry.host in (host, WILDCARD)


def _shared_length(left: str, right: str) -> int:
    count = 0
    for left_character, right_character in zip(left, right, strict=False):
        if left_character != right_character:
            break
        count += 1
    return count
