"""Conversations about records: Produce, ListOffsets, DeleteRecords and OffsetForLeaderEpoch."""

from __future__ import annotations

import uuid
from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.records.batch_header import Compression
from odradek_protocol.records.builder import BatchBuilder
from tests.e2e.kafka.same_answers.conversation import Conversation

T0_MS = 1_700_000_000_000
_UNKNOWN_ID = uuid.UUID(int=0xABCDEF)


def batch(
    *values: str | None,
    timestamps_ms: tuple[int, ...] = (),
    key: bytes | None = b"k",
    **numbers: Any,
) -> bytes:
    """Return a record batch with these values. Without `timestamps_ms`, the timestamps are one second apart."""
    builder = BatchBuilder()
    for index, value in enumerate(values or ("v",)):
        at_ms = timestamps_ms[index] if timestamps_ms else T0_MS + 1000 * index
        builder.append(key, None if value is None else value.encode(), None, at_ms)
    return bytes(builder.build(**numbers))


def produce(
    talk: Conversation,
    label: str,
    topic: str,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    an_id: Any = None,
    transactional_id: str | None = None,
    version: int | None = None,
    timeout_ms: int = 10_000,
) -> Any:
    """Produce to one partition. The topic is given by name, or by id in versions that need an id."""
    if an_id is None and (version or talk.version(ApiKey.PRODUCE)) >= 13:
        an_id = talk.topic_id(topic)
    data = [{"index": partition, "records": records}]
    topics = [{"name": topic, "topic_id": an_id or bytes(16), "partition_data": data}]
    return talk.ask(
        label,
        ApiKey.PRODUCE,
        version,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=topics,
    )


def fill(talk: Conversation, topic: str, batches: int = 3, partition: int = 0) -> None:
    """Produce batches of two records."""
    for number in range(batches):
        times = (T0_MS + 10_000 * number, T0_MS + 10_000 * number + 1)
        produce(
            talk,
            f"fill {topic.split('-')[0]} {partition} {number}",
            topic,
            batch("a", "b", timestamps_ms=times),
            partition=partition,
        )


def produce_ordinary(talk: Conversation) -> None:
    """Send valid produce requests with each value of acks, and produce to partitions that do not exist."""
    topic = talk.topic("t", 2)
    for acks in (1, -1, 2, -2, 7):
        produce(talk, f"acks {acks}", topic, batch("a"), acks=acks)
    produce(talk, "two records", topic, batch("a", "b"))
    produce(talk, "partition 1", topic, batch("a"), partition=1)
    for partition in (2, -1, 99):
        produce(talk, f"partition {partition}", topic, batch("a"), partition=partition)
    produce(talk, "unknown topic", "nowhere", batch("a"), an_id=_UNKNOWN_ID)
    produce(talk, "no topic id", "nowhere", batch("a"), an_id=bytes(16))
    produce(talk, "empty name", "", batch("a"), an_id=bytes(16))
    produce(talk, "bad name", "a b", batch("a"), an_id=bytes(16))
    produce(talk, "null records", topic, None)
    produce(talk, "no records", topic, b"")
    produce(talk, "timeout 0", topic, batch("a"), timeout_ms=0)
    produce(talk, "timeout negative", topic, batch("a"), timeout_ms=-1)
    produce(talk, "empty transactional id", topic, batch("a"), transactional_id="")
    produce(talk, "transactional id of plain records", topic, batch("a"), transactional_id="x")
    talk.ask("no topics", ApiKey.PRODUCE, acks=-1, timeout_ms=1000)
    an_id = talk.topic_id(topic)
    one = {"index": 0, "records": batch("a")}
    for label, data in (("no partitions", []), ("partition twice", [one, one])):
        topics = [{"name": topic, "topic_id": an_id, "partition_data": data}]
        talk.ask(label, ApiKey.PRODUCE, acks=-1, timeout_ms=1000, topic_data=topics)
    wrong = {"index": 9, "records": batch("a")}
    topics = [{"name": topic, "topic_id": an_id, "partition_data": [one, wrong]}]
    talk.ask("one right, one wrong", ApiKey.PRODUCE, acks=-1, timeout_ms=1000, topic_data=topics)
    talk.ask("topic twice", ApiKey.PRODUCE, acks=-1, timeout_ms=1000, topic_data=topics * 2)
    produce(talk, "to an internal topic", "__consumer_offsets", batch("a"))


