"""The gRPC admin service of a controller, for brokers that forward the requests of their clients.

The broker has already authorized the client, so this service only checks that the caller is a broker or controller of
the cluster. On a controller that is not active, a call fails with FAILED_PRECONDITION, and the broker tries another
controller.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Concatenate, Final, ParamSpec, TypeVar

import grpc

from odradek_metadata_quorum.controller import (
    Decision,
    access,
    configs,
    features,
    leaders,
    partitions,
    registration,
    topics,
)
from odradek_metadata_quorum.controller.access import ScramDeletion, ScramUpsertion
from odradek_metadata_quorum.controller.configs import AlterConfigsRequest, AlterConfigsResource
from odradek_metadata_quorum.controller.requests import (
    BatchTooLarge,
    ElectLeadersRequest,
    TopicResult,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_metadata_quorum.rpc import wire_admin as wire
from odradek_metadata_quorum.rpc.controller_host import (
    ControllerHost,
    NotActive,
    Overloaded,
    Unconfirmed,
)
from odradek_metadata_quorum.rpc.peers import Context, Peers, refuse
from odradek_metadata_quorum.rpc.wire_admin import describe
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import cluster_config
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import ScramMechanism
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as pb_grpc
from odradek_protocol.rpc.v1 import common_pb2

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")
TopicsResponse = pb.CreateTopicsResponse | pb.DeleteTopicsResponse | pb.CreatePartitionsResponse
# The most items of one request.
ITEMS_MAX: Final = 20_000
# The most resources in one DescribeConfigs request. Each of them takes about 5 KB of the response.
DESCRIBED_MAX: Final = 2_000
# The number of items that are handled in one iteration of the event loop, which takes about 5 ms.
ITEMS_PER_TURN: Final = 500
ITEMS_PER_PIECE: Final = 100
DESCRIBED_PER_TURN: Final = 20


class AdminServicer(pb_grpc.AdminServiceServicer):
    """The admin service of one member of the quorum."""

    def __init__(
        self,
        host: ControllerHost,
        peers: Peers,
        cluster_id: str,
        describe_members: Callable[[], tuple[int, list[str]]],
    ) -> None:
        """`describe_members` returns the id of the active controller (-1: unknown) and the addresses of all
        controllers.
        """
        self._host = host
        self._peers = peers
        self._cluster_id = cluster_id
        self._describe_members = describe_members

    async def CreateTopics(
        self, request: pb.CreateTopicsRequest, context: Context
    ) -> pb.CreateTopicsResponse:
        """Create topics. A long request is decided in several batches. Respond once all of them are committed."""
        await self._bounded(context, len(request.topics))
        partitions_default = cluster_config(self._host.controller.image, "num.partitions")
        assert isinstance(partitions_default, int)
        counts: list[int] = []
        names: Counter[str] = Counter()
        async for topic in in_turns(request.topics):
            counts.append(wire.partition_count(topic, partitions_default))
            names[topic.name] += 1
        repeated = frozenset(name for name, count in names.items() if count > 1)
        pieces = wire.create_topics_pieces(request, counts, repeated)
        response = pb.CreateTopicsResponse()
        await self._decide_each(context, topics.create_topics, pieces, response)
        return response

    async def DeleteTopics(
        self, request: pb.DeleteTopicsRequest, context: Context
    ) -> pb.DeleteTopicsResponse:
        """Delete topics. A long request is decided in several batches. Respond once all of them are committed."""
        await self._bounded(context, len(request.names) + len(request.topic_ids))
        pieces = wire.delete_topics_pieces(request)
        response = pb.DeleteTopicsResponse()
        await self._decide_each(context, topics.delete_topics, pieces, response)
        return response

    async def CreatePartitions(
        self, request: pb.CreatePartitionsRequest, context: Context
    ) -> pb.CreatePartitionsResponse:
        """Add partitions. A long request is decided in several batches. Respond once all of them are committed."""
        await self._bounded(context, len(request.topics))
        pieces = wire.create_partitions_pieces(request, self._host.controller.image)
        response = pb.CreatePartitionsResponse()
        await self._decide_each(context, topics.create_partitions, pieces, response)
        return response

    async def ElectLeaders(
        self, request: pb.ElectLeadersRequest, context: Context
    ) -> pb.ElectLeadersResponse:
        """Elect leaders. Respond once the elections are committed."""
        await self._bounded(context, len(request.partitions))
        unclean = await self._parsed(context, lambda: wire.is_unclean(request))
        partitions = [wire.partition(item) async for item in in_turns(request.partitions)]
        # A request that names no partitions is one piece, which applies to all partitions.
        pieces = [
            ElectLeadersRequest(unclean=unclean, partitions=tuple(piece))
            for piece in _pieces(partitions)
        ]
        outcomes, offset = await self._decide_pieces(context, leaders.elect_leaders, pieces)
        response = pb.ElectLeadersResponse(metadata_offset=offset)
        async for outcome in in_turns(outcomes):
            response.partitions.append(wire.partition_result(outcome))
        return response

    async def AlterPartitionReassignments(
        self, request: pb.AlterPartitionReassignmentsRequest, context: Context
    ) -> pb.AlterPartitionReassignmentsResponse:
        """Begin or cancel moves of partitions. Respond once the changes are committed; the moves
        continue after that.
        """
        await self._bounded(context, len(request.reassignments))
        reassignments = [wire.reassignment(item) async for item in in_turns(request.reassignments)]
        outcomes, offset = await self._decide_pieces(
            context,
            partial(
                partitions.alter_reassignments,
                keep_replication_factor=request.keep_replication_factor,
            ),
            _pieces(reassignments),
        )
        response = pb.AlterPartitionReassignmentsResponse(metadata_offset=offset)
        async for outcome in in_turns(outcomes):
            response.partitions.append(wire.partition_result(outcome))
        return response

    async def DeleteRecords(
        self, request: pb.DeleteRecordsRequest, context: Context
    ) -> pb.DeleteRecordsResponse:
        """Refuse the call. The leaders of the partitions delete the records, and brokers forward the call to them."""
        await refuse(
            context,
            grpc.StatusCode.UNIMPLEMENTED,
            "only brokers serve this call, because partition leaders delete the records: send it to a broker",
        )

    async def DescribeConfigs(
        self, request: pb.DescribeConfigsRequest, context: Context
    ) -> pb.DescribeConfigsResponse:
        """Describe the configs that can be changed at run time."""
        await self._bounded(context, len(request.resources), DESCRIBED_MAX)
        image = await self._image(context)
        response = pb.DescribeConfigsResponse()
        async for resource in in_turns(request.resources, DESCRIBED_PER_TURN):
            response.resources.append(
                describe(image, resource, with_documentation=request.include_documentation)
            )
        return response

    async def AlterConfigs(
        self, request: pb.AlterConfigsRequest, context: Context
    ) -> pb.AlterConfigsResponse:
        """Change configs. Respond once the changes are committed."""
        await self._bounded(context, len(request.resources))
        resources: list[AlterConfigsResource] = []
        try:
            async for item in in_turns(request.resources):
                operations = [wire.operation(o) async for o in in_turns(item.operations)]
                resources.append(wire.alter_configs_resource(item, operations))
        except wire.BadRequest as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        named = Counter((item.resource_type, item.resource_name) for item in resources)
        repeated = frozenset(resource for resource, count in named.items() if count > 1)
        pieces = [
            AlterConfigsRequest(
                resources=tuple(piece), repeated=repeated, validate_only=request.validate_only
            )
            for piece in _pieces(resources)
        ]
        outcomes, offset = await self._decide_pieces(context, configs.alter_configs, pieces)
        response = pb.AlterConfigsResponse(metadata_offset=offset)
        async for item, outcome in in_turns(zip(request.resources, outcomes, strict=True)):
            response.resources.add(
                type=item.type,
                name=item.name,
                error_code=outcome.error,
                error_message=outcome.message,
            )
        return response

    async def UpdateFeatures(
        self, request: pb.UpdateFeaturesRequest, context: Context
    ) -> pb.UpdateFeaturesResponse:
        """Set the level of a feature. Respond once the change is committed."""
        decision = await self._decide(
            context,
            features.update_feature,
            request.name,
            request.level,
            allow_downgrade=request.allow_downgrade,
        )
        return pb.UpdateFeaturesResponse(
            error_code=decision.response.error,
            error_message=decision.response.message,
            metadata_offset=decision.offset,
        )

    async def DescribeFeatures(
        self, request: pb.DescribeFeaturesRequest, context: Context
    ) -> pb.DescribeFeaturesResponse:
        """Describe the levels of all features. The result includes all changes before this call."""
        decision = await self._decide(context, features.describe_features)
        return pb.DescribeFeaturesResponse(
            features=[
                pb.FeatureDescription(
                    name=feature.name,
                    level=feature.level,
                    level_min=feature.level_min,
                    level_max=feature.level_max,
                    level_common=feature.level_common,
                    held_back_by=feature.held_back_by,
                )
                for feature in decision.response
            ],
            metadata_offset=decision.offset,
        )

    async def CreateAcls(
        self, request: pb.CreateAclsRequest, context: Context
    ) -> pb.CreateAclsResponse:
        """Add access control entries. Respond once they are committed."""
        await self._bounded(context, len(request.entries))
        entries = [wire.acl_entry(entry) async for entry in in_turns(request.entries)]
        outcomes, offset = await self._decide_pieces(context, access.create_acls, _pieces(entries))
        response = pb.CreateAclsResponse(metadata_offset=offset)
        async for outcome in in_turns(outcomes):
            response.results.append(wire.item_result(outcome))
        return response

    async def DeleteAcls(
        self, request: pb.DeleteAclsRequest, context: Context
    ) -> pb.DeleteAclsResponse:
        """Delete access control entries. Respond once the deletions are committed."""
        await self._bounded(context, len(request.filters))
        filters = [wire.acl_entry(item) async for item in in_turns(request.filters)]
        looks = access.Looks()
        count = access.filters_per_piece(self._host.controller.image, ITEMS_PER_PIECE)
        results, offset = await self._decide_pieces(
            context, partial(access.delete_acls, looks=looks), _pieces(filters, count)
        )
        response = pb.DeleteAclsResponse(metadata_offset=offset)
        async for outcome, deleted in in_turns(results):
            result = response.results.add(error_code=outcome.error, error_message=outcome.message)
            async for entry in in_turns(deleted):
                result.deleted.append(wire.acl_message(entry))
        return response

    async def DescribeAcls(
        self, request: pb.DescribeAclsRequest, context: Context
    ) -> pb.DescribeAclsResponse:
        """List the access control entries that match the filter."""
        image = await self._image(context)
        filter_ = wire.acl_entry(request.filter)
        response = pb.DescribeAclsResponse()
        async for record in in_turns(list(image.acls.values())):
            if access.matches(filter_, record):
                response.entries.append(wire.acl_message(access.content(record)))
        return response

    async def AlterScramUsers(
        self, request: pb.AlterScramUsersRequest, context: Context
    ) -> pb.AlterScramUsersResponse:
        """Set and remove SCRAM credentials. Respond once the changes are committed."""
        await self._bounded(context, len(request.upsertions) + len(request.deletions))
        by_user: dict[str, list[ScramUpsertion | ScramDeletion]] = {}
        async for upsertion in in_turns(request.upsertions):
            by_user.setdefault(upsertion.name, []).append(wire.scram_upsertion(upsertion))
        async for deletion in in_turns(request.deletions):
            by_user.setdefault(deletion.name, []).append(wire.scram_deletion(deletion))
        # If one item of a user fails, none of the user's items takes effect. So all items of a user are in one piece.
        pieces = (
            [item for items in piece for item in items] for piece in _pieces(list(by_user.values()))
        )
        outcomes, offset = await self._decide_pieces(context, access.alter_scram_users, pieces)
        response = pb.AlterScramUsersResponse(metadata_offset=offset)
        async for user, outcome in in_turns(outcomes):
            response.results.add(name=user, error_code=outcome.error, error_message=outcome.message)
        return response

    async def DescribeScramUsers(
        self, request: pb.DescribeScramUsersRequest, context: Context
    ) -> pb.DescribeScramUsersResponse:
        """List users with their SCRAM mechanisms and iterations. Salts and keys are not returned."""
        image = await self._image(context)
        return await _scram_users(image, list(request.names))

    async def AlterQuotas(
        self, request: pb.AlterQuotasRequest, context: Context
    ) -> pb.AlterQuotasResponse:
        """Set and remove client quotas. Respond once the changes are committed."""
        await self._bounded(context, len(request.entries))
        alterations = [wire.quota_alteration(entry) async for entry in in_turns(request.entries)]
        outcomes, offset = await self._decide_pieces(
            context,
            partial(access.alter_quotas, validate_only=request.validate_only),
            _pieces(alterations),
        )
        response = pb.AlterQuotasResponse(metadata_offset=offset)
        async for outcome in in_turns(outcomes):
            response.results.append(wire.item_result(outcome))
        return response

    async def DescribeQuotas(
        self, request: pb.DescribeQuotasRequest, context: Context
    ) -> pb.DescribeQuotasResponse:
        """List all client quotas."""
        image = await self._image(context)
        response = pb.DescribeQuotasResponse()
        quotas = [(entity, dict(values)) for entity, values in image.quotas.items()]
        async for entity, values in in_turns(quotas):
            for key, value in sorted(values.items()):
                response.entries.append(wire.quota_message(entity, key, value))
        return response

    async def UnregisterBroker(
        self, request: pb.UnregisterBrokerRequest, context: Context
    ) -> pb.UnregisterBrokerResponse:
        """Remove a broker's registration. Respond once the removal is committed."""
        decision = await self._decide(context, registration.unregister, BrokerId(request.broker_id))
        return pb.UnregisterBrokerResponse(
            error_code=decision.response.error,
            error_message=decision.response.message,
            metadata_offset=decision.offset,
        )

    async def DescribeMetadataQuorum(
        self, request: pb.DescribeMetadataQuorumRequest, context: Context
    ) -> pb.DescribeMetadataQuorumResponse:
        """Refuse the call, because only brokers serve it. A broker gets the data by ControllerService.DescribeQuorum of
        a controller.
        """
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED, "only brokers serve this call: send it to a broker"
        )
        raise AssertionError("`context.abort` returned, but it must raise")

    async def DescribeLogDirs(
        self, request: pb.DescribeLogDirsRequest, context: Context
    ) -> pb.DescribeLogDirsResponse:
        """Refuse the call, because only brokers know their data directories."""
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED, "only brokers serve this call: send it to a broker"
        )
        raise AssertionError("`context.abort` returned, but it must raise")

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Context
    ) -> pb.DescribeClusterResponse:
        """Describe the brokers, including fenced ones, and the controllers."""
        image = await self._image(context)
        active_id, endpoints = self._describe_members()
        led = Counter(state.leader for state in image.partitions())
        return pb.DescribeClusterResponse(
            cluster_id=self._cluster_id,
            brokers=[
                pb.ClusterBroker(
                    broker_id=broker.broker_id,
                    broker_epoch=broker.broker_epoch,
                    listeners=[
                        common_pb2.Listener(
                            name=endpoint.name,
                            host=endpoint.host,
                            port=endpoint.port,
                            security_protocol=endpoint.security_protocol,
                        )
                        for endpoint in broker.endpoints
                    ],
                    rack=broker.rack or "",
                    is_fenced=broker.fenced,
                    is_in_shutdown=broker.in_shutdown,
                    leader_count=led[broker.broker_id],
                    host_id=broker.host_id or "",
                )
                for _, broker in sorted(image.brokers.items())
            ],
            active_controller_id=active_id,
            controller_epoch=image.epoch,
            controller_endpoints=endpoints,
        )

    async def _image(self, context: Context) -> MetadataImage:
        """Return the committed image, after a majority has confirmed that this controller is still active."""
        return (await self._decide(context, lambda work: work.committed)).response

    async def _decide(
        self,
        context: Context,
        handler: Callable[Concatenate[Workspace, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Decision[T]:
        await self._peers.require_member(context)
        return await _judged(context, self._host.decide(handler, *args, **kwargs))

    async def _decide_each(
        self,
        context: Context,
        handler: Callable[[Workspace, Q], tuple[TopicResult, ...]],
        pieces: Iterable[Q],
        response: TopicsResponse,
    ) -> None:
        """Decide the pieces of a request about topics, and add their results to the response."""
        results, offset = await self._decide_pieces(context, handler, pieces)
        response.metadata_offset = offset
        async for result in in_turns(results):
            response.topics.append(wire.topic_result(result))

    async def _decide_pieces(
        self, context: Context, handler: Callable[[Workspace, Q], Sequence[R]], pieces: Iterable[Q]
    ) -> tuple[list[R], int]:
        """Decide the pieces of a request. Return all results, and the highest metadata offset of the decisions."""
        await self._peers.require_member(context)
        decisions = await _judged(context, self._host.decide_each(handler, pieces))
        results = [result for decision in decisions for result in decision.response]
        return results, max(decision.offset for decision in decisions)

    async def _bounded(self, context: Context, count: int, count_max: int = ITEMS_MAX) -> None:
        """End the call with an error if the caller is not a broker or controller of the cluster, or if the request has
        more than `count_max` items.
        """
        await self._peers.require_member(context)
        if count > count_max:
            message = f"the request has {count} items, but at most {count_max} are allowed: send several requests"
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, message)

    async def _parsed(self, context: Context, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except wire.BadRequest as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def _judged(context: Context, deciding: Awaitable[D]) -> D:
    """Return the result of awaiting `deciding`. If the controller cannot decide, end the call with a gRPC status."""
    try:
        return await deciding
    except NotActive as error:
        await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, f"NOT_CONTROLLER: {error}")
    except (Overloaded, Unconfirmed) as error:
        await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
    except BatchTooLarge as error:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def _scram_users(image: MetadataImage, names: list[str]) -> pb.DescribeScramUsersResponse:
    scram = image.scram.copy()
    response = pb.DescribeScramUsersResponse()
    async for name in in_turns(names or sorted({user for user, _ in scram})):
        result = response.users.add(name=name)
        for mechanism in ScramMechanism:
            if (credential := scram.get((name, mechanism))) is not None:
                result.credentials.add(mechanism=mechanism, iterations=credential.iterations)
        if not result.credentials:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"user {name} has no SCRAM credential"
    return response


async def in_turns(items: Iterable[T], count: int = ITEMS_PER_TURN) -> AsyncIterator[T]:
    """Yield the items of a request or response. Other tasks can run after every `count` items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % count == 0:
            await asyncio.sleep(0)


def _pieces(items: Sequence[T], count: int = ITEMS_PER_PIECE) -> Iterator[Sequence[T]]:
    """Yield the items of a request in pieces of at most `count` items. A request without items has one empty piece."""
    for start in range(0, max(len(items), 1), count):
        yield items[start : start + count]
