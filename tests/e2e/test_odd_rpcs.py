"""Odd messages to every RPC for clients get a response or a status, and have no other effect.

They have numbers at their limits, enum values that do not exist, ids of wrong sizes, strings of
every kind, repeated items, unknown fields and missing bytes, in unary calls and in streams.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from odradek.client import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.kafka.test_odd_values import errors_in_logs
from tests.unit.kafka.odd_requests import STRINGS
from tests.unit.security.largest_rpcs import SERVICES

METHODS: Final = [(service, method) for service in SERVICES for method in service.methods]
NAMES: Final = ("orders", "payments", "group", "uniform", "bob", "retention.ms", "1000")
IDS: Final = (b"", b"abc", bytes(16), b"\xff" * 16, b"x" * 17, b"x" * 5000, b"s" * 16)
STREAM_S: Final = 0.3  # how long to read from a stream, which stays open
CALL_S: Final = 30.0
FAULTS: Final = {"UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED", "unknown error"}
_BITS: Final = {
    FieldDescriptor.TYPE_INT32: 32,
    FieldDescriptor.TYPE_SINT32: 32,
    FieldDescriptor.TYPE_INT64: 64,
    FieldDescriptor.TYPE_SINT64: 64,
}


class OddMessages:
    """Draws messages from a seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def request(self, method: Any) -> bytes:
        message = GetMessageClass(method.input_type)()
        self._fill(message, self._draw.choice((0.05, 0.2, 0.6)))
        data: bytes = message.SerializeToString()
        if self._draw.random() < 0.15:
            data += b"\xfa\x3f\x03abc"  # an unknown field
        if data and self._draw.random() < 0.1:
            data = data[: self._draw.randrange(len(data))]
        return data

    def _fill(self, message: Any, oddness: float) -> None:
        draw = self._draw
        chosen = set()
        for field in message.DESCRIPTOR.fields:
            union = field.containing_oneof
            if draw.random() < 0.25 or (union is not None and union.name in chosen):
                continue
            if union is not None and len(union.fields) > 1:
                chosen.add(union.name)
            kind = field.message_type
            if kind is not None and kind.GetOptions().map_entry:
                for _ in range(draw.choice((0, 1, 2))):
                    key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
                    getattr(message, field.name)[self._leaf(key, oddness)] = self._leaf(
                        value, oddness
                    )
            elif field.is_repeated:
                self._fill_repeated(getattr(message, field.name), field, oddness)
            elif kind is not None:
                getattr(message, field.name).SetInParent()
                self._fill(getattr(message, field.name), oddness)
            else:
                setattr(message, field.name, self._leaf(field, oddness))

    def _fill_repeated(self, items: Any, field: Any, oddness: float) -> None:
        for _ in range(self._draw.choice((0, 1, 1, 2, 3))):
            if field.message_type is not None:
                self._fill(items.add(), oddness)
            else:
                items.append(self._leaf(field, oddness))
        if len(items) and self._draw.random() < oddness:
            items.append(items[0])

    def _leaf(self, field: Any, oddness: float) -> Any:
        draw = self._draw
        is_odd = draw.random() < oddness
        if field.type == field.TYPE_STRING:
            return draw.choice(STRINGS if is_odd else NAMES)
        if field.type == field.TYPE_BYTES:
            return draw.choice(IDS)
        if field.type == field.TYPE_BOOL:
            return draw.random() < 0.5
        if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
            return draw.choice((float("nan"), float("inf"), -1.0, 0.0, 1e308, 5.0))
        if field.type == field.TYPE_ENUM:
            known = [value.number for value in field.enum_type.values]
            return draw.choice((-1, 99, (1 << 31) - 1) if is_odd else known)
        if "timeout" in field.name or "wait" in field.name:
            return draw.choice((0, 1, 20))
        bits = _BITS.get(field.type)
        if bits is None:
            return draw.choice((0, 1, 5))
        highest = (1 << (bits - 1)) - 1
        ends = (highest, -highest - 1, -2, -1, 0, 1, 100)
        return draw.choice(ends if is_odd else (0, 0, 1, 1, -1))


def has_unknown_error(message: Any) -> bool:
    """Return whether an error code in a response is UNKNOWN_SERVER_ERROR."""
    for field, value in message.ListFields():
        if field.name.endswith("error_code") and not field.is_repeated and value == -1:
            return True
        kind = field.message_type
        if kind is not None and not kind.GetOptions().map_entry:
            inner = value if field.is_repeated else [value]
            if any(map(has_unknown_error, inner)):
                return True
    return False


async def outcome_of(channel: grpc.aio.Channel, service: Any, method: Any, data: bytes) -> str:
    """Send the request, and return the status, or that the response had an unknown error code."""
    is_stream = method.client_streaming or method.server_streaming
    call: Any = channel.stream_stream(
        f"/{service.full_name}/{method.name}",
        request_serializer=lambda raw: raw,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )(timeout=CALL_S)
    try:
        await call.write(data)
        if not is_stream:
            await call.done_writing()
        async with asyncio.timeout(STREAM_S if is_stream else CALL_S):
            while (response := await call.read()) is not grpc.aio.EOF:
                if has_unknown_error(response):
                    return "unknown error"
        return str((await call.code()).name)
    except TimeoutError:
        return "open"
    except grpc.aio.AioRpcError as error:
        return error.code().name
    except asyncio.InvalidStateError:  # the server ended the call while it was written to
        return str((await call.code()).name)
    finally:
        call.cancel()


@pytest.fixture
def victims() -> Iterator[EmbeddedCluster]:
    """Yield a cluster that no other test needs afterwards."""
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("seed", "rounds"), [(1, 4), pytest.param(2, 300, marks=pytest.mark.long)])
async def test_odd_messages(victims: EmbeddedCluster, seed: int, rounds: int) -> None:
    messages = OddMessages(seed)
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    async with Client(victims.bootstrap) as client:
        await client.admin.create_topic("orders", partitions=2, replication_factor=1)
    async with grpc.aio.insecure_channel(victims.bootstrap) as channel:
        for _ in range(rounds):
            for service, method in METHODS:
                data = messages.request(method)
                outcome = await outcome_of(channel, service, method, data)
                outcomes[outcome] += 1
                if outcome in FAULTS:
                    faults.append(f"{outcome}: {method.name} {data[:300].hex()}")
    print(outcomes)
    assert not faults, "\n".join(faults[:10])
    assert not errors_in_logs(victims)
    assert all(child.is_running for child in victims.children())
    assert outcomes["OK"] > rounds
    async with Client(victims.bootstrap) as client:
        await client.admin.create_topic("after", partitions=1, replication_factor=1)
        async with client.producer() as producer:
            await producer.send_and_wait("after", b"x")