def produce_damaged(talk: Conversation) -> None:
    """Produce batches that are damaged, of other formats or not allowed by the topic."""
    topic = talk.topic("t")
    good = batch("a", "b")

    def changed(position: int, value: int, *, checked: bool = False) -> bytes:
        content = bytearray(good)
        content[position] = value
        return _checked(bytes(content)) if checked else bytes(content)

    produce(talk, "wrong checksum", topic, changed(17, good[17] ^ 0xFF))
    produce(talk, "cut", topic, good[:-3])
    produce(talk, "cut within the header", topic, good[:40])
    produce(talk, "5 bytes", topic, good[:5])
    for magic in (0, 1, 3, 127):
        produce(talk, f"magic {magic}", topic, changed(16, magic))
    produce(talk, "two batches", topic, good + good)
    produce(talk, "batch and rubbish", topic, good + b"rubbish")
    produce(talk, "size 0", topic, changed(11, 0))
    produce(talk, "record count 5", topic, changed(60, 5, checked=True))
    produce(talk, "record count 0", topic, changed(60, 0, checked=True))
    produce(talk, "last offset 7", topic, changed(26, 7, checked=True))
    produce(talk, "negative last offset", topic, changed(23, 255, checked=True))
    produce(talk, "control batch", topic, changed(22, 0x20, checked=True))
    produce(talk, "transactional bit alone", topic, changed(22, 0x10, checked=True))
    produce(talk, "append time bit", topic, changed(22, 0x08, checked=True))
    produce(talk, "unknown attribute", topic, changed(21, 0x80, checked=True))
    produce(talk, "codec 5", topic, changed(22, 5, checked=True))
    produce(talk, "codec 7", topic, changed(22, 7, checked=True))
    produce(talk, "says gzip, is plain", topic, changed(22, 1, checked=True))
    produce(talk, "base offset 9", topic, changed(7, 9))
    produce(talk, "leader epoch 9", topic, changed(15, 9))
    for codec in Compression:
        produce(talk, f"codec {codec.name}", topic, batch("a" * 99, "b", compression=codec))
    produce(
        talk,
        "in gzip, codec none",
        topic,
        _checked(_with_attributes(batch("a" * 99, compression=Compression.GZIP), 0)),
    )


def _checked(content: bytes) -> bytes:
    from odradek_protocol.records import crc32c

    return content[:17] + crc32c(content[21:]).to_bytes(4, "big") + content[21:]


def _with_attributes(content: bytes, attributes: int) -> bytes:
    return content[:21] + attributes.to_bytes(2, "big") + content[23:]


def produce_configured(talk: Conversation) -> None:
    """Produce records that the topic's configs refuse or change."""
    compacted = talk.topic("compacted", cleanup_policy="compact")
    produce(talk, "compacted, key", compacted, batch("a"))
    produce(talk, "compacted, no key", compacted, batch("a", key=None))
    produce(talk, "compacted, tombstone", compacted, batch(None))
    small = talk.topic("small", max_message_bytes="100")
    produce(talk, "small, fits", small, batch("a"))
    produce(talk, "small, too large", small, batch("a" * 200))
    append = talk.topic("append", message_timestamp_type="LogAppendTime")
    produce(talk, "append time", append, batch("a", timestamps_ms=(5,)))
    late = talk.topic(
        "late", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000"
    )
    produce(talk, "too early", late, batch("a", "b", timestamps_ms=(5, 6)))
    produce(talk, "too late", late, batch("a", timestamps_ms=(1 << 50,)))
    plain = talk.topic("plain")
    produce(talk, "no timestamp", plain, batch("a", timestamps_ms=(-1,)))
    produce(talk, "timestamp 0", plain, batch("a", timestamps_ms=(0,)))
    produce(talk, "in the future", plain, batch("a", timestamps_ms=(1 << 60,)))
    insync = talk.topic("insync", min_insync_replicas="2")
    for acks in (1, -1):
        produce(talk, f"two in sync, acks {acks}", insync, batch("a"), acks=acks, timeout_ms=500)
    zipped = talk.topic("zipped", compression_type="gzip")
    produce(talk, "recompressed", zipped, batch("a" * 500))


