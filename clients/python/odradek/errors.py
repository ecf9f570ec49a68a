"""The errors of the SDK: one tree of classes, with one leaf class for each remedy.

Catch `OdradekError` for all errors, or a leaf class to apply its remedy. Each error has these attributes: `.retriable`
(the same call may succeed later; the SDK has already retried it for as long as its timeout allowed), `.fatal` (this
producer or consumer can no longer be used; create a new one), `.code` (Kafka's error code, if a broker sent one) and
`.hint` (the remedy in words).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from odradek.spelling import did_you_mean
from odradek_protocol.kafka.error_codes import ErrorCode


class OdradekError(Exception):
    """The base class of all errors. `str()` returns what the error is about, what happened, and the remedy."""

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
    """The address belongs to another kind of listener, for example to a Kafka listener or an HTTP server."""

    default_hint = "use the gRPC address of a broker (listener GRPC, port 9090 by default)"


class NameUnresolvable(BrokerUnreachable):
    """The host name of a broker cannot be resolved on this machine."""

    default_hint = "check the spelling, DNS, or /etc/hosts"


class AdvertisedNameUnresolvable(NameUnresolvable):
    """A broker responded, but the host name that one of the cluster's brokers advertises cannot be resolved on this
    machine.
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
    """No known broker responded in time. `tried` lists the addresses that were tried, in order, and `errors` has the
    last error of each address.
    """

    retriable = True
    default_hint = (
        "check that the brokers are running, that the bootstrap addresses are their gRPC addresses, and whether they"
        " require TLS or a certificate"
    )

    def __init__(
        self,
        *,
        tried: Sequence[str],
        errors: Mapping[str, OdradekError] | None = None,
        last_error: BaseException | None = None,
        waited_s: float | None = None,
    ) -> None:
        self.tried = list(tried)
        self.errors = dict(errors or {})
        self.last_error = last_error
        waited = "" if waited_s is None else f" for {waited_s:.1f} s"
        attempts = [f"{endpoint}{self._reason_at(endpoint)}" for endpoint in self.tried]
        last = "" if last_error is None or self.errors else f"; last error: {last_error}"
        hints = dict.fromkeys(error.hint for error in self.errors.values() if error.hint)
        super().__init__(
            f"no broker was reachable{waited}, tried {', '.join(attempts)}{last}",
            hint="; ".join(hints) or None,
        )

    def _reason_at(self, endpoint: str) -> str:
        error = self.errors.get(endpoint)
        if error is None:
            return " (no response yet)" if self.errors else ""
        return f" ({error.reason if isinstance(error, BrokerUnreachable) else error.message})"


class NoActiveController(OdradekError):
    """The brokers respond, but no controller is active, so topics, configs and users can be neither read nor
    changed.
    """

    retriable = True
    default_hint = "start the controllers that are down: a majority of them must be up (`odradek quorum status`)"


class RequestTimedOut(OdradekError):
    """A request got no response in time. It is unknown whether the broker executed the request."""

    retriable = True


class AuthenticationFailed(OdradekError):
    """The cluster rejects the credentials of this client."""

    fatal = True
    default_hint = "check the client certificate or the credentials"


class AuthorizationFailed(OdradekError):
    """No ACL allows this client to make the call."""

    default_hint = "ask an administrator for an ACL that allows this operation"


class UnsupportedOperation(OdradekError):
    """The broker does not support the call, or does not support these arguments."""

    default_hint = (
        "upgrade the broker, or check that the address is that of the broker's gRPC listener"
    )


class UnknownTopic(OdradekError):
    """The topic or partition does not exist, or was created so recently that some brokers do not know it yet."""

    retriable = True
    default_hint = "create it (`odradek topic create NAME`), or check the name"


class TopicExists(OdradekError):
    """A topic of this name already exists."""

    default_hint = "choose another name, or use the existing topic"


class InvalidTopic(OdradekError):
    """The name, number of partitions or replicas of a topic are invalid."""


class InvalidConfig(OdradekError):
    """A config of the cluster, or an option of this SDK, is unknown or has an invalid value."""


class InvalidRequest(OdradekError):
    """The arguments of a call are invalid, or cannot be combined."""


class LeaderNotAvailable(OdradekError):
    """The partition has no leader, or its leader is changing. The SDK finds the new leader without help."""

    retriable = True


class NotEnoughReplicas(OdradekError):
    """Fewer replicas of the partition are in sync than `min.insync.replicas` requires."""

    retriable = True
    default_hint = "start the brokers that are down, or lower min.insync.replicas of the topic"


class OffsetOutOfRange(OdradekError):
    """The offset is not in the log: its record was deleted by retention, or was never written."""

    default_hint = "seek to another offset, or set auto_offset_reset to 'earliest' or 'latest'"


