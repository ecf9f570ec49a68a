"""`odradek user` and `odradek acl` against a broker that requires a login, and logins of the
command line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster

CLI = [sys.executable, "-m", "odradek.cli.main"]
READ_ALL = ("--principal", "User:x", "--operation", "read")
SETTINGS = (
    "listeners=KAFKA://127.0.0.1:0,GRPC://127.0.0.1:0,GRPC_USERS://127.0.0.1:0,"
    "REPLICATION://127.0.0.1:0",
    "listener.security.protocol.map=KAFKA:PLAINTEXT,GRPC:PLAINTEXT,GRPC_USERS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
    "authorizer.class.name=acl",
    "super.users=User:ANONYMOUS;User:root",
)


class Cli:
    """Runs commands: as the administrator at the open listener, or as a user at the listener with
    logins.
    """

    def __init__(self, ports: dict[str, int], home: Path) -> None:
        self.open = f"127.0.0.1:{ports['GRPC']}"
        self.guarded = f"127.0.0.1:{ports['GRPC_USERS']}"
        self._home = home

    def run(
        self,
        *words: str,
        stdin: str = "",
        status: int = 0,
        bootstrap: str | None = None,
        **environment: str,
    ) -> Any:
        """Run a command and return what it prints: parsed JSON if `-o json` is among the words, or
        the error if one is expected.
        """
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ODRADEK_")}
        told = {"ODRADEK_BOOTSTRAP": bootstrap or self.open} if bootstrap != "" else {}
        done = subprocess.run(
            [*CLI, *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env={**inherited, "HOME": str(self._home), **told, **environment},
            timeout=60,
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        if status:
            return done.stderr or done.stdout
        return json.loads(done.stdout) if "json" in words else done.stdout


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, settings=SETTINGS)) as cluster:
        cluster.start()
        cluster.wait_ready()
        ports = cluster.brokers[1].ready_line["ports"]
        yield Cli(ports, tmp_path_factory.mktemp("home"))


def test_a_users_life(cli: Cli) -> None:
    made = cli.run("user", "create", "alice", "-o", "json", stdin="first secret\n")
    assert made == {"user": "alice", "mechanisms": ["SCRAM-SHA-512"], "iterations": 8192}
    assert "exists" in cli.run("user", "create", "alice", stdin="x\n", status=1)

    def sees_cluster(password: str, status: int = 0) -> str:
        words = ("--user", "alice", "topic", "list")
        return str(
            cli.run(*words, bootstrap=cli.guarded, ODRADEK_SASL_PASSWORD=password, status=status)
        )

    sees_cluster("first secret")
    assert "authentication failed" in sees_cluster("wrong", 1)
    cli.run("user", "alter", "alice", "--iterations", "4096", stdin="second\n")
    assert "authentication failed" in sees_cluster("first secret", 1)
    sees_cluster("second")
    assert cli.run("user", "list", "alice", "-o", "json") == [
        {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096}
    ]
    told = cli.run("user", "delete", "alice", "--dry-run", "-o", "json")
    assert told == [{"user": "alice", "mechanism": "SCRAM-SHA-512", "deleted": False}]
    sees_cluster("second")
    cli.run("user", "delete", "alice")
    assert "authentication failed" in sees_cluster("second", 1)
    assert "no SCRAM credential" in cli.run("user", "delete", "alice", status=1)
    assert "there is no user" in cli.run("user", "alter", "alice", stdin="x\n", status=1)


def test_a_cluster_is_not_called_healthy_to_who_sees_nothing_of_it(cli: Cli) -> None:
    cli.run("user", "create", "watcher", stdin="w\n")
    look = ("--user", "watcher", "cluster", "health")
    login = {"bootstrap": cli.guarded, "ODRADEK_SASL_PASSWORD": "w"}
    assert "needs DESCRIBE on CLUSTER" in cli.run(*look, status=3, **login)
    may = ("--principal", "User:watcher", "--operation", "describe", "--cluster")
    cli.run("acl", "add", *may)
    assert cli.run(*look, "-o", "json", **login)["healthy"] is True
    cli.run("acl", "remove", *may)
    cli.run("user", "delete", "watcher")


def test_a_refusal_names_the_principal_and_the_right(cli: Cli) -> None:
    cli.run("user", "create", "dave", stdin="d\n")
    cli.run("topic", "create", "orders-eu", "--replicas", "1", "--partitions", "1")

    def refused(*words: str, stdin: str = "") -> str:
        login = {"ODRADEK_SASL_USERNAME": "dave", "ODRADEK_SASL_PASSWORD": "d"}
        return str(cli.run(*words, stdin=stdin, status=1, bootstrap=cli.guarded, **login))

    consume = ("consume", "orders-eu", "--from-beginning", "--exit-at-end")
    produce = ("produce", "orders-eu")
    assert "User:dave needs DESCRIBE on TOPIC orders-eu" in refused(*consume)
    assert "User:dave needs DESCRIBE on TOPIC orders-eu" in refused(*produce, stdin="x\n")
    may = ("--principal", "User:dave", "--topic", "orders-eu")
    cli.run("acl", "add", *may, "--operation", "describe")
    cli.run("produce", "orders-eu", stdin="hello\n")
    assert "orders-eu-0: User:dave needs READ on TOPIC orders-eu;" in refused(*consume)
    assert "needs IDEMPOTENT_WRITE on CLUSTER" in refused(*produce, stdin="x\n")
    of_cluster = ("--principal", "User:dave", "--cluster")
    cli.run("acl", "add", *of_cluster, "--operation", "idempotent-write")
    assert "orders-eu-0: User:dave needs WRITE on TOPIC orders-eu;" in refused(
        *produce, stdin="x\n"
    )
    cli.run("acl", "add", *may, "--operation", "read")
    assert "User:dave needs READ on GROUP workers" in refused(*consume, "--group", "workers")
    cli.run("acl", "remove", "--principal", "User:dave")
    cli.run("user", "delete", "dave")


def test_a_user_with_both_mechanisms_gets_one_password(cli: Cli, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("pa ss=word\n")
    both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512")
    cli.run("user", "create", "bob", *both, "--password-file", str(secret))
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        login = ("--user", "bob", "--mechanism", mechanism, "--password-file", str(secret))
        cli.run(*login, "topic", "list", bootstrap=cli.guarded)
    cli.run("user", "delete", "bob", "--mechanism", "SCRAM-SHA-256")
    left = cli.run("user", "list", "bob", "-o", "json")
    assert [one["mechanism"] for one in left] == ["SCRAM-SHA-512"]


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (("user", "create", "x"), ""),
        (("user", "create", "x"), "\n"),
        (("user", "create", "x", "--password-file", "/no/such/file"), ""),
        (("user", "create", "x", "--iterations", "100"), "y\n"),
        (("user", "create", "x", "--mechanism", "MD5"), "y\n"),
        (("acl", "add", "--principal", "User:x", "--operation", "read"), ""),
        (("acl", "add", "--principal", "x", "--operation", "read", "--topic", "t"), ""),
        (("acl", "add", "--principal", "User:x", "--operation", "fly", "--topic", "t"), ""),
        (("acl", "add", *READ_ALL, "--cluster", "--pattern", "prefixed"), ""),
        (("acl", "remove"), ""),
        (("acl", "remove", "--all", "--topic", "t"), ""),
        (("--user", "x", "topic", "list"), ""),
        (("--cert", "/no/such/file", "topic", "list"), ""),
    ],
)
def test_wrong_use_is_status_2(cli: Cli, words: tuple[str, ...], stdin: str) -> None:
    assert cli.run(*words, stdin=stdin, status=2)


def test_what_entries_allow_and_deny(cli: Cli) -> None:
    cli.run("user", "create", "carol", stdin="secret\n")
    for name in ("logs-a", "logs-secret"):
        cli.run("topic", "create", name, "--replicas", "1", "--partitions", "1")

    def as_carol(*words: str, stdin: str = "", status: int = 0) -> Any:
        return cli.run(
            *words,
            stdin=stdin,
            status=status,
            bootstrap=cli.guarded,
            ODRADEK_SASL_USERNAME="carol",
            ODRADEK_SASL_PASSWORD="secret",
        )

    def topics() -> list[str]:
        return [one["topic"] for one in as_carol("topic", "list", "-o", "json")]

    assert topics() == []
    assert "User:carol" in as_carol("topic", "create", "mine", "--replicas", "1", status=1)
    who = ("--principal", "User:carol")
    rows = cli.run(
        *("acl", "add", *who, "--operation", "write", "--operation", "read"),
        *("--topic", "logs-", "--pattern", "prefixed", "-o", "json"),
    )
    assert rows[0] == {
        "principal": "User:carol",
        "permission": "allow",
        "operation": "write",
        "resource_type": "topic",
        "resource": "logs-",
        "pattern": "prefixed",
        "host": "*",
    }
    assert sorted(topics()) == ["logs-a", "logs-secret"]
    as_carol("produce", "logs-a", stdin="hello\n")
    assert as_carol("consume", "logs-a", "--from-beginning", "--exit-at-end") == "hello\n"
    cli.run("acl", "add", *who, "--operation", "all", "--topic", "logs-secret", "--deny")
    assert topics() == ["logs-a"]
    cli.run("acl", "add", *who, "--operation", "read", "--topic", "*", "--host", "10.0.0.1")
    assert topics() == ["logs-a"]  # allowed from elsewhere only
    found = cli.run("acl", "list", *who, "-o", "json")
    assert len(found) == 4
    matching = cli.run("acl", "list", "--topic", "logs-a", "--pattern", "match", "-o", "json")
    assert {(one["resource"], one["pattern"]) for one in matching} == {
        ("logs-", "prefixed"),
        ("*", "literal"),
    }
    denied = cli.run("acl", "remove", *who, "--permission", "deny", "--dry-run", "-o", "json")
    assert [one["removed"] for one in denied] == [False]
    assert topics() == ["logs-a"]
    cli.run("acl", "remove", *who, "--permission", "deny")
    assert sorted(topics()) == ["logs-a", "logs-secret"]
    assert len(cli.run("acl", "remove", *who, "-o", "json")) == 3
    cli.run("acl", "remove", *who, status=1)
    assert topics() == []


def test_the_connection_is_configured_by_a_file_the_environment_or_options(
    cli: Cli, tmp_path: Path
) -> None:
    cli.run("user", "create", "dave", stdin="secret\n")
    file = tmp_path / "client.properties"
    file.write_text(
        f"# how to get in\nbootstrap.servers={cli.guarded}\nsecurity.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=SCRAM-SHA-512\nsasl.username=dave\nsasl.password=secret\n"
    )
    file.chmod(0o600)
    config = ("--config", str(file))
    cli.run(*config, "topic", "list", bootstrap="")
    cli.run("topic", "list", bootstrap="", ODRADEK_CONFIG=str(file))
    assert "authentication failed" in cli.run(
        *config, "topic", "list", bootstrap="", ODRADEK_SASL_PASSWORD="wrong", status=1
    )
    assert "User" not in cli.run(
        *config, "--user", "root", "topic", "list", "--bootstrap", cli.guarded, status=1
    )
    file.write_text("security.protocol=PLAINTEXT\n")
    asked = cli.run(*config, "--user", "dave", "topic", "list", bootstrap=cli.guarded, status=2)
    assert "no password: set ODRADEK_SASL_PASSWORD" in asked, "it does not forget the user"
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    login = (*config, "--password-file", str(secret))
    cli.run(*login, "--user", "dave", "topic", "list", bootstrap=cli.guarded)
    cli.run(*login, "topic", "list", bootstrap=cli.guarded, ODRADEK_SASL_USERNAME="dave")
    assert "needs a user: add --user NAME" in cli.run(*login, "topic", "list", status=2)
    assert "commands log in with --user NAME" in cli.run(
        *config, "topic", "list", bootstrap=cli.guarded, status=1
    )
    file.write_text("security.protocol=PLAINTEXT\nsasl.username=dave\n")
    assert "set security.protocol to SASL_PLAINTEXT, or remove sasl.username" in cli.run(
        *config, "topic", "list", status=2
    )
    file.write_text("security.protocol=SASL_SSL\nsasl.username=dave\n")
    cli.run(*config, "topic", "list", ODRADEK_SECURITY_PROTOCOL="PLAINTEXT")
    file.write_text("sasl.user=dave\n")
    assert "did you mean sasl.username" in cli.run(*config, "topic", "list", status=2)
