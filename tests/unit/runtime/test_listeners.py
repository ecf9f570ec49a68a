"""Addresses of listeners, and the errors if a process may not or cannot listen there."""

from __future__ import annotations

import socket

import pytest

from odradek_runtime.listeners import (
    ListenerAddress,
    ListenRefused,
    host_port,
    open_port,
    parse_endpoints,
    parse_listeners,
    refuse_open_without_tls,
    split_host_port,
)


def test_listeners_are_read_as_kafka_writes_them() -> None:
    assert parse_listeners("grpc://:9090, KAFKA://[::1]:9092") == (
        ListenerAddress(name="GRPC", host="", port=9090),
        ListenerAddress(name="KAFKA", host="::1", port=9092),
    )


@pytest.mark.parametrize("text", ["KAFKA", "KAFKA://host", "A://h:1,A://h:2", "A://h:99999"])
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_listeners(text)


def test_voters_have_an_id_and_an_address() -> None:
    assert parse_endpoints("1@a:3,2@[::1]:4") == ((1, "a", 3), (2, "::1", 4))
    with pytest.raises(ValueError, match="twice"):
        parse_endpoints("1@a:3,1@b:4")
    with pytest.raises(ValueError, match="2147483648 is not from 0 to 2147483647"):
        parse_endpoints("2147483648@a:3")


def test_addresses_survive_a_round_trip() -> None:
    for text in ("host:1", "[::1]:65535", "127.0.0.1:0"):
        assert host_port(*split_host_port(text)) == text


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.1.2.3", "broker.example"])
def test_an_open_listener_without_tls_is_refused(host: str) -> None:
    listener = ListenerAddress(name="GRPC", host=host, port=1)
    with pytest.raises(ListenRefused, match="--insecure"):
        refuse_open_without_tls([listener], has_tls=False, insecure=False)
    refuse_open_without_tls([listener], has_tls=True, insecure=False)
    refuse_open_without_tls([listener], has_tls=False, insecure=True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_needs_no_tls(host: str) -> None:
    listener = ListenerAddress(name="GRPC", host=host, port=1)
    refuse_open_without_tls([listener], has_tls=False, insecure=False)


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenRefused, match=f"port {port} .* is in use.*set another port"):
            open_port(ListenerAddress(name="GRPC", host="127.0.0.1", port=port))


def test_a_foreign_address_is_named() -> None:
    with pytest.raises(ListenRefused, match=r"203\.0\.113\.1 is not an address of this machine"):
        open_port(ListenerAddress(name="GRPC", host="203.0.113.1", port=0))
