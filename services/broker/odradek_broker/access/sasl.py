"""SASL: a client proves its identity by PLAIN, SCRAM or OAUTHBEARER, in one exchange per connection.

The mechanisms are those of RFC 4616, 5802, 7628 and 7677.

    NEW --choose--> CHOSEN --step ...--> COMPLETE (the user is known)
                       |                    |
                       |                    +--choose again, to reauthenticate (KIP-368)--> CHOSEN
                       +--LoginFailed
                       v
                    FAILED (final: the connection is closed)

PLAIN sends the password, so it is offered under TLS only. The broker derives a stored key (RFC 5802) from the password,
in a thread, and compares it with the stored key of the user's SCRAM credential. The responses to an unknown user, and
the time that they take, are the same as for a known user with a wrong password: the broker compares the password with a
made-up credential, which resembles that of an existing user.

A token of OAUTHBEARER is signed, and the signature is checked (`odradek_runtime.jwt_tokens`). The login lasts until
the token expires.

The library scramp implements the messages and proofs of SCRAM. It checks the nonce and the channel binding of the final
message (CVE-2024-56128), and compares keys in constant time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from odradek_broker.access.logins import Logins
from odradek_broker.settings import BrokerSettings
from odradek_protocol.metadata.records import ScramMechanism, UserScramCredential
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.budget.refusals import shortened
from odradek_runtime.budget.shares import owner_of
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.logs import event_log
from odradek_runtime.settings import SettingsError

if TYPE_CHECKING:
    from odradek_runtime.jwt_tokens import TokenVerifier


ScramCredentials = Mapping[tuple[str, ScramMechanism], UserScramCredential]
_Ring = list[tuple[int, tuple[str, ScramMechanism]]]
# After this time the ring of consistent hashing is built again even if the number of users is the same, because one
# user may have been created and another one deleted.
_REBUILD_S: Final = 1.0


class Imitations:
    """Chooses an existing user whose credential is the model for the made-up credential of an unknown user.

    A login must not reveal whether its user exists. Consistent hashing of the unknown name chooses the model. Therefore
    every broker chooses the same model for a name, also after a restart, and the choice rarely changes when users are
    created or deleted. A model is looked up for known users, too, so that their logins take as long as those of unknown
    users.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._credentials: ScramCredentials = {}
        self._count = 0
        self._built_at_s = 0.0
        self._rings: dict[ScramMechanism | None, _Ring] = {}

    def model_of(
        self, user: str, credentials: ScramCredentials, kind: ScramMechanism | None = None
    ) -> UserScramCredential | None:
        """Return the model for a user: a credential with the mechanism `kind`, or with any mechanism if `kind` is None.
        Return None if no user has such a credential.
        """
        now_s = self._clock_s()
        is_same = credentials is self._credentials and len(credentials) == self._count
        if not is_same or now_s - self._built_at_s > _REBUILD_S:
            self._build(credentials, now_s)
        ring = self._rings.get(kind, [])
        at = bisect_left(ring, (zlib.crc32(user.encode()), ("", ScramMechanism.SHA_256)))
        for step in range(len(ring)):
            model = credentials.get(ring[(at + step) % len(ring)][1])
            if model is not None:  # None: the user was deleted after the ring was built
                return model
        return None

    def _build(self, credentials: ScramCredentials, now_s: float) -> None:
        self._credentials, self._count, self._built_at_s = credentials, len(credentials), now_s
        rings: dict[ScramMechanism | None, _Ring] = {None: []}
        for model in credentials.values():
            entry = (zlib.crc32(model.user.encode()), (model.user, model.mechanism))
            rings[None].append(entry)
            rings.setdefault(model.mechanism, []).append(entry)
        self._rings = {kind: sorted(ring) for kind, ring in rings.items()}


