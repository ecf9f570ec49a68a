"""AdminService of a broker. The broker serves some RPCs itself, and forwards all others to the active controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from odradek_broker.cluster import metadata_changes
from odradek_broker.cluster.controller_client import ControllerClient, NoController
from odradek_broker.data_directory import DirectoryInventory
from odradek_broker.listener_settings import REPLICATION
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.rpc.callers import ServerContext, in_turns, put_in_turns, results_in_turns
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import NO_BROKER, BrokerId, Offset, PartitionIndex, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import BROKER_CONFIGS
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as pb_grpc
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as controller_pb
from odradek_runtime.grpc_endpoints import InternalChannels
from odradek_runtime.settings import is_given, settings_text, specs_of

_TIMEOUT_DEFAULT_S: Final = 10.0
# A call to another broker may take this much longer than the other broker's work, so that its response can arrive.
_PEER_MARGIN_S: Final = 2.0
_TIMEOUT_MAX_S: Final = 60.0
_SHARE_OF_DEADLINE: Final = 0.8
_SOURCE_DYNAMIC_BROKER: Final = 2
_SOURCE_DYNAMIC_DEFAULT: Final = 3
_SOURCE_STATIC: Final = 4
_SOURCE_DEFAULT: Final = 5
_TYPES: Final = {bool: 1, str: 2, int: 3, float: 6, tuple: 7}
DescribeBroker = Callable[[pb.ConfigResource], pb.ConfigResourceResult]


def _forwards_the_rest(servicer: type[AdminServicer]) -> type[AdminServicer]:
    """Add a method for each RPC of the service that the class does not define. The method forwards the request to the
    active controller.

    If the response has the field metadata_offset, the method waits until this broker's image has reached that offset,
    so that the caller can read its own change from this broker. The rights for each RPC are in the tables of
    `access/rights.py`; an RPC without an entry in these tables is refused.
    """
    for rpc in pb.DESCRIPTOR.services_by_name["AdminService"].methods:
        if rpc.name not in vars(servicer):
            is_waited_for = "metadata_offset" in rpc.output_type.fields_by_name
            setattr(servicer, rpc.name, _forwarded(rpc.name, is_waited_for=is_waited_for))
    return servicer


def _forwarded(
    method: str, *, is_waited_for: bool
) -> Callable[[AdminServicer, Message, ServerContext], Awaitable[Message]]:
    async def forward(self: AdminServicer, request: Message, context: ServerContext) -> Message:
        send = self._change if is_waited_for else self._forward
        return await send(method, request, context)

    forward.__name__ = method
    return forward


@_forwards_the_rest
class AdminServicer:
    """The servicer of AdminService. RPCs without a method here are forwarded to the active controller."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        partitions: LocalPartitions,
        controllers: ControllerClient,
        peers: InternalChannels,
        describe_broker: DescribeBroker,
        inventory: DirectoryInventory,
    ) -> None:
        """`describe_broker` returns this broker's configs, and `inventory` reports about its data directory."""
        self._broker_id = broker_id
        self._partitions = partitions
        self._controllers = controllers
        self._peers = peers
        self._describe_broker = describe_broker
        self._inventory = inventory

    async def _forward(
        self, method: str, request: Message, context: ServerContext, *, is_admin: bool = True
    ) -> Message:
        timeout_s = _timeout_s(request, context)
        call = self._controllers.call(method, request, timeout_s=timeout_s, is_admin=is_admin)
        return await _responded(call, context)

    async def _change(self, method: str, request: Message, context: ServerContext) -> Message:
        timeout_s = _timeout_s(request, context)
        changing = metadata_changes.change(
            self._controllers, self._partitions, method, request, timeout_s=timeout_s
        )
        return await _responded(changing, context)

    async def DescribeMetadataQuorum(
        self, request: pb.DescribeMetadataQuorumRequest, context: ServerContext
    ) -> pb.DescribeMetadataQuorumResponse:
        """Describe the quorum as its leader sees it or, without a leader, as any controller that responds sees it."""
        quorum = await self._forward(
            "DescribeQuorum", controller_pb.DescribeQuorumRequest(), context, is_admin=False
        )
        assert isinstance(quorum, controller_pb.DescribeQuorumResponse), type(quorum)
        return pb.DescribeMetadataQuorumResponse(quorum=quorum)

    async def DescribeConfigs(
        self, request: pb.DescribeConfigsRequest, context: ServerContext
    ) -> pb.DescribeConfigsResponse:
        """Describe configs. The configs of a broker are read at that broker, and all others at the controller."""
        results: list[pb.ConfigResourceResult | None] = [None] * len(request.resources)
        forwarded: list[int] = []
        async for number, resource in in_turns(enumerate(request.resources)):
            is_broker = resource.type == pb.CONFIG_RESOURCE_TYPE_BROKER and resource.name
            if not is_broker:
                forwarded.append(number)
            elif resource.name == str(self._broker_id):
                results[number] = self._describe_broker(resource)
            else:
                results[number] = await self._ask_broker(resource, request)
        if forwarded:
            question = pb.DescribeConfigsRequest(
                include_documentation=request.include_documentation
            )
            await put_in_turns(question.resources, (request.resources[n] for n in forwarded))
            response = await self._forward("DescribeConfigs", question, context)
            assert isinstance(response, pb.DescribeConfigsResponse), type(response)
            for number, result in zip(forwarded, response.resources, strict=True):
                results[number] = result
        described = pb.DescribeConfigsResponse()
        await put_in_turns(
            described.resources, (result for result in results if result is not None)
        )
        return described

    async def _ask_broker(
        self, resource: pb.ConfigResource, request: pb.DescribeConfigsRequest
    ) -> pb.ConfigResourceResult:
        refused = pb.ConfigResourceResult(type=resource.type, name=resource.name)
        if not resource.name.isdigit():
            refused.error_code = ErrorCode.INVALID_REQUEST
            refused.error_message = f"{resource.name!r} is not a broker id: use a number"
            return refused
        stub = await self._peer(BrokerId(int(resource.name)))
        if stub is None:
            refused.error_code = ErrorCode.BROKER_NOT_AVAILABLE
            refused.error_message = (
                f"broker {resource.name} is not running, or is not a broker of this cluster"
            )
            return refused
        try:
            response = await stub.DescribeConfigs(
                pb.DescribeConfigsRequest(
                    resources=[resource], include_documentation=request.include_documentation
                ),
                timeout=_TIMEOUT_DEFAULT_S,
            )
        except grpc.aio.AioRpcError as error:
            refused.error_code = ErrorCode.BROKER_NOT_AVAILABLE
            refused.error_message = f"broker {resource.name} does not respond: {error.details()}"
            return refused
        described: pb.ConfigResourceResult = response.resources[0]
        return described

    async def DescribeLogDirs(
        self, request: pb.DescribeLogDirsRequest, _context: ServerContext
    ) -> pb.DescribeLogDirsResponse:
        """Describe the data directories of the requested brokers, or of all brokers. Each broker describes its own
        directory.
        """
        broker_ids = list(dict.fromkeys(request.broker_ids)) or sorted(
            self._partitions.image.brokers
        )
        brokers = await results_in_turns(
            broker_ids, lambda broker_id: self._log_dirs_of(BrokerId(broker_id), request)
        )
        return pb.DescribeLogDirsResponse(brokers=brokers)

    async def _log_dirs_of(
        self, broker_id: BrokerId, request: pb.DescribeLogDirsRequest
    ) -> pb.BrokerLogDirs:
        if broker_id == self._broker_id:
            return self._own_log_dirs(include_partitions=request.include_partitions)
        code = ErrorCode.BROKER_NOT_AVAILABLE
        reason = f"broker {broker_id} is not running, or is not a broker of this cluster"
        stub = await self._peer(broker_id)
        if stub is not None:
            timeout_s = request.timeout_ms / 1000 if request.timeout_ms > 0 else _TIMEOUT_DEFAULT_S
            forwarded = pb.DescribeLogDirsRequest(
                broker_ids=[broker_id], include_partitions=request.include_partitions
            )
            try:
                response: pb.DescribeLogDirsResponse = await stub.DescribeLogDirs(
                    forwarded, timeout=min(timeout_s, _TIMEOUT_MAX_S)
                )
                return response.brokers[0]
            except grpc.aio.AioRpcError as error:
                reason = f"broker {broker_id} does not respond: {error.details()}"
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    code = ErrorCode.UNSUPPORTED_VERSION
                    reason = f"the release of broker {broker_id} is too old to describe a data directory: upgrade it"
        return pb.BrokerLogDirs(broker_id=broker_id, error_code=code, error_message=reason)

    def _own_log_dirs(self, *, include_partitions: bool) -> pb.BrokerLogDirs:
        total_bytes, usable_bytes = self._inventory.disk_bytes()
        directory = pb.LogDir(
            path=self._inventory.path,
            offline_reason=self._inventory.offline_reason,
            full_reason=self._inventory.full_reason,
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
            stray_count=len(self._inventory.strays),
            stray_bytes=self._inventory.strays.size_bytes,
        )
        for log in self._inventory.local_logs() if include_partitions else ():
            topic = self._partitions.image.topics.get(log.topic_id)
            if topic is not None:
                partition = common_pb2.TopicPartition(topic=topic.name, partition=log.partition)
                directory.partitions.add(partition=partition, size_bytes=log.size_bytes)
        return pb.BrokerLogDirs(broker_id=self._broker_id, log_dirs=[directory])

    async def DeleteRecords(
        self, request: pb.DeleteRecordsRequest, context: ServerContext
    ) -> pb.DeleteRecordsResponse:
        """Delete records. The request for each partition is handled by its leader, on this broker or another one."""
        timeout_s = request.timeout_ms / 1000 if request.timeout_ms > 0 else _TIMEOUT_DEFAULT_S
        timeout_ms = int(min(timeout_s, _TIMEOUT_MAX_S) * 1000)
        by_leader: dict[BrokerId, list[int]] = {}
        async for number, deletion in in_turns(enumerate(request.partitions)):
            topic = TopicName(deletion.partition.topic)
            index = PartitionIndex(deletion.partition.partition)
            leader = self._partitions.leader_of(topic, index).broker_id
            is_here = leader in (NO_BROKER, self._broker_id)
            by_leader.setdefault(self._broker_id if is_here else leader, []).append(number)
        by_broker = await asyncio.gather(
            *(
                self._delete_at(leader, [request.partitions[n] for n in numbers], timeout_ms)
                for leader, numbers in by_leader.items()
            )
        )
        results = {
            number: result
            for numbers, broker_results in zip(by_leader.values(), by_broker, strict=True)
            for number, result in zip(numbers, broker_results, strict=True)
        }
        response = pb.DeleteRecordsResponse()
        await put_in_turns(response.partitions, (results[n] for n in sorted(results)))
        return response

    async def _delete_at(
        self, leader: BrokerId, deletions: list[pb.PartitionOffset], timeout_ms: int
    ) -> list[pb.PartitionResult]:
        if leader == self._broker_id:
            return await results_in_turns(
                deletions, lambda deletion: self._delete_here(deletion, timeout_ms)
            )
        stub = await self._peer(leader)
        if stub is not None:
            try:
                request = pb.DeleteRecordsRequest(timeout_ms=timeout_ms)
                await put_in_turns(request.partitions, deletions)
                response: pb.DeleteRecordsResponse = await stub.DeleteRecords(
                    request, timeout=timeout_ms / 1000 + _PEER_MARGIN_S
                )
                return list(response.partitions)
            except grpc.aio.AioRpcError:
                pass
        return [
            _result(deletion.partition, ErrorCode.LEADER_NOT_AVAILABLE, -1)
            for deletion in deletions
        ]

    async def _delete_here(
        self, deletion: pb.PartitionOffset, timeout_ms: int
    ) -> pb.PartitionResult:
        partition = self._partitions.find(
            TopicName(deletion.partition.topic), PartitionIndex(deletion.partition.partition)
        )
        if isinstance(partition, ErrorCode):
            return _result(deletion.partition, partition, -1)
        outcome = await partition.delete_records(Offset(deletion.offset), timeout_ms=timeout_ms)
        return _result(deletion.partition, outcome.error, outcome.offset)

    async def _peer(self, broker_id: BrokerId) -> pb_grpc.AdminServiceAsyncStub | None:
        broker = self._partitions.image.brokers.get(broker_id)
        endpoint = None if broker is None or broker.fenced else broker.endpoint(REPLICATION)
        if endpoint is None:
            return None
        channel = self._peers.channel(f"broker-{broker_id}", endpoint.host, endpoint.port)
        return pb_grpc.AdminServiceStub(channel)


