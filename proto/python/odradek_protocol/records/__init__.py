"""Record batches of Kafka's format v2. Producers encode them, brokers store them, and consumers decode them.

errors, batch_header                the header of a batch, which is all that brokers usually read
codec                               the codec of records: `_codec.c`, or `python_codec` if `_codec.c` is not compiled
builder                             encodes records to a batch
batch_reader, columns               decode a batch to objects, or to columns in Arrow's memory layout
control                             the markers that end transactions
compression                         compression, with a limit on the decompressed size
hashes                              the checksum of a batch, and the hash that assigns a key to a partition
"""

from odradek_protocol.records.batch_header import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    TimestampType,
    check_crc,
    iter_headers,
    read_header,
    stamp,
)
from odradek_protocol.records.batch_reader import (
    check_records,
    decode_batch,
    decode_batches,
    open_batch,
)
from odradek_protocol.records.builder import BatchBuilder, encode_batch
from odradek_protocol.records.codec import IMPLEMENTATION, Record, RecordReader
from odradek_protocol.records.columns import Column, ColumnBuilder, Columns, decode_to_arrow
from odradek_protocol.records.control import (
    ControlRecord,
    ControlType,
    encode_marker,
    parse_control_record,
    read_control,
)
from odradek_protocol.records.errors import (
    ChecksumMismatch,
    CorruptBatch,
    ExpandedTooLarge,
    TruncatedBatch,
    UnsupportedCompression,
    UnsupportedMagic,
)
from odradek_protocol.records.hashes import crc32c, murmur2, partition_for_key

__all__ = [
    "HEADER_BYTES",
    "IMPLEMENTATION",
    "BatchBuilder",
    "BatchHeader",
    "ChecksumMismatch",
    "Column",
    "ColumnBuilder",
    "Columns",
    "Compression",
    "ControlRecord",
    "ControlType",
    "CorruptBatch",
    "ExpandedTooLarge",
    "Record",
    "RecordReader",
    "TimestampType",
    "TruncatedBatch",
    "UnsupportedCompression",
    "UnsupportedMagic",
    "check_crc",
    "check_records",
    "crc32c",
    "decode_batch",
    "decode_batches",
    "decode_to_arrow",
    "encode_batch",
    "encode_marker",
    "iter_headers",
    "murmur2",
    "open_batch",
    "parse_control_record",
    "partition_for_key",
    "read_control",
    "read_header",
    "stamp",
]
