"""The synchronous consumer, and group listeners that may block."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from odradek.cluster.background import in_thread
from odradek.consumer.consumer import Consumer as AsyncConsumer
from odradek.consumer.consumer_record import ConsumerRecord
from odradek.consumer.options import GroupListener, GroupOptions
from odradek.partitions import TopicPartition
from odradek.sync.loop_thread import Facade, LoopThread, calls, waits


class Consumer(Facade[AsyncConsumer]):
    """The synchronous form of `odradek.Consumer`. Its methods need no `await`. Only one thread at a time may read from
    a consumer.
    """

    def __init__(self, thread: LoopThread, core: AsyncConsumer) -> None:
        super().__init__(thread, core)
        thread.open_parts[self] = None

    def __repr__(self) -> str:
        return repr(self._core).replace("<odradek.", "<odradek.sync.", 1)

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread.is_usable:
            self._thread.run(self._core.__aexit__(kind, error, trace))
        self._thread.open_parts.pop(self, None)

    def close(self) -> None:
        """Leave the group and stop fetching. May be called twice."""
        if self._thread.is_usable:
            self._thread.run(self._core.close())
        self._thread.open_parts.pop(self, None)

    def close_at_exit(self) -> None:
        """Leave the group and stop fetching, because the program is ending without a call of `close`."""
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        record = self._core.next_decoded()
        return self._thread.run(self._core.__anext__()) if record is None else record

    assign = calls(AsyncConsumer.assign)
    subscribe = calls(AsyncConsumer.subscribe)
    assignment = calls(AsyncConsumer.assignment)
    seek = calls(AsyncConsumer.seek)
    seek_to_beginning = calls(AsyncConsumer.seek_to_beginning)
    seek_to_end = calls(AsyncConsumer.seek_to_end)
    seek_to_timestamp = calls(AsyncConsumer.seek_to_timestamp)
    pause = calls(AsyncConsumer.pause)
    resume = calls(AsyncConsumer.resume)
    paused = calls(AsyncConsumer.paused)
    positions = calls(AsyncConsumer.positions)
    high_watermark = calls(AsyncConsumer.high_watermark)
    getmany = waits(AsyncConsumer.getmany)
    getarrow = waits(AsyncConsumer.getarrow)
    getcolumns = waits(AsyncConsumer.getcolumns)
    position = waits(AsyncConsumer.position)
    beginning_offsets = waits(AsyncConsumer.beginning_offsets)
    end_offsets = waits(AsyncConsumer.end_offsets)
    commit = waits(AsyncConsumer.commit)
    committed = waits(AsyncConsumer.committed)
    lag = waits(AsyncConsumer.lag)
    group_identity = calls(AsyncConsumer.group_identity)
    leave_commits_to_transactions = calls(AsyncConsumer.leave_commits_to_transactions)
    offsets_for_times = waits(AsyncConsumer.offsets_for_times)


def with_listeners_in_threads(options: GroupOptions) -> GroupOptions:
    """Return `options` with listeners that are called in threads instead of on the event loop, so that they may
    block.
    """
    return replace(
        options,
        on_assign=_in_thread(options.on_assign),
        on_revoke=_in_thread(options.on_revoke),
        on_lost=_in_thread(options.on_lost),
    )


def _in_thread(listener: GroupListener | None) -> GroupListener | None:
    if listener is None or inspect.iscoroutinefunction(listener):
        return listener

    async def call(names: Sequence[TopicPartition]) -> Any:
        return await in_thread(listener, names)

    return call
