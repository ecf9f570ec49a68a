"""Request and response between microservices: a shop requests prices, and a pricing service responds.

The shop sends a request with two headers, a correlation id and the topic for the response, and waits for the response.
The service knows nothing about the shop. If the shop or the service restarts, the other does not notice, because
requests and responses wait in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from typing import Any

from odradek import Client, Producer
from odradek.errors import TopicExists

REQUESTS = "pricing.requests"
REPLIES = "shop.replies"
PRICES = {"spool": 3.5, "thread": 0.4}
REPLY_S_MAX = 30.0


async def pricing_service(client: Client) -> None:
    """Respond to requests until the task is cancelled."""
    async with client.consumer(REQUESTS) as consumer, client.producer() as producer:
        consumer.seek_to_beginning()
        async for request in consumer:
            headers = dict(request.headers)
            order = json.loads(request.value)
            unit = PRICES.get(order["item"])
            reply = {"error": "no such item"} if unit is None else {"total": unit * order["count"]}
            await producer.send(
                (headers["reply-to"] or b"").decode(),
                json.dumps(reply).encode(),
                key=request.key,
                headers=[("correlation-id", headers["correlation-id"])],
            )


class Shop:
    """Requests prices. One task reads all responses, and passes each to the call that waits for it."""

    def __init__(self, client: Client, producer: Producer) -> None:
        self._client = client
        self._producer = producer
        self._waiting: dict[bytes, asyncio.Future[dict[str, Any]]] = {}

    async def price(self, item: str, count: int) -> dict[str, Any]:
        """Request a price and return the response. Raises TimeoutError."""
        correlation_id = uuid.uuid4().bytes
        reply = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        try:
            await self._producer.send(
                REQUESTS,
                json.dumps({"item": item, "count": count}).encode(),
                key=item.encode(),
                headers=[("correlation-id", correlation_id), ("reply-to", REPLIES.encode())],
            )
            return await asyncio.wait_for(reply, REPLY_S_MAX)
        finally:
            del self._waiting[correlation_id]

    async def read_replies(self) -> None:
        """Read responses until the task is cancelled. Responses to requests from before a restart are ignored."""
        async with self._client.consumer(REPLIES) as consumer:
            consumer.seek_to_beginning()
            async for record in consumer:
                waiting = self._waiting.get(dict(record.headers)["correlation-id"] or b"")
                if waiting is not None and not waiting.done():
                    waiting.set_result(json.loads(record.value))


async def main() -> None:
    async with Client() as client:
        for topic in (REQUESTS, REPLIES):
            with contextlib.suppress(TopicExists):
                await client.admin.create_topic(topic, partitions=3, replication_factor=1)
        async with client.producer() as producer:
            shop = Shop(client, producer)
            services = [
                asyncio.create_task(pricing_service(client)),
                asyncio.create_task(shop.read_replies()),
            ]
            orders = [("spool", n) if n % 2 else ("thread", n) for n in range(1, 41)]
            replies = await asyncio.gather(*(shop.price(*order) for order in orders))
            unknown = await shop.price("bridge", 1)
            for service in services:
                service.cancel()
            await asyncio.gather(*services, return_exceptions=True)
    total = sum(reply["total"] for reply in replies)
    print(f"{len(replies)} orders for {total:.2f} in all; a bridge: {unknown['error']}")


if __name__ == "__main__":
    asyncio.run(main())
