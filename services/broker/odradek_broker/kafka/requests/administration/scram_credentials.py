"""AlterUserScramCredentials and DescribeUserScramCredentials: the users that may log in by SCRAM (KIP-554).

The client salts and hashes the password, and the password cannot be computed from the credential that the cluster
stores. To an eavesdropper, however, the salted password is as useful as the password. Therefore the broker refuses a
salted password on a connection without TLS, unless the client is on the same machine.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias

from odradek_broker.access.sasl import ITERATIONS_MAX, ITERATIONS_MIN
from odradek_broker.kafka.forwarding import ControllerUnavailable, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from odradek_protocol.metadata.records import ScramMechanism
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_runtime.budget.refusals import shortened
from odradek_runtime.listeners import is_loopback

_MECHANISMS: Final = frozenset(map(int, ScramMechanism))
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Info = _Described.CredentialInfo
_Outcome: TypeAlias = tuple[int, str]


async def _refuse_alterations(
    request: Request[AlterUserScramCredentialsRequest], code: ErrorCode
) -> AlterUserScramCredentialsResponse:
    return await _altered(request, {item.name: (code, "") for item in _items(request)})


@handles(AlterUserScramCredentialsRequest, refuse=_refuse_alterations)
async def alter_user_scram_credentials(
    request: Request[AlterUserScramCredentialsRequest],
) -> AlterUserScramCredentialsResponse:
    """Set and remove credentials. Each user has one result. If one change of a user is invalid, no change of that user
    is made.
    """
    items = _items(request)
    outcomes: dict[str, _Outcome] = {item.name: (ErrorCode.NONE, "") for item in items}
    counts = Counter((item.name, item.mechanism) for item in items)
    async for item in request.in_turns(items):
        error = _alteration_error(request, item, is_twice=counts[item.name, item.mechanism] > 1)
        if error[0] != ErrorCode.NONE:
            outcomes[item.name] = error
    valid = {name for name, (code, _) in outcomes.items() if code == ErrorCode.NONE}
    if valid:
        outcomes |= await _alter(request, valid)
    return await _altered(request, outcomes)


async def _alter(
    request: Request[AlterUserScramCredentialsRequest], names: set[str]
) -> dict[str, _Outcome]:
    command = pb.AlterScramUsersRequest(
        upsertions=[
            pb.ScramUpsertion(
                name=upsertion.name,
                mechanism=upsertion.mechanism,
                iterations=upsertion.iterations,
                salt=upsertion.salt,
                salted_password=upsertion.salted_password,
            )
            async for upsertion in request.in_turns(request.message.upsertions)
            if upsertion.name in names
        ],
        deletions=[
            pb.ScramDeletion(name=deletion.name, mechanism=deletion.mechanism)
            async for deletion in request.in_turns(request.message.deletions)
            if deletion.name in names
        ],
    )
    try:
        response = await change(request, "AlterScramUsers", command, pb.AlterScramUsersResponse)
    except ControllerUnavailable as unavailable:
        return dict.fromkeys(names, (int(unavailable.code), str(unavailable)))
    return {result.name: (result.error_code, result.error_message) for result in response.results}


def _items(
    request: Request[AlterUserScramCredentialsRequest],
) -> list[_Deletion | _Upsertion]:
    return [*request.message.deletions, *request.message.upsertions]


async def _altered(
    request: AnyRequest, outcomes: dict[str, _Outcome]
) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            _Altered(user=name, error_code=code, error_message=text or None)
            async for name, (code, text) in request.in_turns(outcomes.items())
        ]
    )


def _alteration_error(
    request: AnyRequest, item: _Deletion | _Upsertion, *, is_twice: bool
) -> _Outcome:
    if is_twice:
        return (
            ErrorCode.DUPLICATE_RESOURCE,
            "the request changes the same credential (user and mechanism) twice",
        )
    if not item.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user name is empty"
    if item.mechanism not in _MECHANISMS:
        return (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism {item.mechanism} is unknown: use 1 (SCRAM-SHA-256) or 2 (SCRAM-SHA-512)",
        )
    if isinstance(item, _Deletion):
        return ErrorCode.NONE, ""
    if not ITERATIONS_MIN <= item.iterations <= ITERATIONS_MAX:
        return (
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"the number of iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {item.iterations}",
        )
    if not request.session.is_encrypted and not is_loopback(request.session.host):
        return (
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "a password is accepted only over TLS or from the broker's own host: connect to a TLS listener",
        )
    return ErrorCode.NONE, ""


def _refuse_description(
    _request: AnyRequest, code: ErrorCode
) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(error_code=code, error_message=None, results=[])


@handles(DescribeUserScramCredentialsRequest, refuse=_refuse_description)
async def describe_user_scram_credentials(
    request: Request[DescribeUserScramCredentialsRequest],
) -> DescribeUserScramCredentialsResponse:
    """List the mechanisms and iterations of the requested users, or of all users; never the credentials themselves."""
    users = request.message.users
    scram = request.services.image.scram
    names = [user.name for user in users] if users else sorted({name for name, _ in scram})
    counts = Counter(names)
    return DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        results=[
            _described(request, name, is_twice=counts[name] > 1)
            async for name in request.in_turns(dict.fromkeys(names))
        ],
    )


def _described(request: AnyRequest, name: str, *, is_twice: bool) -> _Described:
    scram = request.services.image.scram
    infos = [
        _Info(mechanism=int(kind), iterations=scram[name, kind].iterations)
        for kind in ScramMechanism
        if (name, kind) in scram
    ]
    code, text = ErrorCode.NONE, None
    if is_twice:
        code, text, infos = ErrorCode.DUPLICATE_RESOURCE, "the request names the user twice", []
    elif not infos:
        code, text = ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {shortened(name)}"
    return _Described(user=name, error_code=code, error_message=text, credential_infos=infos)
