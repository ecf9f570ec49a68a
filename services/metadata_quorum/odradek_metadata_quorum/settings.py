"""Settings of a voter and of the controller process. Settings that Kafka has, too, have Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odradek_metadata_quorum.controller import ControllerSettings
from odradek_protocol.identity import ControllerId
from odradek_protocol.metadata.config_definitions import CLUSTER_CONFIGS, ConfigError
from odradek_protocol.metadata.configs import check_config
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_runtime.listeners import ListenerAddress, parse_endpoints, parse_listeners
from odradek_runtime.settings import NodeSettings, SettingsError, setting

SNAPSHOT_LIMIT_SETTING: Final = "metadata.log.max.snapshot.bytes"
"""The name of the setting for the size limit of metadata snapshots. Kafka has no such setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumTls:
    """PEM files for mutual TLS between voters. The certificate must name the controller in a SAN (`peer_link`)."""

    certificate_path: Path
    key_path: Path
    ca_path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumTimers:
    """Raft's timers in milliseconds.

    With the defaults, a leader whose process died is replaced in about 0.3 s, and a leader that is only silent in about
    0.6 s. Stalls of up to 0.5 s cause no election.
    """

    election_timeout_min_ms: int = 500
    election_timeout_max_ms: int = 1_000
    # After the connection to the leader broke, the election timeout is a random time between the next two values.
    lost_leader_timeout_min_ms: int = 100
    lost_leader_timeout_max_ms: int = 300
    heartbeat_interval_ms: int = 100  # at most a third of the smallest election timeout
    # A leader without responses from a majority steps down after this time.
    leader_fallback_ms: int = 1_000
    tick_interval_ms: int = 20  # time between two steps of the Raft node if nothing happens

    def __post_init__(self) -> None:
        if not 0 < self.election_timeout_min_ms < self.election_timeout_max_ms:
            raise ValueError(
                f"election_timeout_min_ms ({self.election_timeout_min_ms}) must be above 0 and below"
                f" election_timeout_max_ms ({self.election_timeout_max_ms})"
            )
        if not 0 < self.lost_leader_timeout_min_ms < self.lost_leader_timeout_max_ms:
            raise ValueError(
                f"lost_leader_timeout_min_ms ({self.lost_leader_timeout_min_ms}) must be above 0 and"
                f" below lost_leader_timeout_max_ms ({self.lost_leader_timeout_max_ms})"
            )
        if self.heartbeat_interval_ms * 3 > self.election_timeout_min_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be at most one third of"
                f" election_timeout_min_ms ({self.election_timeout_min_ms})"
            )
        if self.leader_fallback_ms < self.election_timeout_min_ms:
            raise ValueError("leader_fallback_ms must not be below election_timeout_min_ms")
        if not 0 < self.tick_interval_ms <= self.heartbeat_interval_ms:
            raise ValueError("tick_interval_ms must be above 0 and at most heartbeat_interval_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """The settings of one voter.

    `voters` maps the id of every voter, including this node, to the host and port to which other voters connect. Host
    names are resolved for each connection. Without `tls` the listener must be on loopback, unless `insecure` is set.
    """

    node_id: int
    cluster_id: str
    voters: dict[int, tuple[str, int]]
    data_dir: Path
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    tls: QuorumTls | None = None
    insecure: bool = False
    timers: QuorumTimers = field(default_factory=QuorumTimers)

    proposal_bytes_max: int = 1 << 20  # the largest payload of one proposal
    pending_proposals_max: int = 10_000  # the most proposals that are appended and not applied yet
    pending_bytes_max: int = 64 << 20  # the most payload bytes of proposals not applied yet
    snapshot_interval_entries: int = 20_000  # a snapshot is taken after this many applied entries
    # A snapshot is also taken after this many bytes of applied entries.
    snapshot_interval_bytes: int = 64 << 20
    # The number of entries before a snapshot that stay in the log for slow followers.
    snapshot_entries_min: int = 20_000
    # Fewer entries stay in the log if `snapshot_entries_min` entries have more bytes than this limit.
    snapshot_entries_bytes_max: int = 64 << 20
    snapshot_chunk_bytes: int = 256 << 10  # the size of a chunk in which a snapshot is sent
    # A larger snapshot is neither stored nor accepted from a leader.
    snapshot_bytes_max: int = 1 << 30
    # The largest segment of the write-ahead log. Trimming the log removes whole segments.
    segment_bytes_max: int = 8 << 20
    frame_bytes_max: int = 16 << 20  # the largest message between two voters
    # The most bytes that are buffered for one peer. Further messages are dropped, and Raft repeats them.
    peer_queue_bytes_max: int = 4 << 20

    def __post_init__(self) -> None:
        if self.node_id not in self.voters:
            raise ValueError(f"node_id {self.node_id} is not among the voters {list(self.voters)}")
        if not 0 < self.proposal_bytes_max <= 1 << 20:
            raise ValueError("proposal_bytes_max must be between 1 and 1048576")
        if self.snapshot_interval_entries < 1 or self.snapshot_entries_min < 1:
            raise ValueError("snapshot_interval_entries and snapshot_entries_min must be above 0")


ENV_PREFIX: Final = "ODRADEK_QUORUM_"
RAFT: Final = "RAFT"
CONTROLLER: Final = "CONTROLLER"
_FIRST_START: Final = (
    " This setting has an effect only at the first start of the cluster; later `odradek cluster "
    "config` changes it."
)

if TYPE_CHECKING:
    _ClusterDefaults = NodeSettings
else:
    # One field for each config in CLUSTER_CONFIGS. An empty value means that the config is not set.
    _ClusterDefaults = make_dataclass(
        "_ClusterDefaults",
        [
            (
                name.replace(".", "_"),
                str,
                setting(name, definition.documentation + _FIRST_START, default=""),
            )
            for name, definition in CLUSTER_CONFIGS.items()
        ],
        bases=(NodeSettings,),
        frozen=True,
        slots=True,
        kw_only=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumProcessSettings(_ClusterDefaults):
    """The settings of a controller process, as `odradek quorum --help` lists them."""

    node_id: int = setting(
        "node.id",
        "Id of this controller. It must be one of the ids in controller.quorum.voters.",
        minimum=0,
        maximum=(1 << 31) - 1,
    )
    cluster_id: str = setting(
        "cluster.id", "Id of the cluster. All processes of a cluster must have the same id."
    )
    log_dir: Path = setting(
        "log.dirs", "Path of the controller's data directory.", aliases=("metadata.log.dir",)
    )
    voters: tuple[tuple[int, str, int], ...] = setting(
        "controller.quorum.voters",
        "ID@host:port of the RAFT listener of every voter, including this controller.",
        parse=parse_endpoints,
    )
    rpc_endpoints: tuple[tuple[int, str, int], ...] = setting(
        "controller.rpc.endpoints",
        "ID@host:port of the CONTROLLER listener of every controller, with the address to which brokers connect.",
        default=(),
        parse=parse_endpoints,
    )
    listeners: tuple[ListenerAddress, ...] = setting(
        "listeners",
        "NAME://host:port of the two listeners RAFT (for voters) and CONTROLLER (for brokers). "
        "Port 0: any free port.",
        default=parse_listeners("RAFT://127.0.0.1:9095,CONTROLLER://127.0.0.1:9094"),
        parse=parse_listeners,
    )
    storage_format_if_empty: bool = setting(
        "storage.format.if.empty",
        "Format an empty data directory at the start. Use this only for a cluster on one machine: elsewhere a voter"
        " that lost its disk would restart without anybody noticing the loss.",
        default=False,
    )

    session_ms: int = setting(
        "broker.session.timeout.ms",
        "Time after which a broker is fenced if it sends no heartbeat.",
        default=3_000,
        unit="ms",
        minimum=100,
    )
    grace_ms: int = setting(
        "broker.stream.grace.ms",
        "Time after which a broker is fenced if its heartbeat stream broke and it has not opened a new one.",
        default=500,
        unit="ms",
        minimum=10,
    )
    election_timeout_ms: int = setting(
        "controller.quorum.election.timeout.ms",
        "Longest election timeout. A voter that receives no message from a leader for a random time between half of"
        " this value and the full value starts an election.",
        default=1_000,
        unit="ms",
        minimum=100,
        maximum=60_000,
    )
    snapshot_entries: int = setting(
        "metadata.log.max.entries.between.snapshots",
        "Number of metadata log entries after which a snapshot is written. The same number of older entries stays in"
        " the log, for controllers and brokers that are behind.",
        default=20_000,
        minimum=10,
    )
    snapshot_bytes_max: int = setting(
        SNAPSHOT_LIMIT_SETTING,
        "Largest metadata snapshot that is stored or accepted from the leader. Use the same value on every controller.",
        default=1 << 30,
        unit="bytes",
        minimum=1 << 20,
    )

    def check(self) -> None:
        """Raise `SettingsError` for settings that contradict each other."""
        names = {listener.name for listener in self.listeners}
        if names != {RAFT, CONTROLLER}:
            raise SettingsError(
                f"listeners has {', '.join(sorted(names)) or 'no listener'}, but a controller needs"
                f" exactly the listeners {RAFT} and {CONTROLLER}"
            )
        if self.node_id not in {node for node, _, _ in self.voters}:
            raise SettingsError(
                f"node.id {self.node_id} is not in controller.quorum.voters: correct node.id or"
                " controller.quorum.voters"
            )
        if not self.cluster_id.strip():
            raise SettingsError(
                "cluster.id is empty: set the id with which the cluster was formatted"
            )
        self.initial_configs()

    def listener(self, name: str) -> ListenerAddress:
        return next(listener for listener in self.listeners if listener.name == name)

    def initial_configs(self) -> tuple[tuple[str, str], ...]:
        """Return (name, value) of each cluster-wide config that is given as a setting.

        Raises `SettingsError` for a value that is not allowed.
        """
        configs = []
        for name in CLUSTER_CONFIGS:
            value: str = getattr(self, name.replace(".", "_"))
            if value == "":
                continue
            try:
                check_config(ConfigResourceType.BROKER, name, value)
            except ConfigError as error:
                raise SettingsError(str(error)) from None
            configs.append((name, value))
        return tuple(configs)

    def controller_settings(self) -> ControllerSettings:
        return ControllerSettings(
            cluster_id=self.cluster_id,
            session_ms=self.session_ms,
            grace_ms=self.grace_ms,
            initial_configs=self.initial_configs(),
            voters=tuple(ControllerId(node) for node, _, _ in self.voters),
        )

    def quorum_settings(self, *, insecure: bool) -> QuorumSettings:
        raft = self.listener(RAFT)
        shortest_ms = self.election_timeout_ms // 2
        timers = QuorumTimers(
            election_timeout_min_ms=shortest_ms,
            election_timeout_max_ms=self.election_timeout_ms,
            heartbeat_interval_ms=shortest_ms // 5,
            leader_fallback_ms=self.election_timeout_ms,
            tick_interval_ms=min(20, shortest_ms // 5),
        )
        tls = None
        if self.ssl_certificate:
            tls = QuorumTls(
                certificate_path=Path(self.ssl_certificate),
                key_path=Path(self.ssl_key),
                ca_path=Path(self.ssl_ca),
            )
        return QuorumSettings(
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            voters={node: (host, port) for node, host, port in self.voters},
            data_dir=self.log_dir,
            listen_host=raft.host,
            listen_port=raft.port,
            tls=tls,
            insecure=insecure,
            timers=timers,
            snapshot_interval_entries=self.snapshot_entries,
            snapshot_entries_min=self.snapshot_entries,
            snapshot_bytes_max=self.snapshot_bytes_max,
        )
