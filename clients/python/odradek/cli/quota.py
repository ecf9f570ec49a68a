"""`odradek quota`: limits on the resources that users, client ids and IP addresses may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from odradek.cli.connection import (
    complete_users,
    with_client,
)
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    DryRun,
    Output,
    OutputFormat,
    fail,
    print_rows,
)
from odradek.cli.times import size_bytes

if TYPE_CHECKING:
    from odradek.admin.access import Quota
    from odradek.client import Client

DEFAULT: Final = "DEFAULT"
"""This name stands for all users, client ids or addresses that have no quota of their own."""

app = typer.Typer(help="List, set and remove quotas of users and clients.", no_args_is_help=True)
User = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"Name of a user. {DEFAULT} stands for all users without their own quota.",
        autocompletion=complete_users,
    ),
]
ClientId = Annotated[
    str,
    typer.Option(
        "--client-id",
        metavar="ID",
        help=f"A client id, or {DEFAULT}. With --user, the quota applies to this client id of that user only.",
    ),
]
Ip = Annotated[str, typer.Option(metavar="ADDRESS", help=f"IP address of clients, or {DEFAULT}.")]


@app.command("list")
def list_quotas(
    user: User = "",
    client_id: ClientId = "",
    ip: Ip = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List quotas. With --user, --client-id or --ip, only quotas with that name are listed."""
    entity_filter = _entity(user, client_id, ip, is_filter=True)

    async def work(client: Client) -> list[dict[str, Any]]:
        return [
            _row(quota)
            for quota in await client.admin.describe_quotas()
            if entity_filter.items() <= quota.entity.items()
        ]

    rows = with_client(bootstrap, work)
    rows.sort(
        key=lambda row: [str(row[name] or "") for name in ("user", "client id", "ip", "quota")]
    )
    print_rows(rows, output, empty="there are no quotas")


@app.command("set")
def set_quota(
    user: User = "",
    client_id: ClientId = "",
    ip: Ip = "",
    producer_byte_rate: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Bytes per second that the user or client may write to each broker.",
        ),
    ] = "",
    consumer_byte_rate: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Bytes per second that the user or client may read from each broker.",
        ),
    ] = "",
    request_percentage: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help="CPU time that the user or client may use on each broker; 100 is one core.",
        ),
    ] = None,
    controller_mutation_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Partitions per second that the user or client may create or delete.",
        ),
    ] = None,
    connection_creation_rate: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="N", help="New connections per second from the address. Only with --ip."
        ),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Set quotas of a user, client id or address.

    --user and --client-id together set the quota of one client id of one user. Responses to a client that exceeds its
    quota are delayed; the client gets no error.
    """
    values: dict[str, float | None] = {
        "producer_byte_rate": size_bytes(producer_byte_rate, option="--producer-byte-rate")
        if producer_byte_rate
        else None,
        "consumer_byte_rate": size_bytes(consumer_byte_rate, option="--consumer-byte-rate")
        if consumer_byte_rate
        else None,
        "request_percentage": request_percentage,
        "controller_mutation_rate": controller_mutation_rate,
        "connection_creation_rate": connection_creation_rate,
    }
    chosen = {key: value for key, value in values.items() if value is not None}
    if not chosen:
        fail(f"give at least one quota: {', '.join(map(_option, values))}", status=EXIT_USAGE)
    _alter(
        _entity(user, client_id, ip), chosen, dry_run=dry_run, bootstrap=bootstrap, output=output
    )


@app.command("remove")
def remove_quota(
    user: User = "",
    client_id: ClientId = "",
    ip: Ip = "",
    producer_byte_rate: Annotated[
        bool, typer.Option("--producer-byte-rate", help="Remove this quota and keep the others.")
    ] = False,
    consumer_byte_rate: Annotated[
        bool, typer.Option("--consumer-byte-rate", help="Remove this quota and keep the others.")
    ] = False,
    request_percentage: Annotated[
        bool, typer.Option("--request-percentage", help="Remove this quota and keep the others.")
    ] = False,
    controller_mutation_rate: Annotated[
        bool,
        typer.Option("--controller-mutation-rate", help="Remove this quota and keep the others."),
    ] = False,
    connection_creation_rate: Annotated[
        bool,
        typer.Option("--connection-creation-rate", help="Remove this quota and keep the others."),
    ] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove quotas of a user, client id or address.

    Without the name of a quota, all quotas of the user, client id or address are removed.
    """
    flags = {
        "producer_byte_rate": producer_byte_rate,
        "consumer_byte_rate": consumer_byte_rate,
        "request_percentage": request_percentage,
        "controller_mutation_rate": controller_mutation_rate,
        "connection_creation_rate": connection_creation_rate,
    }
    chosen = {key for key, is_set in flags.items() if is_set}
    entity = _entity(user, client_id, ip)

    async def existing(client: Client) -> dict[str, None]:
        return dict.fromkeys(
            quota.key
            for quota in await client.admin.describe_quotas()
            if dict(quota.entity) == entity and (not chosen or quota.key in chosen)
        )

    removed = with_client(bootstrap, existing)
    if not removed:
        fail("there is no such quota: `odradek quota list` shows all quotas")
    _alter(entity, removed, dry_run=dry_run, bootstrap=bootstrap, output=output)


def _alter(
    entity: Mapping[str, str | None],
    values: Mapping[str, float | None],
    *,
    dry_run: bool,
    bootstrap: str,
    output: OutputFormat,
) -> None:
    async def work(client: Client) -> list[dict[str, Any]]:
        from odradek.admin.access import Quota

        quotas = [Quota(entity=entity, key=key, value=value) for key, value in values.items()]
        await client.admin.alter_quotas(quotas, validate_only=dry_run)
        return [_row(quota) for quota in quotas]

    print_rows(with_client(bootstrap, work), output, empty="no quotas")


def _entity(
    user: str, client_id: str, ip: str, *, is_filter: bool = False
) -> dict[str, str | None]:
    named = {"user": user, "client-id": client_id, "ip": ip}
    entity = {kind: None if name == DEFAULT else name for kind, name in named.items() if name}
    if not entity and not is_filter:
        fail(
            "choose whom the quota applies to with --user, --client-id, both, or --ip; the name DEFAULT stands for"
            " all users, client ids or addresses without their own quota",
            status=EXIT_USAGE,
        )
    if "ip" in entity and len(entity) > 1:
        fail("--ip cannot be used together with --user or --client-id", status=EXIT_USAGE)
    return entity


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _row(quota: Quota) -> dict[str, Any]:
    def name(kind: str) -> str | None:
        if kind not in quota.entity:
            return None
        return DEFAULT if quota.entity[kind] is None else quota.entity[kind]

    value = quota.value
    return {
        "user": name("user"),
        "client id": name("client-id"),
        "ip": name("ip"),
        "quota": quota.key,
        # The value is converted to float, because `int` has the method `is_integer` only from Python 3.12 on.
        "value": int(value) if value is not None and float(value).is_integer() else value,
    }
