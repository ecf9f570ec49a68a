"""Every command of the command line, run against a cluster of `odradek dev` as a person or a script
would run it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import odradek
import odradek.sync
from odradek.partitions import TopicPartition
from tests.integration.documentation.pages import blocks, run_part

README = Path(__file__).parents[3] / "README.md"
CLI = [sys.executable, "-m", "odradek.cli.main"]


@pytest.fixture(scope="module")
def dev() -> Iterator[dict[str, Any]]:
    process = subprocess.Popen(
        [
            *CLI,
            "dev",
            "--brokers",
            "1",
            "--controllers",
            "1",
            "--gateways",
            "0",
            "--base-port",
            "0",
            "--json",
            "--exit-with-parent",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    told = json.loads(process.stdout.readline())
    yield told
    process.stdin.close()  # end of file on its standard input ends it, and its children
    assert process.wait(30) == 0
    process.stdout.close()
    process.stderr.close()
    for pid in told["pids"].values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def run(dev: dict[str, Any], *words: str, stdin: str = "", status: int = 0) -> str:
    done = subprocess.run(
        [*CLI, *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ODRADEK_BOOTSTRAP": dev["grpc"]},
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if status == 0 else done.stderr


def completed(dev: dict[str, Any], words: str, **environment: str) -> list[str]:
    """Return what bash would offer to complete the last of these words."""
    done = subprocess.run(
        [*CLI],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"ODRADEK_BOOTSTRAP": dev["grpc"], "_ODRADEK_COMPLETE": "complete_bash"}
        | {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        | environment,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_a_shell_completes_names_of_topics_and_groups(dev: dict[str, Any]) -> None:
    for topic in ("completed-a", "completed-b"):
        run(dev, "topic", "create", topic)
    run(dev, "produce", "completed-a", stdin="hello\n")
    run(dev, "consume", "completed-a", "--group", "completing", "--from-beginning", "-n", "1")
    topics = ["completed-a", "completed-b"]
    for words in ("topic describe comp", "produce comp", "consume comp"):
        assert completed(dev, f"odradek {words}") == topics
    assert completed(dev, "odradek topic describe completed-b") == topics[1:]
    assert completed(dev, "odradek group describe comp") == ["completing"]
    assert completed(dev, f"odradek --bootstrap {dev['grpc']} produce comp") == topics


def test_a_shell_completes_users_transactional_ids_and_brokers(dev: dict[str, Any]) -> None:
    run(dev, "user", "create", "completed-user", "--password", "secret")
    run(dev, "topic", "create", "completed-topic")
    with (
        odradek.sync.Client(dev["grpc"]) as client,
        client.producer(transactional_id="completed-id") as producer,
        producer.transaction(),
    ):
        producer.send("completed-topic", b"1")
    for words in ("user delete comp", "user list comp", "quota list --user comp"):
        assert completed(dev, f"odradek {words}") == ["completed-user"]
    assert completed(dev, "odradek acl list --principal User:comp") == ["User:completed-user"]
    for words in (
        "transaction describe comp",
        "transaction abort comp",
        "acl add --transactional-id comp",
    ):
        assert completed(dev, f"odradek {words}") == ["completed-id"]
    for words in ("cluster unregister ", "cluster logs --broker ", "partition move t --to "):
        assert completed(dev, f"odradek {words}") == ["1"]
    assert completed(dev, "odradek partition move t --to 1,") == []
    assert {"1", "completed-id", "completed-topic"} <= {*completed(dev, "odradek why ")}


def test_completion_is_silent_where_the_cluster_does_not_respond(dev: dict[str, Any]) -> None:
    words = "odradek topic describe comp"
    assert completed(dev, words, ODRADEK_BOOTSTRAP="127.0.0.1:1") == []
    assert completed(dev, words, ODRADEK_BOOTSTRAP="no address") == []
    assert completed(dev, words, ODRADEK_SASL_USERNAME="alice") == [], "a prompt would wait"


def test_dev_tells_where_everything_is(dev: dict[str, Any]) -> None:
    assert set(dev["pids"]) == {"controller-1", "broker-1"}
    assert dev["gateway"] is None
    assert dev["kafka"].startswith("127.0.0.1:")


def readme(pattern: str) -> str:
    """Return the one part of the README that matches the pattern."""
    (found,) = re.findall(pattern, README.read_text(), re.DOTALL)
    return str(found)


def test_the_readmes_tour(dev: dict[str, Any]) -> None:
    """The tour runs as it is written, except for the address and the number of brokers."""
    tour = readme(r"# in another terminal[^\n]*\n(.*?)```")
    assert "--replicas 3" in tour
    tour = tour.replace("--replicas 3", "--replicas 1")
    env = os.environ | {"ODRADEK_BOOTSTRAP": dev["grpc"]}
    odradek = f'odradek() {{ {sys.executable} -m odradek.cli.main "$@"; }}\n'
    done = subprocess.run(
        ["sh", "-e"], input=odradek + tour, capture_output=True, text=True, timeout=120, env=env
    )
    assert done.returncode == 0, done.stderr
    assert "\nhello\n" in done.stdout
    assert re.search(r"healthy +yes", done.stdout)
    program = readme(r"From Python:\n+```python\n(.*?)```")
    read = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=env
    )
    assert read.returncode == 0, read.stderr
    assert read.stdout.splitlines()[-1].endswith("b'world' b'hello'")


def test_the_commands_about_transactions(dev: dict[str, Any]) -> None:
    """The commands of docs/transactions.md run while a transaction is open and a step is complete."""
    page = blocks("docs/transactions.md")
    (stage,) = [block.text for block in page if "staged_writes" in block.text]
    (commands,) = [block.text for block in page if block.language == "sh"]

    async def complete_a_step() -> None:
        async with odradek.Client(dev["grpc"]) as client:
            await run_part(stage, client=client)

    for topic in ("orders", "totals"):
        run(dev, "topic", "create", topic)
    asyncio.run(complete_a_step())
    script = f'odradek() {{ {sys.executable} -m odradek.cli.main "$@"; }}\n{commands}'
    with (
        odradek.sync.Client(dev["grpc"]) as client,
        client.producer(transactional_id="orders-1") as producer,
    ):
        producer.transaction().__enter__()
        producer.send_and_wait("orders", b"not yet")
        done = subprocess.run(
            ["sh", "-e"],
            input=script,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"ODRADEK_BOOTSTRAP": dev["grpc"]},
        )
    assert done.returncode == 0, done.stderr
    assert "Ongoing" in done.stdout
    assert "sales" in done.stdout


def test_a_first_message(dev: dict[str, Any]) -> None:
    run(dev, "topic", "create", "first", "--partitions", "3", "--replicas", "1")
    run(dev, "produce", "first", "-k", ":", stdin="a:1\nb:2\nc:3\n")
    assert sorted(run(dev, "consume", "first", "--from-beginning", "--exit-at-end").split()) == [
        "1",
        "2",
        "3",
    ]
    lines = run(dev, "consume", "first", "--from-beginning", "--exit-at-end", "-f", "%k=%v\\n")
    assert sorted(lines.split()) == ["a=1", "b=2", "c=3"]
    rows = run(dev, "consume", "first", "--from-beginning", "--exit-at-end", "-o", "json")
    assert {json.loads(row)["value"] for row in rows.splitlines()} == {"1", "2", "3"}


def test_a_mistyped_topic_is_refused_unless_it_shall_be_created(dev: dict[str, Any]) -> None:
    told = run(dev, "produce", "tpyo", stdin="a\n", status=1)
    assert "topic 'tpyo' does not exist" in told
    run(dev, "produce", "made", "--create", stdin="a\n")
    assert run(dev, "consume", "made", "--from-beginning", "--exit-at-end") == "a\n"


def test_a_key_separator_is_unescaped_and_lines_without_it_are_counted(
    dev: dict[str, Any],
) -> None:
    run(dev, "topic", "create", "tabs")
    done = subprocess.run(
        [*CLI, "--bootstrap", dev["grpc"], "produce", "tabs", "-k", "\\t"],
        input="a\t1\nb\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == "odradek: 1 of 2 lines had no '\\t': its record was sent without a key\n"
    lines = run(dev, "consume", "tabs", "--from-beginning", "--exit-at-end", "-f", "%k=%v\\n")
    assert lines == "a=1\n=b\n"


@pytest.mark.parametrize("option", ["--partitions", "--replicas"])
def test_no_partitions_or_replicas_are_refused(dev: dict[str, Any], option: str) -> None:
    told = run(dev, "topic", "create", "none", option, "0", status=2)
    assert "0 is not a valid number" in told


def test_json_has_one_form_of_names(dev: dict[str, Any]) -> None:
    health = json.loads(run(dev, "cluster", "health", "-o", "json"))
    quorum = json.loads(run(dev, "quorum", "status", "-o", "json"))
    names = [*health, *quorum, *quorum["voters"][0]]
    assert {"active_controller", "under_replicated", "commit_offset", "log_end"} <= set(names)
    assert not [name for name in names if not re.fullmatch("[a-z_]+", name)]


def test_brokers_describe_their_data_directories(dev: dict[str, Any]) -> None:
    run(dev, "topic", "create", "sized")
    run(dev, "produce", "sized", stdin="x" * 5_000 + "\n")
    with odradek.sync.Client(dev["grpc"]) as client:
        (there, gone) = client.admin.describe_log_dirs([1, 9], include_partitions=True)
    assert there.problem == ""
    assert there.path.endswith("broker-1")
    assert there.partition_bytes[TopicPartition("sized", 0)] > 5_000
    assert there.usable_bytes is not None
    assert there.total_bytes is not None
    assert 0 < there.usable_bytes < there.total_bytes
    assert str(gone.error).startswith("broker 9 is not running")
    (broker,) = json.loads(run(dev, "cluster", "info", "-o", "json"))["brokers"]
    assert broker["free_bytes"] > 0


def test_a_line_is_sent_while_the_next_one_is_awaited(dev: dict[str, Any]) -> None:
    run(dev, "topic", "create", "typed", "--partitions", "1")
    with subprocess.Popen(
        [*CLI, "--bootstrap", dev["grpc"], "produce", "typed", "-o", "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as typing:
        assert typing.stdin is not None
        typing.stdin.write(b"first\nsecond, not fin")
        typing.stdin.flush()
        assert run(dev, "consume", "typed", "--from-beginning", "-n", "1") == "first\n"
        told, _ = typing.communicate(b"ished", timeout=30)
    assert json.loads(told) == {"topic": "typed", "records": 2}
    assert typing.returncode == 0
    words = ("consume", "typed", "--offset", "1", "--exit-at-end")
    assert run(dev, *words) == "second, not finished\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_enough_is_no_error(dev: dict[str, Any], unbuffered: str) -> None:
    topic = f"long{unbuffered}"
    run(dev, "topic", "create", topic, "--partitions", "1")
    run(dev, "produce", topic, stdin="x" * 999 + "\n" + "".join(f"{n:0999d}\n" for n in range(999)))
    with subprocess.Popen(
        [*CLI, "--bootstrap", dev["grpc"], "consume", topic, "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr.read() == b""
        assert reading.wait(30) == 0


def test_sigterm_ends_a_member_in_order(dev: dict[str, Any]) -> None:
    run(dev, "topic", "create", "stopped", "--partitions", "1")
    run(dev, "produce", "stopped", stdin="a\nb\n")
    command = ["consume", "stopped", "--group", "stopping", "--from-beginning"]
    with subprocess.Popen(
        [*CLI, "--bootstrap", dev["grpc"], *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() + reading.stdout.readline() == b"a\nb\n"
        reading.terminate()
        assert reading.communicate(timeout=30) == (b"", b"")
    assert reading.returncode == 128 + 15
    described = json.loads(run(dev, "group", "describe", "stopping", "-o", "json"))
    assert (described["state"], described["members"]) == ("Empty", 0)


def test_standard_input_that_is_closed_is_told(dev: dict[str, Any]) -> None:
    words = [*CLI, "--bootstrap", dev["grpc"], "produce", "t"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "odradek: standard input is closed: name a file to read instead\n"


def test_topics_are_changed_and_deleted(dev: dict[str, Any]) -> None:
    run(dev, "topic", "create", "changing", "--partitions", "1", "--config", "retention.ms=5000")
    run(dev, "topic", "add-partitions", "changing", "3")
    run(
        dev,
        "topic",
        "alter-config",
        "changing",
        "--set",
        "segment.bytes=1048576",
        "--delete",
        "retention.ms",
    )
    described = json.loads(run(dev, "topic", "describe", "changing", "-o", "json"))
    assert len(described["partitions"]) == 3
    assert described["configs"] == {"segment.bytes": "1048576"}
    run(dev, "topic", "delete", "changing", "--dry-run")
    run(dev, "topic", "delete", "changing")
    assert "changing" not in run(dev, "topic", "list")


def test_groups_are_seen_and_moved(dev: dict[str, Any]) -> None:
    run(dev, "topic", "create", "grouped", "--partitions", "2", "--replicas", "1")
    run(dev, "produce", "grouped", stdin="".join(f"{n}\n" for n in range(20)))
    words = ("consume", "grouped", "--group", "readers", "--from-beginning", "-n", "20")
    assert len(run(dev, *words).split()) == 20
    described = json.loads(run(dev, "group", "describe", "readers", "-o", "json"))
    assert (described["state"], described["lag"]) == ("Empty", 0)
    run(dev, "produce", "grouped", stdin="20\n")
    to_the_end = ("consume", "grouped", "--group", "readers", "--exit-at-end")
    assert run(dev, *to_the_end) == "20\n"
    assert run(dev, *to_the_end) == ""
    words = ("group", "seek", "readers", "--to", "start", "--topic", "grouped", "-p", "7")
    assert "no partition 7, only 0 to 1" in run(dev, *words, status=2)
    run(dev, "group", "seek", "readers", "--to", "start", "--topic", "grouped")
    assert json.loads(run(dev, "group", "describe", "readers", "-o", "json"))["lag"] == 21
    run(dev, "group", "offset-delete", "readers", "--topic", "grouped")
    run(dev, "group", "delete", "readers")
    assert "readers" not in run(dev, "group", "list")


def test_the_cluster_is_healthy(dev: dict[str, Any]) -> None:
    assert json.loads(run(dev, "cluster", "health", "-o", "json"))["healthy"] is True
    assert json.loads(run(dev, "cluster", "info", "-o", "json"))["brokers"][0]["fenced"] is False
    assert json.loads(run(dev, "quorum", "status", "-o", "json"))["leader"] == 1


def test_feature_levels_are_seen_and_set(dev: dict[str, Any]) -> None:
    rows = json.loads(run(dev, "feature", "list", "-o", "json"))
    levels = {row["feature"]: row["level"] for row in rows}
    assert levels == {"group.version": 1, "metadata.version": 3, "transaction.version": 2}
    assert all(row["held_back_by"] == "" for row in rows)
    assert "metadata.version is now at level 3" in run(
        dev, "feature", "set", "metadata.version", "3"
    )
    refused = run(dev, "feature", "set", "metadata.version", "1", "--allow-downgrade", status=1)
    assert "cannot be lowered" in refused
    assert "has the levels 1 to 3" in run(dev, "feature", "set", "metadata.version", "9", status=1)


def test_what_is_set_for_all_brokers_is_seen_and_changed(dev: dict[str, Any]) -> None:
    shown = ("cluster", "config", "-o", "json")
    assert json.loads(run(dev, *shown)) == []
    told = run(dev, "cluster", "config", "--set", "num.partitions=4", "-o", "json")
    assert json.loads(told) == [
        {"config": "num.partitions", "value": "4", "from": "broker_default"}
    ]
    assert json.loads(run(dev, *shown)) == json.loads(told)
    made = json.loads(run(dev, "topic", "create", "four", "-o", "json"))
    assert made["partitions"] == 4
    assert json.loads(run(dev, *shown, "--delete", "num.partitions")) == []
    every = {row["config"]: row for row in json.loads(run(dev, *shown, "--all"))}
    assert every["num.partitions"]["value"] == "1"
    mine = json.loads(run(dev, *shown, "--broker", "1"))
    assert {"config": "node.id", "value": "1", "from": "static"} in mine


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cluster", "config", "--set", "num.partitons=4"), "did you mean num.partitions"),
        (("cluster", "config", "--delete", "num.partition"), "did you mean num.partitions"),
        (("topic", "create", "bad name"), "only ASCII letters"),
        (("topic", "describe", "nosuch"), "does not exist; create it"),
        (("topic", "create", "x", "--config", "nosuch=1"), "nosuch"),
        (("topic", "create", "x", "--config", "retention.ms=abc"), "retention.ms"),
        (("topic", "create", "x", "--replicas", "3"), "3"),
        (("cluster", "spread", "--over", "1", "--topic", "nosuch"), "'nosuch' does not exist"),
        (("group", "describe", "nobody"), "nobody"),
        (("group", "delete", "nobody"), "odradek group list"),
        (
            ("topic", "alter-config", "typed", "--delete", "retention.m"),
            "did you mean retention.ms",
        ),
    ],
)
def test_bad_input_names_the_thing(dev: dict[str, Any], words: tuple[str, ...], said: str) -> None:
    assert said in run(dev, *words, status=1)


def test_a_cluster_that_is_not_there_is_named() -> None:
    done = subprocess.run(
        [*CLI, "--timeout", "1", "topic", "list", "--bootstrap", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


def test_a_broker_is_unregistered_only_when_nothing_is_left_on_it(dev: dict[str, Any]) -> None:
    run(dev, "topic", "create", "held", "--if-not-exists")
    told = run(dev, "cluster", "unregister", "1", status=1)
    assert "broker 1 has replicas of" in told
    assert "odradek cluster spread" in told
    assert "there is no broker 9" in run(dev, "cluster", "unregister", "9", status=1)
    assert "there is no broker 2" in run(dev, "cluster", "spread", "--over", "1,2", status=2)


def test_a_group_has_configs_of_its_own(dev: dict[str, Any]) -> None:
    name = "consumer.session.timeout.ms"
    shown = json.loads(run(dev, "group", "config", "g", "--set", f"{name}=20000", "-o", "json"))
    assert shown == [{"config": name, "value": "20000", "from": "group"}]
    every = json.loads(run(dev, "group", "config", "g", "--all", "-o", "json"))
    assert {row["config"]: row["value"] for row in every}[
        "consumer.heartbeat.interval.ms"
    ] == "3000"
    assert json.loads(run(dev, "group", "config", "other", "-o", "json")) == []
    refused = run(dev, "group", "config", "g", "--set", f"{name}=1", status=1)
    assert name in refused


def test_a_config_that_means_nothing_here_is_taken_and_called_so(dev: dict[str, Any]) -> None:
    words = ["topic", "create", "copied", "--config", "message.downconversion.enable=false"]
    done = subprocess.run(
        [*CLI, *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"ODRADEK_BOOTSTRAP": dev["grpc"]},
    )
    assert "message.downconversion.enable: Without effect here" in done.stderr
    described = json.loads(run(dev, "topic", "describe", "copied", "-o", "json"))
    assert described["configs"] == {"message.downconversion.enable": "false"}
