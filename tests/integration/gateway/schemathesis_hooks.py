"""Changes what schemathesis sends to the gateway, where openapi.json cannot express a limit."""

from __future__ import annotations

from typing import Any

import schemathesis

PARTITIONS_MAX = 8


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Write whole numbers without a fraction: JSON Schema accepts 7.0 as an integer, and the gateway does not."""
    return _without_fractions(body)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Keep topics small. The gateway allows 10,000 partitions, but they keep a small cluster busy for a minute."""
    path, body = case.operation.path, case.body
    if isinstance(body, dict) and path.startswith("/v3/") and "/topics" in path:
        count = body.get("partitions_count")
        if isinstance(count, int) and PARTITIONS_MAX < count <= 10_000:
            body["partitions_count"] = PARTITIONS_MAX


def _without_fractions(node: Any) -> Any:
    if isinstance(node, float) and node.is_integer() and abs(node) < 2**53:
        return int(node)
    if isinstance(node, list):
        return [_without_fractions(item) for item in node]
    if isinstance(node, dict):
        return {key: _without_fractions(value) for key, value in node.items()}
    return node
