"""DescribeUserScramCredentials: who may log in and how; never what with."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeUserScramCredentialsResponse, Message
from odradek_protocol.metadata.records import ScramMechanism
from odradek_runtime.budget.refusals import shortened

_Result: Final = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Info: Final = _Result.CredentialInfo


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
async def describe_user_scram_credentials(request: Request) -> Message:
    """The users named, or all."""
    if not request.allows_cluster(Operation.DESCRIBE):
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=None, results=[]
        )
    scram = request.services.image.scram
    wanted = request.message.users
    names = [one.name for one in wanted] if wanted else sorted({user for user, _ in scram})
    counts = Counter(names)
    return DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        results=[
            _result(request, name, is_twice=counts[name] > 1)
            async for name in request.in_turns(dict.fromkeys(names))
        ],
    )


def _result(request: Request, name: str, *, is_twice: bool) -> Any:
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
    return _Result(user=name, error_code=code, error_message=text, credential_infos=infos)
