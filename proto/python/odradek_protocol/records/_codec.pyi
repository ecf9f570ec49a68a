"""The types of the C codec, which are those of the Python codec."""

from odradek_protocol.records.python_codec import Record as Record
from odradek_protocol.records.python_codec import RecordBuffer as RecordBuffer
from odradek_protocol.records.python_codec import RecordColumns as RecordColumns
from odradek_protocol.records.python_codec import RecordReader as RecordReader
from odradek_protocol.records.python_codec import crc32c as crc32c
from odradek_protocol.records.python_codec import lines as lines
from odradek_protocol.records.python_codec import murmur2 as murmur2
from odradek_protocol.records.python_codec import usual_batch as usual_batch
from odradek_protocol.records.python_codec import usual_encoding as usual_encoding
from odradek_protocol.records.python_codec import usual_header as usual_header
from odradek_protocol.records.python_codec import usual_message as usual_message
from odradek_protocol.records.python_codec import usual_produce as usual_produce
from odradek_protocol.records.python_codec import usual_produced as usual_produced
