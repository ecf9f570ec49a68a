"""A broker with a planted bug: a batch that contains BUG_MARK breaks an assertion of its
partition's log.
"""

from __future__ import annotations

import runpy
from typing import Any, Final

from odradek_broker.log.partition_log import PartitionLog

BUG_MARK: Final = b"777777777"


def _plant() -> None:
    original = PartitionLog.append

    def append(self: PartitionLog, batches: Any, **named: Any) -> Any:
        assert BUG_MARK not in bytes(batches), f"{self} at {self.log_end_offset}"
        return original(self, batches, **named)

    PartitionLog.append = append  # type: ignore[method-assign]


if __name__ == "__main__":
    _plant()
    runpy.run_module("odradek_broker", run_name="__main__")
