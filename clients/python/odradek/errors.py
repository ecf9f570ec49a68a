"""The errors of the SDK: one tree of classes, with a leaf class for each remedy.

Catch `OdradekError` for all of them, or a leaf class to apply its remedy. Each error has these attributes: `.retriable`
(the same call may succeed later; the SDK has already retried it for as long as it was allowed to), `.fatal` (this
producer or consumer can no longer be used; create a new one), `.code` (Kafka's error code, if a broker sent one) and
`.hint` (the remedy in words).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from odradek_protocol.kafka.error_codes import ErrorCode


class OdradekError(Exception):
    """The base class of all errors. `str()` gives what the error is about, what happened, and the remedy."""

    retriable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(
        self, message: str, *, code: ErrorCode | None = None, hint: str | None = None
    ) -> None:
        self.message = message
        self.code = code
        self.hint = self.default_hint if hint is None else hint
        super().__init__(f"{message}; {self.hint}" if self.hint else message)


class BrokerUnreachable(OdradekError):
    """One broker could not be reached, or its connection broke. Another broker may respond."""

    retriable = True

    def __init__(self, endpoint: str, reason: str, *, hint: str | None = None) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"broker at {endpoint} is unreachable: {reason}", hint=hint)


class WrongListener(BrokerUnreachable):
    """The address is not that of a gRPC listener but, for instance, of a Kafka listener or an HTTP server."""

    default_hint = "use the gRPC address of a broker (listener GRPC, port 9090 by default)"


class NameUnresolvable(BrokerUnreachable):
    """The host name of a broker cannot be resolved on this machine."""

    default_hint = "check the spelling, DNS, or /etc/hosts"


class AdvertisedNameUnresolvable(NameUnresolvable):
    """The cluster responded, but the host name that one of its brokers advertises cannot be resolved on
    this machine.
    """

    def __init__(self, broker_id: int, endpoint: str, reason: str) -> None:
        self.broker_id = broker_id
        super().__init__(
            endpoint,
            f"broker {broker_id} advertises the name {endpoint!r}, which does not resolve on this"
            f" machine ({reason})",
            hint="set advertised.listeners of that broker to a name that its clients can resolve,"
            " or add the name to DNS or /etc/hosts",
        )


class BrokersUnavailable(OdradekError):
    """No known broker responded in time. `tried` lists the addresses that were tried, in order."""

    retriable = True
    default_hint = (
        "check that the brokers run, that the bootstrap addresses are theirs (gRPC), and whether they"
        " require TLS or a certificate"
    )

    def __init__(
        self,
        *,
        tried: Sequence[str],
        last_error: BaseException | None = None,
        waited_s: float | None = None,
    ) -> None:
        self.tried = list(tried)
        self.last_error = last_error
        waited = "" if waited_s is None else f" for {waited_s:.1f} s"
        last = "" if last_error is None else f"; last error: {last_error}"
        super().__init__(f"no broker was reachable{waited}, tried {', '.join(self.tried)}{last}")


class NoActiveController(OdradekError):
    """The brokers respond, but there is no active controller, so topics, configs and users can be neither read nor
    changed.
    """

    retriable = True
    default_hint = "start the controllers that are down: a majority of them must be up (`odradek quorum status`)"


class RequestTimedOut(OdradekError):
    """A request got no response in time. It is not known whether it was carried out."""

    retriable = True


class AuthenticationFailed(OdradekError):
    """The cluster refuses the credentials of this client."""

    fatal = True
    default_hint = "check the client certificate or the credentials"


class AuthorizationFailed(OdradekError):
    """This client does not have the right that the call needs."""

    default_hint = "ask for an ACL that allows it"


class UnsupportedOperation(OdradekError):
    """The broker does not support the call, or not these arguments."""

    default_hint = "upgrade the broker, or check that the address is its gRPC listener"


class UnknownTopic(OdradekError):
    """The topic or partition does not exist, or was created so recently that not every broker knows it."""

    retriable = True
    default_hint = "create it (`odradek topic create NAME`), or check the name"


class TopicExists(OdradekError):
    """A topic of this name already exists."""

    default_hint = "choose another name, or use the existing topic"


class InvalidTopic(OdradekError):
    """The name, the number of partitions or the replicas of a topic are not valid."""


class InvalidConfig(OdradekError):
    """A config, or an option of this SDK, is unknown or has a value that is not valid."""


class InvalidRequest(OdradekError):
    """The arguments of a call are not valid, or do not fit together."""


class LeaderNotAvailable(OdradekError):
    """The partition has no leader, or its leader is changing. The SDK finds the new leader by itself."""

    retriable = True


class NotEnoughReplicas(OdradekError):
    """Fewer replicas are in sync than `min.insync.replicas`."""

    retriable = True
    default_hint = "start the brokers that are down, or lower min.insync.replicas of the topic"


class OffsetOutOfRange(OdradekError):
    """The offset is not in the log: retention deleted it, or it was never written."""

    default_hint = "seek elsewhere, or set auto_offset_reset to 'earliest' or 'latest'"


class LogTruncated(OdradekError):
    """Records that this consumer has read were lost in an unclean leader election, and are no longer in the log
    (KIP-320).
    """

    default_hint = "seek to `truncated_to` to read the records that replaced them"

    def __init__(self, message: str, *, truncated_to: int) -> None:
        self.truncated_to = truncated_to
        super().__init__(message)


class CorruptRecords(OdradekError):
    """The fetched bytes are damaged, or are not a record batch."""


class StorageFailed(OdradekError):
    """The disk of the broker failed. Another replica becomes the leader."""

    retriable = True


class ThrottlingQuotaExceeded(OdradekError):
    """The client has used up a quota, or its share of what all clients of a broker use together."""

    retriable = True
    default_hint = "slow down, or ask for a larger quota"


class ServerFault(OdradekError):
    """The broker failed because of an internal error; its log has the details."""

    default_hint = "look into the broker's log"


class RecordTooLarge(OdradekError):
    """A record is larger than the producer, the topic or the broker allows."""

    default_hint = "raise request_bytes_max here and max.message.bytes of the topic, or split it"


class SerializationFailed(OdradekError):
    """A serializer raised an exception, which is the cause of this error, or did not return bytes."""


class BufferFull(OdradekError):
    """The producer's buffer stayed full for `max_block_ms`, because the program sends faster than the brokers accept
    records.
    """

    retriable = True
    default_hint = "send slower, raise buffer_bytes_max, or look at why the brokers are slow"


class DeliveryTimedOut(OdradekError):
    """The record was not acknowledged within `delivery_timeout_ms`. It is not known whether it was written."""

    default_hint = "whether it was written is unknown; sending it again may write it twice"


class SequenceLost(OdradekError):
    """The leader has lost records that it had acknowledged, because of an unclean leader election or a lost disk."""

    default_hint = "compare the log with the records that were sent"


class ProducerFenced(OdradekError):
    """A newer producer uses this producer's transactional id or producer id."""

    fatal = True
    default_hint = "close this producer; the newer one continues"


