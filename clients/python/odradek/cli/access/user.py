"""`odradek user`: who can log in by a password (SCRAM)."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from odradek.cli.session import with_client

if TYPE_CHECKING:
    from odradek.admin.access import ScramMechanism
    from odradek.client import Client

app = typer.Typer(help="Users who log in by a password (SCRAM).", no_args_is_help=True)
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


@app.command()
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


@app.command()
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


@app.command("list")
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


@app.command()
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
