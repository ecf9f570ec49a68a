"""The record codec of this process: the C codec if it was built, otherwise the Python codec. Their results are equal.

`ODRADEK_PURE_PYTHON=1` in the environment chooses Python in either case.
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
                "The record codec in C is not built: records cost about 20 times more CPU"
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
