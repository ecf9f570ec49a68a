"""Content negotiation of REST v2 (406, 415, q-values, defaults), compared with a simple model of
its rules.

The model gets the list of (range, q) from which the test writes the header, and never parses text.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_gateway.errors import RestError
from odradek_gateway.rest.media_types import (
    BINARY_V2,
    JSON_V2,
    LEGACY,
    NO_RECORDS,
    OFFERED_V2,
    PLAIN,
    V2,
    accepted,
    accepted_without_records,
    embedded_format,
    headers_for_older_gateways,
)

OFFERS = (OFFERED_V2, (BINARY_V2, V2), (JSON_V2, V2))
RANGES = [V2, BINARY_V2, JSON_V2, LEGACY, PLAIN, "*/*", "application/*", "text/*", "text/html"]
ACCEPTS = st.lists(
    st.tuples(st.sampled_from(RANGES), st.sampled_from([None, 0, 1, 5, 10, 500, 999, 1000])),
    max_size=6,
    unique_by=lambda item: item[0],
)


def model(ranges: list[tuple[str, int | None]], offered: tuple[str, ...]) -> str | None:
    """Choose a media type by RFC 9110, 12.5.1.

    The most specific range that matches a type decides its quality; the best type wins, and the
    server's order breaks ties.
    """
    if not ranges:
        return offered[0]
    quality: dict[str, Fraction] = {}
    for name in offered:
        major = name.split("/")[0]
        for pattern in (name, f"{major}/*", "*/*"):
            found = [q for text, q in ranges if text == pattern]
            if found:
                quality[name] = Fraction(1000 if found[0] is None else found[0], 1000)
                break
    wanted = [name for name in offered if quality.get(name, 0) > 0]
    return max(wanted, key=lambda name: quality[name], default=None)  # the first of equals


@st.composite
def written(draw: st.DrawFn, ranges: list[tuple[str, int | None]]) -> str:
    """Write an Accept header as clients do: with spaces, capitals, other parameters, and q in any
    form.
    """
    parts = []
    for name, q in ranges:
        text = draw(st.sampled_from([name, name.upper(), name.title()]))
        pad = draw(st.sampled_from(["", " ", "\t "]))
        if draw(st.booleans()) and "*" not in name:
            text += f"{pad};{pad}charset=utf-8"
        if q is not None:
            digits = draw(st.sampled_from([f"{q / 1000:.3f}", f"{q / 1000:g}"]))
            text += f"{pad};{pad}{draw(st.sampled_from('qQ'))}={digits}"
        parts.append(pad + text + pad)
    return ",".join(parts)


@given(st.data(), ACCEPTS, st.sampled_from(OFFERS))
def test_the_best_offered_type_is_chosen_or_406(
    data: st.DataObject, ranges: list[tuple[str, int | None]], offered: tuple[str, ...]
) -> None:
    header = data.draw(written(ranges)) if ranges else data.draw(st.sampled_from([None, ""]))
    expected = model(ranges, offered)
    if expected is None:
        with pytest.raises(RestError) as refused:
            accepted(header, offered)
        assert (refused.value.status, refused.value.error_code) == (406, 406)
    else:
        assert accepted(header, offered) == expected


@given(st.text(max_size=60))
def test_any_text_in_accept_is_answered_or_406(header: str) -> None:
    status = 200
    try:
        chosen = accepted(header, OFFERED_V2)
        assert chosen in OFFERED_V2
    except RestError as refused:
        status = refused.status
    assert status in (200, 406)


@pytest.mark.parametrize("weight", ["nan", "inf", "-1", "2", "1.5", "0.1234", "", "x", "1e-3"])
def test_a_weight_that_is_none_counts_for_nothing(weight: str) -> None:
    with pytest.raises(RestError):
        accepted(f"{V2};q={weight}", OFFERED_V2)


CONTENT_TYPES = {  # what a produce request may come as
    "application/vnd.kafka.binary.v2+json": "binary",
    "application/vnd.kafka.json.v2+json": "json",
    "application/vnd.kafka+json": "binary",
    "application/json": "binary",
}
REFUSED = [
    "application/vnd.kafka.avro.v2+json",
    "application/vnd.kafka.protobuf.v2+json",
    "application/vnd.kafka.jsonschema.v2+json",
    "application/vnd.kafka.v2+json",
    "application/octet-stream",
    "text/plain",
    "*/*",
    "",
]


@given(
    st.sampled_from([*CONTENT_TYPES, *REFUSED]),
    st.sampled_from(["", ";charset=utf-8", " ; charset=UTF-8", ";q=0.1"]),
    st.booleans(),
)
def test_content_type_names_the_embedded_format_or_415(
    name: str, parameters: str, shouts: bool
) -> None:
    header = (name.upper() if shouts else name) + parameters
    if name in CONTENT_TYPES:
        assert embedded_format(header) == CONTENT_TYPES[name]
        return
    with pytest.raises(RestError) as refused:
        embedded_format(header)
    assert (refused.value.status, refused.value.error_code) == (415, 415)


def test_without_a_content_type_a_produce_request_is_415() -> None:
    with pytest.raises(RestError) as refused:
        embedded_format(None)
    assert refused.value.status == 415


EMBEDDED_TYPES = [
    f"application/vnd.kafka.{form}.{version}+json"
    for form in ("binary", "json", "avro", "jsonschema", "protobuf")
    for version in ("v1", "v2")
]


@pytest.mark.parametrize("name", [*EMBEDDED_TYPES, "application/vnd.kafka.v1+json", LEGACY])
def test_a_response_without_records_is_v2_for_clients_that_name_an_embedded_format(
    name: str,
) -> None:
    assert name in NO_RECORDS
    assert accepted_without_records(name) == V2
    assert accepted_without_records(f"text/html, {name.upper()};q=0.5") == V2
    assert accepted_without_records(f"{name};q=0.1, application/json") == PLAIN


@pytest.mark.parametrize(
    "header",
    [
        "text/html",
        "application/vnd.kafka.xml.v2+json",
        "application/vnd.kafka.json.v3+json",
        "application/vnd.kafka.json.v2+json;q=0",
        "application/octet-stream",
    ],
)
def test_a_response_without_records_is_406_for_other_types(header: str) -> None:
    with pytest.raises(RestError) as refused:
        accepted_without_records(header)
    assert (refused.value.status, refused.value.error_code) == (406, 406)


@pytest.mark.parametrize("name", NO_RECORDS)
def test_a_request_that_is_passed_on_names_types_that_older_gateways_take(name: str) -> None:
    headers = {"content-type": f"{name}; charset=utf-8", "accept": name, "authorization": "x"}
    accept = PLAIN if name == PLAIN else V2
    expected = {"content-type": V2, "accept": accept, "authorization": "x"}
    assert headers_for_older_gateways(headers, carries_records=False) == expected
    expected["accept"] = name
    assert headers_for_older_gateways(headers, carries_records=True) == expected


def test_a_request_that_is_passed_on_keeps_what_is_to_be_refused() -> None:
    headers = {"content-type": "text/plain", "accept": "text/html"}
    assert headers_for_older_gateways(headers, carries_records=False) == headers
    assert headers_for_older_gateways({}, carries_records=False) == {}
