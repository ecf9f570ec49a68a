"""How the commands connect to a cluster.

Connection properties have Kafka's names. Kafka has no names for PEM files, so the names of those are librdkafka's. The
value of a property comes from an option before the command, else from an environment variable (ODRADEK_SASL_USERNAME
for `sasl.username`), else from a properties file. --config or ODRADEK_CONFIG names this file; without them, it is
~/.config/odradek/client.properties, if that exists. On a terminal, the user is prompted for a missing password.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextvars import ContextVar, copy_context
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from odradek.cli.output import EXIT_TERMINATED, EXIT_USAGE, fail, say
from odradek.cluster.endpoints import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from odradek.spelling import did_you_mean, similar_to
from odradek_protocol.identity import SLOT_SEPARATOR

if TYPE_CHECKING:
    import asyncio

    from odradek.admin.descriptions import TopicDescription
    from odradek.client import Client
    from odradek.errors import UnknownGroup


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
_TLS_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

CONNECT_S_MAX: Final = 10.0
_options: dict[str, str] = {}
_from_file: dict[str, str] = {}
_connect_s_max: ContextVar[float] = ContextVar("connect_s_max", default=CONNECT_S_MAX)

Result = TypeVar("Result")
PATIENCE_S: Final = 3.0
"""How long a command waits before it prints what it waits for."""
UNKNOWN_TOPIC_S_MAX: Final = 1.5
"""How long a command retries a topic that the brokers do not know. An earlier command may have just created the topic.
"""
COMPLETION_S_MAX: Final = 2.0
"""How long shell completion waits for the cluster."""
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="ODRADEK_CONFIG",
        help="File with connection properties (ODRADEK_CONFIG).",
    ),
]
User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="Log in as this user (sasl.username).")
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File whose first line is the password."),
]
Mechanism = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Log in by this SASL mechanism (sasl.mechanism)."),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="PEM file with the trusted certificate authorities (ssl.ca.location).",
    ),
]
Cert = Annotated[
    Path | None,
    typer.Option(
        "--cert",
        metavar="FILE",
        help="PEM file with the client certificate (ssl.certificate.location).",
    ),
]
BootstrapForAll = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help="gRPC addresses of brokers to connect to first.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0.1, metavar="SECONDS", help="Fail if no broker responds within this time (10)."
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="PEM file with the key of the client certificate (ssl.key.location).",
    ),
]


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
    """Store the options given before the command, and read the properties file. `open_client` uses both."""
    _from_file.clear()
    _from_file.update(_read(config))
    # The default of each command's --bootstrap option is an environment variable. An address that was given before the
    # command, or in the properties file, is therefore stored in that variable.
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
    """Return how many seconds a command may wait for the first response of a broker."""
    return _connect_s_max.get()


def open_client(bootstrap: str) -> Client:
    """Create a client from the options, the environment and the properties file. `bootstrap` is the value of the
    command's --bootstrap option.
    """
    import logging

    from odradek.client import Client
    from odradek.cluster.security import SaslCredentials, TlsOptions

    # The SDK logs lost and restored connections as warnings. A command itself prints what it waits for and what failed.
    logging.getLogger("odradek").setLevel(logging.ERROR)
    values = settings(_options, os.environ, _from_file)
    has_tls, has_login = _security(values)
    tls: Any = None
    if has_tls:
        cert, key = values.get("ssl.certificate.location"), values.get("ssl.key.location")
        if (cert is None) != (key is None):
            fail("--cert and --key must be given together", status=EXIT_USAGE)
        tls = TlsOptions(
            ca=values.get("ssl.ca.location"),
            cert=cert,
            key=key,
            server_name=values.get("ssl.server.name"),
        )
    credentials = None
    if has_login:
        user = values["sasl.username"]
        credentials = SaslCredentials(
            username=user,
            password=values.get("sasl.password") or _prompt(f"Password of {user}: "),
            mechanism=values.get("sasl.mechanism", "SCRAM-SHA-512").upper(),
        )
    client = Client(bootstrap, tls=tls, credentials=credentials)
    client.admin_timeout_s = connect_s_max()
    client._cluster.unknown_topic_s_max = UNKNOWN_TOPIC_S_MAX
    return client


def _security(values: Mapping[str, str]) -> tuple[bool, bool]:
    """Return whether the client uses TLS, and whether it logs in.

    Options take precedence over environment variables, and these over the properties file. A user or a file for TLS
    that takes precedence over the security.protocol adds a login or TLS to it. A user of lower precedence is ignored.
    """
    protocol = values.get("security.protocol", "").upper()
    user = values.get("sasl.username")
    for name, option in (("sasl.password", "--password-file"), ("sasl.mechanism", "--mechanism")):
        if name in _options and user is None:
            fail(f"{option} needs a user: add --user NAME", status=EXIT_USAGE)
    if not protocol:
        return any(name in values for name in _TLS_FILES), user is not None
    if protocol not in _PROTOCOLS:
        allowed = f"one of {', '.join(_PROTOCOLS)}{did_you_mean(protocol, _PROTOCOLS)}"
        fail(f"security.protocol is {protocol}, but must be {allowed}", status=EXIT_USAGE)
    rank = _rank("security.protocol")
    has_tls = protocol.endswith("SSL") or any(_rank(name) > rank for name in _TLS_FILES)
    has_login = protocol.startswith("SASL") or _rank("sasl.username") > rank
    if has_login and user is None:
        fail(f"security.protocol {protocol} needs a user: add --user NAME", status=EXIT_USAGE)
    if not has_login and _rank("sasl.username") == rank:
        names = ("security.protocol", "sasl.username")
        where = "the properties file"
        if rank:
            names, where = (_variable(names[0]), _variable(names[1])), "the environment"
        fail(
            f"{where} has {names[0]}={protocol}, which has no login, but also {names[1]}={user}: set {names[0]} to"
            f" SASL_{protocol}, or remove {names[1]}",
            status=EXIT_USAGE,
        )
    return has_tls, has_login


def _rank(name: str) -> int:
    """Return where the value of a property comes from: an option (2), the environment (1), the properties file (0). The
    result is -1 if it has no value.
    """
    if name in _options:
        return 2
    return 1 if os.environ.get(_variable(name)) else 0 if name in _from_file else -1


def _variable(name: str) -> str:
    return _PREFIX + name.upper().replace(".", "_")


def settings(
    options: Mapping[str, str], environment: Mapping[str, str], file: Mapping[str, str]
) -> dict[str, str]:
    """Return the value of each property: from its option, else from its environment variable, else from the file."""
    values = dict(file)
    for name in NAMES:
        value = environment.get(_variable(name))
        if value:
            values[name] = value
    return {**values, **options}


def read_properties(path: Path) -> dict[str, str]:
    """Read a properties file with lines of the form NAME=VALUE; a line that begins with # is a comment. An unknown name
    ends the command with an error.
    """
    properties = {}
    try:
        lines = path.read_text().splitlines()
        readable_by_others = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {path}: {getattr(error, 'strerror', error)}", status=EXIT_USAGE)
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            fail(f"{path}:{number}: the line does not have the form NAME=VALUE", status=EXIT_USAGE)
        if name.strip() not in NAMES:
            hint = did_you_mean(name.strip(), NAMES) or f"; use one of {', '.join(NAMES)}"
            fail(f"{path}:{number}: there is no property {name.strip()}{hint}", status=EXIT_USAGE)
        properties[name.strip()] = value.strip()
    if "sasl.password" in properties and readable_by_others:
        say(
            f"odradek: other users of this machine can read the password in {path}: run `chmod 600 {path}`",
            is_error=True,
        )
    return properties


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
        fail(f"the first line of {path} is empty: write the password there", status=EXIT_USAGE)
    return lines[0]


def _prompt(prompt: str) -> str:
    if sys.stdin is None or not sys.stdin.isatty():
        fail("no password: set ODRADEK_SASL_PASSWORD, or give --password-file", status=EXIT_USAGE)
    from getpass import getpass

    password = getpass(prompt, stream=sys.stderr)
    if not password:
        fail("the password is empty", status=EXIT_USAGE)
    return password


def with_client(
    bootstrap: str,
    work: Callable[[Client], Awaitable[Result]],
    *,
    is_quick: bool = True,
    waits_for: str = "",
) -> Result:
    """Connect, await `work` with the client, and close the client. Errors of the SDK are raised to the caller.

    If the command takes longer than PATIENCE_S, it prints once what it waits for: the connection or, if it is connected
    by then, `waits_for` if that is given. A command with `is_quick=False` waits for records or reports its own
    progress, so once it is connected it does not print this message. SIGTERM ends the command as Ctrl-C does: its
    records are flushed, and its consumers leave their groups.
    """
    import asyncio

    from odradek.cluster.cluster import LinkState

    async def explain() -> None:
        await asyncio.sleep(PATIENCE_S)
        is_connected = client.state is LinkState.CONNECTED
        reason = waits_for if waits_for and is_connected else client.explain_waiting()
        say(f"odradek: waiting: {reason}", is_error=True)

    async def run() -> Result:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        explaining = asyncio.create_task(explain())
        try:
            async with client:
                await client.connect(connect_s_max())
                if not is_quick:
                    explaining.cancel()
                return await work(client)
        finally:
            explaining.cancel()
            loop.remove_signal_handler(signal.SIGTERM)

    client = open_client(bootstrap)
    try:
        return _runner().run(run(), context=copy_context())
    except asyncio.CancelledError:
        sys.exit(EXIT_TERMINATED)


@cache
def _runner() -> asyncio.Runner:
    """Return the one event loop for all connections of this process. A second loop would fail, because gRPC keeps using
    the first loop even after that is closed.
    """
    import asyncio
    import atexit

    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


async def chosen_partitions(
    client: Client, topics: list[str], chosen: list[int] | None
) -> list[tuple[str, int]]:
    """Return (topic, partition) pairs: all partitions of these topics, or in each topic those in `chosen`. If a topic
    has no such partition, the command ends with an error.
    """
    partitions = []
    for name in topics:
        described = await client.admin.describe_topic(name)
        existing = [p.partition for p in described.partitions]
        for index in chosen if chosen is not None else existing:
            if index not in existing:
                fail(
                    f"topic {name} has no partition {index}, only 0 to {len(existing) - 1}",
                    status=EXIT_USAGE,
                )
            partitions.append((name, index))
    return partitions


async def _topics(client: Client) -> list[str]:
    return [topic.name for topic in await client.admin.list_topics()]


async def _groups(client: Client) -> list[str]:
    return [listing.group for listing in await client.admin.list_groups()]


async def _users(client: Client) -> list[str]:
    return [user.name for user in await client.admin.describe_scram_users()]


async def _principals(client: Client) -> list[str]:
    principals = {entry.principal for entry in await client.admin.describe_acls()}
    return [*principals | {f"User:{name}" for name in await _users(client)}]


async def _transactional_ids(client: Client) -> list[str]:
    return [listing.transactional_id for listing in await client.admin.transactions.list()]


async def _brokers(client: Client) -> list[str]:
    cluster = await client.admin.describe_cluster()
    return [str(broker.broker_id) for broker in cluster.brokers]


async def similar_groups(client: Client, name: str) -> list[str]:
    """Return the names of up to SIMILAR_MAX groups that are most similar to `name`; [] if there is a group of this
    name, or if the caller may not list groups.
    """
    from odradek.cluster.topic_errors import NAMES_COMPARED_MAX, SIMILAR_MAX
    from odradek.errors import OdradekError

    try:
        names = await _groups(client)
    except OdradekError:
        return []
    if name in names or len(names) > NAMES_COMPARED_MAX:
        return []
    return similar_to(name, names, count_max=SIMILAR_MAX)


def topic_and_index(name: str, topics: Container[str]) -> tuple[str, int] | None:
    """Split a name TOPIC/N or TOPIC-N. The result is None if the name has another form, or if TOPIC does not exist."""
    for separator in ("/", "-"):
        topic, _, index = name.rpartition(separator)
        if topic in topics and index.isdecimal():
            return topic, int(index)
    return None


async def nothing_named(client: Client, name: str, topics: dict[str, TopicDescription]) -> str:
    """Return the error for a name that is no topic, partition, group, transactional id or broker. For TOPIC/N, it says
    which partitions TOPIC has; for other names, it suggests similar names.
    """
    from odradek.cluster.topic_errors import NAMES_COMPARED_MAX, SIMILAR_MAX
    from odradek.errors import OdradekError

    parts = topic_and_index(name, topics)
    if parts is not None:
        topic, index = parts
        count = len(topics[topic].partitions)
        existing_ones = "partition 0" if count == 1 else f"partitions 0 to {count - 1}"
        return f"topic {topic} has no partition {index}, only {existing_ones}"
    try:
        listings = await client.admin.transactions.list()
    except OdradekError:
        listings = []
    ids = (i.transactional_id for i in listings if SLOT_SEPARATOR not in i.transactional_id)
    names = [*topics, *await similar_groups(client, name), *ids]
    similar = similar_to(name, names[:NAMES_COMPARED_MAX], count_max=SIMILAR_MAX)
    suggestion = f"did you mean {' or '.join(map(repr, similar))}? If not, " if similar else ""
    return (
        f"there is no topic, group, transactional id or broker {name}: {suggestion}check the name with `odradek topic"
        " list`, `odradek group list`, `odradek transaction list` or `odradek cluster info`"
    )


async def group_suggestion(client: Client, name: str) -> str:
    """Return a question that names similar groups, such as "did you mean 'orders'? If not, "; "" if there are none."""
    similar = await similar_groups(client, name)
    return f"did you mean {' or '.join(map(repr, similar))}? If not, " if similar else ""


@contextlib.asynccontextmanager
async def suggested_groups(client: Client, name: str) -> AsyncIterator[None]:
    """Add similar groups to the error of the block if the group `name` does not exist."""
    from odradek.errors import UnknownGroup

    try:
        yield
    except UnknownGroup as error:
        raise await with_suggestion(client, name, error) from None


async def with_suggestion(client: Client, name: str, error: UnknownGroup) -> UnknownGroup:
    """Return the error of the missing group `name` with similar groups in its hint."""
    from odradek.errors import UnknownGroup

    hint = f"{await group_suggestion(client, name)}{error.hint}"
    return UnknownGroup(error.message, code=error.code, hint=hint)


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return topic names for shell completion."""
    return _complete(context, incomplete, _topics)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Return group names for shell completion."""
    return _complete(context, incomplete, _groups)


def complete_users(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of SCRAM users for shell completion."""
    return _complete(context, incomplete, _users)


