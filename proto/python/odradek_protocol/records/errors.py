"""Errors in the bytes of a record batch. Each message says what is wrong and where."""

from __future__ import annotations


class CorruptBatch(ValueError):
    """The bytes are not a record batch. Retrying does not help, because the same bytes fail again."""


class TruncatedBatch(CorruptBatch):
    """The bytes end before the batch does. More bytes may complete it."""


class ChecksumMismatch(CorruptBatch):
    """The CRC32C in the header differs from that of the bytes."""


class UnsupportedMagic(CorruptBatch):
    """The bytes are a message set of another format version (magic 0 and 1 are older than Kafka 0.11)."""


class UnsupportedCompression(CorruptBatch):
    """The attributes name an unknown compression (5 to 7)."""


class ExpandedTooLarge(CorruptBatch):
    """The compressed records expand to more than the caller allows (a decompression bomb)."""
