"""Settings: sources, precedence, and the errors for wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from odradek_broker.settings import BrokerSettings
from odradek_gateway.settings import GatewaySettings
from odradek_metadata_quorum.settings import QuorumProcessSettings
from odradek_runtime.lifecycle import StopRequest
from odradek_runtime.program import Run, parse_arguments, run_program
from odradek_runtime.settings import SettingsError, load_settings, setting, settings_help, specs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    node_id: int = setting("node.id", "The id.", minimum=0, aliases=("broker.id",))
    flush_ms: int = setting("flush.ms", "The wait.", default=5, unit="ms", minimum=1, maximum=10)
    is_on: bool = setting("is.on", "The switch.", default=False)
    mode: str = setting("mode", "The mode.", default="a", choices=("a", "b"))
    names: tuple[str, ...] = setting("names", "Some names.", default=())
    secret: str = setting("secret", "Hidden.", default="", is_secret=True, choices=("", "right"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    log_level: str = setting("log.level", "The level.", default="INFO")
    log_format: str = setting("log.format", "The format.", default="json")
    mode: str = setting("mode", "The mode.", default="a")


def _load(*assignments: str, env: dict[str, str] | None = None, file: Path | None = None) -> Sample:
    return load_settings(
        Sample, env=env or {}, env_prefix="T_", config_file=file, assignments=assignments
    )


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "x.properties"
    file.write_text("# a comment\nnode.id = 2\nflush.ms=3\nnames = a, \\\n   b\n")
    env = {"T_NODE_ID": "1", "T_FLUSH_MS": "2", "T_IS_ON": "true", "OTHER": "x"}
    found = _load("flush.ms=4", env=env, file=file)
    assert found == Sample(node_id=2, flush_ms=4, is_on=True, names=("a", "b"))


def test_a_backslash_at_the_end_of_a_comment_does_not_hide_the_next_setting(tmp_path: Path) -> None:
    file = tmp_path / "x.properties"
    file.write_text("# data in C:\\\nnode.id=2\nnames=a,\\\n#b\n")
    found = _load(file=file)
    assert (found.node_id, found.names) == (2, ("a", "#b"))


def test_an_alias_names_the_same_setting() -> None:
    assert _load("broker.id=7").node_id == 7


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("flush.sm=4", "did you mean flush.ms?"),
        ("flush.ms=11", "out of range: 1..10 ms"),
        ("flush.ms=x", "flush.ms='x' is not valid"),
        ("node.id=-1", "out of range: at least 0"),
        ("is.on=maybe", "true or false"),
        ("mode=c", "one of a, b"),
        ("nonsense", "write --set NAME=VALUE"),
    ],
)
def test_a_wrong_setting_is_named_with_the_way_out(assignment: str, told: str) -> None:
    with pytest.raises(SettingsError, match=r".") as refused:
        _load("node.id=1", assignment)
    assert told in str(refused.value)


def test_a_missing_setting_is_named_with_every_way_to_give_it() -> None:
    with pytest.raises(SettingsError) as refused:
        _load()
    assert "node.id is not set" in str(refused.value)
    assert "T_NODE_ID" in str(refused.value)


def test_an_unknown_environment_variable_of_ours_refuses() -> None:
    with pytest.raises(SettingsError, match="did you mean T_FLUSH_MS"):
        _load("node.id=1", env={"T_FLUSH_MSS": "3"})


def test_the_place_of_a_wrong_line_is_told(tmp_path: Path) -> None:
    file = tmp_path / "x.properties"
    file.write_text("node.id=1\n\nno equals sign\n")
    with pytest.raises(SettingsError, match=r"x\.properties:3"):
        _load(file=file)


def test_a_file_that_is_not_there_is_named_once() -> None:
    with pytest.raises(SettingsError) as refused:
        _load(file=Path("/nowhere"))
    told = "cannot read the configuration file /nowhere: No such file or directory"
    assert str(refused.value) == told


def test_all_unknown_names_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("process.roles=broker\nnode.id=1\nnum.io.threads=8\nflush.ms=99\n")
    with pytest.raises(SettingsError) as refused:
        _load("flush.sm=4", env={"T_NONSENSE": "1"}, file=file)
    lines = str(refused.value).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("environment variable T_NONSENSE: there is no setting T_NONSENSE")
    assert lines[1] == f"{file}:1: there is no setting process.roles"
    assert lines[2].startswith(f"{file}:3: there is no setting num.io.threads")
    assert lines[3].endswith("did you mean flush.ms?")
    assert f"odradek config import {file}" in lines[4]


@pytest.mark.parametrize(
    ("more", "status", "printed"),
    [
        ([], 0, "odradek x: the settings are valid"),
        (["--set", "nonsense=1"], 2, ""),
        (["--set", "mode=b"], 2, ""),
    ],
)
def test_a_check_starts_nothing(
    more: list[str], status: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(settings: Checked) -> Run:
        if settings.mode == "b":
            raise SettingsError("mode=b does not work")

        async def run(_: StopRequest) -> None:
            raise AssertionError("it was started")

        return run

    arguments = parse_arguments("odradek x", ["--check", *more], settings_help=str)
    done = run_program(
        "odradek x", arguments, Checked, env_prefix="T_", log_fields=lambda _: {}, make=make
    )
    assert done == status
    assert capsys.readouterr().out.strip() == printed


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as refused:
        _load("node.id=1", "secret=hunter2")
    assert "hunter2" not in str(refused.value)


def test_help_tells_of_a_setting_all_that_is_known_of_it() -> None:
    told = settings_help(Sample, "T_")
    assert "T_" in told
    assert "  flush.ms=5\n      The wait. 1..10 ms.\n" in told
    assert (
        "  node.id=...\n      The id. This setting must be given. At least 0. Other names: broker.id.\n"
        in told
    )
    assert "  is.on=false\n" in told
    assert "  mode=a\n      The mode. One of a, b.\n" in told


@pytest.mark.parametrize("settings", [BrokerSettings, QuorumProcessSettings, GatewaySettings])
def test_help_of_a_process_tells_of_every_setting(
    settings: type[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(
            "odradek x", ["--help"], settings_help=lambda: settings_help(settings, "T_")
        )
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "--config FILE" in told
    assert all(f"\n  {name}=" in told for name in specs_of(settings))
    assert max(map(len, told.splitlines())) <= 120
