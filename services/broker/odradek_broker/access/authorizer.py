"""Authorization: whether the access control entries of the metadata image allow an operation.

The rules are Kafka's. An entry matches by resource (the literal name, a prefix of the name, or `*`), by principal
(`User:*` matches all), by host (`*` or the address) and by operation (ALL matches every operation). One matching DENY
entry refuses the operation. Otherwise one matching ALLOW entry permits it; READ, WRITE, DELETE and ALTER include
DESCRIBE, and ALTER_CONFIGS includes DESCRIBE_CONFIGS. Otherwise the operation is refused. The principals in
`super.users` may do everything, even what a DENY entry forbids. If no authorizer is configured, every caller may do
everything.

The handlers of Kafka requests use the authorizer through `Request.allows`, and the gRPC servicers call it with the
principal of the call. Entries are looked up by (resource type, name) and by prefix, in an index that is built only when
the image's entries change (`entries_changed`).
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
        """Whether access control entries are enforced. If False, every caller may do everything."""

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
        """Return whether the operation is allowed to `principal` (such as User:alice) from `host`, an IP address."""

    def is_super_user(self, principal: str) -> bool:
        """Return whether the principal is in `super.users`, so that no entry restricts it."""

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether the principal may do the operation on at least one resource of the type."""

    def entries_changed(self, entries: Mapping[bytes, AccessControlEntry]) -> None:
        """Apply the access control entries of a new metadata image."""


class EverybodyMay:
    """The authorizer that allows everything; it is used if authorizer.class.name is empty."""

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
    """Authorizes by the access control entries of the metadata image. Without entries, only super users are allowed to
    do anything.
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
            names.add("\0")  # no literal entry has this name, so only entries for `*` match it
        # A literal DENY entry for a name that equals a prefix does not refuse longer names. Therefore a longer name
        # with the prefix is checked.
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
        # A prefix sorts before all names that begin with it. Walk back through the sorted prefixes from the position of
        # the name. After a prefix that does not match, continue at the characters that this prefix and the name have in
        # common, because no prefix in between can match.
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
