"""IncrementalAlterConfigs: set, delete, append, subtract (KIP-339)."""

from __future__ import annotations

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.configs.config_changes import alter
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.messages import IncrementalAlterConfigsResponse, Message
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS)
async def incremental_alter_configs(request: Request) -> Message:
    """All changes of a resource, or none."""
    return await alter(
        request,
        IncrementalAlterConfigsResponse,
        [
            pb.AlterConfigsResource(
                type=resource.resource_type,
                name=resource.resource_name,
                operations=[
                    pb.AlterConfigsOperation(
                        name=one.name, operation=one.config_operation, value=one.value
                    )
                    async for one in request.in_turns(resource.configs)
                ],
            )
            async for resource in request.in_turns(request.message.resources)
        ],
    )
