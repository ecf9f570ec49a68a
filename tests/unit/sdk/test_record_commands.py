"""`odradek produce` and `odradek consume`: the formats of records, ranges of offsets and times, and
filters.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from odradek import Client, sync
from odradek.cli import connection, consume
from odradek.cli.main import app
from odradek.cli.record_format import InvalidRecord, json_renderer, record_of
from odradek.consumer.consumer_record import DeserializedRecord
from odradek.partitions import TopicPartition
from odradek.testing import MemoryCluster
from tests.unit.sdk.numbered_records import until

START_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Return a cluster in memory, which the commands use."""
    cluster = MemoryCluster()
    cluster.create_topic("in", partitions=2)
    cluster.create_topic("out", partitions=2)

    def open_client(bootstrap: str) -> Client:
        return cluster.client()

    monkeypatch.setattr(connection, "open_client", open_client)
    return cluster


@pytest.fixture
def numbered(cluster: MemoryCluster) -> MemoryCluster:
    """Write ten records to each partition of `in`, one each second from the start of 2026."""
    with (
        sync.Client(cluster.bootstrap, transport=cluster.transport()) as client,
        client.producer() as producer,
    ):
        for number in range(20):
            producer.send(
                "in",
                f"value {number}".encode(),
                key=f"key {number}".encode(),
                partition=number % 2,
                timestamp_ms=START_MS + number * 1000,
            )
    return cluster


def run(*words: str, given: bytes | None = None) -> Any:
    return CliRunner().invoke(app, words, input=given)


def consumed(*words: str) -> list[str]:
    """Return the lines that `odradek consume --exit-at-end` prints, in order of their numbers."""
    result = run("consume", *words, "--exit-at-end")
    assert result.exit_code == 0, result.output
    return sorted(result.stdout.splitlines(), key=lambda line: int(line.split()[-1]))


def values(numbers: Sequence[int]) -> list[str]:
    return [f"value {number}" for number in numbers]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--offset", "8"], range(16, 20)),
        (["--offset", "-2"], range(16, 20)),
        (["--offset", "-100"], range(20)),
        (["--offset", "2:4"], range(4, 8)),
        (["--offset", "2:2"], ()),
        (["--offset", "9:100"], (18, 19)),
        (["--offset", "3:", "-p", "1"], range(7, 20, 2)),
        (["--since", "2026-01-01T00:00:18+00:00"], (18, 19)),
        (["--since", str(START_MS + 17_500)], (18, 19)),
        (["--until", "2026-01-01T00:00:02Z"], (0, 1)),
        (["--since", str(START_MS + 5_000), "--until", str(START_MS + 7_000)], (5, 6)),
        (["--since", "1m"], ()),
        (["--since", "1960-01-01"], range(20)),
        (["--from-beginning", "--grep", "value 1[25]$"], (12, 15)),
        (["--from-beginning", "--grep", "key 7"], (7,)),
    ],
)
def test_records_are_chosen_by_offset_time_and_text(
    numbered: MemoryCluster, options: list[str], numbers: Sequence[int]
) -> None:
    assert consumed("in", *options) == values(numbers)
    # Lines of values alone are made from columns, all other output from records.
    from_records = consumed("in", *options, "-f", "%v \\n")
    assert [line.rstrip() for line in from_records] == values(numbers)


def test_values_of_null_are_empty_lines(cluster: MemoryCluster) -> None:
    with (
        sync.Client(cluster.bootstrap, transport=cluster.transport()) as client,
        client.producer() as producer,
    ):
        for value in (b"a", None, b"", b"two\nlines", None):
            producer.send("in", value, key=b"k", partition=0)
    result = run("consume", "in", "--from-beginning", "--exit-at-end")
    assert result.stdout == "a\n\n\ntwo\nlines\n\n"
    result = run("consume", "in", "-p", "0", "--offset", "1:4")
    assert result.stdout == "\n\ntwo\nlines\n"


def test_a_range_ends_without_waiting_for_the_end_of_the_topic(numbered: MemoryCluster) -> None:
    result = run("consume", "in", "-p", "0", "--offset", "1:3")
    assert result.stdout.splitlines() == values([2, 4])


