"""An HTTP service with FastAPI that writes each order to a topic, with one producer for all requests.

A response with status 201 means that all in-sync replicas have the order. If the order could not be written, the
response has status 503 and the reason. The caller may then send the order again. It may then be in the topic twice,
because a write whose acknowledgement was lost also fails (`idempotent_consumer.py` counts such an order once).

    pip install fastapi uvicorn
    python fastapi_service.py [PORT]     default: 8000
    curl -d '{"order": 7, "item": "spool"}' -H 'Content-Type: application/json' localhost:8000/orders
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from odradek import Client
from odradek.errors import OdradekError

TOPIC = "orders"


class Order(BaseModel):
    """The body of a request."""

    order: int
    item: str


def service(connect: Callable[[], Client] = Client) -> FastAPI:
    """Return the application. Tests pass a function that returns a client of a cluster in memory."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # A request waits up to 5 s for the topic's metadata, and up to 10 s for the acknowledgement.
        async with (
            connect() as client,
            client.producer(acks="all", max_block_ms=5_000, delivery_timeout_ms=10_000) as producer,
        ):
            app.state.producer = producer
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def post_order(order: Order, request: Request) -> dict[str, int]:
        try:
            written = await request.app.state.producer.send_and_wait(
                TOPIC, order.model_dump_json().encode(), key=b"%d" % order.order
            )
        except OdradekError as error:
            raise HTTPException(503, str(error)) from error
        return {"partition": written.partition, "offset": written.offset}

    return app


if __name__ == "__main__":
    uvicorn.run(service(), port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
