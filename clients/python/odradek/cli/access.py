"""`odradek acl` and `odradek user`: access control entries and SCRAM users.

A DENY entry overrides every ALLOW entry. An operation that no entry allows is denied.
"""

from __future__ import annotations

import sys
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from odradek.cli.connection import (
    complete_groups,
    complete_principals,
    complete_topics,
    complete_transactional_ids,
    complete_users,
    with_client,
)
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
from odradek_protocol.access import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

if TYPE_CHECKING:
    from odradek.admin.access import Acl, AclFilter, ScramMechanism
    from odradek.client import Client


Kind = TypeVar("Kind", bound=IntEnum)

acl_app = typer.Typer(help="Add, list and remove access control entries.", no_args_is_help=True)


def _word(member: IntEnum) -> str:
    return member.name.lower().replace("_", "-")


def _words(*members: Kind) -> dict[str, Any]:
    """Return the arguments of `typer.Option` for an option whose values are the names of these enum members, in lower
    case and with dashes.
    """
    by_word = {_word(member): member for member in members}

    def parse(value: str | Kind) -> Kind:
        if not isinstance(value, str):
            return value  # the default
        if (member := by_word.get(value.lower())) is None:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(by_word)}.")
        return member

    return {"parser": parse, "metavar": f"[{'|'.join(by_word)}]"}


_RESOURCE_TYPES = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.CLUSTER,
)
_ALLOWED = {operation for kind in _RESOURCE_TYPES for operation in OPERATIONS_OF[kind]}
_OPERATIONS = _words(Operation.ALL, *sorted(_ALLOWED)) | {"metavar": "OPERATION"}
_OPERATION_NAMES = ", ".join(_word(operation) for operation in (Operation.ALL, *sorted(_ALLOWED)))
_PATTERNS = _words(PatternType.LITERAL, PatternType.PREFIXED)
_PATTERN_FILTERS = _words(*(pattern for pattern in PatternType if pattern > PatternType.UNKNOWN))
_PERMISSIONS = _words(Permission.ALLOW, Permission.DENY)

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="NAME",
        help="Topic that the entry applies to; * stands for all topics. Repeatable.",
        autocompletion=complete_topics,
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="NAME",
        help="Group that the entry applies to; * stands for all groups. Repeatable.",
        autocompletion=complete_groups,
    ),
]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option(
        "--transactional-id",
        metavar="ID",
        help="Transactional id that the entry applies to; * stands for all. Repeatable.",
        autocompletion=complete_transactional_ids,
    ),
]
OnCluster = Annotated[
    bool,
    typer.Option("--cluster", help="The entry applies to the cluster itself."),
]


