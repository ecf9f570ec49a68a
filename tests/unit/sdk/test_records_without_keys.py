"""`odradek produce` with keys from the input: it writes nothing if none of the first lines has a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from odradek.cli import connection
from odradek.cli.main import app
from odradek.testing import MemoryCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Return a cluster in memory, which the commands use."""
    cluster = MemoryCluster()
    cluster.create_topic("out", partitions=1)
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    return cluster


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lines"


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def written(cluster: MemoryCluster) -> int:
    return cluster.log("out", 0).log_end_offset


def test_a_misspelt_key_field_is_refused_before_the_first_record(
    cluster: MemoryCluster, file: Path
) -> None:
    file.write_text('{"user": "u1", "at": {"city": "Prague"}}\n' * 1_500)
    result = run("produce", "out", file, "--key-field", "usr")
    assert result.exit_code == 2, result.output
    assert "none of the first 1,500 lines has a value in this field" in result.stderr
    assert "did you mean 'user'? The fields of line 1 are user, at.city." in result.stderr
    assert "--allow-missing-keys" in result.stderr
    assert written(cluster) == 0


def test_a_field_in_an_object_is_suggested_by_its_whole_name(
    cluster: MemoryCluster, file: Path
) -> None:
    file.write_text('{"user": {"id": 7}}\n')
    result = run("produce", "out", file, "--key-field", "user.it")
    assert (result.exit_code, written(cluster)) == (2, 0)
    assert "did you mean 'user.id'?" in result.stderr


def test_a_separator_that_no_line_has_is_refused_before_the_first_record(
    cluster: MemoryCluster, file: Path
) -> None:
    file.write_text("k,v\n" * 3)
    result = run("produce", "out", file, "-k", "\\t")
    assert result.exit_code == 2, result.output
    assert "-k '\\t': none of the first 3 lines has this text" in result.stderr
    assert written(cluster) == 0


@pytest.mark.parametrize("source", [("--key-field", "usr"), ("-k", ";")])
def test_records_without_keys_are_written_if_the_user_allows_it(
    cluster: MemoryCluster, file: Path, source: tuple[str, str]
) -> None:
    file.write_text('{"user": "u1"}\n' * 1_500)
    result = run("produce", "out", file, *source, "--allow-missing-keys")
    assert result.exit_code == 0, result.output
    assert written(cluster) == 1_500
    assert "1,500 of 1,500 lines had no " in result.stderr


@pytest.mark.parametrize(
    ("source", "keyed", "keyless"),
    [(("--key-field", "user"), '{"user": 1}', '{"usr": 1}'), (("-k", ":"), "k:v", "v")],
)
def test_one_of_the_first_lines_with_a_key_is_enough(
    cluster: MemoryCluster, file: Path, source: tuple[str, str], keyed: str, keyless: str
) -> None:
    file.write_text("\n".join([keyless, keyed, keyless]))
    result = run("produce", "out", file, *source)
    assert result.exit_code == 0, result.output
    assert written(cluster) == 3
    assert "2 of 3 lines had no " in result.stderr


def test_tombstones_alone_are_not_refused(cluster: MemoryCluster, file: Path) -> None:
    file.write_text("NULL\nNULL\n")
    result = run("produce", "out", file, "--key-field", "user", "-Z", "NULL")
    assert (result.exit_code, written(cluster)) == (0, 2), result.output


def test_a_line_that_is_no_object_is_named_before_the_first_record(
    cluster: MemoryCluster, file: Path
) -> None:
    file.write_text('{"usr": 1}\n7\n')
    result = run("produce", "out", file, "--key-field", "user")
    assert result.exit_code == 1
    assert "line 2 of the input: it is not a JSON object" in str(result.exception)
    assert written(cluster) == 0


def test_the_option_needs_keys_from_the_lines(cluster: MemoryCluster, file: Path) -> None:
    file.write_text("v\n")
    result = run("produce", "out", file, "--allow-missing-keys")
    assert (result.exit_code, written(cluster)) == (2, 0)
    assert "only with -k or --key-field" in result.stderr


@pytest.mark.parametrize("words", [("--json",), ("--key-field", "user")])
@pytest.mark.parametrize("blank", ["\n", "\r\n", " \t\n"])
def test_blank_lines_between_objects_are_no_records(
    cluster: MemoryCluster, file: Path, words: tuple[str, ...], blank: str
) -> None:
    """NDJSON files that were edited or concatenated often have blank lines. Line numbers in errors count them."""
    line = '{"user": "u", "value": 1}\n' if words[0] == "--key-field" else '{"value": 1}\n'
    file.write_text(blank + line + blank + line + blank, newline="")
    result = run("produce", "out", file, *words)
    assert (result.exit_code, written(cluster)) == (0, 2), result.output
    file.write_text(blank + line + blank + "no JSON\n", newline="")
    result = run("produce", "out", file, *words)
    assert "line 4 of the input: it is not JSON" in str(result.exception)


def test_blank_lines_alone_are_records_only_without_json(
    cluster: MemoryCluster, file: Path
) -> None:
    file.write_text("\n\n")
    result = run("produce", "out", file, "--key-field", "user")
    assert (result.exit_code, written(cluster)) == (0, 0), result.output
    result = run("produce", "out", file)
    assert (result.exit_code, written(cluster)) == (0, 2), result.output


def test_a_record_that_is_too_large_is_named_by_its_line(
    cluster: MemoryCluster, file: Path
) -> None:
    cluster.create_topic("small", partitions=1, configs={"max.message.bytes": "1000"})
    file.write_text('{"user": 1}\n\n{"user": "' + "x" * 2_000 + '"}\n')
    result = run("produce", "small", file, "--key-field", "user")
    assert result.exit_code == 1
    assert "1 of 2 records were not acknowledged: line 3 of the input: small-0: " in result.stderr
    assert result.stderr.count("max.message.bytes is 1000") == 1
    assert result.stderr.count("or split the record") == 1
