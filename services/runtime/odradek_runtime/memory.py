"""How this process's C allocator treats large blocks.

A fetch or a replicated message is about 1 MiB, allocated, sent and freed. glibc returns such blocks to
the kernel and requests new ones, zeroed page by page: measured, that was more than half of a broker's CPU on
a fetch over gRPC. Kept in the process they cost nothing; the kept memory is bounded.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES_MAX: Final = 32 << 20
OWN_MAPPING_BYTES_MIN: Final = 16 << 20
GROWTH_BYTES: Final = 4 << 20


def keep_freed_memory() -> bool:
    """Keep up to `KEPT_BYTES_MAX` of freed memory; blocks above `OWN_MAPPING_BYTES_MIN` are still mapped and
    unmapped one by one. Call it before threads start, and never inside a user's process. False without glibc."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    set_option.argtypes = (ctypes.c_int, ctypes.c_int)
    set_option.restype = ctypes.c_int
    options = {
        _M_TRIM_THRESHOLD: KEPT_BYTES_MAX,
        _M_MMAP_THRESHOLD: OWN_MAPPING_BYTES_MIN,
        _M_TOP_PAD: GROWTH_BYTES,
    }
    return all(set_option(option, value) == 1 for option, value in options.items())
