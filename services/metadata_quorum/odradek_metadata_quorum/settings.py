"""A controller process's settings, under Kafka's names where Kafka has one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odradek_metadata_quorum.controller import ControllerSettings
from odradek_metadata_quorum.quorum import QuorumSettings, QuorumTimers, QuorumTls
from odradek_metadata_quorum.quorum.settings import SNAPSHOT_LIMIT_SETTING
from odradek_protocol.identity import ControllerId
from odradek_protocol.metadata.config_definition import ConfigError
from odradek_protocol.metadata.configs import check_config
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_runtime.listeners import ListenerAddress, parse_endpoints, parse_listeners
from odradek_runtime.settings import NodeSettings, SettingsError, setting, specs_of

ENV_PREFIX: Final = "ODRADEK_QUORUM_"
RAFT: Final = "RAFT"
CONTROLLER: Final = "CONTROLLER"
_CLUSTER_DEFAULT: Final = " A cluster's first start makes it the default of all brokers."


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumProcessSettings(NodeSettings):
    """Everything that can be set in a controller process."""

    node_id: int = setting(
        "node.id",
        "Id of this controller, unique among the voters.",
        minimum=0,
        maximum=(1 << 31) - 1,
    )
    cluster_id: str = setting("cluster.id", "Id of the cluster, the same in all its processes.")
    log_dir: Path = setting("log.dirs", "The data directory.", aliases=("metadata.log.dir",))
    voters: tuple[tuple[int, str, int], ...] = setting(
        "controller.quorum.voters",
        "ID@host:port of every voter's RAFT listener, this one's too.",
        parse=parse_endpoints,
    )
    rpc_endpoints: tuple[tuple[int, str, int], ...] = setting(
        "controller.rpc.endpoints",
        "ID@host:port of every controller's gRPC service, as brokers dial it.",
        default=(),
        parse=parse_endpoints,
    )
    listeners: tuple[ListenerAddress, ...] = setting(
        "listeners",
        "NAME://host:port of RAFT (voters) and CONTROLLER (brokers); port 0: any free one.",
        default=parse_listeners("RAFT://127.0.0.1:9095,CONTROLLER://127.0.0.1:9094"),
        parse=parse_listeners,
    )
    storage_format_if_empty: bool = setting(
        "storage.format.if.empty",
        "Format an empty data directory by itself. For a cluster on one machine: a voter that lost "
        "its disk should not come back unseen.",
        default=False,
    )

    session_ms: int = setting(
        "broker.session.timeout.ms",
        "Silence after which a broker is fenced.",
        default=3_000,
        unit="ms",
        minimum=100,
    )
    grace_ms: int = setting(
        "broker.stream.grace.ms",
        "Time that a broker has to come back after its heartbeat stream broke.",
        default=500,
        unit="ms",
        minimum=10,
    )
    election_timeout_ms: int = setting(
        "controller.quorum.election.timeout.ms",
        "Longest wait of a voter for its leader before an election; the shortest is half of it.",
        default=1_000,
        unit="ms",
        minimum=100,
        maximum=60_000,
    )
    snapshot_entries: int = setting(
        "metadata.log.max.entries.between.snapshots",
        "Entries after which a snapshot is taken; as many stay in the log behind it.",
        default=20_000,
        minimum=10,
    )
    snapshot_bytes_max: int = setting(
        SNAPSHOT_LIMIT_SETTING,
        "Largest snapshot that is stored, or taken from the leader; the same on every controller.",
        default=1 << 30,
        unit="bytes",
        minimum=1 << 20,
    )

    num_partitions: str = setting(
        "num.partitions",
        "Partitions of topics made without a count." + _CLUSTER_DEFAULT,
        default="",
    )
    default_replication_factor: str = setting(
        "default.replication.factor",
        "Replicas of topics made without a count." + _CLUSTER_DEFAULT,
        default="",
    )
    min_insync_replicas: str = setting(
        "min.insync.replicas",
        "In-sync replicas that acks=all needs." + _CLUSTER_DEFAULT,
        default="",
    )
    auto_create_topics_enable: str = setting(
        "auto.create.topics.enable",
        "Whether a topic that a client asks for is created." + _CLUSTER_DEFAULT,
        default="",
    )
    unclean_leader_election_enable: str = setting(
        "unclean.leader.election.enable",
        "Whether a replica that may lack records may lead." + _CLUSTER_DEFAULT,
        default="",
    )
    auto_leader_rebalance_enable: str = setting(
        "auto.leader.rebalance.enable",
        "Whether leaderships go back by themselves." + _CLUSTER_DEFAULT,
        default="",
    )
    leader_imbalance_check_interval_seconds: str = setting(
        "leader.imbalance.check.interval.seconds",
        "How often the preferred leaders are looked at, in s." + _CLUSTER_DEFAULT,
        default="",
    )
    leader_imbalance_per_broker_percentage: str = setting(
        "leader.imbalance.per.broker.percentage",
        "Share of preferred leaderships that may be elsewhere, in %." + _CLUSTER_DEFAULT,
        default="",
    )
    unclean_recovery_wait_ms: str = setting(
        "unclean.recovery.wait.ms",
        "How long to wait for good replicas before an unclean election, in ms." + _CLUSTER_DEFAULT,
        default="",
    )

    def check(self) -> None:
        """Raise `SettingsError` for what does not fit together."""
        names = {listener.name for listener in self.listeners}
        if names != {RAFT, CONTROLLER}:
            raise SettingsError(
                f"listeners names {', '.join(sorted(names)) or 'none'}: a controller has exactly "
                f"{RAFT} and {CONTROLLER}"
            )
        if self.node_id not in {node for node, _, _ in self.voters}:
            raise SettingsError(
                f"node.id {self.node_id} is not in controller.quorum.voters: add it there, or give "
                "this process the id of a voter"
            )
        if not self.cluster_id.strip():
            raise SettingsError("cluster.id is empty: take the one the cluster was formatted with")
        self.initial_configs()

    def listener(self, name: str) -> ListenerAddress:
        """The listener of this name."""
        return next(listener for listener in self.listeners if listener.name == name)

    def initial_configs(self) -> tuple[tuple[str, str], ...]:
        """The cluster's defaults that were set; raises `SettingsError` for a bad value."""
        found = []
        for name, (field, spec) in specs_of(QuorumProcessSettings).items():
            value = getattr(self, field.name)
            if value == "" or not spec.doc.endswith(_CLUSTER_DEFAULT):
                continue
            try:
                check_config(ConfigResourceType.BROKER, name, value)
            except ConfigError as error:
                raise SettingsError(str(error)) from None
            found.append((name, value))
        return tuple(found)

    def controller_settings(self) -> ControllerSettings:
        """What the controller is told."""
        return ControllerSettings(
            cluster_id=self.cluster_id,
            session_ms=self.session_ms,
            grace_ms=self.grace_ms,
            initial_configs=self.initial_configs(),
            voters=tuple(ControllerId(node) for node, _, _ in self.voters),
        )

    def quorum_settings(self, *, insecure: bool) -> QuorumSettings:
        """What the quorum is told."""
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
