"""The aborted transactions of one segment: `.txnindex`, in Kafka's format.

    each entry   int16   version, 0
                 int64   producer id
                 int64   first offset of the transaction
                 int64   last offset: its abort marker, which lies in this segment
                 int64   last stable offset when the marker was written

Entries stand in the order of their markers. Readers of committed data get those that overlap what
they read; the last stable offset of an entry tells when later entries cannot overlap any more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from odradek_broker.log.index.offset_index import CorruptIndex
from odradek_protocol.identity import Offset, ProducerId

ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = ENTRY.size
_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction that read_committed readers skip: its offsets, the last one inclusive."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


def decode_transactions(data: bytes, *, base_offset: int) -> list[AbortedTransaction]:
    """Read a file; raises CorruptIndex for what cannot be one of this segment."""
    if len(data) % ENTRY_BYTES:
        raise CorruptIndex(f"{len(data)} bytes are no multiple of {ENTRY_BYTES}")
    entries: list[AbortedTransaction] = []
    before = base_offset - 1
    for version, producer_id, first, last, stable in ENTRY.iter_unpack(data):
        if version != _VERSION or producer_id < 0 or not 0 <= first <= last or last <= before:
            raise CorruptIndex(f"entry {version}, {producer_id}, {first}, {last} is out of order")
        before = last
        entries.append(AbortedTransaction(ProducerId(producer_id), first, last, stable))
    return entries


def encode_transactions(entries: list[AbortedTransaction]) -> bytes:
    """The entries as they stand in the file."""
    return b"".join(
        ENTRY.pack(_VERSION, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in entries
    )