def test_topics_are_chosen_by_pattern(numbered: MemoryCluster) -> None:
    assert consumed("--regex", "i.", "nothing", "--offset", "9:10") == values([18, 19])
    result = run("consume", "--regex", "i")
    assert result.exit_code == 1
    assert "no topic has a name that matches i" in result.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--offset", "5-7"], "--offset 5-7"),
        (["--since", "yesterday"], "--since yesterday"),
        (["--until", "10 m"], "--until 10 m"),
        (["--grep", "("], "--grep ("),
        (["--regex"], "--regex *"),
        (["--offset", "1", "--since", "1m"], "only one of"),
        (["--group", "g", "--until", "1m"], "--group cannot be used"),
    ],
)
def test_options_without_sense_are_refused(
    numbered: MemoryCluster, options: list[str], text: str
) -> None:
    result = run("consume", "*" if options == ["--regex"] else "in", *options)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize(
    ("encoding", "value", "shown"),
    [
        ("hex", b"\x00\xff", "00ff"),
        ("base64", b"\x00\xff", "AP8="),
        ("json", b'{ "a":\n1 }', '{"a":1}'),
        ("int", (-5).to_bytes(8, "big", signed=True), "-5"),
        ("int", b"\x01\x00", "256"),
        ("double", b"\x3f\xf8" + bytes(6), "1.5"),
        ("int", b"abc", "abc"),
    ],
)
def test_values_are_shown_in_an_encoding(
    cluster: MemoryCluster, encoding: str, value: bytes, shown: str
) -> None:
    with (
        sync.Client(cluster.bootstrap, transport=cluster.transport()) as client,
        client.producer() as producer,
    ):
        producer.send("in", value)
    result = run("consume", "in", "--from-beginning", "--exit-at-end", "--value-as", encoding)
    assert result.stdout.splitlines() == [shown]


def test_what_consume_prints_produce_reads(cluster: MemoryCluster, tmp_path: Path) -> None:
    with (
        sync.Client(cluster.bootstrap, transport=cluster.transport()) as client,
        client.producer() as producer,
    ):
        producer.send("in", None, key=b"gone", partition=1, timestamp_ms=START_MS)
        producer.send(
            "in", b"\xff\x00", headers=[("a", b"\x80"), ("a", None), ("b", b"text")], partition=1
        )
    printed = run("consume", "in", "--from-beginning", "--exit-at-end", "-o", "json").stdout
    dump = tmp_path / "dump.json"
    dump.write_text(printed)
    done = run("produce", "out", str(dump), "--json", "-o", "json")
    assert json.loads(done.stdout) == {"topic": "out", "records": 2}
    again = run("consume", "out", "--from-beginning", "--exit-at-end", "-o", "json").stdout
    assert again == printed.replace('"topic": "in"', '"topic": "out"')
    assert '"value": null' in again


