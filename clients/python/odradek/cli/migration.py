"""`odradek config import`: translates a `server.properties` of Apache Kafka to settings of a broker and a controller.

The command reports a verdict for every setting in the file:
    kept         Odradek has a setting with the same name and meaning
    translated   the setting is written in another form, which the note shows
    command      the setting is a config of the whole cluster; a printed command sets it once the cluster runs
    inert        Odradek has no such setting and needs none
    unsupported  the setting asks for something that Odradek does not have; the note says what to do instead
    unknown      this program knows the setting neither from Kafka nor from Odradek

The command starts no process and changes no data directory of Kafka.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final

import typer

from odradek.cli.output import EXIT_ERROR, EXIT_USAGE, Output, OutputFormat, fail, print_rows
from odradek.extras import what_is_missing
from odradek.java_properties import parse_java_properties
from odradek_protocol.metadata.config_definitions import BROKER_CONFIGS

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
_MODULES: Final = {BROKER: "odradek_broker", CONTROLLER: "odradek_metadata_quorum"}
_FILES: Final = {BROKER: "broker.properties", CONTROLLER: "quorum.properties"}
_PROCESSES: Final = {BROKER: "odradek broker", CONTROLLER: "odradek quorum"}
_VOTER: Final = re.compile(r"[0-9]+@.*:[0-9]{1,5}")

# Kafka settings that Odradek does not have and does not need: a pattern of the name, and the reason.
INERT: Final[dict[str, str]] = {
    "num.network.threads": "one event loop serves all connections",
    "num.io.threads": "one event loop serves all requests",
    "num.replica.fetchers": "there is one replication stream for each pair of brokers",
    "num.replica.alter.log.dirs.threads": "a broker has one data directory",
    "num.recovery.threads.per.data.dir": "background.threads sets the threads for all disk work",
    "queued.max.requests": "queued.max.request.bytes limits queued requests by their size",
    "socket.*.buffer.bytes": "the operating system chooses the sizes of socket buffers",
    "socket.listen.backlog.size": "the backlog of listening sockets is fixed",
    "inter.broker.listener.name": "brokers replicate over the listener REPLICATION",
    "security.inter.broker.protocol": "brokers replicate over the listener REPLICATION",
    "sasl.mechanism.inter.broker.protocol": "brokers authenticate each other by their certificates",
    "sasl.mechanism.controller.protocol": "brokers and controllers authenticate each other by their certificates",
    "inter.broker.protocol.version": "feature levels replace this setting: `odradek feature list` shows the levels",
    "log.message.format.version": "batches have Kafka's current format",
    "log.message.downconversion.enable": "batches have Kafka's current format",
    "broker.id.generation.enable": "node.id names the broker",
    "reserved.broker.max.id": "node.id names the broker",
    "replica.fetch.*": "leaders push records to followers, and replica.credit.bytes limits the unacknowledged bytes",
    "replica.socket.*": "replication runs over gRPC streams, which have no such setting",
    "replica.high.watermark.checkpoint.interval.ms": "log.flush.offset.checkpoint.interval.ms applies to all"
    " checkpoints",
    "controller.socket.timeout.ms": "controllers are called by gRPC, which has no such setting",
    "controller.quorum.*": "the timers of voters are derived from controller.quorum.election.timeout.ms",
    "request.timeout.ms": "calls between processes have fixed limits",
    "log.flush.scheduler.interval.ms": "log.flush.interval.ms is checked every 100 ms",
    "log.flush.start.offset.checkpoint.interval.ms": "log.flush.offset.checkpoint.interval.ms applies to all"
    " checkpoints",
    "log.cleaner.threads": "background.threads sets the threads for all disk work",
    "log.cleaner.dedupe.buffer.size": "the log cleaner limits its memory itself",
    "log.cleaner.io.*": "the log cleaner works in short slices, so other disk work can run between them",
    "log.initial.task.delay.ms": "background tasks begin when the broker starts",
    "log.dir.failure.timeout.ms": "a broker reports a failed directory with its next heartbeat",
    "offsets.commit.*": "offset commits wait for the in-sync replicas",
    "offsets.load.buffer.size": "loading of committed offsets limits its memory itself",
    "offsets.topic.compression.codec": "committed offsets are stored without compression",
    "group.coordinator.*": "coordinators run on the event loop",
    "group.consumer.min.*": "the bounds of group configs are fixed",
    "group.consumer.max.*": "the bounds of group configs are fixed",
    "group.share.*": "there are no share groups",
    "share.coordinator.*": "there are no share groups",
    "group.streams.*": "there are no streams groups",
    "transaction.*": "leaders always verify transactions, and coordinators abort them within 0.2 s after the timeout",
    "add.partitions.to.txn.retry.*": "partition leaders retry their requests to the coordinator at fixed intervals",
    "metadata.*": "only metadata.log.max.entries.between.snapshots determines when a snapshot is written",
    "initial.broker.registration.timeout.ms": "a broker tries to register until it is stopped",
    "metric*": "metrics.port serves metrics for Prometheus",
    "kafka.metrics.*": "metrics.port serves metrics for Prometheus",
    "auto.include.jmx.reporter": "metrics.port serves metrics for Prometheus",
    "telemetry.*": "brokers accept no metrics from clients",
    "client.metrics.*": "brokers accept no metrics from clients",
    "quota.window.*": "quotas are token buckets",
    "controller.quota.window.*": "quotas are token buckets",
    "replication.quota.window.*": "quotas are token buckets",
    "alter.log.dirs.replication.quota.*": "a broker has one data directory",
    "*.purgatory.purge.interval.requests": "a delayed request is removed as soon as it completes",
    "connection.failed.authentication.delay.ms": "the response to a failed login is delayed longer with each failure",
    "max.connection.creation.rate": "a quota for IP addresses limits new connections (`odradek quota set`)",
    "max.incremental.fetch.session.cache.slots": "the cache of fetch sessions is limited by bytes",
    "delegation.token.*": "there are no delegation tokens",
    "password.encoder.*": "no passwords are stored",
    "zookeeper.*": "there is no ZooKeeper",
    "control.plane.listener.name": "controllers have their own listener",
    "remote.log.*": "there is no tiered storage",
    "remote.fetch.*": "there is no tiered storage",
    "remote.list.*": "there is no tiered storage",
    "confluent.*": "this is a setting of another distribution of Kafka",
    "unstable.*": "this is an internal setting of Kafka",
    "eligible.leader.replicas.enable": "eligible leader replicas (KIP-966) are always enabled",
    "process.roles": "brokers and controllers are separate processes, each with its own file",
    "controller.listener.names": "a controller's listeners are RAFT and CONTROLLER",
}

# Kafka settings for features that Odradek does not have: a pattern of the name, and what to do instead.
_PEM: Final = (
    "key stores and trust stores are not supported: export PEM files for"
    " ssl.certificate.location, ssl.key.location and ssl.ca.location"
)
UNSUPPORTED: Final[dict[str, str]] = {
    "ssl.keystore.*": _PEM,
    "ssl.truststore.*": _PEM,
    "ssl.key.password": _PEM,
    "ssl.principal.mapping.rules": "a principal is the certificate's common name",
    "ssl.*": "brokers use TLS 1.2 or newer with OpenSSL's default ciphers, which no setting changes",
    "sasl.kerberos.*": "GSSAPI is not supported: use SCRAM-SHA-512 or OAUTHBEARER",
    "*sasl.jaas.config": "passwords are not read from files: `odradek user create` creates SCRAM credentials",
    "sasl.oauthbearer.jwks.endpoint.url": "keys are read from a file: sasl.oauthbearer.jwks.location",
    "*.callback.handler.class": "plug-ins are not supported: the mechanisms of sasl.enabled.mechanisms are built in",
    "principal.builder.class": "plug-ins are not supported: a principal is the certificate's common name or the user",
    "*.policy.class.name": "plug-ins are not supported: use ACLs to restrict who may create topics",
    "client.quota.callback.class": "plug-ins are not supported: quotas are for users, client ids and IP addresses",
    "security.providers": "plug-ins are not supported",
    "allow.everyone.if.no.acl.found": "with ACLs, an operation that no entry allows is always denied",
    "listener.name.*": "settings apply to all listeners: write the name without the listener's prefix",
    "max.connections.per.ip.overrides": "max.connections.per.ip is the same for all addresses",
    "log.cleaner.enable": "the cleaner always runs",
    "transaction.partition.verification.enable": "leaders always verify transactions",
    "transaction.two.phase.commit.enable": "two-phase commit with external coordinators (KIP-939) is not supported",
    "delete.topic.enable": "topics can always be deleted: use ACLs to restrict who may delete them",
    "remote.log.storage.system.enable": "there is no tiered storage",
    "log.dirs": "a broker has one data directory: run one broker for each disk",
}
# For some settings in UNSUPPORTED: the value that describes how Odradek always behaves. With this value, the setting
# needs no action.
_AS_IT_IS: Final = {
    "delete.topic.enable": "true",
    "log.cleaner.enable": "true",
    "transaction.partition.verification.enable": "true",
    "transaction.two.phase.commit.enable": "false",
    "remote.log.storage.system.enable": "false",
    "allow.everyone.if.no.acl.found": "false",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict for one setting in the imported file."""

    name: str
    verdict: str
    note: str = ""


