"""`odradek consume`: print records to standard output, in a format that the user chooses."""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from odradek.cli.connection import (
    PATIENCE_S,
    chosen_partitions,
    complete_groups,
    complete_topics,
    with_client,
)
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    Progress,
    binary_output,
    counted,
    fail,
    say,
)
from odradek.cli.record_format import (
    FORMAT_HELP,
    Encoding,
    json_renderer,
    renderer,
    rows_before,
    unconverted_note,
    value_lines,
)
from odradek.cli.times import FORMS_OF_TIMES, time_ms
from odradek.cli.transaction import open_transaction_hints
from odradek.partitions import TopicPartition

if TYPE_CHECKING:
    from odradek.client import Client
    from odradek.consumer.consumer import Consumer

WITHOUT_PARTITIONS_S_MAX: Final = 10.0
"""How long a group member with --exit-at-end waits for its first partition."""
REPEAT_S: Final = 15.0
"""How often a group member without partitions prints the reason again."""
LAST_MAX: Final = 100_000
"""The largest N of --last N. This many records are kept in memory."""
PARTITIONS_MAX: Final = 5
"""The most partitions that a message names. Further partitions are only counted."""
RECORDS_AT_ONCE: Final = 5_000
BYTES_AT_ONCE: Final = 4 << 20
VALUE_LINES: Final = "%v\\n"
"""The default format. Its output is made from whole columns of values, without a Python object for each record."""
_OFFSETS: Final = re.compile(
    r"(?P<last>-[0-9]{1,18})|(?P<start>[0-9]{1,18})(?P<range>:(?P<stop>[0-9]{0,18}))?"
)


@dataclass(frozen=True, slots=True)
class _Range:
    """The offsets that --offset selects. A negative `start` counts back from the end of the partition; `stop` is
    exclusive, and None means no limit.
    """

    start: int
    stop: int | None = None


