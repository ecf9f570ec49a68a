"""The admin as programs see it: the cluster itself; topics, groups and access by inheritance."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from odradek.admin.access_admin import AccessAdmin
from odradek.admin.admin_calls import check
from odradek.admin.descriptions import (
    BrokerDescription,
    ClusterDescription,
    FeatureDescription,
    ListenerDescription,
    LogDirDescription,
    QuorumDescription,
    Voter,
)
from odradek.admin.group_admin import GroupAdmin
from odradek.admin.topic_admin import TopicAdmin
from odradek.cluster.cluster import Cluster
from odradek.cluster.connect import connect
from odradek.cluster.metadata_cache import Broker, MetadataCache
from odradek.errors import error_of
from odradek.partitions import TopicPartition
from odradek.transports import methods
from odradek.transports.security import SaslCredentials, TlsOptions
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2

TIMEOUT_S: Final = 30.0


class Admin(TopicAdmin, GroupAdmin, AccessAdmin):
    """Administers a cluster: `client.admin`, or `async with Admin("host:9090") as admin:`.

    Each call goes to any broker, which passes it on to the active controller, and is repeated until
    `timeout_s` is up while none answers. Calls about one thing raise what went wrong; calls about several tell
    it per item.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        tls: TlsOptions | None = None,
        credentials: SaslCredentials | None = None,
        cluster: Cluster | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(
            connect(bootstrap, tls, credentials=credentials) if cluster is None else cluster,
            timeout_s,
        )
        self._owns_cluster = cluster is None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, if they are its own."""
        if self._owns_cluster:
            await self._cluster.close()

    async def list_brokers(self) -> list[Broker]:
        """The live brokers and where they listen, by id."""
        response = await self._call(methods.METADATA, broker_service_pb2.MetadataRequest())
        cache = MetadataCache()
        cache.apply(response)
        return [cache.brokers[broker_id] for broker_id in sorted(cache.brokers)]

    # --- configs ----------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster, its brokers fenced or not, its active controller."""
        response = await self._call(methods.DESCRIBE_CLUSTER, pb.DescribeClusterRequest())
        check(response.error_code, "describing the cluster")
        return ClusterDescription(
            cluster_id=response.cluster_id,
            active_controller_id=response.active_controller_id,
            controller_epoch=response.controller_epoch,
            controller_endpoints=tuple(response.controller_endpoints),
            brokers=tuple(_broker(b) for b in response.brokers),
        )

    async def describe_quorum(self) -> QuorumDescription:
        """The metadata quorum: its leader and term, and how far each member is."""
        answer = await self._call(methods.DESCRIBE_QUORUM, pb.DescribeMetadataQuorumRequest())
        told = answer.quorum
        check(told.error_code, "describing the metadata quorum")
        return QuorumDescription(
            leader_id=told.leader_id,
            term=told.term,
            commit_offset=told.commit_offset,
            answered_by=told.answered_by,
            voters=tuple(
                Voter(
                    controller_id=voter.controller_id,
                    endpoint=voter.endpoint,
                    log_end=voter.log_end if voter.log_end >= 0 else None,
                    heard_ms_ago=voter.last_heard_ms if voter.last_heard_ms >= 0 else None,
                )
                for voter in told.voters
            ),
        )

    async def describe_log_dirs(
        self, broker_ids: Sequence[int] = (), *, include_partitions: bool = False
    ) -> list[LogDirDescription]:
        """The data directories of these brokers, or of all; a broker that does not respond is an entry too."""
        response = await self._call(
            methods.DESCRIBE_LOG_DIRS,
            pb.DescribeLogDirsRequest(
                broker_ids=broker_ids,
                include_partitions=include_partitions,
                timeout_ms=self._timeout_ms // 2,
            ),
        )
        return [described for broker in response.brokers for described in _log_dirs(broker)]

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that will not come back."""
        response = await self._call(
            methods.UNREGISTER_BROKER, pb.UnregisterBrokerRequest(broker_id=broker_id)
        )
        check(response.error_code, f"broker {broker_id}", response.error_message)

    async def describe_features(self) -> list[FeatureDescription]:
        """The feature levels in use, and what the cluster's members support, by name."""
        response = await self._call(methods.DESCRIBE_FEATURES, pb.DescribeFeaturesRequest())
        return [
            FeatureDescription(
                name=feature.name,
                level=feature.level,
                level_min=feature.level_min,
                level_max=feature.level_max,
                level_common=feature.level_common,
                held_back_by=tuple(feature.held_back_by),
            )
            for feature in response.features
        ]

    async def update_feature(self, name: str, level: int, *, allow_downgrade: bool = False) -> None:
        """Raise, or lower, a feature level."""
        response = await self._call(
            methods.UPDATE_FEATURES,
            pb.UpdateFeaturesRequest(name=name, level=level, allow_downgrade=allow_downgrade),
        )
        check(response.error_code, f"feature {name!r}", response.error_message)

    # --- inside -----------------------------------------------------------------------------------


def _log_dirs(broker: pb.BrokerLogDirs) -> list[LogDirDescription]:
    if broker.error_code:
        error = error_of(broker.error_code, f"broker {broker.broker_id}", broker.error_message)
        return [LogDirDescription(broker_id=broker.broker_id, error=error)]
    return [
        LogDirDescription(
            broker_id=broker.broker_id,
            path=directory.path,
            offline_reason=directory.offline_reason,
            full_reason=directory.full_reason,
            stray_count=directory.stray_count,
            stray_bytes=directory.stray_bytes,
            total_bytes=directory.total_bytes if directory.total_bytes >= 0 else None,
            usable_bytes=directory.usable_bytes if directory.usable_bytes >= 0 else None,
            partition_bytes={
                TopicPartition(log.partition.topic, log.partition.partition): log.size_bytes
                for log in directory.partitions
            },
        )
        for directory in broker.log_dirs
    ]


def _broker(told: pb.ClusterBroker) -> BrokerDescription:
    return BrokerDescription(
        broker_id=told.broker_id,
        broker_epoch=told.broker_epoch,
        listeners=tuple(
            ListenerDescription(
                name=x.name, host=x.host, port=x.port, security_protocol=x.security_protocol
            )
            for x in told.listeners
        ),
        rack=told.rack,
        is_fenced=told.is_fenced,
        is_in_shutdown=told.is_in_shutdown,
        leader_count=told.leader_count,
    )
