"""Media types of requests and responses, by which v2 clients and the gateway agree on formats.

The Content-Type of a produce request names its embedded format (`application/vnd.kafka.json.v2+json`);
`application/json` means the format `binary`. In an Accept header, `*/*` allows every format. A wrong Content-Type is
refused with 415, and an Accept header that allows no available media type with 406.

If neither the request nor the response has records, an embedded format has no meaning, but many clients send the same
headers with every request. A route without records therefore accepts the media types of all formats and of both
versions (`NO_RECORDS`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from odradek_gateway.errors import RestError

V2: Final = "application/vnd.kafka.v2+json"
BINARY_V2: Final = "application/vnd.kafka.binary.v2+json"
JSON_V2: Final = "application/vnd.kafka.json.v2+json"
PLAIN: Final = "application/json"
LEGACY: Final = "application/vnd.kafka+json"
V2_BODIES: Final = (V2, PLAIN, LEGACY)
"""Media types of bodies without records, as openapi.json lists them."""
NO_RECORDS: Final = (
    *V2_BODIES,
    "application/vnd.kafka.v1+json",
    *(
        f"application/vnd.kafka.{form}.{version}+json"
        for form in ("binary", "json", "avro", "jsonschema", "protobuf")
        for version in ("v1", "v2")
    ),
)
"""All media types that mean plain JSON if the request and the response have no records."""
_QUALITY: Final = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")
OFFERED_V2: Final = (V2, PLAIN)
EMBEDDED: Final = {BINARY_V2: "binary", JSON_V2: "json", PLAIN: "binary", LEGACY: "binary"}


@dataclass(frozen=True, slots=True)
class _Range:
    kind: str
    subtype: str
    quality: float

    def matches(self, offered: str) -> bool:
        kind, _, subtype = offered.partition("/")
        return self.kind in ("*", kind) and self.subtype in ("*", subtype)

    @property
    def specificity(self) -> int:
        return (self.kind != "*") + (self.subtype != "*")


def accepted(accept: str | None, offered: Sequence[str]) -> str:
    """Return the media type in `offered` with the highest quality in an Accept header; the first one if several have
    the same quality. Without a header return the first media type in `offered`.

    Raises:
        RestError: 406 if none is acceptable.
    """
    if not accept:
        return offered[0]
    ranges = [r for part in accept.split(",") if (r := _parse(part)) is not None]
    best, best_quality = "", 0.0
    for candidate in offered:
        matching = [r for r in ranges if r.matches(candidate)]
        if not matching:
            continue
        quality = max(matching, key=lambda r: r.specificity).quality
        if quality > best_quality:
            best, best_quality = candidate, quality
    if not best:
        raise RestError(
            406,
            406,
            f"HTTP 406 Not Acceptable: the Accept header must allow one of {', '.join(offered)}",
        )
    return best


def accepted_without_records(accept: str | None) -> str:
    """Return the media type of a response without records. It is `V2` if the header allows only embedded formats.

    Raises:
        RestError: 406 if the header allows none of `NO_RECORDS`.
    """
    try:
        return accepted(accept, OFFERED_V2)
    except RestError:
        with contextlib.suppress(RestError):
            accepted(accept, NO_RECORDS)
            return V2
        raise


def headers_for_older_gateways(
    headers: Mapping[str, str], *, carries_records: bool
) -> dict[str, str]:
    """Return the headers for a request that is passed on to another gateway. An older gateway may not accept all of
    `NO_RECORDS`, so media types that mean plain JSON are replaced by `V2`.

    If the response has records (`carries_records`), Accept names their format and is not changed.
    """
    passed_on = dict(headers)
    if base_type(headers.get("content-type")) in NO_RECORDS:
        passed_on["content-type"] = V2
    if not carries_records and "accept" in headers:
        # If the Accept header is not valid, it is passed on unchanged, and the other gateway refuses the request.
        with contextlib.suppress(RestError):
            passed_on["accept"] = accepted_without_records(headers["accept"])
    return passed_on


def embedded_format(content_type: str | None) -> str:
    """Return the format that a produce request's Content-Type names: `binary` or `json`.

    Raises:
        RestError: 415 for any other Content-Type, also for an embedded format that this gateway does not support.
    """
    name = base_type(content_type)
    if name not in EMBEDDED:
        raise RestError(
            415,
            415,
            f"HTTP 415 Unsupported Media Type: {name or 'none'}; use {BINARY_V2} or {JSON_V2}",
        )
    return EMBEDDED[name]


def base_type(content_type: str | None) -> str:
    """Return the media type without parameters, in lower case."""
    return (content_type or "").partition(";")[0].strip().lower()


def _parse(part: str) -> _Range | None:
    name, *parameters = (piece.strip() for piece in part.split(";"))
    kind, slash, subtype = name.lower().partition("/")
    if not slash:
        return _Range("*", "*", 1.0) if name == "*" else None
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            if not _QUALITY.fullmatch(value.strip()):
                return None
            quality = float(value)
    return _Range(kind, subtype, quality)
