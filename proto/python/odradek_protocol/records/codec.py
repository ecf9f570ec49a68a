"""The record codec of this process: the C codec `_codec` if it is built, otherwise `python_codec`. Both have the same
functions with the same results.

With the environment variable `ODRADEK_PURE_PYTHON=1` the Python codec is used in any case.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from odradek_protocol.records.python_codec import (
        Record,
        RecordBuffer,
        RecordColumns,
        RecordReader,
    )
    from odradek_protocol.records.python_codec import crc32c as crc32c
    from odradek_protocol.records.python_codec import lines as lines
    from odradek_protocol.records.python_codec import murmur2 as murmur2
    from odradek_protocol.records.python_codec import usual_batch as usual_batch
    from odradek_protocol.records.python_codec import usual_encoding as usual_encoding
    from odradek_protocol.records.python_codec import usual_header as usual_header
    from odradek_protocol.records.python_codec import usual_message as usual_message
    from odradek_protocol.records.python_codec import usual_produce as usual_produce
    from odradek_protocol.records.python_codec import usual_produced as usual_produced

    IMPLEMENTATION: Final[str] = ""
else:
    _CHOOSES_PYTHON = os.environ.get("ODRADEK_PURE_PYTHON", "") not in ("", "0")
    try:
        if _CHOOSES_PYTHON:
            raise ImportError
        from odradek_protocol.records._codec import (
            Record,
            RecordBuffer,
            RecordColumns,
            RecordReader,
            crc32c,
            lines,
            murmur2,
            usual_batch,
            usual_encoding,
            usual_header,
            usual_message,
            usual_produce,
            usual_produced,
        )

        IMPLEMENTATION = "c"
    except ImportError:
        from odradek_protocol.records.python_codec import (
            Record,
            RecordBuffer,
            RecordColumns,
            RecordReader,
            crc32c,
            lines,
            murmur2,
            usual_batch,
            usual_encoding,
            usual_header,
            usual_message,
            usual_produce,
            usual_produced,
        )

        IMPLEMENTATION = "python"
        if not _CHOOSES_PYTHON:
            logging.getLogger("odradek").warning(
                "The record codec in C is not built; records take about 20 times more CPU time"
            )

__all__ = [
    "IMPLEMENTATION",
    "Record",
    "RecordBuffer",
    "RecordColumns",
    "RecordReader",
    "crc32c",
    "lines",
    "murmur2",
    "usual_batch",
    "usual_encoding",
    "usual_header",
    "usual_message",
    "usual_produce",
    "usual_produced",
]
