"""What a log says of transactions, by a fold over its batches that uses nothing of the broker's own."""

from __future__ import annotations

from dataclasses import dataclass, field

from odradek_broker.log.partition_log import PartitionLog
from odradek_protocol.identity import Offset
from odradek_protocol.records import ControlType, decode_batch, iter_headers, read_control


@dataclass(slots=True)
class Fold:
    """The transactions of one replica's log, as a reader knows them that has read all of it."""

    committed: list[int] = field(default_factory=list)  # values, in the order of the markers
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer, first, marker
    stable_offset: int = 0
    violations: list[str] = field(default_factory=list)


def fold(log: PartitionLog) -> Fold:
    """Fold all that is in a log."""
    folded = Fold()
    values: dict[int, list[int]] = {}
    firsts: dict[int, int] = {}
    epochs: dict[int, int] = {}
    unstable = [log.high_watermark]
    at, end = log.log_start_offset, log.log_end_offset
    while at < end:
        result = log.read(Offset(at), bytes_max=1 << 20, end_offset=end)
        for data in result.slices:
            for position, header in iter_headers(data):
                producer, epoch = header.producer_id, header.producer_epoch
                if not header.is_control:
                    if epoch < epochs.get(producer, -1):
                        folded.violations.append(
                            f"T6: epoch {epoch} of producer {producer} at {header.base_offset} of"
                            f" {log} follows a marker of epoch {epochs[producer]}"
                        )
                    firsts.setdefault(producer, header.base_offset)
                    values.setdefault(producer, []).extend(
                        int(bytes(record.value or b"")) for record in decode_batch(data, position)
                    )
                    continue
                epochs[producer] = max(epochs.get(producer, -1), epoch)
                if producer not in firsts:
                    continue
                first, written = firsts.pop(producer), values.pop(producer)
                if header.base_offset >= log.high_watermark:
                    unstable.append(Offset(first))
                if read_control(data, position).type is ControlType.COMMIT:
                    folded.committed += written
                else:
                    folded.aborted.append((producer, first, header.last_offset))
        at = result.end_offset
    folded.stable_offset = max(log.log_start_offset, min([*unstable, *firsts.values()]))
    return folded


def differences(log: PartitionLog) -> list[str]:
    """Return where the broker's view of a log is not what the log says: T6, T7, T12."""
    folded = fold(log)
    wrong = folded.violations
    stable = log.last_stable_offset
    if stable != folded.stable_offset:
        wrong.append(
            f"T7: last stable offset {stable} of {log} is {folded.stable_offset} by its log"
        )
    if not log.log_start_offset <= stable <= log.high_watermark:
        wrong.append(f"T7: {log.log_start_offset} <= {stable} <= {log.high_watermark} of {log}")
    index = [
        (entry.producer_id, entry.first_offset, entry.last_offset)
        for entry in log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    ]
    if index != folded.aborted:
        wrong.append(f"T12: index {index} of {log}, by its log {folded.aborted}")
    return wrong