def test_tombstones_are_sent_for_a_text(cluster: MemoryCluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a:1\na:NULL\nb:\n")
    assert run("produce", "out", str(lines), "-k", ":", "-Z", "NULL").exit_code == 0
    shown = run("consume", "out", "--from-beginning", "--exit-at-end", "-o", "json").stdout
    rows = [json.loads(line) for line in shown.splitlines()]
    assert sorted((row["key"], row["value"] or "") for row in rows) == [
        ("a", ""),
        ("a", "1"),
        ("b", ""),
    ]
    assert [row["value"] for row in rows].count(None) == 1


def test_a_line_that_is_no_record_is_named(cluster: MemoryCluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text('{"value": "a"}\n{"valeu": "b"}\n')
    result = run("produce", "out", str(lines), "--json")
    assert "line 2 of the input" in str(result.exception)
    assert consumed_values("out") == ["a"], "the line before it was sent"
    assert result.stderr == "odradek: 1 record was written before this error:\n"


def consumed_values(topic: str) -> list[str]:
    return run("consume", topic, "--from-beginning", "--exit-at-end").stdout.splitlines()


def test_partitions_of_the_input_are_used_or_chosen_again(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text('{"value": "a", "key": "k", "partition": 0}\n' * 2)
    for options in ([], ["--repartition"], ["-p", "1"]):
        assert run("produce", "out", str(lines), "--json", *options).exit_code == 0
    printed = run("consume", "out", "--from-beginning", "--exit-at-end", "-f", "%p ").stdout.split()
    by_key = run("produce", "in", str(lines), "--json", "--repartition")
    assert by_key.exit_code == 0
    of_key = run("consume", "in", "--from-beginning", "--exit-at-end", "-f", "%p ").stdout.split()
    assert sorted(printed) == sorted(["0", "0", *of_key, "1", "1"])


def test_a_partition_of_the_input_that_the_topic_lacks_has_two_remedies(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text('{"value": "a", "partition": 1}\n{"value": "b", "partition": 2}\n')
    refused = str(run("produce", "out", str(lines), "--json").exception)
    assert "topic 'out' has 2 partitions, but no partition 2" in refused
    assert "give out at least 3 partitions" in refused
    assert "or pass --repartition" in refused
    assert consumed_values("out") == ["a"], "the line before it was sent"
    assert "--repartition" not in str(run("produce", "out", str(lines), "-p", "2").exception)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"key": "k"}',
        b'{"value": {"base64": "?"}}',
        b'{"value": 1, "partition": "0"}',
        b'{"value": 1, "partition": true}',
        b'{"value": 1, "headers": [["a"]]}',
        b'{"value": 1, "headers": 5}',
        b'{"value": 1, "headers": {"\\ud800": "x"}}',
        b'{"value": 1, "headers": [[{"base64": 5}, "x"]]}',
        b'{"value": NaN}',
        b'{"value": [1e400]}',
        b'{"value": 1, "more": 2}',
        b"\xff",
    ],
)
def test_lines_that_are_no_records_are_refused(line: bytes) -> None:
    with pytest.raises(InvalidRecord):
        record_of(line)


some_bytes = st.binary(max_size=20) | st.text(max_size=10).map(str.encode) | st.none()

# Header names, which are bytes on the wire, as the SDK decodes them.
names = some_bytes.map(lambda name: (name or b"").decode("utf-8", "surrogateescape"))


@given(
    some_bytes,
    some_bytes,
    st.lists(st.tuples(names, some_bytes), max_size=3),
    st.integers(0, 1 << 40),
)
def test_every_record_survives_the_round_trip(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], number: int
) -> None:
    record = DeserializedRecord(
        topic="t",
        partition=number % 1000,
        offset=number,
        timestamp_ms=number,
        key=key,
        value=value,
        headers=tuple(headers),
        leader_epoch=0,
        timestamp_type=0,
    )
    line = json_renderer(key_as="text", value_as="text", unconverted=Counter())(record)
    read = record_of(line)
    assert (read.key, read.value, read.headers) == (key, value, tuple(headers))
    assert (read.partition, read.timestamp_ms) == (record.partition, number)


def test_bytes_that_look_like_an_encoding_stay_apart() -> None:
    """A text value that looks like the JSON form of an encoded value stays text."""
    text = json.dumps({"base64": base64.b64encode(b"x").decode()})
    assert record_of(json.dumps({"value": text}).encode()).value == text.encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (rb'{"value": "\ud800"}', "line 2 of the input: '\\\\ud800' is a surrogate"),
        (b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line 2 of the input: its arrays"),
        (b'{"value": "v", "timestamp_ms": 9223372036854775808}', "more than 64 bits"),
    ],
    ids=["surrogate", "nested", "timestamp"],
)
def test_lines_before_one_that_cannot_be_sent_are_sent(
    cluster: MemoryCluster, tmp_path: Path, line: bytes, reason: str
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b'{"value": "first"}\n' + line + b"\n")
    result = run("produce", "out", str(lines), "--json")
    assert result.exit_code == 1
    assert re.search(reason, str(result.exception)), result.exception
    assert sum(cluster.log("out", index).log_end_offset for index in range(2)) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "in", "--offset", "9223372036854775808"),
        ("consume", "in", "--since", "9223372036854775808"),
        ("consume", "in", "--until", "9223372036854775808d"),
        ("group", "seek", "g", "--topic", "in", "--to", "@9223372036854775808"),
        ("topic", "create", "new", "--partitions", "2147483648"),
        ("topic", "add-partitions", "in", "2147483648"),
        ("feature", "set", "metadata.version", "2147483648"),
    ],
    ids=" ".join,
)
def test_numbers_that_no_field_of_a_request_holds_are_refused(
    cluster: MemoryCluster, words: Sequence[str]
) -> None:
    assert run(*words).exit_code == 2


