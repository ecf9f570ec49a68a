"""`odradek acl`: who may do what. DENY wins; without an entry that allows it nothing is allowed."""

from __future__ import annotations

import importlib.util
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.connection import with_client
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
    print_facts,
    print_rows,
)

if TYPE_CHECKING:
    from odradek.admin.access import Acl, AclFilter, ScramMechanism
    from odradek.cli.certificate_authority import CertificateAuthority
    from odradek.client import Client


acl_app = typer.Typer(help="Who may do what: access control entries.", no_args_is_help=True)
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


@acl_app.command()
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


@acl_app.command("list")
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


@acl_app.command()
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


acl_app.command("create", hidden=True)(add)
acl_app.command("delete", hidden=True)(remove)


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


user_app = typer.Typer(help="Users who log in by a password (SCRAM).", no_args_is_help=True)
PASSWORD_CHARACTERS_MAX = 1024


class Scram(StrEnum):
    """What a user may log in by."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> ScramMechanism:
        """As the admin names it."""
        from odradek.admin.access import ScramMechanism

        return ScramMechanism[self.name.replace("SHA", "SCRAM_SHA")]


Name = Annotated[str, typer.Argument(help="Name of the user.")]
Mechanisms = Annotated[
    list[Scram] | None,
    typer.Option("--mechanism", help="By what; repeat it. Default: SCRAM-SHA-512."),
]
Iterations = Annotated[
    int, typer.Option(min=4096, max=16_384, help="Rounds of hashing, which a guess costs too.")
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        help="Whose first line is the password. Else it is asked for, or read from stdin."
    ),
]
Password = Annotated[
    str | None,
    typer.Option(
        help="The password itself: everybody on this machine can see it in the process list."
    ),
]


@user_app.command()
def create(
    name: Name,
    mechanism: Mechanisms = None,
    iterations: Iterations = 8192,
    password_file: PasswordFile = None,
    password: Password = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a user. The password is asked for, or the first line of stdin."""
    _set(name, mechanism, iterations, _password(password_file, password), bootstrap, output, True)


