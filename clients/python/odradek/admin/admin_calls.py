"""Sends the requests of `Admin` to a cluster. A request goes to any broker, and is retried while a coordinator or
leader changes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster
from odradek.cluster.transport import Method
from odradek.cluster.wait_report import reported_call
from odradek.errors import error_code, error_of
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

REFUSALS_NAMED_MAX: Final = 20
"""The most refused items that an error message names. Further items are only counted."""


class ItemResult(Protocol):
    """The result for one item of a request."""

    error_code: int
    error_message: str


class Changed(Protocol):
    """The response to a request that changes metadata."""

    metadata_offset: int


C = TypeVar("C", bound=Changed)
R = TypeVar("R")
_UNSETTLED = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors while a coordinator or leader changes. The request was not executed, or can be repeated safely."""


class AdminCalls:
    """Sends admin requests to a cluster. Each request may take up to `timeout_s`, retries included."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    @property
    def timeout_ms(self) -> int:
        """The timeout to put into requests.

        It is a tenth shorter than the timeout of the call, so that the cluster can still report what timed out.
        """
        return int(self._timeout_s * 900)

    async def send(
        self,
        method: Method[Any, R],
        request: Any,
        *,
        codes: Callable[[R], Iterable[int]] | None = None,
        endpoint: str = "",
    ) -> R:
        """Send a request to any broker, or once to the broker at `endpoint`, and return the response.

        `codes` returns the error codes in a response. The request is repeated while all of these codes mean that a
        coordinator or leader is changing. Without an active controller, brokers respond with a gRPC status instead, and
        `Cluster.call_any` repeats the request. If the response takes long, a warning with the reason is logged.
        """
        cluster, what = self._cluster, f"the response to {method.name}"
        with reported_call(what, cluster.explain_waiting) as note_error:
            if endpoint:
                return await cluster.transport.call(
                    endpoint, method, request, timeout_s=self._timeout_s
                )
            deadline_s = time.monotonic() + self._timeout_s
            backoff = Backoff(first_ms=20, most_ms=500)
            attempts = 0
            while True:
                remaining_s = max(0.01, deadline_s - time.monotonic())
                response = await cluster.call_any(
                    method,
                    request,
                    timeout_s=remaining_s,
                    attempt_s=remaining_s,
                    note_error=note_error,
                )
                attempts += 1
                pause_s = backoff.after(attempts, random.random()) / 1000
                unsettled = None if codes is None else _unsettled_code(codes(response))
                if unsettled is None or time.monotonic() + pause_s >= deadline_s:
                    return response
                note_error(error_of(unsettled, method.name))
                await asyncio.sleep(pause_s)

    async def change(self, method: Method[Any, C], request: Any) -> C:
        """Send a request that changes metadata. Metadata that this client reads afterwards includes the change."""
        response = await self.send(method, request)
        self._cluster.require_metadata(response.metadata_offset)
        return response

    async def metadata(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        """Read metadata from any broker whose metadata includes the changes that this client has made."""
        cluster = self._cluster
        with reported_call("the cluster's metadata", cluster.explain_waiting) as note_error:
            return await cluster.metadata(request, timeout_s=self._timeout_s, note_error=note_error)

    async def topic(self, name: str) -> pb.TopicInfo:
        """Read the metadata of one topic.

        Raises:
            OdradekError: the error of the topic in the response; UnknownTopic if the response does not contain the
                topic.
        """
        response = await self.metadata(pb.MetadataRequest(topics=[name]))
        info = next((topic for topic in response.topics if topic.name == name), None)
        if info is None or info.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise await self._cluster.missing_topics.error(name)
        check(info.error_code, f"topic {name!r}", info.error_message)
        return info


def check(code: int, subject: str, message: str = "") -> None:
    """Raise the error for a code other than NONE. `subject` names in the message what the error is about."""
    if code != ErrorCode.NONE:
        raise error_of(code, subject, message)


def check_all(subjects: Sequence[str], results: Sequence[ItemResult], others: str) -> None:
    """If items of a request were refused, raise one error for all of them. Its class is that of the first refused item,
    and its message names the refused items with their reasons. `others` says what happened to the other items.
    """
    refused = [
        (subject, result)
        for subject, result in zip(subjects, results, strict=True)
        if result.error_code != ErrorCode.NONE
    ]
    if not refused:
        return
    code = refused[0][1].error_code
    if len(results) == 1:
        check(code, subjects[0], results[0].error_message)
    reasons = [
        f"{subject}: {result.error_message or error_code(result.error_code).name.lower().replace('_', ' ')}"
        for subject, result in refused[:REFUSALS_NAMED_MAX]
    ]
    if len(refused) > REFUSALS_NAMED_MAX:
        reasons.append(f"and {len(refused) - REFUSALS_NAMED_MAX} more")
    count = f"{len(refused)} of {len(results)} were refused"
    rest = f" ({others})" if len(refused) < len(results) else ""
    check(code, f"{count}{rest}", "; ".join(reasons))


def _unsettled_code(codes: Iterable[int]) -> ErrorCode | None:
    """Return one of the codes if all of them mean that a coordinator or leader is changing; None otherwise."""
    received = {error_code(code) for code in set(codes)}
    return min(received) if received and received <= _UNSETTLED else None
