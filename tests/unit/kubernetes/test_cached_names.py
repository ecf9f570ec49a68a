"""The DNS of simulated pods caches as that of most clusters: addresses, and that a name does not exist."""

from __future__ import annotations

import ipaddress
import struct

from tests.integration.deployment.cluster_dns import CACHE_S, CachedNames

POD = "broker-1.broker"
BEGIN_S = 1_000.0
NO_ERROR, NO_SUCH_NAME = 0, 3
ADDRESS_BYTES = (
    16  # an answer: pointer to the name, type, class, seconds to live, length, IPv4 address
)


def asked(names: CachedNames, name: str, now_s: float) -> tuple[int, list[str]]:
    """Return the response code, and the addresses, of a query for the addresses of a name."""
    labels = [label.encode() for label in f"{name}.{names.suffix}".split(".")]
    question = b"".join(bytes([len(label)]) + label for label in labels) + struct.pack(
        ">BHH", 0, 1, 1
    )
    query = struct.pack(">HHHHHH", 42, 0x0100, 1, 0, 0, 0) + question
    response = names.answer(query, now_s)
    number, flags, _, answers, _, _ = struct.unpack_from(">HHHHHH", response)
    assert number == 42
    assert response[12 : len(query)] == question
    records = response[len(query) :]
    assert len(records) == answers * ADDRESS_BYTES
    ends = range(ADDRESS_BYTES, len(records) + 1, ADDRESS_BYTES)
    return flags & 0xF, [str(ipaddress.IPv4Address(records[end - 4 : end])) for end in ends]


def test_an_address_is_repeated_until_the_cache_forgets_it() -> None:
    names = CachedNames("odradek")
    names.publish({POD: ["10.0.0.1"]}, {})
    assert asked(names, POD, BEGIN_S) == (NO_ERROR, ["10.0.0.1"])
    names.publish({POD: ["10.0.0.2"]}, {})
    assert asked(names, POD, BEGIN_S + CACHE_S - 1) == (NO_ERROR, ["10.0.0.1"])
    assert asked(names, POD, BEGIN_S + CACHE_S) == (NO_ERROR, ["10.0.0.2"])


def test_that_a_name_does_not_exist_is_repeated_too() -> None:
    names = CachedNames("odradek")
    assert asked(names, POD, BEGIN_S) == (NO_SUCH_NAME, [])
    names.publish({POD: ["10.0.0.1"]}, {})
    assert asked(names, POD, BEGIN_S + CACHE_S - 1) == (NO_SUCH_NAME, [])
    assert asked(names, POD, BEGIN_S + CACHE_S) == (NO_ERROR, ["10.0.0.1"])


def test_the_name_of_a_service_stands_for_the_pods_of_now() -> None:
    """Its address stays, and kube-proxy, which the simulation does not have, finds the pods behind it."""
    names = CachedNames("odradek")
    for address in ("10.0.0.1", "10.0.0.2"):
        names.publish({}, {"bootstrap": [address]})
        assert asked(names, "bootstrap", BEGIN_S) == (NO_ERROR, [address])
