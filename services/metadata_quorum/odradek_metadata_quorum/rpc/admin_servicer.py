"""The admin service of a controller, for brokers that forward the requests of their clients.

The brokers have authorized the client; here only members of the cluster may call. At a member that is
not the active controller a call ends with FAILED_PRECONDITION, and the broker tries another member.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
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
from odradek_metadata_quorum.controller.requests import BatchTooLarge, TopicResult
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
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as pb_grpc
from odradek_protocol.rpc.v1 import common_pb2

P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")
D = TypeVar("D")
TopicsResponse = pb.CreateTopicsResponse | pb.DeleteTopicsResponse | pb.CreatePartitionsResponse
# Items of one request: the event loop does nothing else while a request is decided.
ITEMS_MAX: Final = 20_000
# Resources whose configs one response describes, with some 5 KB each.
DESCRIBED_MAX: Final = 2_000


class AdminServicer(pb_grpc.AdminServiceServicer):
    """The admin service of one member of the quorum."""

    def __init__(
        self,
        host: ControllerHost,
        peers: Peers,
        cluster_id: str,
        describe_members: Callable[[], tuple[int, list[str]]],
    ) -> None:
        """`describe_members` returns the active controller's id (-1: unknown) and the endpoints of all members."""
        self._host = host
        self._peers = peers
        self._cluster_id = cluster_id
        self._describe_members = describe_members

    async def CreateTopics(
        self, request: pb.CreateTopicsRequest, context: Context
    ) -> pb.CreateTopicsResponse:
        """Create topics, many of them in several batches; respond once all are committed."""
        await self._bounded(context, len(request.topics))
        partitions_default = cluster_config(self._host.controller.image, "num.partitions")
        assert isinstance(partitions_default, int)
        pieces = wire.create_topics_pieces(request, partitions_default)
        response = pb.CreateTopicsResponse()
        await self._decide_each(context, topics.create_topics, pieces, response)
        return response

    async def DeleteTopics(
        self, request: pb.DeleteTopicsRequest, context: Context
    ) -> pb.DeleteTopicsResponse:
        """Delete topics, many of them in several batches; respond once that is committed."""
        await self._bounded(context, len(request.names) + len(request.topic_ids))
        pieces = wire.delete_topics_pieces(request)
        response = pb.DeleteTopicsResponse()
        await self._decide_each(context, topics.delete_topics, pieces, response)
        return response

    async def CreatePartitions(
        self, request: pb.CreatePartitionsRequest, context: Context
    ) -> pb.CreatePartitionsResponse:
        """Add partitions, many of them in several batches; respond once they are committed."""
        await self._bounded(context, len(request.topics))
        pieces = wire.create_partitions_pieces(request, self._host.controller.image)
        response = pb.CreatePartitionsResponse()
        await self._decide_each(context, topics.create_partitions, pieces, response)
        return response

    async def ElectLeaders(
        self, request: pb.ElectLeadersRequest, context: Context
    ) -> pb.ElectLeadersResponse:
        """Elect leaders; respond once the elections are committed."""
        await self._bounded(context, len(request.partitions))
        wanted = await self._parsed(context, lambda: wire.elect_leaders_request(request))
        decision = await self._decide(context, leaders.elect_leaders, wanted)
        return pb.ElectLeadersResponse(
            partitions=map(wire.partition_result, decision.response),
            metadata_offset=decision.offset,
        )

    async def AlterPartitionReassignments(
        self, request: pb.AlterPartitionReassignmentsRequest, context: Context
    ) -> pb.AlterPartitionReassignmentsResponse:
        """Begin or cancel reassignments; respond once that is committed."""
        await self._bounded(context, len(request.reassignments))
        decision = await self._decide(
            context,
            partitions.alter_reassignments,
            wire.reassignments(request),
            keep_replication_factor=request.keep_replication_factor,
        )
        return pb.AlterPartitionReassignmentsResponse(
            partitions=map(wire.partition_result, decision.response),
            metadata_offset=decision.offset,
        )

    async def DeleteRecords(
        self, request: pb.DeleteRecordsRequest, context: Context
    ) -> pb.DeleteRecordsResponse:
        """Refuse: the partitions' leaders delete records, and brokers send this to them."""
        await refuse(
            context,
            grpc.StatusCode.UNIMPLEMENTED,
            "records are deleted by the partitions' leaders: send this to a broker",
        )

    async def DescribeConfigs(
        self, request: pb.DescribeConfigsRequest, context: Context
    ) -> pb.DescribeConfigsResponse:
        """Describe the configs that can be altered."""
        await self._bounded(context, len(request.resources), DESCRIBED_MAX)
        image = await self._image(context)
        return pb.DescribeConfigsResponse(
            resources=[
                describe(image, resource, with_documentation=request.include_documentation)
                for resource in request.resources
            ]
        )

    async def AlterConfigs(
        self, request: pb.AlterConfigsRequest, context: Context
    ) -> pb.AlterConfigsResponse:
        """Alter configs; respond once the changes are committed."""
        await self._bounded(context, len(request.resources))
        wanted = await self._parsed(context, lambda: wire.alter_configs_request(request))
        decision = await self._decide(context, configs.alter_configs, wanted)
        return pb.AlterConfigsResponse(
            resources=[
                pb.ConfigResourceResult(
                    type=resource.type,
                    name=resource.name,
                    error_code=outcome.error,
                    error_message=outcome.message,
                )
                for resource, outcome in zip(request.resources, decision.response, strict=True)
            ],
            metadata_offset=decision.offset,
        )

    async def UpdateFeatures(
        self, request: pb.UpdateFeaturesRequest, context: Context
    ) -> pb.UpdateFeaturesResponse:
        """Set a feature's level; respond once that is committed."""
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
        """Return the levels as decided before this call."""
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
        """Add access control entries; respond once they are committed."""
        await self._bounded(context, len(request.entries))
        entries = tuple(map(wire.acl_entry, request.entries))
        decision = await self._decide(context, access.create_acls, entries)
        return pb.CreateAclsResponse(
            results=wire.item_results(decision.response), metadata_offset=decision.offset
        )

    async def DeleteAcls(
        self, request: pb.DeleteAclsRequest, context: Context
    ) -> pb.DeleteAclsResponse:
        """Delete access control entries; respond once that is committed."""
        await self._bounded(context, len(request.filters))
        filters = tuple(map(wire.acl_entry, request.filters))
        decision = await self._decide(context, access.delete_acls, filters)
        return pb.DeleteAclsResponse(
            results=[
                pb.DeleteAclsResult(
                    error_code=outcome.error,
                    error_message=outcome.message,
                    deleted=map(wire.acl_message, deleted),
                )
                for outcome, deleted in decision.response
            ],
            metadata_offset=decision.offset,
        )

    async def DescribeAcls(
        self, request: pb.DescribeAclsRequest, context: Context
    ) -> pb.DescribeAclsResponse:
        """List the access control entries that the filter matches."""
        image = await self._image(context)
        entries = access.find_acls(image, wire.acl_entry(request.filter))
        return pb.DescribeAclsResponse(entries=map(wire.acl_message, entries))

    async def AlterScramUsers(
        self, request: pb.AlterScramUsersRequest, context: Context
    ) -> pb.AlterScramUsersResponse:
        """Set and remove SCRAM credentials; respond once that is committed."""
        await self._bounded(context, len(request.upsertions) + len(request.deletions))
        upsertions, deletions = wire.scram_upsertions(request), wire.scram_deletions(request)
        decision = await self._decide(context, access.alter_scram_users, upsertions, deletions)
        return pb.AlterScramUsersResponse(
            results=[
                pb.ScramUserResult(
                    name=user, error_code=outcome.error, error_message=outcome.message
                )
                for user, outcome in decision.response
            ],
            metadata_offset=decision.offset,
        )

    async def DescribeScramUsers(
        self, request: pb.DescribeScramUsersRequest, context: Context
    ) -> pb.DescribeScramUsersResponse:
        """List users with their mechanisms, never their keys."""
        image = await self._image(context)
        return pb.DescribeScramUsersResponse(users=_scram_users(image, list(request.names)))

    async def AlterQuotas(
        self, request: pb.AlterQuotasRequest, context: Context
    ) -> pb.AlterQuotasResponse:
        """Set and remove quotas; respond once that is committed."""
        await self._bounded(context, len(request.entries))
        alterations = wire.quota_alterations(request)
        decision = await self._decide(
            context, access.alter_quotas, alterations, validate_only=request.validate_only
        )
        return pb.AlterQuotasResponse(
            results=wire.item_results(decision.response), metadata_offset=decision.offset
        )

    async def DescribeQuotas(
        self, request: pb.DescribeQuotasRequest, context: Context
    ) -> pb.DescribeQuotasResponse:
        """List all quotas."""
        image = await self._image(context)
        return pb.DescribeQuotasResponse(
            entries=[
                wire.quota_message(entity, key, value)
                for entity, values in image.quotas.items()
                for key, value in sorted(values.items())
            ]
        )

    async def UnregisterBroker(
        self, request: pb.UnregisterBrokerRequest, context: Context
    ) -> pb.UnregisterBrokerResponse:
        """Remove a broker's registration; respond once that is committed."""
        decision = await self._decide(context, registration.unregister, BrokerId(request.broker_id))
        return pb.UnregisterBrokerResponse(
            error_code=decision.response.error,
            error_message=decision.response.message,
            metadata_offset=decision.offset,
        )

    async def DescribeMetadataQuorum(
        self, request: pb.DescribeMetadataQuorumRequest, context: Context
    ) -> pb.DescribeMetadataQuorumResponse:
        """Refuse: brokers serve this, by ControllerService.DescribeQuorum of any member."""
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED, "only brokers serve this call: send it to a broker"
        )
        raise AssertionError("abort raises")

    async def DescribeLogDirs(
        self, request: pb.DescribeLogDirsRequest, context: Context
    ) -> pb.DescribeLogDirsResponse:
        """Refuse: only brokers know their data directories."""
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED, "only brokers serve this call: send it to a broker"
        )
        raise AssertionError("abort raises")

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Context
    ) -> pb.DescribeClusterResponse:
        """Describe brokers, fenced ones too, and controllers."""
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
        """Decide the pieces of a request for topics, and put their results into the response."""
        decisions = await _judged(context, self._host.decide_each(handler, pieces))
        for decision in decisions:
            response.topics.extend(map(wire.topic_result, decision.response))
            response.metadata_offset = max(response.metadata_offset, decision.offset)
            await asyncio.sleep(0)

    async def _bounded(self, context: Context, count: int, count_max: int = ITEMS_MAX) -> None:
        """Refuse a caller that is not a member, and a request with too many items, before the items are read."""
        await self._peers.require_member(context)
        if count > count_max:
            message = (
                f"{count} items in one request, but at most {count_max} are possible: split it"
            )
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, message)

    async def _parsed(self, context: Context, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except wire.BadRequest as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def _judged(context: Context, deciding: Awaitable[D]) -> D:
    """Return the outcome of `ControllerHost.decide`, or end the call by the status that its exception means."""
    try:
        return await deciding
    except NotActive as error:
        await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, f"NOT_CONTROLLER: {error}")
    except (Overloaded, Unconfirmed) as error:
        await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
    except BatchTooLarge as error:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))


def _scram_users(image: MetadataImage, names: list[str]) -> list[pb.ScramUserResult]:
    users: dict[str, list[pb.ScramCredentialInfo]] = {}
    for (user, mechanism), credential in sorted(image.scram.items()):
        info = pb.ScramCredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        users.setdefault(user, []).append(info)
    results = []
    for name in names or users:
        result = pb.ScramUserResult(name=name, credentials=users.get(name, ()))
        if name not in users:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"user {name} has no SCRAM credential"
        results.append(result)
    return results
