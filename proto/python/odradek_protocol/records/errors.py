"""What can be wrong with the bytes of a record batch. Each message names what and where."""

from __future__ import annotations


class CorruptBatch(ValueError):
    """These bytes are no record batch. Not retriable: the same bytes fail again."""


class TruncatedBatch(CorruptBatch):
    """The bytes end before the batch does. More bytes may make it whole."""


class ChecksumMismatch(CorruptBatch):
    """The CRC32C in the header is not that of the bytes."""


class UnsupportedMagic(CorruptBatch):
    """A message set of another format version (magic 0 and 1 are from before Kafka 0.11)."""


class UnsupportedCompression(CorruptBatch):
    """The attributes name a codec that nobody knows (5 to 7)."""


class ExpandedTooLarge(CorruptBatch):
    """The compressed records expand to more than the caller allows (a decompression bomb)."""
