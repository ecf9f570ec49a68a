"""Exactly-once delivery: the tasks of a batch write in stages, and the driver commits all tasks together.

The cluster identifies a batch by its query, whose id comes from the checkpoint, and by its step, the number of the
batch. If Spark runs a complete batch again after a crash, the executors discard its rows, and completing it again
changes nothing. Completing a batch also aborts task attempts that Spark does not list, because they failed or were
speculative.

Workers on the executors renew the leases of the tasks that they prepared. Executors end when their driver ends. So if
a driver dies, the cluster aborts its batch after the time of the option preparedTimeoutMs. If a driver only hangs, the
executors continue to renew, and the batch is not lost.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from odradek.errors import AuthorizationFailed, OdradekError, UnsupportedOperation
from odradek.producer.options import ProducerOptions
from odradek.producer.staged_writes import StagedTask, StagedWrites
from pyspark_odradek.delivery import (
    MARGIN_S,
    AtLeastOnce,
    OutputRecord,
    PreparedWrite,
    SentRows,
    Stage,
    TaskIdentity,
)
from pyspark_odradek.process_link import ProcessLink, link_to
from pyspark_odradek.sink_options import SinkOptions

QUERIES_MAX: Final = 8
ABORT_PROBE_S_MAX: Final = 3.0
"""Longest wait for a response of the cluster before an abort of a batch without prepared tasks. Such a batch often
failed because no broker responds.
"""
ABORT_S_MAX: Final = 10.0
"""Longest wait for the abort of a batch without prepared tasks, after a broker has responded. If the coordinator's
broker has crashed, another broker is the coordinator by then (`broker.session.timeout.ms` is 3 s). Such a batch seldom
has rows, so a longer wait is not useful.
"""
_CALL_S_MAX: Final = ProducerOptions().commit_timeout_ms / 1000 + MARGIN_S
_log = logging.getLogger(__name__)


class ExactlyOnce:
    """Delivers each batch of a query exactly once to readers with isolation level read_committed."""

    needs_identity = True

    def __init__(self, options: SinkOptions, *, is_final: bool) -> None:
        """`is_final` means that the query has only one batch, so the cluster need not keep its record of the query for
        long.
        """
        self._options = options
        self._is_final = is_final

    def open(self, identity: TaskIdentity) -> Stage:
        """Return a stage that writes the rows as a staged task of the query. If the batch is already complete, return a
        stage that discards the rows.
        """
        link = link_to(self._options.connection)
        link.reach()
        # A random part is needed, because the task attempts of a driver that was killed have the same numbers and may
        # still be writing.
        attempt = f"{identity.partition_id}/{identity.attempt}/{uuid.uuid4().hex}"
        query = self._query(identity)
        try:
            task = link.run(
                _opened(link, self._options, query, identity.batch_id, attempt),
                timeout_s=_CALL_S_MAX,
            )
        except UnsupportedOperation:
            if self._options.delivery is not None:
                raise
            return AtLeastOnce(self._options).open(identity)
        except AuthorizationFailed as error:
            raise AuthorizationFailed(
                error.message,
                code=error.code,
                hint=f"exactly-once delivery uses the transactional id {query!r}: allow WRITE on it (the option"
                " transactionalIdPrefix sets its prefix), or set the option delivery to at-least-once",
            ) from None
        if task is None:
            return _Discarded(identity)
        return _Staged(link, self._options, identity, task)

    def complete(self, batch_id: int, writes: Sequence[PreparedWrite]) -> None:
        """Commit the tasks of a batch. If the batch is already complete, nothing changes."""
        staged = [write for write in writes if write.is_staged]
        if len(staged) < len(writes):
            _log.warning(
                "Batch %d was delivered at least once, because the cluster does not support transactions."
                " Upgrade all brokers, then run `odradek feature set transaction.version 2`",
                batch_id,
            )
        if not staged:
            return
        queries = {self._query(write.identity) for write in staged}
        batches = {write.identity.batch_id for write in staged}
        if len(queries) > 1 or batches != {batch_id}:
            raise RuntimeError(
                f"batch {batch_id} received writes of other batches or queries: batches {batches}, queries {queries}"
            )
        (query,) = queries
        tasks = [write.task for write in staged if write.task is not None]
        link = link_to(self._options.connection)

        async def commit() -> None:
            writes = await _writes_of(link, self._options, query)
            await writes.complete(batch_id, tasks, is_final=self._is_final)

        link.run(commit(), timeout_s=_CALL_S_MAX)

    def abort(
        self, batch_id: int, writes: Iterable[PreparedWrite], *, query_id: str | None = None
    ) -> None:
        """Abort the tasks of a failed batch, including tasks that were prepared but never reported to the driver.

        Without this call, readers with read_committed would wait for these tasks until the cluster aborts them:
        preparedTimeoutMs after the executors have stopped renewing them.
        """
        identities = [write.identity for write in writes if write.task is not None]
        query_ids = (
            {query_id} if query_id is not None else {identity.query_id for identity in identities}
        )
        if not query_ids:
            return
        link = link_to(self._options.connection)
        timeout_s = _CALL_S_MAX
        if not identities:
            timeout_s = ABORT_S_MAX
            try:
                # An earlier write of this process may have reached the cluster, so `reach` would not wait.
                link.probe(ABORT_PROBE_S_MAX)
            except (OdradekError, TimeoutError) as error:
                _log.warning(
                    "Batch %d was not aborted, because the cluster did not respond: %s. The cluster aborts the rows of"
                    " its tasks when their leases or preparedTimeoutMs expire",
                    batch_id,
                    error,
                )
                return

        async def abort(query: str) -> None:
            writes = await _writes_of(link, self._options, query)
            if self._is_final:
                # Tasks that Spark has not stopped yet find that the step is complete, and write no more rows.
                await writes.complete(batch_id, (), is_final=True)
            else:
                await writes.abort_step(batch_id)

        for name in query_ids:
            try:
                query = self._options.transactional_id_prefix + name
                link.run(abort(query), timeout_s=timeout_s)
            except (OdradekError, TimeoutError) as error:
                _log.warning(
                    "Failed to abort tasks of batch %d; the cluster aborts them later: %s",
                    batch_id,
                    str(error) or f"no result in {timeout_s:g} s",
                )

    def _query(self, identity: TaskIdentity) -> str:
        return self._options.transactional_id_prefix + identity.query_id


class _Discarded:
    """The stage of a task that Spark runs again although its batch is already committed."""

    def __init__(self, identity: TaskIdentity) -> None:
        self._identity = identity

    def send(self, records: Sequence[OutputRecord]) -> None:
        """Discard the rows."""

    def prepare(self) -> PreparedWrite:
        return PreparedWrite(identity=self._identity, is_staged=True)

    def abandon(self) -> None:
        """Do nothing, because nothing was written."""


class _Staged:
    """The stage of exactly-once delivery: it writes the rows as a staged task of the query."""

    def __init__(
        self, link: ProcessLink, options: SinkOptions, identity: TaskIdentity, task: StagedTask
    ) -> None:
        self._link = link
        self._identity = identity
        self._task = task
        self._rows = SentRows(link, options, task.send)

    def send(self, records: Sequence[OutputRecord]) -> None:
        self._rows.send(records)

    def prepare(self) -> PreparedWrite:
        prepared = self._link.run(self._task.prepare(), timeout_s=self._rows.patience_s)
        return PreparedWrite(
            identity=self._identity,
            is_staged=True,
            task=prepared,
            record_count=self._rows.record_count,
            size_bytes=self._rows.size_bytes,
        )

    def abandon(self) -> None:
        try:
            self._link.run(self._task.abort(), timeout_s=MARGIN_S)
        except (OdradekError, TimeoutError) as error:
            _log.warning(
                "Failed to abort a failed task; the cluster aborts it when its lease expires: %s",
                error,
            )


_queries: OrderedDict[tuple[int, SinkOptions, str], StagedWrites] = OrderedDict()
"""The staged writes of this process by query, in the order of their last use. Only the links' event loop uses them."""


async def _writes_of(link: ProcessLink, options: SinkOptions, query: str) -> StagedWrites:
    key = (os.getpid(), options, query)
    writes = _queries.pop(key, None)
    if writes is None:
        arguments: dict[str, Any] = dict(options.producer)
        writes = StagedWrites(
            query,
            cluster=link.cluster,
            prepared_timeout_ms=options.prepared_timeout_ms,
            **arguments,
        )
    _queries[key] = writes
    # Each batch write without `write_step` is a query of its own, so a process may have many queries. If there are more
    # than QUERIES_MAX, the idle queries that were used least recently are closed.
    idle = [k for k, of_query in _queries.items() if k != key and of_query.is_idle]
    for idle_key in idle[: len(_queries) - QUERIES_MAX]:
        await _queries.pop(idle_key).close()
    return writes


async def _opened(
    link: ProcessLink, options: SinkOptions, query: str, step: int, attempt: str
) -> StagedTask | None:
    writes = await _writes_of(link, options, query)
    return await writes.open(step, attempt)
