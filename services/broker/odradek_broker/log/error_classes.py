"""What an error of the operating system says: which ones are the disk's, and which ones are not.

    DISK      the device or the file system is broken    the data directory goes offline
    FULL      there is no room                           the directory is read-only until there is
    PROCESS   this call, or this process, is at fault    the call is refused; nothing else changes
    CONTENT   the bytes are not those that were written  the partition is damaged, and no other one

A data directory that goes offline ends every replica in it, so only an error that says something of the disk
may do that. Running out of descriptors or memory passes when others give theirs back, and a name that is
too long concerns the one file of that name. An error without a number, or of a sync, counts as the disk's:
nobody knows what is left of the bytes (see storage.py).
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final


class ErrorClass(Enum):
    """Whose fault an OSError is."""

    DISK = "disk"
    FULL = "full"
    PROCESS = "process"
    CONTENT = "content"


class DamagedContent(OSError):
    """A file has no batches where batches were written, or others. `offsets`: of the batch, where it is known."""

    def __init__(self, error: Exception) -> None:
        super().__init__(errno.EBADMSG, str(error))
        self.offsets: tuple[int, int] | None = getattr(error, "offsets", None)


# EFBIG: files may not grow further (`ulimit -f`), so another broker is to lead as with a full disk.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
OF_THE_DISK: Final = frozenset(
    {
        errno.EIO,
        errno.EROFS,
        errno.ENODEV,
        errno.ENXIO,
        errno.EUCLEAN,  # the file system's own structures are damaged
        errno.EBADMSG,
        errno.ENOMEDIUM,
        errno.EMEDIUMTYPE,
        errno.EREMOTEIO,
        errno.ESTALE,  # a network file system lost the file
        errno.ETIMEDOUT,
        errno.ENOLINK,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ENOKEY,  # an encrypted directory was locked
        errno.EKEYEXPIRED,
        errno.EKEYREVOKED,
    }
)


def error_class(error: OSError) -> ErrorClass:
    """Classify one error."""
    if isinstance(error, DamagedContent):
        return ErrorClass.CONTENT
    if error.errno in NO_ROOM:
        return ErrorClass.FULL
    if error.errno is None or error.errno in OF_THE_DISK:
        return ErrorClass.DISK
    return ErrorClass.PROCESS
