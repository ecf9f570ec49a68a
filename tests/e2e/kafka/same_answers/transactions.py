"""Conversations about producer ids and transactions."""

from __future__ import annotations

from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation
from tests.e2e.kafka.same_answers.fetches import Fetcher
from tests.e2e.kafka.same_answers.groups import member_of
from tests.e2e.kafka.same_answers.offsets import committed, topic_item
from tests.e2e.kafka.same_answers.records import batch, produce

_BATCHED = 4
_ADDING_PRODUCE = 12  # its transactional requests add their partitions themselves
_BUMPING_END = 5


class Producer:
    """A transactional producer: its producer id, epoch and sequence according to the responses."""

    def __init__(self, talk: Conversation, noun: str = "tx") -> None:
        self._talk = talk
        self.transactional_id = talk.named(noun)
        self.id = -1
        self.epoch = -1

    def begin(self, label: str, **more: Any) -> Any:
        response = init(self._talk, label, self.transactional_id, **more)
        if isinstance(response, dict) and response["error_code"] == 0:
            self.id, self.epoch = response["producer_id"], response["producer_epoch"]
        return response

    @property
    def identity(self) -> dict[str, Any]:
        return {"producer_id": self.id, "producer_epoch": self.epoch}

    def add(self, label: str, *topics: tuple[str, list[int]], **more: Any) -> Any:
        fields = {"transactional_id": self.transactional_id, **self.identity} | more
        items = [{"name": name, "partitions": indexes} for name, indexes in topics]
        if self._talk.version(ApiKey.ADD_PARTITIONS_TO_TXN) >= _BATCHED:
            one = fields | {"topics": items, "verify_only": fields.pop("verify_only", False)}
            return self._talk.ask(label, ApiKey.ADD_PARTITIONS_TO_TXN, transactions=[one])
        fields.pop("verify_only", None)
        old = {f"v3_and_below_{name}": value for name, value in fields.items()}
        return self._talk.ask(label, ApiKey.ADD_PARTITIONS_TO_TXN, v3_and_below_topics=items, **old)

    def send(self, label: str, topic: str, sequence: int, partition: int = 0, **more: Any) -> Any:
        numbers = self.identity | {"base_sequence": sequence, "transactional": True} | more
        content = batch("v", **numbers)
        return produce(
            self._talk,
            label,
            topic,
            content,
            partition=partition,
            transactional_id=self.transactional_id,
        )

    def add_offsets(self, label: str, group: str, **more: Any) -> Any:
        fields = {"transactional_id": self.transactional_id, **self.identity, "group_id": group}
        return self._talk.ask(label, ApiKey.ADD_OFFSETS_TO_TXN, **fields | more)

    def commit_offsets(
        self, label: str, group: str, topic: str, *parts: dict[str, Any], **more: Any
    ) -> Any:
        ordinary = {
            "partition_index": 0,
            "committed_offset": 3,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        topics = [
            topic_item(self._talk, topic, ApiKey.TXN_OFFSET_COMMIT)
            | {"partitions": [ordinary | part for part in parts]}
        ]
        fields = {
            "transactional_id": self.transactional_id,
            **self.identity,
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "topics": topics,
        }
        return self._talk.ask(label, ApiKey.TXN_OFFSET_COMMIT, **fields | more)

    def end(self, label: str, *, commit: bool = True, **more: Any) -> Any:
        fields = {"transactional_id": self.transactional_id, **self.identity, "committed": commit}
        response = self._talk.ask(label, ApiKey.END_TXN, **fields | more)
        bumps = self._talk.version(ApiKey.END_TXN) >= _BUMPING_END
        if bumps and isinstance(response, dict) and response["error_code"] == 0:
            self.id, self.epoch = response["producer_id"], response["producer_epoch"]
        self._wait()
        return response

    def _wait(self) -> None:
        """Wait until the markers of the transaction are written."""
        key, ids = ApiKey.DESCRIBE_TRANSACTIONS, [self.transactional_id]
        while True:
            (state,) = self._talk.prepare(key, 0, transactional_ids=ids)["transaction_states"]
            if not state["transaction_state"].startswith("Prepare"):
                return


def init(talk: Conversation, label: str, transactional_id: str | None, **more: Any) -> Any:
    fields = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1} | more
    return talk.ask(label, ApiKey.INIT_PRODUCER_ID, transactional_id=transactional_id, **fields)


