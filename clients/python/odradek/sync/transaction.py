"""Transactions of the synchronous producer: `with producer.transaction() as transaction:`."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from odradek.consumer.options import GroupIdentity
from odradek.errors import OdradekError, TransactionAborted
from odradek.partitions import ByPartition
from odradek.producer.transaction import Transaction as AsyncTransaction

if TYPE_CHECKING:
    from odradek.sync.client import Consumer
    from odradek.sync.producer import Producer


class Transaction:
    """The synchronous form of `odradek.Transaction`. One thread sends its records and ends it."""

    def __init__(self, producer: Producer, core: AsyncTransaction) -> None:
        self._producer = producer
        self._core = core

    def __enter__(self) -> Self:
        self._producer.begin_transaction(self._core)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.is_open:
            return
        if error is None:
            self.commit()
        else:
            self._producer.end_transaction(self._core.__aexit__(kind, error, trace))

    @property
    def is_open(self) -> bool:
        return self._core.is_open

    def send_offsets(self, offsets: ByPartition[int], group: Consumer | GroupIdentity) -> None:
        """Commit these offsets for the consumer's group when the transaction commits."""
        member = (
            group if isinstance(group, GroupIdentity) else group.leave_commits_to_transactions()
        )
        self._producer.call_in_transaction(self._core.send_offsets(offsets, member))

    def commit(self) -> None:
        """Wait until all records are acknowledged, and commit. Raises what `odradek.Transaction.commit` raises."""
        failure = self._producer.drain_transaction()
        if failure is None:
            self._producer.end_transaction(self._core.commit())
            return
        self._producer.end_transaction(self._core.abort())
        code = failure.code if isinstance(failure, OdradekError) else None
        raise TransactionAborted(
            f"the transaction was aborted, because a record could not be sent: {failure}", code=code
        ) from failure

    def abort(self) -> None:
        """Abort the transaction, so that none of its records and offsets take effect."""
        self._producer.end_transaction(self._core.abort())
