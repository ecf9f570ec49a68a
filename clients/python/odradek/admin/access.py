"""Access control entries, SCRAM users and quotas: values that the admin takes and returns."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from odradek.errors import InvalidRequest
from odradek_protocol.access import Operation as AclOperation
from odradek_protocol.access import PatternType, ResourceType
from odradek_protocol.access import Permission as AclPermission

__all__ = [
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "PatternType",
    "Quota",
    "ResourceType",
    "ScramMechanism",
    "ScramUser",
    "salted_password",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One access control entry: it allows or denies an operation on a resource to `principal`, such as User:alice."""

    resource_type: ResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    pattern_type: PatternType = PatternType.LITERAL
    host: str = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Selects access control entries: those that match all of its fields. ANY and "" match everything."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str = ""
    principal: str = ""
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    pattern_type: PatternType = PatternType.ANY
    host: str = ""


class ScramMechanism(IntEnum):
    """A SCRAM hash function (RFC 5802, RFC 7677)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUser:
    """A SCRAM user, with the number of iterations of each mechanism. Brokers never return secrets."""

    name: str
    iterations: Mapping[ScramMechanism, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A client quota for an entity. A `value` of None removes the quota.

    `entity` maps types (user, client-id, ip) to names; the name None stands for every entity of the type without a
    quota of its own.
    """

    entity: Mapping[str, str | None]
    key: str
    value: float | None


def salted_password(
    mechanism: ScramMechanism, password: str, iterations: int
) -> tuple[bytes, bytes]:
    """Return a random salt and the password hashed with it (Hi of RFC 5802), so that the password stays in this
    process.

    Raises:
        InvalidRequest: the password is empty, or has characters that RFC 4013 forbids.
    """
    from scramp import ScramException
    from scramp.utils import saslprep

    salt = os.urandom(32)
    hashed = "sha256" if mechanism is ScramMechanism.SCRAM_SHA_256 else "sha512"
    try:
        prepared = saslprep(password)
    except ScramException as error:
        raise InvalidRequest(
            f"the password has characters that SCRAM does not allow: {error}"
        ) from None
    if not prepared:
        raise InvalidRequest("a password must not be empty")
    return salt, hashlib.pbkdf2_hmac(hashed, prepared.encode(), salt, iterations)