class TransactionFailed(OdradekError):
    """The coordinator refused a request about a transaction, or the transaction cannot be completed."""


class TransactionAborted(TransactionFailed):
    """The transaction was aborted, so none of its records and offsets take effect. The error that caused this is
    chained.
    """

    retriable = True
    default_hint = "run the block of the transaction again (`producer.run_transaction` does)"


class TransactionOutcomeUnknown(TransactionFailed):
    """The coordinator did not respond to the commit in time, so it is not known whether the transaction is committed or
    aborted.
    """

    fatal = True
    default_hint = (
        "make a new producer with the same transactional_id, which ends what is open, and look whether the records"
        " are there"
    )


class TransactionInProgress(OdradekError):
    """This producer already has an open transaction; it can have only one at a time."""

    default_hint = "end it first, or use another producer with its own transactional_id"


class NotInTransaction(OdradekError):
    """This producer is transactional, but no transaction is open."""

    default_hint = "send within `async with producer.transaction():`"


class UnknownGroup(OdradekError):
    """No group of this name has members or committed offsets."""

    default_hint = "check the name (`odradek group list`); a group begins with its first member"


class GroupInUse(OdradekError):
    """The group has members, so the call is not possible."""

    default_hint = "stop its members first (`odradek group describe NAME` lists them)"


class MemberFenced(OdradekError):
    """The group removed this member, and other members now own its partitions."""

    default_hint = (
        "another member reads again what was not committed; read and commit more often, or raise"
        " rebalance_timeout_ms"
    )


class ClientClosed(OdradekError):
    """This client, producer or consumer is closed."""

    fatal = True


class WrongLoop(OdradekError):
    """This client belongs to another event loop, which runs its connections and tasks."""

    fatal = True
    default_hint = (
        "make a client inside of each `asyncio.run`, or use odradek.sync, from any thread"
    )


