"""Changes the metadata at the active controller, and waits until this broker's image includes the change.

A change is committed when the controller responds, but this broker receives it through its metadata feed a moment
later. The response contains the offset of the entry that made the change (`metadata_offset`), and `change` waits for
exactly that entry, so that a client that reads from this broker next sees its own write. Changes by other clients
neither end the wait nor extend it.

The wait is bounded: the change stays committed when the feed is slow or broken, and the caller still gets its response.
The response to the client contains the offset, too, so that the client can let any other broker wait for the entry
(`MetadataRequest.min_metadata_offset`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import grpc.aio
from google.protobuf.message import Message

from odradek_broker.cluster.controller_client import NoController
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.rpc.v1 import controller_service_pb2 as controller_pb
from odradek_runtime.clock import monotonic_ms

READABLE_S_MAX: Final = 2.0


class Images(Protocol):
    """This broker's image of the metadata, and notifications of its changes."""

    @property
    def image(self) -> MetadataImage: ...

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        """Call `watcher` after each change of the image, until the returned function is called."""


class Controllers(Protocol):
    """Calls to the active controller, as `ControllerClient` makes them."""

    async def call(
        self, method: str, request: Message, *, timeout_s: float, is_admin: bool = False
    ) -> Any: ...  # the response to `request`


async def change(
    controllers: Controllers, images: Images, method: str, request: Message, *, timeout_s: float
) -> Any:  # the response to `request`
    """Call a method of AdminService that changes metadata, and wait until the image includes the change.

    The call and the wait together take at most `timeout_s`. Raises the exceptions of `ControllerClient.call`.
    """
    deadline_ms = monotonic_ms() + int(timeout_s * 1000)
    response = await controllers.call(method, request, timeout_s=timeout_s, is_admin=True)
    if not response.metadata_offset:
        response.metadata_offset = await _committed_offset(controllers, deadline_ms)
    await at_least(images, response.metadata_offset, timeout_s=_seconds_left(deadline_ms))
    return response


async def at_least(images: Images, metadata_offset: int, *, timeout_s: float) -> bool:
    """Wait until the image includes the metadata entry at this offset, for at most `timeout_s` and READABLE_S_MAX.
    Return whether the image includes it.
    """
    if images.image.offset >= metadata_offset:
        return True
    is_included = asyncio.Event()

    def look(image: MetadataImage) -> None:
        if image.offset >= metadata_offset:
            is_included.set()

    unwatch = images.watch_image(look)
    try:
        async with asyncio.timeout(min(timeout_s, READABLE_S_MAX)):
            await is_included.wait()
    except TimeoutError:
        return False
    finally:
        unwatch()
    return True


async def _committed_offset(controllers: Controllers, deadline_ms: int) -> int:
    """Ask the controller for the offset of the last committed entry, because an older controller's response to a change
    has no offset.

    That entry is the change itself or a later one. Return 0 if no controller responds.
    """
    timeout_s = min(_seconds_left(deadline_ms), READABLE_S_MAX)
    try:
        quorum: controller_pb.DescribeQuorumResponse = await controllers.call(
            "DescribeQuorum", controller_pb.DescribeQuorumRequest(), timeout_s=timeout_s
        )
    except (NoController, grpc.aio.AioRpcError):
        return 0
    return max(0, quorum.commit_offset - 1)


def _seconds_left(deadline_ms: int) -> float:
    return max(0.0, (deadline_ms - monotonic_ms()) / 1000)