def init_producer_id(talk: Conversation) -> None:
    """Request producer ids, with every combination of wrong fields."""
    init(talk, "idempotent", None)
    init(talk, "empty id", "")
    for timeout_ms in (0, -1, 1, 900_000, 900_001, (1 << 31) - 1):
        init(talk, f"timeout {timeout_ms}", talk.named("timed"), transaction_timeout_ms=timeout_ms)
        init(talk, f"idempotent, timeout {timeout_ms}", None, transaction_timeout_ms=timeout_ms)
    init(talk, "idempotent with an identity", None, producer_id=5, producer_epoch=1)
    for producer_id, epoch in ((5, -1), (-1, 5), (-2, 0), (0, -2), (5, 5)):
        init(
            talk,
            f"new with {producer_id}/{epoch}",
            talk.named(f"new{producer_id}{epoch}"),
            producer_id=producer_id,
            producer_epoch=epoch,
        )
    producer = Producer(talk)
    producer.begin("first")
    producer.begin("second")
    producer.begin("third, with identity", **producer.identity)
    old = {"producer_id": producer.id, "producer_epoch": producer.epoch - 1}
    init(talk, "with the epoch before", producer.transactional_id, **old)
    producer.begin("as now", producer_epoch=producer.epoch, producer_id=producer.id)
    for delta in (1, -2, -3):
        init(
            talk,
            f"epoch {delta:+}",
            producer.transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch + delta,
        )
    init(
        talk,
        "other producer id",
        producer.transactional_id,
        producer_id=producer.id + 1000,
        producer_epoch=producer.epoch,
    )
    producer.begin("at the end")


def transaction(talk: Conversation) -> None:
    """Run transactions that commit, that abort, and that fail."""
    topic, producer = talk.topic("t", 3), Producer(talk)
    producer.begin("first")
    producer.end("end, nothing begun")
    producer.end("abort, nothing begun", commit=False)
    producer.send("not added", topic, 0)
    producer.end("abort after that", commit=False)
    producer.begin("second")
    producer.add("added", (topic, [0, 1]))
    producer.add("added again", (topic, [0]))
    producer.send("sent", topic, 0)
    producer.send("sent, other partition", topic, 0, partition=1)
    producer.send("sent, third partition", topic, 0, partition=2)
    producer.send("sent, plain records", topic, 1, transactional=False)
    fetcher = Fetcher(talk, topic)
    for level in (0, 1):
        fetcher.fetch(f"open, level {level}", {}, isolation_level=level)
    for level in (0, 1):
        part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        topics = [{"name": topic, "partitions": [part]}]
        talk.ask(
            f"end while open, level {level}",
            ApiKey.LIST_OFFSETS,
            replica_id=-1,
            topics=topics,
            isolation_level=level,
        )
    talk.ask(
        "described", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[producer.transactional_id]
    )
    producer.end("wrong epoch", producer_epoch=producer.epoch + 1)
    producer.end("older epoch", producer_epoch=producer.epoch - 1)
    producer.end("wrong producer", producer_id=producer.id + 1000)
    before = producer.identity
    producer.end("commit")
    producer.end("commit again", **before)
    producer.end("abort after the commit", commit=False, **before)
    for level in (0, 1):
        fetcher.fetch(f"committed, level {level}", {}, isolation_level=level)
    producer.begin("third")
    producer.add("added for the abort", (topic, [0]))
    producer.send("to abort", topic, 0)
    before = producer.identity
    producer.end("abort", commit=False)
    producer.end("abort again", commit=False, **before)
    producer.end("commit after the abort", **before)
    for level in (0, 1):
        fetcher.fetch(f"aborted, level {level}", {}, isolation_level=level)
    talk.ask(
        "described at the end",
        ApiKey.DESCRIBE_TRANSACTIONS,
        transactional_ids=[producer.transactional_id],
    )


def fenced_producer(talk: Conversation) -> None:
    """Send requests of a producer that a newer producer with the same transactional id has replaced."""
    topic, old = talk.topic("t", 2), Producer(talk)
    old.begin("old")
    old.add("added", (topic, [0]))
    old.send("sent", topic, 0)
    new = Producer(talk)
    new.begin("new")
    old.add("old adds", (topic, [1]))
    old.send("old sends", topic, 1)
    old.add_offsets("old adds offsets", talk.named("g"))
    old.commit_offsets("old commits offsets", talk.named("g"), topic, {})
    old.end("old ends")
    old.begin("old begins again with its identity", **old.identity)
    Fetcher(talk, topic).fetch("what is left", {}, isolation_level=1)


