"""The identifiers that processes exchange. Each kind of identifier has its own type, so that they cannot be confused.

Offsets count records, and the ends of ranges are exclusive. Epochs only rise. A `TopicId` is the 16 raw bytes of a
random UUID (KIP-516). A topic that is deleted and created again with the same name has a new id.
"""

from __future__ import annotations

import uuid
from typing import Final, NewType

from msgspec import Struct

TopicName = NewType("TopicName", str)
# The name of a partition's directory is the topic's name with a suffix. File names have at most 255 bytes.
TOPIC_NAME_BYTES_MAX: Final = 249
TopicId = NewType("TopicId", bytes)
PartitionIndex = NewType("PartitionIndex", int)
BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
ControllerId = NewType("ControllerId", int)
ControllerEpoch = NewType("ControllerEpoch", int)
ClusterId = NewType("ClusterId", str)
DirectoryId = NewType("DirectoryId", bytes)
IncarnationId = NewType("IncarnationId", bytes)
MetadataIncarnationId = NewType("MetadataIncarnationId", bytes)
Offset = NewType("Offset", int)
MetadataOffset = NewType("MetadataOffset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
PartitionEpoch = NewType("PartitionEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
Principal = NewType("Principal", str)

SLOT_SEPARATOR: Final = "\x1f"
"""The character between the name of a staged write and the number of a slot, in the transactional id of a task."""
NO_TOPIC_ID: Final = TopicId(bytes(16))
NO_BROKER: Final = BrokerId(-1)
NO_BROKER_EPOCH: Final = BrokerEpoch(-1)
NO_OFFSET: Final = Offset(-1)
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)


class TopicIdPartition(Struct, frozen=True, gc=False):
    """A partition, identified by the id of its topic. Internal messages, checkpoints and caches use this form."""

    topic_id: TopicId
    partition: PartitionIndex

    def __str__(self) -> str:
        return f"{topic_id_text(self.topic_id)}-{self.partition}"


class TopicPartition(Struct, frozen=True, gc=False):
    """A partition, identified by the name of its topic. Users and older protocol versions use this form."""

    topic: TopicName
    partition: PartitionIndex

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def topic_id_text(topic_id: TopicId) -> str:
    """Return the id in the usual text form of a UUID."""
    return str(uuid.UUID(bytes=bytes(topic_id)))
