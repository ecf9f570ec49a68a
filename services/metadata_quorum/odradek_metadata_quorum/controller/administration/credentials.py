"""SCRAM credentials of users (RFC 5802, KIP-554): set, removed, listed, never shown.

The client sends the salted password, never the password; only StoredKey and ServerKey are kept.
They are computed here, so that what is in the log cannot be used to log in.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from dataclasses import dataclass
from typing import Final

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import (
    RemoveUserScramCredential,
    ScramMechanism,
    UserScramCredential,
)

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
SALT_BYTES_MAX: Final = 256
_HASHES: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUpsertion:
    """A credential to set; `mechanism` is checked here."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:  # secrets never reach a log
        return f"ScramUpsertion(user={self.user!r}, <hidden>)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramDeletion:
    """A credential to remove."""

    user: str
    mechanism: int


def alter_scram_users(
    work: Workspace, upsertions: tuple[ScramUpsertion, ...], deletions: tuple[ScramDeletion, ...]
) -> tuple[tuple[str, Outcome], ...]:
    """Set and remove; one outcome per user, and nothing of a user's with any error happens."""
    items: list[ScramUpsertion | ScramDeletion] = [*upsertions, *deletions]
    named = Counter((item.user, item.mechanism) for item in items)
    outcomes: dict[str, Outcome] = {user: GOOD for user, _ in named}
    for (user, _), times in named.items():
        if times > 1:
            outcomes[user] = Outcome(
                error=ErrorCode.DUPLICATE_RESOURCE,
                message=f"user {user} is named twice for the same mechanism",
            )
    for item in items:
        if outcomes[item.user].is_good:
            outcomes[item.user] = _outcome(work, item)
    for upsertion in upsertions:
        if outcomes[upsertion.user].is_good:
            work.write(_credential(upsertion))
    for deletion in deletions:
        if outcomes[deletion.user].is_good:
            work.write(
                RemoveUserScramCredential(
                    user=deletion.user, mechanism=ScramMechanism(deletion.mechanism)
                )
            )
    return tuple(outcomes.items())


def _outcome(work: Workspace, item: ScramUpsertion | ScramDeletion) -> Outcome:
    if item.mechanism not in _HASHES:
        return Outcome(
            error=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            message=f"mechanism {item.mechanism}: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512",
        )
    if isinstance(item, ScramDeletion):
        if (item.user, ScramMechanism(item.mechanism)) not in work.image.scram:
            return Outcome(
                error=ErrorCode.RESOURCE_NOT_FOUND,
                message=f"user {item.user} has no such credential",
            )
        return GOOD
    if not item.user or len(item.user) > 255:
        return _unacceptable("a user's name has 1 to 255 characters")
    if not ITERATIONS_MIN <= item.iterations <= ITERATIONS_MAX:
        return _unacceptable(f"{ITERATIONS_MIN} to {ITERATIONS_MAX} iterations")
    digest_bytes = hashlib.new(_HASHES[ScramMechanism(item.mechanism)]).digest_size
    if not 1 <= len(item.salt) <= SALT_BYTES_MAX or len(item.salted_password) != digest_bytes:
        return _unacceptable(
            f"a salt of 1 to {SALT_BYTES_MAX} bytes, a salted password of {digest_bytes}"
        )
    return GOOD


def _unacceptable(wanted: str) -> Outcome:
    return Outcome(error=ErrorCode.UNACCEPTABLE_CREDENTIAL, message=f"a credential needs {wanted}")


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