def consume(
    topic: Annotated[
        list[str],
        typer.Argument(help="Names of the topics to read.", autocompletion=complete_topics),
    ],
    regex: Annotated[
        bool,
        typer.Option(
            "--regex",
            help="The arguments are regular expressions: read all topics whose whole name matches one.",
        ),
    ] = False,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start at the earliest offset instead of reading only new records. In a group, this applies"
            " only to partitions without a committed offset.",
        ),
    ] = False,
    exit_at_end: Annotated[
        bool,
        typer.Option(
            "--exit-at-end",
            help="Exit after the last record that existed when the command started, instead of waiting for more.",
        ),
    ] = False,
    count: Annotated[
        int | None,
        typer.Option("-n", "--count", min=1, metavar="N", help="Stop after this many records."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "-p", "--partition", min=0, metavar="N", help="Read only this partition. Repeatable."
        ),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="N|-N|N:M",
            help="In every partition, start at offset N, or N records before the end (-N), or read only offsets"
            " N to M-1 (N:M).",
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            min=1,
            max=LAST_MAX,
            metavar="N",
            help="Print the N existing records with the latest timestamps over all partitions, and exit. Only the last"
            " N offsets of each partition are examined.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"Start at the first record whose timestamp is at or after TIME: {FORMS_OF_TIMES}.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop before the first record whose timestamp is at or after TIME, or at the end if there is no such"
            " record. Write TIME as for --since.",
        ),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Print only records whose key or value contains a match of this regular expression.",
        ),
    ] = None,
    form: Annotated[str, typer.Option("-f", "--format", help=FORMAT_HELP)] = VALUE_LINES,
    key_as: Annotated[
        Encoding, typer.Option("--key-as", help="Print keys in this encoding.")
    ] = "text",
    value_as: Annotated[
        Encoding, typer.Option("--value-as", help="Print values in this encoding.")
    ] = "text",
    read_committed: Annotated[
        bool,
        typer.Option(
            "--read-committed",
            help="Skip records of aborted transactions, and print the records of other transactions only after their"
            " commit (isolation.level=read_committed).",
        ),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            metavar="NAME",
            help="Read as a member of this consumer group, and commit offsets.",
            autocompletion=complete_groups,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print records of topics as they arrive.

    By default, each record's value is printed on one line. With -o json, each record is a JSON object on one line, and
    bytes that are not UTF-8 are {"base64": "..."}. `odradek produce --json` reads this form.
    """
    if sum((from_beginning, offset is not None, since is not None, last is not None)) > 1:
        fail(
            "only one of --from-beginning, --offset, --since and --last can be used",
            status=EXIT_USAGE,
        )
    if last is not None and (group or until or grep or count):
        fail(
            "--last cannot be used with --group, --until, --grep or --count, because it selects from all records",
            status=EXIT_USAGE,
        )
    exit_at_end |= last is not None
    if group is not None and (partition or offset or since or until):
        fail(
            "--group cannot be used with --partition, --offset, --since or --until, because a group assigns"
            " partitions and offsets itself: `odradek group seek` changes where a group starts",
            status=EXIT_USAGE,
        )
    has_start = from_beginning or any(option is not None for option in (offset, since, until, last))
    offsets = _Range(-last) if last is not None else None if offset is None else _range(offset)
    since_ms = None if since is None else time_ms(since, option="--since")
    until_ms = None if until is None else time_ms(until, option="--until")
    is_wanted = _filter(grep)
    unconverted: Counter[str] = Counter()
    render = (
        json_renderer(key_as=key_as, value_as=value_as, unconverted=unconverted)
        if output is OutputFormat.JSON
        else renderer(form, key_as=key_as, value_as=value_as, unconverted=unconverted)
    )
    is_plain = (form, value_as, output) == (VALUE_LINES, "text", OutputFormat.TABLE)
    is_plain &= grep is None and count is None and last is None
    progress = Progress("record", is_seen=sys.stdout.isatty())
    out = binary_output()

    async def chosen_ranges(client: Client, consumer: Consumer, topics: list[str]) -> _Ranges:
        """Assign the partitions to the consumer, paused, and return the offsets at which to start and to stop."""
        partitions = await chosen_partitions(client, topics, partition)
        consumer.assign(partitions)
        # Fetching starts when the start offsets are known. Records fetched before would only use up the quota.
        consumer.pause()
        ends = await consumer.end_offsets(partitions)
        first = await consumer.beginning_offsets(partitions)
        starts = first if from_beginning or until_ms is not None else ends
        if since_ms is not None:
            offsets_at = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
            starts = {
                name: ends[name] if at is None else at.offset for name, at in offsets_at.items()
            }
        if offsets is not None:
            starts = {
                name: offsets.start if offsets.start >= 0 else max(first[name], end + offsets.start)
                for name, end in ends.items()
            }
        stops = dict(ends) if exit_at_end else {}
        if offsets is not None and offsets.stop is not None:
            stops = {name: min(offsets.stop, stops.get(name, offsets.stop)) for name in ends}
        if until_ms is not None:
            offsets_at = await consumer.offsets_for_times(dict.fromkeys(partitions, until_ms))
            for name, at in offsets_at.items():
                stop = ends[name] if at is None else at.offset
                stops[name] = min(stop, stops.get(name, stop))
        return _Ranges(starts=starts, stops=stops, first=first, ends=ends)

    async def work(client: Client) -> None:
        topics = await _matching_topics(client, topic) if regex else topic
        arguments: dict[str, Any] = {
            # If the records at the chosen start are deleted, the command continues at the earliest record.
            "auto_offset_reset": "earliest" if has_start else "latest",
            "isolation_level": "read_committed" if read_committed else "read_uncommitted",
        }
        if group is not None:
            arguments["group"] = group
            # This call ends the command if a topic does not exist. A group member would wait for that topic for ever.
            await chosen_partitions(client, topics, None)
        async with (
            _explained(client, topics, group, progress) as waits_for,
            client.consumer(*topics, **arguments) as consumer,
        ):
            waits_for.consumer = consumer
            starts: Mapping[TopicPartition, int] = {}
            stops: dict[TopicPartition, int] = {}
            newest: list[tuple[int, str, int, int, Any]] = []  # A heap; with --last only.
            if group is None:
                ranges = await chosen_ranges(client, consumer, topics)
                starts, stops = ranges.starts, ranges.stops
                waits_for.starts, waits_for.beyond = starts, ranges.beyond()
                for name, start in starts.items():
                    consumer.seek(name, max(ranges.first[name], min(start, ranges.ends[name])))
                if deleted := ranges.deleted():
                    progress.say(f"odradek: {_what_is_deleted(deleted)}")
                if waits_for.beyond and exit_at_end:
                    progress.say(f"odradek: {waits_for.what_is_beyond()}")
                consumer.resume()
            unread = await _unread(consumer, stops)
            waits_for.partitions = list(unread) if stops else None
            remaining = count if count is not None else -1
            began_s = time.monotonic()

            def ended(name: TopicPartition) -> None:
                """Stop reading a partition, because all records before its stop offset were read."""
                if name in unread:
                    del unread[name]
                    consumer.pause(name)

            async def print_lines() -> int | None:
                """Print the values that have arrived as lines, and return their number; None if no records arrived."""
                from odradek_protocol.records.columns import Column

                parts = await consumer.getcolumns(
                    timeout_ms=500, bytes_max=BYTES_AT_ONCE, columns=Column.VALUE | Column.OFFSET
                )
                printed = 0
                for name, columns in parts:
                    rows = columns.row_count
                    if stops:
                        rows, last_offset = rows_before(columns, stops[name])
                        if last_offset + 1 >= stops[name]:
                            ended(name)
                    out.write(value_lines(columns, rows))
                    printed += rows
                return printed if parts else None

            async def print_records() -> int | None:
                """Print the next records, and return the number of printed ones; None if no records arrived."""
                batch = min(remaining, RECORDS_AT_ONCE) if remaining > 0 else RECORDS_AT_ONCE
                records = await consumer.getmany(timeout_ms=500, max_records=batch)
                printed = 0
                for record in records:
                    if stops:
                        name = _partition_of(record)
                        if record.offset + 1 >= stops[name]:
                            ended(name)
                        if record.offset >= stops[name]:
                            continue
                    # If the start is beyond the end, reading begins at the end, and earlier records are not printed.
                    if waits_for.beyond and record.offset < starts[_partition_of(record)]:
                        continue
                    if last is not None:
                        at = (record.timestamp_ms, record.topic or "", record.partition)
                        keep_newest(newest, (*at, record.offset, record), last)
                    elif is_wanted(record):
                        out.write(render(record))
                        printed += 1
                return printed if records else None

            while remaining != 0 and not (stops and not unread):
                printed = await (
                    print_lines() if is_plain and not waits_for.beyond else print_records()
                )
                if printed is not None:
                    remaining -= printed if remaining > 0 else 0
                    out.flush()
                    progress.add(printed)
                    continue
                waited_s = 0.0 if consumer.assignment() else time.monotonic() - began_s
                if stops:
                    unread = await _unread(consumer, unread)
                    waits_for.partitions = list(unread)
                elif exit_at_end and (
                    await _is_at_end(consumer) or waited_s > WITHOUT_PARTITIONS_S_MAX
                ):
                    break
            out.writelines(render(record) for *_, record in sorted(newest))
            out.flush()
            progress.add(len(newest))
            if read_committed and exit_at_end and remaining != 0:
                for hint in await open_transaction_hints(client, consumer, stops):
                    progress.say(f"odradek: {hint}")

    try:
        with progress:
            with_client(bootstrap, work, is_quick=False)
        for what, encoding in (("key", key_as), ("value", value_as)):
            if unconverted[what]:
                say(
                    f"odradek: {unconverted_note(what, encoding, unconverted[what], output)}",
                    is_error=True,
                )
    except BrokenPipeError:  # The program that read the output has exited, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Waits:
    """Explains why `odradek consume` prints nothing at the moment."""

    def __init__(
        self, client: Client, topics: list[str], group: str | None, progress: Progress
    ) -> None:
        self._client = client
        self._topics = topics
        self._group = group
        self._progress = progress
        self.consumer: Consumer | None = None
        """The consumer of the command; None until it is created."""
        self.partitions: list[TopicPartition] | None = None
        """The partitions whose stop offset is not reached yet; None if the command does not stop at an offset."""
        self.beyond: dict[TopicPartition, int] = {}
        """The end offsets of the partitions whose start offset lies beyond their end."""
        self.starts: Mapping[TopicPartition, int] = {}
        """The start offsets of all partitions; empty for a member of a group."""

    def what_is_beyond(self) -> str:
        """Return a sentence which says that the start offset is beyond the end of partitions."""
        return f"offset {self._offset_beyond()} is beyond the end: {named_ends(self.beyond)}"

    def _offset_beyond(self) -> int:
        return self.starts[next(iter(self.beyond))]

    async def group_state(self) -> str:
        """Return which members of the group own partitions; "" if the group cannot be described."""
        from odradek.admin.group_causes import evidence_of
        from odradek.errors import OdradekError

        assert self._group is not None
        try:
            return evidence_of(await self._client.admin.describe_group(self._group))
        except OdradekError:
            return ""

    @property
    def has_no_partitions(self) -> bool:
        """Whether the command is a member of a group that has assigned it no partitions."""
        return (
            self._group is not None and self.consumer is not None and not self.consumer.assignment()
        )

    def reason(self) -> str:
        """Return what the command waits for, as a sentence for the user. The result is "" if nothing keeps the command
        from reading, and it has printed records, stops at an offset, does not know its start yet, or no user watches.
        """
        from odradek.cluster.cluster import LinkState

        cluster = self._client._cluster
        if self._client.state is not LinkState.CONNECTED:
            return f"waiting: {self._client.explain_waiting()}"
        names = self.partitions
        if names is None:
            topics = {name: cluster.cache.topic(name) for name in self._topics}
            names = [
                TopicPartition(name, partition.partition)
                for name, topic in topics.items()
                if topic is not None
                for partition in topic.partitions
            ]
        if without_leader := [n for n in names if cluster.cache.leader_endpoint(n) is None]:
            first = without_leader[0]
            others = f" and {len(without_leader) - 1} more have" if without_leader[1:] else " has"
            return f"waiting: {first}{others} no leader: `odradek why {first.topic}/{first.partition}` explains why"
        if self.consumer is not None and self.consumer._fetcher.is_throttled:
            return "waiting: a consumer quota limits the rate (`odradek quota list` shows quotas)"
        if self.has_no_partitions:
            return (
                f"waiting: group {self._group} has assigned no partitions to this member yet:"
                f" `odradek why {self._group}` explains why"
            )
        if not self._progress.is_watched or self._progress.count:
            return ""
        if self.beyond:
            return f"waiting for offset {self._offset_beyond()}: {named_ends(self.beyond)}"
        # Before it is known where to start, the command would skip records that the user writes now.
        read = self.consumer
        if self.partitions is None and read and 0 < len(read.assignment()) == len(read.positions()):
            return f"waiting for new records of {', '.join(self._topics)}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranges:
    """Offsets by partition: where to start and to stop, and where the logs begin and end. A partition without a stop
    offset is read without end.
    """

    starts: Mapping[TopicPartition, int]
    stops: dict[TopicPartition, int]
    first: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    def beyond(self) -> dict[TopicPartition, int]:
        """Return the end offsets of the partitions whose start offset lies beyond their end."""
        return {name: self.ends[name] for name, at in self.starts.items() if at > self.ends[name]}

    def deleted(self) -> dict[TopicPartition, int]:
        """Return the log start offsets of the partitions whose start offset lies before their log."""
        return {name: self.first[name] for name, at in self.starts.items() if at < self.first[name]}


@contextlib.asynccontextmanager
async def _explained(
    client: Client, topics: list[str], group: str | None, progress: Progress
) -> AsyncIterator[_Waits]:
    """Print what the command waits for whenever no record was printed for PATIENCE_S. The same reason is not printed
    twice in a row, with one exception: a group member without partitions prints the reason and the owners of the
    partitions again every REPEAT_S.
    """
    import asyncio

    waits = _Waits(client, topics, group, progress)

    async def explain() -> None:
        last_reason, told_s = "", 0.0
        while True:
            count = progress.count
            await asyncio.sleep(PATIENCE_S)
            reason = waits.reason() if progress.count == count else ""
            is_due = waits.has_no_partitions and time.monotonic() - told_s >= REPEAT_S
            if reason and (reason != last_reason or is_due):
                state = await waits.group_state() if waits.has_no_partitions else ""
                say(f"odradek: {reason}{f'; {state}' if state else ''}", is_error=True)
                last_reason, told_s = reason, time.monotonic()

    explaining = asyncio.create_task(explain())
    try:
        yield waits
    finally:
        explaining.cancel()


def named_ends(ends: Mapping[TopicPartition, int]) -> str:
    """Return the end offsets of up to PARTITIONS_MAX partitions as a text."""
    return _listed([f"the end of {name} is {end}" for name, end in ends.items()])


def _listed(texts: list[str]) -> str:
    """Join the texts for up to PARTITIONS_MAX partitions, and count the others."""
    more = len(texts) - PARTITIONS_MAX
    return ", ".join(texts[:PARTITIONS_MAX]) + (
        f", and {counted(more, 'more partition')}" if more > 0 else ""
    )


def _partition_of(record: Any) -> TopicPartition:
    return TopicPartition(record.topic or "", record.partition)


def keep_newest(
    newest: list[tuple[int, str, int, int, Any]], entry: tuple[int, str, int, int, Any], count: int
) -> None:
    """Add an entry to a heap of the `count` largest entries."""
    if len(newest) < count:
        heapq.heappush(newest, entry)
    else:
        heapq.heappushpop(newest, entry)


def _range(text: str) -> _Range:
    matched = _OFFSETS.fullmatch(text)
    if matched is None:
        fail(
            f"--offset {text} is not valid: write an offset, -N for the last N records, or N:M for a range;"
            " --from-beginning starts at the earliest offset, and without either option only new records are read",
            status=EXIT_USAGE,
        )
    if matched["last"]:
        return _Range(int(matched["last"]))
    return _Range(int(matched["start"]), int(matched["stop"]) if matched["stop"] else None)


def _filter(pattern: str | None) -> Callable[[Any], bool]:
    if pattern is None:
        return lambda record: True
    search = _compiled(pattern, "--grep").search

    def is_wanted(record: Any) -> bool:
        return any(part is not None and search(part) for part in (record.value, record.key))

    return is_wanted


def _compiled(pattern: str, option: str) -> re.Pattern[bytes]:
    try:
        return re.compile(pattern.encode())
    except re.error as error:
        fail(f"{option} {pattern}: {error}", status=EXIT_USAGE)


async def _matching_topics(client: Client, patterns: Iterable[str]) -> list[str]:
    """Return the names of the topics that match one of these regular expressions. Internal topics are left out. If no
    topic matches, the command ends with an error.
    """
    matches = [_compiled(pattern, "--regex").fullmatch for pattern in patterns]
    names = [
        topic.name
        for topic in await client.admin.list_topics()
        if any(match(topic.name.encode()) for match in matches)
    ]
    if not names:
        fail(f"no topic has a name that matches {', '.join(patterns)}")
    return names


def _what_is_deleted(starts: Mapping[TopicPartition, int]) -> str:
    """Return a sentence which says that earlier records were deleted, so reading begins at these offsets."""
    named = [f"{name} begins at offset {at}" for name, at in starts.items()]
    return f"earlier records were deleted: {_listed(named)}"


async def _unread(
    consumer: Consumer, stops: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the partitions in which the consumer has not reached its stop offset yet.

    Offsets without records (transaction markers, compacted records) count as read.
    """
    return {name: stop for name, stop in stops.items() if await consumer.position(name) < stop}


async def _is_at_end(consumer: Consumer) -> bool:
    """Return whether the group member has partitions and has read all of their records."""
    lag = await consumer.lag()
    return 0 < len(lag) == len(consumer.assignment()) and not any(lag.values())