@acl_app.command()
def add(
    principal: Annotated[
        list[str],
        typer.Option(
            metavar="PRINCIPAL",
            help="Principal that the entry is for: User:NAME, User:CN=... from a client certificate,"
            " or User:* for everybody. Repeatable.",
            autocompletion=complete_principals,
        ),
    ],
    # The values are Operations. If the option is missing, typer would list the numbers of an IntEnum.
    operation: Annotated[
        list[Any],
        typer.Option(help=f"Operation to allow: {_OPERATION_NAMES}. Repeatable.", **_OPERATIONS),
    ],
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OnCluster = False,
    pattern: Annotated[
        PatternType,
        typer.Option(
            help="literal: the entry applies to the resource with exactly this name;"
            " prefixed: to every resource whose name begins with this name.",
            show_default="literal",
            **_PATTERNS,
        ),
    ] = PatternType.LITERAL,
    deny: Annotated[
        bool,
        typer.Option(
            "--deny",
            help="Deny the operation instead. A deny entry overrides every allow entry.",
        ),
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Limit the entry to clients with this IP address. Repeatable. [default: any address]",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Add access control entries. An entry that already exists is not changed."""
    from odradek.admin.access import Acl

    resources = _resources(topic, group, transactional_id, cluster)
    if not resources:
        fail(
            "no resource is given: add --topic, --group, --transactional-id or --cluster",
            status=EXIT_USAGE,
        )
    is_everything = cluster or any(name == WILDCARD for _, name in resources)
    if pattern is PatternType.PREFIXED and is_everything:
        fail(
            "--pattern prefixed needs --topic, --group or --transactional-id with the beginning of a name",
            status=EXIT_USAGE,
        )
    for name in principal:
        if not name.startswith("User:") or name == "User:":
            fail(f"--principal {name} does not have the form User:NAME", status=EXIT_USAGE)
    acls = [
        Acl(
            resource_type=resource_type,
            resource_name=resource_name,
            principal=name,
            operation=allowed,
            permission=Permission.DENY if deny else Permission.ALLOW,
            pattern_type=pattern,
            host=address,
        )
        for name in principal
        for resource_type, resource_name in resources
        for allowed in operation
        for address in host or [WILDCARD]
    ]

    async def work(client: Client) -> None:
        await client.admin.create_acls(acls)

    with_client(bootstrap, work)
    print_rows([_row(acl) for acl in acls], output, empty="no entries")


PrincipalFilter = Annotated[
    str | None,
    typer.Option(
        metavar="PRINCIPAL",
        help="Select entries for this principal, for example User:alice.",
        autocompletion=complete_principals,
    ),
]
OperationFilter = Annotated[
    list[Operation] | None,
    typer.Option(
        "--operation", help="Select entries for this operation. Repeatable.", **_OPERATIONS
    ),
]
PermissionFilter = Annotated[
    Permission | None,
    typer.Option(help="Select only allow entries, or only deny entries.", **_PERMISSIONS),
]
HostFilter = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Select entries that are limited to this IP address."),
]
_PATTERN_HELP = (
    "Select entries of this pattern type. any: of every type;"
    " match: every entry that applies to the given name."
)


@acl_app.command("list")
def list_acls(
    principal: PrincipalFilter = None,
    operation: OperationFilter = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OnCluster = False,
    pattern: Annotated[
        PatternType, typer.Option(help=_PATTERN_HELP, show_default="any", **_PATTERN_FILTERS)
    ] = PatternType.ANY,
    permission: PermissionFilter = None,
    host: HostFilter = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List all access control entries, or those that the options select."""
    resources = _resources(topic, group, transactional_id, cluster)
    filters = _filters(principal, operation, resources, pattern, permission, host)

    async def work(client: Client) -> list[Acl]:
        return await _find(client, filters)

    rows = [_row(acl) for acl in with_client(bootstrap, work)]
    print_rows(rows, output, empty="there are no entries")


@acl_app.command()
def remove(
    principal: PrincipalFilter = None,
    operation: OperationFilter = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OnCluster = False,
    pattern: Annotated[
        PatternType, typer.Option(help=_PATTERN_HELP, show_default="literal", **_PATTERN_FILTERS)
    ] = PatternType.LITERAL,
    permission: PermissionFilter = None,
    host: HostFilter = None,
    every: Annotated[bool, typer.Option("--all", help="Select all entries.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the entries without removing them.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove the access control entries that the options select. The exit status is 1 if no entry matches."""
    resources = _resources(topic, group, transactional_id, cluster)
    is_narrow = any((principal, operation, resources, permission, host))
    if is_narrow is every:
        fail(
            "select entries either with options such as --principal or --topic, or all of them with --all",
            status=EXIT_USAGE,
        )
    if not resources:
        pattern = PatternType.ANY
    filters = _filters(principal, operation, resources, pattern, permission, host)

    async def work(client: Client) -> list[Acl]:
        if dry_run:
            return await _find(client, filters)
        return await client.admin.delete_acls(filters)

    rows = [{**_row(acl), "removed": not dry_run} for acl in with_client(bootstrap, work)]
    print_rows(rows, output, empty="no entry matches")
    if not rows:
        raise typer.Exit(1)


acl_app.command("create", hidden=True)(add)
acl_app.command("delete", hidden=True)(remove)


async def _find(client: Client, filters: list[AclFilter]) -> list[Acl]:
    matches: dict[Acl, None] = {}
    for acl_filter in filters:
        matches.update(dict.fromkeys(await client.admin.describe_acls(acl_filter)))
    return sorted(
        matches,
        key=lambda acl: (acl.resource_type, acl.resource_name, acl.principal, acl.operation),
    )


def _filters(
    principal: str | None,
    operations: list[Operation] | None,
    resources: list[tuple[ResourceType, str]],
    pattern: PatternType,
    permission: Permission | None,
    host: str | None,
) -> list[AclFilter]:
    from odradek.admin.access import AclFilter

    return [
        AclFilter(
            resource_type=resource_type,
            resource_name=name,
            principal=principal or "",
            operation=operation,
            permission=permission or Permission.ANY,
            pattern_type=pattern,
            host=host or "",
        )
        for resource_type, name in resources or [(ResourceType.ANY, "")]
        for operation in operations or (Operation.ANY,)
    ]


def _resources(
    topics: list[str] | None, groups: list[str] | None, ids: list[str] | None, cluster: bool
) -> list[tuple[ResourceType, str]]:
    resources = [(ResourceType.TOPIC, name) for name in topics or ()]
    resources += [(ResourceType.GROUP, name) for name in groups or ()]
    resources += [(ResourceType.TRANSACTIONAL_ID, name) for name in ids or ()]
    if cluster:
        resources.append((ResourceType.CLUSTER, CLUSTER_NAME))
    return resources


def _row(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "permission": _word(acl.permission),
        "operation": _word(acl.operation),
        "resource_type": _word(acl.resource_type),
        "resource": acl.resource_name,
        "pattern": _word(acl.pattern_type),
        "host": acl.host,
    }


user_app = typer.Typer(help="Create, list, change and delete SCRAM users.", no_args_is_help=True)
PASSWORD_CHARACTERS_MAX = 1024


class Scram(StrEnum):
    """The SCRAM mechanisms. The values are the names that users type."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> ScramMechanism:
        """Return the same mechanism as a member of the enum that `Admin` uses."""
        from odradek.admin.access import ScramMechanism

        return ScramMechanism[self.name.replace("SHA", "SCRAM_SHA")]


Name = Annotated[str, typer.Argument(help="Name of the SCRAM user.", autocompletion=complete_users)]
Mechanisms = Annotated[
    list[Scram] | None,
    typer.Option(
        "--mechanism",
        help="Store the password for this mechanism. Repeatable. [default: SCRAM-SHA-512]",
    ),
]
MechanismsToChange = Annotated[
    list[Scram] | None,
    typer.Option(
        "--mechanism",
        help="Change the password for this mechanism. Repeatable. [default: all mechanisms of the user]",
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        min=4096,
        max=16_384,
        metavar="N",
        help="SCRAM iterations. More iterations make it harder to guess the password from a stolen credential.",
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read the password from the first line of this file. [default: prompt, or read standard input]",
    ),
]
Password = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="The new password. Other users of this machine can see it in the process list.",
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
    """Create a user. Without --password and --password-file, the command prompts for the password on a terminal, and
    otherwise reads it from the first line of standard input.
    """
    _set(name, mechanism, iterations, _password(password_file, password), bootstrap, output, True)


@user_app.command()
def alter(
    name: Name,
    mechanism: MechanismsToChange = None,
    iterations: Iterations = 8192,
    password_file: PasswordFile = None,
    password: Password = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change the password of a user. The user's open gRPC sessions end."""
    _set(name, mechanism, iterations, _password(password_file, password), bootstrap, output, False)


@user_app.command("list")
def list_users(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="List only these users.", autocompletion=complete_users),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List users and their mechanisms."""

    async def work(client: Client) -> list[dict[str, Any]]:
        return [
            {"user": user.name, "mechanism": _mechanism_name(mechanism), "iterations": count}
            for user in await client.admin.describe_scram_users(names or ())
            for mechanism, count in sorted(user.iterations.items())
        ]

    print_rows(with_client(bootstrap, work), output, empty="there are no users")


@user_app.command()
def delete(
    names: Annotated[
        list[str],
        typer.Argument(help="Names of the SCRAM users to delete.", autocompletion=complete_users),
    ],
    mechanism: Annotated[
        list[Scram] | None,
        typer.Option(
            "--mechanism", help="Delete only the credential of this mechanism. Repeatable."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be changed, without changing it.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete users. A deleted user can no longer log in, and the user's open gRPC sessions end."""
    selected = {name.number for name in mechanism or ()}

    async def work(client: Client) -> list[dict[str, Any]]:
        rows = []
        for description in await client.admin.describe_scram_users(names):
            for kind in sorted(description.iterations):
                if not selected or kind in selected:
                    rows.append((description.name, kind))
        missing = set(names).difference(user for user, _ in rows)
        if missing:
            fail(
                f"these users do not exist, or have no credential of that --mechanism: {', '.join(sorted(missing))}"
            )
        if not dry_run:
            for user, kind in rows:
                await client.admin.delete_scram_user(user, kind)
        return [
            {"user": user, "mechanism": _mechanism_name(kind), "deleted": not dry_run}
            for user, kind in rows
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
        existing = next((user for user in users if user.name == name), None)
        if is_new and existing is not None:
            raise OdradekError(f"user {name} already exists", hint=f"odradek user alter {name}")
        if not is_new and existing is None:
            raise OdradekError(f"there is no user {name}", hint=f"odradek user create {name}")
        kinds = [mechanism.number for mechanism in mechanisms or ()]
        if not kinds:
            kinds = [Scram.SHA_512.number] if existing is None else sorted(existing.iterations)
        for kind in kinds:
            await client.admin.set_scram_password(
                name, password, mechanism=kind, iterations=iterations
            )
        return {
            "user": name,
            "mechanisms": [_mechanism_name(kind) for kind in kinds],
            "iterations": iterations,
        }

    print_facts(with_client(bootstrap, work), output)


def _mechanism_name(mechanism: ScramMechanism) -> str:
    return mechanism.name.replace("_", "-")


def _password(file: Path | None, given: str | None) -> str:
    if file is not None and given is not None:
        fail("--password and --password-file cannot be used together", status=EXIT_USAGE)
    if given is not None:
        password = given
    elif file is not None:
        try:
            password = file.read_text().partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            fail(f"cannot read {file}: {getattr(error, 'strerror', error)}", status=EXIT_USAGE)
    elif sys.stdin is None:
        fail("standard input is closed: use --password-file", status=EXIT_USAGE)
    elif sys.stdin.isatty():
        from getpass import getpass

        password = getpass("Password: ", stream=sys.stderr)
        if getpass("Repeat the password: ", stream=sys.stderr) != password:
            fail("the two passwords differ", status=EXIT_USAGE)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not 0 < len(password) <= PASSWORD_CHARACTERS_MAX:
        fail(f"a password must have 1 to {PASSWORD_CHARACTERS_MAX} characters", status=EXIT_USAGE)
    return password
