"""Settings of a process: one frozen dataclass, read from environment, file and flags.

A field is declared with `setting(...)`, which takes Kafka's dotted name, the default, the range and a description. The
sources of a value are, in order of rising precedence: the default, the environment (`ODRADEK_BROKER_LOG_DIRS`), the
configuration file (Java properties, as in Kafka) and `--set name=value`.

If a name is unknown, the process does not start, and one error lists all unknown names. If a name is a setting of
another process or of the cluster, the error says so. Otherwise the error suggests the most similar name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import socket
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from odradek_protocol.process_settings import ALL_NAMES, place_of
from odradek_runtime.listeners import ListenerAddress, host_port
from odradek_runtime.logs import LOG_FORMATS

T = TypeVar("T")
_METADATA_KEY: Final = "odradek"
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
# Every configuration file of Kafka has one of these settings, and Odradek has neither.
_KAFKA_ONLY: Final = frozenset({"process.roles", "zookeeper.connect"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


class SettingsError(ValueError):
    """A setting is unknown, missing or not valid. The message names the setting and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSpec:
    """The declaration of one setting. Its type and its default are those of the dataclass field.

    `parse` converts the text of the value and raises ValueError. Without `parse`, the type decides how a text is
    converted.
    """

    name: str
    doc: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    is_secret: bool = False
    parse: Callable[[str], Any] | None = None

    @property
    def bounds(self) -> str:
        """The allowed range as a text with the unit, such as "at least 1 ms"; empty if any number is allowed."""
        low, high = self.minimum, self.maximum
        if low is None and high is None:
            return ""
        if low is not None and high is not None:
            text = f"{low}..{high}"
        else:
            text = f"at least {low}" if low is not None else f"at most {high}"
        return f"{text} {self.unit}" if self.unit else text


def setting(
    name: str,
    doc: str,
    *,
    default: Any = MISSING,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    is_secret: bool = False,
    parse: Callable[[str], Any] | None = None,
) -> Any:
    """Declare a dataclass field as a setting. If it has no `default`, the process starts only if the user gives a
    value.
    """
    spec = SettingSpec(
        name=name,
        doc=doc,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        aliases=aliases,
        is_secret=is_secret,
        parse=parse,
    )
    return dataclasses.field(default=default, metadata={_METADATA_KEY: spec})


def specs_of(cls: type[Any]) -> dict[str, tuple[dataclasses.Field[Any], SettingSpec]]:
    """Return the dataclass field and the declaration of each setting of `cls`, by the dotted name of the setting."""
    return {
        field.metadata[_METADATA_KEY].name: (field, field.metadata[_METADATA_KEY])
        for field in dataclasses.fields(cls)
        if _METADATA_KEY in field.metadata
    }


def load_settings(
    cls: type[T],
    *,
    env: Mapping[str, str],
    env_prefix: str,
    config_file: Path | None = None,
    assignments: Iterable[str] = (),
) -> T:
    """Read the settings from all sources and return them as one object of the class `cls`.

    Raises:
        SettingsError: A name is unknown, a value is not valid, a setting is missing, or the file cannot be read.
    """
    specs = specs_of(cls)
    names = {name: name for name in specs}
    for name, (_, spec) in specs.items():
        names.update(dict.fromkeys(spec.aliases, name))
    given: dict[str, tuple[str, str]] = {}  # name -> (value, place where the value was given)

    unknown: list[str] = []

    def take(name: str, value: str, where: str, known: Mapping[str, str], prefix: str = "") -> None:
        if name in known:
            given[known[name]] = (value, where)
        else:
            unknown.append(_unknown(name, where, known, prefix))

    env_names = {env_prefix + _env_form(alias): name for alias, name in names.items()}
    for variable, value in env.items():
        if variable.startswith(env_prefix):
            take(variable, value, f"environment variable {variable}", env_names, env_prefix)
    entries = [] if config_file is None else read_properties(config_file)
    for name, value, line in entries:
        take(name, value, f"{config_file}:{line}", names)
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set {assignment}: write --set NAME=VALUE")
        take(name.strip(), value.strip(), f"--set {name}", names)
    if unknown:
        if _KAFKA_ONLY & {name for name, _, _ in entries}:
            unknown.append(
                f"{config_file} is a configuration file of Kafka: translate it with"
                f" `odradek config import {config_file}`"
            )
        raise SettingsError("\n".join(unknown))

    types = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, (field, spec) in specs.items():
        if name in given:
            text, where = given[name]
            values[field.name] = _parse(spec, types[field.name], text, where)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise SettingsError(
                f"{name} is not set: {spec.doc} Set it with --set {name}=..., in the configuration"
                f" file, or as {env_prefix + _env_form(name)}"
            )
    if "given" in types:
        values["given"] = frozenset(given)
    return cls(**values)


