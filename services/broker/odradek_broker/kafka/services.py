"""`Services`: the broker's services that handlers of Kafka requests use, and the interfaces of some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from google.protobuf.message import Message

from odradek_broker.access.authorizer import Authorizer, EverybodyMay
from odradek_broker.access.quotas import Quotas
from odradek_broker.coordination.connection_order import ConnectionNumbers
from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.transaction_coordinator import TransactionCoordinator
from odradek_broker.coordination.transactional_offsets import TransactionalOffsets
from odradek_broker.kafka.requests.records.fetch_sessions import FetchSessions
from odradek_broker.replication.hanging_transactions import HangingTransactions
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import BrokerId, ControllerId, ProducerId, TopicId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_runtime.budget.client_budget import ClientBudget

UNSENT_BYTES_MAX: Final = 32 << 20
LEAST_BYTES: Final = 1 << 20


class UnsentResponses:
    """Limits the bytes of responses, on all connections together, that are being read from disk or are not sent yet.

    A response to a fetch may have 50 MiB, and the part that the socket does not accept stays in memory. Each connection
    is bounded, because it begins no request while bytes are unsent. This class bounds all of them together: the more
    bytes are unsent, the fewer bytes of records a new response may have, down to `LEAST_BYTES`. That number is always
    allowed, so that clients that read their responses make progress even if others do not read. First the fetch is
    the holder of the bytes that it reads; after the response is made, its connection is the holder of the unsent bytes.
    """

    __slots__ = ("_bytes_max", "_unsent", "total_bytes")

    def __init__(self, bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._unsent: dict[object, int] = {}
        self.total_bytes = 0

    def hold(self, holder: object, size_bytes: int) -> None:
        """Record how many bytes `holder` (a fetch or a connection) reads or has not sent. 0 removes the holder."""
        self.total_bytes += size_bytes - self._unsent.pop(holder, 0)
        if size_bytes:
            self._unsent[holder] = size_bytes

    def room_for(self, wanted_bytes: int) -> int:
        """Return how many bytes of records a response may have: `wanted_bytes`, or fewer if other responses have too
        many unsent bytes.
        """
        return min(wanted_bytes, max(self._bytes_max - self.total_bytes, LEAST_BYTES))


class MetadataCache:
    """A cache of encoded Metadata responses, for the current image. It is emptied when the image changes.

    A response with 10 topics of 10 partitions takes 0.6 ms to encode, and all clients of the cluster request the
    metadata after a change.
    """

    ENTRIES_MAX: Final = 64
    BYTES_MAX: Final = 16 << 20

    def __init__(self) -> None:
        self._offset = -1
        self._bytes = 0
        self._responses: dict[object, bytes] = {}

    def get(self, offset: int, key: object) -> bytes | None:
        """Return the cached response to an equal request (`key`) at the image with this offset, or None."""
        return self._responses.get(key) if offset == self._offset else None

    def put(self, offset: int, key: object, response: bytes) -> None:
        """Cache a response unless the cache is full."""
        if offset != self._offset:
            self._offset, self._bytes = offset, 0
            self._responses.clear()
        if (
            len(self._responses) < self.ENTRIES_MAX
            and self._bytes + len(response) <= self.BYTES_MAX
        ):
            self._responses[key] = response
            self._bytes += len(response)


class Controllers(Protocol):
    """Calls to the active controller (`cluster.controller_client`)."""

    @property
    def active(self) -> ControllerId | None: ...

    async def call(
        self, method: str, request: Message, *, timeout_s: float, is_admin: bool = False
    ) -> Message:
        """Return the response.

        Raises:
            NoController, AioRpcError: there is no response, and the request may or may not have taken effect.
        """


class ProducerIds(Protocol):
    """Allocates producer ids."""

    async def next(self) -> tuple[ErrorCode, ProducerId]: ...


class TopicCreation(Protocol):
    """Creates topics that clients use although they do not exist (auto.create.topics.enable)."""

    @property
    def is_enabled(self) -> bool:
        """The current value of auto.create.topics.enable."""

    async def ensure(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create missing topics and wait until the image contains them. Return the errors of topics that could not be
        created.
        """


class LocalLog(NamedTuple):
    """One partition's log on this broker, as DescribeLogDirs reports it."""

    topic_id: TopicId
    partition: int
    size_bytes: int


class LogInventory(Protocol):
    """The contents and the state of the data directory."""

    def local_logs(self) -> Sequence[LocalLog]: ...

    def disk_bytes(self) -> tuple[int, int]:
        """Return the total and the usable bytes of the volume, or (-1, -1) if they are unknown."""

    @property
    def offline_reason(self) -> str:
        """The error that took the directory offline until the broker restarts; "" while it is online."""

    @property
    def full_reason(self) -> str:
        """The error because of which writes are refused at present (a full disk); "" while they are accepted."""


@dataclass(slots=True, kw_only=True)
class Services:
    """The services of one broker."""

    settings: BrokerSettings
    broker_id: BrokerId
    cluster_id: str
    partitions: LocalPartitions
    controllers: Controllers
    producer_ids: ProducerIds
    topic_creation: TopicCreation | None = None  # None: clients cannot create topics by using them
    inventory: LogInventory | None = None
    authorizer: Authorizer = field(default_factory=EverybodyMay)
    quotas: Quotas = field(default_factory=Quotas)
    budget: ClientBudget = field(default_factory=ClientBudget)
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    metadata_cache: MetadataCache = field(default_factory=MetadataCache)
    unsent: UnsentResponses = field(default_factory=UnsentResponses)
    # Returns the API versions that the broker supports. The registry sets this function.
    advertised: Callable[[], Sequence[tuple[int, int, int]]] = lambda: ()
    groups: GroupCoordinator | None = None  # None: this broker coordinates no groups
    # None: this broker coordinates no transactions.
    transactions: TransactionCoordinator | None = None
    transactional_offsets: TransactionalOffsets | None = None
    hanging: HangingTransactions | None = None
    connection_numbers: ConnectionNumbers = field(default_factory=ConnectionNumbers)

    @property
    def image(self) -> MetadataImage:
        """The current metadata image."""
        return self.partitions.image