class LogTruncated(OdradekError):
    """Records that this consumer has read were lost in an unclean leader election (KIP-320).

    `truncated_to` is the first offset at which the log has other records than those that were read.
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
    """The client has used up a quota, or its share of a resource that all clients of the broker use."""

    retriable = True
    default_hint = "slow down, or ask for a larger quota"


class ServerFault(OdradekError):
    """The broker failed because of an internal error; its log has the details."""

    default_hint = "read the broker's log"


class RecordTooLarge(OdradekError):
    """A record is larger than the producer, the topic or the broker allows."""

    default_hint = (
        "raise the topic's max.message.bytes (and the producer's request_bytes_max, if it is lower), or split the"
        " record"
    )


class SerializationFailed(OdradekError):
    """A serializer did not return bytes, or raised an exception. `__cause__` is that exception."""


class BufferFull(OdradekError):
    """The producer's buffer stayed full for `max_block_ms`, because the program sends faster than the brokers accept
    records.
    """

    retriable = True
    default_hint = "send slower, raise buffer_bytes_max, or find out why the brokers are slow"


class DeliveryTimedOut(OdradekError):
    """The record was not acknowledged within `delivery_timeout_ms`. It is unknown whether the record was written."""

    default_hint = (
        "it is unknown whether the record was written; sending it again may write it twice"
    )


class SequenceLost(OdradekError):
    """The leader has lost records that it had acknowledged, in an unclean leader election, or because a disk was
    lost.
    """

    default_hint = "compare the log with the records that were sent"


class ProducerFenced(OdradekError):
    """A newer producer uses the transactional id or producer id of this producer."""

    fatal = True
    default_hint = "close this producer; the newer producer continues"


class TransactionFailed(OdradekError):
    """The coordinator rejected a request about a transaction, or the transaction cannot be completed."""


class TransactionAborted(TransactionFailed):
    """The transaction was aborted, so none of its records and offsets take effect. `__cause__` is the error that caused
    the abort.
    """

    retriable = True
    default_hint = "run the block of the transaction again (`producer.run_transaction` does)"


class TransactionOutcomeUnknown(TransactionFailed):
    """The coordinator did not respond to the commit in time, so it is unknown whether the transaction was committed or
    aborted.
    """

    fatal = True
    default_hint = (
        "create a new producer with the same transactional_id, which ends an open transaction, and check whether the"
        " records were committed"
    )


class TransactionInProgress(OdradekError):
    """This producer already has an open transaction. A producer can have only one open transaction."""

    default_hint = (
        "end the open transaction first, or use another producer with its own transactional_id"
    )


class NotInTransaction(OdradekError):
    """This producer is transactional, but no transaction is open."""

    default_hint = "send within `async with producer.transaction():`"


class UnknownGroup(OdradekError):
    """The group does not exist: it has neither members nor committed offsets."""

    default_hint = "check the name (`odradek group list`); a group is created by its first member"


class GroupInUse(OdradekError):
    """The call requires a group without members, but the group has members."""

    default_hint = "stop the members first (`odradek group describe NAME` lists them)"


class MemberFenced(OdradekError):
    """The group removed this member, and other members own its partitions now."""

    default_hint = (
        "another member reads the uncommitted records again; read and commit more often, or raise"
        " rebalance_timeout_ms"
    )


class ClientClosed(OdradekError):
    """This client, producer or consumer is closed."""

    fatal = True


class WrongLoop(OdradekError):
    """The client was used on another event loop than the one that runs its connections and tasks."""

    fatal = True
    default_hint = (
        "create a client in each `asyncio.run`, or use odradek.sync, which works in any thread"
    )


class ForkedProcess(OdradekError):
    """The client was created before this process was forked. Its connections work only in the parent process."""

    fatal = True
    default_hint = "create clients after the fork, or use the start method 'spawn' or 'forkserver' of multiprocessing"


class FlushTimedOut(OdradekError):
    """Some records were neither acknowledged nor failed when the timeout of `flush` passed. The producer continues to
    send them.
    """

    retriable = True


class NotAssigned(OdradekError):
    """The partition is not assigned to this consumer, or the consumer is not in a group."""

    default_hint = "call `assign` or `subscribe` first"


class MissingDependency(OdradekError):
    """An optional package that the call needs is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"the package {package} is not installed", hint=f"pip install 'odradek[{extra}]'"
        )


def check_option(name: str, is_valid: bool, value: object, allowed: str) -> None:
    """Raise InvalidConfig if the value of an SDK option is not valid. `allowed` describes the valid values. If it
    lists words, the error suggests the most similar one.
    """
    if not is_valid:
        suggestion = did_you_mean(str(value), re.findall(r"[a-z][a-z0-9_]*", allowed))
        raise InvalidConfig(f"{name} is {value!r}", hint=f"allowed: {allowed}{suggestion}")


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
    """Return the ErrorCode with this number. A number that this SDK does not know becomes UNKNOWN_SERVER_ERROR."""
    return ErrorCode.received(number)


def error_of(number: int, subject: str, message: str = "") -> OdradekError:
    """Return the SDK's error for an error code that a broker sent about `subject`, such as a topic or a config.

    `message` is the broker's message. Without a message, the name of the code is used. A message that begins with the
    subject is used unchanged, so that the error does not name the subject twice.
    """
    code = error_code(number)
    leaf = _LEAVES.get(code, InvalidRequest)
    # The producer splits batches of several records, so the broker's advice to send smaller batches would mislead.
    if leaf is RecordTooLarge:
        message = message.partition(": send smaller batches")[0]
    if message.startswith((f"{subject} ", subject.replace("'", "") + " ")):
        return leaf(message, code=code)
    return leaf(f"{subject}: {message or code.name.lower().replace('_', ' ')}", code=code)
