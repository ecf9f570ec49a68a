"""How commands reach a cluster: by options before the command, the environment, or a file of properties.

The names are Kafka's (librdkafka's, where Kafka has none for PEM). Each is looked for as an option,
then as ODRADEK_ and its name in capitals (ODRADEK_SASL_USERNAME), then in the file that --config or
ODRADEK_CONFIG names, else in ~/.config/odradek/client.properties if that is there. A password that is
not found is asked for, where somebody is there to ask.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from odradek.cli.output import EXIT_TERMINATED, EXIT_USAGE, fail
from odradek.cluster.endpoints import BOOTSTRAP_VARIABLE

if TYPE_CHECKING:
    from odradek.client import Client


DEFAULT_FILE: Final = Path("~/.config/odradek/client.properties")
_PREFIX: Final = "ODRADEK_"
NAMES: Final = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.server.name",
)
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

CONNECT_S_MAX: Final = 10.0
_options: dict[str, str] = {}
_from_file: dict[str, str] = {}
_connect_s_max: ContextVar[float] = ContextVar("connect_s_max", default=CONNECT_S_MAX)

Result = TypeVar("Result")
PATIENCE_S: Final = 3.0
"""How long a command waits before it says what it waits for."""
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="ODRADEK_CONFIG",
        help=f"Properties of the connection; else {DEFAULT_FILE}, if it is there.",
    ),
]
User = Annotated[str | None, typer.Option("--user", help="Log in as this user (sasl.username).")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        help="Whose first line is the password; without it ODRADEK_SASL_PASSWORD, or asked for."
    ),
]
Mechanism = Annotated[
    str | None, typer.Option(help="SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN (sasl.mechanism).")
]
Ca = Annotated[Path | None, typer.Option("--ca", help="TLS: whom to trust, PEM (ssl.ca.location).")]
Cert = Annotated[
    Path | None, typer.Option("--cert", help="Our certificate, PEM (ssl.certificate.location).")
]
BootstrapForAll = Annotated[
    str | None, typer.Option("--bootstrap", help="For any command, which may also say it itself.")
]
Timeout = Annotated[
    float,
    typer.Option(min=0.1, help="Seconds to wait for a broker, and for the response to a request."),
]
Key = Annotated[Path | None, typer.Option("--key", help="Its key, PEM (ssl.key.location).")]


def remember(
    *,
    config: Path | None,
    user: str | None,
    password_file: Path | None,
    mechanism: str | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    bootstrap: str | None = None,
    timeout_s: float = CONNECT_S_MAX,
) -> None:
    """Keep the options that stand before the command, and the file, for when it connects."""
    _from_file.clear()
    _from_file.update(_read(config))
    # The commands' own --bootstrap looks into the environment, so that is where ours, or the file's, goes.
    if bootstrap is not None:
        os.environ[BOOTSTRAP_VARIABLE] = bootstrap
    elif "bootstrap.servers" in _from_file:
        os.environ.setdefault(BOOTSTRAP_VARIABLE, _from_file["bootstrap.servers"])
    _connect_s_max.set(timeout_s)
    given = {
        "sasl.username": user,
        "sasl.mechanism": mechanism,
        "ssl.ca.location": ca,
        "ssl.certificate.location": cert,
        "ssl.key.location": key,
    }
    _options.clear()
    _options.update({name: str(value) for name, value in given.items() if value is not None})
    if password_file is not None:
        _options["sasl.password"] = _first_line(password_file)


def connect_s_max() -> float:
    """How long a command looks for a broker, s."""
    return _connect_s_max.get()


def open_client(bootstrap: str) -> Client:
    """A client for what is configured; `bootstrap` is the command's own option."""
    import logging

    from odradek.client import Client
    from odradek.transports.security import SaslCredentials, TlsOptions

    # The SDK warns of connections that come and go; a command says itself what it waits for, and what failed.
    logging.getLogger("odradek").setLevel(logging.ERROR)
    found = settings(_options, os.environ, _from_file)
    protocol = found.get("security.protocol", "").upper()
    if protocol and protocol not in _PROTOCOLS:
        fail(
            f"security.protocol {protocol}: allowed are {', '.join(_PROTOCOLS)}", status=EXIT_USAGE
        )
    ca, cert = found.get("ssl.ca.location"), found.get("ssl.certificate.location")
    tls: Any = None
    if protocol.endswith("SSL") or (not protocol and (ca or cert)):
        key = found.get("ssl.key.location")
        if (cert is None) != (key is None):
            fail("a certificate and its key go together: --cert and --key", status=EXIT_USAGE)
        tls = TlsOptions(ca=ca, cert=cert, key=key, server_name=found.get("ssl.server.name"))
    credentials = None
    user = found.get("sasl.username")
    if user is not None and (not protocol or protocol.startswith("SASL")):
        credentials = SaslCredentials(
            username=user,
            password=found.get("sasl.password") or _asked(f"Password of {user}: "),
            mechanism=found.get("sasl.mechanism", "SCRAM-SHA-512").upper(),
        )
    elif protocol.startswith("SASL"):
        fail(f"security.protocol is {protocol}: say who logs in, --user", status=EXIT_USAGE)
    client = Client(bootstrap, tls=tls, credentials=credentials)
    client.admin_timeout_s = connect_s_max()
    return client


