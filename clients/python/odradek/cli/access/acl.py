"""`odradek acl`: who may do what. DENY wins; without an entry that allows it nothing is allowed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
    print_rows,
)
from odradek.cli.session import with_client

if TYPE_CHECKING:
    from odradek.admin.access import Acl, AclFilter
    from odradek.client import Client

app = typer.Typer(help="Who may do what: access control entries.", no_args_is_help=True)
CLUSTER_NAME = "kafka-cluster"


class Operation(StrEnum):
    """Kafka's operations."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    IDEMPOTENT_WRITE = "idempotent-write"


class Pattern(StrEnum):
    """How a name is meant."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class Wanted(StrEnum):
    """How a name in a filter is meant."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    ANY = "any"
    MATCH = "match"


class Permission(StrEnum):
    """DENY wins."""

    ALLOW = "allow"
    DENY = "deny"


Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="A topic, or * for all; repeat it.")
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", help="A consumer group, or *; repeat it.")
]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", help="A transactional id, or *; repeat it."),
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]


@app.command()
def add(
    principal: Annotated[
        list[str],
        typer.Option(help="User:NAME, User:CN=... of a certificate, or User:*; repeat it."),
    ],
    operation: Annotated[list[Operation], typer.Option(help="What; repeat it.")],
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OnCluster = False,
    pattern: Annotated[
        Pattern, typer.Option(help="prefixed: whatever begins with the name.")
    ] = Pattern.LITERAL,
    deny: Annotated[
        bool, typer.Option("--deny", help="Forbid it, whatever else allows it.")
    ] = False,
    host: Annotated[
        list[str] | None, typer.Option(help="Only from this address; repeat it. Default: any.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Allow, or with --deny forbid. One that is there already stays as it is."""
    from odradek.admin.access import Acl, AclOperation, AclPermission, PatternType

    resources = _resources(topic, group, transactional_id, cluster)
    if not resources:
        fail("on what? --topic, --group, --transactional-id or --cluster", status=EXIT_USAGE)
    if pattern is Pattern.PREFIXED and (cluster or any(name == "*" for _, name in resources)):
        fail("--pattern prefixed is for names of topics, groups and ids", status=EXIT_USAGE)
    for one in principal:
        if not one.startswith("User:") or one == "User:":
            fail(f"--principal {one}: write User:NAME", status=EXIT_USAGE)
    acls = [
        Acl(
            resource_type=kind,
            resource_name=name,
            principal=who,
            operation=AclOperation[what.name],
            permission=AclPermission.DENY if deny else AclPermission.ALLOW,
            pattern_type=PatternType[pattern.name],
            host=where,
        )
        for who in principal
        for kind, name in resources
        for what in operation
        for where in host or ["*"]
    ]

    async def work(client: Client) -> None:
        await client.admin.create_acls(acls)

    with_client(bootstrap, work)
    print_rows([_row(one) for one in acls], output, empty="nothing")


Principal = Annotated[str | None, typer.Option(help="Only of this one, as User:alice.")]
Operations = Annotated[
    list[Operation] | None, typer.Option("--operation", help="Only this; repeat it.")
]
PatternFilter = Annotated[
    Wanted,
    typer.Option(help="match: also prefixes and * that the name falls under."),
]
PermissionFilter = Annotated[Permission | None, typer.Option(help="Only allow, or only deny.")]
Host = Annotated[str | None, typer.Option(help="Only for this address.")]


@app.command("list")
def list_acls(
    principal: Principal = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OnCluster = False,
    pattern: PatternFilter = Wanted.ANY,
    permission: PermissionFilter = None,
    host: Host = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List entries, filtered."""
    resources = _resources(topic, group, transactional_id, cluster)
    filters = _filters(principal, operation, resources, pattern, permission, host)

    async def work(client: Client) -> list[Acl]:
        return await _find(client, filters)

    rows = [_row(one) for one in with_client(bootstrap, work)]
    print_rows(rows, output, empty="there are no entries")


@app.command()
def remove(
    principal: Principal = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OnCluster = False,
    pattern: PatternFilter = Wanted.LITERAL,
    permission: PermissionFilter = None,
    host: Host = None,
    every: Annotated[bool, typer.Option("--all", help="Every entry that there is.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be removed.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove the entries that fit; status 1 if there are none."""
    resources = _resources(topic, group, transactional_id, cluster)
    is_narrow = any((principal, operation, resources, permission, host))
    if is_narrow is every:
        fail("say which: by --principal, --topic, ..., or --all", status=EXIT_USAGE)
    if not resources:
        pattern = Wanted.ANY
    filters = _filters(principal, operation, resources, pattern, permission, host)

    async def work(client: Client) -> list[Acl]:
        if dry_run:
            return await _find(client, filters)
        return await client.admin.delete_acls(filters)

    gone = [{**_row(one), "removed": not dry_run} for one in with_client(bootstrap, work)]
    print_rows(gone, output, empty="no entry fits")
    if not gone:
        raise typer.Exit(1)


app.command("create", hidden=True)(add)
app.command("delete", hidden=True)(remove)


async def _find(client: Client, filters: list[AclFilter]) -> list[Acl]:
    found: dict[Acl, None] = {}
    for one in filters:
        found.update(dict.fromkeys(await client.admin.describe_acls(one)))
    return sorted(
        found, key=lambda acl: (acl.resource_type, acl.resource_name, acl.principal, acl.operation)
    )


def _filters(
    principal: str | None,
    operations: list[Operation] | None,
    resources: list[tuple[Any, str]],
    pattern: Wanted,
    permission: Permission | None,
    host: str | None,
) -> list[AclFilter]:
    from odradek.admin.access import (
        AclFilter,
        AclOperation,
        AclPermission,
        PatternType,
        ResourceType,
    )

    return [
        AclFilter(
            resource_type=kind,
            resource_name=name,
            principal=principal or "",
            operation=AclOperation[what.name] if what else AclOperation.ANY,
            permission=AclPermission[permission.name] if permission else AclPermission.ANY,
            pattern_type=PatternType[pattern.name],
            host=host or "",
        )
        for kind, name in resources or [(ResourceType.ANY, "")]
        for what in operations or (None,)
    ]


def _resources(
    topics: list[str] | None, groups: list[str] | None, ids: list[str] | None, cluster: bool
) -> list[tuple[Any, str]]:
    from odradek.admin.access import ResourceType

    found = [(ResourceType.TOPIC, name) for name in topics or ()]
    found += [(ResourceType.GROUP, name) for name in groups or ()]
    found += [(ResourceType.TRANSACTIONAL_ID, name) for name in ids or ()]
    if cluster:
        found.append((ResourceType.CLUSTER, CLUSTER_NAME))
    return found


def _row(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": acl.operation.name.lower().replace("_", "-"),
        "resource_type": acl.resource_type.name.lower().replace("_", "-"),
        "resource": acl.resource_name,
        "pattern": acl.pattern_type.name.lower(),
        "host": acl.host,
    }
