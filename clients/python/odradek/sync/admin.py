"""The synchronous admin."""

from __future__ import annotations

from odradek.admin.admin import Admin as AsyncAdmin
from odradek.sync.facade import Facade, waits


class Admin(Facade[AsyncAdmin]):
    """`odradek.Admin`, waiting."""

    create_topic = waits(AsyncAdmin.create_topic)
    create_topics = waits(AsyncAdmin.create_topics)
    delete_topic = waits(AsyncAdmin.delete_topic)
    delete_topics = waits(AsyncAdmin.delete_topics)
    add_partitions = waits(AsyncAdmin.add_partitions)
    list_topics = waits(AsyncAdmin.list_topics)
    describe_topic = waits(AsyncAdmin.describe_topic)
    list_brokers = waits(AsyncAdmin.list_brokers)
    describe_configs = waits(AsyncAdmin.describe_configs)
    describe_topic_configs = waits(AsyncAdmin.describe_topic_configs)
    alter_configs = waits(AsyncAdmin.alter_configs)
    alter_topic_configs = waits(AsyncAdmin.alter_topic_configs)
    elect_leaders = waits(AsyncAdmin.elect_leaders)
    reassign_partitions = waits(AsyncAdmin.reassign_partitions)
    delete_records = waits(AsyncAdmin.delete_records)
    list_offsets = waits(AsyncAdmin.list_offsets)
    describe_cluster = waits(AsyncAdmin.describe_cluster)
    describe_quorum = waits(AsyncAdmin.describe_quorum)
    describe_log_dirs = waits(AsyncAdmin.describe_log_dirs)
    unregister_broker = waits(AsyncAdmin.unregister_broker)
    describe_features = waits(AsyncAdmin.describe_features)
    update_feature = waits(AsyncAdmin.update_feature)
    create_acls = waits(AsyncAdmin.create_acls)
    delete_acls = waits(AsyncAdmin.delete_acls)
    describe_acls = waits(AsyncAdmin.describe_acls)
    set_scram_password = waits(AsyncAdmin.set_scram_password)
    delete_scram_user = waits(AsyncAdmin.delete_scram_user)
    describe_scram_users = waits(AsyncAdmin.describe_scram_users)
    alter_quotas = waits(AsyncAdmin.alter_quotas)
    list_groups = waits(AsyncAdmin.list_groups)
    describe_group = waits(AsyncAdmin.describe_group)
    group_offsets = waits(AsyncAdmin.group_offsets)
    alter_group_offsets = waits(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = waits(AsyncAdmin.delete_group_offsets)
    delete_groups = waits(AsyncAdmin.delete_groups)
    describe_quotas = waits(AsyncAdmin.describe_quotas)
