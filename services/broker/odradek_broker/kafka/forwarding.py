"""Administration is the controller's: how a handler asks it, and waits to see what came of it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from odradek_broker.cluster.controller_client import NoController
from odradek_broker.kafka.request import Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage

_TIMEOUT_S_MIN: Final = 1.0
_TIMEOUT_S_DEFAULT: Final = 10.0
_TIMEOUT_S_MAX: Final = 60.0
_SEEN_S_MAX: Final = 2.0


class Unanswered(Exception):
    """No controller answered in time: it may have been done, or not. Clients retry that."""

    code: Final = ErrorCode.REQUEST_TIMED_OUT


async def ask_controller(
    request: Request,
    method: str,
    message: Message,
    *,
    timeout_ms: int = 0,
    is_admin: bool = True,
) -> Any:  # the answer to `message`
    """The active controller's answer; raises Unanswered."""
    timeout_s = timeout_ms / 1000 if timeout_ms > 0 else _TIMEOUT_S_DEFAULT
    try:
        return await request.services.controllers.call(
            method,
            message,
            timeout_s=min(max(timeout_s, _TIMEOUT_S_MIN), _TIMEOUT_S_MAX),
            is_admin=is_admin,
        )
    except (NoController, grpc.aio.AioRpcError) as error:
        raise Unanswered(f"{method}: {error}") from None


async def change(
    request: Request, method: str, message: Message, *, timeout_ms: int = 0
) -> Any:  # the answer to `message`
    """Have the controller change something, and wait a moment until this broker has heard of it,
    so that who asks here next sees it. Raises Unanswered."""
    before = request.services.image.offset
    answer = await ask_controller(request, method, message, timeout_ms=timeout_ms)
    moved = asyncio.Event()

    def look(image: MetadataImage) -> None:
        if image.offset > before:
            moved.set()

    unwatch = request.services.partitions.watch_image(look)
    try:
        look(request.services.image)
        if _changed_something(answer):
            async with asyncio.timeout(_SEEN_S_MAX):
                await moved.wait()
    except TimeoutError:
        pass  # it is committed; who reads here will see it late
    finally:
        unwatch()
    return answer


def _changed_something(answer: Message) -> bool:
    """Whether the answer tells of any success."""
    if hasattr(answer, "error_code") and answer.error_code != ErrorCode.NONE:
        return False
    items = [
        item
        for field, value in answer.ListFields()
        if field.is_repeated and field.message_type is not None
        for item in value
    ]
    return not items or any(getattr(item, "error_code", 0) == ErrorCode.NONE for item in items)
