"""`odradek consume` says why it prints nothing, or something else than was asked for, and prints the last records."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from odradek import sync
from odradek.cli import connection, consume
from odradek.cli.main import app
from odradek.cli.output import Progress
from odradek.cluster.methods import LIST_OFFSETS
from odradek.consumer.consumer import Consumer
from odradek.partitions import TopicPartition
from odradek.testing import MemoryCluster
from odradek.testing.memory_cluster import MemoryTransport


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Return a cluster with a topic of two partitions, which the commands use."""
    cluster = MemoryCluster()
    cluster.create_topic("in", partitions=2)
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    return cluster


@pytest.fixture
def client(cluster: MemoryCluster) -> Iterator[sync.Client]:
    with sync.Client(cluster.bootstrap, transport=cluster.transport()) as client:
        yield client


def produce(client: sync.Client, *records: tuple[int, bytes, int]) -> None:
    """Write a record for each (partition, value, timestamp in ms)."""
    with client.producer() as producer:
        for partition, value, timestamp_ms in records:
            producer.send("in", value, partition=partition, timestamp_ms=timestamp_ms)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["consume", "in", *words])


class WatchedProgress(Progress):
    """The progress of a command that a user watches at a terminal."""

    def __init__(self, what: str, *, is_seen: bool) -> None:
        super().__init__(what, is_seen=is_seen)
        self.is_watched = True


def watched(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None]) -> None:
    """Make the command print as if a user watched it, and call `act` with each of its messages."""
    monkeypatch.setattr(consume, "PATIENCE_S", 0.01)
    monkeypatch.setattr(consume, "Progress", WatchedProgress)
    monkeypatch.setattr(consume, "say", lambda text, *, is_error: act(text))


def test_an_offset_beyond_the_end_is_told(client: sync.Client) -> None:
    produce(client, (0, b"a", 1), (0, b"b", 2), (1, b"c", 3))
    result = run("--offset", "999999999", "--exit-at-end")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == (
        "odradek: offset 999999999 is beyond the end: the end of in-0 is 2, the end of in-1 is 1\n"
    )


