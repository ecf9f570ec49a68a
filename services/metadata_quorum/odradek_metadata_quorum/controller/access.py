"""Access control entries, SCRAM credentials and client quotas.

The controller stores them, and brokers apply them. Resource types, operations, pattern types and permissions of access
control entries have Kafka's numbers (`odradek_protocol.access`). In a filter for entries, the number 1 and the empty
string match any value. The pattern type MATCH (2) selects all entries that apply to a resource name: entries with this
literal name, prefixed entries whose name is a prefix of it, and entries with the wildcard.

SCRAM credentials (RFC 5802, KIP-554) can be set, removed and listed, but their keys are never returned. The client
sends the salted password. The controller computes StoredKey and ServerKey and stores only these, so that nobody can log
in with the content of the log.

Quotas apply to users, client ids and IP addresses (KIP-546).
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from odradek_metadata_quorum.controller.requests import GOOD, Outcome
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import MetadataOffset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage, QuotaEntity
from odradek_protocol.metadata.records import (
    AccessControlEntry,
    ClientQuota,
    RemoveAccessControlEntry,
    RemoveUserScramCredential,
    ScramMechanism,
    UserScramCredential,
)

ANY: Final = 1
MATCH: Final = 2
LITERAL: Final = 3
PREFIXED: Final = 4
_RESOURCE_TYPES: Final = frozenset(range(2, 8))
_OPERATIONS: Final = frozenset(range(2, 16))
_PERMISSIONS: Final = frozenset({2, 3})
_CLUSTER: Final = 4
ENTRIES_MAX: Final = 100_000
# The most comparisons of a filter with an entry that one request may make. They take about half a second.
LOOKS_MAX: Final = 1_000_000
LOOKS_PER_PIECE: Final = 10_000
_TOO_MANY_LOOKS: Final = Outcome(
    error=ErrorCode.POLICY_VIOLATION,
    message="this request has too many filters for the number of existing entries: send fewer filters in one request",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclEntry:
    """An access control entry without its id, or a filter for entries."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(slots=True)
class Looks:
    """The number of comparisons between a filter and an entry that one request may still make."""

    left: int = field(default_factory=lambda: LOOKS_MAX)


class _Records:
    """The records of all access control entries, by their content without the id. All pieces of a large request use the
    same object, so the records are read from the image only once.
    """

    @staticmethod
    def of(work: Workspace) -> _Records:
        """Return the `_Records` of the last request if no other request has written records since. Otherwise create
        one.
        """
        records = work.acl_records
        if not isinstance(records, _Records) or not records._is_valid(work):
            work.acl_records = records = _Records(work)
        return records

    def __init__(self, work: Workspace) -> None:
        self._work = work
        self._image = work.image
        self._next_offset = work.next_offset
        self.by_content = {content(record): record for record in work.image.acls.values()}

    def _is_valid(self, work: Workspace) -> bool:
        # When a decision is undone, the working image is replaced by a new object, from which the records may differ.
        return self._image is work.image and self._next_offset == work.next_offset

    def close(self) -> None:
        """End a piece of the request, whose changes are included in this object. The object is valid until another
        decision writes records.
        """
        self._next_offset = MetadataOffset(self._work.next_offset + bool(self._work.written))


