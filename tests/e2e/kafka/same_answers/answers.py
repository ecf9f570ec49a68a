"""Converts responses to values by path, without values that may differ between two clusters, and compares them."""

from __future__ import annotations

import struct
import uuid
from typing import Any, Final

Answer = dict[str, Any]
"""Values by path, such as `topics[orders].partitions[0].error_code`."""

_LEFT_OUT: Final = frozenset(
    {
        "throttle_time_ms",
        "port",
        "finalized_features_epoch",
        "error_message",
        "batch_index_error_message",
    }
)
"""Fields that may differ between the clusters, among them messages, which people read and programs do not."""
GIVEN: Final = "given"
"""The value of the path of an item or struct that the response has; the fields of the item have their own paths."""
_WORDS: Final = {
    "topic_id": "an id",
    "member_id": "a member",
    "leader": "a member",
    "host": "a host",
    "client_host": "a host",
    "cluster_id": "a cluster",
    "log_dir": "a path",
    "principal_name": "a principal",
    "documentation": "a text",
}
_COUNTS: Final = frozenset(
    {
        "producer_id",
        "log_append_time_ms",
        "session_id",
        "broker_epoch",
        "last_timestamp",
        "transaction_start_time_ms",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "coordinator_epoch",
        "log_end_offset",
        "total_bytes",
        "usable_bytes",
        "partition_size",
        "member_epoch",
        "group_epoch",
        "assignment_epoch",
        "heartbeat_interval_ms",
    }
)
"""Numbers of which only the sign is compared."""
_ACL: Final = (
    "resource_type",
    "resource_name",
    "pattern_type",
    "principal",
    "host",
    "operation",
    "permission_type",
)
_IDENTITIES: Final = (
    "name",
    "topic",
    "topic_name",
    "group_id",
    "key",
    "partition_index",
    "partition",
    "index",
    "partition_id",
    "node_id",
    "broker_id",
    "api_key",
    "transactional_id",
    "user",
    "resource_name",
    "feature",
    "principal",
    "entity_name",
    "mechanism",
    "group_instance_id",
    "subtopology_id",
)


def answer_of(response: Any, names: dict[Any, str]) -> Answer:
    """Return the values by path; `names` are the words for values that differ between clusters."""
    if isinstance(response, str):
        return {"": response}
    answer: Answer = {}
    _flatten(response, "", "", names, answer)
    return answer


def _flatten(value: Any, name: str, path: str, names: dict[Any, str], answer: Answer) -> None:
    if isinstance(value, dict):
        if path:
            answer[path] = GIVEN
        for field, inner in value.items():
            if field not in _LEFT_OUT:
                _flatten(inner, field, f"{path}.{field}" if path else field, names, answer)
    elif isinstance(value, list):
        _flatten_items(value, name, path, names, answer)
    else:
        answer[path] = _compared(value, name, names)


def _flatten_items(
    items: list[Any], name: str, path: str, names: dict[Any, str], answer: Answer
) -> None:
    if not items:
        answer[path] = "empty"
        return
    if not isinstance(items[0], dict):
        answer[path] = sorted(str(_compared(each, name, names)) for each in items)
        return
    seen: dict[str, int] = {}
    for item in sorted(items, key=lambda each: str(_identity(each, names))):
        identity = str(_identity(item, names))
        seen[identity] = seen.get(identity, 0) + 1
        number = f"#{seen[identity]}" if seen[identity] > 1 else ""
        _flatten(item, name, f"{path}[{identity}{number}]", names, answer)


def _identity(item: dict[str, Any], names: dict[Any, str]) -> Any:
    if "entity" in item:  # an item of a quota
        return sorted((part["entity_type"], str(part["entity_name"])) for part in item["entity"])
    if "permission_type" in item or "pattern_type" in item:  # an ACL
        fields = (item.get(field) for field in _ACL)
        return [names.get(value, value) for value in fields if value is not None]
    if item.get("member_id") in names:
        return names[item["member_id"]]
    for field in _IDENTITIES:
        if item.get(field) not in (None, ""):
            return names.get(item[field], item[field])
    topic_id = item.get("topic_id")
    return names.get(topic_id, "-") if isinstance(topic_id, uuid.UUID) else "-"


def _compared(value: Any, name: str, names: dict[Any, str]) -> Any:
    if isinstance(value, set):  # authorized operations, which kafka-python reads as a set
        return " ".join(sorted(str(int(each)) for each in value))
    if not isinstance(value, (int, float, bool)) and value in names:
        return names[value]
    if name == "records":
        return batches(bytes(value)) if value else value
    if isinstance(value, uuid.UUID):
        return "an id" if value.int else "zero"
    if name in _WORDS:
        return f"<{_WORDS[name]}>" if value else value
    if name in _COUNTS:
        return "<some>" if value > 0 or (name == "producer_id" and value == 0) else value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    return value


def batches(content: bytes) -> str:
    """Describe record batches: offsets, leader epoch, attributes, the producer's epoch and sequence, records."""
    found = []
    while len(content) >= 61:
        base_offset, size, leader_epoch = struct.unpack(">qii", content[:16])
        if len(content) < 12 + size:
            break
        attributes, last = struct.unpack(">hi", content[21:27])
        epoch, sequence, count = struct.unpack(">hii", content[51:61])
        found.append(
            f"{base_offset}-{base_offset + last} in {leader_epoch}, {attributes:#x}, "
            f"producer {epoch}/{sequence}, {count} records"
        )
        content = content[12 + size :]
    return "; ".join(found) + (f" and {len(content)} bytes" if content else "")


def differences(kafka: Answer, odradek: Answer) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ, of Kafka and of Odradek, by path. If one of them lacks an item, the result has one
    entry for the item instead of one for each of its fields.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for path in [*kafka, *(path for path in odradek if path not in kafka)]:
        expected, got = kafka.get(path, "absent"), odradek.get(path, "absent")
        if expected != got and not any(_holds(outer, path) for outer in found):
            found[path] = _whole(kafka, path, expected), _whole(odradek, path, got)
    return found


def _holds(outer: str, path: str) -> bool:
    return path.startswith(outer) and path[len(outer) : len(outer) + 1] in (".", "[")


def _whole(answer: Answer, path: str, value: Any) -> Any:
    if value != GIVEN:
        return value
    fields = [f"{inner[len(path) :]}={answer[inner]}" for inner in answer if _holds(path, inner)]
    return " ".join(fields)