def settings(
    options: Mapping[str, str], environment: Mapping[str, str], file: Mapping[str, str]
) -> dict[str, str]:
    """What counts of each name: the option, else the environment, else the file."""
    found = dict(file)
    for name in NAMES:
        told = environment.get(_PREFIX + name.upper().replace(".", "_"))
        if told:
            found[name] = told
    return {**found, **options}


def read_properties(path: Path) -> dict[str, str]:
    """NAME=VALUE a line; # begins a comment. Ends the command for a name that is not known."""
    found = {}
    try:
        lines = path.read_text().splitlines()
        others_read = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {path}: {getattr(error, 'strerror', error)}", status=EXIT_USAGE)
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            fail(f"{path}:{number}: write NAME=VALUE", status=EXIT_USAGE)
        if name.strip() not in NAMES:
            near = get_close_matches(name.strip(), NAMES, 1)
            hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(NAMES)}"
            fail(f"{path}:{number}: {name.strip()} is not known{hint}", status=EXIT_USAGE)
        found[name.strip()] = value.strip()
    if "sasl.password" in found and others_read:
        print(f"odradek: others can read the password in {path}: chmod 600", file=sys.stderr)
    return found


def _read(config: Path | None) -> dict[str, str]:
    if config is not None:
        return read_properties(config)
    default = DEFAULT_FILE.expanduser()
    return read_properties(default) if default.is_file() else {}


def _first_line(path: Path) -> str:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {path}: {getattr(error, 'strerror', error)}", status=EXIT_USAGE)
    if not lines or not lines[0]:
        fail(f"{path} has no password in its first line", status=EXIT_USAGE)
    return lines[0]


def _asked(prompt: str) -> str:
    if not sys.stdin.isatty():
        fail("no password: set ODRADEK_SASL_PASSWORD, or give --password-file", status=EXIT_USAGE)
    from getpass import getpass

    password = getpass(prompt, stream=sys.stderr)
    if not password:
        fail("no password was given", status=EXIT_USAGE)
    return password


def with_client(
    bootstrap: str, work: Callable[[Client], Awaitable[Result]], *, is_quick: bool = True
) -> Result:
    """Connect, do the work, close; the SDK's errors come through as they are.

    A command that `is_quick` says after PATIENCE_S, once, what it still waits for; others wait for
    records, or say it themselves, and only connecting is expected to be quick.
    SIGTERM ends the command as Ctrl-C does, in order: what was sent is flushed, groups are left.
    """
    import asyncio

    async def explain() -> None:
        await asyncio.sleep(PATIENCE_S)
        print(f"odradek: waiting: {client.explain_waiting()}", file=sys.stderr)

    async def run() -> Result:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        explaining = asyncio.create_task(explain())
        try:
            async with client:
                await client.connect(connect_s_max())
                if not is_quick:
                    explaining.cancel()
                return await work(client)
        finally:
            explaining.cancel()

    client = open_client(bootstrap)
    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        sys.exit(EXIT_TERMINATED)


async def chosen_partitions(
    client: Client, topics: list[str], chosen: list[int] | None
) -> list[tuple[str, int]]:
    """All partitions of these topics, or those of the numbers given; ends the command for one that is not there."""
    named = []
    for name in topics:
        described = await client.admin.describe_topic(name)
        there = [p.partition for p in described.partitions]
        for index in chosen if chosen is not None else there:
            if index not in there:
                fail(f"{name} has partitions 0 to {len(there) - 1}, not {index}", status=EXIT_USAGE)
            named.append((name, index))
    return named