def filters_per_piece(image: MetadataImage, count_max: int) -> int:
    """Return the number of filters of a large request that are decided as one piece, which takes about 10 ms."""
    return max(1, min(count_max, LOOKS_PER_PIECE // max(1, len(image.acls))))


def create_acls(work: Workspace, entries: Sequence[AclEntry]) -> tuple[Outcome, ...]:
    """Add access control entries. Adding an entry that already exists succeeds and has no effect."""
    records = _Records.of(work)
    present = records.by_content
    outcomes = []
    for entry in entries:
        refusal = _refusal(entry)
        if refusal is None and len(present) >= ENTRIES_MAX:
            refusal = f"there are already {ENTRIES_MAX} access control entries, which is the limit: delete some"
        if refusal is not None:
            outcomes.append(Outcome(error=ErrorCode.INVALID_REQUEST, message=refusal))
            continue
        if entry not in present:
            present[entry] = record = _record(work.draws.randbytes(16), entry)
            work.write(record)
        outcomes.append(GOOD)
    records.close()
    return tuple(outcomes)


def delete_acls(
    work: Workspace, filters: Sequence[AclEntry], *, looks: Looks | None = None
) -> tuple[tuple[Outcome, tuple[AclEntry, ...]], ...]:
    """Delete the entries that match the filters. An entry that matches several filters is reported for the first one.

    A filter that matches only one possible entry is looked up in a dict. Any other filter is compared with all entries.
    `looks` limits the number of comparisons in one request; filters beyond this limit are refused.
    """
    looks = looks or Looks()
    present = _Records.of(work)
    records = present.by_content
    results: list[tuple[Outcome, tuple[AclEntry, ...]]] = []
    for filter_ in filters:
        matched = []
        if _matches_one_entry(filter_):
            matched = [record] if (record := records.get(filter_)) is not None else []
        elif looks.left < len(records):
            results.append((_TOO_MANY_LOOKS, ()))
            continue
        else:
            looks.left -= len(records)
            matched = [record for record in records.values() if matches(filter_, record)]
        for record in matched:
            work.write(RemoveAccessControlEntry(acl_id=record.acl_id))
            del records[content(record)]
        results.append((GOOD, tuple(content(record) for record in matched)))
    present.close()
    return tuple(results)


def _matches_one_entry(filter_: AclEntry) -> bool:
    return (
        filter_.pattern_type in (LITERAL, PREFIXED)
        and "" not in (filter_.resource_name, filter_.principal, filter_.host)
        and ANY not in (filter_.resource_type, filter_.operation, filter_.permission_type)
    )


def matches(filter_: AclEntry, record: AccessControlEntry) -> bool:
    """Return whether an access control entry matches a filter."""
    return (
        filter_.resource_type in (ANY, record.resource_type)
        and _matches_resource(filter_, record)
        and filter_.principal in ("", record.principal)
        and filter_.host in ("", record.host)
        and filter_.operation in (ANY, record.operation)
        and filter_.permission_type in (ANY, record.permission_type)
    )


def _matches_resource(filter_: AclEntry, record: AccessControlEntry) -> bool:
    if filter_.pattern_type == MATCH:
        name = filter_.resource_name
        if record.pattern_type == PREFIXED:
            return not name or name.startswith(record.resource_name)
        return not name or record.resource_name in (name, "*")
    if filter_.pattern_type not in (ANY, record.pattern_type):
        return False
    return filter_.resource_name in ("", record.resource_name)


def _refusal(entry: AclEntry) -> str | None:
    if entry.resource_type not in _RESOURCE_TYPES:
        return f"access control entries cannot have the resource type {entry.resource_type}"
    if entry.pattern_type not in (LITERAL, PREFIXED):
        return f"pattern type {entry.pattern_type} is neither literal (3) nor prefixed (4)"
    if entry.operation not in _OPERATIONS:
        return f"access control entries cannot have the operation {entry.operation}"
    if entry.permission_type not in _PERMISSIONS:
        return f"permission type {entry.permission_type} is neither deny (2) nor allow (3)"
    if not entry.resource_name or len(entry.resource_name) > 1000:
        return "the name of the resource is missing or too long"
    if entry.resource_type == _CLUSTER and entry.resource_name != "kafka-cluster":
        return f"the resource name of the cluster must be kafka-cluster, not {entry.resource_name}"
    kind, separator, name = entry.principal.partition(":")
    if not separator or not kind or not name or len(entry.principal) > 1000:
        return f"principal {entry.principal!r} does not have the form User:name"
    if not entry.host or len(entry.host) > 255:
        return "the host is missing or too long: name an IP address, or * for any address"
    return None


def content(record: AccessControlEntry) -> AclEntry:
    """Return an access control entry without its id."""
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


ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
SALT_BYTES_MAX: Final = 256
_HASHES: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUpsertion:
    """A SCRAM credential to set. `alter_scram_users` checks all fields."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        # The default representation would show secrets wherever a request is logged.
        return f"ScramUpsertion(user={self.user!r}, <hidden>)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramDeletion:
    """A SCRAM credential to remove. `alter_scram_users` checks the mechanism."""

    user: str
    mechanism: int


def alter_scram_users(
    work: Workspace, items: Sequence[ScramUpsertion | ScramDeletion]
) -> tuple[tuple[str, Outcome], ...]:
    """Set and remove SCRAM credentials. Return one outcome for each user.

    If one item of a user fails, none of that user's credentials is changed.
    """
    counts = Counter((item.user, item.mechanism) for item in items)
    outcomes: dict[str, Outcome] = {user: GOOD for user, _ in counts}
    for (user, _), count in counts.items():
        if count > 1:
            outcomes[user] = Outcome(
                error=ErrorCode.DUPLICATE_RESOURCE,
                message=f"user {user} is named twice for the same mechanism",
            )
    for item in items:
        if outcomes[item.user].is_good:
            outcomes[item.user] = _outcome(work, item)
    for item in items:
        if not outcomes[item.user].is_good:
            continue
        if isinstance(item, ScramUpsertion):
            work.write(_credential(item))
        else:
            work.write(
                RemoveUserScramCredential(user=item.user, mechanism=ScramMechanism(item.mechanism))
            )
    return tuple(outcomes.items())


def _outcome(work: Workspace, item: ScramUpsertion | ScramDeletion) -> Outcome:
    if item.mechanism not in _HASHES:
        return Outcome(
            error=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            message=f"mechanism {item.mechanism} is unknown: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512",
        )
    if isinstance(item, ScramDeletion):
        if (item.user, ScramMechanism(item.mechanism)) not in work.image.scram:
            return Outcome(
                error=ErrorCode.RESOURCE_NOT_FOUND,
                message=f"user {item.user} has no credential of this mechanism",
            )
        return GOOD
    if not item.user or len(item.user) > 255:
        return _unacceptable("a user name of 1 to 255 characters")
    if not ITERATIONS_MIN <= item.iterations <= ITERATIONS_MAX:
        return _unacceptable(f"{ITERATIONS_MIN} to {ITERATIONS_MAX} iterations")
    digest_bytes = hashlib.new(_HASHES[ScramMechanism(item.mechanism)]).digest_size
    if not 1 <= len(item.salt) <= SALT_BYTES_MAX or len(item.salted_password) != digest_bytes:
        return _unacceptable(
            f"a salt of 1 to {SALT_BYTES_MAX} bytes and a salted password of {digest_bytes} bytes"
        )
    return GOOD


def _unacceptable(requirement: str) -> Outcome:
    return Outcome(
        error=ErrorCode.UNACCEPTABLE_CREDENTIAL, message=f"a SCRAM credential needs {requirement}"
    )


def _credential(upsertion: ScramUpsertion) -> UserScramCredential:
    mechanism = ScramMechanism(upsertion.mechanism)
    name = _HASHES[mechanism]
    client_key = hmac.digest(upsertion.salted_password, b"Client Key", name)
    return UserScramCredential(
        user=upsertion.user,
        mechanism=mechanism,
        salt=upsertion.salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(upsertion.salted_password, b"Server Key", name),
        iterations=upsertion.iterations,
    )


_CLIENT_KEYS: Final[tuple[str, ...]] = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
_ADDRESS_KEYS: Final[tuple[str, ...]] = ("connection_creation_rate",)
_CLIENT_TYPES: Final = frozenset({"user", "client-id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAlteration:
    """A client quota to set; if `value` is None, the quota is removed. A name of None in `entity` means the default for
    all users, client ids or addresses without a quota of their own.
    """

    entity: QuotaEntity
    key: str
    value: float | None


def alter_quotas(
    work: Workspace, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> tuple[Outcome, ...]:
    """Set and remove client quotas, each independently of the others. Outcomes are in the order of the request."""
    outcomes = []
    for alteration in alterations:
        refusal = _quota_refusal(alteration)
        if refusal is not None:
            outcomes.append(Outcome(error=ErrorCode.INVALID_REQUEST, message=refusal))
            continue
        entity = tuple(sorted(alteration.entity, key=lambda part: part[0]))
        present = work.image.quotas.get(entity, {}).get(alteration.key)
        if not validate_only and present != alteration.value:
            work.write(ClientQuota(entity=entity, key=alteration.key, value=alteration.value))
        outcomes.append(GOOD)
    return tuple(outcomes)


def _quota_refusal(alteration: QuotaAlteration) -> str | None:
    types = [kind for kind, _ in alteration.entity]
    if not types or len(set(types)) != len(types):
        return "a quota must apply to a user, a client-id, both, or an ip"
    if any(name is not None and not 0 < len(name) <= 255 for _, name in alteration.entity):
        return "a name in a quota must have 1 to 255 characters; omit the name to set the default"
    if set(types) <= _CLIENT_TYPES:
        keys = _CLIENT_KEYS
    elif types == ["ip"]:
        keys = _ADDRESS_KEYS
    else:
        return f"a quota cannot apply to {' and '.join(types)} together"
    if alteration.key not in keys:
        return f"{alteration.key} is not a quota of {' and '.join(types)}: use one of {', '.join(keys)}"
    value = alteration.value
    if value is not None and not (math.isfinite(value) and value > 0):
        return (
            f"{alteration.key}: {value} is not a number above 0; omit the value to remove the quota"
        )
    return None
