"""All transactional components of one broker: its coordinator, and the client and server sides of the streams between
brokers.

coordinator    coordinates transactional ids, and sends markers to partition leaders
registrar      sends registrations of this broker's partition leaders to the coordinators
offsets        commits offsets in transactions
resolver       asks all coordinators about open transactions that seem to hang
registrations  handles registrations from partition leaders on other brokers
markers        handles markers from coordinators on other brokers
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from odradek_broker.cluster.producer_ids import ProducerIdSource
from odradek_broker.cluster.topic_creation import TopicCreation
from odradek_broker.coordination.connection_order import ConnectionNumbers
from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.link_sessions import LinkSessions
from odradek_broker.coordination.local_markers import LocalMarkers
from odradek_broker.coordination.peer_streams import DialLink, LinkKind, PeerStreams
from odradek_broker.coordination.producer_resolver import CallResolve, LinkedProducerResolver
from odradek_broker.coordination.registrar import Registrar, respond_to_registration
from odradek_broker.coordination.transaction_coordinator import TransactionCoordinator
from odradek_broker.coordination.transactional_offsets import TransactionalOffsets
from odradek_broker.partition.marker_writes import CoordinatorEpochs
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import BrokerEpoch, BrokerId, ClusterId
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_runtime.clock import Clock


class TransactionRuntime:
    """All transactional components of one broker. Run `run()` in a task group, and call all other methods on its event
    loop.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cluster_id: ClusterId,
        settings: BrokerSettings,
        partitions: LocalPartitions,
        groups: GroupCoordinator,
        topic_creation: TopicCreation,
        producer_ids: ProducerIdSource,
        coordinator_epochs: CoordinatorEpochs,
        endpoint_of: Callable[[BrokerId], tuple[str, int] | None],
        dial: DialLink,
        call_resolve: CallResolve,
        clock: Clock,
    ) -> None:
        self.connection_numbers = ConnectionNumbers()
        self._marker_streams: PeerStreams[pb.MarkEntry, pb.MarkResult] = PeerStreams(
            LinkKind.MARK,
            cluster_id=cluster_id,
            broker_id=broker_id,
            endpoint_of=endpoint_of,
            dial=dial,
            encode=encode_marker_request,
            decode=decode_marker_response,
        )
        self._registration_streams: PeerStreams[pb.RegisterEntry, pb.RegisterResult] = PeerStreams(
            LinkKind.REGISTER,
            cluster_id=cluster_id,
            broker_id=broker_id,
            endpoint_of=endpoint_of,
            dial=dial,
            encode=encode_registration_request,
            decode=decode_registration_response,
        )
        local_markers = LocalMarkers(
            partitions=partitions,
            groups=groups,
            coordinator_epochs=coordinator_epochs,
        )
        self.coordinator = TransactionCoordinator(
            broker_id=broker_id,
            settings=settings,
            partitions=partitions,
            topic_creation=topic_creation,
            producer_ids=producer_ids,
            marker_streams=self._marker_streams,
            write_marker_here=local_markers.write,
            connection_numbers=self.connection_numbers,
            clock=clock,
        )
        self.registrar = Registrar(
            broker_id=broker_id,
            coordinator=self.coordinator,
            streams=self._registration_streams,
            clock=clock,
        )
        self.offsets = TransactionalOffsets(
            groups=groups,
            registrar=self.registrar,
            partitions=partitions,
            coordinator_epochs=coordinator_epochs,
            connection_numbers=self.connection_numbers,
            timeout_ms=settings.transaction_verification_timeout_ms,
            clock=clock,
        )
        self.resolver = LinkedProducerResolver(
            broker_id=broker_id,
            cluster_id=cluster_id,
            coordinator=self.coordinator,
            partitions=partitions,
            endpoint_of=endpoint_of,
            call=call_resolve,
        )
        self.registrations: LinkSessions[pb.RegisterEntry, pb.RegisterResult] = LinkSessions(
            cluster_id=cluster_id,
            decode=decode_registration_request,
            encode=encode_registration_response,
            handle=partial(respond_to_registration, self.coordinator),
        )
        self.markers: LinkSessions[pb.MarkEntry, pb.MarkResult] = LinkSessions(
            cluster_id=cluster_id,
            decode=decode_marker_request,
            encode=encode_marker_response,
            handle=local_markers.respond,
        )

    async def run(self) -> None:
        """Run the coordinators and the streams to other brokers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.coordinator.run(), name="transaction coordinator")
            tasks.create_task(self._marker_streams.run(), name="marker streams")
            tasks.create_task(self._registration_streams.run(), name="registration streams")

    def registered(self, epoch: BrokerEpoch) -> None:
        """Use this broker epoch for all streams to other brokers that are opened from now on."""
        self._marker_streams.broker_epoch = epoch
        self._registration_streams.broker_epoch = epoch


def encode_marker_request(
    hello: pb.TransactionLinkHello | None, entries: Iterable[pb.MarkEntry]
) -> bytes:
    return pb.WriteMarkersRequest(hello=hello, entries=entries).SerializeToString()


def decode_marker_response(message: bytes) -> Iterable[pb.MarkResult]:
    return pb.WriteMarkersResponse.FromString(message).results


def decode_marker_request(
    message: bytes,
) -> tuple[pb.TransactionLinkHello | None, Iterable[pb.MarkEntry]]:
    request = pb.WriteMarkersRequest.FromString(message)
    return request.hello if request.HasField("hello") else None, request.entries


def encode_marker_response(results: Iterable[pb.MarkResult]) -> bytes:
    return pb.WriteMarkersResponse(results=results).SerializeToString()


def encode_registration_request(
    hello: pb.TransactionLinkHello | None, entries: Iterable[pb.RegisterEntry]
) -> bytes:
    return pb.RegisterPartitionsRequest(hello=hello, entries=entries).SerializeToString()


def decode_registration_response(message: bytes) -> Iterable[pb.RegisterResult]:
    return pb.RegisterPartitionsResponse.FromString(message).results


def decode_registration_request(
    message: bytes,
) -> tuple[pb.TransactionLinkHello | None, Iterable[pb.RegisterEntry]]:
    request = pb.RegisterPartitionsRequest.FromString(message)
    return request.hello if request.HasField("hello") else None, request.entries


def encode_registration_response(results: Iterable[pb.RegisterResult]) -> bytes:
    return pb.RegisterPartitionsResponse(results=results).SerializeToString()