def is_given(settings: Any, name: str) -> bool:
    """Return whether the user gave a value for this setting, even one that is equal to the default."""
    field, _ = specs_of(type(settings))[name]
    return (
        name in settings.given
        or field.default is MISSING
        or getattr(settings, field.name) != field.default
    )


def read_properties(path: Path) -> list[tuple[str, str, int]]:
    """Return (name, value, line number) of each entry of a Java properties file. A line that ends in `\\` is joined
    with the next line. Raises SettingsError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot read the configuration file {path}: {reason}") from None
    entries: list[tuple[str, str, int]] = []
    pending, first_line = "", 0
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not pending and line[:1] in ("#", "!"):
            continue  # A backslash at the end of a comment does not continue it.
        line = pending + line
        first_line = first_line if pending else number
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        pending = ""
        if not line:
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise SettingsError(f"{path}:{first_line}: expected name=value, found {line!r}")
        entries.append((name.strip(), value.strip(), first_line))
    return entries


def _env_form(name: str) -> str:
    return name.upper().replace(".", "_").replace("-", "_")


def _unknown(name: str, where: str, known: Iterable[str], env_prefix: str = "") -> str:
    """Return the error text for a name that is no setting of this process.

    The text says where the setting belongs if another process or the cluster has it. Otherwise it suggests the most
    similar name.
    """
    all_names = {setting_name: setting_name for setting_name in ALL_NAMES}
    if env_prefix:
        all_names = {
            env_prefix + _env_form(setting_name): setting_name for setting_name in ALL_NAMES
        }
    place = place_of(all_names.get(name, name))
    if place is not None:
        return f"{where} has no effect here: {place}"
    own_names = set(known)
    close = difflib.get_close_matches(name, own_names | all_names.keys(), n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else ""
    if close and close[0] not in own_names:
        hint += f" But {place_of(all_names[close[0]])}"
    return f"{where}: there is no setting {name}{hint}"


def _parse(spec: SettingSpec, kind: Any, text: str, where: str) -> Any:
    shown = "(hidden)" if spec.is_secret else repr(text)
    try:
        value = spec.parse(text) if spec.parse is not None else _convert(kind, text)
    except ValueError as error:
        raise SettingsError(f"{where}: {spec.name}={shown} is not valid: {error}") from None
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = spec.minimum, spec.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            raise SettingsError(f"{where}: {spec.name}={text} is out of range: {spec.bounds}")
    if spec.choices and value not in spec.choices:
        raise SettingsError(
            f"{where}: {spec.name}={shown} is not valid: it must be one of {', '.join(spec.choices)}"
        )
    return value


def _convert(kind: Any, text: str) -> Any:
    if kind is bool:
        lowered = text.lower()
        if lowered in _TRUE:
            return True
        if lowered in _FALSE:
            return False
        raise ValueError("it must be true or false")
    if kind is int:
        return int(text)
    if kind is float:
        return float(text)
    if kind is Path:
        if not text:
            raise ValueError("the path must not be empty")
        return Path(text)
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is str:
        return text
    arguments = [a for a in typing.get_args(kind) if a is not type(None)]
    if len(arguments) == 1:  # X | None
        return None if text == "" else _convert(arguments[0], text)
    raise TypeError(f"settings of type {kind} are not supported")


_COLUMNS: Final = 100


def settings_text(value: Any) -> str:
    """Return a setting's value in the form that a configuration file has."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(_element_text, value))
    return str(value)