PLAIN: Final = "PLAIN"
SCRAM: Final = {
    "SCRAM-SHA-256": ScramMechanism.SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SHA_512,
}
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *SCRAM, OAUTHBEARER)
ITERATIONS_MIN: Final = 4096
# The limit is Kafka's. A client computes one hash for each iteration at every login, so a higher number would make
# logins slow.
ITERATIONS_MAX: Final = 16_384
_HASHES: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
_NAME_BYTES_MAX: Final = 512
_TOKEN_BYTES_MAX: Final = 16 * 1024
_SALT_BYTES: Final = 32
_SECRET: Final = os.urandom(32)
_IMITATIONS: Final = Imitations()

Credentials = Callable[[], ScramCredentials]
_audit = event_log("odradek_broker.audit")


FAILURE_TOLD: Final = (
    "authentication failed: check the user name and the password or token; the broker's log has"
    " the reason"
)
_REPEATED_NONCE: Final = (
    "the client puts a nonce before the broker's, as librdkafka before 2.6.1 does; RFC 5802 and Kafka 4 forbid it"
    " (CVE-2024-56128): use a newer librdkafka, or sasl.mechanism=PLAIN over TLS"
)


class LoginFailed(Exception):
    """The client did not prove its identity. The text is written to the log, and is not sent to the client.

    `told` is sent to Kafka clients, unless they use SaslHandshake version 0, which has no error messages. By default it
    is the same for every reason, so that it does not reveal which users exist. gRPC clients get one text for all
    reasons.
    """

    def __init__(self, reason: str, *, user: str = "", told: str = FAILURE_TOLD) -> None:
        super().__init__(reason)
        self.user = user
        self.told = told


async def note_failed_login(failed: LoginFailed, host: str, budget: ClientBudget) -> None:
    """Write a failed login to the audit log, at a limited rate, and delay the response. The delay grows with the number
    of failed logins from the address.
    """
    now_s = monotonic_ms() / 1000
    user, reason = shortened(failed.user), shortened(str(failed))
    unlogged = budget.refusals.admit(owner_of("", host), (user, now_s), now_s)
    if unlogged is not None:
        more = {"not_logged_before": unlogged} if unlogged else {}
        _audit.warning("Login failed", host=host, user=user, reason=reason, **more)
    await asyncio.sleep(budget.failed_logins.failed(host, now_s) / 1000)


class _Stage(Enum):
    NEW = "new"
    CHOSEN = "chosen"
    COMPLETE = "complete"
    FAILED = "failed"