@user_app.command()
def alter(
    name: Name,
    mechanism: Mechanisms = None,
    iterations: Iterations = 8192,
    password_file: PasswordFile = None,
    password: Password = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Give a user another password. Without --mechanism for all that he has; open logins end."""
    _set(name, mechanism, iterations, _password(password_file, password), bootstrap, output, False)


@user_app.command("list")
def list_users(
    names: Annotated[list[str] | None, typer.Argument(help="Only these.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List users, and what they can log in by."""

    async def work(client: Client) -> list[dict[str, Any]]:
        return [
            {"user": one.name, "mechanism": _told(kind), "iterations": count}
            for one in await client.admin.describe_scram_users(names or ())
            for kind, count in sorted(one.iterations.items())
        ]

    print_rows(with_client(bootstrap, work), output, empty="there are no users")


@user_app.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="Names of users.")],
    mechanism: Annotated[
        list[Scram] | None, typer.Option("--mechanism", help="Only this one; repeat it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be done.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete users. They can log in no more, and open logins over gRPC end."""
    wanted = {one.number for one in mechanism or ()}

    async def work(client: Client) -> list[dict[str, Any]]:
        rows = []
        for one in await client.admin.describe_scram_users(names):
            for kind in sorted(one.iterations):
                if not wanted or kind in wanted:
                    rows.append((one.name, kind))
        missing = set(names).difference(user for user, _ in rows)
        if missing:
            fail(f"no such user, or not by that mechanism: {', '.join(sorted(missing))}")
        if not dry_run:
            for user, kind in rows:
                await client.admin.delete_scram_user(user, kind)
        return [
            {"user": user, "mechanism": _told(kind), "deleted": not dry_run} for user, kind in rows
        ]

    print_rows(with_client(bootstrap, work), output, empty="no users")


def _set(
    name: str,
    mechanisms: list[Scram] | None,
    iterations: int,
    password: str,
    bootstrap: str,
    output: OutputFormat,
    is_new: bool,
) -> None:
    from odradek.errors import OdradekError

    async def work(client: Client) -> dict[str, Any]:
        users = await client.admin.describe_scram_users()
        known = next((one for one in users if one.name == name), None)
        if is_new and known is not None:
            raise OdradekError(f"user {name} exists", hint=f"odradek user alter {name}")
        if not is_new and known is None:
            raise OdradekError(f"there is no user {name}", hint=f"odradek user create {name}")
        kinds = [one.number for one in mechanisms or ()]
        if not kinds:
            kinds = [Scram.SHA_512.number] if known is None else sorted(known.iterations)
        for kind in kinds:
            await client.admin.set_scram_password(
                name, password, mechanism=kind, iterations=iterations
            )
        return {"user": name, "mechanisms": [_told(one) for one in kinds], "iterations": iterations}

    print_facts(with_client(bootstrap, work), output)


def _told(mechanism: ScramMechanism) -> str:
    return mechanism.name.replace("_", "-")


def _password(file: Path | None, given: str | None) -> str:
    if file is not None and given is not None:
        fail("--password and --password-file exclude each other", status=EXIT_USAGE)
    if given is not None:
        found = given
    elif file is not None:
        try:
            found = file.read_text().partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            fail(f"cannot read {file}: {getattr(error, 'strerror', error)}", status=EXIT_USAGE)
    elif sys.stdin.isatty():
        from getpass import getpass

        found = getpass("Password: ", stream=sys.stderr)
        if getpass("Again: ", stream=sys.stderr) != found:
            fail("the passwords differ", status=EXIT_USAGE)
    else:
        found = sys.stdin.readline().rstrip("\r\n")
    if not 0 < len(found) <= PASSWORD_CHARACTERS_MAX:
        fail(f"a password has 1 to {PASSWORD_CHARACTERS_MAX} characters", status=EXIT_USAGE)
    return found


tls_app = typer.Typer(help="Certificates of the cluster's own authority.", no_args_is_help=True)
Directory = Annotated[Path, typer.Option("--dir", help="Where the authority is kept.")]


@tls_app.command()
def init(
    directory: Directory = Path("tls"),
    common_name: Annotated[str, typer.Option(help="Name of the authority.")] = "Odradek cluster CA",
    days: Annotated[int, typer.Option(min=1, help="How long it is valid.")] = 3650,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make the authority. Every node trusts ca.crt; ca.key stays with you."""
    path = _authority(directory).create(common_name=common_name, days=days)
    print_facts({"certificate": path, "key": path.with_suffix(".key")}, output)


@tls_app.command()
def issue(
    name: Annotated[str, typer.Argument(help="Identity: broker-1, controller-2, a user.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Host name or address that peers dial; repeat it.")
    ] = None,
    directory: Directory = Path("tls"),
    days: Annotated[int, typer.Option(min=1, help="How long it is valid.")] = 365,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Issue a certificate for NAME. Its alternative names hold the hosts, too."""
    certificate, key = _authority(directory).issue(name, hosts=host or (), days=days)
    print_facts({"certificate": certificate, "key": key}, output)


@tls_app.command()
def renew(
    name: Annotated[str, typer.Argument(help="Identity whose certificate is renewed.")],
    directory: Directory = Path("tls"),
    days: Annotated[int, typer.Option(min=1, help="How long it is valid.")] = 365,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Issue a certificate again. The names stay; running processes load it without a restart."""
    certificate, key = _authority(directory).renew(name, days=days)
    print_facts({"certificate": certificate, "key": key}, output)


def _authority(directory: Path) -> CertificateAuthority:
    if importlib.util.find_spec("cryptography") is None:
        fail("certificates need the package cryptography: pip install 'odradek[server]'")
    from odradek.cli.certificate_authority import CertificateAuthority

    return CertificateAuthority(directory)