def idempotent_producer(talk: Conversation) -> None:
    """Produce with producer ids, epochs and sequences."""
    topic = talk.topic("t", 2)
    response = talk.prepare(ApiKey.INIT_PRODUCER_ID, 1, transaction_timeout_ms=1000)
    pid = response["producer_id"]

    def send(
        label: str,
        epoch: int,
        sequence: int,
        values: int = 1,
        producer: int = pid,
        partition: int = 0,
    ) -> None:
        numbers: dict[str, Any] = {
            "producer_id": producer,
            "producer_epoch": epoch,
            "base_sequence": sequence,
        }
        content = batch(*"v" * values, **numbers)
        produce(talk, label, topic, content, partition=partition)

    send("first", 0, 0, 2)
    send("repeated", 0, 0, 2)
    send("overlapping", 0, 1, 2)
    send("gap", 0, 5)
    send("next", 0, 2)
    for number in range(3, 10):
        send(f"sequence {number}", 0, number)
    send("one of the last five", 0, 6)
    send("before the last five", 0, 2)
    send("the very first", 0, 0, 2)
    send("new epoch, not from 0", 1, 10)
    send("new epoch", 1, 0)
    send("old epoch", 0, 10)
    send("other partition, not from 0", 1, 4, partition=1)
    send("other partition, next", 1, 5, partition=1)
    send("unknown producer", 0, 0, producer=pid + 100_000)
    send("unknown producer, not from 0", 0, 3, producer=pid + 100_001)
    send("no epoch", -1, 0)
    send("no sequence", 1, -1)
    send("negative sequence", 1, -5)
    send("negative producer", 0, 0, producer=-2)
    send("wrap begins", 2, 0, partition=1)
    numbers = {"producer_id": pid, "producer_epoch": 3, "base_sequence": 0}
    both = batch("a", **numbers) + batch("b", **numbers | {"base_sequence": 1})
    produce(talk, "two batches", topic, both)


def list_offsets(talk: Conversation) -> None:
    """Look up offsets by time, and with wrong leader epochs and isolation levels."""
    key, topic = ApiKey.LIST_OFFSETS, talk.topic("t", 2)
    fill(talk, topic)

    def look(
        label: str, *parts: tuple[int, int], epoch: int = -1, name: str = topic, **more: Any
    ) -> None:
        items = [
            {"partition_index": index, "timestamp": at_ms, "current_leader_epoch": epoch}
            for index, at_ms in parts
        ]
        more = {"replica_id": -1, "timeout_ms": 5000} | more
        talk.ask(label, key, topics=[{"name": name, "partitions": items}], **more)

    for at in (
        -1,
        -2,
        -3,
        -4,
        -5,
        -6,
        -7,
        -100,
        0,
        1,
        T0_MS,
        T0_MS + 1,
        T0_MS + 2,
        T0_MS + 20_001,
        T0_MS + 20_002,
        (1 << 63) - 1,
    ):
        look(f"at {at}", (0, at))
        look(f"empty partition at {at}", (1, at))
        look(f"committed at {at}", (0, at), isolation_level=1)
    look("both", (0, -1), (1, -1))
    look("twice", (0, -1), (0, -2))
    look("missing partition", (2, -1))
    look("negative partition", (-1, -1))
    look("unknown topic", (0, -1), name="nowhere")
    look("empty name", (0, -1), name="")
    look("level 2", (0, -1), isolation_level=2)
    look("level -1", (0, -1), isolation_level=-1)
    look("current epoch", (0, -1), epoch=0)
    look("later epoch", (0, -1), epoch=5)
    look("epoch -2", (0, -1), epoch=-2)
    look("as a follower", (0, -1), replica_id=1)
    look("as a debugging consumer", (0, -1), replica_id=-2)
    look("as an unknown replica", (0, -1), replica_id=99)
    look("no partitions")
    talk.ask("no topics", key, replica_id=-1)
    one = {
        "name": topic,
        "partitions": [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}],
    }
    talk.ask("topic twice", key, replica_id=-1, topics=[one, one])
    talk.ask("topic and unknown", key, replica_id=-1, topics=[one, one | {"name": "nowhere"}])


