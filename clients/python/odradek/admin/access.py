"""Access control entries, SCRAM users and quotas: arguments and results of `Admin`."""

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
    """An access control entry. It allows or denies `principal` (such as User:alice) an operation on a resource.

    `host` is the IP address of the clients that the entry applies to; `*` stands for any address.
    """

    resource_type: ResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    pattern_type: PatternType = PatternType.LITERAL
    host: str = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Selects the access control entries that match all of its fields. A field that is ANY or "" matches every
    value.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str = ""
    principal: str = ""
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    pattern_type: PatternType = PatternType.ANY
    host: str = ""


class ScramMechanism(IntEnum):
    """A SCRAM mechanism (RFC 5802, RFC 7677). The values are Kafka's numbers."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUser:
    """A SCRAM user, with the number of iterations by mechanism. Brokers never return passwords or hashes."""

    name: str
    iterations: Mapping[ScramMechanism, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A client quota. Set `value` to None to remove the quota.

    `entity` maps types (user, client-id, ip) to names. The name None stands for all entities of that type that have no
    quota of their own. `key` is Kafka's name of the quota, such as producer_byte_rate.
    """

    entity: Mapping[str, str | None]
    key: str
    value: float | None


def salted_password(
    mechanism: ScramMechanism, password: str, iterations: int
) -> tuple[bytes, bytes]:
    """Return a random salt, and the password hashed with this salt (Hi of RFC 5802). Only the salt and the
    hash are sent to the cluster.

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
        raise InvalidRequest("the password is empty")
    return salt, hashlib.pbkdf2_hmac(hashed, prepared.encode(), salt, iterations)
