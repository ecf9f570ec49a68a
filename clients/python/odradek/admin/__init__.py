"""SDK: the admin, and what it takes and tells."""

from odradek.admin.admin import Admin
from odradek.admin.descriptions import (
    ClusterDescription,
    ConfigResource,
    ConfigResourceType,
    ConfigValue,
    NewTopic,
    PartitionOutcome,
    QuorumDescription,
    TopicDescription,
    TopicOutcome,
    Voter,
)

__all__ = [
    "Admin",
    "ClusterDescription",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigValue",
    "NewTopic",
    "PartitionOutcome",
    "QuorumDescription",
    "TopicDescription",
    "TopicOutcome",
    "Voter",
]
