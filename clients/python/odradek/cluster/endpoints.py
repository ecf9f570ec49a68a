"""Parses addresses of brokers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from odradek.errors import InvalidConfig

BOOTSTRAP_VARIABLE: Final = "ODRADEK_BOOTSTRAP"
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9090"
"""The gRPC address of the first broker of `odradek dev`, if that port is free."""


def parse_bootstrap(
    bootstrap: str | Sequence[str] | None, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Parse endpoints `host:port`, from a string such as "a:1,b:2" or from a sequence.

    None stands for the endpoints in ODRADEK_BOOTSTRAP, or for DEFAULT_BOOTSTRAP if that variable is not set.

    Raises:
        InvalidConfig: the list is empty, or an item is not host:port.
    """
    if bootstrap is None:
        environment = os.environ if environment is None else environment
        bootstrap = environment.get(BOOTSTRAP_VARIABLE, "").strip() or DEFAULT_BOOTSTRAP
    items = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    endpoints = tuple(dict.fromkeys(item.strip() for item in items if item.strip()))
    if not endpoints:
        raise InvalidConfig("the list of bootstrap addresses is empty", hint="write HOST:PORT,...")
    for endpoint in endpoints:
        _check(endpoint)
    return endpoints


def _check(endpoint: str) -> None:
    host, colon, port = endpoint.rpartition(":")
    if "://" in endpoint:
        reason = "it has a scheme"
    elif not colon or not host:
        reason = "it has no port"
    elif ":" in host and not (host.startswith("[") and host.endswith("]")):
        reason = "an IPv6 address needs [brackets]"
    elif not port.isdigit() or not 0 < int(port) < 65536:
        reason = f"{port!r} is not a port"
    else:
        return
    raise InvalidConfig(
        f"bootstrap address {endpoint!r} is not valid: {reason}", hint="write HOST:PORT"
    )