def _timeout_s(request: Message, context: ServerContext) -> float:
    """Return the timeout of a call to the controller. It is shorter than the caller's deadline, so that the broker can
    still respond with the reason of a failure.
    """
    timeout_s = _TIMEOUT_DEFAULT_S
    timeout_ms = getattr(request, "timeout_ms", 0)
    if timeout_ms > 0:
        timeout_s = min(timeout_ms / 1000, _TIMEOUT_MAX_S)
    remaining_s = context.time_remaining()
    return timeout_s if remaining_s is None else min(timeout_s, _SHARE_OF_DEADLINE * remaining_s)


async def _responded(call: Awaitable[Message], context: ServerContext) -> Message:
    try:
        return await call
    except NoController as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "")


def describe_broker(
    settings: BrokerSettings, image: MetadataImage, resource: pb.ConfigResource
) -> pb.ConfigResourceResult:
    """Return the configs of this broker.

    A dynamic config of this broker overrides a dynamic config of all brokers, and both override the settings with which
    the process was started.
    """
    result = pb.ConfigResourceResult(type=resource.type, name=resource.name)
    own = image.config_of(ConfigResourceType.BROKER, resource.name)
    all_brokers = image.config_of(ConfigResourceType.BROKER, "")
    requested_names = set(resource.config_names)
    for name, (field, spec) in specs_of(BrokerSettings).items():
        if requested_names and name not in requested_names:
            continue
        value = getattr(settings, field.name)
        text = settings_text(value)
        source = _SOURCE_STATIC if is_given(settings, name) else _SOURCE_DEFAULT
        if name in own:
            text, source = own[name], _SOURCE_DYNAMIC_BROKER
        elif name in all_brokers:
            text, source = all_brokers[name], _SOURCE_DYNAMIC_DEFAULT
        entry = result.entries.add(
            name=name,
            source=source,
            is_read_only=name not in BROKER_CONFIGS,
            is_sensitive=spec.is_secret,
            type=_TYPES.get(type(value), 2),
            documentation=spec.doc,
        )
        if not spec.is_secret:
            entry.value = text
    return result


def _result(
    partition: common_pb2.TopicPartition, code: ErrorCode, offset: int
) -> pb.PartitionResult:
    return pb.PartitionResult(partition=partition, error_code=code, offset=offset)


def add_to(server: grpc.aio.Server, servicer: AdminServicer) -> str:
    """Register the servicer, and return the service's full name."""
    # The decorator adds the methods that the generated base class declares.
    complete = cast(pb_grpc.AdminServiceServicer, servicer)
    pb_grpc.add_AdminServiceServicer_to_server(complete, server)
    return "odradek.v1.AdminService"
