"""Errors in the bytes of a record batch. Each message says what is wrong and at which position."""

from __future__ import annotations


class CorruptBatch(ValueError):
    """The bytes are not a valid record batch. Retrying does not help, because decoding the same bytes fails again."""


class TruncatedBatch(CorruptBatch):
    """The bytes end within a batch. The batch may be valid once all its bytes are there."""


class ChecksumMismatch(CorruptBatch):
    """The CRC32C in the header of a batch differs from the CRC32C of its bytes."""


class UnsupportedMagic(CorruptBatch):
    """The bytes are a message set of another format version. Magic 0 and 1 are the formats before Kafka 0.11."""


class UnsupportedCompression(CorruptBatch):
    """The attributes of a batch have an unknown compression code (5 to 7)."""


class ExpandedTooLarge(CorruptBatch):
    """The decompressed records would be larger than the caller allows, as in a decompression bomb."""
