"""How many files and connections this process may have open.

Shells and systemd give programs 1,024 unless they ask for more, though most systems allow them half a
million. A broker has a file open for each partition and one for each connection.
"""

from __future__ import annotations

import resource


def raise_open_files_limit() -> int:
    """As high as the system lets us, as Java does for its programs; the limit from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS names no limit, and takes none
        return soft
    return hard
