"""A broker whose disk fails every write to a log after SIGUSR1."""

from __future__ import annotations

import errno
import runpy
import signal
from typing import Any, NoReturn

from odradek_broker.log.storage import DiskFile


def _fail(*_: Any) -> None:
    def pwrite(*_: Any) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    DiskFile.pwrite = pwrite  # type: ignore[method-assign]


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _fail)
    runpy.run_module("odradek_broker", run_name="__main__")
