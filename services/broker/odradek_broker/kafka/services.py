"""What the handlers of Kafka's requests need of their broker: its ports, in one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from google.protobuf.message import Message

from odradek_broker.access.authorizer import Authorizer, EverybodyMay
from odradek_broker.access.quotas import Quotas
from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.kafka.requests.records.fetch_sessions import FetchSessions
from odradek_broker.kafka.requests.topics.metadata_cache import MetadataCache
from odradek_broker.kafka.unsent_answers import UnsentAnswers
from odradek_broker.replication.partition_service import PartitionService
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import BrokerId, ControllerId, ProducerId, TopicId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_runtime.budget.client_budget import ClientBudget


class Controllers(Protocol):
    """Calls to the active controller; `cluster.controller_client` has them."""

    @property
    def active(self) -> ControllerId | None: ...

    async def call(
        self, method: str, request: Message, *, timeout_s: float, is_admin: bool = False
    ) -> Message:
        """Return the response. Raises NoController or AioRpcError; the request may then have been done or not."""


class ProducerIds(Protocol):
    """Gives out producer ids."""

    async def next(self) -> tuple[ErrorCode, ProducerId]: ...


class TopicCreation(Protocol):
    """Creates topics that somebody asked for."""

    @property
    def is_enabled(self) -> bool:
        """auto.create.topics.enable, as it is now."""

    async def ensure(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create what is missing and wait until the image has it; errors of those that failed."""


class LocalLog(NamedTuple):
    """One partition's log on this broker, as DescribeLogDirs tells of it."""

    topic_id: TopicId
    partition: int
    size_bytes: int


class LogInventory(Protocol):
    """What lies in the data directory."""

    def local_logs(self) -> Sequence[LocalLog]: ...

    def disk_bytes(self) -> tuple[int, int]:
        """(total, usable) of the volume; -1 when unknown."""

    @property
    def offline_reason(self) -> str:
        """Why the directory is offline until the broker restarts; "" while it is not."""

    @property
    def full_reason(self) -> str:
        """Why nothing can be written for now (a full disk); "" while writes are taken."""


@dataclass(slots=True, kw_only=True)
class Services:
    """The broker's side of every handler. `groups` is set by who hosts the group coordinator."""

    settings: BrokerSettings
    broker_id: BrokerId
    cluster_id: str
    partitions: PartitionService
    controllers: Controllers
    producer_ids: ProducerIds
    topic_creation: TopicCreation | None = None  # None: nothing is created unasked
    inventory: LogInventory | None = None
    authorizer: Authorizer = field(default_factory=EverybodyMay)
    quotas: Quotas = field(default_factory=Quotas)
    budget: ClientBudget = field(default_factory=ClientBudget)
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    metadata_cache: MetadataCache = field(default_factory=MetadataCache)
    unsent: UnsentAnswers = field(default_factory=UnsentAnswers)
    advertised: Callable[[], Sequence[tuple[int, int, int]]] = lambda: ()  # set by the registry
    groups: GroupCoordinator | None = None  # None: this broker coordinates no groups

    @property
    def image(self) -> MetadataImage:
        """The cluster as this broker knows it now."""
        return self.partitions.image