def test_a_member_without_partitions_says_what_it_waits_for(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("single", partitions=1)
    monkeypatch.setattr(consume, "PATIENCE_S", 0.0)
    monkeypatch.setattr(consume, "WITHOUT_PARTITIONS_S_MAX", 0.1)
    with (
        sync.Client(cluster.bootstrap, transport=cluster.transport()) as client,
        client.consumer("single", group="g") as holder,
    ):
        while not holder.assignment():
            holder.getmany(timeout_ms=50)
        result = run("consume", "single", "--group", "g", "--exit-at-end")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("group g has assigned no partitions to this member yet") == 1


def test_a_group_does_not_wait_for_a_topic_that_does_not_exist(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "WITHOUT_PARTITIONS_S_MAX", 0.1)
    result = run("consume", "misspelt", "--group", "g", "--exit-at-end")
    assert result.exit_code == 1, result.output
    assert "topic 'misspelt' does not exist" in f"{result.stderr}{result.exception}"


def test_topics_are_created_with_the_short_options_of_other_tools(cluster: MemoryCluster) -> None:
    assert run("topic", "create", "short", "-p", "4", "-r", "1").exit_code == 0
    assert len(cluster.topics["short"].partitions) == 4


def test_a_field_of_the_json_of_each_line_is_its_key(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    cluster.create_topic("keyed", partitions=1)
    file = tmp_path / "lines"
    lines = (
        '{"user": "u1", "n": 1}',
        '{"user": {"id": 7}}',
        '{"other": 3}',
        '{"user": null}',
    )
    file.write_text("\n".join(lines))
    result = run("produce", "keyed", str(file), "--key-field", "user")
    assert result.exit_code == 0, result.output
    assert "2 of 4 lines had no field user: their records were sent without a key" in result.stderr
    file.write_text(lines[1])
    result = run("produce", "keyed", str(file), "--key-field", "user.id")
    assert result.exit_code == 0, result.output
    shown = run("consume", "keyed", "--from-beginning", "--exit-at-end", "-f", "%k|%v\n").stdout
    assert shown.splitlines() == [
        f"u1|{lines[0]}",
        f'{{"id":7}}|{lines[1]}',
        f"|{lines[2]}",
        f"|{lines[3]}",
        f"7|{lines[1]}",
    ]


@pytest.mark.parametrize(
    ("line", "said"), [("7", "it is not a JSON object"), ("{", "it is not JSON")]
)
def test_a_line_in_which_no_field_can_be_is_named(
    cluster: MemoryCluster, tmp_path: Path, line: str, said: str
) -> None:
    cluster.create_topic("keyed", partitions=1)
    file = tmp_path / "lines"
    file.write_text('{"user": 1}\n' + line)
    result = run("produce", "keyed", str(file), "--key-field", "user")
    assert result.exit_code == 1
    assert f"line 2 of the input: {said}" in f"{result.stderr}{result.exception}"


def test_a_partition_without_a_leader_is_named_while_its_records_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = MemoryCluster(brokers=2)
    cluster.create_topic("in", partitions=2)
    cluster.kill(1, elect=False)
    client = cluster.client()
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: client)
    monkeypatch.setattr(consume, "PATIENCE_S", 0.01)

    def bring_the_leader_back(text: str, *, is_error: bool) -> None:
        assert re.fullmatch(
            "odradek: waiting: in-[01] has no leader: `odradek why in/[01]` explains why", text
        ), text
        assert is_error
        cluster.start(1)

    monkeypatch.setattr(consume, "say", bring_the_leader_back)
    result = run("consume", "in", "--from-beginning", "--exit-at-end")
    assert result.exit_code == 0, result.output


async def test_a_producer_names_a_partition_without_a_leader() -> None:
    cluster = MemoryCluster(brokers=2)
    cluster.create_topic("in", partitions=2)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send_and_wait("in", b"before", partition=0)
        found = client._cluster.cache.leader_endpoint(TopicPartition("in", 0))
        assert found is not None
        leader = found[0]
        cluster.kill(leader, elect=False)
        await until(lambda: client._cluster.cache.leader_endpoint(TopicPartition("in", 0)) is None)
        sent = await producer.send("in", b"after", partition=0)
        expected = "in-0 has no leader: `odradek why in/0` explains why"
        await until(lambda: producer.explain_waiting() == expected)
        cluster.start(leader)
        await sent


def test_commands_ask_for_an_unknown_topic_less_long_than_programs() -> None:
    assert connection.UNKNOWN_TOPIC_S_MAX < connection.PATIENCE_S
    client = connection.open_client("127.0.0.1:1")
    assert client._cluster.unknown_topic_s_max == connection.UNKNOWN_TOPIC_S_MAX