class SaslExchange:
    """The SASL exchange of one connection. `mechanisms` are those that the listener offers."""

    def __init__(
        self,
        *,
        mechanisms: tuple[str, ...],
        credentials: Credentials,
        tokens: TokenVerifier | None = None,
        logins: Logins | None = None,
    ) -> None:
        """`tokens` checks OAUTHBEARER tokens. It is required if OAUTHBEARER is one of the mechanisms."""
        self.mechanisms = mechanisms
        self._logins = logins or Logins()
        self.lifetime_ms: int | None = None
        """How long the login lasts, in ms. Only logins by token have such a limit; None means no limit."""
        self._tokens = tokens
        self.user: str | None = None
        self.credential: UserScramCredential | None = None
        """The credential against which the user's proof was verified. None before the verification, and for a login by
        token.
        """
        self._credentials = credentials
        self._stage = _Stage.NEW
        self._mechanism = ""
        self._scram: Any = None  # Any, because scramp has no type annotations
        self._first_user: str | None = None
        self._compared_with: UserScramCredential | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the client has proved its identity."""
        return self._stage is _Stage.COMPLETE

    @property
    def expects_token(self) -> bool:
        """Whether a mechanism is chosen and the exchange is in progress."""
        return self._stage is _Stage.CHOSEN

    def choose(self, mechanism: str) -> bool:
        """Begin an exchange, also to reauthenticate. Return False if the mechanism is not offered, or if an earlier
        login on this connection failed.
        """
        if mechanism not in self.mechanisms or self._stage is _Stage.FAILED:
            self._stage = _Stage.FAILED
            self._logins.failed("")
            return False
        self._stage = _Stage.CHOSEN
        self._mechanism = mechanism
        self._scram = None
        return True

    async def step(self, token: bytes) -> bytes:
        """Return the response to a client's token.

        Raises:
            LoginFailed: the token is wrong. The exchange then accepts no more tokens.
        """
        if self._stage is not _Stage.CHOSEN:
            self._stage = _Stage.FAILED
            self._logins.failed("")
            raise LoginFailed("the client sent a SASL token before it had chosen a mechanism")
        try:
            if len(token) > _TOKEN_BYTES_MAX:
                raise LoginFailed(
                    f"the SASL token has {len(token)} bytes; the limit is {_TOKEN_BYTES_MAX}"
                )
            if self._mechanism == PLAIN:
                return await self._plain(token)
            if self._mechanism == OAUTHBEARER:
                return self._bearer(token)
            return self._scram_step(token)
        except LoginFailed:
            self._stage = _Stage.FAILED
            self._logins.failed(self._mechanism)
            raise

    async def _plain(self, token: bytes) -> bytes:
        try:
            authorize_as, user, password = token.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is a ValueError
            raise LoginFailed("the SASL/PLAIN message is malformed") from None
        if not user or not password or len(user.encode()) > _NAME_BYTES_MAX:
            raise LoginFailed(
                "the SASL/PLAIN message has no user, no password, or a user of more than 512 bytes"
            )
        if authorize_as not in ("", user):
            raise LoginFailed(
                "the authorization id of the SASL/PLAIN message is not empty and differs from its user name",
                user=user,
            )
        credentials = self._credentials()
        own = next(
            (
                credential
                for kind in ScramMechanism
                if (credential := credentials.get((user, kind))) is not None
            ),
            None,
        )
        model = _IMITATIONS.model_of(user, credentials)
        # The made-up credential is computed for existing users, too; otherwise the response time would reveal whether
        # a user exists.
        made_up = _made_up(user, model, default=ScramMechanism.SHA_512)
        credential = own or made_up
        from scramp import ScramException  # see load_scramp
        from scramp.utils import saslprep

        try:
            prepared = saslprep(password)
        except ScramException:
            # SASLprep forbids this password, so no user has it. The password is compared nevertheless, so that the
            # response takes as long as for any other wrong password.
            prepared = password
        stored_key = await asyncio.to_thread(_stored_key, prepared, credential)
        if not hmac.compare_digest(stored_key, credential.stored_key) or own is None:
            raise LoginFailed("wrong password or unknown user", user=user)
        self._complete(user, own)
        return b""

    def _bearer(self, token: bytes) -> bytes:
        """Check the client's first message of RFC 7628: `n,a=USER,` and key=value pairs. The key `auth` has the
        token.
        """
        # Imported late, because the import takes 0.1 s and few brokers need the module.
        from odradek_runtime.jwt_tokens import TokenRefused

        assert self._tokens is not None, "OAUTHBEARER is offered, but there is no token verifier"
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise LoginFailed("the OAUTHBEARER message is not valid UTF-8") from None
        header, _, rest = text.partition("\x01")
        pairs = [part.partition("=") for part in rest.split("\x01") if part]
        tokens = [value for key, _, value in pairs if key == "auth"]
        parts = header.split(",")
        if len(parts) != 3 or parts[0] != "n" or parts[2] or len(tokens) != 1:
            raise LoginFailed("the OAUTHBEARER message is malformed")
        scheme, _, bearer = tokens[0].partition(" ")
        if scheme.lower() != "bearer":
            raise LoginFailed("the value of auth in the OAUTHBEARER message is not a bearer token")
        try:
            principal, lifetime_s = self._tokens.check(bearer.strip())
        except TokenRefused as refused:
            raise LoginFailed(str(refused)) from None
        user = principal.removeprefix("User:")
        if parts[1] not in ("", f"a={user}"):
            raise LoginFailed(
                "the OAUTHBEARER message names another user than its token does", user=user
            )
        self.lifetime_ms = max(int(lifetime_s * 1000), 1)
        self._complete(user, None)
        return b""

    def _scram_step(self, token: bytes) -> bytes:
        import scramp  # see load_scramp

        try:
            text = token.decode()
            if self._scram is None:
                self._scram = scramp.ScramMechanism(self._mechanism).make_server(self._look_up)
                self._scram.set_client_first(text)
                return str(self._scram.get_server_first()).encode()
            if _repeats_nonce(text, str(self._scram.nonce)):
                raise LoginFailed(
                    _REPEATED_NONCE, user=self._first_user or "", told=_REPEATED_NONCE
                )
            self._scram.set_client_final(text)
            final = str(self._scram.get_server_final()).encode()
        except (scramp.ScramException, ValueError, KeyError) as error:
            raise LoginFailed(str(error), user=self._first_user or "") from None
        user = self._first_user
        credential = self._credentials().get((user or "", SCRAM[self._mechanism]))
        if user is None or credential is None or credential != self._compared_with:
            raise LoginFailed(
                "the user is unknown, or its credential changed during the login", user=user or ""
            )
        self._complete(user, credential)
        return final

    def _look_up(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        if len(user.encode()) > _NAME_BYTES_MAX:
            raise LoginFailed("the user name is longer than 512 bytes")
        self._first_user = user
        kind = SCRAM[self._mechanism]
        credentials = self._credentials()
        model = _IMITATIONS.model_of(user, credentials, kind)
        # The made-up credential is computed for existing users, too; otherwise the response time would reveal whether
        # a user exists.
        made_up = _made_up(user, model, default=kind)
        credential = credentials.get((user, kind)) or made_up
        self._compared_with = credential
        return (
            credential.salt,
            credential.stored_key,
            credential.server_key,
            credential.iterations,
        )

    def _complete(self, user: str, credential: UserScramCredential | None) -> None:
        if self.user is not None and self.user != user:
            raise LoginFailed(
                f"the connection is already logged in as {self.user}, and its user cannot change",
                user=user,
            )
        self.user = user
        self.credential = credential
        self._stage = _Stage.COMPLETE
        self._logins.succeeded(self._mechanism)


def credential_of(
    user: str, mechanism: ScramMechanism, *, salt: bytes, salted_password: bytes, iterations: int
) -> UserScramCredential:
    """Return the SCRAM credential of a salted password (KIP-554). The password cannot be computed from the
    credential.
    """
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


def _repeats_nonce(client_final: str, nonce: str) -> bool:
    """Return whether a client's final message has something before the nonce that the broker sent, as old releases of
    librdkafka have.
    """
    sent = next((part[2:] for part in client_final.split(",") if part.startswith("r=")), "")
    return sent.endswith(nonce) and sent != nonce


def _stored_key(password: str, credential: UserScramCredential) -> bytes:
    """Derive the stored key (RFC 5802) of a password. This takes 3 ms of CPU without the interpreter's lock, so call it
    in a thread.
    """
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
    """Return a credential for an unknown user, with the mechanism, the iterations and the salt length of `model`.

    The salt and the keys are derived from the name and the model's server key, so they are the same on every broker and
    after a restart. If there is no model, they are derived from a secret of this process.
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


def load_scramp() -> None:
    """Import scramp, which takes 50 ms of CPU. A broker with listeners that require a login calls this function at its
    start; otherwise the first login would block the event loop.
    """
    import scramp  # noqa: F401


def token_verifier(settings: BrokerSettings) -> TokenVerifier | None:
    """Return the verifier of OAUTHBEARER tokens; None if OAUTHBEARER is not enabled.

    Raises:
        SettingsError: a required setting is missing, or the keys cannot be read.
    """
    if OAUTHBEARER not in settings.sasl_mechanisms:
        return None
    # Imported late, because the import takes 0.1 s.
    from odradek_runtime.jwt_tokens import JwksRefused, TokenVerifier

    try:
        return TokenVerifier(settings.token_rules())
    except JwksRefused as refused:
        raise SettingsError(f"sasl.oauthbearer.jwks.location cannot be used: {refused}") from None