@dataclass(slots=True)
class Plan:
    """The result of an import: the files to write, the commands to run once the cluster is running, and the
    verdicts.
    """

    # The role of a process, such as "broker" -> the settings in its file.
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def lacks(self) -> list[Verdict]:
        """The verdicts of settings that the written files cannot express. An administrator must act on them."""
        return [v for v in self.verdicts if v.verdict in ("unsupported", "unknown")]


def read_kafka_properties(path: Path) -> dict[str, str]:
    """Read a Java properties file. A line that is not valid ends the command with an error."""
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # the encoding in which Java reads properties
    try:
        return parse_java_properties(text)
    except ValueError as error:
        fail(f"{path}:{error}", status=EXIT_USAGE)


def plan_import(
    given: Mapping[str, str],
    known: Mapping[str, Mapping[str, Sequence[str]]],
    *,
    host: str,
    voters: str = "",
) -> Plan:
    """Translate the settings that Odradek has, and give every setting a verdict.

    Args:
        given: Kafka's settings.
        known: Odradek's settings with their aliases, by role.
        host: the host name by which clients reach this machine; used if the file has no advertised.listeners.
        voters: ID@HOST:PORT of all controllers; needed if the file names them without ids.
    """
    return _Import(dict(given), known, host, voters).plan()