def delete_records(talk: Conversation) -> None:
    """Delete records, also at offsets that do not exist."""
    key, topic = ApiKey.DELETE_RECORDS, talk.topic("t", 2)
    fill(talk, topic)

    def delete(
        label: str, *parts: tuple[int, int], name: str = topic, timeout_ms: int = 5000
    ) -> None:
        items = [{"partition_index": index, "offset": offset} for index, offset in parts]
        topics = [{"name": name, "partitions": items}]
        talk.ask(label, key, topics=topics, timeout_ms=timeout_ms)

    delete("to 1", (0, 1))
    delete("to 0", (0, 0))
    delete("to 3", (0, 3))
    delete("back to 2", (0, 2))
    delete("beyond the end", (0, 7))
    delete("to -2", (0, -2))
    delete("missing partition", (2, 0))
    delete("negative partition", (-1, 0))
    delete("unknown topic", (0, 0), name="nowhere")
    delete("empty name", (0, 0), name="")
    delete("twice", (0, 3), (0, 4))
    delete("one wrong", (0, 4), (9, 4))
    delete("no partitions")
    talk.ask("no topics", key, timeout_ms=1000)
    delete("internal", (0, 0), name="__consumer_offsets")
    compacted = talk.topic("compacted", cleanup_policy="compact")
    produce(talk, "fill compacted", compacted, batch("a"))
    delete("compacted", (0, 1), name=compacted)
    delete("all", (0, -1))
    delete("empty partition", (1, -1))
    delete("no time", (0, -1), timeout_ms=0)
    for at in (-1, -2):
        part = {"partition_index": 0, "timestamp": at, "current_leader_epoch": -1}
        topics = [{"name": topic, "partitions": [part]}]
        talk.ask(f"offset {at} after", ApiKey.LIST_OFFSETS, replica_id=-1, topics=topics)


def offset_for_leader_epoch(talk: Conversation) -> None:
    """Request the end offsets of leader epochs."""
    key, topic = ApiKey.OFFSET_FOR_LEADER_EPOCH, talk.topic("t", 2)
    fill(talk, topic)

    def look(
        label: str,
        epoch: int,
        current: int = -1,
        index: int = 0,
        name: str = topic,
        replica_id: int = -1,
    ) -> None:
        part = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
        topics = [{"topic": name, "partitions": [part]}]
        talk.ask(label, key, replica_id=replica_id, topics=topics)

    for epoch in (0, 1, 9, -1, -2, (1 << 31) - 1):
        look(f"epoch {epoch}", epoch)
        look(f"empty partition, epoch {epoch}", epoch, index=1)
    for current in (0, 5, -2):
        look(f"current {current}", 0, current)
    look("missing partition", 0, index=2)
    look("negative partition", 0, index=-1)
    look("unknown topic", 0, name="nowhere")
    look("empty name", 0, name="")
    look("as a debugging consumer", 0, replica_id=-2)
    look("as a replica", 0, replica_id=1)
    talk.ask("no topics", key, replica_id=-1)
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    talk.ask("twice", key, replica_id=-1, topics=[{"topic": topic, "partitions": [part, part]}])


def describe_producers(talk: Conversation) -> None:
    """Describe the producers of partitions."""
    key, topic = ApiKey.DESCRIBE_PRODUCERS, talk.topic("t", 2)
    response = talk.prepare(ApiKey.INIT_PRODUCER_ID, 1, transaction_timeout_ms=1000)
    numbers = {"producer_id": response["producer_id"], "producer_epoch": 0, "base_sequence": 0}
    produce(talk, "fill", topic, batch("a", "b", **numbers))
    for label, name, indexes in (
        ("one", topic, [0]),
        ("both", topic, [0, 1]),
        ("missing", topic, [0, 7, -1]),
        ("twice", topic, [0, 0]),
        ("unknown", "nowhere", [0]),
        ("none", topic, []),
    ):
        talk.ask(label, key, topics=[{"name": name, "partition_indexes": indexes}])
    talk.ask("no topics", key)


TALKS = (
    produce_ordinary,
    produce_damaged,
    produce_configured,
    idempotent_producer,
    list_offsets,
    delete_records,
    offset_for_leader_epoch,
    describe_producers,
)
