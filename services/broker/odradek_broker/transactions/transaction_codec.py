"""The encoding of the records of `__transaction_state`, in Kafka's formats TransactionLogKey and TransactionLogValue.

A key is an int16 version, which is 0, and the transactional id. A value begins with an int16 version. Version 1 is
written; version 0, which has no tagged fields, can also be read. Fields that do not exist in Kafka have tags from
10,000 on, and Kafka's tools ignore them. Records whose key has another version are skipped, because a newer release has
written them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Final

from odradek_broker.transactions.identity import NO_EPOCH, ProducerIdentity
from odradek_broker.transactions.transaction import (
    EndedBy,
    Ledger,
    Outcome,
    Staged,
    Transaction,
    TransactionalId,
    TransactionPartition,
    TransactionRecord,
    TransactionStatus,
)
from odradek_protocol.identity import (
    NO_PRODUCER_ID,
    NO_TOPIC_ID,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.primitives import (
    Malformed,
    read_array_count,
    read_compact_array_count,
    read_compact_string,
    read_string,
    read_tagged_fields,
    write_compact_array_count,
    write_compact_string,
    write_string,
    write_tagged_fields,
)

_KEY_VERSION: Final = 0
_VERSION: Final = 1
_PREVIOUS_ID_TAG: Final = 0
_NEXT_ID_TAG: Final = 1
_CLIENT_VERSION_TAG: Final = 2
_TOPIC_IDS_TAG: Final = 10_000
_LAST_EPOCH_TAG: Final = 10_001
_ENDED_BY_TAG: Final = 10_002
_STAGED_TAG: Final = 10_003
_LEDGER_TAG: Final = 10_004
_LAST_OUTCOME_TAG: Final = 10_005

_KEY_START: Final = _KEY_VERSION.to_bytes(2)
_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">hqhib")  # version, producer id, epoch, timeout, status
_TIMES: Final = struct.Struct(">qq")  # last update, start
_STAGED_STEP: Final = struct.Struct(">qq")  # step, prepared
_LEDGER: Final = struct.Struct(">qi?")
_OUTCOME: Final = struct.Struct(">qh?")
# The most common form of a value: version, producer id, epoch, timeout, status, number of topics, last update, start
# and number of tagged fields; then tag, length and value of the client's version, the last epoch and the last outcome.
_USUAL: Final = struct.Struct(">hqhibBqq3sh3sh3sqh?")
_USUAL_FORM: Final = (_VERSION, b"\x03\x02\x02", b"\x91\x4e\x02", b"\x95\x4e\x0b")
_STATUSES: Final = {int(status): status for status in TransactionStatus}
_UUID_BYTES: Final = 16
_INT32_BYTES: Final = 4


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record. The value of a tombstone is None."""
    key = bytearray(_INT16.pack(_KEY_VERSION))
    write_string(key, record.transactional_id)
    return bytes(key), None if record.state is None else _value(record.state)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Decode a record. Return None if this release does not know the version of the key.

    Raises:
        Malformed: the key or the value is not valid, or a newer release has written the value.
    """
    if key[: _INT16.size] != _KEY_START:
        if len(key) < _INT16.size:
            raise Malformed(f"the key of a transaction record has {len(key)} bytes")
        return None
    name, _ = read_string(key, _INT16.size)
    if not name:
        raise Malformed("a transaction record has no transactional id")
    try:
        state = None if value is None else _read_usual(value) or _read_value(value)
    except struct.error as error:
        raise Malformed(f"the record of {name!r} ends too early: {error}") from None
    return TransactionRecord(TransactionalId(name), state)


def _value(state: Transaction) -> bytes:
    out = bytearray(
        _HEAD.pack(
            _VERSION, state.producer_id, state.producer_epoch, state.timeout_ms, state.status
        )
    )
    topics = [
        (topic, topic_id, [partition.partition for partition in partitions])
        for (topic, topic_id), partitions in groupby(
            sorted(state.partitions, key=lambda p: (p.topic, p.topic_id, p.partition)),
            key=lambda p: (p.topic, p.topic_id),
        )
    ]
    # As in Kafka, null for the status EMPTY, and an empty array for a complete transaction.
    write_compact_array_count(out, -1 if state.status is TransactionStatus.EMPTY else len(topics))
    for topic, _, indexes in topics:
        write_compact_string(out, topic)
        write_compact_array_count(out, len(indexes))
        out += struct.pack(f">{len(indexes)}i", *indexes)
        write_tagged_fields(out)
    out += _TIMES.pack(state.update_ms, state.start_ms)
    tags = _tags(state)
    if topics:
        tags[_TOPIC_IDS_TAG] = b"".join(topic_id for _, topic_id, _ in topics)
    write_tagged_fields(out, tags)
    return bytes(out)


def _tags(state: Transaction) -> dict[int, bytes]:
    """Return the tagged fields of a value. Fields with their default values are omitted."""
    tags: dict[int, bytes] = {}
    if state.previous_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_ID_TAG] = _INT64.pack(state.previous_id)
    if state.next_id != NO_PRODUCER_ID:
        tags[_NEXT_ID_TAG] = _INT64.pack(state.next_id)
    if state.client_version:
        tags[_CLIENT_VERSION_TAG] = _INT16.pack(state.client_version)
    if state.last_epoch != NO_EPOCH:
        tags[_LAST_EPOCH_TAG] = _INT16.pack(state.last_epoch)
    if state.ended_by is not EndedBy.CLIENT:
        tags[_ENDED_BY_TAG] = _INT8.pack(state.ended_by)
    if state.staged is not None:
        staged = bytearray(_STAGED_STEP.pack(state.staged.step, state.staged.prepared_ms))
        write_compact_string(staged, state.staged.member)
        # Older releases ignore bytes after the name of the member.
        if state.staged.prepared_timeout_ms:
            staged += _INT64.pack(state.staged.prepared_timeout_ms)
        tags[_STAGED_TAG] = bytes(staged)
    if state.ledger is not None:
        ledger = state.ledger
        tags[_LEDGER_TAG] = _LEDGER.pack(ledger.last_step, ledger.members, ledger.is_final)
    if state.last_outcome is not None:
        identity = state.last_outcome.identity
        tags[_LAST_OUTCOME_TAG] = _OUTCOME.pack(
            identity.producer_id, identity.epoch, state.last_outcome.is_commit
        )
    return tags


def _read_usual(value: bytes) -> Transaction | None:
    """Decode a value of the most common form, which is written when a client with transaction version 2 ends a
    transaction. Return None for a value of any other form.

    This makes loading faster: `_read_value` takes three times as long, and the transactions of a shard make no progress
    while it is loaded.
    """
    if len(value) != _USUAL.size:
        return None
    head, producer_id, epoch, timeout_ms, status_number, topics, update_ms, start_ms, *tags = (
        _USUAL.unpack(value)
    )
    tags_1, client_version, tag_2, last_epoch, tag_3, data_id, data_epoch, is_commit = tags
    status = _STATUSES.get(status_number)
    if (head, tags_1, tag_2, tag_3) != _USUAL_FORM or topics > 1 or status is None:
        return None
    return Transaction(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        timeout_ms=timeout_ms,
        status=status,
        partitions=_NO_PARTITIONS,
        update_ms=update_ms,
        start_ms=start_ms,
        client_version=client_version,
        last_outcome=Outcome(ProducerIdentity(data_id, data_epoch), is_commit),
    )


def _read_value(value: bytes) -> Transaction:
    version, producer_id, epoch, timeout_ms, status_number = _HEAD.unpack_from(value)
    if not 0 <= version <= _VERSION:
        raise Malformed(
            f"TransactionLogValue has the unsupported version {version}: a newer release wrote it"
        )
    status = _STATUSES.get(status_number)
    if status is None:
        raise Malformed(f"a transaction has the unknown status {status_number}")
    topics, position = _read_topics(value, _HEAD.size, is_flexible=version > 0)
    update_ms, start_ms = _TIMES.unpack_from(value, position)
    tags: dict[int, bytes] = {}
    if version > 0:
        tags, _ = read_tagged_fields(value, position + _TIMES.size)
    fields = {}
    for tag, field in tags.items():
        if tag in _TAGGED_FIELDS:
            name, read = _TAGGED_FIELDS[tag]
            fields[name] = read(field)
    return Transaction(
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        timeout_ms=timeout_ms,
        status=status,
        partitions=frozenset(_partitions(topics, tags.get(_TOPIC_IDS_TAG)))
        if topics or _TOPIC_IDS_TAG in tags
        else _NO_PARTITIONS,
        update_ms=update_ms,
        start_ms=start_ms,
        **fields,
    )


_Topics = list[tuple[TopicName, tuple[int, ...]]]


def _read_topics(value: bytes, position: int, *, is_flexible: bool) -> tuple[_Topics, int]:
    read_count = read_compact_array_count if is_flexible else read_array_count
    read_text = read_compact_string if is_flexible else read_string
    count, position = read_count(value, position)
    topics = []
    for _ in range(count):
        topic, position = read_text(value, position)
        partition_count, position = read_count(value, position, _INT32_BYTES)
        indexes = struct.unpack_from(f">{max(0, partition_count)}i", value, position)
        position += _INT32_BYTES * len(indexes)
        if is_flexible:
            _, position = read_tagged_fields(value, position)
        topics.append((TopicName(topic or ""), indexes))
    return topics, position


def _partitions(topics: _Topics, topic_ids: bytes | None) -> Iterable[TransactionPartition]:
    """Yield the partitions. `topic_ids` is None in a record that Kafka has written; NO_TOPIC_ID is then used."""
    if topic_ids is None:
        topic_ids = NO_TOPIC_ID * len(topics)
    if len(topic_ids) != _UUID_BYTES * len(topics):
        raise Malformed(
            f"the record has {len(topic_ids)} bytes of topic ids for {len(topics)} topics"
        )
    for number, (topic, indexes) in enumerate(topics):
        topic_id = TopicId(topic_ids[number * _UUID_BYTES : (number + 1) * _UUID_BYTES])
        for index in indexes:
            yield TransactionPartition(topic_id, topic, PartitionIndex(index))


def _number(form: struct.Struct) -> Callable[[bytes], int]:
    return lambda field: form.unpack_from(field)[0]


def _ended_by(field: bytes) -> EndedBy:
    (number,) = _INT8.unpack_from(field)
    try:
        return EndedBy(number)
    except ValueError:
        raise Malformed(
            f"the cause of a transaction's end has the unknown number {number}"
        ) from None


def _last_outcome(field: bytes) -> Outcome:
    producer_id, epoch, is_commit = _OUTCOME.unpack_from(field)
    return Outcome(ProducerIdentity(ProducerId(producer_id), ProducerEpoch(epoch)), bool(is_commit))


def _staged(field: bytes) -> Staged:
    step, prepared_ms = _STAGED_STEP.unpack_from(field)
    member, position = read_compact_string(field, _STAGED_STEP.size)
    has_timeout = len(field) > position
    (timeout_ms,) = _INT64.unpack_from(field, position) if has_timeout else (0,)
    return Staged(step, member or "", prepared_ms, timeout_ms)


def _ledger(field: bytes) -> Ledger:
    last_step, members, is_final = _LEDGER.unpack_from(field)
    return Ledger(last_step=last_step, members=members, is_final=bool(is_final))


_NO_PARTITIONS: Final[frozenset[TransactionPartition]] = frozenset()
_TAGGED_FIELDS: Final[dict[int, tuple[str, Callable[[bytes], Any]]]] = {
    _PREVIOUS_ID_TAG: ("previous_id", _number(_INT64)),
    _NEXT_ID_TAG: ("next_id", _number(_INT64)),
    _CLIENT_VERSION_TAG: ("client_version", _number(_INT16)),
    _LAST_EPOCH_TAG: ("last_epoch", _number(_INT16)),
    _ENDED_BY_TAG: ("ended_by", _ended_by),
    _STAGED_TAG: ("staged", _staged),
    _LEDGER_TAG: ("ledger", _ledger),
    _LAST_OUTCOME_TAG: ("last_outcome", _last_outcome),
}
"""The field of `Transaction` for each tag, and the function that decodes the field."""