def add_partitions(talk: Conversation) -> None:
    """Add partitions to transactions by invalid requests."""
    topic, producer = talk.topic("t", 2), Producer(talk)
    producer.begin("first")
    producer.add("unknown topic", ("nowhere", [0]))
    producer.add("known and unknown topic", (topic, [0]), ("nowhere", [0]))
    producer.add("missing partition", (topic, [7]))
    producer.add("negative partition", (topic, [-1]))
    producer.add("one of two", (topic, [0, 7]))
    producer.add("none", (topic, []))
    producer.add("no topics")
    producer.add("twice", (topic, [0, 0]))
    producer.add("topic twice", (topic, [0]), (topic, [1]))
    producer.add("internal topic", ("__consumer_offsets", [0]))
    producer.add("unknown id", (topic, [0]), transactional_id=talk.named("nobody"))
    producer.add("empty id", (topic, [0]), transactional_id="")
    producer.add("wrong producer", (topic, [0]), producer_id=producer.id + 1000)
    producer.add("later epoch", (topic, [0]), producer_epoch=producer.epoch + 1)
    producer.add("earlier epoch", (topic, [0]), producer_epoch=producer.epoch - 1)
    producer.add("no producer", (topic, [0]), producer_id=-1, producer_epoch=-1)
    producer.add("verified", (topic, [0]), verify_only=True)
    producer.add("verified, not added", (topic, [1]), verify_only=True)
    producer.end("end")
    producer.add("verified after the end", (topic, [0]), verify_only=True)
    if talk.version(ApiKey.ADD_PARTITIONS_TO_TXN) >= _BATCHED:
        talk.ask("no transactions", ApiKey.ADD_PARTITIONS_TO_TXN, transactions=[])


def transactional_offsets(talk: Conversation) -> None:
    """Commit offsets in transactions, by valid and invalid requests."""
    topic, group, producer = talk.topic("t", 2), talk.named("g"), Producer(talk)
    producer.begin("first")
    producer.add_offsets("empty group", "")
    producer.add_offsets("unknown id", group, transactional_id=talk.named("nobody"))
    producer.add_offsets("empty id", group, transactional_id="")
    producer.add_offsets("wrong producer", group, producer_id=producer.id + 1000)
    producer.add_offsets("later epoch", group, producer_epoch=producer.epoch + 1)
    producer.commit_offsets("not added", group, topic, {})
    producer.add_offsets("right", group)
    producer.add_offsets("again", group)
    commit = producer.commit_offsets
    commit("one", group, topic, {})
    committed(talk, "pending", group, topic, 0)
    commit("missing partition", group, topic, {}, {"partition_index": 7})
    commit("negative partition", group, topic, {"partition_index": -1})
    commit("unknown topic", group, "nowhere", {})
    commit("empty topic", group, "", {})
    commit("no topics", group, topic, topics=[])
    commit("metadata too long", group, topic, {"committed_metadata": "m" * 4097})
    commit("null metadata", group, topic, {"committed_metadata": None})
    commit("negative offset", group, topic, {"committed_offset": -1})
    commit("empty group id", "", topic, {})
    commit("other group", talk.named("other"), topic, {})
    commit("unknown member", group, topic, {}, member_id="nobody", generation_id=1)
    commit("member without generation", group, topic, {}, member_id="nobody")
    commit("generation without member", group, topic, {}, generation_id=3)
    commit("wrong producer", group, topic, {}, producer_id=producer.id + 1000)
    commit("later epoch", group, topic, {}, producer_epoch=producer.epoch + 1)
    commit("empty transactional id", group, topic, {}, transactional_id="")
    producer.end("commit")
    committed(talk, "committed", group, topic, 0, 1)
    producer.begin("second")
    live = talk.named("live")
    member, generation = member_of(talk, live)
    producer.add_offsets("live group", live)
    commit("live, right", live, topic, {}, member_id=member, generation_id=generation)
    commit(
        "live, generation too high", live, topic, {}, member_id=member, generation_id=generation + 1
    )
    commit(
        "live, generation too low", live, topic, {}, member_id=member, generation_id=generation - 1
    )
    commit("live, unknown member", live, topic, {}, member_id="nobody", generation_id=generation)
    commit("live, no member", live, topic, {})
    commit(
        "live, unknown instance",
        live,
        topic,
        {},
        member_id=member,
        generation_id=generation,
        group_instance_id="nobody",
    )
    producer.end("abort", commit=False)
    committed(talk, "aborted", live, topic, 0)