class _Import:
    """Translates one Kafka configuration file. Each method removes the settings that it translates from
    `self._remaining`.
    """

    def __init__(
        self,
        given: dict[str, str],
        known: Mapping[str, Mapping[str, Sequence[str]]],
        host: str,
        voters: str,
    ) -> None:
        self._remaining = given
        self._host = host
        self._voters = voters
        self._plan = Plan()
        self._names = {
            role: {alias: name for name, aliases in names.items() for alias in (name, *aliases)}
            for role, names in known.items()
        }
        self._plan.files = {role: {} for role in _roles(given)}

    def plan(self) -> Plan:
        """Translate all settings and return the plan. Call this method only once."""
        self._check_ids()
        self._translate_controllers()
        self._translate_listeners()
        self._translate_directories()
        self._translate_authorizer()
        for name in list(self._remaining):
            self._judge(name, self._remaining.pop(name))
        self._plan.verdicts.sort(key=lambda verdict: (_ORDER.index(verdict.verdict), verdict.name))
        return self._plan

    def _check_ids(self) -> None:
        node_id, broker_id = map(self._remaining.get, ("node.id", "broker.id"))
        if node_id is not None and broker_id is not None and node_id != broker_id:
            fail(
                f"node.id is {node_id}, but broker.id is {broker_id}: both set the id of this node, so remove one",
                status=EXIT_USAGE,
            )

    def _say(self, name: str, verdict: str, note: str = "") -> None:
        self._plan.verdicts.append(Verdict(name, verdict, note))

    def _set(self, role: str, name: str, value: str) -> None:
        if role in self._plan.files:
            self._plan.files[role][name] = value

    def _judge(self, name: str, value: str) -> None:
        """Add the verdict for a setting. If Odradek has a setting of the same name, copy the value."""
        roles = [role for role in self._plan.files if name in self._names[role]]
        config = BROKER_CONFIGS.get(name)
        if config is not None and config.is_cluster_wide and CONTROLLER in roles:
            # At its first start, the controller sets the config for the cluster.
            roles = [CONTROLLER]
        elif config is not None and config.is_cluster_wide and BROKER in roles and _is_shared(name):
            roles = []
        if config is not None and not roles:
            assignment = shlex.quote(f"{name}={value}")
            self._plan.commands.append(f"odradek cluster config --set {assignment}")
            self._say(
                name,
                "command",
                "the setting is a config of the whole cluster: run the printed command once the cluster runs",
            )
        elif roles:
            for role in roles:
                self._set(role, self._names[role][name], value)
            self._say(name, "kept", " and ".join(_FILES[role] for role in roles))
        elif value == _AS_IT_IS.get(name):
            self._say(name, "inert", "this value is the built-in behaviour")
        elif (way_out := _matching(UNSUPPORTED, name)) is not None:
            self._say(name, "unsupported", way_out)
        elif (reason := _matching(INERT, name)) is not None:
            self._say(name, "inert", reason)
        else:
            known = {*UNSUPPORTED, *INERT, *BROKER_CONFIGS}.union(*self._names.values())
            near = get_close_matches(name, known, 1, 0.8)
            hint = f": did you mean {near[0]}?" if near else ""
            self._say(name, "unknown", f"this program does not know the setting{hint}")

    def _translate_controllers(self) -> None:
        """Translate the addresses of controllers.

        A controller accepts other controllers on the port that it had in Kafka, and brokers on the next port.
        """
        named = ("controller.quorum.voters", "controller.quorum.bootstrap.servers")
        values = [self._remaining.pop(name, "") for name in named]
        voters_name = "--voters" if self._voters else named[0]
        voters = self._voters or values[0]
        servers = _listed(values[1])
        node_id = self._remaining.get("node.id", self._remaining.get("broker.id", "1"))
        if not voters and len(servers) == 1 and CONTROLLER in self._plan.files:
            _port(named[1], servers[0])  # refuses an address without a port
            voters_name, voters = named[1], f"{node_id}@{servers[0]}"
        if not voters:
            for name, value in zip(named, values, strict=True):
                if value:
                    self._say(
                        name,
                        "unsupported",
                        "the ids of the controllers are missing: give --voters ID@HOST:PORT,...",
                    )
            self._remaining.pop("zookeeper.connect", None)
            return
        for voter in _listed(voters):
            if not _VOTER.fullmatch(voter):
                fail(f"{voters_name} has {voter}: write {_FORMS[voters_name]}", status=EXIT_USAGE)
        rpc = ",".join(
            f"{voter.rpartition(':')[0]}:{_port(voters_name, voter) + 1}"
            for voter in _listed(voters)
        )
        self._set(CONTROLLER, "controller.quorum.voters", voters)
        for role in self._plan.files:
            self._set(role, "controller.rpc.endpoints", rpc)
        for name, value in zip(named, values, strict=True):
            if value:
                self._say(name, "translated", f"voters {voters}; brokers reach them at {rpc}")

    def _translate_listeners(self) -> None:
        """Translate the listeners of a broker and of a controller.

        Kafka's listeners keep their names, and GRPC and REPLICATION are added on ports that no listener in the file
        uses. A controller's listeners are named RAFT and CONTROLLER.
        """
        controllers = _listed(self._remaining.get("controller.listener.names", "CONTROLLER"))
        listeners = _listed(self._remaining.pop("listeners", ""))
        advertised = _listed(self._remaining.pop("advertised.listeners", ""))
        mapped = _listed(self._remaining.pop("listener.security.protocol.map", ""))
        voters = self._plan.files.get(CONTROLLER, {}).get("controller.quorum.voters", "")
        used_ports = {_port("controller.quorum.voters", voter) for voter in _listed(voters)}
        used_ports |= {_port("listeners", address) for address in listeners}
        for address in advertised:
            _port("advertised.listeners", address)
        node_id = self._remaining.get("node.id", self._remaining.get("broker.id", "1"))
        own_voter = next((v for v in _listed(voters) if v.startswith(f"{node_id}@")), "")
        if own_voter:
            hosts = [_host_of(a) for a in listeners if a.partition("://")[0] in controllers] or [""]
            port = _port("controller.quorum.voters", own_voter)
            used_ports.add(port + 1)
            addresses = f"RAFT://{hosts[0]}:{port},CONTROLLER://{hosts[0]}:{port + 1}"
            self._set(CONTROLLER, "listeners", addresses)
        if BROKER not in self._plan.files:
            self._say("listeners", "translated", "RAFT and CONTROLLER")
            return
        kept = [a for a in listeners if a.partition("://")[0] not in controllers]
        kept = kept or [f"PLAINTEXT://:{9092}"]
        advertised_here = [a for a in advertised if a.partition("://")[0] not in controllers]
        bind = _host_of(kept[0])
        advertised_host = (
            _host_of(advertised_here[0])
            if advertised_here
            else (bind if bind not in ("", "0.0.0.0") else self._host)
        )
        for name, first in (("GRPC", 9090), ("REPLICATION", 9091)):
            port = next(port for port in range(first, 65_536) if port not in used_ports)
            used_ports.add(port)
            kept.append(f"{name}://{bind}:{port}")
        advertised_names = {a.partition("://")[0] for a in advertised_here}
        advertised_here += [
            f"{name}://{advertised_host}:{_port('listeners', address)}"
            for address in kept
            if (name := address.partition("://")[0]) not in advertised_names
        ]
        self._set(BROKER, "listeners", ",".join(kept))
        self._set(BROKER, "advertised.listeners", ",".join(advertised_here))
        protocols = [m for m in mapped if m.partition(":")[0] not in controllers]
        if mapped:
            self._set(BROKER, "listener.security.protocol.map", ",".join(protocols))
            self._say("listener.security.protocol.map", "translated", ",".join(protocols))
        self._say("listeners", "translated", "GRPC and REPLICATION are added: " + ",".join(kept))
        self._say("advertised.listeners", "translated", ",".join(advertised_here))

    def _translate_directories(self) -> None:
        """Choose new data directories beside Kafka's directories, which are not changed."""
        names = [n for n in ("log.dirs", "log.dir", "metadata.log.dir") if n in self._remaining]
        directories = _listed(
            self._remaining.pop("log.dirs", "") or self._remaining.pop("log.dir", "")
        )
        self._remaining.pop("log.dir", None)
        metadata = self._remaining.pop("metadata.log.dir", "")
        first = (directories or ["/tmp/kafka-logs"])[0].rstrip("/")
        self._set(BROKER, "log.dirs", f"{first}-odradek")
        self._set(CONTROLLER, "log.dirs", f"{(metadata or first).rstrip('/')}-odradek-quorum")
        for name in names:
            if len(directories) > 1 and name == "log.dirs":
                self._say(name, "unsupported", UNSUPPORTED["log.dirs"])
            else:
                self._say(name, "translated", "a new directory beside Kafka's")

    def _translate_authorizer(self) -> None:
        name = "authorizer.class.name"
        if self._remaining.get(name):
            self._remaining.pop(name)
            self._set(BROKER, name, "acl")
            self._say(name, "translated", "acl: ACLs authorize requests, as in Kafka")


