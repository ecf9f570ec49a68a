"""Which record codec this process uses: C where it was built, else Python. The results are equal.

`ODRADEK_PURE_PYTHON=1` in the environment chooses Python whatever was built.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from odradek_protocol.records.python_codec import Record, RecordBuffer, RecordReader
    from odradek_protocol.records.python_codec import crc32c as crc32c
    from odradek_protocol.records.python_codec import murmur2 as murmur2
    from odradek_protocol.records.python_columns import RecordColumns

    IMPLEMENTATION: Final[str] = ""
else:
    try:
        if os.environ.get("ODRADEK_PURE_PYTHON", "") not in ("", "0"):
            raise ImportError("Python was asked for")
        from odradek_protocol.records._codec import (
            Record,
            RecordBuffer,
            RecordColumns,
            RecordReader,
            crc32c,
            murmur2,
        )

        IMPLEMENTATION = "c"
    except ImportError:
        from odradek_protocol.records.python_codec import (
            Record,
            RecordBuffer,
            RecordReader,
            crc32c,
            murmur2,
        )
        from odradek_protocol.records.python_columns import RecordColumns

        IMPLEMENTATION = "python"

__all__ = [
    "IMPLEMENTATION",
    "Record",
    "RecordBuffer",
    "RecordColumns",
    "RecordReader",
    "crc32c",
    "murmur2",
]