def describe_transactions(talk: Conversation) -> None:
    """Describe and list transactions."""
    key = ApiKey.DESCRIBE_TRANSACTIONS
    topic, producer = talk.topic("t", 2), Producer(talk)
    talk.ask("none", key, transactional_ids=[])
    talk.ask("unknown", key, transactional_ids=[talk.named("nobody")])
    talk.ask("empty", key, transactional_ids=[""])
    producer.begin("begins")
    talk.ask("empty state", key, transactional_ids=[producer.transactional_id])
    producer.add("adds", (topic, [0, 1]))
    talk.ask("ongoing", key, transactional_ids=[producer.transactional_id])
    talk.ask("twice", key, transactional_ids=[producer.transactional_id] * 2)

    def listed(label: str, **filters: Any) -> None:
        version = talk.version(ApiKey.LIST_TRANSACTIONS)
        response = talk.prepare(ApiKey.LIST_TRANSACTIONS, version, **filters)
        if isinstance(response, dict):
            states = response["transaction_states"]
            mine = [one for one in states if one["transactional_id"] == producer.transactional_id]
            response = response | {"transaction_states": mine}
        talk.record(label, response)

    listed("all")
    listed("ongoing alone", state_filters=["Ongoing"])
    listed("empty alone", state_filters=["Empty"])
    listed("unknown state", state_filters=["Nonsense"])
    listed("lower case", state_filters=["ongoing"])
    listed("some unknown state", state_filters=["Nonsense", "Ongoing"])
    listed("its producer", producer_id_filters=[producer.id])
    listed("other producer", producer_id_filters=[producer.id + 1000])
    listed("negative producer", producer_id_filters=[-1])
    for duration in (-1, -2, 0, 1 << 40):
        listed(f"duration {duration}", duration_filter=duration)
    for pattern in (None, "", "tx.*", "x", "[", "TX.*", ".*lowest|.*middle|.*highest"):
        listed(f"pattern {pattern}", transactional_id_pattern=pattern)
    producer.end("ends", commit=False)
    talk.ask("complete", key, transactional_ids=[producer.transactional_id])


def find_coordinator(talk: Conversation) -> None:
    """Look up coordinators of each kind."""
    key, version = ApiKey.FIND_COORDINATOR, talk.version(ApiKey.FIND_COORDINATOR)
    for kind in (0, 1, 2, 3, -1, 99):
        if kind != 0 and version == 0:
            continue
        for name in ("g", "", "x" * 300, "a:AAAAAAAAAAAAAAAAAAAAAQ:0"):
            label = f"kind {kind}, {name[:5]!r}"
            response = talk.ask(label, key, key=name, key_type=kind, coordinator_keys=[name])
            assert response
    if version >= _BATCHED:
        talk.ask("none", key, coordinator_keys=[])
        talk.ask("several", key, coordinator_keys=["a", "b", "a"])


def write_markers(talk: Conversation) -> None:
    """Send WriteTxnMarkers, which otherwise only coordinators and kafka-transactions.sh send."""
    key, topic = ApiKey.WRITE_TXN_MARKERS, talk.topic("t", 2)
    talk.ask("none", key, markers=[])
    marker = {
        "producer_id": 4000,
        "producer_epoch": 0,
        "transaction_result": False,
        "coordinator_epoch": 0,
    }
    for label, name, indexes in (
        ("unknown producer", topic, [0]),
        ("missing partition", topic, [7]),
        ("unknown topic", "nowhere", [0]),
        ("no partitions", topic, []),
    ):
        topics = [{"name": name, "partition_indexes": indexes}]
        talk.ask(label, key, markers=[marker | {"topics": topics}])


TALKS = (
    init_producer_id,
    transaction,
    fenced_producer,
    add_partitions,
    transactional_offsets,
    describe_transactions,
    find_coordinator,
    write_markers,
)