def settings_help(cls: type[Any], env_prefix: str) -> str:
    """Return the part of `--help` that describes all settings of `cls`: default, meaning and allowed values."""
    lines = [
        "settings: write NAME=VALUE in the file or with --set. An environment variable is named",
        f"{env_prefix} followed by the name in capitals, with _ for each dot. --set overrides the file,",
        "and the file overrides the environment.",
        "",
    ]
    for name, (field, spec) in sorted(specs_of(cls).items()):
        is_needed = field.default is MISSING
        lines.append(f"  {name}={'...' if is_needed else settings_text(field.default)}")
        lines += textwrap.wrap(
            " ".join([spec.doc, *_limits(spec, is_needed)]),
            _COLUMNS,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
        )
    return "\n".join(lines)


def _limits(spec: SettingSpec, is_needed: bool) -> list[str]:
    limits = []
    if is_needed:
        limits.append("This setting must be given.")
    if spec.bounds or spec.unit:
        limits.append(f"In {spec.unit}." if not spec.bounds else f"{spec.bounds}.".capitalize())
    if spec.choices:
        limits.append(f"One of {', '.join(choice or 'empty' for choice in spec.choices)}.")
    if spec.aliases:
        limits.append(f"Other names: {', '.join(spec.aliases)}.")
    return limits


def _element_text(value: Any) -> str:
    if isinstance(value, ListenerAddress):
        return f"{value.name}://{value.authority}"
    if isinstance(value, tuple) and len(value) == 3:  # id, host, port
        return f"{value[0]}@{host_port(value[1], value[2])}"
    if isinstance(value, tuple):  # listener, protocol
        return ":".join(str(part) for part in value)
    return str(value)


HOST_ID_LENGTH_MAX: Final = 255


def _parse_host_id(text: str) -> str:
    if len(text) > HOST_ID_LENGTH_MAX or not text.isprintable():
        raise ValueError(
            f"a host id must consist of at most {HOST_ID_LENGTH_MAX} printable characters"
        )
    return text


def machine_name() -> str:
    """Return the host name; the machine id if the host name is empty or `localhost`, which many machines share."""
    name = socket.gethostname()
    if name.partition(".")[0] not in ("", "localhost"):
        return name
    with contextlib.suppress(OSError):
        return Path("/etc/machine-id").read_text().strip() or name
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings that brokers and controllers have in common: metrics, probes, the process's own log, certificates.

    `given` has the names of the settings for which the user gave a value, even one that is equal to the default.
    """

    given: frozenset[str] = frozenset()
    host_id: str = setting(
        "host.id",
        "Name of the machine that this process runs on. All processes of a machine must have the same name, and"
        " different machines different names. The controller places the replicas of a partition on different machines"
        " if there are enough of them. Empty: the host name, or the machine id if the host name is empty or localhost.",
        default="",
        parse=_parse_host_id,
    )
    metrics_host: str = setting(
        "metrics.host",
        "Address of the HTTP port that serves /metrics, /livez and /readyz.",
        default="127.0.0.1",
    )
    metrics_port: int = setting(
        "metrics.port",
        "HTTP port that serves /metrics, /livez and /readyz. 0: any free port, -1: none.",
        default=0,
        minimum=-1,
        maximum=65535,
    )
    health_port: int = setting(
        "health.port",
        "Port of the gRPC health service for probes, without TLS, on metrics.host. 0: any free port, -1: none.",
        default=-1,
        minimum=-1,
        maximum=65535,
    )
    log_level: str = setting(
        "log.level",
        "Lowest level of the messages that the process writes to its own log.",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    )
    log_format: str = setting(
        "log.format",
        "Format of the process's own log: json writes each event as one JSON object per line, text as one readable"
        " line. auto means text on a terminal and json elsewhere.",
        default="auto",
        choices=LOG_FORMATS,
    )
    ssl_certificate: str = setting(
        "ssl.certificate.location",
        "PEM file with this node's certificate. Empty: no TLS.",
        default="",
    )
    ssl_key: str = setting(
        "ssl.key.location", "PEM file with the private key of this node's certificate.", default=""
    )
    ssl_ca: str = setting(
        "ssl.ca.location",
        "PEM file with the certificates of the certificate authorities (CA) that sign the certificates of peers.",
        default="",
    )

    @property
    def host_id_or_name(self) -> str:
        """The host id with which this process registers: the setting `host.id` or, if it is empty, `machine_name()`."""
        return self.host_id or machine_name()
