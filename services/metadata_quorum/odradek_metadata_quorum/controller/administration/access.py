"""Access control entries: who may do what to which resource. The numbers are Kafka's.

The controller stores entries and finds them by filter; brokers judge requests by them. A filter's
number 1 is ANY, its empty string any; pattern type MATCH (2) finds what applies to a name: the
literal, the prefixes of it, and the wildcard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import AccessControlEntry, RemoveAccessControlEntry

ANY: Final = 1
MATCH: Final = 2
LITERAL: Final = 3
PREFIXED: Final = 4
_RESOURCE_TYPES: Final = frozenset(range(2, 8))
_OPERATIONS: Final = frozenset(range(2, 16))
_PERMISSIONS: Final = frozenset({2, 3})
_CLUSTER: Final = 4
ENTRIES_MAX: Final = 100_000
LOOKS_MAX: Final = 1_000_000  # of filters at entries, in one request: about half a second
_TOO_MANY_LOOKS: Final = Outcome(
    error=ErrorCode.POLICY_VIOLATION,
    message="this request has too many filters for so many entries: send fewer at once",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclEntry:
    """An entry without its id, or a filter for entries."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


def create_acls(work: Workspace, entries: tuple[AclEntry, ...]) -> tuple[Outcome, ...]:
    """Add entries; one that is there already is no error and is not added again."""
    present = {_content(record) for record in work.image.acls.values()}
    outcomes = []
    for entry in entries:
        refusal = _refusal(entry)
        if refusal is None and len(present) >= ENTRIES_MAX:
            refusal = f"there are {ENTRIES_MAX} entries already: delete some"
        if refusal is not None:
            outcomes.append(Outcome(error=ErrorCode.INVALID_REQUEST, message=refusal))
            continue
        if entry not in present:
            present.add(entry)
            work.write(_record(work.draws.randbytes(16), entry))
        outcomes.append(GOOD)
    return tuple(outcomes)


def delete_acls(
    work: Workspace, filters: tuple[AclEntry, ...]
) -> tuple[tuple[Outcome, tuple[AclEntry, ...]], ...]:
    """Delete what each filter finds; an entry is told for the first filter that found it.

    A filter that leaves nothing open names its one entry. Any other looks at all of them, and only
    so many such looks fit into one request: the rest is refused.
    """
    named = {_content(record): record for record in work.image.acls.values()}
    looks_left = LOOKS_MAX
    results: list[tuple[Outcome, tuple[AclEntry, ...]]] = []
    for wanted in filters:
        gone = []
        if _leaves_nothing_open(wanted):
            gone = [record] if (record := named.get(wanted)) is not None else []
        elif looks_left < len(named):
            results.append((_TOO_MANY_LOOKS, ()))
            continue
        else:
            looks_left -= len(named)
            gone = [record for record in named.values() if matches(wanted, record)]
        for record in gone:
            work.write(RemoveAccessControlEntry(acl_id=record.acl_id))
            del named[_content(record)]
        results.append((GOOD, tuple(_content(record) for record in gone)))
    return tuple(results)


def _leaves_nothing_open(wanted: AclEntry) -> bool:
    return (
        wanted.pattern_type in (LITERAL, PREFIXED)
        and "" not in (wanted.resource_name, wanted.principal, wanted.host)
        and ANY not in (wanted.resource_type, wanted.operation, wanted.permission_type)
    )


def find_acls(image: MetadataImage, wanted: AclEntry) -> tuple[AclEntry, ...]:
    """All entries that a filter finds."""
    return tuple(_content(record) for record in image.acls.values() if matches(wanted, record))


def matches(wanted: AclEntry, record: AccessControlEntry) -> bool:
    """Whether a filter finds an entry."""
    return (
        wanted.resource_type in (ANY, record.resource_type)
        and _matches_resource(wanted, record)
        and wanted.principal in ("", record.principal)
        and wanted.host in ("", record.host)
        and wanted.operation in (ANY, record.operation)
        and wanted.permission_type in (ANY, record.permission_type)
    )


def _matches_resource(wanted: AclEntry, record: AccessControlEntry) -> bool:
    if wanted.pattern_type == MATCH:
        name = wanted.resource_name
        if record.pattern_type == PREFIXED:
            return not name or name.startswith(record.resource_name)
        return not name or record.resource_name in (name, "*")
    if wanted.pattern_type not in (ANY, record.pattern_type):
        return False
    return wanted.resource_name in ("", record.resource_name)


def _refusal(entry: AclEntry) -> str | None:
    if entry.resource_type not in _RESOURCE_TYPES:
        return f"resource type {entry.resource_type} is none that entries are for"
    if entry.pattern_type not in (LITERAL, PREFIXED):
        return f"pattern type {entry.pattern_type} is neither literal (3) nor prefixed (4)"
    if entry.operation not in _OPERATIONS:
        return f"operation {entry.operation} is none that entries are for"
    if entry.permission_type not in _PERMISSIONS:
        return f"permission type {entry.permission_type} is neither deny (2) nor allow (3)"
    if not entry.resource_name or len(entry.resource_name) > 1000:
        return "the name of the resource is missing or too long"
    if entry.resource_type == _CLUSTER and entry.resource_name != "kafka-cluster":
        return f"the cluster's name is kafka-cluster, not {entry.resource_name}"
    kind, separator, name = entry.principal.partition(":")
    if not separator or not kind or not name or len(entry.principal) > 1000:
        return f"principal {entry.principal!r} has not the form User:name"
    if not entry.host or len(entry.host) > 255:
        return "the host is missing: an address, or * for any"
    return None


def _content(record: AccessControlEntry) -> AclEntry:
    return AclEntry(
        resource_type=record.resource_type,
        resource_name=record.resource_name,
        pattern_type=record.pattern_type,
        principal=record.principal,
        host=record.host,
        operation=record.operation,
        permission_type=record.permission_type,
    )


def _record(acl_id: bytes, entry: AclEntry) -> AccessControlEntry:
    return AccessControlEntry(
        acl_id=acl_id,
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        pattern_type=entry.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )
