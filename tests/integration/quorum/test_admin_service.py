"""Administration of controllers over real gRPC: each kind of call, and malformed requests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import grpc
import grpc.aio
import pytest

from odradek_metadata_quorum.rpc.admin_servicer import DESCRIBED_MAX, ITEMS_MAX
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin
from odradek_protocol.rpc.v1 import common_pb2
from tests.integration.quorum.controllers import controllers, start_broker


async def test_configs_are_described_with_their_sources(tmp_path: Path) -> None:
    async with controllers(tmp_path, min_insync_replicas=2) as found:
        heart = await start_broker(found)
        service = found.admin(0)
        await service.CreateTopics(
            admin.CreateTopicsRequest(
                topics=[admin.NewTopic(name="t", configs={"retention.ms": "5"})]
            )
        )
        altered = await service.AlterConfigs(
            admin.AlterConfigsRequest(
                resources=[
                    admin.AlterConfigsResource(
                        type=admin.CONFIG_RESOURCE_TYPE_TOPIC,
                        name="t",
                        operations=[
                            admin.AlterConfigsOperation(name="segment.ms", value="9"),
                            admin.AlterConfigsOperation(name="retention.ms", operation=1),
                        ],
                    ),
                    admin.AlterConfigsResource(
                        type=admin.CONFIG_RESOURCE_TYPE_BROKER,
                        operations=[admin.AlterConfigsOperation(name="num.partition", value="9")],
                    ),
                ]
            )
        )
        assert [r.error_code for r in altered.resources] == [0, ErrorCode.INVALID_CONFIG]
        assert "did you mean num.partitions?" in altered.resources[1].error_message
        described = await service.DescribeConfigs(
            admin.DescribeConfigsRequest(
                resources=[
                    admin.ConfigResource(type=admin.CONFIG_RESOURCE_TYPE_TOPIC, name="t"),
                    admin.ConfigResource(type=admin.CONFIG_RESOURCE_TYPE_TOPIC, name="x"),
                ],
                include_documentation=True,
            )
        )
        entries = {e.name: (e.value, e.source) for e in described.resources[0].entries}
        assert entries["segment.ms"] == ("9", 1)
        assert entries["min.insync.replicas"] == ("2", 3)
        assert entries["retention.ms"] == ("604800000", 5)
        assert all(e.documentation for e in described.resources[0].entries)
        assert described.resources[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        heart.close()


async def test_topics_grow_move_and_go(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        heart = await start_broker(found)
        service = found.admin(0)
        created = await service.CreateTopics(
            admin.CreateTopicsRequest(topics=[admin.NewTopic(name="t", partition_count=1)])
        )
        assert created.topics[0].partition_count == 1
        grown = await service.CreatePartitions(
            admin.CreatePartitionsRequest(topics=[admin.NewPartitions(name="t", total_count=3)])
        )
        assert grown.topics[0].error_code == 0
        elected = await service.ElectLeaders(
            admin.ElectLeadersRequest(
                partitions=[common_pb2.TopicPartition(topic="t", partition=0)]
            )
        )
        assert elected.partitions[0].error_code == ErrorCode.ELECTION_NOT_NEEDED
        moved = await service.AlterPartitionReassignments(
            admin.AlterPartitionReassignmentsRequest(
                reassignments=[
                    admin.PartitionReassignment(
                        partition=common_pb2.TopicPartition(topic="t", partition=0), replicas=[7]
                    )
                ]
            )
        )
        assert moved.partitions[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        cluster = await service.DescribeCluster(admin.DescribeClusterRequest())
        assert cluster.brokers[0].leader_count == 3
        assert cluster.active_controller_id == 0
        deleted = await service.DeleteTopics(
            admin.DeleteTopicsRequest(topic_ids=[created.topics[0].topic_id])
        )
        assert (deleted.topics[0].name, deleted.topics[0].error_code) == ("t", 0)
        refused = await service.UnregisterBroker(admin.UnregisterBrokerRequest(broker_id=1))
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        heart.close()


async def test_access_users_quotas_and_features(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        await found.active()
        service = found.admin(0)
        entry = admin.AclEntry(
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            principal="User:alice",
            host="*",
            operation=3,
            permission_type=3,
        )
        added = await service.CreateAcls(admin.CreateAclsRequest(entries=[entry, admin.AclEntry()]))
        assert [r.error_code for r in added.results] == [0, ErrorCode.INVALID_REQUEST]
        listed = await service.DescribeAcls(admin.DescribeAclsRequest(filter=admin.AclEntry()))
        assert list(listed.entries) == [entry]
        gone = await service.DeleteAcls(admin.DeleteAclsRequest(filters=[entry]))
        assert list(gone.results[0].deleted) == [entry]

        salted = hashlib.pbkdf2_hmac("sha256", b"secret", b"saltsalt", 4096)
        upserted = await service.AlterScramUsers(
            admin.AlterScramUsersRequest(
                upsertions=[
                    admin.ScramUpsertion(
                        name="alice",
                        mechanism=1,
                        iterations=4096,
                        salt=b"saltsalt",
                        salted_password=salted,
                    )
                ]
            )
        )
        assert upserted.results[0].error_code == 0
        users = await service.DescribeScramUsers(
            admin.DescribeScramUsersRequest(names=["alice", "bob"])
        )
        assert [(c.mechanism, c.iterations) for c in users.users[0].credentials] == [(1, 4096)]
        assert users.users[1].error_code == ErrorCode.RESOURCE_NOT_FOUND

        entity = [admin.QuotaEntityPart(type="user", name="alice")]
        quota = admin.QuotaEntry(entity=entity, key="producer_byte_rate", value=100.0)
        altered = await service.AlterQuotas(admin.AlterQuotasRequest(entries=[quota]))
        assert altered.results[0].error_code == 0
        quotas = await service.DescribeQuotas(admin.DescribeQuotasRequest())
        assert list(quotas.entries) == [quota]

        lowered = await service.UpdateFeatures(
            admin.UpdateFeaturesRequest(name="transaction.version", level=3)
        )
        assert lowered.error_code == ErrorCode.FEATURE_UPDATE_FAILED


async def test_nonsense_on_the_wire_is_told_apart_from_failure(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        await found.active()
        service = found.admin(0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.AlterConfigs(
                admin.AlterConfigsRequest(resources=[admin.AlterConfigsResource(name="t")])
            )
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as elsewhere:
            await service.DeleteRecords(admin.DeleteRecordsRequest())
        assert elsewhere.value.code() is grpc.StatusCode.UNIMPLEMENTED
        for call in (
            service.DeleteTopics(admin.DeleteTopicsRequest(names=["t"] * (ITEMS_MAX + 1))),
            service.DescribeConfigs(
                admin.DescribeConfigsRequest(
                    resources=[admin.ConfigResource(type=2, name="t")] * (DESCRIBED_MAX + 1)
                )
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="send several requests"):
                await call
