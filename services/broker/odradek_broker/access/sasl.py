"""How a client proves who it is: one exchange a connection, PLAIN, SCRAM or OAUTHBEARER (RFC 4616, 5802, 7628, 7677).

    NEW --choose--> CHOSEN --step ...--> COMPLETE (principal is known)
                       |                    |
                       +--- wrong ----------+--choose again (KIP-368)--> CHOSEN
                       v
                    FAILED (for ever: the connection is closed)

PLAIN sends the password, so it is offered under TLS only; it is compared with the user's SCRAM
credential, by deriving its keys in a thread. An unknown user gets the same messages in the same
time as a known one with a wrong password: a made-up credential that looks like another user's.

A token of OAUTHBEARER is signed (`odradek_runtime.jwt_tokens`), never merely believed, and what it
proves holds until it ends.

scramp does SCRAM's messages and proofs: nonce and channel binding of the final message are checked
(CVE-2024-56128), keys are compared in constant time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import scramp
from scramp.utils import saslprep

from odradek_broker.access.imitations import Imitations
from odradek_protocol.metadata.records import ScramMechanism, UserScramCredential

if TYPE_CHECKING:
    from odradek_runtime.jwt_tokens import TokenVerifier

PLAIN: Final = "PLAIN"
SCRAM: Final = {
    "SCRAM-SHA-256": ScramMechanism.SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SHA_512,
}
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *SCRAM, OAUTHBEARER)
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384  # Kafka's bound: an answer costs its client that much work
_HASHES: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
_NAME_BYTES_MAX: Final = 512
_TOKEN_BYTES_MAX: Final = 16 * 1024
_SALT_BYTES: Final = 32
_SECRET: Final = os.urandom(32)
_IMITATIONS: Final = Imitations()

Credentials = Callable[[], Mapping[tuple[str, ScramMechanism], UserScramCredential]]


class LoginFailed(Exception):
    """The client did not prove who it is. The text is for the log; the client is told no reason."""

    def __init__(self, reason: str, *, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


class _Stage(Enum):
    NEW = "new"
    CHOSEN = "chosen"
    COMPLETE = "complete"
    FAILED = "failed"


class SaslExchange:
    """The exchange of one connection. `mechanisms` are those of its listener."""

    def __init__(
        self,
        *,
        mechanisms: tuple[str, ...],
        credentials: Credentials,
        tokens: TokenVerifier | None = None,
    ) -> None:
        """`tokens` is there where OAUTHBEARER is among the mechanisms."""
        self.mechanisms = mechanisms
        self.lifetime_ms: int | None = None
        """How long what was proved holds; None: for ever. A token has an end."""
        self._tokens = tokens
        self.user: str | None = None
        self.credential: UserScramCredential | None = None
        """What the user's proof was compared with, once that is complete."""
        self._credentials = credentials
        self._stage = _Stage.NEW
        self._mechanism = ""
        self._scram: Any = None  # scramp has no types
        self._first_user: str | None = None
        self._compared_with: UserScramCredential | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the client has proved who it is."""
        return self._stage is _Stage.COMPLETE

    @property
    def expects_token(self) -> bool:
        """Whether a mechanism is chosen and the exchange goes on."""
        return self._stage is _Stage.CHOSEN

    def choose(self, mechanism: str) -> bool:
        """Begin, or begin again to prove the same user anew; False if it is not offered."""
        if mechanism not in self.mechanisms or self._stage is _Stage.FAILED:
            self._stage = _Stage.FAILED
            return False
        self._stage = _Stage.CHOSEN
        self._mechanism = mechanism
        self._scram = None
        return True

    async def step(self, token: bytes) -> bytes:
        """The answer to a client's token. Raises LoginFailed; then nothing more is accepted."""
        if self._stage is not _Stage.CHOSEN:
            self._stage = _Stage.FAILED
            raise LoginFailed("a token without a mechanism chosen")
        try:
            if len(token) > _TOKEN_BYTES_MAX:
                raise LoginFailed(f"a token of {len(token)} bytes")
            if self._mechanism == PLAIN:
                return await self._plain(token)
            if self._mechanism == OAUTHBEARER:
                return self._bearer(token)
            return self._scram_step(token)
        except LoginFailed:
            self._stage = _Stage.FAILED
            raise

    async def _plain(self, token: bytes) -> bytes:
        try:
            authorize_as, user, password = token.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is one
            raise LoginFailed("malformed PLAIN token") from None
        if not user or not password or len(user) > _NAME_BYTES_MAX:
            raise LoginFailed("PLAIN without user or password")
        if authorize_as not in ("", user):
            raise LoginFailed("PLAIN for somebody else", user=user)
        known = self._credentials()
        found = next(
            (one for kind in ScramMechanism if (one := known.get((user, kind))) is not None), None
        )
        model = _IMITATIONS.model_of(user, known)
        # Made for users who are there, too: an answer tells by its time otherwise.
        made_up = _made_up(user, model, default=ScramMechanism.SHA_512)
        credential = found or made_up
        try:
            prepared = saslprep(password)
        except scramp.ScramException:
            prepared = (
                password  # no user has such a password: compared all the same, in the same time
            )
        stored_key = await asyncio.to_thread(_stored_key, prepared, credential)
        if not hmac.compare_digest(stored_key, credential.stored_key) or found is None:
            raise LoginFailed("wrong password or unknown user", user=user)
        self._complete(user, found)
        return b""

    def _bearer(self, token: bytes) -> bytes:
        """RFC 7628: `n,a=USER,`, then key=value between 0x01s, of which `auth` is the token."""
        from odradek_runtime.jwt_tokens import TokenRefused  # 0.1 s that others need not wait for

        assert self._tokens is not None, "OAUTHBEARER is offered without keys"
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise LoginFailed("malformed OAUTHBEARER token") from None
        header, _, rest = text.partition("\x01")
        pairs = [part.partition("=") for part in rest.split("\x01") if part]
        told = [value for key, _, value in pairs if key == "auth"]
        parts = header.split(",")
        if len(parts) != 3 or parts[0] != "n" or parts[2] or len(told) != 1:
            raise LoginFailed("malformed OAUTHBEARER token")
        scheme, _, bearer = told[0].partition(" ")
        if scheme.lower() != "bearer":
            raise LoginFailed("malformed OAUTHBEARER token")
        try:
            principal, lifetime_s = self._tokens.check(bearer.strip())
        except TokenRefused as refused:
            raise LoginFailed(str(refused)) from None
        user = principal.removeprefix("User:")
        if parts[1] not in ("", f"a={user}"):
            raise LoginFailed("OAUTHBEARER for somebody else", user=user)
        self.lifetime_ms = max(int(lifetime_s * 1000), 1)
        self._complete(user, None)
        return b""

    def _scram_step(self, token: bytes) -> bytes:
        try:
            text = token.decode()
            if self._scram is None:
                self._scram = scramp.ScramMechanism(self._mechanism).make_server(self._look_up)
                self._scram.set_client_first(text)
                return str(self._scram.get_server_first()).encode()
            self._scram.set_client_final(text)
            final = str(self._scram.get_server_final()).encode()
        except (scramp.ScramException, ValueError, KeyError) as error:
            raise LoginFailed(str(error), user=self._first_user or "") from None
        user = self._first_user
        credential = self._credentials().get((user or "", SCRAM[self._mechanism]))
        if user is None or credential is None or credential != self._compared_with:
            raise LoginFailed("unknown user", user=user or "")
        self._complete(user, credential)
        return final

    def _look_up(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        if len(user.encode()) > _NAME_BYTES_MAX:
            raise LoginFailed("a user name of more than 512 bytes")
        self._first_user = user
        kind = SCRAM[self._mechanism]
        known = self._credentials()
        model = _IMITATIONS.model_of(user, known, kind)
        made_up = _made_up(user, model, default=kind)  # always, as it takes its time
        one = known.get((user, kind)) or made_up
        self._compared_with = one
        return one.salt, one.stored_key, one.server_key, one.iterations

    def _complete(self, user: str, credential: UserScramCredential | None) -> None:
        if self.user is not None and self.user != user:
            raise LoginFailed(f"logged in as {self.user} and again as somebody else", user=user)
        self.user = user
        self.credential = credential
        self._stage = _Stage.COMPLETE


def credential_of(
    user: str, mechanism: ScramMechanism, *, salt: bytes, salted_password: bytes, iterations: int
) -> UserScramCredential:
    """What is stored of a password that was salted already (KIP-554): no way back to it."""
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return UserScramCredential(
        user=user,
        mechanism=mechanism,
        salt=salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", name),
        iterations=iterations,
    )


def _stored_key(password: str, credential: UserScramCredential) -> bytes:
    """About 3 ms of CPU without the interpreter's lock: never on the loop."""
    name = _HASHES[credential.mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), credential.salt, credential.iterations)
    return credential_of(
        credential.user,
        credential.mechanism,
        salt=credential.salt,
        salted_password=salted,
        iterations=credential.iterations,
    ).stored_key


def _made_up(
    user: str, model: UserScramCredential | None, *, default: ScramMechanism
) -> UserScramCredential:
    """Of somebody who is not there, with the hash, rounds and length of salt of the model, a user who is.

    The salt is drawn by the name and the model's secret key, so it is the same on every broker and after a restart.
    """
    if model is None:
        mechanism, secret, salt_bytes, iterations = default, _SECRET, _SALT_BYTES, ITERATIONS_MIN
    else:
        mechanism, secret, iterations = model.mechanism, model.server_key, model.iterations
        salt_bytes = len(model.salt)
    name = _HASHES[mechanism]
    draw = hmac.digest(secret, user.encode(), "sha512")
    return UserScramCredential(
        user=user,
        mechanism=mechanism,
        salt=hmac.digest(draw, b"salt", "sha512")[:salt_bytes],
        stored_key=hmac.digest(draw, b"stored", name),
        server_key=hmac.digest(draw, b"server", name),
        iterations=iterations,
    )