def test_a_user_at_a_terminal_is_told_that_new_records_are_waited_for(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told only when the command knows where it starts, or records that the user writes then would be skipped."""
    said: list[str] = []
    looks: list[bool] = []
    reason, call = consume._Waits.reason, MemoryTransport.call

    def looked(waits: consume._Waits) -> str:
        looks.append(True)
        return reason(waits)

    async def call_slowly(
        transport: MemoryTransport, endpoint: str, method: Any, *rest: Any, **named: Any
    ) -> Any:
        while method is LIST_OFFSETS and len(looks) < 3:  # noqa: ASYNC110 - the command sets no event
            await asyncio.sleep(0.001)
        return await call(transport, endpoint, method, *rest, **named)

    def write(text: str) -> None:
        said.append(text)
        produce(client, (0, b"new", 1))

    monkeypatch.setattr(consume._Waits, "reason", looked)
    monkeypatch.setattr(MemoryTransport, "call", call_slowly)
    watched(monkeypatch, write)
    result = run("--count", "1")
    assert (result.exit_code, result.stdout) == (0, "new\n")
    assert said == ["odradek: waiting for new records of in"]


def test_few_of_many_ends_are_named() -> None:
    ends = {TopicPartition("in", number): 7 for number in range(8)}
    assert consume.named_ends(ends).endswith("the end of in-4 is 7, and 3 more partitions")


def test_only_partitions_whose_end_was_passed_are_named(client: sync.Client) -> None:
    produce(client, (0, b"a", 1), (0, b"b", 2))
    result = run("--offset", "1", "--exit-at-end")
    assert result.stdout == "b\n"
    assert result.stderr == "odradek: offset 1 is beyond the end: the end of in-1 is 0\n"
    assert run("--offset", "2", "-p", "0", "--exit-at-end").stderr == ""


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("--offset", "0", "--exit-at-end"), [b"5", b"6", b"7"]),
        (("--offset", "3:7", "-p", "0"), [b"5", b"6"]),
    ],
)
def test_an_offset_whose_record_was_deleted_is_told_and_the_rest_is_read(
    client: sync.Client, words: tuple[str, ...], values: list[bytes]
) -> None:
    produce(client, *((0, b"%d" % number, number) for number in range(8)))
    client.admin.delete_records({TopicPartition("in", 0): 5})
    result = run(*words)
    assert (result.exit_code, result.stdout_bytes.split()) == (0, values)
    assert result.stderr == "odradek: earlier records were deleted: in-0 begins at offset 5\n"


def test_retention_that_overtakes_a_chosen_start_skips_nothing_that_is_left(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are deleted between the look-up of the start offset and the first fetch."""
    produce(client, *((0, b"%d" % number, number) for number in range(8)))
    resume = Consumer.resume

    def delete_and_resume(consumer: Consumer, *partitions: TopicPartition) -> None:
        client.admin.delete_records({TopicPartition("in", 0): 5})
        resume(consumer, *partitions)

    monkeypatch.setattr(Consumer, "resume", delete_and_resume)
    result = run("--since", "1970-01-01T00:00:00Z", "--exit-at-end")
    assert (result.exit_code, result.stdout_bytes.split()) == (0, [b"5", b"6", b"7"])


def test_records_before_an_offset_beyond_the_end_are_awaited_but_not_printed(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(client, (0, b"0", 1))
    said = []

    def write(text: str) -> None:
        said.append(text)
        produce(client, *((0, b"%d" % number, 2) for number in range(1, 5)))

    watched(monkeypatch, write)
    result = run("-p", "0", "--offset", "3", "--count", "2")
    assert (result.exit_code, result.stdout) == (0, "3\n4\n")
    assert said[0] == ("odradek: waiting for offset 3: the end of in-0 is 1")


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (
            ["--value-as", "int"],
            "2 values were printed unchanged: --value-as int needs 1, 2, 4 or 8 bytes",
        ),
        (
            ["--value-as", "json"],
            "3 values were printed unchanged: --value-as json needs JSON",
        ),
        (
            ["--key-as", "double", "-f", "%k"],
            "3 keys were printed unchanged: --key-as double needs 4 or 8 bytes",
        ),
        (
            ["--value-as", "int", "-o", "json"],
            '2 values were printed as {"base64": ...}: --value-as int needs 1, 2, 4 or 8 bytes',
        ),
    ],
)
def test_values_that_are_not_valid_in_their_encoding_are_counted(
    client: sync.Client, options: list[str], note: str
) -> None:
    with client.producer() as producer:
        for value in ((7).to_bytes(4, "big"), b"abc", b"\xff" * 3):
            producer.send("in", value, key=b"key", partition=0)
    result = run("--from-beginning", "--exit-at-end", *options)
    assert result.exit_code == 0, result.output
    assert result.stderr == f"odradek: {note}\n"


def test_converted_values_are_not_mentioned(client: sync.Client) -> None:
    produce(client, (0, b"\x00\x01", 1))
    assert run("--from-beginning", "--exit-at-end", "--value-as", "int").output == "1\n"
    assert run("--from-beginning", "--exit-at-end", "-o", "json").stderr == ""


def test_the_last_records_of_all_partitions_are_printed_in_order(client: sync.Client) -> None:
    produce(client, *((number % 2, b"%d" % number, number) for number in range(20)))
    produce(client, (1, b"new", 100), (1, b"newer", 101))
    assert run("--last", "4").stdout.split() == ["18", "19", "new", "newer"]
    assert run("--last", "2", "-p", "0").stdout.split() == ["16", "18"]
    everything = run("--last", "100").stdout.split()
    assert everything == [*map(str, range(20)), "new", "newer"]
    assert '"offset": 11' in run("--last", "1", "-o", "json").stdout


def test_the_last_records_of_an_empty_topic_are_none(cluster: MemoryCluster) -> None:
    result = run("--last", "4")
    assert (result.exit_code, result.output) == (0, "")


def test_a_member_without_partitions_is_told_again_who_owns_them(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "REPEAT_S", 0.0)
    told = []
    with client.consumer("in", group="g") as first, client.consumer("in", group="g") as second:
        while not (first.assignment() and second.assignment()):
            first.getmany(timeout_ms=20)
            second.getmany(timeout_ms=20)

        def leave_in_the_end(text: str) -> None:
            told.append(text)
            if len(told) == 3:
                first.close()
                produce(client, (0, b"a", 1), (1, b"a", 1))

        watched(monkeypatch, leave_in_the_end)
        result = run("--group", "g", "--from-beginning", "--count", "1")
    assert (result.exit_code, result.stdout) == (0, "a\n")
    assert all("group g has assigned no partitions to this member yet" in text for text in told[:3])
    assert "`odradek why g` explains why; its state" in told[2]
    assert re.search(r"its state is \w+, with 3 members; member .* owns in-\d; member ", told[2])
