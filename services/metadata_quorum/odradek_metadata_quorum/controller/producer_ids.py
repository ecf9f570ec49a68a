"""Allocation of producer ids to brokers, in blocks. Each id is allocated only once in the cluster (KIP-730)."""

from __future__ import annotations

from typing import Final

from odradek_metadata_quorum.controller.requests import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import ProducerIds

BLOCK_COUNT: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1


def allocate_producer_ids(
    work: Workspace, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Allocate the next block of producer ids to a registered broker. If the response is lost, no broker ever uses the
    block.
    """
    error = work.broker_error(request.broker_id, request.broker_epoch)
    if error is not ErrorCode.NONE:
        return AllocateProducerIdsResponse(error=error)
    start = work.image.next_producer_id
    if start + BLOCK_COUNT > PRODUCER_ID_MAX:
        return AllocateProducerIdsResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR)
    work.write(
        ProducerIds(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=ProducerId(start + BLOCK_COUNT),
        )
    )
    return AllocateProducerIdsResponse(producer_id_start=start, producer_id_count=BLOCK_COUNT)
