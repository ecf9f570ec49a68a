"""Access control entries, users, quotas: what the admin takes and tells of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from odradek.errors import InvalidRequest


class ResourceType(IntEnum):
    """Kafka's numbers."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a resource's name is meant; ANY and MATCH in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's numbers."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class AclPermission(IntEnum):
    """DENY wins over ALLOW."""

    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """Who may do what to which resource. `principal` is like User:alice."""

    resource_type: ResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    pattern_type: PatternType = PatternType.LITERAL
    host: str = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Which entries; ANY and "" match everything."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str = ""
    principal: str = ""
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    pattern_type: PatternType = PatternType.ANY
    host: str = ""


class ScramMechanism(IntEnum):
    """RFC 5802 and 7677."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUser:
    """A user's mechanisms, each with its iterations. Secrets are never told."""

    name: str
    iterations: Mapping[ScramMechanism, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """`value` of `key` for an entity: types (user, client-id, ip) to names; None: the default of that type.

    A `value` of None removes it.
    """

    entity: Mapping[str, str | None]
    key: str
    value: float | None


def salted_password(
    mechanism: ScramMechanism, password: str, iterations: int
) -> tuple[bytes, bytes]:
    """(salt, Hi(password, salt, iterations)): the password itself does not leave this process.

    Raises:
        InvalidRequest: it is empty, or has characters that RFC 4013 forbids in passwords.
    """
    from scramp import ScramException
    from scramp.utils import saslprep

    salt = os.urandom(32)
    hashed = "sha256" if mechanism is ScramMechanism.SCRAM_SHA_256 else "sha512"
    try:
        prepared = saslprep(password)
    except ScramException as error:
        raise InvalidRequest(f"a password like this cannot be used: {error}") from None
    if not prepared:
        raise InvalidRequest("a password must not be empty")
    return salt, hashlib.pbkdf2_hmac(hashed, prepared.encode(), salt, iterations)
