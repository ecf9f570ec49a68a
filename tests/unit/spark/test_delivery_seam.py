"""The interface `Delivery` suffices for exactly-once: a delivery by staged transactions works
behind it, and tasks that Spark repeats do no harm.

The broker is a dictionary here. The tests show that writers give a delivery all that it needs:
identities on executors, prepared writes on the driver, and one call for each batch, which may come
again with other tasks.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from odradek.producer.staged_writes import PreparedTask
from pyspark_odradek import writer as writer_module
from pyspark_odradek.delivery import OutputRecord, PreparedWrite, TaskIdentity
from pyspark_odradek.sink_options import parse_sink_options
from pyspark_odradek.writer import OdradekBatchWriter, OdradekStreamWriter

OPTIONS = {"kafka.bootstrap.servers": "a:1", "topic": "t"}
SCHEMA = StructType([StructField("value", StringType())])
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class Broker:
    """The staged transactions, the visible records, and the last completed batch of each query."""

    def __init__(self) -> None:
        self.staged: dict[str, list[bytes | None]] = {}
        self.visible: list[bytes | None] = []
        self.completed: dict[str, int] = {}

    def complete_batch(self, query_id: str, batch_id: int, names: Sequence[str]) -> None:
        if self.completed.get(query_id, -1) < batch_id:
            for name in names:
                self.visible += self.staged.pop(name)
            self.completed[query_id] = batch_id
        mine = [name for name in self.staged if name.startswith(f"{query_id}/{batch_id}/")]
        for name in mine:  # repeats, and attempts that nobody listed
            del self.staged[name]


class Staged:
    """A delivery by staged transactions, with a dictionary as the broker."""

    needs_identity = True

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def open(self, identity: TaskIdentity) -> _Stage:
        return _Stage(self.broker, identity)

    def complete(self, batch_id: int, writes: Sequence[PreparedWrite]) -> None:
        (query_id,) = {write.identity.query_id for write in writes}
        self.broker.complete_batch(
            query_id, batch_id, [w.task.transactional_id for w in writes if w.task]
        )

    def abort(
        self, batch_id: int, writes: Iterable[PreparedWrite], *, query_id: str | None = None
    ) -> None:
        for write in writes:
            if write.task is not None:
                self.broker.staged.pop(write.task.transactional_id, None)


class _Stage:
    def __init__(self, broker: Broker, who: TaskIdentity) -> None:
        self._broker, self._who = broker, who
        self._name = f"{who.query_id}/{who.batch_id}/{who.partition_id}/{who.attempt}"
        self._rows: list[bytes | None] = []

    def send(self, records: Sequence[OutputRecord]) -> None:
        self._rows += [record.value for record in records]

    def prepare(self) -> PreparedWrite:
        self._broker.staged[self._name] = self._rows
        return PreparedWrite(
            identity=self._who,
            is_staged=True,
            task=PreparedTask(
                query=self._who.query_id,
                step=self._who.batch_id,
                transactional_id=self._name,
                producer_id=0,
                producer_epoch=0,
            ),
            record_count=len(self._rows),
        )

    def abandon(self) -> None:
        self._broker.staged.pop(self._name, None)


class Task:
    """Stands in for Spark's TaskContext."""

    def __init__(self, partition: int, attempt: int, **properties: str) -> None:
        self._partition, self._attempt, self._properties = partition, attempt, properties

    def partitionId(self) -> int:
        return self._partition

    def taskAttemptId(self) -> int:
        return self._attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs one task of a writer."""

    def task(made: Any, context: Task, *values: str) -> WriterCommitMessage:
        monkeypatch.setattr(writer_module.TaskContext, "get", lambda: context)
        batch = pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["value"])
        message: WriterCommitMessage = made.write(iter([batch]))
        return message

    return task


def stream_writer(broker: Broker) -> OdradekStreamWriter:
    made = OdradekStreamWriter(parse_sink_options(OPTIONS, SCHEMA))
    made._delivery = Staged(broker)
    return made


def context(partition: int, attempt: int, batch: int) -> Task:
    return Task(partition, attempt, **{QUERY: "q", BATCH: str(batch)})


def test_a_batch_that_spark_writes_again_is_visible_once(broker: Broker, run: Any) -> None:
    made = stream_writer(broker)
    first = [run(made, context(0, 1, 0), "a"), run(made, context(1, 2, 0), "b")]
    run(made, context(1, 3, 0), "b")  # a speculative attempt, which Spark does not list
    assert broker.visible == []
    made.commit(first, 0)
    assert (broker.visible, broker.staged) == ([b"a", b"b"], {})
    # The driver died before Spark noted the commit: the same batch again, divided otherwise.
    again = stream_writer(broker)
    again.commit([run(again, context(0, 9, 0), "a", "b")], 0)
    assert (broker.visible, broker.staged) == ([b"a", b"b"], {})
    again.commit([run(again, context(0, 10, 1), "c")], 1)
    assert broker.visible == [b"a", b"b", b"c"]


def test_rows_are_handed_over_in_pieces_that_a_slow_cluster_takes_in_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [f"{number}" for number in range(2 * writer_module.ROWS_AT_ONCE_MAX + 1)]
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["value"])
    pieces: list[int] = []
    send = _Stage.send

    def counted(stage: _Stage, records: Sequence[OutputRecord]) -> None:
        pieces.append(len(records))
        send(stage, records)

    monkeypatch.setattr(_Stage, "send", counted)
    monkeypatch.setattr(writer_module.TaskContext, "get", lambda: context(0, 1, 0))
    made = stream_writer(broker)
    made.commit([made.write(iter([batch, batch.slice(0, 0)]))], 0)
    assert broker.visible == [value.encode() for value in values]
    assert pieces == [writer_module.ROWS_AT_ONCE_MAX] * 2 + [1]


def test_an_empty_batch_is_completed_too(broker: Broker, run: Any) -> None:
    made = stream_writer(broker)
    made.commit([run(made, context(0, 1, 5))], 5)
    assert broker.completed == {"q": 5}


def test_an_aborted_batch_leaves_nothing_and_unknown_tasks_are_no_obstacle(
    broker: Broker, run: Any
) -> None:
    made = stream_writer(broker)
    made.abort([run(made, context(0, 1, 0), "a"), None], 0)
    assert (broker.visible, broker.staged) == ([], {})


def test_a_task_that_does_not_know_its_batch_fails_loudly(broker: Broker, run: Any) -> None:
    with pytest.raises(RuntimeError, match=r"Spark does not pass sql\.streaming\.queryId"):
        run(stream_writer(broker), Task(0, 1), "a")
    assert broker.staged == {}


def test_a_write_in_batch_is_a_query_of_its_own_and_the_same_after_pickling(
    broker: Broker, run: Any
) -> None:
    for value in ("a", "b"):
        made = OdradekBatchWriter(parse_sink_options(OPTIONS, SCHEMA))
        executors, committing = pickle.loads(pickle.dumps(made)), made
        for one in (executors, committing):
            one._delivery = Staged(broker)
        message = run(executors, Task(0, 1), value)
        committing.commit([message])
        committing.commit([message])
    assert broker.visible == [b"a", b"b"]
    assert len(broker.completed) == 2
