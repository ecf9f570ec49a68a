"""Addresses on which a broker refuses to listen, and listener settings that it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odradek_broker import process
from odradek_broker.kafka.listener import refuse_unencrypted_listeners
from odradek_broker.listener_settings import is_kafka_listener
from odradek_broker.settings import BrokerSettings
from odradek_runtime.listeners import ListenRefused, parse_listeners
from odradek_runtime.settings import SettingsError

OPEN, HOME, V6 = "KAFKA://0.0.0.0:1", "KAFKA://127.0.0.1:1", "KAFKA://[::1]:1"
INTERNAL = ",GRPC://127.0.0.1:1,REPLICATION://127.0.0.1:1"
TLS = {"ssl_certificate": "c", "ssl_key": "k", "ssl_ca": "a"}
SCRAM = {"sasl_mechanisms": ("SCRAM-SHA-256",)}


def settings(listeners: str, **more: Any) -> BrokerSettings:
    return BrokerSettings(
        node_id=1,
        log_dir=Path("/nowhere"),
        controllers=((1, "127.0.0.1", 1),),
        listeners=parse_listeners(listeners + INTERNAL),
        advertised_listeners=parse_listeners("KAFKA://broker:1"),
        **more,
    )


@pytest.mark.parametrize(
    ("listeners", "more", "is_allowed"),
    [
        (HOME, {}, True),
        (V6, {}, True),
        (OPEN, {}, False),
        (OPEN, SCRAM, False),
        (OPEN, TLS, True),
        (OPEN, {**TLS, **SCRAM}, True),
        (OPEN, {**TLS, **SCRAM, "security_protocols": (("KAFKA", "SASL_PLAINTEXT"),)}, False),
        (
            HOME + ",KAFKA_OUT://0.0.0.0:1",
            {**TLS, "security_protocols": (("KAFKA_OUT", "PLAINTEXT"),)},
            False,
        ),
    ],
)
def test_beyond_loopback_a_listener_is_encrypted_itself(
    listeners: str, more: dict[str, Any], is_allowed: bool
) -> None:
    made = settings(listeners, **more)
    refuse_unencrypted_listeners(made, insecure=True)
    if is_allowed:
        refuse_unencrypted_listeners(made, insecure=False)
    else:
        with pytest.raises(ListenRefused, match="listener KAFKA"):
            refuse_unencrypted_listeners(made, insecure=False)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"security_protocols": (("KAFKA", "SSL"),)}, "ssl.certificate.location"),
        ({"security_protocols": (("KAFKA", "SASL_PLAINTEXT"),)}, "sasl.enabled.mechanisms"),
        ({"sasl_mechanisms": ("PLAIN",)}, "PLAIN may be used under TLS only"),
        ({"sasl_mechanisms": ("GSSAPI",)}, "GSSAPI"),
    ],
)
def test_settings_that_cannot_work_are_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        settings(HOME, **more).check()


@pytest.mark.parametrize(
    ("name", "more", "protocol"),
    [
        ("PLAINTEXT", {}, "PLAINTEXT"),
        ("PLAINTEXT", TLS, "PLAINTEXT"),
        ("SSL", TLS, "SSL"),
        ("CLIENTS", {"security_protocols": (("CLIENTS", "PLAINTEXT"),)}, "PLAINTEXT"),
        ("OUTSIDE", {**TLS, "security_protocols": (("OUTSIDE", "SSL"),)}, "SSL"),
        ("KAFKA_OUT", TLS, "SSL"),
    ],
)
def test_a_listener_has_the_names_that_it_may_have_in_kafka(
    name: str, more: dict[str, Any], protocol: str
) -> None:
    made = replace(settings(f"{name}://127.0.0.1:1", **more), advertised_listeners=())
    made.check()
    assert is_kafka_listener(name)
    assert made.security_protocol(name) == protocol


def test_a_listener_that_nothing_maps_is_refused() -> None:
    made = settings("KAFAK://127.0.0.1:1")
    with pytest.raises(SettingsError, match="KAFAK:PLAINTEXT"):
        made.check()


@pytest.mark.parametrize(("more", "is_loaded"), [({}, False), (SCRAM, True)])
def test_scramp_is_loaded_at_the_start_only_if_clients_log_in(
    more: dict[str, Any], is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(process, "load_scramp", lambda: calls.append(None))
    process.BrokerProcess(settings(HOME, **more), insecure=True)
    assert bool(calls) is is_loaded
