"""Errors as HTTP responses: `{"error_code": N, "message": "..."}`, with the codes of Confluent's Errors.java."""

from __future__ import annotations

import re
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from odradek import errors

TOPIC_NOT_FOUND = 40401
PARTITION_NOT_FOUND = 40402
CONSUMER_INSTANCE_NOT_FOUND = 40403
UNKNOWN_TOPIC_OR_PARTITION = 40403
GROUP_NOT_FOUND = 40405
FORMAT_MISMATCH = 40601
INSTANCE_EXISTS = 40902
ILLEGAL_STATE = 40903
JSON_CONVERSION = 42203
BAD_CONSUMER_CONFIG = 42204
BAD_PAYLOAD = 42206
KAFKA_ERROR = 50002
KAFKA_RETRIABLE_ERROR = 50003
_DESCRIBED: Final = re.compile(
    r"GET /topics/[^/]+"
    r"|[A-Z]+ /v3/(?!clusters/[^/]+/(topics/[^/]+/records(:batch)?|transactions)$).*",
    re.DOTALL,
)


class ErrorBody(BaseModel):
    """The body of every error."""

    error_code: int
    message: str


class RestError(Exception):
    """An error that becomes an HTTP response with this status, and with the error code and message in its body."""

    def __init__(
        self, status: int, error_code: int, message: str, *, ends_connection: bool = False
    ) -> None:
        """If `ends_connection` is set, the gateway reads no more of the request and closes the connection."""
        super().__init__(message)
        self.ends_connection = ends_connection
        self.status = status
        self.error_code = error_code
        self.message = message


def rest_error_of(error: errors.OdradekError) -> RestError:
    """Return the response for an error of the SDK."""
    match error:
        case errors.UnknownTopic():
            return RestError(404, TOPIC_NOT_FOUND, str(error))
        case errors.TopicExists():
            return RestError(400, 40002, str(error))
        case errors.InvalidTopic() | errors.InvalidConfig() | errors.InvalidRequest():
            return RestError(400, 40002, str(error))
        case errors.AuthenticationFailed():
            return RestError(401, 40101, str(error))
        case errors.AuthorizationFailed():
            return RestError(403, 40301, str(error))
        case errors.RecordTooLarge():
            return RestError(413, 413, str(error))
        case errors.BufferFull() | errors.ThrottlingQuotaExceeded():
            return RestError(429, 42901, str(error))
        case errors.BrokersUnavailable() | errors.ClientClosed() | errors.DeliveryTimedOut():
            return RestError(503, KAFKA_RETRIABLE_ERROR, str(error))
    if error.retriable:
        return RestError(503, KAFKA_RETRIABLE_ERROR, str(error))
    return RestError(500, KAFKA_ERROR, str(error))


def errors_of(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's `responses` for these statuses of a route. Each of them has the usual error body.

    Each body is a reference to the schema that the route /metrics defines. With `model` instead, FastAPI would make a
    validator for each status of each route, which costs 0.2 s of CPU at each start, and would never use them.
    """
    schema = {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}
    return {
        status: {"content": {JSONResponse.media_type: {"schema": schema}}} for status in statuses
    }


def error_body(status: int, message: str, error_code: int | None = None) -> dict[str, Any]:
    """Return the body of an error; its code is the status unless `error_code` is given."""
    return {"error_code": status if error_code is None else error_code, "message": message}


async def on_rest_error(request: Request, error: Exception) -> JSONResponse:
    """Respond to a RestError or an error of the SDK.

    The error code for an unknown topic depends on the route, as in Kafka's REST proxies. It is 40401 in v2 and in the
    v3 routes that write records (`records`, `records:batch`, `transactions`). It is 40403 (UNKNOWN_TOPIC_OR_PARTITION)
    in all other v3 routes and in `GET /topics/{topic}` of v2.
    """
    if isinstance(error, errors.UnknownTopic):
        is_described = _DESCRIBED.fullmatch(f"{request.method} {request.url.path}")
        code = UNKNOWN_TOPIC_OR_PARTITION if is_described else TOPIC_NOT_FOUND
        error = RestError(404, code, str(error))
    elif isinstance(error, errors.OdradekError):
        error = rest_error_of(error)
    assert isinstance(error, RestError)
    body = error_body(error.status, error.message, error.error_code)
    headers = {"Retry-After": "1"} if error.status in (429, 503) else {}
    if error.ends_connection:
        headers["Connection"] = "close"
    return JSONResponse(body, error.status, headers=headers)


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Respond to Starlette's HTTP errors, such as an unknown path (404) or a wrong method (405)."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(request.app.state.allowed_methods.of(request.url.path))
    body = error_body(error.status_code, str(error.detail))
    return JSONResponse(body, error.status_code, headers=headers)


async def on_timeout(_request: Request, _error: Exception) -> JSONResponse:
    """Respond 503, because the cluster did not respond within the time limit of a request."""
    body = error_body(503, "the cluster did not respond in time", KAFKA_RETRIABLE_ERROR)
    return JSONResponse(body, 503, headers={"Retry-After": "1"})


async def on_invalid(_request: Request, error: Exception) -> JSONResponse:
    """Respond 422 to a body or parameter that does not match its schema; the message names the first wrong field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    code = BAD_PAYLOAD if first["loc"][:1] == ("body",) else 422
    return JSONResponse(error_body(422, f"{where}: {first['msg']}", code), 422)


async def on_disconnect(_request: Request, _error: Exception) -> Response:
    """Return a response for a client that disconnected while it sent its request, or while the gateway waited for
    records or for another gateway. Nobody reads this response.
    """
    return Response(status_code=400)
