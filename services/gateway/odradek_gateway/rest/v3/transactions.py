"""The route that writes a transaction in one request. Its records may go to several topics; either all of them are
committed or none. Confluent's API has no such route.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from odradek import errors
from odradek.cluster.turns import in_turns
from odradek.producer.producer import Producer
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import BAD_PAYLOAD, RestError, error_body, rest_error_of
from odradek_gateway.rest.records import OutgoingRecord, require_partition
from odradek_gateway.rest.requests import Cluster, JsonBody
from odradek_gateway.rest.v3.records import ProducedRecord, outgoing, result_of
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster
from odradek_gateway.rest.v3.shapes import TransactionFailure, TransactionResult
from odradek_protocol.topic_names import TOPIC_NAME_PATTERN, topic_name_error

RECORDS_MAX: Final = 1_000
_ABORTED: Final = 409
_UNKNOWN: Final = 504
_OF_RECORDS: Final = (
    errors.AuthorizationFailed,
    errors.RecordTooLarge,
    errors.UnknownTopic,
    errors.UnsupportedOperation,
)
"""Errors of a transaction's records that repeat unless the client changes the request. After any other error the same
request may succeed later.
"""


class TransactionRecord(ProducedRecord, kw_only=True):
    """A record of a transaction, and the topic to which it is written."""

    topic_name: Annotated[str, msgspec.Meta(pattern=TOPIC_NAME_PATTERN)]


class TransactionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The records of a transaction."""

    records: Annotated[list[TransactionRecord], msgspec.Meta(min_length=1, max_length=RECORDS_MAX)]


router = APIRouter(prefix=PREFIX, tags=["v3 transactions"])
_BODY: Final = JsonBody(
    TransactionRequest,
    example={
        "records": [{"topic_name": "greetings", "value": {"type": "STRING", "data": "hello"}}]
    },
)


@router.post(
    "/transactions",
    response_model=TransactionResult,
    responses={
        **ERRORS,
        _ABORTED: {"model": TransactionFailure},
        _UNKNOWN: {"model": TransactionFailure},
    },
    openapi_extra=_BODY.openapi,
)
async def commit(names: InCluster, request: Request, cluster: Cluster) -> JSONResponse:
    """Write the records in one transaction: consumers with isolation.level=read_committed see all of them or none.

    Status 200: the transaction is committed. 409: it was aborted, and the client may send the same request again. 504:
    the outcome is unknown, because the cluster did not respond; check whether the records exist before you send them
    again.
    """
    body = await _BODY.read(request)
    records = [(_topic_of(record), outgoing(record)) async for record in in_turns(body.records)]
    try:
        async with cluster.transactions.lease() as producer:
            written = await _written(cluster, producer, records)
    except errors.TransactionAborted as error:
        if isinstance(error.__cause__, _OF_RECORDS):
            raise rest_error_of(error.__cause__) from None
        failure: dict[str, Any] = {**error_body(_ABORTED, str(error)), "outcome": "aborted"}
        return JSONResponse(failure, _ABORTED)
    except errors.TransactionOutcomeUnknown as error:
        failure = {**error_body(_UNKNOWN, str(error)), "outcome": "unknown"}
        return JSONResponse(failure, _UNKNOWN)
    return JSONResponse(
        {
            "outcome": "committed",
            "records": [
                result_of(names, sent, data, metadata)
                for (_, sent), data, metadata in zip(records, body.records, written, strict=True)
            ],
        }
    )


async def _written(
    cluster: ClusterAccess, producer: Producer, records: list[tuple[str, OutgoingRecord]]
) -> list[Any]:
    for topic, record in records:
        # Without this check the SDK would wait for a partition that does not exist.
        await require_partition(cluster.producer, topic, record.partition)
    async with producer.transaction():
        futures = [
            await producer.send(
                topic,
                record.value,
                key=record.key,
                partition=record.partition,
                headers=record.headers,
                timestamp_ms=record.timestamp_ms,
            )
            for topic, record in records
        ]
    return [await future for future in futures]


def _topic_of(record: TransactionRecord) -> str:
    problem = topic_name_error(record.topic_name)
    if problem is not None:
        raise RestError(422, BAD_PAYLOAD, problem)
    return record.topic_name