def complete_principals(context: typer.Context, incomplete: str) -> list[str]:
    """Return the principals of users and ACLs for shell completion."""
    return _complete(context, incomplete, _principals)


def complete_transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return transactional ids for shell completion."""
    return _complete(context, incomplete, _transactional_ids)


def complete_brokers(context: typer.Context, incomplete: str) -> list[str]:
    """Return broker ids for shell completion."""
    return _complete(context, incomplete, _brokers)


def complete_broker_lists(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the last broker id of a list such as 1,2,3. Brokers that are already in the list are not offered."""
    head, comma, last = incomplete.rpartition(",")
    given = head.split(",")
    ids = [broker for broker in _complete(context, last, _brokers) if broker not in given]
    return [head + comma + broker for broker in ids]


def complete_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return names that `odradek why` accepts, for shell completion: topics, groups, transactional ids, brokers.

    A kind of name is left out if the caller may not list it, or if an older broker cannot list it (transactional ids).
    """

    async def names(client: Client) -> list[str]:
        import asyncio

        from odradek.errors import OdradekError

        async def seen(list_names: Callable[[Client], Awaitable[list[str]]]) -> list[str]:
            try:
                return await list_names(client)
            except OdradekError:
                return []

        kinds = (_topics, _groups, _transactional_ids, _brokers)
        return [name for kind in await asyncio.gather(*map(seen, kinds)) for name in kind]

    return _complete(context, incomplete, names)


def _complete(
    context: typer.Context, incomplete: str, names: Callable[[Client], Awaitable[list[str]]]
) -> list[str]:
    """Return the names in the cluster that begin with `incomplete`; an empty list if the cluster does not respond
    within COMPLETION_S_MAX.

    The shell calls this function while the user types, so it prints nothing and prompts for no password.
    """
    import asyncio
    import io
    from contextlib import redirect_stderr

    async def names_found(client: Client) -> list[str]:
        async with asyncio.timeout(COMPLETION_S_MAX), client:
            await client.connect(COMPLETION_S_MAX)
            return await names(client)

    options = dict(context.find_root().params)
    options["timeout_s"] = options.pop("timeout")
    options.pop("_version", None)
    try:
        with redirect_stderr(io.StringIO()):
            remember(**options)
            values = settings(_options, os.environ, _from_file)
            if "sasl.username" in values and "sasl.password" not in values:
                return []
            command_value = context.params.get("bootstrap")
            source = context.get_parameter_source("bootstrap")
            is_given = source is not None and source.name == "COMMANDLINE"
            bootstrap = command_value if is_given else os.environ.get(BOOTSTRAP_VARIABLE)
            client = open_client(bootstrap or DEFAULT_BOOTSTRAP)
            matching = [
                name for name in asyncio.run(names_found(client)) if name.startswith(incomplete)
            ]
    except (Exception, SystemExit):  # The command itself reports the error when the user runs it.
        return []
    return sorted(set(matching))
