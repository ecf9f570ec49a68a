"""AlterUserScramCredentials: sets and removes who may log in (KIP-554).

The client salts the password; what is kept of it cannot be turned back. Over a connection that is
not encrypted the salted password would be as good as the password to who listens: refused there,
unless the client is on this machine.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from odradek_broker.access.sasl import ITERATIONS_MAX, ITERATIONS_MIN
from odradek_broker.kafka.forwarding import Unanswered, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import AlterUserScramCredentialsResponse, Message
from odradek_protocol.metadata.records import ScramMechanism
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_runtime.listeners import is_loopback

_MECHANISMS: Final = frozenset(map(int, ScramMechanism))
_Result: Final = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
Told = tuple[int, str]


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
async def alter_user_scram_credentials(request: Request) -> Message:
    """A result for each user; what is wrong with one of its credentials refuses all of its."""
    message = request.message
    items = [*message.deletions, *message.upsertions]
    told: dict[str, Told] = {one.name: (ErrorCode.NONE, "") for one in items}
    twice = Counter((one.name, one.mechanism) for one in items)
    async for one in request.in_turns(items):
        refused = _refused(request, one, is_twice=twice[one.name, one.mechanism] > 1)
        if refused[0] != ErrorCode.NONE:
            told[one.name] = refused
    wanted = {name for name, (code, _) in told.items() if code == ErrorCode.NONE}
    if wanted:
        asked = pb.AlterScramUsersRequest(
            upsertions=[
                pb.ScramUpsertion(
                    name=one.name,
                    mechanism=one.mechanism,
                    iterations=one.iterations,
                    salt=one.salt,
                    salted_password=one.salted_password,
                )
                async for one in request.in_turns(message.upsertions)
                if one.name in wanted
            ],
            deletions=[
                pb.ScramDeletion(name=one.name, mechanism=one.mechanism)
                async for one in request.in_turns(message.deletions)
                if one.name in wanted
            ],
        )
        try:
            answer = await change(request, "AlterScramUsers", asked)
        except Unanswered as unanswered:
            told |= dict.fromkeys(wanted, (int(unanswered.code), str(unanswered)))
        else:
            told |= {one.name: (one.error_code, one.error_message) for one in answer.results}
    return AlterUserScramCredentialsResponse(
        results=[
            _Result(user=name, error_code=code, error_message=text or None)
            async for name, (code, text) in request.in_turns(told.items())
        ]
    )


def _refused(request: Request, one: Any, *, is_twice: bool) -> Told:
    session = request.session
    if not request.allows_cluster(Operation.ALTER):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ""
    if is_twice:
        return ErrorCode.DUPLICATE_RESOURCE, "the request names this credential twice"
    if not one.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "a user has a name"
    if one.mechanism not in _MECHANISMS:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no mechanism {one.mechanism}"
    iterations = getattr(one, "iterations", ITERATIONS_MIN)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        return (
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{iterations} iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX}",
        )
    if not session.is_encrypted and not is_loopback(session.host) and hasattr(one, "salt"):
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "a password is not taken without TLS"
    return ErrorCode.NONE, ""
