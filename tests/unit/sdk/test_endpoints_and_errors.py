"""Addresses in the forms in which users write them, and errors that say what to do."""

from __future__ import annotations

import inspect

import grpc
import pytest

from odradek import errors
from odradek.cluster.backoff import Backoff
from odradek.cluster.endpoints import parse_bootstrap
from odradek.cluster.grpc_errors import translated
from odradek.cluster.methods import WATCH_METADATA
from odradek.consumer.options import ConsumerOptions
from odradek.errors import InvalidConfig, OdradekError, WrongListener, error_of
from odradek.producer.options import ProducerOptions
from odradek_protocol.kafka.error_codes import ErrorCode


def test_bootstrap_is_a_list_a_string_or_the_environment() -> None:
    expected = ("a:1", "b:2", "[::1]:3")
    assert parse_bootstrap("a:1, b:2,[::1]:3,a:1") == expected
    assert parse_bootstrap(["a:1", "b:2", "[::1]:3"]) == expected
    assert parse_bootstrap(None, {"ODRADEK_BOOTSTRAP": "a:1,b:2,[::1]:3"}) == expected


@pytest.mark.parametrize(
    ("bootstrap", "reason"),
    [
        ("host", "it has no port"),
        (":9090", "it has no port"),
        ("host:http", "'http' is not a port"),
        ("host:0", "'0' is not a port"),
        ("host:65536", "'65536' is not a port"),
        ("::1:9090", "needs [brackets]"),
        ("http://host:9090", "it has a scheme"),
        (" , ", "is empty"),
    ],
)
def test_a_bad_address_is_named_with_what_is_wrong(bootstrap: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_bootstrap(bootstrap)
    assert reason in str(caught.value)
    assert "HOST:PORT" in str(caught.value)


@pytest.mark.parametrize("environment", [{}, {"ODRADEK_BOOTSTRAP": " "}])
def test_without_an_address_it_is_the_one_that_a_local_cluster_has(
    environment: dict[str, str],
) -> None:
    assert parse_bootstrap(None, environment) == ("127.0.0.1:9090",)


@pytest.mark.parametrize("code", [c for c in ErrorCode if c is not ErrorCode.NONE])
def test_every_code_has_a_leaf_that_keeps_it(code: ErrorCode) -> None:
    error = error_of(code, "topic 'x'", "the broker's words")
    assert error.code is code
    assert "topic 'x'" in str(error)
    assert "the broker's words" in str(error)
    assert type(error) is not OdradekError


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("topic orders exists already", "topic orders exists already"),
        ("topic 'orders' exists already", "topic 'orders' exists already"),
        ("topic orders2 exists already", "topic 'orders': topic orders2 exists already"),
        ("", "topic 'orders': topic already exists"),
    ],
)
def test_a_subject_that_the_broker_names_is_not_named_twice(message: str, text: str) -> None:
    assert error_of(ErrorCode.TOPIC_ALREADY_EXISTS, "topic 'orders'", message).message == text


def test_a_code_from_the_future_is_a_server_fault() -> None:
    assert isinstance(error_of(31_000, "x"), errors.ServerFault)


def test_what_brokers_call_retriable_is_retriable_here_or_tells_the_way_out() -> None:
    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            error = error_of(code, "x")
            assert (
                not error.retriable or code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE
            ), code


def test_all_errors_are_in_one_tree() -> None:
    leaves = [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__
    ]
    assert len(leaves) > 25
    assert all(issubclass(leaf, OdradekError) and leaf.__doc__ for leaf in leaves)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", 2),
        ("linger_ms", -1),
        ("batch_bytes_max", 0),
        ("batch_bytes_max", 2_000_000),
        ("request_bytes_max", 1 << 30),
        ("max_in_flight", 6),
        ("compression", "brotli"),
        ("delivery_timeout_ms", 0),
    ],
)
def test_a_bad_producer_option_is_named_with_what_is_allowed(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=rf"{name} is .*; allowed: "):
        ProducerOptions(**{name: value})  # type: ignore[arg-type]


def test_a_misspelt_option_of_the_sdk_is_corrected() -> None:
    with pytest.raises(InvalidConfig, match=r"earliest, latest, error; did you mean earliest\?"):
        ConsumerOptions(auto_offset_reset="earlyest")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match=r"did you mean zstd\?"):
        ProducerOptions(compression="zsdt")
    with pytest.raises(InvalidConfig, match=r"allowed: 0 to 60000$"):
        ProducerOptions(linger_ms=-1)


def test_idempotence_needs_all_acknowledgements() -> None:
    assert ProducerOptions().is_idempotent
    assert not ProducerOptions(acks=1).is_idempotent
    with pytest.raises(InvalidConfig, match="acks='all'"):
        ProducerOptions(acks=1, enable_idempotence=True)


def test_backoff_doubles_up_to_its_bound_and_jitter_only_shortens_it() -> None:
    backoff = Backoff(first_ms=20, most_ms=1_000, jitter=0.2)
    assert [backoff.after(n, 0.0) for n in range(1, 9)] == [20, 40, 80, 160, 320, 640, 1000, 1000]
    assert backoff.after(1_000_000, 0.0) == 1_000
    assert 800 <= backoff.after(9, 0.999) <= 1_000


async def test_a_listener_without_tls_is_named_instead_of_the_tls_librarys_error() -> None:
    details = (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9090: Tls handshake failed"
        " (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7:SSL"
        " routines:OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid certificate verification context: OK"
    )
    error = await translated(grpc.StatusCode.UNAVAILABLE, details, "127.0.0.1:9090", "Metadata")
    assert isinstance(error, WrongListener)
    assert error.reason == "the listener does not use TLS"
    assert error.hint.startswith("connect without TLS")


async def test_the_listener_for_replication_is_not_called_an_old_broker() -> None:
    watch = await translated(
        grpc.StatusCode.UNIMPLEMENTED, "", "127.0.0.1:9093", WATCH_METADATA.name
    )
    other = await translated(grpc.StatusCode.UNIMPLEMENTED, "", "127.0.0.1:9090", "NewMethod")
    assert "listener for replication" in str(watch)
    assert "upgrade the broker" in str(other)
