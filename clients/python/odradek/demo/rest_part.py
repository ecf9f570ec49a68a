"""The demo's HTTP part: the first flights go through the REST gateway, with nothing but the standard library."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Sequence
from urllib.parse import urlsplit

from odradek.demo.flights import Flight

_BATCH = 500
_TYPE = "application/vnd.kafka.binary.v2+json"


def send_by_rest(gateway_url: str, topic: str, flights: Sequence[Flight]) -> list[str]:
    """Produce in batches; what went wrong, record by record."""
    where = urlsplit(gateway_url)
    assert where.hostname is not None, gateway_url
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    errors: list[str] = []
    try:
        for start in range(0, len(flights), _BATCH):
            batch = flights[start : start + _BATCH]
            records = [
                {
                    "key": None if f.key is None else base64.b64encode(f.key).decode(),
                    "value": base64.b64encode(f.value).decode(),
                }
                for f in batch
            ]
            connection.request(
                "POST",
                f"/topics/{topic}",
                json.dumps({"records": records}),
                {"Content-Type": _TYPE},
            )
            answer = connection.getresponse()
            body = json.loads(answer.read())
            if answer.status != 200:
                errors.append(f"HTTP {answer.status}: {body.get('message')}")
                continue
            errors += [str(one["error"]) for one in body["offsets"] if one["error_code"]]
    finally:
        connection.close()
    return errors
