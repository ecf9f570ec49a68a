"""DescribeGroups shows the topics of a classic group's members only to clients that may describe
those topics.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from odradek_broker.access.authorizer import AclAuthorizer
from odradek_broker.kafka.requests.groups.group_admin import _sees_topics
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.kafka.api_keys import ApiKey
from tests.unit.kafka import fake_broker
from tests.unit.security.acl_entries import entries_for

NAME = b"payments"
SUBSCRIPTION = struct.pack(">hih", 0, 1, len(NAME)) + NAME + struct.pack(">i", -1)
ASSIGNMENT = struct.pack(">hih", 0, 1, len(NAME)) + NAME + struct.pack(">iii", 1, 0, -1)


@pytest.mark.parametrize(
    ("metadata", "assignment", "may_describe", "protocol_type", "sees"),
    [
        (SUBSCRIPTION, b"", False, "consumer", False),
        (SUBSCRIPTION, b"", True, "consumer", True),
        (b"", ASSIGNMENT, False, "consumer", False),
        (b"", b"", False, "consumer", True),
        (b"\x00\x01\xff", b"", True, "consumer", False),
        (b"anything", b"", False, "connect", True),
    ],
)
def test_only_whoever_may_describe_the_topics_is_told(
    metadata: bytes, assignment: bytes, may_describe: bool, protocol_type: str, sees: bool
) -> None:
    authorizer = AclAuthorizer()
    if may_describe:
        right = (Operation.DESCRIBE, ResourceType.TOPIC, NAME.decode())
        authorizer.entries_changed(entries_for("User:alice", [right]))
    request = fake_broker.request(fake_broker.services(authorizer), ApiKey.DESCRIBE_GROUPS, 6, None)
    member = SimpleNamespace(metadata=metadata, assignment_bytes=assignment)
    group: Any = SimpleNamespace(protocol_type=protocol_type, members=[member])
    assert _sees_topics(request, group) is sees
