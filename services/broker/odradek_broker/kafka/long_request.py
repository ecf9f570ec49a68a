"""A long request. It is decoded and handled in steps, between which the event loop does other work."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Final

from odradek_broker.kafka.registry import Handler, Response
from odradek_broker.kafka.request import ClientSession, Request
from odradek_broker.kafka.response_line import Slot
from odradek_broker.kafka.services import Services
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_runtime.budget.client_budget import decoded_bytes

_WAITS_FOR_OTHERS: Final = frozenset(
    {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT}
)
"""Requests that wait for records or for other group members. The limits of fetch sessions and groups bound the memory
of these requests, so `long_request` does not count this memory.
"""


async def long_request(
    slot: Slot,
    handler: Handler,
    body: memoryview,
    decoding: Generator[None, None, object] | None,
    session: ClientSession,
    services: Services,
) -> Response:
    """Decode and handle the request of a slot. `decoding` is its decoder if that was started already; otherwise None.

    The decoded message counts against the memory share of its client (`session.owner`) until the response is known. If
    the share is used up, the request waits.
    """
    pace = services.budget.turns.pace(session.owner)
    weight = 0 if handler.key in _WAITS_FOR_OTHERS else decoded_bytes(len(body))
    async with services.budget.decoded.held(session.owner, weight):
        await pace.turn()
        request = slot.request = Request(
            key=handler.key,
            version=slot.version,
            client_id=slot.client_id,
            message=await pace.run(decoding or handler.decode_in_steps(slot.version, body)),
            session=session,
            services=services,
            _pace=pace,
        )
        result = handler.handle(request)
        return await result if isinstance(result, Awaitable) else result