class ForkedProcess(OdradekError):
    """This process was forked from one with open connections, which work only in the parent process."""

    fatal = True
    default_hint = "make clients after the fork, or start processes by multiprocessing's 'spawn' or 'forkserver'"


class FlushTimedOut(OdradekError):
    """Some records were neither acknowledged nor failed when the timeout of `flush` passed. The producer continues to
    send them.
    """

    retriable = True


class NotAssigned(OdradekError):
    """The partition is not assigned to this consumer, or the consumer is in no group."""

    default_hint = "assign it first"


class MissingDependency(OdradekError):
    """An optional package that the call needs is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"the package {package} is not installed", hint=f"pip install 'odradek[{extra}]'"
        )


_LEAVES: Final[dict[ErrorCode, type[OdradekError]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.CORRUPT_MESSAGE: CorruptRecords,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopic,
    ErrorCode.INCONSISTENT_TOPIC_ID: UnknownTopic,
    ErrorCode.LEADER_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: LeaderNotAvailable,
    ErrorCode.FENCED_LEADER_EPOCH: LeaderNotAvailable,
    ErrorCode.UNKNOWN_LEADER_EPOCH: LeaderNotAvailable,
    ErrorCode.NEW_LEADER_ELECTED: LeaderNotAvailable,
    ErrorCode.BROKER_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.REPLICA_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.OFFSET_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.NOT_CONTROLLER: LeaderNotAvailable,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.STALE_BROKER_EPOCH: LeaderNotAvailable,
    ErrorCode.BROKER_ID_NOT_REGISTERED: LeaderNotAvailable,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: LeaderNotAvailable,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.NOT_COORDINATOR: LeaderNotAvailable,
    ErrorCode.REQUEST_TIMED_OUT: RequestTimedOut,
    ErrorCode.NETWORK_EXCEPTION: RequestTimedOut,
    ErrorCode.NOT_ENOUGH_REPLICAS: NotEnoughReplicas,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: NotEnoughReplicas,
    ErrorCode.MESSAGE_TOO_LARGE: RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordTooLarge,
    ErrorCode.INVALID_RECORD: CorruptRecords,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopic,
    ErrorCode.INVALID_PARTITIONS: InvalidTopic,
    ErrorCode.INVALID_REPLICATION_FACTOR: InvalidTopic,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: InvalidTopic,
    ErrorCode.POLICY_VIOLATION: InvalidTopic,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExists,
    ErrorCode.INVALID_CONFIG: InvalidConfig,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: AuthorizationFailed,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: AuthorizationFailed,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: AuthorizationFailed,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationFailed,
    ErrorCode.SASL_AUTHENTICATION_FAILED: AuthenticationFailed,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedOperation,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: UnsupportedOperation,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: UnsupportedOperation,
    ErrorCode.SECURITY_DISABLED: UnsupportedOperation,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: SequenceLost,
    ErrorCode.UNKNOWN_PRODUCER_ID: SequenceLost,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
    ErrorCode.PRODUCER_FENCED: ProducerFenced,
    ErrorCode.INVALID_TXN_STATE: TransactionFailed,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionFailed,
    ErrorCode.KAFKA_STORAGE_ERROR: StorageFailed,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownGroup,
    ErrorCode.NON_EMPTY_GROUP: GroupInUse,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: GroupInUse,
    ErrorCode.ILLEGAL_GENERATION: MemberFenced,
    ErrorCode.UNKNOWN_MEMBER_ID: MemberFenced,
    ErrorCode.FENCED_INSTANCE_ID: MemberFenced,
    ErrorCode.FENCED_MEMBER_EPOCH: MemberFenced,
    ErrorCode.STALE_MEMBER_EPOCH: MemberFenced,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ThrottlingQuotaExceeded,
    ErrorCode.UNKNOWN_SERVER_ERROR: ServerFault,
}


def error_code(number: int) -> ErrorCode:
    """Return the code with this number. An unknown number, from a newer broker, becomes UNKNOWN_SERVER_ERROR."""
    return ErrorCode.received(number)


def error_of(number: int, subject: str, message: str = "") -> OdradekError:
    """Return the SDK's error for an error code that a broker sent about `subject`, such as a topic or a config.

    `message` is the broker's message; without one, the name of the code takes its place.
    """
    code = error_code(number)
    leaf = _LEAVES.get(code, InvalidRequest)
    return leaf(f"{subject}: {message or code.name.lower().replace('_', ' ')}", code=code)