def _roles(given: Mapping[str, str]) -> list[str]:
    roles = _listed(given.get("process.roles", BROKER))
    return [role for role in _MODULES if role in roles]


_PORT_MAX: Final = 65_535
_FORMS: Final = {
    "--voters": "ID@HOST:PORT,...",
    "controller.quorum.voters": "ID@HOST:PORT,...",
    "controller.quorum.bootstrap.servers": "HOST:PORT,...",
    "listeners": "NAME://HOST:PORT,...",
    "advertised.listeners": "NAME://HOST:PORT,...",
}
_ORDER: Final = ("unknown", "unsupported", "command", "translated", "inert", "kept")


def _is_shared(name: str) -> bool:
    """Return whether all brokers should have the same value of this config. If the config were set in the file of one
    broker, its value could conflict with the value in another broker's file.
    """
    return name in ("min.insync.replicas", "unclean.leader.election.enable")


def _matching(table: Mapping[str, str], name: str) -> str | None:
    if name in table:
        return table[name]
    return next(
        (note for pattern, note in table.items() if fnmatch.fnmatchcase(name, pattern)), None
    )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _port(setting: str, address: str) -> int:
    """Return the port of an address. An address without a valid port ends the command with an error that names the
    setting.
    """
    text = address.rpartition(":")[2]
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > _PORT_MAX:
        fail(f"{setting} has {address}: write {_FORMS[setting]}", status=EXIT_USAGE)
    return int(text)


