"""The type checker knows the fields of Kafka's messages, and the request and response types of each
handler.
"""

from __future__ import annotations

import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest

from odradek_broker.access.rights import KAFKA_GUARDS, Guard
from odradek_broker.kafka.registry import handles, load_handlers
from odradek_broker.kafka.request import Encoded, NoResponse, Request
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.fetch import FetchRequest
from odradek_protocol.kafka.group_messages import HeartbeatMessage, OffsetCommit
from odradek_protocol.kafka.messages import MESSAGES, HeartbeatRequest, HeartbeatResponse
from odradek_protocol.kafka.produce import ProduceRequest

ROOT = Path(__file__).parents[3]
HANDLERS = """
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.kafka.messages import MetadataRequest, MetadataResponse

@handles(MetadataRequest)
async def right(request: Request[MetadataRequest]) -> MetadataResponse:
    names = [topic.name for topic in request.message.topics or ()]
    return MetadataResponse(cluster_id=str(len(names)))

@handles(MetadataRequest)
async def wrong(request: Request[MetadataRequest]) -> MetadataResponse:
    request.message.topicz  # no such field
    request.message.topics[0]  # None means all topics
    return MetadataResponse(cluster=1)  # no such argument

@handles(MetadataRequest)  # not the message that the handler takes
async def other(request: Request[MetadataResponse]) -> MetadataResponse:
    return MetadataResponse()
"""


def test_the_type_checker_sees_wrong_fields_and_wrong_messages(tmp_path: Path) -> None:
    place = tmp_path / "handlers.py"
    place.write_text(HANDLERS)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(place)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    numbers = {number for number, line in enumerate(HANDLERS.splitlines(), 1) if "  # " in line}
    errors = [line.split(":")[1] for line in done.stdout.splitlines() if ": error: " in line]
    assert set(map(int, errors)) == numbers, done.stdout + done.stderr
    assert '"MetadataRequest" has no attribute "topicz"' in done.stdout


@pytest.mark.interpreted
@pytest.mark.parametrize("key", sorted(load_handlers()), ids=lambda key: key.name)
def test_a_handler_takes_its_request_and_returns_its_response(key: ApiKey) -> None:
    handle = load_handlers()[key].handle
    hints = typing.get_type_hints(handle)
    own = {
        ApiKey.PRODUCE: ProduceRequest,
        ApiKey.FETCH: FetchRequest,
        ApiKey.OFFSET_COMMIT: OffsetCommit,
        ApiKey.HEARTBEAT: HeartbeatMessage,
    }
    (request,) = typing.get_args(hints["request"])
    assert request is own.get(key, MESSAGES[key].request)
    assert set(_classes(hints["return"])) <= {MESSAGES[key].response, Encoded, NoResponse}


def _classes(hint: typing.Any) -> typing.Iterator[type]:
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        yield hint
        return
    for inner in typing.get_args(hint):
        yield from _classes(inner)


def test_every_version_of_a_field_is_in_the_stub() -> None:
    stub = (ROOT / "proto/python/odradek_protocol/kafka/messages.pyi").read_text()
    for key, pair in MESSAGES.items():
        for message in pair:
            _, _, text = stub.partition(f"\nclass {message.__name__}(Message):\n")
            text = text.partition("\nclass ")[0]
            for field in message._struct.untagged_fields(SUPPORTED[key].highest):
                assert f"\n    {field.name}: " in f"\n{text}", (message.__name__, field.name)


def test_a_guarded_api_needs_a_refusal_and_only_such_a_one() -> None:
    assert KAFKA_GUARDS[ApiKey.HEARTBEAT] == Guard(
        Operation.READ, ResourceType.GROUP, ApiKey.HEARTBEAT, None
    )

    def heartbeat(_request: Request[HeartbeatRequest]) -> HeartbeatResponse:
        return HeartbeatResponse()

    with pytest.raises(AssertionError, match="HEARTBEAT"):
        handles(HeartbeatRequest)(heartbeat)