def _host_of(address: str) -> str:
    return address.partition("://")[2].rpartition(":")[0]


app = typer.Typer(help="Translate configuration files of Apache Kafka.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Translate configuration files of Apache Kafka."""


@app.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The server.properties of a Kafka broker or controller."
        ),
    ],
    directory: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Write the translated configuration files to this directory.",
        ),
    ] = Path(),
    voters: Annotated[
        str,
        typer.Option(
            metavar="ID@HOST:PORT,...",
            help="Ids and addresses of all controllers. Needed only if the file names controllers without ids.",
        ),
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replace translated files that already exist.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Translate a server.properties, and report on each setting.

    The command writes broker.properties, quorum.properties or both, depending on process.roles. The exit status is 1 if
    the file has settings that Odradek does not support or does not know.
    """
    if missing := what_is_missing("odradek config import", "server"):
        fail(missing)
    given = read_kafka_properties(file)
    for role in _roles(given):
        if (path := directory / _FILES[role]).exists() and not force:
            fail(
                f"{path} already exists: replace it with --force, or choose another directory with --to DIR"
            )
    known = {role: _known_settings(module) for role, module in _MODULES.items()}
    plan = plan_import(given, known, host=socket.gethostname(), voters=voters)
    if not plan.files:
        fail(
            f"{file}: process.roles={given['process.roles']} names no role: write broker, controller or both"
        )
    for settings in plan.files.values():
        for name, value in settings.items():
            # Odradek's files have no escapes: a line break or a final backslash would change the setting.
            if "\n" in value or "\r" in value or value.endswith("\\"):
                fail(
                    f"{file}: {name} is {value!r}: a setting of Odradek cannot contain a line break or end in \\"
                )
    for role, settings in plan.files.items():
        _write(directory / _FILES[role], settings, source=file)
    rows = [{"setting": v.name, "verdict": v.verdict, "note": v.note} for v in plan.verdicts]
    print_rows(rows, output, empty=f"{file} has no settings")
    if output is OutputFormat.TABLE:
        _print_next_steps(plan, directory)
    if plan.lacks:
        raise typer.Exit(EXIT_ERROR)


def _known_settings(module: str) -> dict[str, list[str]]:
    """Return the names of a service's settings with their aliases. They are read from the service's program, because
    the SDK does not import services.
    """
    command = [sys.executable, "-m", module, "--list-settings"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        fail(f"cannot read the names of the settings of {module}: {process.stderr.strip()}")
    names: dict[str, list[str]] = json.loads(process.stdout)
    return names


def _write(path: Path, settings: Mapping[str, str], *, source: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"# From {source}, by `odradek config import`.", *_lines(settings.items()), ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def _lines(settings: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(settings)]


def _print_next_steps(plan: Plan, directory: Path) -> None:
    print()
    quorum = plan.files.get(CONTROLLER)
    if quorum is not None and "controller.quorum.voters" in quorum:
        print(
            f"odradek storage format --data-dir {shlex.quote(quorum['log.dirs'])}"
            f" --node-id {shlex.quote(quorum.get('node.id', 'ID'))}"
            f" --voters {shlex.quote(quorum['controller.quorum.voters'])}"
            "   # prints the cluster id: add it to the written files as cluster.id"
        )
    for role in plan.files:
        print(
            f"{_PROCESSES[role]} --config {shlex.quote(str(directory / _FILES[role]))} --check"
            "   # checks the settings; then run the command without --check"
        )
    for command in plan.commands:
        print(f"{command}   # once the cluster runs")
